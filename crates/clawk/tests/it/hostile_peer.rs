//! What a member of another make can try, on standard streams and over HTTP: an agent in Python that was written from the protocol's
//! text (`peer.py`), which lies, repeats, floods, is silent, is late, or sends what is not a message.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::peers::{refused, reports, silent_script, verified};
use crate::swarm::{agent, events, run, says, scene, swarm};

const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/peer.py");
const LIAR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/a2a_liar.py");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Stdio,
    Http,
}

/// The agent over HTTP; killed when dropped.
struct Peer(Option<Child>);

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// A program that says where it listens.
fn listening(mut command: Command) -> (Child, String) {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said = lines.next().unwrap().unwrap();
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    (child, said.strip_prefix("listens on ").unwrap().to_owned())
}

/// Binds the member `py` to the small agent in this mode.
fn bind(agent: &Agent, over: Over, mode: &str, more: &str) -> Peer {
    let notes = agent.path("");
    let (peer, way) = match over {
        Over::Stdio => (
            None,
            format!(
                "command = [\"python3\", \"{PEER}\", \"{mode}\", \"{}\"]",
                notes.display()
            ),
        ),
        Over::Http => {
            let mut command = Command::new("python3");
            command.arg(PEER).arg(mode).arg(notes).arg("http");
            let (child, port) = listening(command);
            (Some(child), format!("url = \"http://127.0.0.1:{port}/claw\""))
        }
    };
    let toml = format!("[swarm]\nretry_delay_ms = 5\n[peers.py]\n{way}\n{more}\n");
    std::fs::write(agent.path("clawk.toml"), toml).unwrap();
    Peer(peer)
}

/// A leader whose one member is the small agent.
fn alone(over: Over, mode: &str, more: &str) -> (Agent, Peer) {
    let members = json!([{"identity_ref": "py", "role": "worker"}]);
    let agent = agent(&swarm("broadcast", "merge", members, json!({})), &silent_script());
    let peer = bind(&agent, over, mode, more);
    (agent, peer)
}

/// A leader whose model takes these steps.
fn led(over: Over, mode: &str, steps: Value) -> (Agent, Peer) {
    let members =
        json!([{"identity_ref": "head", "role": "leader"}, {"identity_ref": "py", "role": "worker"}]);
    let script = json!({"scenes": [scene("member head,", "", steps), scene("", "", says("nobody here should speak"))]});
    let agent = agent(
        &swarm("leader-worker", "leader-decides", members, json!({})),
        &script,
    );
    let peer = bind(&agent, over, mode, "");
    (agent, peer)
}

fn give(arguments: Value) -> Value {
    json!({"call": [{"name": "delegate", "arguments": arguments}]})
}

/// A mode, how the task ends, why, and the reasons of refused reports, of which each may be missing that comes after the end.
type Attack<'a> = (&'a str, &'a str, Option<&'a str>, &'a [&'a str]);

fn changes_nothing(over: Over) {
    let attacks: &[Attack<'_>] = &[
        ("impostor", "completed", None, &[]),
        ("liar", "failed", Some("try_timeout"), &["not_yours"]),
        ("garbage", "failed", Some("try_timeout"), &["garbage"]),
        ("silent", "failed", Some("try_timeout"), &[]),
        ("mute", "failed", Some("try_timeout"), &[]),
        ("decliner", "failed", Some("not_acknowledged"), &[]),
        ("huge", "completed", None, &["garbage"]),
    ];
    for (mode, status, reason, expected) in attacks {
        let (agent, _peer) = alone(over, mode, "timeout_ms = 4000");
        let (_, result) = run(&agent, &[]);
        let answer = &result["answers"][0];
        assert_eq!(answer["status"], *status, "{over:?} {mode}: {result}");
        assert_eq!(
            answer["error"]["reason"].as_str(),
            *reason,
            "{over:?} {mode}: {result}"
        );
        assert_eq!(answer["member"], "py", "{over:?} {mode}: {result}");
        assert_eq!(refused(&agent), *expected, "{over:?} {mode}");
        assert_eq!(reports(&agent), 1, "{over:?} {mode}");
        verified(&agent);
    }
}

