//! An agent's whole state on PostgreSQL (R48): hosts that take over from each other, one that was asleep, a server that restarts.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, program, text};
use crate::counter::Counter;
use crate::stop::request;

use crate::postgres::database::Server as Database;

const MANIFEST: &str = r#"  tools:
    - inline: { name: order, description: Orders, input_schema: { type: object } }
  sandbox:
    inline: { level: process }
  policies:
    - inline: { name: tested, rules: [{ id: all, action: allow, scope: all }] }
  memory:
    inline:
      name: head
      stores: [{ name: facts, type: key-value, backend: sqlite, scope: global }]
"#;

/// How long a lease holds: a busy machine renews it in time, and a take-over is not waited for too long.
const LEASE_MS: u64 = 4_000;
/// Nothing here takes longer, on a busy machine either.
const PATIENCE: Duration = Duration::from_secs(60);

/// An agent with the configurations `a.toml` and `b.toml` for two hosts of one state.
fn agent(database: &Database, counter: &Counter) -> Agent {
    let agent = Agent::new();
    agent.may(MANIFEST);
    let secrets = agent.path("secrets.toml");
    std::fs::write(&secrets, format!("PG_PASSWORD = \"{}\"\n", Database::PASSWORD)).unwrap();
    std::fs::set_permissions(secrets, std::fs::Permissions::from_mode(0o600)).unwrap();
    for host in ["a", "b"] {
        let config = format!(
            "[state]\nurl = \"{}\"\nschema = \"tested\"\ndir = \"{host}\"\nhost = \"{host}\"\nlease_ms = {LEASE_MS}\n\
             password = \"PG_PASSWORD\"\n[secrets_store]\nfile = \"secrets.toml\"\n[tools.order]\nhttp = {{ url = \"{}/orders\" }}\n",
            database.url(),
            counter.url
        );
        std::fs::write(agent.path(&format!("{host}.toml")), config).unwrap();
    }
    agent
}

/// `clawk serve --stdio`; killed when dropped.
struct Host {
    child: Child,
    output: BufReader<ChildStdout>,
    early: Vec<Value>,
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
        let mut child = Command::new(program())
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
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
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

    /// Opens the agent's next run, as soon as there is one.
    fn open(&mut self) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.initialize();
            let answer = self.answer(1);
            if answer.get("result").is_some() {
                return;
            }
            assert!(Instant::now() < end, "{answer}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn start(agent: &Agent, host: &str) -> Self {
        let mut host = Self::begin(agent, host);
        assert!(host.answer(1).get("result").is_some());
        host
    }

    fn send(&mut self, id: u32, method: &str, params: &Value) {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        // One that has ended says so by its output.
        let _sent = writeln!(self.child.stdin.as_mut().unwrap(), "{line}");
    }

    fn order(&mut self, id: u32) {
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
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == id {
                return Some(answer);
            }
            self.early.push(answer);
        }
    }

    fn answer(&mut self, id: u32) -> Value {
        self.maybe(id).expect("the host lives")
    }

    fn signal(&self, name: &str) {
        let _told = Command::new("kill")
            .stderr(Stdio::null())
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
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
fn said(agent: &Agent, args: &[&str], state: &str) -> Value {
    let mut command = agent.clawk([]);
    let output = command
        .args(args)
        .args(["--state", state, "--format", "json"])
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
fn a_killed_host_is_followed_by_the_one_that_stands_by_and_nothing_is_done_twice() {
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
    let mut second = Host::begin(&agent, "b");
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
    first.child.kill().unwrap();
    let killed = Instant::now();
    first.child.wait().unwrap();
    counter.hold(false);
    assert!(second.answer(1).get("result").is_some());
    println!("taken over after {} ms", killed.elapsed().as_millis());
    assert!(killed.elapsed() < PATIENCE);
    second.order(2);
    assert_eq!(second.answer(2)["result"], answer["result"], "the one answer");
    second.order(3);
    let unknown = second.answer(3);
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
    assert_eq!(said(&agent, &["state", "info"], "b")["leases"][0]["epoch"], 2);
    holds(&agent, &database);
}

#[test]
fn a_host_that_was_asleep_appends_nothing_and_does_nothing_when_it_comes_back() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    let mut first = Host::start(&agent, "a");
    first.order(2);
    assert!(first.answer(2).get("result").is_some());
    let mut second = Host::begin(&agent, "b");
    first.signal("STOP");
    // What comes in while it sleeps is the first thing that it sees.
    first.order(3);
    assert!(second.answer(1).get("result").is_some());
    second.order(4);
    assert!(second.answer(4).get("result").is_some());
    let before = said(&agent, &["state", "info"], "b")["events"].clone();
    first.signal("CONT");
    if let Some(answer) = first.maybe(3) {
        let reason = &answer["error"]["data"]["reason"];
        assert!(
            reason == "session_moved" || reason == "not_ready" || reason == "tool_unavailable",
            "{answer}"
        );
    }
    assert!(!first.ended().success(), "it says that another host serves");
    assert_eq!(
        said(&agent, &["state", "info"], "b")["events"],
        before,
        "nothing was appended"
    );
    assert!(!counter.counts().contains_key("order-3"), "nothing was done");
    second.order(3);
    assert!(second.answer(3).get("result").is_some());
    assert_eq!(counter.counts().values().max(), Some(&1));
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
            while answer["error"]["data"]["reason"] != "outcome_unknown" && answer.get("result").is_none() {
                assert!(Instant::now() < end, "{answer}");
                std::thread::sleep(Duration::from_millis(100));
                if answer["error"]["data"]["reason"] == "stopped" {
                    // The agent goes on from its record in another run, which its client opens.
                    host.open();
                }
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
