//! The agent behind real brokers: NATS JetStream and Redis Streams, talked to by clawk's own client and by clients that others
//! wrote (nats-py, redis-cli). What is killed loses nothing and does nothing twice.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::parts;
use crate::transports::{Served, all_pass, decided};

const ADMIN: &str =
    "[doors.nats]\nrole = \"admin\"\n[doors.redis]\nrole = \"admin\"\n[doors.dir]\nrole = \"admin\"\n";
const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"claw.initialize","params":{"protocolVersion":"0.3.0","clientInfo":{"name":"t","version":"1"},"manifest":{"kind":"Claw","metadata":{"name":"x"}},"capabilities":{}}}"#;

fn echo(id: u32, request: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "claw.tool.call", "params": {"name": "echo",
        "arguments": {"text": "once"}, "context": {"request_id": request, "identity": "test-agent"}}})
    .to_string()
}

/// A broker on a port of its own; killed when dropped.
struct Broker {
    child: Option<Child>,
    folder: TempDir,
    port: u16,
    nats: bool,
}

impl Broker {
    fn start(nats: bool) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let mut broker = Self {
            child: None,
            folder: tempfile::tempdir().expect("temporary directory"),
            port,
            nats,
        };
        broker.run();
        broker
    }

    /// Starts it, again with what it stored.
    fn run(&mut self) {
        let port = self.port.to_string();
        let folder = self.folder.path();
        let mut command = if self.nats {
            let mut command = Command::new(parts::part("nats/bin/nats-server"));
            command
                .args(["-a", "127.0.0.1", "-p", &port, "-js", "-sd"])
                .arg(folder);
            command
        } else {
            let mut command = Command::new("redis-server");
            command.args([
                "--port",
                &port,
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "yes",
            ]);
            command.args(["--appendfsync", "always", "--dir"]).arg(folder);
            command
        };
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("the broker starts; tests/parts/install.sh installs it"));
        let until = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < until, "the broker does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    fn url(&self) -> String {
        let scheme = if self.nats { "nats" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// The agent's address for clawk's own client.
    fn agent(&self) -> String {
        format!("{}#test-team/test-agent", self.url())
    }

    /// Puts a message into a queue, `times` times, by a foreign client.
    fn put(&self, times: u32, message: &str, client: &str) {
        let inbox = "claw.test-team.test-agent.inbox";
        let output = if self.nats {
            self.python(&[
                "put",
                inbox,
                &times.to_string(),
                message,
                &format!("client={client}"),
            ])
        } else {
            for _ in 0..times {
                self.redis(&["XADD", inbox, "*", "message", message, "client", client]);
            }
            String::new()
        };
        assert_eq!(output, "");
    }

    /// The first messages of a queue, heartbeats aside: client and text.
    fn get(&self, which: &str, count: usize) -> Vec<(String, Value)> {
        let queue = format!("claw.test-team.test-agent.{which}");
        if self.nats {
            let told = self.python(&["get", &queue, &count.to_string()]);
            let lines = told.lines().map(|line| {
                let message: Value = serde_json::from_str(line).expect("JSON");
                let text = message["data"].as_str().expect("text").to_owned();
                let client = message["headers"]["client"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                (client, serde_json::from_str(&text).unwrap_or(json!(text)))
            });
            return lines.collect();
        }
        let until = Instant::now() + Duration::from_secs(40);
        loop {
            let told = self.redis(&["--json", "XRANGE", &queue, "-", "+"]);
            let entries: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{told}"));
            let entries = entries.as_array().expect("entries").iter().map(fields);
            let entries: Vec<(String, Value)> = entries
                .filter(|(_, message)| message["method"] != "claw.heartbeat")
                .collect();
            if entries.len() >= count || Instant::now() > until {
                assert!(entries.len() >= count, "{told}");
                return entries;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn python(&self, words: &[&str]) -> String {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/queue_client.py");
        let mut command = Command::new(parts::part("nats/bin/python"));
        command.arg(script).arg(self.port.to_string()).args(words);
        said(&mut command)
    }

    fn redis(&self, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port.to_string()]).args(words);
        said(&mut command)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An entry as redis-cli prints it: its id, then names and values in turn.
fn fields(entry: &Value) -> (String, Value) {
    let flat = entry[1].as_array().expect("fields");
    let of = |name: &str| {
        let at = flat.iter().step_by(2).position(|field| field == name)?;
        flat.get(2 * at + 1)?.as_str().map(str::to_owned)
    };
    let text = of("message").expect("a message");
    let message = serde_json::from_str(&text).unwrap_or(json!(text));
    (of("client").unwrap_or_default(), message)
}

fn said(command: &mut Command) -> String {
    let output = command.output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[test]
fn queues_pass_31_of_31_and_all_transports_at_once_with_one_agent() {
    let (nats, redis) = (Broker::start(true), Broker::start(false));
    let served = Served::start(ADMIN, &["--nats", &nats.url(), "--redis", &redis.url()]);
    let mut urls: Vec<String> = ["http", "ws", "dir", "unix"]
        .map(|scheme| served.url(scheme))
        .to_vec();
    urls.extend([nats.agent(), redis.agent()]);
    all_pass(&served, &urls, &served.path("xdg"));
}

fn nothing_lost_nothing_doubled(nats: bool) {
    let mut broker = Broker::start(nats);
    let flag = if nats { "--nats" } else { "--redis" };
    let mut served = Served::start("", &[flag, &broker.url()]);
    broker.put(1, HELLO, "ann");
    let first = broker.get("outbox", 1);
    assert!(
        first[0].0 == "ann" && first[0].1["result"]["agentInfo"].is_object(),
        "{first:?}"
    );
    // The same message twice: two answers, one execution.
    let once = "3f0f5f2e-6d0c-4c52-8f7a-0b5f3a2c1d01";
    broker.put(2, &echo(2, once), "ann");
    let answers = broker.get("outbox", 3);
    for (client, answer) in &answers[1..3] {
        assert!(
            client == "ann" && answer["result"]["content"][0]["text"] == "once",
            "{answer}"
        );
    }
    // The agent is killed; a request waits in the queue; the client's session is there again after the start.
    served.kill();
    let later = "3f0f5f2e-6d0c-4c52-8f7a-0b5f3a2c1d02";
    broker.put(1, &echo(3, later), "ann");
    served.run();
    let answers = broker.get("outbox", 4);
    assert_eq!(
        answers[3].1["result"]["content"][0]["text"], "once",
        "{answers:?}"
    );
    // Killed while a call waits for a person: it is delivered again, and answered.
    let asked = json!({"jsonrpc": "2.0", "id": 4, "method": "claw.tool.call", "params": {"name": "approval-tool",
        "arguments": {}, "context": {"request_id": "3f0f5f2e-6d0c-4c52-8f7a-0b5f3a2c1d03", "identity": "test-agent"}}});
    broker.put(1, &asked.to_string(), "ann");
    std::thread::sleep(Duration::from_millis(700));
    served.kill();
    served.run();
    let answers = broker.get("outbox", 5);
    assert_eq!(answers[4].1["id"], 4, "{answers:?}");
    assert!(
        answers[4].1["error"]["code"].is_i64(),
        "nobody said yes: {answers:?}"
    );
    // The broker is killed and comes back with what it stored; the agent finds it again by itself.
    broker.kill();
    std::thread::sleep(Duration::from_millis(300));
    broker.run();
    broker.put(1, &echo(5, "3f0f5f2e-6d0c-4c52-8f7a-0b5f3a2c1d04"), "ann");
    let answers = broker.get("outbox", 6);
    assert_eq!(
        answers[5].1["result"]["content"][0]["text"], "once",
        "{answers:?}"
    );
    // What is no message is answered, and is a dead letter with the reason.
    broker.put(1, "{ no JSON", "bob");
    let answers = broker.get("outbox", 7);
    assert!(
        answers[6].0 == "bob" && answers[6].1["error"]["code"] == -32700,
        "{answers:?}"
    );
    assert_eq!(broker.get("dead", 1)[0].1, json!("{ no JSON"));
    // Not for whom it is none of: a user does not answer questions.
    let yes =
        json!({"jsonrpc": "2.0", "id": 6, "method": "claw.tool.approve", "params": {"request_id": once}});
    broker.put(1, &yes.to_string(), "ann");
    let answers = broker.get("outbox", 8);
    assert_eq!(
        answers[7].1["error"]["data"]["reason"], "scope_missing",
        "{answers:?}"
    );
    // Another client has a session of its own.
    broker.put(1, &echo(7, "3f0f5f2e-6d0c-4c52-8f7a-0b5f3a2c1d05"), "eve");
    let answers = broker.get("outbox", 9);
    assert_eq!(
        answers[8].1["error"]["data"]["reason"], "not_initialized",
        "{answers:?}"
    );
    served.kill();
    let state: PathBuf = served.path("state");
    assert_eq!(
        (decided(&state, once), decided(&state, later)),
        (1, 1),
        "each ran once"
    );
}

#[test]
fn nats_loses_nothing_and_doubles_nothing() {
    nothing_lost_nothing_doubled(true);
}

#[test]
fn redis_loses_nothing_and_doubles_nothing() {
    nothing_lost_nothing_doubled(false);
}

#[test]
fn a_reply_goes_where_the_client_wants_it_and_nowhere_else() {
    let redis = Broker::start(false);
    let served = Served::start("", &["--redis", &redis.url()]);
    let inbox = "claw.test-team.test-agent.inbox";
    redis.redis(&[
        "XADD",
        inbox,
        "*",
        "message",
        HELLO,
        "client",
        "a",
        "Reply-To",
        "claw.test-team.peer.inbox",
    ]);
    redis.redis(&[
        "XADD", inbox, "*", "message", HELLO, "client", "b", "Reply-To", "sessions",
    ]);
    // A name of something else does not count: that answer is in the outbox.
    let answers = redis.get("outbox", 1);
    assert_eq!(answers[0].0, "b", "{answers:?}");
    let there = redis.redis(&["XLEN", "claw.test-team.peer.inbox"]);
    assert_eq!(
        (there.trim(), redis.redis(&["EXISTS", "sessions"]).trim()),
        ("1", "0")
    );
    let (ok, status) = served.call(&redis.agent(), "claw.status", &json!({}));
    assert!(ok && status["state"] == "READY", "{status}");
    // Its own reply stream goes with the client.
    let keys = redis.redis(&["KEYS", "claw.test-team.test-agent.outbox.*"]);
    assert_eq!(keys.trim(), "");
}
