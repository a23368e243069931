//! One agent with several doors at once (R38): standard input, the control socket, CRA over HTTP; clients come and go.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::api::{answer, post};
use crate::serve::Server;

const LONG: Duration = Duration::from_secs(20);

/// A client on the control socket.
pub(crate) struct Local {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    next_id: u64,
}

impl Local {
    pub(crate) fn connect(state: &Path) -> Self {
        let path = state.join("control.sock");
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                Err(error) => assert!(start.elapsed() < LONG, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        stream.set_read_timeout(Some(LONG)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Self {
            stream,
            lines,
            next_id: 0,
        }
    }

    pub(crate) fn initialized(state: &Path) -> Self {
        let mut client = Self::connect(state);
        let params = json!({ "protocolVersion": "0.3.0", "clientInfo": { "name": "local", "version": "1" },
            "manifest": { "kind": "Claw", "metadata": { "name": "tested" } }, "capabilities": {} });
        let answer = client.ask("claw.initialize", &params);
        assert_eq!(answer["result"]["agentInfo"]["name"], "tested", "{answer}");
        client
    }

    pub(crate) fn send(&mut self, method: &str, params: &Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        writeln!(self.stream, "{line}").unwrap();
        id
    }

    pub(crate) fn next(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).unwrap() > 0, "the agent has gone");
        serde_json::from_str(&line).unwrap()
    }

    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Value {
        let id = self.send(method, params);
        loop {
            let answer = self.next();
            if answer["id"] == id {
                return answer;
            }
        }
    }
}

fn call(tool: &str, arguments: &Value, id: &str) -> Value {
    json!({ "name": tool, "arguments": arguments, "context": { "request_id": id, "identity": "tested" } })
}

/// An address that nothing listens on now.
pub(crate) fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn get(address: &str, path: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn five_clients_share_one_agent_and_two_that_are_killed_take_nothing_with_them() {
    let agent = Agent::new();
    let address = free();
    let mut launcher = Server::start(&agent, &["claw.yaml", "--stdio", "--listen", &address]);
    let named = json!({ "kind": "Claw", "metadata": { "name": "tested" } });
    assert!(launcher.initialize(&named).get("result").is_some());
    let mut one = Local::initialized(&agent.state());
    let mut two = Local::initialized(&agent.state());
    let (status, session) = post(
        &address,
        "/v1/sessions",
        &json!({ "agent_id": "ann", "goal": "help" }),
    );
    assert_eq!(status, 201, "{session}");

    // The second local client asks for something that waits for a person, a web client is in the middle of a request: both
    // are killed.
    let id = "5f3c1c62-6f3e-4d55-9a53-7d9f0f6f1a01";
    let wanted = call(
        "file-write",
        &json!({ "path": "out.txt", "content": "once\n" }),
        id,
    );
    two.send("claw.tool.call", &wanted);
    let start = Instant::now();
    while one.ask("clawk.approvals.list", &json!({}))["result"]["approvals"] == json!([]) {
        assert!(start.elapsed() < LONG);
    }
    drop(two);
    let mut half = TcpStream::connect(&address).unwrap();
    write!(
        half,
        "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{"
    )
    .unwrap();
    drop(half);

    // The agent and the other three go on, and the question stands.
    assert_eq!(
        launcher.ask("claw.status", &json!({}))["result"]["state"],
        "READY"
    );
    assert_eq!(one.ask("claw.status", &json!({}))["result"]["state"], "READY");
    let path = format!("/v1/sessions/{}", session["session_id"].as_str().unwrap());
    assert_eq!(get(&address, &path), 200);
    assert_eq!(get(&address, "/readyz"), 200);
    agent.clawk(["approve", id]).assert().success();
    // The answer that nobody was there to read is kept under its id; the file is written once.
    let mut again = Local::initialized(&agent.state());
    let kept = again.ask("claw.tool.call", &wanted);
    assert_ne!(kept["result"]["isError"], true, "{kept}");
    assert_eq!(std::fs::read_to_string(agent.path("out.txt")).unwrap(), "once\n");
    std::fs::remove_file(agent.path("out.txt")).unwrap();
    assert_eq!(again.ask("claw.tool.call", &wanted)["result"], kept["result"]);
    assert!(!agent.path("out.txt").exists(), "it ran again");

    // A client's shutdown is its own; the end of standard input is the agent's.
    assert!(one.ask("claw.shutdown", &json!({})).get("result").is_some());
    assert_eq!(one.ask("claw.status", &json!({}))["result"]["state"], "STOPPED");
    assert_eq!(
        launcher.ask("claw.status", &json!({}))["result"]["state"],
        "READY"
    );
    assert!(launcher.end().success());
    assert!(!agent.state().join("control.sock").exists());
    assert!(TcpStream::connect(&address).is_err());
    let verified = clawk_store::StateDirReader::open(agent.state())
        .unwrap()
        .verify(None)
        .unwrap();
    assert!(verified.valid, "{verified:?}");
}

/// How often each thread of a process has gone to sleep, by its number.
fn sleeps(process: u32) -> BTreeMap<OsString, u64> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads
        .filter_map(|thread| {
            let thread = thread.ok()?;
            let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
            let line = status
                .lines()
                .find(|line| line.starts_with("voluntary_ctxt_switches"))?;
            let times = line.split_whitespace().nth(1)?.parse().ok()?;
            Some((thread.file_name(), times))
        })
        .collect()
}

