//! A swarm whose processes and hosts fail while it works: with NATS or Redis between hosts in network namespaces that are killed,
//! cut off and return, with a file between processes of one host, and in one process. Needs root, `ip`, `redis-server` and the NATS
//! server of `tests/parts/install.sh`.
//!
//! `CLAWK_SWARM_TASKS` and `CLAWK_SWARM_WORKERS` say how many; `cargo xtask soak swarm --backend NAME` asks for more.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clawk_kernel::kind;
use serde_json::{Value, json};

use crate::agent::{Agent, program};
use crate::parts;
use crate::peers::Host;
use crate::swarm::{agent, events, says, scene, swarm};

/// Tasks that the driver has given and not seen reported.
const OPEN: usize = 40;
const BROKER: usize = 250;
const LEADER: usize = 1;

/// What carries tasks from the leader to the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Nats,
    Redis,
    File,
    /// The leader's own process works on them.
    Own,
}

impl Carrier {
    const fn backend(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::Redis => "redis",
            Self::File => "sqlite-wal",
            Self::Own => "in-process",
        }
    }

    /// Workers are on hosts of their own.
    const fn has_hosts(self) -> bool {
        matches!(self, Self::Nats | Self::Redis)
    }
}

/// Hosts behind one switch, each in a network namespace of its own; gone when dropped.
struct Net {
    prefix: String,
}

