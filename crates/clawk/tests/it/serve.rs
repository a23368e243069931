//! `clawk serve --stdio` as a process: protocol on standard output, orderly ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, program};

pub(crate) struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Server {
    pub(crate) fn start(agent: &Agent, args: &[&str]) -> Self {
        Self::with(agent, args, &[])
    }

    /// With secrets in its environment.
    pub(crate) fn with(agent: &Agent, args: &[&str], secrets: &[(&str, &str)]) -> Self {
        Self::by(Command::new(program()), agent, args, secrets)
    }

    /// In a network namespace of its own, which has no network.
    pub(crate) fn without_network(agent: &Agent, args: &[&str], secrets: &[(&str, &str)]) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "--"]).arg(program());
        Self::by(command, agent, args, secrets)
    }

    fn by(mut command: Command, agent: &Agent, args: &[&str], secrets: &[(&str, &str)]) -> Self {
        let mut child = command
            .arg("serve")
            .args(args)
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .envs(secrets.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// The answer; none, if the agent is gone.
    pub(crate) fn try_ask(&mut self, method: &str, params: &Value) -> Option<Value> {
        let line = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        writeln!(self.input.as_mut()?, "{line}").ok()?;
        loop {
            let mut answer = String::new();
            // A line that a kill cut off is no answer.
            self.output.read_line(&mut answer).ok()?;
            let answer: Value = serde_json::from_str(&answer).ok()?;
            if answer["id"] == 7 {
                return Some(answer);
            }
        }
    }

    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Value {
        let line = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        loop {
            let mut answer = String::new();
            assert!(
                self.output.read_line(&mut answer).unwrap() > 0,
                "the agent has gone"
            );
            let answer: Value = serde_json::from_str(&answer).unwrap();
            if answer["id"] == 7 {
                return answer;
            }
        }
    }

    pub(crate) fn initialize(&mut self, manifest: &Value) -> Value {
        let client = json!({ "name": "test", "version": "1" });
        let params = json!({ "protocolVersion": "0.3.0", "clientInfo": client, "manifest": manifest, "capabilities": {} });
        self.ask("claw.initialize", &params)
    }

    pub(crate) fn end(mut self) -> ExitStatus {
        drop(self.input.take());
        self.wait()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the process does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tiny(name: &str) -> Value {
    json!({ "claw": "0.3.0", "kind": "Claw", "metadata": { "name": name, "version": "2.0.0" }, "spec": {
        "identity": { "inline": { "name": name, "personality": "x" } },
        "providers": [{ "inline": { "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9/v1", "model": "m",
            "auth": { "type": "none" } } }],
    } })
}

#[test]
fn a_launched_agent_stays_itself_whatever_the_wire_says() {
    let agent = Agent::new();
    let mut server = Server::start(&agent, &["claw.yaml", "--stdio"]);
    let answer = server.initialize(&tiny("somebody-else"));
    assert_eq!(answer["result"]["agentInfo"]["name"], "tested", "{answer}");
    assert_eq!(
        server.initialize(&json!({ "kind": "Claw" }))["error"]["code"],
        -32602
    );
    assert_eq!(
        server.ask("claw.status", &json!({}))["result"]["state"],
        "READY",
        "a refused initialize changes nothing"
    );
    let call = json!({ "name": "file-read", "arguments": { "path": "in.txt" },
        "context": { "request_id": "0d6a7a3e-4c51-4b5c-8f0e-1f2a3b4c5d6e", "identity": "tested" } });
    let read = server.ask("claw.tool.call", &call);
    assert!(
        read["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("a line of text"),
        "{read}"
    );
    assert!(server.end().success());
}

/// Processes of an agent that boxes are forked from.
fn nurseries(of: &Server) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{}/task", of.id())).unwrap();
    let children: String = threads
        .map(|thread| std::fs::read_to_string(thread.unwrap().path().join("children")).unwrap_or_default())
        .collect();
    let words = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let children = children.split_whitespace().map(words);
    children.filter(|words| words.contains("__sandbox")).count()
}

#[test]
fn what_boxes_are_forked_from_is_started_once_and_only_stays_for_an_agent_with_tools() {
    let agent = Agent::new();
    let mut server = Server::start(&agent, &["claw.yaml", "--stdio"]);
    assert!(server.initialize(&tiny("x")).get("result").is_some());
    assert_eq!(nurseries(&server), 1);
    assert!(server.end().success());
    agent.may("");
    let mut server = Server::start(&agent, &["claw.yaml", "--stdio"]);
    assert!(server.initialize(&tiny("x")).get("result").is_some());
    assert_eq!(nurseries(&server), 0);
    assert!(server.end().success());
}

#[test]
fn a_manifest_that_only_names_the_agent_is_enough_for_a_launched_one() {
    let agent = Agent::new();
    let mut server = Server::start(&agent, &["claw.yaml", "--stdio"]);
    let named = json!({"kind": "Claw", "metadata": {"name": "demo-agent", "version": "1.0.0"}});
    assert!(server.initialize(&named).get("result").is_some());
    let empty = json!({"kind": "Claw", "metadata": {"name": "demo-agent"}, "spec": {}});
    assert_eq!(server.initialize(&empty)["error"]["code"], -32602);
    assert!(server.end().success());
}

#[test]
fn without_a_manifest_the_one_on_the_wire_is_the_agents() {
    let agent = Agent::new();
    let mut server = Server::start(&agent, &["--stdio"]);
    for name in ["first", "second", "first"] {
        let answer = server.initialize(&tiny(name));
        assert_eq!(answer["result"]["agentInfo"]["name"], name, "{answer}");
    }
    let file = json!({ "claw": "0.3.0", "kind": "Claw", "metadata": { "name": "x" }, "spec": {
        "identity": "./identity.yaml", "providers": tiny("x")["spec"]["providers"] } });
    assert_eq!(
        server.initialize(&file)["error"]["code"],
        -32602,
        "file references are refused (R3)"
    );
    assert!(server.end().success());
    assert!(agent.path("state/clawk/second/state.db").exists());
}

#[test]
fn sigterm_is_an_orderly_end() {
    let agent = Agent::new();
    let mut server = Server::start(&agent, &["claw.yaml", "--stdio"]);
    server.initialize(&tiny("x"));
    let pid = i32::try_from(server.child.id()).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert!(server.wait().success());
    assert!(!agent.state().join("control.sock").exists());
    let verified = clawk_store::StateDirReader::open(agent.state())
        .unwrap()
        .verify(None)
        .unwrap();
    assert!(verified.valid, "{verified:?}");
}

#[test]
fn an_agent_whose_model_is_not_there_says_error_works_on_and_comes_back() {
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let agent = Agent::new();
    let mut manifest = tiny("alone");
    manifest["spec"]["providers"][0]["inline"]["endpoint"] = json!(format!("http://127.0.0.1:{port}/v1"));
    std::fs::write(agent.path("alone.yaml"), manifest.to_string()).unwrap();
    let mut server = Server::start(&agent, &["alone.yaml", "--stdio"]);
    let began = Instant::now();
    assert!(server.initialize(&manifest)["result"].is_object());
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "initialize does not wait for a model"
    );
    let mut until = |state: &str| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while server.ask("claw.status", &json!({}))["result"]["state"] != state {
            assert!(Instant::now() < deadline, "never {state}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    until("ERROR");
    // Any answer says that somebody is there, also one that refuses.
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let model = std::thread::spawn(move || {
        use std::io::Read;
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 4096];
        let read = stream.read(&mut head).unwrap();
        stream
            .write_all(b"HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            .unwrap();
        String::from_utf8_lossy(&head[..read]).into_owned()
    });
    until("READY");
    let asked = model.join().unwrap();
    assert!(
        asked.starts_with("GET /v1/models HTTP/1.1"),
        "nothing is paid for: {asked}"
    );
    assert!(server.end().success());
}