#[test]
fn an_agent_that_nobody_asks_anything_sleeps() {
    let agent = Agent::new();
    let mut launcher = Server::start(&agent, &["claw.yaml", "--stdio", "--listen", "127.0.0.1:0"]);
    let named = json!({ "kind": "Claw", "metadata": { "name": "tested" } });
    assert!(launcher.initialize(&named).get("result").is_some());
    let _local = Local::initialized(&agent.state());
    // What the start left to do is done after a while.
    let (start, mut woken) = (Instant::now(), u64::MAX);
    while woken > 4 {
        assert!(
            start.elapsed() < LONG,
            "it wakes up {woken} times in two seconds of idleness"
        );
        let before = sleeps(launcher.id());
        std::thread::sleep(Duration::from_secs(2));
        // A thread that has ended since wakes nobody.
        woken = sleeps(launcher.id())
            .iter()
            .map(|(thread, times)| times - before.get(thread).copied().unwrap_or(0))
            .sum();
    }
    assert!(launcher.end().success());
}

#[test]
fn an_admin_on_the_control_socket_stops_the_host_by_name() {
    let agent = Agent::new();
    let mut launcher = Server::start(&agent, &["claw.yaml", "--stdio"]);
    // Whoever comes first starts the agent that was launched.
    let mut local = Local::initialized(&agent.state());
    let named = json!({ "kind": "Claw", "metadata": { "name": "tested" } });
    assert!(launcher.initialize(&named).get("result").is_some());
    let stopped = local.ask("claw.shutdown", &json!({ "scope": "host" }));
    assert!(stopped.get("result").is_some(), "{stopped}");
    assert!(launcher.wait().success());
}

#[test]
fn a_person_talks_to_an_agent_that_is_served() {
    let agent = Agent::new();
    let mut launcher = Server::start(&agent, &["claw.yaml", "--stdio"]);
    let named = json!({ "kind": "Claw", "metadata": { "name": "tested" } });
    let hello = launcher.initialize(&named);
    assert_eq!(hello["result"]["capabilities"]["messages"], json!({}), "{hello}");
    let id = "5f3c1c62-6f3e-4d55-9a53-7d9f0f6f1a02";
    let sent = agent
        .clawk(["send", "claw.yaml", "hello there", "--request-id", id])
        .assert()
        .success();
    let said = String::from_utf8(sent.get_output().stdout.clone()).unwrap();
    assert_eq!(said, "You said **hello there**.\n");
    // The same id gives the same answer; with other words it is refused.
    let again = agent
        .clawk([
            "send",
            "claw.yaml",
            "hello there",
            "--request-id",
            id,
            "--format",
            "json",
        ])
        .assert()
        .success();
    let told: Value = serde_json::from_slice(&again.get_output().stdout).unwrap();
    assert_eq!(
        told["parts"],
        json!([{ "type": "text", "text": "You said **hello there**." }])
    );
    assert_eq!(
        (&told["stop"], &told["conversation"]),
        (&json!("answered"), &json!("terminal"))
    );
    agent
        .clawk(["send", "claw.yaml", "something else", "--request-id", id])
        .assert()
        .failure();
    // A client that streams sees its turn; what waits for a person is answered meanwhile.
    let mut local = Local::initialized(&agent.state());
    let params =
        json!({ "text": "write it", "request_id": "5f3c1c62-6f3e-4d55-9a53-7d9f0f6f1a03", "stream": true });
    let asked = local.send("claw.message.send", &params);
    let (mut turn, mut steps) = (Value::Null, Vec::new());
    let answer = loop {
        let message = local.next();
        if message["id"] == asked {
            break message;
        }
        if message["method"] == "claw.message.step" {
            turn = message["params"]["turn_id"].clone();
            steps.push(message["params"]["step"].as_str().unwrap().to_owned());
            if let Some(id) = message["params"]["question"]["request_id"].as_str() {
                agent.clawk(["approve", id]).assert().success();
            }
        }
    };
    assert_eq!(answer["result"]["parts"][0]["text"], "Written.", "{answer}");
    assert_eq!(answer["result"]["turn_id"], turn);
    for step in ["started", "said", "asking", "finished"] {
        assert!(steps.iter().any(|known| known == step), "{steps:?}");
    }
    assert!(agent.path("out.txt").exists());
    assert!(launcher.end().success());
    // Nobody serves it any more.
    agent.clawk(["send", "claw.yaml", "hello"]).assert().failure();
}

