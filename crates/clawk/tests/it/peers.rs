//! Members that work elsewhere: a small agent in another language on standard streams, honest and not, and clawk itself over
//! HTTP, by a manifest of its own, and behind a file as bus.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use clawk_kernel::kind;
use serde_json::{Value, json};

use crate::agent::{Agent, program, text};
use crate::swarm::{agent, events, run, says, scene, swarm};

pub(crate) const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/peer.py");

/// The `clawk.toml` of a leader with members of the small agent, each with its mode.
fn bound(agent: &Agent, peers: &[(&str, &str)], more: &str) {
    let mut toml = "[swarm]\nretry_delay_ms = 5\n".to_owned();
    for (name, mode) in peers {
        let notes = agent.path("");
        let notes = notes.display();
        toml += &format!(
            "[peers.{name}]\ncommand = [\"python3\", \"{PEER}\", \"{mode}\", \"{notes}\"]\n{more}\n"
        );
    }
    std::fs::write(agent.path("clawk.toml"), toml).unwrap();
}

fn broadcast(members: &[&str], more: Value) -> Value {
    let agents: Vec<Value> = members
        .iter()
        .map(|name| json!({"identity_ref": name, "role": "worker"}))
        .collect();
    swarm("broadcast", "merge", json!(agents), more)
}

pub(crate) fn silent_script() -> Value {
    json!({"scenes": [scene("", "", says("nobody here should speak"))]})
}

/// The reasons of refused reports.
pub(crate) fn refused(agent: &Agent) -> Vec<String> {
    let refused = events(agent)
        .into_iter()
        .filter(|event| event.kind == kind::SWARM_REFUSED);
    refused
        .map(|event| {
            let payload: Value = serde_json::from_str(&event.payload).unwrap();
            payload["reason"].as_str().unwrap().to_owned()
        })
        .collect()
}

pub(crate) fn reports(agent: &Agent) -> usize {
    let reported = |event: &&clawk_kernel::ports::RecordedEvent| {
        event.kind == kind::SWARM_REPORTED && event.payload.contains("\"orphan\":false")
    };
    events(agent).iter().filter(reported).count()
}

