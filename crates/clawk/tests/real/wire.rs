//! `clawk serve --stdio` and its client: lines out, lines in, each wait with a deadline.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::agent::{Agent, PATIENCE, program};
use crate::process::Group;

/// A served agent.
pub(crate) struct Wire {
    pub(crate) process: Group,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    /// Answers that came while another was waited for.
    early: Vec<Value>,
    next: u64,
}

impl Wire {
    /// Serves `claw.yaml` of the folder, and shakes hands.
    pub(crate) fn open(agent: &Agent) -> Self {
        Self::start(agent.command(program()).args(["serve", "claw.yaml", "--stdio"])).shaken()
    }

    /// After the handshake.
    pub(crate) fn shaken(mut self) -> Self {
        let answer = self.ask("claw.initialize", &hello(json!({ "kind": "Claw", "claw": "0.3.0",
            "metadata": { "name": "real", "version": "1.0.0" }, "spec": { "identity": { "inline": { "personality": "x" } },
            "providers": [{ "inline": { "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9/v1", "model": "m",
                "auth": { "type": "none" } } }] } })));
        assert!(answer["result"].is_object(), "{answer}");
        self
    }

    /// Starts the program; standard error is the test's.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = Group::spawn(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit()),
        );
        let input = process.0.stdin.take();
        let output = process.0.stdout.take().expect("piped");
        let (sender, lines) = mpsc::sync_channel(1024);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            process,
            input,
            lines,
            early: Vec::new(),
            next: 1,
        }
    }

    /// Writes bytes as they stand.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("open");
        input
            .write_all(bytes)
            .and_then(|()| input.flush())
            .expect("the agent reads");
    }

    /// Sends a request and returns its id.
    pub(crate) fn send(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next;
        self.next += 1;
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.write(format!("{line}\n").as_bytes());
        id
    }

    /// The answer with an id.
    pub(crate) fn answer(&mut self, id: &Value) -> Value {
        if let Some(at) = self.early.iter().position(|answer| answer["id"] == *id) {
            return self.early.remove(at);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self
                .lines
                .recv_timeout(left)
                .unwrap_or_else(|error| panic!("no answer to {id}: {error}"));
            let message: Value =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in what it said: {line}"));
            assert_eq!(message["jsonrpc"], "2.0", "{message}");
            if message["method"].is_string() {
                continue;
            }
            if message["id"] == *id {
                return message;
            }
            self.early.push(message);
        }
    }

    /// A request and its answer.
    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Value {
        let id = self.send(method, params);
        self.answer(&json!(id))
    }

    /// A tool call and its answer.
    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.ask("claw.tool.call", &call(tool, arguments).0)
    }

    /// The process's id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// End of input, then the end.
    pub(crate) fn close(mut self) -> ExitStatus {
        drop(self.input.take());
        self.process.wait(Duration::from_secs(30))
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait(Duration::from_secs(10));
    }
}

/// Params of a tool call, and its request id.
pub(crate) fn call(tool: &str, arguments: &Value) -> (Value, String) {
    #[expect(clippy::disallowed_methods, reason = "a client makes its own ids")]
    let id = Uuid::new_v4().to_string();
    let context = json!({ "request_id": id, "identity": "real" });
    (
        json!({ "name": tool, "arguments": arguments, "context": context }),
        id,
    )
}

/// Params of `claw.initialize`.
pub(crate) fn hello(manifest: Value) -> Value {
    json!({ "protocolVersion": "0.3.0", "clientInfo": { "name": "test", "version": "1" }, "manifest": manifest, "capabilities": {} })
}

/// The text of a tool's result.
pub(crate) fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text: {answer}"))
}
