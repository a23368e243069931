//! `clawk upgrade`: what a new manifest or program would have decided, and going live with it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, program, text};
use crate::doors::{Local, free};
use crate::trace::json as told;

const LONG: Duration = Duration::from_secs(120);
const ALLOWS: &str = "{ id: reading, action: allow, scope: tool, match: { name: file-read } }";
const DENIES: &str =
    "{ id: no-reading, action: deny, scope: tool, match: { name: file-read }, reason: Files are private }";

fn said(agent: &Agent, message: &str) {
    let done = agent.clawk(["run", "claw.yaml", "-m", message]).output().unwrap();
    assert!(
        text(&done.stderr).contains("chain valid"),
        "{}",
        text(&done.stderr)
    );
}

/// The manifest with one text in the place of another, as `next.yaml`.
fn next(agent: &Agent, old: &str, new: &str) {
    let now = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let then = now.replace(old, new);
    assert!(old == new || then != now, "`{old}` is not in the manifest");
    std::fs::write(agent.path("next.yaml"), then).unwrap();
}

fn upgrade(agent: &Agent, args: &[&str]) -> (i32, Value) {
    told(
        agent,
        &[&["upgrade", "claw.yaml", "--format", "json"], args].concat(),
    )
}

fn bytes(path: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn a_manifest_that_denies_what_was_allowed_is_named_call_by_call() {
    let agent = Agent::new();
    for message in ["read it", "hello", "write it"] {
        said(&agent, message);
    }
    next(&agent, ALLOWS, DENIES);
    let state = bytes(agent.state().join("state.db"));
    let (code, report) = upgrade(&agent, &["--shadow", "next.yaml"]);
    assert_eq!((code, &report["sessions"]), (1, &json!(3)), "{report:#}");
    assert_eq!(report["not_replayed"], json!([]));
    let [one] = report["differences"].as_array().unwrap().as_slice() else {
        panic!("{report:#}")
    };
    assert_eq!(
        (&one["what"], &one["message"], &one["tool"]),
        (&json!("call"), &json!(1), &json!("file-read"))
    );
    assert_eq!(
        (&one["was"]["verdict"], &one["was"]["rule"]),
        (&json!("allow"), &json!("reading"))
    );
    assert_eq!(
        (&one["would_be"]["verdict"], &one["would_be"]["rule"]),
        (&json!("deny"), &json!("no-reading"))
    );
    let why = one["would_be"]["reason"].as_str().unwrap();
    assert!(why.contains("Files are private"), "{report:#}");
    assert_eq!(report["applied"], Value::Null);
    assert_eq!(
        bytes(agent.state().join("state.db")),
        state,
        "the record is only read"
    );
    // The same for people, and only the last session: nothing of it differs.
    let shown = agent
        .clawk(["upgrade", "claw.yaml", "--shadow", "next.yaml"])
        .output()
        .unwrap();
    let shown = text(&shown.stdout);
    assert!(
        shown.contains("file-read") && shown.contains("allow (rule `reading`") && shown.contains("→ deny"),
        "{shown}"
    );
    let (code, report) = upgrade(&agent, &["--shadow", "next.yaml", "--sessions", "1"]);
    assert_eq!((code, &report["sessions"]), (0, &json!(1)), "{report:#}");
}

#[test]
fn other_words_for_the_same_verdicts_are_no_difference() {
    let agent = Agent::new();
    for message in ["read it", "write it", "twice", "broken", "plan"] {
        said(&agent, message);
    }
    next(&agent, "id: reading", "id: may-read");
    // The world is gone: no script for the model, no file to read; and the network is unplugged.
    for file in ["script.yaml", "in.txt"] {
        std::fs::remove_file(agent.path(file)).unwrap();
    }
    let output = Command::new("unshare")
        .args(["-r", "-n", "--"])
        .arg(program())
        .args([
            "upgrade",
            "claw.yaml",
            "--shadow",
            "next.yaml",
            "--format",
            "json",
        ])
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .output()
        .unwrap();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert!(output.status.success(), "{report:#}");
    assert_eq!(
        (&report["sessions"], &report["differences"]),
        (&json!(5), &json!([])),
        "{report:#}"
    );
    assert!(report["decisions"].as_u64().unwrap() >= 12, "{report:#}");
}

#[test]
fn what_asks_what_is_allowed_and_what_the_sandbox_refuses_are_differences() {
    let agent = Agent::new();
    for message in ["read it", "write it"] {
        said(&agent, message);
    }
    let verdicts = |report: &Value| -> Vec<(String, String, String)> {
        let of = |one: &Value, side: &str| one[side]["verdict"].as_str().unwrap().to_owned();
        let differences = report["differences"].as_array().unwrap().iter();
        differences
            .map(|one| {
                let tool = one["tool"].as_str().unwrap_or_default().to_owned();
                (tool, of(one, "was"), of(one, "would_be"))
            })
            .collect()
    };
    let line = |tool: &str, was: &str, is: &str| (tool.to_owned(), was.to_owned(), is.to_owned());
    next(&agent, "action: require-approval", "action: allow");
    let (code, report) = upgrade(&agent, &["--shadow", "next.yaml"]);
    assert_eq!(code, 1);
    assert_eq!(
        verdicts(&report),
        [line("file-write", "ask", "allow")],
        "{report:#}"
    );
    next(
        &agent,
        "id: reading, action: allow",
        "id: reading, action: require-approval",
    );
    let (_, report) = upgrade(&agent, &["--shadow", "next.yaml"]);
    assert_eq!(
        verdicts(&report),
        [line("file-read", "allow", "ask")],
        "{report:#}"
    );
    next(&agent, "permissions: rw", "permissions: ro");
    let (_, report) = upgrade(&agent, &["--shadow", "next.yaml"]);
    assert_eq!(
        verdicts(&report),
        [line("file-write", "ask", "deny")],
        "{report:#}"
    );
    assert_eq!(
        report["differences"][0]["would_be"]["by"], "sandbox",
        "{report:#}"
    );
    // A tool that is gone.
    next(&agent, "name: file-read\n", "name: file-list\n");
    let (_, report) = upgrade(&agent, &["--shadow", "next.yaml"]);
    assert_eq!(
        verdicts(&report),
        [line("file-read", "allow", "deny")],
        "{report:#}"
    );
}

#[test]
fn a_session_that_cannot_be_replayed_is_named_and_is_no_success() {
    let agent = Agent::new();
    said(&agent, "read it");
    next(&agent, ALLOWS, ALLOWS);
    assert_eq!(upgrade(&agent, &["--shadow", "next.yaml"]).0, 0);
    agent
        .clawk(["trace", "redact", "--session", "last", "--reason", "asked for"])
        .assert()
        .success();
    let (code, report) = upgrade(&agent, &["--shadow", "next.yaml"]);
    assert_eq!((code, &report["sessions"]), (1, &json!(0)), "{report:#}");
    let reason = report["not_replayed"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("erased"), "{report:#}");
}

/// A copy of the program in the agent's folder, with some bytes behind its end: the same program in another file.
fn copy(agent: &Agent, name: &str, tail: &[u8]) -> PathBuf {
    let path = agent.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::copy(program(), &path).unwrap();
    if !tail.is_empty() {
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, tail).unwrap();
    }
    path
}

