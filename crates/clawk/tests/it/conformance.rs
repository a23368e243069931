//! The vectors against the real program: in its own set-ups, against the conformance agent as any other agent would be
//! tested, and by a harness of the simplest kind.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

const AGENT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/conformance/claw.yaml"
);

#[expect(
    clippy::disallowed_methods,
    reason = "a test starts the program that it is about"
)]
pub(crate) fn clawk(state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clawk"));
    command.env("XDG_STATE_HOME", state);
    command
}

pub(crate) fn report(arguments: &[&str], state: &Path) -> Value {
    let output = clawk(state)
        .args(["conformance", "ckp", "--format", "json"])
        .args(arguments)
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr));
    });
    assert_eq!(
        output.status.success(),
        report["failed"] == 0,
        "the exit code tells"
    );
    report
}

pub(crate) fn failures(report: &Value) -> Vec<&Value> {
    let results = report["results"].as_array().expect("results");
    results
        .iter()
        .filter(|outcome| outcome["passed"] != true)
        .collect()
}

#[test]
fn clawk_passes_31_of_31_in_the_set_ups_of_the_specification() {
    let state = tempfile::tempdir().expect("temporary directory");
    let report = report(&[], state.path());
    assert!(failures(&report).is_empty(), "{:#?}", failures(&report));
    assert_eq!((&report["total"], &report["passed"]), (&31.into(), &31.into()));
    assert_eq!(report["implementation"], "clawk");
}

/// The conformance agent as it is, but for a heartbeat that nobody has to wait half a minute for.
pub(crate) fn hurried_agent(dir: &Path) -> String {
    let example = Path::new(AGENT).parent().expect("a folder");
    for entry in std::fs::read_dir(example).expect("the example") {
        let file = entry.expect("an entry").path();
        std::fs::copy(&file, dir.join(file.file_name().expect("a name"))).expect("copies");
    }
    let manifest = dir.join("claw.yaml");
    let text = std::fs::read_to_string(&manifest).expect("reads");
    let (name, hurried) = (
        "  name: test-agent\n",
        "  name: test-agent\n  annotations: { heartbeat_interval_ms: 300 }\n",
    );
    assert_eq!(text.matches(name).count(), 1);
    std::fs::write(&manifest, text.replace(name, hurried)).expect("writes");
    manifest.display().to_string()
}

#[test]
fn the_conformance_agent_passes_31_of_31_as_any_other_agent_would() {
    let state = tempfile::tempdir().expect("temporary directory");
    let dir = tempfile::tempdir().expect("temporary directory");
    let target = format!(
        "{} serve {} --stdio",
        env!("CARGO_BIN_EXE_clawk"),
        hurried_agent(dir.path())
    );
    let report = report(&["--target", &target], state.path());
    assert!(failures(&report).is_empty(), "{:#?}", failures(&report));
    assert_eq!((&report["total"], &report["passed"]), (&31.into(), &31.into()));
    assert_eq!(report["implementation"], "test-agent");
}

#[test]
fn an_agent_that_is_none_fails() {
    let state = tempfile::tempdir().expect("temporary directory");
    let report = report(&["--target", "true", "--level", "1"], state.path());
    assert_eq!(report["total"], 13);
    assert_eq!(report["passed"], 0, "{report:#}");
}

