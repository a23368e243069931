//! The activity log: what `clawk serve` writes to standard error, and what `clawk logs` reads from the journal afterwards.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::agent::{Agent, program, text};

/// Words that no line may have.
const SCRIPT: &str = r#"
scenes:
  - user: quetzal-read
    steps:
      - call: [{ name: file-read, arguments: { path: quetzal.txt } }]
      - call: [{ name: quetzal-invented, arguments: { quetzal: 1 } }]
      - say: "quetzal-answer"
  - user: quetzal-broken
    steps:
      - fault: { status: 400, message: "no such model: quetzal-server" }
"#;

struct Served {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Serves over standard streams, with standard error in a file.
fn serve(agent: &Agent, log: &str, args: &[&str]) -> Served {
    let mut child = Command::new(program())
        .args(["serve", "claw.yaml", "--stdio"])
        .args(args)
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(agent.path(log)).unwrap())
        .spawn()
        .unwrap();
    let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
    Served { child, input, output }
}

impl Served {
    fn ask(&mut self, method: &str, params: &Value) -> Value {
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

    fn initialize(&mut self) {
        let client = json!({ "name": "test", "version": "1" });
        // The launched agent stays itself; this only names whom the client expects.
        let manifest = json!({ "kind": "Claw", "metadata": { "name": "tested" } });
        let params = json!({ "protocolVersion": "0.3.0", "clientInfo": client, "manifest": manifest, "capabilities": {} });
        let answer = self.ask("claw.initialize", &params);
        assert!(answer["error"].is_null(), "{answer}");
    }

    fn say(&mut self, words: &str) -> Value {
        let id = uuid::Uuid::new_v4();
        self.ask(
            "claw.message.send",
            &json!({ "request_id": id, "text": words, "stream": false }),
        )
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn talkative() -> Agent {
    let agent = Agent::new();
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    std::fs::write(agent.path("quetzal.txt"), "quetzal-content").unwrap();
    agent
}

fn logs(agent: &Agent, args: &[&str]) -> String {
    let output = agent.clawk(["logs"]).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn objects(lines: &str) -> Vec<Value> {
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect()
}

#[test]
fn a_served_agent_says_what_it_does_and_logs_reads_the_same_lines_from_the_journal() {
    let agent = talkative();
    let mut served = serve(&agent, "log", &["--log-format", "json"]);
    served.initialize();
    assert!(served.say("quetzal-read").to_string().contains("quetzal-answer"));
    served.say("quetzal-broken");
    served.end();

    let written = std::fs::read_to_string(agent.path("log")).unwrap();
    assert!(!written.contains("quetzal"), "{written}");
    let written = objects(&written);
    let said: Vec<&str> = written
        .iter()
        .filter_map(|line| line["message"].as_str())
        .collect();
    for what in [
        "agent",
        "turn began",
        "model answered",
        "call allowed",
        "call done",
        "call denied",
        "turn ended",
        "provider refused or failed",
        "turn is a dead letter; `clawk dead-letters` lists it",
    ] {
        assert!(said.contains(&what), "{what}: {said:#?}");
    }
    let ended = written
        .iter()
        .find(|line| line["message"] == "turn ended")
        .unwrap();
    let trace = ended["trace_id"].as_str().unwrap();
    assert_eq!(trace, ended["turn"].as_str().unwrap().replace('-', ""));
    assert!(ended["ms"].is_u64() && ended["input_tokens"].is_u64(), "{ended}");
    let stopped = written.last().unwrap();
    assert_eq!(
        (&stopped["message"], &stopped["to"]),
        (&json!("agent"), &json!("STOPPED"))
    );

    let read = logs(&agent, &["claw.yaml", "--format", "json"]);
    assert_eq!(objects(&read), written, "the same lines, from the journal");
    for named in [["tested"].as_slice(), &["--agent", "tested"], &[]] {
        assert_eq!(logs(&agent, &[named, &["--format", "json"]].concat()), read);
    }
    let warned = logs(&agent, &["--level", "warn"]);
    assert!(warned.contains("WARN  call denied tool=other"), "{warned}");
    assert!(!warned.contains("turn ended"), "{warned}");
    assert_eq!(logs(&agent, &["-n", "1"]).lines().count(), 1);
    assert_eq!(logs(&agent, &["--since", "1h", "--format", "json"]), read);
    assert_eq!(logs(&agent, &["--since", "2200-01-01"]), "");
    let unknown = agent.clawk(["logs", "nobody"]).output().unwrap();
    assert!(
        !unknown.status.success() && text(&unknown.stderr).contains("neither a manifest nor an agent"),
        "{}",
        text(&unknown.stderr)
    );

    // The next run writes its own lines only.
    let mut again = serve(&agent, "again", &["--log-format", "text"]);
    again.initialize();
    again.end();
    let again = std::fs::read_to_string(agent.path("again")).unwrap();
    assert!(
        again.contains(" INFO  agent from=INIT to=STARTING session="),
        "{again}"
    );
    assert!(!again.contains("turn ended"), "{again}");
}

#[test]
fn a_launcher_gets_no_log_unless_it_asks() {
    let agent = talkative();
    let mut served = serve(&agent, "log", &[]);
    served.initialize();
    served.say("quetzal-read");
    served.end();
    assert_eq!(std::fs::read_to_string(agent.path("log")).unwrap(), "");
    assert!(logs(&agent, &[]).contains("turn ended"));
}

#[test]
fn logs_follows_an_agent_that_runs() {
    let agent = talkative();
    let mut served = serve(&agent, "log", &[]);
    served.initialize();
    let mut follower = Command::new(program())
        .args(["logs", "claw.yaml", "--follow"])
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    served.say("quetzal-read");
    let ended = lines.find(|line| line.as_ref().unwrap().contains("turn ended"));
    follower.kill().unwrap();
    follower.wait().unwrap();
    assert!(ended.is_some());
    served.end();
}
