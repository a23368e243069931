//! Clients that others wrote, at the doors of a host: `tests/parts/clients/*.py`, each with its protocol's own package.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::agent::{Agent, PATIENCE, allow, ask, manifest, of, program, scripted};
use crate::parts::{ours, part};
use crate::process::{Done, Group, finish};

/// The token of who may talk; `clawk.toml` has its SHA-256.
pub(crate) const TOKEN: &str = "a-token-of-some-length";

/// Another one's, who may only read.
const OTHER: &str = "another-token-of-length";
const OTHER_SHA256: &str = "e37242d2cc20323d14e0d849f9cfa335d3e28587b186f5d6c0379ee27b9b7f8e";

const SCRIPT: &str = r#"
stream: { chunk_chars: 4, chunk_delay_ms: 15 }
scenes:
  - user: "tool_call_id"
    steps:
      - say: "I read: {{last_user_text}}"
  - user: "rain[?]$"
    steps:
      - any:
          - { when: { offered: weather }, call: [{ name: weather, arguments: { city: Bonn } }] }
          - { say: "No tool tells me." }
  - user: "read it$"
    steps:
      - say: "I read it first."
        call: [{ name: file-read, arguments: { path: in.txt } }]
      - say: "It says: {{last_tool_text}}"
  - user: "turn$"
    steps:
      - say: "turn {{turn}}"
  - user: "write it$"
    steps:
      - call: [{ name: file-write, arguments: { path: yes.txt, content: "2" } }]
      - any:
          - { when: { error: true }, say: "I was not allowed to." }
          - say: "Written."
  - user: "broken$"
    steps:
      - fault: { status: 400, message: "no such model" }
  - steps:
      - say: "You said: {{last_user_text}}"
        usage: { input: 12, output: 3 }
"#;

/// An agent with a reading and a writing tool.
pub(crate) fn agent(doors: &str) -> Agent {
    agent_with(doors, "", "")
}