/// A harness that knows one process and takes the next line for the answer.
struct Simple {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Simple {
    fn start(state: &Path) -> Self {
        let mut command = clawk(state);
        command
            .args(["serve", AGENT, "--stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let stdin = child.stdin.take().expect("standard input");
        let stdout = BufReader::new(child.stdout.take().expect("standard output"));
        Self { child, stdin, stdout }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }

    fn ask(&mut self, line: &str) -> Value {
        self.tell(line);
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).expect("it answers");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{line}: {error}: {answer}"))
    }

    fn method(&mut self, method: &str, params: &Value) -> Value {
        let answer =
            self.ask(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string());
        assert_eq!(answer["id"], 7, "{answer}");
        answer
    }

    fn initialize(&mut self, version: &str, spec: &Value) -> Value {
        let manifest = json!({"kind": "Claw", "metadata": {"name": "test-agent"}, "spec": spec});
        let client = json!({"name": "simple", "version": "1.0.0"});
        let params = json!({"protocolVersion": version, "clientInfo": client, "manifest": manifest, "capabilities": {}});
        self.method("claw.initialize", &params)
    }

    fn call(&mut self, tool: &str, arguments: &Value, number: u32, narrower: &Value) -> Value {
        let mut context =
            json!({"request_id": format!("550e8400-e29b-41d4-a716-{number:012}"), "identity": "test-agent"});
        let context_map = context.as_object_mut().expect("an object");
        context_map.extend(narrower.as_object().expect("an object").clone());
        self.method(
            "claw.tool.call",
            &json!({"name": tool, "arguments": arguments, "context": context}),
        )
    }
}

impl Drop for Simple {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_simple_harness_goes_through_one_process_twice_and_ends_it_by_a_signal() {
    let state = tempfile::tempdir().expect("temporary directory");
    let mut agent = Simple::start(state.path());
    let tiny = json!({"identity": {"inline": {"personality": "Test."}}, "providers": [{"inline": {"protocol": "openai-compatible",
        "endpoint": "http://localhost:11434/v1", "model": "m", "auth": {"type": "none"}}}]});
    let code = |answer: &Value| answer["error"]["code"].as_i64();
    for _ in 0..2 {
        assert_eq!(
            agent.initialize("0.2.0", &tiny)["result"]["conformanceLevel"],
            "level-3"
        );
        assert_eq!(code(&agent.initialize("99.0.0", &json!({}))), Some(-32001));
        assert_eq!(
            agent.method("claw.status", &json!({}))["result"]["state"],
            "READY"
        );
        assert_eq!(code(&agent.ask("{no json")), Some(-32700));
        assert_eq!(code(&agent.method("claw.nonexistent", &json!({}))), Some(-32601));
        agent.tell(&json!({"jsonrpc": "2.0", "method": "claw.heartbeat", "params": {}}).to_string());
        assert_eq!(
            agent.method("claw.shutdown", &json!({"reason": "test"}))["result"]["drained"],
            true
        );
    }
    agent.initialize("0.2.0", &tiny);
    let none = json!({});
    let url = json!({"url": "http://169.254.169.254/metadata"});
    for (number, (tool, arguments, narrower, expected)) in (0..).zip([
        ("echo", json!({"text": "hello"}), none.clone(), None),
        (
            "web-fetch",
            json!({"invalid_field": true}),
            none.clone(),
            Some(-32602),
        ),
        (
            "destructive-tool",
            json!({}),
            json!({"policy": "deny-all"}),
            Some(-32011),
        ),
        ("slow-tool", json!({}), none.clone(), Some(-32014)),
        (
            "network-tool",
            url,
            json!({"sandbox": "restricted-sandbox"}),
            Some(-32010),
        ),
        (
            "network-tool",
            json!({"url": "https://example.com/"}),
            none.clone(),
            None,
        ),
        ("expensive-tool", json!({}), none.clone(), Some(-32021)),
        ("approval-tool", json!({}), none, Some(-32012)),
    ]) {
        let answer = agent.call(tool, &arguments, number, &narrower);
        assert_eq!(code(&answer), expected, "{tool}: {answer}");
    }
    let store = json!({"store": "test-store", "entries": [{"content": "Test memory entry"}],
        "context": {"request_id": "dd0e8400-e29b-41d4-a716-446655440008"}});
    assert_eq!(agent.method("claw.memory.store", &store)["result"]["stored"], 1);
    let query = json!({"store": "test-store", "query": {"type": "semantic", "text": "test", "top_k": 5}});
    assert_eq!(
        agent.method("claw.memory.query", &query)["result"]["entries"][0]["content"],
        "Test memory entry"
    );
    let peers = agent.method("claw.swarm.discover", &json!({"swarm": "test-team"}));
    assert_eq!(peers["result"]["peers"][0]["identity"], "test-peer");
    terminate(&agent.child);
    assert!(
        agent.child.wait().expect("ends").success(),
        "SIGTERM is an orderly end"
    );
}

#[expect(
    clippy::disallowed_methods,
    reason = "the signal of a shell, without unsafe code"
)]
fn terminate(child: &Child) {
    assert!(
        Command::new("kill")
            .arg(child.id().to_string())
            .status()
            .expect("runs")
            .success()
    );
}
