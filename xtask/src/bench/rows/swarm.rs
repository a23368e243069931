//! Measures the cost of delegating a task to a member: with each back end compared with the bare broker, by number of members, and
//! when idle. The members' model is a script that answers at once. Every agent is durable.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::super::Size;
use super::super::process::{cpu_seconds, rss_mib};
use super::super::programs::Programs;
use super::super::sample::{Sample, ms};
use super::super::servers::{self, Broker};
use super::super::several::{Running, Several, clawk, ready, trust};
use super::super::table::{Goal, Table};
use super::disk::fdatasync_ms;
use crate::run::{command, output};

/// Number of tasks that are delegated and not yet reported.
const OPEN: u32 = 40;
/// Number of members of a worker.
const HANDS: u32 = 8;
/// Numbers of members in one process.
const MEMBERS: [u32; 4] = [1, 10, 100, 1_000];

/// The back end that carries tasks from the leader to the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Own,
    File,
    Redis,
    Nats,
}

impl Carrier {
    const fn backend(self) -> &'static str {
        match self {
            Self::Own => "in-process",
            Self::File => "sqlite-wal",
            Self::Redis => "redis",
            Self::Nats => "nats",
        }
    }
}

/// The agent that delegates tasks.
#[derive(Debug)]
struct Leader {
    agents: Several,
    number: usize,
    given: u64,
}

/// A leader, with the worker and the broker if they are separate processes.
#[derive(Debug)]
struct Team {
    leader: Leader,
    worker: Option<Running>,
    broker: Option<Broker>,
}

/// Returns the CPU share of an idle worker, or of the leader's process.
fn idle_cpu(pid: u32, watched: Duration) -> Result<f64> {
    let before = cpu_seconds(pid)?;
    let began = Instant::now();
    sleep(watched);
    Ok((cpu_seconds(pid)? - before) * 1e3 / began.elapsed().as_secs_f64())
}

impl Leader {
    fn start(programs: &Programs, folder: &Path) -> Result<Self> {
        let mut agents = Several::new();
        let number = agents.add(&mut clawk(
            &programs.clawk,
            folder,
            &["serve", "claw.yaml", "--stdio"],
        ))?;
        Ok(Self {
            agents,
            number,
            given: 0,
        })
    }

    fn give(&mut self) -> Result<()> {
        self.given += 1;
        let n = self.given;
        let params = json!({ "task_id": format!("00000000-0000-4000-8001-{n:012}"), "task": { "description": format!("task {n}") },
            "context": { "request_id": format!("00000000-0000-4000-8002-{n:012}"), "swarm": "team", "member": "hand" } });
        let message = json!({ "jsonrpc": "2.0", "id": n, "method": "claw.swarm.delegate", "params": params });
        self.agents.say(self.number, &message)
    }

    /// Waits for the next report and acknowledges it.
    fn reported(&mut self) -> Result<()> {
        loop {
            let (_, message) = self.agents.hear()?;
            if message.get("method").and_then(Value::as_str) != Some("claw.swarm.report") {
                continue;
            }
            let status = message.pointer("/params/status").and_then(Value::as_str);
            ensure!(status == Some("completed"), "a task failed: {message}");
            let id = message.get("id").context("a report without an id")?;
            let answer = json!({ "jsonrpc": "2.0", "id": id, "result": { "acknowledged": true } });
            return self.agents.say(self.number, &answer);
        }
    }

    /// Delegates tasks one after the other. Returns milliseconds from delegation to report.
    fn sequence(&mut self, tasks: u32) -> Result<Sample> {
        let mut took = Sample::default();
        for _ in 0..tasks {
            let began = Instant::now();
            self.give()?;
            self.reported()?;
            took.push(ms(began.elapsed()));
        }
        Ok(took)
    }

    /// Delegates tasks with [`OPEN`] of them open. Returns tasks per second.
    fn flood(&mut self, tasks: u32) -> Result<f64> {
        let began = Instant::now();
        let mut given = 0;
        for reported in 0..tasks {
            while given < tasks && given - reported < OPEN {
                self.give()?;
                given += 1;
            }
            self.reported()?;
        }
        Ok(f64::from(tasks) / began.elapsed().as_secs_f64())
    }
}