/// The same, with more keys of `[http]` and more of `clawk.toml`.
pub(crate) fn agent_with(doors: &str, http: &str, more: &str) -> Agent {
    let agent = Agent::new();
    let tools = json!([
        { "inline": { "name": "file-read", "description": "Reads a file", "input_schema": {
            "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] } } },
        { "inline": { "name": "file-write", "description": "Writes a file", "input_schema": {
            "type": "object", "properties": { "path": { "type": "string" }, "content": { "type": "string" } },
            "required": ["path", "content"] } } },
        { "inline": { "name": "shell", "description": "Runs a command", "input_schema": { "type": "object" } } },
    ]);
    let mut model = scripted();
    model[0]["inline"]["streaming"] = json!(true);
    let rules = json!([allow("file-read"), ask("file-write")]);
    agent.write("script.yaml", SCRIPT);
    agent.write("in.txt", "a line of text");
    let mut whole = manifest(&model, &tools, &rules);
    whole["spec"]["skills"] = json!([{ "inline": { "name": "digest", "description": "Tells what is written",
        "tools_required": ["file-read"], "instruction": "Read, then tell.", "input_schema": { "type": "object",
        "properties": { "topic": { "type": "string", "description": "About what" } }, "required": ["topic"] } } }]);
    whole["spec"]["memory"] = json!({ "inline": { "name": "head",
        "stores": [{ "name": "notes", "type": "semantic", "backend": "sqlite" }] } });
    let local = format!(
        "{more}\n[http]\ndoors = [{doors}]\n{http}\n[[http.tokens]]\nname = 'tok'\nsha256 = '4f0d205b316ab19696f52d3dc08107a4186c12b117a2a23581353b462001edee'\nscopes = ['message', 'tool', 'memory', 'read', 'approve']\n\
         [[http.tokens]]\nname = 'other'\nsha256 = '{OTHER_SHA256}'\nscopes = ['read']\n"
    );
    agent.is(&whole, &local);
    agent
}

/// `clawk serve --listen` on a free port; ends with the test.
pub(crate) struct Served {
    process: Group,
    pub(crate) address: String,
}

impl Served {
    pub(crate) fn start(agent: &Agent) -> Self {
        Self::start_at(agent, 0)
    }

    pub(crate) fn start_at(agent: &Agent, port: u16) -> Self {
        let mut command = agent.command(program());
        command.args(["serve", "claw.yaml", "--listen", &format!("127.0.0.1:{port}")]);
        let mut process = Group::spawn(command.stdin(Stdio::null()).stderr(Stdio::piped()));
        let mut lines = BufReader::new(process.0.stderr.take().expect("piped"))
            .lines()
            .map_while(Result::ok);
        let line = lines
            .find(|line| line.contains("http://"))
            .expect("it says where it listens");
        let address = line
            .rsplit("http://")
            .next()
            .expect("an address")
            .trim()
            .to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// kill -9.
    pub(crate) fn kill(mut self) {
        self.process.signal(rustix::process::Signal::KILL);
        self.process.wait(PATIENCE);
    }

    pub(crate) fn end(mut self) {
        self.process.signal(rustix::process::Signal::TERM);
        assert!(self.process.wait(PATIENCE).success());
    }
}

/// Runs a client's script to its end.
pub(crate) fn client(agent: &Agent, script: &str, args: &[&str]) -> Done {
    let mut command: Command = agent.command(&part("clients/bin/python"));
    finish(command.arg(ours("clients").join(script)).args(args), PATIENCE)
}

pub(crate) fn succeeded(done: Done) {
    assert!(
        done.status.success() && done.stdout.ends_with("ok\n"),
        "{}\n{}",
        done.stdout,
        done.stderr
    );
}

#[test]
fn the_openai_package_talks_to_the_agent() {
    let agent = agent("'openai'");
    let served = Served::start(&agent);
    succeeded(client(
        &agent,
        "openai_client.py",
        &[&served.url("/openai/v1"), TOKEN],
    ));
    served.end();
    let events = agent.events();
    // Each message once, though the library may send again what failed.
    let accepted: Vec<&Value> = of(&events, "ckp.message.accepted");
    assert!(
        accepted
            .iter()
            .all(|event| event["role"] == "user" && event["sender"] == "openai:tok"),
        "{accepted:?}"
    );
    assert_eq!(of(&events, "ckp.message.dead").len(), 2);
}

#[test]
fn the_mcp_package_uses_the_agent_on_standard_input() {
    let agent = agent("'health'");
    let clawk = program().display().to_string();
    succeeded(client(
        &agent,
        "mcp_client.py",
        &["stdio", &clawk, "serve", "claw.yaml", "--mcp"],
    ));
    let events = agent.events();
    // Every call took the one path, and every answer was the client's.
    assert_eq!(of(&events, "ckp.approval.answered").len(), 3, "{events:#?}");
    let last = of(&events, "ckp.lifecycle.transition").pop().expect("it started");
    assert_eq!(last["to"], "STOPPED", "the end of input is an orderly end");
}

#[test]
fn the_mcp_package_uses_the_agent_over_http() {
    let agent = agent("'mcp'");
    let served = Served::start(&agent);
    succeeded(client(
        &agent,
        "mcp_client.py",
        &["http", &served.url("/mcp"), TOKEN, OTHER],
    ));
    served.end();
    agent.events();
}

#[test]
fn the_acp_package_is_an_editor_of_the_agent() {
    let agent = agent("'health'");
    let clawk = program().display().to_string();
    succeeded(client(&agent, "acp_client.py", &[&clawk, "acp", "claw.yaml"]));
    let events = agent.events();
    let answers = of(&events, "ckp.approval.answered");
    let by: Vec<&Value> = answers
        .iter()
        .filter(|event| event["channel"] == "acp")
        .copied()
        .collect();
    assert!(by.iter().all(|event| event["by"] == "zed"), "{by:?}");
    let words: Vec<&Value> = by.iter().map(|event| &event["answer"]).collect();
    assert_eq!(words, ["approve", "deny", "approve-for-session"]);
}

#[test]
fn the_a2a_package_gives_the_agent_tasks() {
    let agent = agent("'a2a', 'claw'");
    let served = Served::start(&agent);
    succeeded(client(
        &agent,
        "a2a_client.py",
        &[&served.url(""), TOKEN, OTHER, "first"],
    ));
    served.end();
    // A task of an earlier run is found in the record.
    let served = Served::start(&agent);
    succeeded(client(
        &agent,
        "a2a_client.py",
        &[&served.url(""), TOKEN, OTHER, "later"],
    ));
    served.end();
    agent.events();
}
