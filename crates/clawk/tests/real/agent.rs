//! A folder with an agent made for one test, and clawk run in it with an environment of its own.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::parts::search_path;
use crate::process::{Done, finish};
use crate::tty::Terminal;

/// How long a step of a test may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The folder; gone when dropped.
pub(crate) struct Agent {
    folder: TempDir,
}

/// An agent's manifest, as JSON (which is YAML): Level 2, so that its tools can be called on the wire.
pub(crate) fn manifest(providers: &Value, tools: &Value, rules: &Value) -> Value {
    json!({
        "claw": "0.3.0",
        "kind": "Claw",
        "metadata": { "name": "real", "version": "1.0.0" },
        "spec": {
            "identity": { "inline": { "name": "real", "personality": "You answer by calling tools.", "autonomy": "autonomous" } },
            "providers": providers,
            "channels": [{ "inline": { "name": "terminal", "type": "cli", "transport": "stdio", "auth": { "secret_ref": "NONE" } } }],
            "tools": tools,
            "sandbox": { "inline": { "name": "box", "level": "process", "capabilities": {
                "filesystem": { "mode": "scoped", "mount_paths": [{ "path": ".", "permissions": "rw" }] } } } },
            "policies": [{ "inline": { "name": "rules", "rules": rules } }],
        },
    })
}

/// A rule that allows a tool.
pub(crate) fn allow(tool: &str) -> Value {
    json!({ "id": format!("allow-{tool}"), "action": "allow", "scope": "tool", "match": { "name": tool } })
}

/// A rule that asks.
pub(crate) fn ask(tool: &str) -> Value {
    json!({ "id": format!("ask-{tool}"), "action": "require-approval", "scope": "tool", "match": { "name": tool },
        "reason": "A person is to know", "approval": { "timeout_seconds": 120 } })
}

/// A scripted model, for tests that are about something else.
pub(crate) fn scripted() -> Value {
    json!([{ "inline": { "name": "script", "protocol": "custom", "endpoint": "script:script.yaml", "model": "scripted",
        "auth": { "type": "none" } } }])
}

impl Agent {
    /// An empty folder.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary directory");
        Self { folder }
    }

    /// Writes a file into the folder.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("the folder is writable");
    }

    /// Writes the manifest; its programs from npm may have their interpreter anywhere on this test's search path. So small a
    /// model may call tools for ever: on some processors it does, up to the default of 48 answers.
    pub(crate) fn is(&self, manifest: &Value, local: &str) {
        self.write("claw.yaml", &format!("{manifest:#}"));
        let tools = manifest["spec"]["tools"].as_array().expect("a list");
        let with_server = tools
            .iter()
            .map(|tool| &tool["inline"])
            .filter(|tool| tool["mcp_source"].is_object());
        let paths: String = with_server
            .map(|tool| {
                let name = tool["name"].as_str().expect("a name");
                let scripts = crate::parts::ours("");
                format!(
                    "[tools.{name}]\nenv = {{ PATH = '{}' }}\nread_paths = ['{}']\n",
                    search_path(),
                    scripts.display()
                )
            })
            .collect();
        let mut bounds = String::new();
        if manifest["spec"]["providers"][0]["inline"]["model"] == crate::model::NAME {
            for (table, bound) in [
                ("budgets", "steps_per_turn = 6"),
                ("providers.small", "max_output_tokens = 80"),
            ] {
                if !local.contains(&format!("[{table}]")) {
                    let _ = writeln!(bounds, "[{table}]\n{bound}");
                }
            }
        }
        self.write("clawk.toml", &format!("{local}\n{bounds}{paths}"));
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where its state lies.
    pub(crate) fn state(&self) -> PathBuf {
        self.path("state/clawk/real")
    }

    /// The environment that clawk gets, and nothing else.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("PATH", PathBuf::from(search_path())),
            ("HOME", self.path("")),
            ("XDG_STATE_HOME", self.path("state")),
            ("XDG_CONFIG_HOME", self.path("config")),
            ("USER", PathBuf::from("tester")),
            ("NO_COLOR", PathBuf::from("1")),
        ]
    }

    /// A program in the folder, in this environment.
    #[expect(
        clippy::disallowed_methods,
        reason = "a test starts the program that it is about"
    )]
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.folder.path())
            .env_clear()
            .envs(self.environment());
        command
    }

    /// clawk on a terminal.
    pub(crate) fn terminal(&self, args: &[&str]) -> Terminal {
        Terminal::start(&mut self.command("setsid".as_ref()), 160, program(), args)
    }

    /// clawk, run to its end.
    pub(crate) fn clawk(&self, args: &[&str]) -> Done {
        finish(self.command(program()).args(args), PATIENCE)
    }

    /// All recorded events in order of sessions, as `trace export` writes them; whatever happened, they verify, in the state and
    /// as a file.
    pub(crate) fn events(&self) -> Vec<Value> {
        let state = self.state().display().to_string();
        let verdict = self
            .clawk(&["trace", "verify", "--state", &state, "--format", "json"])
            .ok();
        let verdict: Value = serde_json::from_str(&verdict.stdout).expect("JSON");
        assert_eq!(verdict["valid"], true, "{verdict}");
        self.clawk(&["trace", "export", "--state", &state, "-o", "out.trace.jsonl"])
            .ok();
        self.clawk(&["trace", "verify", "out.trace.jsonl"]).ok();
        let text = std::fs::read_to_string(self.path("out.trace.jsonl")).expect("it was written");
        let events: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("one event a line"))
            .collect();
        assert_eq!(verdict["event_count"], events.len());
        events
    }

    /// Content by its digest.
    pub(crate) fn content(&self, digest: &Value) -> Value {
        let state = self.state().display().to_string();
        let digest = digest.as_str().expect("a digest");
        let text = self
            .clawk(&["trace", "show", "--state", &state, "--content", digest])
            .ok();
        serde_json::from_str(&text.stdout).expect("JSON")
    }
}

/// The payloads of one type.
pub(crate) fn of<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events
        .iter()
        .filter(|event| event["event_type"] == kind)
        .map(|event| &event["payload"])
        .collect()
}

/// Asserts that events of these types come in this order, with others between them.
pub(crate) fn in_order(events: &[Value], kinds: &[&str]) {
    let mut rest = events.iter().map(|event| &event["event_type"]);
    for kind in kinds {
        assert!(
            rest.any(|found| found == kind),
            "no `{kind}` in its place: {:#?}",
            events
                .iter()
                .map(|event| event["event_type"].to_string())
                .collect::<Vec<_>>()
        );
    }
}

/// The program under test.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_clawk"))
}