#[test]
fn a_message_that_a_crash_cut_off_is_answered_once_to_who_asks_again() {
    let agent = Agent::new();
    let launcher = Server::start(&agent, &["claw.yaml", "--stdio"]);
    let mut local = Local::initialized(&agent.state());
    let params = json!({ "text": "slow please", "request_id": "5f3c1c62-6f3e-4d55-9a53-7d9f0f6f1a04", "stream": true });
    local.send("claw.message.send", &params);
    while local.next()["params"]["step"] != "started" {}
    drop(launcher); // kill -9
    let script = "scenes:\n  - steps:\n      - say: \"Now you said {{last_user_text}}.\"\n";
    std::fs::write(agent.path("script.yaml"), script).unwrap();
    let mut launcher = Server::start(&agent, &["claw.yaml", "--stdio"]);
    let mut local = Local::initialized(&agent.state());
    let told = local.ask("claw.message.send", &params);
    assert_eq!(
        told["result"]["parts"][0]["text"], "Now you said slow please.",
        "{told}"
    );
    let named = json!({ "kind": "Claw", "metadata": { "name": "tested" } });
    assert!(launcher.initialize(&named).get("result").is_some());
    assert!(launcher.end().success());
    let shown = agent
        .clawk(["trace", "show", "--format", "json"])
        .assert()
        .success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    assert_eq!(shown.matches("\"ckp.message.accepted\"").count(), 1);
    assert_eq!(shown.matches("\"ckp.message.answered\"").count(), 1);
}

#[test]
fn a_hangup_takes_up_new_tokens_or_changes_nothing() {
    let agent = Agent::new();
    let digest = |name: &str| match name {
        "first-token" => "55b4b48f529c3d2daa027cbffa6cfb6a03690424550f22109e39917406c8243b",
        _ => "7a35833597e6687c599a0988b7a53b9b6a7ec18b88ca2a8e60f3265c8be6d527",
    };
    let tokens = |names: &[&str]| {
        let entry = |name: &&str| {
            format!(
                "[[http.tokens]]\nname = \"{name}\"\nsha256 = \"{}\"\nscopes = [\"read\"]\n",
                digest(name)
            )
        };
        names.iter().map(entry).collect::<String>()
    };
    let config = |text: &str| std::fs::write(agent.path("clawk.toml"), text).unwrap();
    config(&tokens(&["first-token"]));
    let address = free();
    let launcher = Server::start(&agent, &["claw.yaml", "--stdio", "--listen", &address]);
    let status = |token: &str| {
        let start = Instant::now();
        let mut stream = loop {
            match TcpStream::connect(&address) {
                Ok(stream) => break stream,
                Err(error) => assert!(start.elapsed() < LONG, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        write!(
            stream,
            "GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        answer(stream).0
    };
    let becomes = |token: &str, wanted: u16| {
        let start = Instant::now();
        while status(token) != wanted {
            assert!(start.elapsed() < LONG, "`{token}` is not answered with {wanted}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let hangup = || {
        let id = rustix::process::Pid::from_raw(i32::try_from(launcher.id()).unwrap()).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::HUP).unwrap();
    };
    becomes("first-token", 200);
    assert_eq!(status("second-token"), 401);
    config(&tokens(&["second-token"]));
    hangup();
    becomes("second-token", 200);
    assert_eq!(status("first-token"), 401);
    // No tokens at all, or a file that is wrong: nothing changes, and the agent goes on.
    for broken in ["", "[http]\nno_such_key = 1\n"] {
        config(broken);
        hangup();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!((status("second-token"), status("other")), (200, 401));
    }
    assert!(launcher.end().success());
}