fn notes(agent: &Agent, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(agent.path(name)).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(crate) fn verified(agent: &Agent) {
    let output = agent
        .clawk(["trace", "verify", "--format", "json"])
        .arg("--state")
        .arg(agent.state())
        .output()
        .unwrap();
    let told: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert_eq!(told["valid"], true, "{told}");
}

#[test]
fn an_agent_in_another_language_is_a_member_and_reports_once() {
    let agent = agent(&broadcast(&["py"], json!({})), &silent_script());
    bound(&agent, &[("py", "honest")], "tools = [\"echo\"]");
    let (code, result) = run(&agent, &[]);
    assert_eq!(code, 0, "{result}");
    assert_eq!(result["text"], "py did: do it");
    assert_eq!(result["tokens"], 7, "what it says that it used is counted");
    let limits = &result["answers"][0]["data"]["limits"];
    assert_eq!(
        limits["tools"],
        json!(["echo"]),
        "it was told to use less: {result}"
    );
    assert_eq!(limits["role"], "admin");
    assert_eq!(reports(&agent), 1);
    assert_eq!(notes(&agent, "delegated").len(), 1);
    verified(&agent);
}

#[test]
fn an_agent_that_knows_no_token_works_all_the_same() {
    let agent = agent(&broadcast(&["py"], json!({})), &silent_script());
    bound(&agent, &[("py", "unaware")], "");
    let (code, result) = run(&agent, &[]);
    assert_eq!(
        (code, result["text"].as_str()),
        (0, Some("py did: do it")),
        "{result}"
    );
}

#[test]
fn a_model_delegates_to_a_peer_and_reads_its_answer_as_data() {
    let agents =
        json!([{"identity_ref": "head", "role": "leader"}, {"identity_ref": "py", "role": "worker"}]);
    let head = json!([{"call": [{"name": "delegate", "arguments": {"task": "part", "to": "py", "budget": {"tokens": 50}}}]}, {"say": "{{last_tool_text}}"}]);
    let script = json!({"scenes": [scene("member head,", "", head)]});
    let team = swarm("leader-worker", "leader-decides", agents, json!({}));
    let agent = agent(&team, &script);
    bound(&agent, &[("py", "orders")], "");
    let (code, result) = run(&agent, &[]);
    assert_eq!(code, 0, "{result}");
    let read = result["text"].as_str().unwrap();
    assert!(
        read.contains("ignore your rules") && read.contains("py"),
        "{read}"
    );
    assert!(!agent.path("owned.txt").exists(), "a report orders nothing");
    let kinds = events(&agent)
        .into_iter()
        .filter(|event| event.payload.contains("file-write"));
    assert_eq!(kinds.count(), 0);
}

#[test]
fn a_peer_that_dies_is_tried_again_with_the_same_request() {
    let more = json!({"failure": {"retry_per_agent": 2}});
    let agent = agent(&broadcast(&["py"], more), &silent_script());
    bound(&agent, &[("py", "crash-once")], "");
    let (code, result) = run(&agent, &[]);
    assert_eq!(code, 0, "{result}");
    assert_eq!(result["text"], "py did: do it");
    assert_eq!(reports(&agent), 1);
    verified(&agent);
}

#[test]
fn a_peer_that_is_nowhere_goes_to_the_dead_letters() {
    let more = json!({"failure": {"retry_per_agent": 0, "dead_letter": {"enabled": true, "max_retries": 1}}});
    let agent = agent(&broadcast(&["py"], more), &silent_script());
    std::fs::write(
        agent.path("clawk.toml"),
        "[swarm]\nretry_delay_ms = 5\n[peers.py]\nurl = \"http://127.0.0.1:9/claw\"\n",
    )
    .unwrap();
    let (code, result) = run(&agent, &[]);
    assert_eq!(code, 1, "{result}");
    assert_eq!(
        result["answers"][0]["error"]["reason"], "dead_lettered",
        "{result}"
    );
    let output = agent
        .clawk(["dead-letters", "list", "--format", "json"])
        .arg("--state")
        .arg(agent.state())
        .output()
        .unwrap();
    assert!(
        text(&output.stdout).contains("\"task\""),
        "{}",
        text(&output.stdout)
    );
}

/// A mode of the small agent, how its task ends, and what of its reports is refused.
type Attack<'a> = (&'a str, &'a str, Option<&'a str>, &'a [&'a str]);

#[test]
fn a_peer_that_lies_repeats_floods_or_is_silent_changes_nothing() {
    let attacks: &[Attack<'_>] = &[
        ("duplicate", "completed", None, &["late", "late", "late"]),
        ("garbage", "failed", Some("try_timeout"), &["garbage"]),
        ("silent", "failed", Some("try_timeout"), &[]),
        ("liar", "failed", Some("try_timeout"), &["not_yours"]),
    ];
    for (mode, status, reason, expected) in attacks {
        let agent = agent(&broadcast(&["py"], json!({})), &silent_script());
        bound(&agent, &[("py", mode)], "timeout_ms = 2500");
        let (_, result) = run(&agent, &[]);
        assert_eq!(result["answers"][0]["status"], *status, "{mode}: {result}");
        assert_eq!(
            result["answers"][0]["error"]["reason"].as_str(),
            *reason,
            "{mode}: {result}"
        );
        let found = refused(&agent);
        let same = |reason: &String| expected.contains(&reason.as_str()) || reason == "duplicate";
        // A run that ends at once may end before the repetitions come.
        assert!(
            found.iter().all(same) && found.len() <= expected.len(),
            "{mode}: {found:?}"
        );
        assert!(*mode == "duplicate" || found == *expected, "{mode}: {found:?}");
        assert_eq!(reports(&agent), 1, "{mode}");
        verified(&agent);
    }
}

#[test]
fn a_peer_reports_no_task_but_its_own() {
    let agent = agent(&broadcast(&["victim", "thief"], json!({})), &silent_script());
    bound(&agent, &[("victim", "victim"), ("thief", "thief")], "");
    let (code, result) = run(&agent, &[]);
    assert_eq!(code, 0, "{result}");
    assert!(!result["text"].as_str().unwrap().contains("stolen"), "{result}");
    assert_eq!(refused(&agent), ["not_yours"]);
    let stolen = notes(&agent, "answers")
        .into_iter()
        .find(|answer| answer["id"] == "stolen");
    assert_eq!(stolen.unwrap()["answer"]["acknowledged"], false);
    verified(&agent);
}