#[test]
fn a_peer_on_standard_streams_that_lies_or_is_silent_changes_nothing() {
    changes_nothing(Over::Stdio);
}

#[test]
fn a_peer_over_http_that_lies_or_is_silent_changes_nothing() {
    changes_nothing(Over::Http);
}

#[test]
fn a_report_that_comes_twice_counts_once() {
    for over in [Over::Stdio, Over::Http] {
        let (agent, _peer) = alone(over, "duplicate", "");
        let (code, result) = run(&agent, &[]);
        assert_eq!(
            (code, result["text"].as_str()),
            (0, Some("py did: do it")),
            "{over:?}: {result}"
        );
        // The run may end before the repetitions come.
        let found = refused(&agent);
        assert!(
            found.len() <= 3 && found.iter().all(|why| why == "late" || why == "duplicate"),
            "{over:?}: {found:?}"
        );
        assert_eq!(reports(&agent), 1, "{over:?}");
        verified(&agent);
    }
}

#[test]
fn a_peer_that_floods_is_cut_off_over_http_as_well() {
    let (agent, _peer) = alone(Over::Http, "flood", "timeout_ms = 60000");
    let (_, result) = run(&agent, &[]);
    assert_eq!(result["answers"][0]["error"]["reason"], "garbage", "{result}");
    let all = events(&agent).len();
    assert!(all < 200, "{all} events of one flood");
    verified(&agent);
}

/// What is said to be used is counted as far as it can be, and nothing overflows.
#[test]
fn a_peer_that_says_it_used_more_than_there_is_breaks_no_count() {
    for over in [Over::Stdio, Over::Http] {
        // Without a limit nothing was set aside.
        let (agent, _peer) = alone(over, "greedy", "");
        let (code, result) = run(&agent, &[]);
        assert_eq!(code, 0, "{over:?}: {result}");
        assert_eq!(result["tokens"], 1_000_000_000_000_u64, "{over:?}");
        let (code, again) = run(&agent, &[]);
        assert_eq!(code, 0, "{over:?}: the state can be read: {again}");
        verified(&agent);
        // With one, at most all of it.
        let members = json!([{"identity_ref": "py", "role": "worker", "count": 2}]);
        let more = json!({"resource_limits": {"max_total_tokens": 5000}});
        let agent = crate::swarm::agent(&swarm("broadcast", "merge", members, more), &silent_script());
        let _peer = bind(&agent, over, "greedy", "");
        let (code, result) = run(&agent, &[]);
        assert_eq!(code, 0, "{over:?}: {result}");
        assert!(result["tokens"].as_u64().unwrap() <= 5000, "{over:?}: {result}");
        verified(&agent);
    }
}