fn ip(args: &str) {
    let done = Command::new("ip")
        .args(args.split_whitespace())
        .output()
        .expect("ip runs");
    assert!(
        done.status.success(),
        "ip {args}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

impl Net {
    fn new() -> Self {
        let net = Self {
            prefix: format!("c{}", std::process::id()),
        };
        ip(&format!("netns add {}sw", net.prefix));
        ip(&format!("-n {}sw link add br0 type bridge", net.prefix));
        ip(&format!("-n {}sw link set br0 up", net.prefix));
        net
    }

    fn name(&self, host: usize) -> String {
        format!("{}h{host}", self.prefix)
    }

    /// A host with an address.
    fn add(&self, host: usize) {
        let (own, switch) = (self.name(host), format!("{}sw", self.prefix));
        ip(&format!("netns add {own}"));
        ip(&format!(
            "-n {own} link add e0 type veth peer name p{host} netns {switch}"
        ));
        ip(&format!("-n {switch} link set p{host} master br0 up"));
        ip(&format!("-n {own} addr add {}/24 dev e0", address(host)));
        ip(&format!("-n {own} link set e0 up"));
        ip(&format!("-n {own} link set lo up"));
    }

    /// Takes its link down, or up again.
    fn link(&self, host: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        ip(&format!("-n {}sw link set p{host} {state}", self.prefix));
    }

    /// A program on a host.
    fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host), program]);
        command
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let listed = Command::new("ip")
            .args(["netns", "list"])
            .output()
            .expect("ip runs");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = listed.lines().filter_map(|line| line.split_whitespace().next());
        for name in names.filter(|name| name.starts_with(&self.prefix)) {
            let _gone = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn address(host: usize) -> String {
    format!("10.77.0.{host}")
}

/// A broker that may be killed; what it stored stays.
struct Broker {
    carrier: Carrier,
    child: Option<Child>,
    folder: tempfile::TempDir,
}

impl Broker {
    /// Starts it; where no broker carries the tasks, there is nothing to start.
    fn run(&mut self, net: &Net) {
        let at = address(BROKER);
        let (mut command, port) = match self.carrier {
            Carrier::Nats => {
                let program = parts::part("nats/bin/nats-server");
                let mut command = net.command(BROKER, program.to_str().expect("a path"));
                command.args(["-a", &at, "-p", "4222", "-js", "-sd"]);
                (command, ":107E ")
            }
            Carrier::Redis => {
                let mut command = net.command(BROKER, "redis-server");
                command.args(["--bind", &at, "--port", "6379", "--protected-mode", "no"]);
                command.args([
                    "--save",
                    "",
                    "--appendonly",
                    "yes",
                    "--appendfsync",
                    "always",
                    "--dir",
                ]);
                (command, ":18EB ")
            }
            Carrier::File | Carrier::Own => return,
        };
        command.arg(self.folder.path());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("the broker starts"));
        // Nothing of ours may ask it before it listens: a namespace has no other way to look.
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let look = net
                .command(BROKER, "sh")
                .args(["-c", &format!("cat /proc/net/tcp | grep -qi '{port}'")])
                .status()
                .expect("sh runs");
            if look.success() {
                return;
            }
            assert!(Instant::now() < until, "the broker does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The leader's launcher: gives tasks, takes reports.
struct Driver {
    child: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<Value>,
}

impl Driver {
    fn start(net: &Net, leader: &Agent) -> Self {
        let mut command = net.command(LEADER, program().to_str().expect("a path"));
        command
            .args(["serve", "claw.yaml", "--stdio"])
            .current_dir(leader.path(""))
            .env_clear()
            .envs(leader.environment())
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("the leader starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Ok(message) = serde_json::from_str(&line) else {
                    return;
                };
                if tell.send(message).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take().expect("piped");
        let mut driver = Self { child, input, lines };
        driver.say(
            &json!({"jsonrpc": "2.0", "id": "hello", "method": "claw.initialize", "params": {
            "protocolVersion": "0.3.0", "clientInfo": {"name": "driver", "version": "1"},
            "manifest": {"kind": "Claw", "metadata": {"name": "tested"}}, "capabilities": {"swarm": {}}}}),
        );
        driver
    }

    fn say(&mut self, message: &Value) {
        // A leader that was killed is not written to: the task is given again to the next one.
        let _written = writeln!(self.input, "{message}");
    }

    fn give(&mut self, n: usize) {
        let params = json!({"task_id": id(1, n), "task": {"description": format!("task {n}")},
            "context": {"request_id": id(2, n), "swarm": "team", "member": "worker"}});
        self.say(&json!({"jsonrpc": "2.0", "id": format!("d{n}"), "method": "claw.swarm.delegate", "params": params}));
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

fn id(kind: usize, n: usize) -> String {
    format!("00000000-0000-4000-8{kind:03}-{n:012}")
}

fn number(id: &str) -> usize {
    id.rsplit('-').next().expect("an id").parse().expect("a number")
}

/// What happens, by how many tasks have been reported.
fn plan(carrier: Carrier, tasks: usize, workers: usize) -> VecDeque<(usize, Fate)> {
    let mut plan = Vec::new();
    let step = (tasks / 8).max(1);
    let mut at = step / 2;
    let mut turn = 0;
    while at < tasks {
        let host = 2 + turn % workers.max(1);
        let fates: &[Fate] = match carrier {
            Carrier::Nats | Carrier::Redis => &[
                Fate::Kill(host),
                Fate::Cut(host),
                Fate::Broker,
                Fate::Leader,
                Fate::Return,
            ],
            Carrier::File => &[Fate::Kill(host), Fate::Leader, Fate::Return],
            Carrier::Own => &[Fate::Leader],
        };
        plan.push((at, fates[turn % fates.len()]));
        at += step;
        turn += 1;
    }
    plan.into()
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Kill(usize),
    Cut(usize),
    Broker,
    Leader,
    /// Everybody who is away comes back.
    Return,
}

struct World {
    carrier: Carrier,
    net: Net,
    broker: Broker,
    leader: Agent,
    workers: BTreeMap<usize, (Agent, Option<Host>)>,
    cut: Vec<usize>,
}

impl World {
    fn new(carrier: Carrier, workers: usize) -> Self {
        let net = Net::new();
        let far = if carrier.has_hosts() { 2..2 + workers } else { 0..0 };
        for host in [BROKER, LEADER].into_iter().chain(far) {
            net.add(host);
        }
        let mut broker = Broker {
            carrier,
            child: None,
            folder: tempfile::tempdir().expect("temporary directory"),
        };
        broker.run(&net);
        let more = json!({"coordination": {"message_passing": "queue", "backend": carrier.backend(), "concurrency": {}},
            "failure": {"retry_per_agent": 1, "dead_letter": {"enabled": true, "max_retries": 3}}});
        let agents = json!([{"identity_ref": "head", "role": "leader"}, {"identity_ref": "hand", "role": "worker", "count": 8}]);
        let team = swarm("leader-worker", "leader-decides", agents, more);
        let script = json!({"scenes": [scene("member hand", "", says("did {{last_user_text}}")), scene("", "", says("only workers work"))]});
        let url = match carrier {
            Carrier::Nats => format!("url = \"nats://{}:4222\"\n", address(BROKER)),
            Carrier::Redis => format!("url = \"redis://{}:6379\"\n", address(BROKER)),
            Carrier::File => format!("url = \"{}\"\n", broker.folder.path().join("bus.db").display()),
            Carrier::Own => String::new(),
        };
        let host = |serve: &str| {
            let agent = agent(&team, &script);
            let toml = format!("[swarm]\nretry_delay_ms = 50\n{url}{serve}");
            std::fs::write(agent.path("clawk.toml"), toml).expect("writes");
            agent
        };
        let leader = host(if carrier == Carrier::Own {
            ""
        } else {
            "serve = []\n"
        });
        let workers = (2..2 + workers).map(|at| (at, (host(""), None))).collect();
        let mut world = Self {
            carrier,
            net,
            broker,
            leader,
            workers,
            cut: Vec::new(),
        };
        let all: Vec<usize> = world.workers.keys().copied().collect();
        all.into_iter().for_each(|host| world.run(host));
        world
    }

    fn run(&mut self, host: usize) {
        let (agent, running) = self.workers.get_mut(&host).expect("a worker");
        let place = if self.carrier.has_hosts() { host } else { LEADER };
        let mut command = self.net.command(place, program().to_str().expect("a path"));
        command
            .args(["serve", "claw.yaml"])
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        *running = Some(Host::start(&mut command, "working for the swarm"));
    }

    fn befall(&mut self, fate: Fate, driver: Driver) -> Driver {
        match fate {
            Fate::Kill(host) => {
                let (_, running) = self.workers.get_mut(&host).expect("a worker");
                *running = None;
            }
            Fate::Cut(host) => {
                self.net.link(host, false);
                self.cut.push(host);
            }
            Fate::Broker => {
                self.broker.kill();
                std::thread::sleep(Duration::from_secs(1));
                self.broker.run(&self.net);
            }
            Fate::Leader => {
                driver.kill();
                return Driver::start(&self.net, &self.leader);
            }
            Fate::Return => self.heal(),
        }
        driver
    }

    fn heal(&mut self) {
        for host in std::mem::take(&mut self.cut) {
            self.net.link(host, true);
        }
        let away: Vec<usize> = self
            .workers
            .iter()
            .filter(|(_, (_, running))| running.is_none())
            .map(|(host, _)| *host)
            .collect();
        away.into_iter().for_each(|host| self.run(host));
    }
}

fn asked_for(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |value| value.parse().expect("a number"))
}

#[test]
fn every_task_is_reported_once_or_is_a_dead_letter_whatever_happens_to_hosts() {
    every_task_ends_once(Carrier::Nats);
}

#[test]
fn the_same_over_redis() {
    every_task_ends_once(Carrier::Redis);
}

#[test]
fn the_same_over_a_file_between_processes_of_one_host() {
    every_task_ends_once(Carrier::File);
}

#[test]
fn the_same_in_one_process() {
    every_task_ends_once(Carrier::Own);
}

#[expect(clippy::print_stderr, reason = "a soak of hours says how far it is")]
fn every_task_ends_once(carrier: Carrier) {
    let tasks = asked_for("CLAWK_SWARM_TASKS", 200);
    let workers = if carrier == Carrier::Own {
        0
    } else {
        asked_for("CLAWK_SWARM_WORKERS", 3)
    };
    let mut world = World::new(carrier, workers);
    let mut driver = Driver::start(&world.net, &world.leader);
    let mut plan = plan(carrier, tasks, workers);
    let mut told: BTreeMap<usize, Value> = BTreeMap::new();
    let mut open: Vec<usize> = Vec::new();
    let (mut next, mut quiet) = (0, Instant::now());
    let limit = Instant::now()
        + Duration::from_secs(120)
        + Duration::from_millis(200) * u32::try_from(tasks).expect("few");
    while told.len() < tasks {
        assert!(
            Instant::now() < limit,
            "{} of {tasks} are reported; open: {open:?}",
            told.len()
        );
        while open.len() < OPEN && next < tasks {
            driver.give(next);
            open.push(next);
            next += 1;
        }
        if let Some((_, fate)) = plan.front().copied().filter(|(at, _)| told.len() >= *at) {
            plan.pop_front();
            eprintln!("{} reported: {fate:?}", told.len());
            driver = world.befall(fate, driver);
            if matches!(fate, Fate::Leader) {
                open.iter().for_each(|n| driver.give(*n));
            }
        }
        // Whoever is away comes back when nothing goes on without it.
        if quiet.elapsed() > Duration::from_secs(10) {
            world.heal();
            quiet = Instant::now();
        }
        let Ok(message) = driver.lines.recv_timeout(Duration::from_millis(200)) else {
            continue;
        };
        if message["method"] != "claw.swarm.report" {
            assert!(message.get("error").is_none(), "{message}");
            continue;
        }
        quiet = Instant::now();
        let n = number(message["params"]["task_id"].as_str().expect("an id"));
        let mut said = message["params"].clone();
        said.as_object_mut().expect("an object").remove("duration_ms");
        let before = told.insert(n, said.clone());
        assert!(
            before.is_none_or(|before| before == said),
            "task {n} was reported twice, differently"
        );
        open.retain(|known| *known != n);
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"acknowledged": true}});
        driver.say(&answer);
    }
    driver.kill();
    let completed = told.values().filter(|said| said["status"] == "completed").count();
    eprintln!("{tasks} tasks: {completed} completed, {} dead", tasks - completed);
    for (n, said) in told.iter().filter(|(_, said)| said["status"] == "completed") {
        let text = said["result"]["text"].as_str().expect("a text");
        assert_eq!(text, format!("did task {n}"));
    }
    ended_once(&world, &told);
    for agent in [&world.leader]
        .into_iter()
        .chain(world.workers.values().map(|(agent, _)| agent))
    {
        let output = agent
            .clawk(["trace", "verify", "--format", "json"])
            .arg("--state")
            .arg(agent.state())
            // Tens of thousands of events, read by a debug build on a loaded machine.
            .timeout(Duration::from_secs(900))
            .output()
            .expect("it runs");
        let valid: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(valid["valid"], true, "{valid} {:?} {said}", output.status);
        eprintln!("valid: {} events", valid["event_count"]);
    }
}

/// The leader's record: each run ended once, with the status that was told; each failed task is a dead letter.
fn ended_once(world: &World, told: &BTreeMap<usize, Value>) {
    let mut ends: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut reported: BTreeMap<String, usize> = BTreeMap::new();
    let (mut dead, mut failed) = (0, 0);
    for event in events(&world.leader) {
        let payload: Value = serde_json::from_str(&event.payload).expect("ours");
        let task = payload["task_id"].as_str().unwrap_or_default().to_owned();
        match event.kind.as_str() {
            kind::SWARM_ENDED => {
                let status = payload["status"].as_str().expect("a status").to_owned();
                ends.entry(number(&task)).or_default().push(status);
            }
            kind::SWARM_REPORTED if payload["orphan"] == false => {
                *reported.entry(task).or_default() += 1;
                failed += usize::from(payload["status"] == "failed");
            }
            kind::SWARM_DEAD_LETTERED => dead += 1,
            _ => {}
        }
    }
    assert!(
        reported.values().all(|times| *times == 1),
        "a task was reported twice"
    );
    assert_eq!(reported.len(), told.len());
    assert_eq!(dead, failed, "what failed is in the dead-letter box");
    for (n, said) in told {
        let ended = ends.get(n).map(Vec::as_slice).unwrap_or_default();
        assert_eq!(ended, [said["status"].as_str().expect("a status")], "run {n}");
    }
}