fn script(agent: &Agent, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(agent.path(name), text).unwrap();
    std::fs::set_permissions(agent.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn another_program_replays_the_record_itself() {
    let agent = Agent::new();
    for message in ["read it", "write it"] {
        said(&agent, message);
    }
    let real = program().display().to_string();
    script(&agent, "same", &format!("#!/bin/sh\nexec {real} \"$@\"\n"));
    let (code, report) = upgrade(&agent, &["--shadow", "same"]);
    assert_eq!((code, &report["sessions"]), (0, &json!(2)), "{report:#}");
    // One that decides otherwise, whatever it is asked with: it stands for a version with other rules.
    next(&agent, ALLOWS, DENIES);
    script(
        &agent,
        "stricter",
        &format!("#!/bin/sh\nexec {real} \"$@\" --shadow next.yaml\n"),
    );
    let (code, report) = upgrade(&agent, &["--shadow", "stricter"]);
    assert_eq!(code, 1, "{report:#}");
    assert_eq!(
        report["differences"][0]["would_be"]["rule"], "no-reading",
        "{report:#}"
    );
    // A program and a manifest together.
    let (code, report) = upgrade(&agent, &["--shadow", "same", "--shadow", "next.yaml"]);
    assert_eq!((code, report["differences"].as_array().unwrap().len()), (1, 1));
    // Programs that are no shadow: each is an error, and nothing is taken for an answer.
    for (name, text) in [
        ("silent", "#!/bin/sh\nexit 0\n"),
        ("fails", "#!/bin/sh\necho no such verb >&2\nexit 2\n"),
        ("garbage", "#!/bin/sh\necho '{\"differences\": []}'\n"),
    ] {
        script(&agent, name, text);
        let output = agent
            .clawk([
                "upgrade",
                "claw.yaml",
                "--shadow",
                name,
                "--apply",
                "--accept-differences",
            ])
            .output()
            .unwrap();
        let error = crate::agent::text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {error}");
        assert!(error.contains("can't be used as a shadow"), "{name}: {error}");
    }
}

/// A served agent, killed when dropped.
struct Serving(Child);

impl Serving {
    fn start(agent: &Agent, program: &Path) -> Self {
        let child = Command::new(program)
            .args(["serve", "claw.yaml", "--trust", "--listen", &free()])
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// The outcome of reading a file at the served agent.
fn reads(agent: &Agent, id: &str) -> Value {
    let mut client = Local::initialized(&agent.state());
    let params = json!({ "name": "file-read", "arguments": { "path": "in.txt" },
        "context": { "request_id": id, "identity": "tested" } });
    client.ask("claw.tool.call", &params)
}

#[test]
fn going_live_wants_no_difference_or_a_word_and_restarts_the_agent_that_runs() {
    let agent = Agent::new();
    said(&agent, "read it");
    let mut serving = Serving::start(&agent, program());
    let before = reads(&agent, "5f3c1c62-6f3e-4d55-9a53-7d9f0f6f1a11");
    assert_eq!(before["result"]["isError"], false, "{before}");
    next(&agent, ALLOWS, DENIES);
    let old = bytes(agent.path("claw.yaml"));
    let (code, report) = upgrade(&agent, &["--shadow", "next.yaml", "--apply"]);
    assert_eq!((code, &report["applied"]), (1, &Value::Null), "{report:#}");
    assert_eq!(bytes(agent.path("claw.yaml")), old, "nothing was changed");
    assert_eq!(
        reads(&agent, "5f3c1c62-6f3e-4d55-9a53-7d9f0f6f1a12")["result"]["isError"],
        false
    );
    let (code, report) = upgrade(
        &agent,
        &["--shadow", "next.yaml", "--apply", "--accept-differences"],
    );
    assert_eq!(
        (code, &report["restarted"]),
        (0, &json!("restarted")),
        "{report:#}"
    );
    assert_eq!(bytes(agent.path("claw.yaml")), bytes(agent.path("next.yaml")));
    assert_eq!(bytes(agent.path("claw.yaml.before")), old);
    assert!(
        serving.0.try_wait().unwrap().is_none(),
        "the same process goes on"
    );
    let after = reads(&agent, "5f3c1c62-6f3e-4d55-9a53-7d9f0f6f1a13");
    assert_eq!(after["error"]["code"], -32011, "{after}");
    // What was denied then is denied under the manifest that denied it: every chain is whole, and the record replays.
    drop(serving);
    agent.clawk(["trace", "verify"]).assert().success();
}

#[test]
fn a_new_program_takes_the_place_of_the_one_that_runs() {
    let agent = Agent::new();
    let ours = copy(&agent, "bin/clawk", b"");
    let fresh = copy(&agent, "fresh", b"\n");
    said(&agent, "read it");
    let serving = Serving::start(&agent, &ours);
    let _answer = reads(&agent, "5f3c1c62-6f3e-4d55-9a53-7d9f0f6f1a21");
    let output = Command::new(&ours)
        .args([
            "upgrade",
            "claw.yaml",
            "--shadow",
            "fresh",
            "--apply",
            "--format",
            "json",
        ])
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .output()
        .unwrap();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert_eq!(report["restarted"], "restarted", "{report:#}");
    assert!(output.status.success());
    let size = |path: &Path| std::fs::metadata(path).unwrap().len();
    assert_eq!(size(&ours), size(&fresh));
    let start = Instant::now();
    // The process that was started runs the new file now.
    let runs = PathBuf::from(format!("/proc/{}/exe", serving.0.id()));
    while std::fs::read_link(&runs).ok() != Some(ours.canonicalize().unwrap()) {
        assert!(start.elapsed() < LONG, "{:?}", std::fs::read_link(&runs));
        std::thread::sleep(Duration::from_millis(50));
    }
    let after = reads(&agent, "5f3c1c62-6f3e-4d55-9a53-7d9f0f6f1a22");
    assert_eq!(after["result"]["isError"], false, "{after}");
}

#[test]
fn an_agent_of_a_launcher_stays_and_the_verb_says_so() {
    let agent = Agent::new();
    said(&agent, "read it");
    let mut launcher = crate::serve::Server::start(&agent, &["claw.yaml", "--stdio"]);
    let named = json!({ "kind": "Claw", "metadata": { "name": "tested" } });
    assert!(launcher.initialize(&named).get("result").is_some());
    next(&agent, "id: reading", "id: may-read");
    let (code, report) = upgrade(&agent, &["--shadow", "next.yaml", "--apply"]);
    assert_eq!((code, &report["restarted"]), (1, &json!("stays")), "{report:#}");
    assert_eq!(
        launcher.ask("claw.status", &json!({}))["result"]["state"],
        "READY"
    );
}
