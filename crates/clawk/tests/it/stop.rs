//! The emergency stop and the answers from outside, on a served agent with real processes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, program, text};

const MANIFEST: &str = r#"  tools:
    - inline: { name: shell, description: Runs, input_schema: { type: object } }
    - inline: { name: file-write, description: Writes, input_schema: { type: object } }
    - inline: { name: hook, description: Posts, input_schema: { type: object } }
  sandbox:
    inline:
      level: process
      capabilities:
        filesystem: { mode: scoped, mount_paths: [{ path: ".", permissions: rw }] }
        shell: { mode: full }
  policies:
    - inline:
        name: tested
        rules:
          - { id: writing, action: require-approval, scope: tool, match: { name: file-write } }
          - { id: rest, action: allow, scope: all }
"#;

/// `clawk serve --stdio`, initialized; killed when dropped.
pub(crate) struct Served {
    pub(crate) child: Child,
    output: BufReader<std::process::ChildStdout>,
    early: Vec<Value>,
}

impl Served {
    pub(crate) fn start(agent: &Agent) -> Self {
        let mut child = Command::new(program())
            .args(["serve", "claw.yaml", "--stdio"])
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut served = Self {
            child,
            output,
            early: Vec::new(),
        };
        let client = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": "0.3.0", "clientInfo": client, "manifest": {"kind": "Claw", "metadata": {"name": "tested"}}, "capabilities": {}});
        served.send(1, "claw.initialize", &params);
        assert!(served.answer(1).get("result").is_some());
        served
    }

    pub(crate) fn send(&mut self, id: u32, method: &str, params: &Value) {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn call(&mut self, id: u32, tool: &str, arguments: &Value) {
        let context = json!({"request_id": request(id), "identity": "tested"});
        self.send(
            id,
            "claw.tool.call",
            &json!({"name": tool, "arguments": arguments, "context": context}),
        );
    }

    /// The answer to a request; others are kept for when they are asked for.
    pub(crate) fn answer(&mut self, id: u32) -> Value {
        if let Some(at) = self.early.iter().position(|answer| answer["id"] == id) {
            return self.early.remove(at);
        }
        loop {
            let mut line = String::new();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "the agent has gone"
            );
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == id {
                return answer;
            }
            self.early.push(answer);
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn request(id: u32) -> String {
    format!("00000000-0000-4000-8000-{id:012}")
}

fn agent(config: &str) -> Agent {
    let agent = Agent::new();
    agent.may(MANIFEST);
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    agent
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn done(agent: &Agent, args: &[&str]) -> String {
    let mut command = agent.clawk([]);
    let output = command.args(args).args(["--agent", "tested"]).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_stop_ends_a_running_command_and_a_running_request_within_a_second() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let agent = agent(&format!("[tools.hook.http]\nurl = \"{url}\"\n"));
    let mut served = Served::start(&agent);
    let command = "sh -c 'sleep 300 & echo $! > pid; touch started; wait'; touch survived";
    served.call(2, "shell", &json!({"command": command}));
    served.call(3, "hook", &json!({}));
    let begun = Instant::now();
    while !agent.path("started").exists() {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "the command does not run: {}",
            served.answer(2)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    listener.set_nonblocking(true).unwrap();
    let mut held = None;
    until("the request is on its way", || {
        held = listener.accept().ok();
        held.is_some()
    });
    let before = Instant::now();
    let said = done(&agent, &["stop", "--all", "--reason", "fire"]);
    assert!(
        said.contains("the agent is stopped (no-tools)") && said.contains("fire"),
        "{said}"
    );
    let (two, three) = (served.answer(2), served.answer(3));
    let took = before.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    for ended in [two, three] {
        assert_eq!(ended["error"]["data"]["reason"], "outcome_unknown", "{ended}");
    }
    assert!(!agent.path("survived").exists());
    // The whole tree is gone: the sleep is a grandchild, in process ids of its own namespace or ours.
    until("no process of the command is left", || {
        let mut found = false;
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let cwd = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            found |= line.starts_with(b"sleep\x00300") && cwd.starts_with(agent.path(""));
        }
        !found
    });
    served.call(4, "shell", &json!({"command": "touch later"}));
    let refused = served.answer(4);
    assert_eq!(refused["error"]["code"], -32011, "{refused}");
    assert_eq!(refused["error"]["data"]["denied_by"], "stop");
    drop(served);
    // Not running: the order stands in the state, and is lifted there.
    assert!(done(&agent, &["stop", "--status"]).contains("no-tools"));
    let mut served = Served::start(&agent);
    served.call(5, "shell", &json!({"command": "touch later"}));
    assert_eq!(served.answer(5)["error"]["data"]["denied_by"], "stop");
    drop(served);
    until("the state is free", || {
        agent
            .clawk(["stop", "--lift", "--all", "--agent", "tested"])
            .output()
            .unwrap()
            .status
            .success()
    });
    assert!(!agent.path("later").exists());
    let mut served = Served::start(&agent);
    served.call(6, "shell", &json!({"command": "touch later"}));
    assert!(served.answer(6).get("result").is_some());
    assert!(agent.path("later").exists());
}

#[test]
fn approve_then_swap_on_real_tools_and_a_question_over_a_kill() {
    let agent = agent("[tools.hook.http]\nurl = \"http://127.0.0.1:9/\"\n");
    std::fs::write(agent.path("a.txt"), "one\n").unwrap();
    let mut served = Served::start(&agent);
    served.call(2, "file-write", &json!({"path": "a.txt", "content": "two\n"}));
    let shown = || done(&agent, &["approvals"]);
    until("it asks", || shown().contains("- one"));
    assert!(shown().contains("+ two"), "the difference is shown");
    std::fs::write(agent.path("a.txt"), "six\n").unwrap();
    done(&agent, &["approve", &request(2)]);
    let void = served.answer(2);
    assert_eq!(
        (&void["error"]["code"], &void["error"]["data"]["reason"]),
        (&json!(-32012), &json!("approval_void")),
        "{void}"
    );
    assert_eq!(std::fs::read_to_string(agent.path("a.txt")).unwrap(), "six\n");
    // Killed while it asks; answered after the next start; the same request finds its answer.
    let write = json!({"path": "a.txt", "content": "ten\n"});
    served.call(3, "file-write", &write);
    until("it asks", || shown().contains("+ ten"));
    served.child.kill().unwrap();
    drop(served);
    let mut served = Served::start(&agent);
    assert!(shown().contains("+ ten"), "open again");
    done(&agent, &["approve", &request(3), "--reason", "go"]);
    served.call(3, "file-write", &write);
    let wrote = served.answer(3);
    assert!(wrote.get("result").is_some(), "{wrote}");
    assert_eq!(std::fs::read_to_string(agent.path("a.txt")).unwrap(), "ten\n");
    let past = done(&agent, &["approvals", "--answered"]);
    assert!(
        past.contains("voided") && past.contains("approve") && past.contains("go"),
        "{past}"
    );
}
