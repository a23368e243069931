//! An agent's whole state on PostgreSQL (R48): hosts that serve it at the same time and take over from each other, one that was asleep,
//! a server that restarts.

mod chaos;
mod cluster;
mod failover;
mod rates;
mod rolling;
mod swarms;
mod takeover;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, program, text};
use crate::counter::Counter;
use crate::stop::request;

use crate::postgres::database::Server as Database;

const MANIFEST: &str = r#"  tools:
    - inline: { name: order, description: Orders, input_schema: { type: object } }
    - inline: { name: pay, description: Pays, input_schema: { type: object } }
  sandbox:
    inline: { level: process }
  policies:
    - inline: { name: tested, rules: [{ id: pay, action: require-approval, scope: tool, match: { name: pay } }, { id: all, action: allow, scope: all }] }
  memory:
    inline:
      name: head
      stores: [{ name: facts, type: key-value, backend: sqlite, scope: global }]
"#;

/// How long a lease holds: a busy machine renews it in time, and a take-over is not waited for too long.
const LEASE_MS: u64 = 4_000;
/// Nothing here takes longer, on a busy machine either.
const PATIENCE: Duration = Duration::from_secs(60);

/// An agent with the configurations `a.toml` to `d.toml` for hosts of one state.
pub(crate) fn agent(database: &Database, counter: &Counter) -> Agent {
    agent_at(&database.url(), counter)
}

fn agent_at(url: &str, counter: &Counter) -> Agent {
    let agent = Agent::new();
    agent.may(MANIFEST);
    let secrets = agent.path("secrets.toml");
    std::fs::write(&secrets, format!("PG_PASSWORD = \"{}\"\n", Database::PASSWORD)).unwrap();
    std::fs::set_permissions(secrets, std::fs::Permissions::from_mode(0o600)).unwrap();
    for host in ["a", "b", "c", "d"] {
        let config = format!(
            "[state]\nurl = \"{url}\"\nschema = \"tested\"\ndir = \"{host}\"\nhost = \"{host}\"\nlease_ms = {LEASE_MS}\n\
             password = \"PG_PASSWORD\"\n[secrets_store]\nfile = \"secrets.toml\"\n[tools.order]\nhttp = {{ url = \"{}/orders\" }}\n\
             [tools.pay]\nhttp = {{ url = \"{}/orders\" }}\n",
            counter.url, counter.url
        );
        std::fs::write(agent.path(&format!("{host}.toml")), config).unwrap();
    }
    agent
}

/// `clawk serve --stdio`; killed when dropped.
pub(crate) struct Host {
    child: Child,
    /// What it says, until it ends.
    output: Receiver<Value>,
    early: Vec<Value>,
}

/// Lines that may wait to be read.
const LINES: usize = 65_536;
/// Nobody waits longer for one answer.
const LONGEST: Duration = Duration::from_secs(300);

fn lines(output: ChildStdout) -> Receiver<Value> {
    let (send, receive) = sync_channel(LINES);
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { return };
            let said: Value = serde_json::from_str(&line).unwrap();
            // Nobody asks for notices.
            if said.get("id").is_some() && send.send(said).is_err() {
                return;
            }
        }
    });
    receive
}