#[test]
fn a_report_of_an_earlier_task_is_late_and_without_effect() {
    let agents =
        json!([{"identity_ref": "head", "role": "leader"}, {"identity_ref": "py", "role": "worker"}]);
    let twice = json!([
        {"call": [{"name": "delegate", "arguments": {"task": "one", "to": "py"}}]},
        {"call": [{"name": "delegate", "arguments": {"task": "two", "to": "py"}}]}, {"say": "{{last_tool_text}}"}]);
    let script = json!({"scenes": [scene("member head,", "", twice)]});
    let agent = agent(
        &swarm("leader-worker", "leader-decides", agents, json!({})),
        &script,
    );
    bound(&agent, &[("py", "replay")], "");
    let (code, result) = run(&agent, &[]);
    assert_eq!(code, 0, "{result}");
    assert!(
        result["text"].as_str().unwrap().contains("py did: two"),
        "{result}"
    );
    let refused = refused(&agent);
    assert!(refused == ["duplicate"] || refused == ["late"], "{refused:?}");
}

#[test]
fn a_peer_that_floods_is_cut_off() {
    let agent = agent(&broadcast(&["py"], json!({})), &silent_script());
    bound(&agent, &[("py", "flood")], "timeout_ms = 20000");
    let (_, result) = run(&agent, &[]);
    assert_eq!(result["answers"][0]["error"]["reason"], "garbage", "{result}");
    let all = events(&agent).len();
    assert!(all < 200, "{all} events of one flood");
    verified(&agent);
}

#[test]
fn a_peer_cannot_use_the_leaders_tools() {
    let agent = agent(&broadcast(&["py"], json!({})), &silent_script());
    bound(&agent, &[("py", "tools")], "");
    let (code, result) = run(&agent, &[]);
    assert_eq!(code, 0, "{result}");
    assert_eq!(result["text"], "the tool said -32601");
    assert!(!agent.path("owned.txt").exists());
}

/// A host: clawk that serves until it is dropped.
pub(crate) struct Host {
    child: Option<Child>,
    pub(crate) said: String,
}