/// Writes an agent with this swarm. `url` is the address of its bus.
fn write(folder: &Path, carrier: Carrier, members: u32, url: &str, serve: &str) -> Result<()> {
    let manifest = json!({ "claw": "0.3.0", "kind": "Claw", "metadata": { "name": "bench", "version": "1.0.0" }, "spec": {
        "identity": { "inline": { "name": "bench", "personality": "Works.", "autonomy": "autonomous" } },
        "providers": [{ "inline": { "name": "main", "protocol": "custom", "endpoint": "script:./model.yaml", "model": "scripted", "auth": { "type": "none" } } }],
        "channels": [{ "inline": { "name": "here", "type": "cli", "transport": "stdio", "auth": { "secret_ref": "NONE" } } }],
        "policies": [{ "inline": { "name": "all", "rules": [{ "id": "all", "action": "allow", "scope": "all" }] } }],
        "swarm": { "inline": { "name": "team", "topology": "leader-worker",
            "agents": [{ "identity_ref": "head", "role": "leader" }, { "identity_ref": "hand", "role": "worker", "count": members }],
            "coordination": { "message_passing": "queue", "backend": carrier.backend(), "concurrency": {} },
            "aggregation": { "strategy": "leader-decides" } } },
    } });
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("claw.yaml"), manifest.to_string())?;
    std::fs::write(
        folder.join("model.yaml"),
        "scenes: [{ steps: [{ say: done }] }]\n",
    )?;
    let config = format!("state = \"state\"\n[swarm]\n{url}{serve}");
    Ok(std::fs::write(folder.join("clawk.toml"), config)?)
}

impl Team {
    fn start(programs: &Programs, folder: &Path, carrier: Carrier) -> Result<Self> {
        let broker = match carrier {
            Carrier::Own | Carrier::File => None,
            Carrier::Redis => Some(servers::redis(folder)?),
            Carrier::Nats => Some(servers::nats(folder)?),
        };
        let url = match (&broker, carrier) {
            (Some(broker), _) => format!("url = \"{}\"\n", broker.url),
            (None, Carrier::File) => format!("url = \"{}\"\n", folder.join("bus.db").display()),
            (None, _) => String::new(),
        };
        let own = carrier == Carrier::Own;
        let (leader, worker) = (folder.join("leader"), folder.join("worker"));
        write(
            &leader,
            carrier,
            HANDS,
            &url,
            if own { "" } else { "serve = []\n" },
        )?;
        trust(&programs.clawk, &leader)?;
        let worker = if own {
            None
        } else {
            write(&worker, carrier, HANDS, &url, "")?;
            trust(&programs.clawk, &worker)?;
            let mut serve = clawk(&programs.clawk, &worker, &["serve", "claw.yaml"]);
            Some(ready(&mut serve, "working for the swarm")?)
        };
        let leader = Leader::start(programs, &leader)?;
        Ok(Self {
            leader,
            worker,
            broker,
        })
    }

    /// Returns the id of the process that runs the members.
    fn worker_pid(&self) -> Result<u32> {
        match &self.worker {
            Some(worker) => Ok(worker.pid()),
            None => self.leader.agents.pid(self.leader.number),
        }
    }
}

/// Measures one message or commit of the bare back end: milliseconds, and number per second.
fn bare(programs: &Programs, folder: &Path, team: &Team, messages: u32) -> Result<(f64, f64)> {
    let Some(broker) = &team.broker else {
        let sync = fdatasync_ms(folder, 200)?.median();
        return Ok((sync, 1e3 / sync));
    };
    let mut library = command(&programs.library);
    let printed = output(library.args(["broker", &broker.url, &messages.to_string()]))?;
    let mut numbers = printed.split_whitespace().map(str::parse::<f64>);
    let mut next = || numbers.next().context("the library program prints two numbers");
    Ok((next()?? / 1e3, next()??))
}