fn command(agent: &Agent, host: &str) -> Command {
    let mut command = Command::new(program());
    command
        .args([
            "serve",
            "claw.yaml",
            "--stdio",
            "--config",
            &format!("{host}.toml"),
        ])
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

impl Drop for Host {
    fn drop(&mut self) {
        self.signal("CONT");
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Host {
    /// Started, and told to initialize; the answer comes once it serves.
    fn begin(agent: &Agent, host: &str) -> Self {
        Self::of(command(agent, host).spawn().unwrap())
    }

    /// One that was just started.
    fn of(mut child: Child) -> Self {
        let output = lines(child.stdout.take().unwrap());
        let mut host = Self {
            child,
            output,
            early: Vec::new(),
        };
        host.initialize();
        host
    }

    fn initialize(&mut self) {
        let client = json!({"name": "test", "version": "1"});
        let manifest = json!({"kind": "Claw", "metadata": {"name": "tested"}});
        let params = json!({"protocolVersion": "0.3.0", "clientInfo": client, "manifest": manifest, "capabilities": {}});
        self.send(1, "claw.initialize", &params);
    }

    fn say(&mut self, id: u32, conversation: &str, text: &str) {
        let params = json!({"text": text, "conversation": conversation, "request_id": request(id)});
        self.send(id, "claw.message.send", &params);
    }

    pub(crate) fn start(agent: &Agent, host: &str) -> Self {
        let mut host = Self::begin(agent, host);
        let answer = host.answer(1);
        assert!(
            answer.get("result").is_some(),
            "the host does not start: {answer}"
        );
        host
    }

    pub(crate) fn send(&mut self, id: u32, method: &str, params: &Value) {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        // One that has ended says so by its output.
        let _sent = writeln!(self.child.stdin.as_mut().unwrap(), "{line}");
    }

    pub(crate) fn order(&mut self, id: u32) {
        let context = json!({"request_id": request(id), "identity": "tested"});
        let arguments = json!({"id": format!("order-{id}")});
        self.send(
            id,
            "claw.tool.call",
            &json!({"name": "order", "arguments": arguments, "context": context}),
        );
    }

    /// The answer to a request; `None`: the host has ended.
    fn maybe(&mut self, id: u32) -> Option<Value> {
        if let Some(at) = self.early.iter().position(|answer| answer["id"] == id) {
            return Some(self.early.remove(at));
        }
        loop {
            let answer = match self.output.recv_timeout(LONGEST) {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!("no answer to {id}"),
            };
            if answer["id"] == id {
                return Some(answer);
            }
            self.early.push(answer);
        }
    }

    /// The answer to a request, if it is there.
    fn poll(&mut self, id: u32) -> Option<Value> {
        self.early.extend(self.output.try_iter());
        let at = self.early.iter().position(|answer| answer["id"] == id)?;
        Some(self.early.swap_remove(at))
    }

    /// Answers that nobody has asked for yet, with their requests.
    fn rest(&mut self) -> Vec<(u32, Value)> {
        self.early.extend(self.output.try_iter());
        let told = self.early.drain(..).filter_map(|answer| {
            let id = u32::try_from(answer["id"].as_u64()?).ok()?;
            Some((id, answer))
        });
        told.collect()
    }

    pub(crate) fn answer(&mut self, id: u32) -> Value {
        self.maybe(id).expect("the host lives")
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn signal(&self, name: &str) {
        let _told = Command::new("kill")
            .stderr(Stdio::null())
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
    }

    /// An orderly end.
    pub(crate) fn stop(mut self) {
        drop(self.child.stdin.take());
        assert!(self.ended().success());
    }

    fn ended(&mut self) -> std::process::ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "it did not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What `clawk ARGS --state STATE --format json` prints.
pub(crate) fn said(agent: &Agent, args: &[&str], state: &str) -> Value {
    let mut command = agent.clawk([]);
    let output = command
        .args(args)
        .args(["--state", state, "--format", "json"])
        .timeout(LONGEST)
        .env("PGPASSWORD", Database::PASSWORD)
        .output()
        .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!out.contains(Database::PASSWORD) && !err.contains(Database::PASSWORD));
    assert!(output.status.success(), "{args:?}: {out}{err}");
    serde_json::from_str(&out).unwrap()
}

fn holds(agent: &Agent, database: &Database) {
    for state in ["a".to_owned(), format!("{}?schema=tested", database.url())] {
        let report = said(agent, &["trace", "verify"], &state);
        assert_eq!(
            (&report["valid"], report.get("problems")),
            (&json!(true), None),
            "{report}"
        );
    }
}

#[test]
fn a_killed_host_is_followed_by_another_one_and_nothing_is_done_twice() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    let mut first = Host::start(&agent, "a");
    first.order(2);
    let answer = first.answer(2);
    assert!(answer.get("result").is_some(), "{answer}");
    let entry = json!({"content": "kept", "key": "k"});
    let context = json!({"request_id": request(90), "identity": "tested"});
    let store = json!({"store": "facts", "entries": [entry], "context": context});
    first.send(90, "claw.memory.store", &store);
    assert!(first.answer(90).get("result").is_some());
    let mut second = Host::start(&agent, "b");
    until("the first one leads", || {
        said(&agent, &["state", "info"], "a")["leases"][0]["session"] == "*"
    });
    let info = said(&agent, &["state", "info"], "a");
    assert_eq!(
        (
            &info["kind"],
            &info["leases"][0]["host"],
            &info["leases"][0]["epoch"]
        ),
        (&json!("postgres"), &json!("a"), &json!(1)),
        "{info}"
    );
    until("the second one is seen", || {
        said(&agent, &["state", "info"], "a")["hosts"]
            .as_array()
            .unwrap()
            .len()
            == 2
    });
    // One that nobody can know, at the moment of the kill.
    counter.hold(true);
    first.order(3);
    until("it is sent", || counter.hits().len() == 2);
    // Both serve: what one has answered, the other tells; and what runs at one does not run at the other.
    second.order(2);
    assert_eq!(second.answer(2)["result"], answer["result"], "the one answer");
    second.order(3);
    first.kill();
    let killed = Instant::now();
    counter.hold(false);
    let unknown = second.answer(3);
    println!("taken over after {} ms", killed.elapsed().as_millis());
    assert!(killed.elapsed() < PATIENCE);
    assert_eq!(unknown["error"]["data"]["reason"], "outcome_unknown", "{unknown}");
    second.order(4);
    assert!(second.answer(4).get("result").is_some());
    let query = json!({"store": "facts", "query": {"type": "key", "key": "k"}, "context": {"request_id": request(91), "identity": "tested"}});
    second.send(91, "claw.memory.query", &query);
    let found = second.answer(91);
    assert!(found.to_string().contains("kept"), "{found}");
    let counts = counter.counts();
    assert_eq!(counts.values().max(), Some(&1), "{counts:?}");
    assert_eq!(counts.len(), 3);
    until("the second one leads", || {
        let lead = &said(&agent, &["state", "info"], "b")["leases"][0];
        (&lead["host"], &lead["epoch"]) == (&json!("b"), &json!(2))
    });
    holds(&agent, &database);
}

#[test]
fn a_host_that_was_asleep_appends_nothing_of_what_was_taken_over_and_serves_on() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    let mut first = Host::start(&agent, "a");
    first.order(2);
    assert!(first.answer(2).get("result").is_some());
    let mut second = Host::start(&agent, "b");
    counter.hold(true);
    first.order(3);
    until("it is sent", || counter.hits().len() == 2);
    first.signal("STOP");
    counter.hold(false);
    // Taken over, it is told unknown and not run again.
    second.order(3);
    let unknown = second.answer(3);
    assert_eq!(unknown["error"]["data"]["reason"], "outcome_unknown", "{unknown}");
    first.signal("CONT");
    let moved = first.answer(3);
    let error = &moved["error"];
    assert_eq!(
        (&error["code"], &error["data"]["reason"]),
        (&json!(-32603), &json!("session_moved")),
        "{moved}"
    );
    // The same client goes on at the same host, without another `claw.initialize`.
    first.order(3);
    let again = first.answer(3);
    assert_eq!(again["error"]["data"]["reason"], "outcome_unknown", "{again}");
    first.order(4);
    let answer = first.answer(4);
    assert!(answer.get("result").is_some(), "{answer}");
    second.order(5);
    assert!(second.answer(5).get("result").is_some());
    counter.never_twice();
    holds(&agent, &database);
}

#[test]
fn hosts_serve_one_agent_at_the_same_time_and_each_answers_where_it_was_asked() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    let (mut first, mut second) = (Host::start(&agent, "a"), Host::start(&agent, "b"));
    first.say(10, "one", "hello");
    let answer = first.answer(10);
    assert!(answer["result"].to_string().contains("hello"), "{answer}");
    // The conversation is the first one's: the second gives it the message and tells the answer.
    second.say(11, "one", "again");
    let told = second.answer(11);
    assert!(told["result"].to_string().contains("again"), "{told}");
    assert_eq!(told["result"]["session_id"], answer["result"]["session_id"]);
    first.say(11, "one", "again");
    assert_eq!(
        first.answer(11)["result"]["parts"],
        told["result"]["parts"],
        "one answer"
    );
    second.say(12, "two", "here");
    assert!(second.answer(12)["result"].to_string().contains("here"));

    // A question of one host is answered at the other.
    let context = json!({"request_id": request(20), "identity": "tested"});
    first.send(
        20,
        "claw.tool.call",
        &json!({"name": "pay", "arguments": {"id": "pay-20"}, "context": context}),
    );
    let mut id = 1000;
    let asked = Instant::now();
    until("the answer counts", || {
        id += 1;
        second.send(id, "claw.tool.approve", &json!({"request_id": request(20)}));
        second.answer(id)["result"]["acknowledged"] == true
    });
    let paid = first.answer(20);
    println!(
        "approved at another host after {} ms",
        asked.elapsed().as_millis()
    );
    assert!(paid.get("result").is_some(), "{paid}");

    // A stop at one host holds at the other.
    let stopped = Instant::now();
    let output = agent.clawk(["stop", "--all", "--state", "b"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let engaged = Instant::now();
    id = 2000;
    until("the stop holds", || {
        id += 1;
        first.order(id);
        first.answer(id)["error"]["data"]["denied_by"] == "stop"
    });
    println!(
        "stopped at another host after {} ms, {} ms with the program",
        engaged.elapsed().as_millis(),
        stopped.elapsed().as_millis()
    );
    holds(&agent, &database);
}

/// Calls of two hosts at the same time, as many as each may send; how many were done, by the program outside.
fn flooded(agent: &Agent, counter: &Counter, each: u32) -> (usize, Vec<Value>) {
    let (mut first, mut second) = (Host::start(agent, "a"), Host::start(agent, "b"));
    let ids = |from: u32| from..from + each;
    for (one, other) in ids(100).zip(ids(10_000)) {
        first.order(one);
        second.order(other);
    }
    let mut answers: Vec<Value> = ids(100).map(|id| first.answer(id)).collect();
    answers.extend(ids(10_000).map(|id| second.answer(id)));
    let counts = counter.counts();
    assert_eq!(counts.values().max(), Some(&1), "{counts:?}");
    (counts.len(), answers)
}

fn done(answers: &[Value]) -> usize {
    answers
        .iter()
        .filter(|answer| answer.get("result").is_some())
        .count()
}

#[test]
fn a_budget_is_exact_over_two_hosts() {
    const CALLS: usize = 17;
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    for host in ["a.toml", "b.toml"] {
        let config = std::fs::read_to_string(agent.path(host)).unwrap();
        let config = format!("{config}[budgets.day]\ncalls = {CALLS}\n");
        std::fs::write(agent.path(host), config).unwrap();
    }
    let (hits, answers) = flooded(&agent, &counter, 20);
    assert_eq!((hits, done(&answers)), (CALLS, CALLS), "{answers:?}");
    let refused = answers.iter().filter(|answer| answer["error"]["code"] == -32021);
    assert_eq!(refused.count(), 40 - CALLS);
    holds(&agent, &database);
}

#[test]
fn a_rate_is_exact_over_two_hosts() {
    const CALLS: usize = 13;
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let limited = manifest.replace(
        "{ name: tested, rules:",
        &format!("{{ name: tested, rate_limits: {{ tool_calls_per_minute: {CALLS} }}, rules:"),
    );
    assert_ne!(limited, manifest);
    std::fs::write(agent.path("claw.yaml"), limited).unwrap();
    let (hits, answers) = flooded(&agent, &counter, 20);
    assert_eq!((hits, done(&answers)), (CALLS, CALLS), "{answers:?}");
    let refused = answers.iter().filter(|answer| answer["error"]["code"] == -32011);
    assert_eq!(refused.count(), 40 - CALLS);
    holds(&agent, &database);
}

#[test]
fn a_server_that_restarts_under_load_loses_nothing_and_nothing_is_done_twice() {
    let (mut database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    let mut host = Host::start(&agent, "a");
    let mut refused = 0;
    for round in 0..3 {
        let ids: Vec<u32> = (0..40).map(|n| 100 + round * 100 + n).collect();
        for (n, id) in ids.iter().enumerate() {
            host.order(*id);
            if n == 20 {
                database.stop();
            }
        }
        if round == 1 {
            // Longer than anything is held back: what is new is refused.
            until("it is refused", || {
                host.order(9_000 + round);
                let answer = host.answer(9_000 + round);
                answer["error"]["code"] == -32030
            });
            refused += 1;
        }
        database.again();
        for id in ids {
            let mut answer = host.answer(id);
            let end = Instant::now() + PATIENCE;
            // A call that had not begun when the agent was started anew runs when it is sent again.
            while answer["error"]["data"]["reason"] != "outcome_unknown" && answer.get("result").is_none() {
                assert!(Instant::now() < end, "{answer}");
                assert_ne!(
                    answer["error"]["data"]["reason"], "stopped",
                    "no client has to initialize again"
                );
                std::thread::sleep(Duration::from_millis(100));
                host.order(id);
                answer = host.answer(id);
            }
        }
    }
    assert_eq!(refused, 1);
    let counts = counter.counts();
    assert_eq!(counts.values().max(), Some(&1), "never twice: {counts:?}");
    assert!(counts.len() >= 110, "{} of 120 were done", counts.len());
    holds(&agent, &database);
}
