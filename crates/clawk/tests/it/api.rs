//! `clawk serve --http` as a process, and a client of few words.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::agent::{Agent, program, text};

/// `clawk serve --http` on a free port, over a state directory of its own.
pub(crate) struct Api {
    child: Child,
    pub(crate) address: String,
    /// The number of the last request, which makes its id.
    pub(crate) requests: u32,
    /// `context` of what is asked.
    pub(crate) context: Value,
}

impl Api {
    pub(crate) fn start(agent: &Agent, args: &[&str]) -> Self {
        let mut child = Command::new(program())
            .args(["serve", "--http", "127.0.0.1:0", "--state", "api"])
            .args(args)
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.contains("http://"))
            .unwrap();
        let address = line
            .rsplit(' ')
            .next()
            .unwrap()
            .trim_start_matches("http://")
            .to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address,
            requests: 0,
            context: json!({}),
        }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        post(&self.address, path, body)
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        answer(stream).1
    }

    pub(crate) fn delete(&self, path: &str) -> u16 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "DELETE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn session(&self, agent: &str) -> String {
        let (status, session) = self.post("/v1/sessions", &json!({ "agent_id": agent, "goal": "help" }));
        assert_eq!(status, 201, "{session}");
        session["session_id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn ask(&mut self, session: &str, agent: &str, execution: Option<Value>) -> (u16, Value) {
        self.requests += 1;
        let now = String::from_utf8(
            Command::new("date")
                .args(["-u", "+%FT%TZ"])
                .output()
                .unwrap()
                .stdout,
        )
        .unwrap();
        let mut request = json!({
            "carp_version": "1.0", "request_id": format!("00000000-0000-4000-8000-{:012}", self.requests),
            "timestamp": now.trim(), "operation": "resolve",
            "requester": { "agent_id": agent, "session_id": session }, "task": { "goal": "help" },
            "context": self.context,
        });
        let path = match execution {
            None => "/v1/resolve",
            Some(execution) => {
                request["operation"] = json!("execute");
                request["execution"] = execution;
                "/v1/execute"
            }
        };
        self.post(path, &request)
    }

    /// A resolution's id.
    pub(crate) fn resolve(&mut self, session: &str, agent: &str) -> String {
        let (status, resolution) = self.ask(session, agent, None);
        assert_eq!(status, 200, "{resolution}");
        resolution["resolution_id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn execute(
        &mut self,
        session: &str,
        agent: &str,
        resolution: &str,
        action: &str,
    ) -> (u16, Value) {
        let execution =
            json!({ "resolution_id": resolution, "action_id": action, "parameters": { "path": "x" } });
        self.ask(session, agent, Some(execution))
    }

    /// The most memory that it ever held, MiB.
    pub(crate) fn peak_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }

    pub(crate) fn end(mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn post(address: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    answer(stream)
}

pub(crate) fn answer(mut stream: TcpStream) -> (u16, Value) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let whole = text(&bytes);
    let (head, body) = whole.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (
        status,
        serde_json::from_str(body).unwrap_or_else(|_| panic!("{whole}")),
    )
}