pub(super) fn rows(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let quick = size.starts < 30;
    let (sequence, flood, watched) = if quick {
        (40, 200, Duration::from_secs(3))
    } else {
        (200, 1_000, Duration::from_secs(20))
    };
    let mut idle = Vec::new();
    for carrier in [Carrier::Own, Carrier::File, Carrier::Redis, Carrier::Nats] {
        let folder = folder.join(carrier.backend());
        std::fs::create_dir(&folder)?;
        let mut team = Team::start(programs, &folder, carrier)?;
        team.leader.flood(flood / 5)?;
        let (mut trip, mut rate) = (Sample::default(), Sample::default());
        let (mut bare_ms, mut bare_rate) = (Sample::default(), Sample::default());
        for _ in 0..size.rounds {
            let (one, many) = bare(programs, &folder, &team, flood)?;
            bare_ms.push(one);
            bare_rate.push(many);
            trip.push(team.leader.sequence(sequence)?.median());
            rate.push(team.leader.flood(flood)?);
        }
        let (one, many) = match carrier {
            Carrier::Own | Carrier::File => ("one fdatasync", "one fdatasync after the other"),
            Carrier::Redis | Carrier::Nats => (
                "the bare broker, one message acknowledged",
                "the bare broker, 64 messages in flight",
            ),
        };
        let name = carrier.backend();
        table.add(
            format!("swarm, {name}: from delegating a task to its report, best p50"),
            (trip.least(), "ms"),
            (one, bare_ms.least()),
            Goal::None,
        );
        table.add(
            format!("swarm, {name}: tasks with {OPEN} open and {HANDS} members"),
            (rate.most(), "/s"),
            (many, bare_rate.most()),
            Goal::None,
        );
        // Wait until the work of the last task is done.
        sleep(Duration::from_secs(2));
        idle.push((name, idle_cpu(team.worker_pid()?, watched)?));
    }
    let least = idle.first().map_or(0.0, |(_, cpu)| *cpu);
    for (name, cpu) in idle {
        table.add(
            format!("swarm, {name}: CPU time in a second of a worker that has nothing to do"),
            (cpu, "ms"),
            ("in process", least),
            Goal::None,
        );
    }
    Ok(())
}

/// Measures members in one process. Each row has the same tasks.
pub(super) fn members(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let quick = size.starts < 30;
    let (tasks, watched) = if quick {
        (400, Duration::from_secs(3))
    } else {
        (2_000, Duration::from_secs(20))
    };
    let mut first: Option<(f64, f64, f64)> = None;
    let mut last = (0, 0.0, 0.0);
    for members in MEMBERS {
        let folder = folder.join(members.to_string());
        write(&folder, Carrier::Own, members, "", "")?;
        trust(&programs.clawk, &folder)?;
        let mut leader = Leader::start(programs, &folder)?;
        let pid = leader.agents.pid(leader.number)?;
        let rate = leader.flood(tasks)?;
        sleep(Duration::from_secs(2));
        let cpu = idle_cpu(pid, watched)?;
        let resident = rss_mib(pid)?;
        let (least_rate, least_cpu, least_resident) = *first.get_or_insert((rate, cpu, resident));
        let one = MEMBERS.first().copied().unwrap_or(1);
        table.add(
            format!("swarm in process: tasks with {OPEN} open, {members} members"),
            (rate, "/s"),
            (format!("{one} member"), least_rate),
            Goal::None,
        );
        last = (members - one, resident - least_resident, cpu - least_cpu);
        if members > one {
            table.add(
                format!("the same after {tasks} tasks, idle: resident memory"),
                (resident, "MiB"),
                (format!("{one} member"), least_resident),
                Goal::None,
            );
            table.add(
                "the same, idle: CPU time in a second",
                (cpu, "ms"),
                (format!("{one} member"), least_cpu),
                Goal::None,
            );
        }
    }
    let (more, resident, cpu) = last;
    let (_, least_cpu, least_resident) = first.context("no members")?;
    table.add(
        format!("one more idle member, of {more}: resident memory"),
        (resident * 1024.0 / f64::from(more), "KiB"),
        ("the agent with one, KiB", least_resident * 1024.0),
        Goal::None,
    );
    table.add(
        format!("one more idle member, of {more}: CPU time in a second"),
        // A negative value is noise.
        ((cpu * 1e3 / f64::from(more)).max(0.0), "µs"),
        ("the agent with one, µs", least_cpu * 1e3),
        Goal::None,
    );
    Ok(())
}