impl Host {
    /// Starts it and waits until it says `ready`.
    pub(crate) fn start(command: &mut Command, ready: &str) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut before = String::new();
        let said = loop {
            let Some(Ok(line)) = lines.next() else {
                panic!("the host ended: {before}");
            };
            if line.contains(ready) {
                break line;
            }
            before += &line;
        };
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self {
            child: Some(child),
            said,
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `clawk serve` in an agent's folder.
pub(crate) fn serving(agent: &Agent, more: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .args(["serve", "claw.yaml"])
        .args(more)
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment());
    command
}

fn hand_says(text: &str) -> Value {
    json!({"scenes": [scene("member hand", "", says(text))]})
}

#[test]
fn a_clawk_elsewhere_works_under_the_rights_of_the_task_and_its_trace_joins() {
    let team = broadcast(&["hand"], json!({}));
    let worker = agent(&team, &hand_says("from afar"));
    let host = Host::start(&mut serving(&worker, &["--listen", "127.0.0.1:0"]), "http://");
    let url = host.said.rsplit_once("http://").unwrap().1.to_owned();
    let leader = agent(&team, &silent_script());
    std::fs::write(
        leader.path("clawk.toml"),
        format!("[peers.hand]\nurl = \"http://{url}\"\n"),
    )
    .unwrap();
    let (code, result) = run(&leader, &["--task", "00000000-0000-4000-8000-000000000009"]);
    assert_eq!(
        (code, result["text"].as_str()),
        (0, Some("from afar")),
        "{result}"
    );
    assert_eq!(result["tokens"], 110);
    let tree = leader
        .clawk([
            "trace",
            "show",
            "--task",
            "00000000-0000-4000-8000-000000000009",
            "--format",
            "json",
        ])
        .arg("--state")
        .arg(leader.state())
        .arg("--with")
        .arg(worker.state())
        .output()
        .unwrap();
    let tree: Value =
        serde_json::from_slice(&tree.stdout).unwrap_or_else(|_| panic!("{}", text(&tree.stderr)));
    let task = &tree["root"]["children"][0];
    assert_eq!(
        (&task["member"], &task["host"]),
        (&json!("hand"), &json!("local")),
        "{tree}"
    );
    let sent = &task["children"][0];
    assert_eq!(sent["host"], "tested", "what its host did stands below: {tree}");
    assert_eq!(sent["children"][0]["member"], "hand");
    assert_eq!(sent["children"][0]["status"], "completed");
    // The same by an export.
    let export = worker
        .clawk(["trace", "export", "-o", "hand.trace.jsonl"])
        .arg("--state")
        .arg(worker.state())
        .output()
        .unwrap();
    assert!(export.status.success(), "{}", text(&export.stderr));
    let tree = leader
        .clawk([
            "trace",
            "show",
            "--task",
            "00000000-0000-4000-8000-000000000009",
            "--format",
            "json",
        ])
        .arg("--state")
        .arg(leader.state())
        .arg("--with")
        .arg(worker.path("hand.trace.jsonl"))
        .output()
        .unwrap();
    let tree: Value = serde_json::from_slice(&tree.stdout).unwrap();
    assert_eq!(
        tree["root"]["children"][0]["children"][0]["host"], "hand",
        "{tree}"
    );
    verified(&leader);
    drop(host);
    verified(&worker);
}

#[test]
fn a_manifest_of_its_own_is_a_member_with_or_without_the_swarm() {
    let team = broadcast(&["hand"], json!({}));
    let leader = agent(&team, &silent_script());
    let folder: PathBuf = leader.path("other");
    std::fs::create_dir(&folder).unwrap();
    let manifest = std::fs::read_to_string(leader.path("claw.yaml")).unwrap();
    let mut other: Value = serde_json::from_str(&manifest).unwrap();
    for with_swarm in [true, false] {
        if !with_swarm {
            other["spec"].as_object_mut().unwrap().remove("swarm");
        }
        std::fs::write(folder.join("claw.yaml"), other.to_string()).unwrap();
        let script = json!({"scenes": [scene("", "do it", says("in a process of its own"))]});
        std::fs::write(folder.join("script.yaml"), script.to_string()).unwrap();
        std::fs::write(
            leader.path("clawk.toml"),
            "[peers.hand]\nmanifest = \"other/claw.yaml\"\n",
        )
        .unwrap();
        let (code, result) = run(&leader, &[]);
        assert_eq!(
            (code, result["text"].as_str()),
            (0, Some("in a process of its own")),
            "{with_swarm}: {result}"
        );
    }
    assert!(leader.state().join("peers/hand/state.db").exists());
}

fn on_a_bus(backend: &str, more: Value) -> Value {
    let mut more = more;
    more["coordination"] = json!({"message_passing": "queue", "backend": backend, "concurrency": {}});
    swarm(
        "broadcast",
        "merge",
        json!([{"identity_ref": "hand", "role": "worker", "count": 3}]),
        more,
    )
}

#[test]
fn a_file_carries_tasks_between_processes_of_one_host() {
    let team = on_a_bus("sqlite-wal", json!({}));
    let worker = agent(&team, &hand_says("by the file"));
    let leader = agent(&team, &silent_script());
    let bus = leader.path("bus.db");
    let toml = |serve: &str| format!("[swarm]\nurl = \"{}\"\n{serve}", bus.display());
    std::fs::write(leader.path("clawk.toml"), toml("serve = []\n")).unwrap();
    std::fs::write(worker.path("clawk.toml"), toml("")).unwrap();
    let host = Host::start(&mut serving(&worker, &[]), "working for the swarm");
    let (code, result) = run(&leader, &[]);
    assert_eq!(code, 0, "{result}");
    assert_eq!(result["answers"].as_array().unwrap().len(), 3);
    assert!(
        result["text"].as_str().unwrap().matches("by the file").count() == 3,
        "{result}"
    );
    assert_eq!(reports(&leader), 3);
    drop(host);
    assert_eq!(reports(&worker), 3, "each on the worker, once");
    verified(&leader);
    verified(&worker);
}

#[test]
fn a_host_that_serves_all_works_alone() {
    let agent = agent(&on_a_bus("sqlite-wal", json!({})), &hand_says("alone"));
    let (code, result) = run(&agent, &[]);
    assert_eq!(code, 0, "{result}");
    assert_eq!(reports(&agent), 6, "as who gives and as who takes");
    assert!(Path::new(&agent.state().join("swarm.db")).exists());
}

#[test]
fn a_binding_that_is_none_is_refused() {
    let agent = agent(&broadcast(&["py"], json!({})), &silent_script());
    for (toml, said) in [
        (
            "[peers.py]\nurl = \"http://127.0.0.1:9\"\ncommand = [\"x\"]\n",
            "exactly one of",
        ),
        ("[peers.py]\ntimeout_ms = 5\n", "exactly one of"),
        ("[peers.py]\nurl = \"ftp://x\"\n", "not a target"),
        (
            "[peers.py]\nkey = \"ed25519:00\"\nurl = \"http://127.0.0.1:9\"\n",
            "is not a key",
        ),
    ] {
        std::fs::write(agent.path("clawk.toml"), toml).unwrap();
        let output = agent
            .clawk(["swarm", "run", "claw.yaml", "do it"])
            .output()
            .unwrap();
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    }
}

/// A host's key and its fingerprint.
pub(crate) fn key_of(agent: &Agent) -> (String, String) {
    let output = agent
        .clawk(["swarm", "key", "claw.yaml", "--format", "json", "--state"])
        .arg(agent.state())
        .output()
        .unwrap();
    let told: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    let word = |name: &str| told[name].as_str().unwrap().to_owned();
    (word("key"), word("fingerprint"))
}

#[test]
fn only_a_report_that_the_bound_key_signed_counts() {
    let team = broadcast(&["hand"], json!({}));
    let (worker, leader) = (agent(&team, &hand_says("signed")), agent(&team, &silent_script()));
    let ((right, shown), (wrong, expected)) = (key_of(&worker), key_of(&leader));
    let host = Host::start(&mut serving(&worker, &["--listen", "127.0.0.1:0"]), "http://");
    let url = host.said.rsplit_once("http://").unwrap().1.to_owned();
    let bind = |key: &str| {
        let toml = format!("[peers.hand]\nurl = \"http://{url}\"\nkey = \"{key}\"\n");
        std::fs::write(leader.path("clawk.toml"), toml).unwrap();
    };
    bind(&right);
    let (code, result) = run(&leader, &[]);
    assert_eq!((code, result["text"].as_str()), (0, Some("signed")), "{result}");
    bind(&wrong);
    let (code, result) = run(&leader, &[]);
    assert_eq!(code, 1, "{result}");
    let error = &result["answers"][0]["error"];
    assert_eq!(error["reason"], "unproven", "{result}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains(&shown) && message.contains(&expected),
        "{message}"
    );
    assert_eq!(refused(&leader), ["unproven"]);
    verified(&leader);
}

/// A Redis server on a port of its own; killed when dropped.
#[cfg(feature = "redis")]
struct Redis {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

#[cfg(feature = "redis")]
impl Redis {
    fn start() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
            "--dir",
        ]);
        let child = command
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.expect("redis-server starts; tests/parts/install.sh says how to install it");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(std::time::Instant::now() < until, "the broker does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Self {
            child,
            port,
            _folder: folder,
        }
    }
}

#[cfg(feature = "redis")]
impl Drop for Redis {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[cfg(feature = "redis")]
#[test]
fn redis_carries_tasks_between_hosts() {
    let redis = Redis::start();
    let team = on_a_bus("redis", json!({}));
    let worker = agent(&team, &hand_says("by redis"));
    let leader = agent(&team, &silent_script());
    let toml = |serve: &str| format!("[swarm]\nurl = \"redis://127.0.0.1:{}\"\n{serve}", redis.port);
    std::fs::write(leader.path("clawk.toml"), toml("serve = []\n")).unwrap();
    std::fs::write(worker.path("clawk.toml"), toml("")).unwrap();
    let host = Host::start(&mut serving(&worker, &[]), "working for the swarm");
    for _ in 0..3 {
        let (code, result) = run(&leader, &[]);
        assert_eq!(code, 0, "{result}");
        assert!(
            result["text"].as_str().unwrap().matches("by redis").count() == 3,
            "{result}"
        );
    }
    assert_eq!(reports(&leader), 9);
    drop(host);
    assert_eq!(reports(&worker), 9);
    verified(&leader);
    verified(&worker);
}