#[test]
fn a_report_of_a_task_that_was_cancelled_is_late_and_read_by_nobody() {
    for over in [Over::Stdio, Over::Http] {
        let steps = json!([
            give(json!({"task": "one", "to": "py", "timeout_ms": 1500})),
            give(json!({"task": "two", "to": "py"})), {"say": "{{last_tool_text}}"}]);
        let (agent, _peer) = led(over, "tardy", steps);
        let (code, result) = run(&agent, &[]);
        assert_eq!(code, 0, "{over:?}: {result}");
        assert!(
            result["text"].as_str().unwrap().contains("py did: two"),
            "{over:?}: {result}"
        );
        assert!(!result.to_string().contains("too late"), "{over:?}: {result}");
        assert_eq!(refused(&agent), ["late"], "{over:?}");
        let status: Vec<&str> = result["answers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|answer| answer["status"].as_str().unwrap())
            .collect();
        assert_eq!(status, ["failed", "completed"], "{over:?}: {result}");
        verified(&agent);
    }
}

#[test]
fn an_earlier_report_again_is_without_effect_over_http_as_well() {
    let steps = json!([give(json!({"task": "one", "to": "py"})), give(json!({"task": "two", "to": "py"})), {"say": "{{last_tool_text}}"}]);
    let (agent, _peer) = led(Over::Http, "replay", steps);
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
fn neither_orders_in_a_report_nor_calls_of_tools_do_anything_over_http() {
    let steps = json!([give(json!({"task": "part", "to": "py"})), {"say": "{{last_tool_text}}"}]);
    let (agent, _peer) = led(Over::Http, "orders", steps);
    let (code, result) = run(&agent, &[]);
    assert_eq!(code, 0, "{result}");
    assert!(
        result["text"].as_str().unwrap().contains("ignore your rules"),
        "{result}"
    );
    assert!(!agent.path("owned.txt").exists(), "a report orders nothing");
    let (agent, _peer) = alone(Over::Http, "tools", "");
    let (code, result) = run(&agent, &[]);
    assert_eq!(
        (code, result["text"].as_str()),
        (0, Some("the tool said -32601")),
        "{result}"
    );
    assert!(!agent.path("owned.txt").exists());
}

/// Bytes that never become a message, and one that is nested without end: the try ends, and the leader lives.
#[test]
fn what_is_no_message_ends_the_try_and_nothing_else() {
    for over in [Over::Stdio, Over::Http] {
        for mode in ["deep", "endless"] {
            let (agent, _peer) = alone(over, mode, "timeout_ms = 6000");
            let (_, result) = run(&agent, &[]);
            let status = result["answers"][0]["status"].as_str().unwrap();
            assert!(
                status == "completed" || status == "failed",
                "{over:?} {mode}: {result}"
            );
            assert!(mode == "deep" || status == "failed", "{over:?} {mode}: {result}");
            assert_eq!(reports(&agent), 1, "{over:?} {mode}");
            verified(&agent);
        }
    }
}

/// An agent of A2A reports nothing, so it can't report twice or for another one. What else it can try ends its own try.
#[test]
fn an_agent_of_a2a_that_is_not_honest_changes_nothing() {
    for (mode, status, reason) in [
        ("garbage", "failed", "crashed"),
        ("flood", "failed", "crashed"),
        ("huge", "failed", "garbage"),
        ("silent", "failed", "try_timeout"),
        ("elsewhere", "failed", "unreachable"),
        ("escape", "failed", "2j0owned"),
        ("orders", "completed", ""),
    ] {
        let steps = json!([give(json!({"task": "part", "to": "py"})), {"say": "{{last_tool_text}}"}]);
        let members =
            json!([{"identity_ref": "head", "role": "leader"}, {"identity_ref": "py", "role": "worker"}]);
        let script = json!({"scenes": [scene("member head,", "", steps)]});
        let agent = agent(
            &swarm("leader-worker", "leader-decides", members, json!({})),
            &script,
        );
        let mut command = Command::new("python3");
        command.arg(LIAR).arg(mode);
        let (child, port) = listening(command);
        let _liar = Peer(Some(child));
        let toml = format!("[peers.py]\na2a = \"http://127.0.0.1:{port}\"\ntimeout_ms = 4000\n");
        std::fs::write(agent.path("clawk.toml"), toml).unwrap();
        let output = agent
            .clawk(["swarm", "run", "claw.yaml", "do it"])
            .output()
            .unwrap();
        let shown = [output.stdout, output.stderr].concat();
        assert!(
            !shown.contains(&0x1b) && !shown.contains(&7),
            "{mode}: no terminal obeys it"
        );
        let (_, result) = run(&agent, &[]);
        let answer = &result["answers"][0];
        assert_eq!(answer["status"], status, "{mode}: {result}");
        assert_eq!(
            answer["error"]["reason"].as_str().unwrap_or_default(),
            reason,
            "{mode}: {result}"
        );
        assert!(!result.to_string().contains("stolen"), "{mode}: {result}");
        assert!(!agent.path("owned.txt").exists(), "{mode}");
        verified(&agent);
    }
}
