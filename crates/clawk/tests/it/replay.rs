//! Recorded sessions again: replayed by the kernel, decided by other rules, gone on from a step.

use serde_json::Value;

use crate::agent::{Agent, text};
use crate::trace::{configured, json};

const RULES: &str = r#"
claw: "0.3.0"
kind: Policy
metadata: { name: tight }
spec:
  rules:
    - { id: no-reading, action: deny, scope: tool, match: { name: file-read } }
    - { id: rest, action: allow, scope: all }
"#;

/// Runs in the terminal-less way: a question is answered with no.
fn said(agent: &Agent, message: &str) -> String {
    let done = agent.clawk(["run", "claw.yaml", "-m", message]).output().unwrap();
    text(&done.stdout)
}

fn last(agent: &Agent) -> String {
    let (_, sessions) = json(agent, &["trace", "show", "--session", "last", "--format", "json"]);
    sessions[0]["session_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_session_comes_out_the_same_a_hundred_times_without_network_and_files() {
    let agent = Agent::new();
    for message in ["read it", "write it", "hello", "twice", "broken"] {
        said(&agent, message);
    }
    // The world is gone: no script for the model, no file to read, no network.
    for file in ["script.yaml", "in.txt", "claw.yaml"] {
        std::fs::remove_file(agent.path(file)).unwrap();
    }
    let output = std::process::Command::new("unshare")
        .args(["-r", "-n", "--"])
        .arg(crate::agent::program())
        .args(["trace", "replay", "--times", "100", "--format", "json"])
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .output()
        .unwrap();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert!(output.status.success(), "{report:#}");
    assert_eq!(
        (&report["deterministic"], &report["times"]),
        (&Value::Bool(true), &100.into())
    );
    let sessions = report["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 5);
    assert!(
        sessions
            .iter()
            .all(|one| one["compared"].as_u64().unwrap() >= 3 && one["inputs"] == 1),
        "{report:#}"
    );
}

#[test]
fn a_divergence_is_an_error_that_names_the_event() {
    let agent = Agent::new();
    said(&agent, "read it");
    let (code, report) = json(
        &agent,
        &["trace", "replay", "--session", "last", "--format", "json"],
    );
    assert_eq!(code, 0, "{report:#}");
    // An answer of the model is exchanged for another one, with its digest, and the chain written anew: whoever can do that makes a
    // valid record of something that the kernel would not have done.
    let state = agent.state();
    let script = r#"
import sqlite3, sys, json, hashlib
c = sqlite3.connect(sys.argv[1])
row, kind, payload, content = c.execute("SELECT row, kind, payload, content FROM events WHERE kind='ckp.provider.completed' ORDER BY row LIMIT 1").fetchone()
said = json.loads(content)
said["calls"][0]["arguments"] = {"Ok": {"path": "other.txt"}}
content = json.dumps(said, separators=(",", ":")).encode()
payload = json.loads(payload)
payload["completion_hash"] = hashlib.sha256(content).hexdigest()
payload = json.dumps(payload, sort_keys=True, separators=(",", ":"))
c.execute("UPDATE events SET payload=?, content=?, content_digest=? WHERE row=?", (payload, content, hashlib.sha256(content).digest(), row))
import uuid, datetime
u = lambda b: str(uuid.UUID(bytes=b))
for (sid, session, trace) in c.execute("SELECT id, session, trace_id FROM sessions").fetchall():
    previous = "0" * 64
    for r in c.execute("SELECT row, sequence, at, kind, event_id, span, parent, payload FROM events WHERE session=? ORDER BY sequence", (sid,)).fetchall():
        at = (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=r[2])).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        text = "1.0" + u(r[4]) + u(trace) + u(r[5]) + (u(r[6]) if r[6] else "") + u(session) + str(r[1]) + at + r[3] + r[7] + previous
        digest = hashlib.sha256(text.encode()).digest()
        previous = digest.hex()
        c.execute("UPDATE events SET hash=? WHERE row=?", (digest, r[0]))
    c.execute("UPDATE sessions SET head=?, verified_hash=? WHERE id=?", (digest, digest, sid))
c.execute("DELETE FROM heads")
c.commit()
"#;
    let forged = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(state.join("state.db"))
        .status()
        .unwrap();
    assert!(forged.success());
    let (code, report) = json(
        &agent,
        &["trace", "verify", "--session", "last", "--format", "json"],
    );
    assert_eq!(code, 0, "the chain holds: {report:#}");
    let (code, report) = json(
        &agent,
        &["trace", "replay", "--session", "last", "--format", "json"],
    );
    assert_eq!(code, 1, "{report:#}");
    let divergence = &report["sessions"][0]["divergence"];
    assert_eq!(divergence["event_type"], "action.requested", "{report:#}");
    assert!(
        divergence["detail"].as_str().unwrap().contains("parameters_hash"),
        "{report:#}"
    );
    let (_, shown) = json(
        &agent,
        &["trace", "show", "--session", "last", "--format", "json"],
    );
    let sequence = usize::try_from(divergence["sequence"].as_u64().unwrap()).unwrap();
    assert_eq!(shown[sequence]["event_type"], "action.requested");
}

#[test]
fn erased_content_and_broken_chains_are_not_replayed() {
    let agent = Agent::new();
    said(&agent, "read it");
    agent
        .clawk(["trace", "export", "--session", "last", "-o", "run.trace.jsonl"])
        .assert()
        .success();
    let of_file = agent
        .clawk(["trace", "replay", "run.trace.jsonl"])
        .assert()
        .failure();
    assert!(text(&of_file.get_output().stderr).contains("holds no contents"));
    let state = agent.state();
    agent
        .clawk([
            "trace",
            "replay",
            "run.trace.jsonl",
            "--state",
            state.to_str().unwrap(),
        ])
        .assert()
        .success();
    let exported = std::fs::read_to_string(agent.path("run.trace.jsonl")).unwrap();
    std::fs::write(
        agent.path("bad.trace.jsonl"),
        exported.replacen("file-read", "file-raed", 1),
    )
    .unwrap();
    let broken = agent
        .clawk([
            "trace",
            "replay",
            "bad.trace.jsonl",
            "--state",
            state.to_str().unwrap(),
        ])
        .assert()
        .failure();
    assert!(text(&broken.get_output().stderr).contains("does not hold"));
    agent
        .clawk(["trace", "redact", "--session", "last", "--reason", "gone"])
        .assert()
        .success();
    let erased = agent
        .clawk(["trace", "replay", "--session", "last"])
        .assert()
        .failure();
    assert!(text(&erased.get_output().stderr).contains("erased"));
}

#[test]
fn a_tightened_policy_names_exactly_the_calls_that_it_would_have_blocked() {
    let agent = Agent::new();
    let mut blocked = Vec::new();
    for message in ["read it", "hello", "read it again"] {
        said(&agent, message);
        if message.starts_with("read") {
            blocked.push(last(&agent));
        }
    }
    std::fs::write(agent.path("tight.yaml"), RULES).unwrap();
    let (code, report) = json(
        &agent,
        &[
            "trace",
            "replay",
            "--with-policy",
            "tight.yaml",
            "--format",
            "json",
        ],
    );
    assert_eq!(code, 0);
    assert_eq!(
        (&report["would_block"], &report["would_newly_allow"]),
        (&2.into(), &0.into()),
        "{report:#}"
    );
    let named: Vec<_> = report["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| {
            (
                d["session"].as_str().unwrap().to_owned(),
                d["tool"].as_str().unwrap(),
                d["rule"].as_str().unwrap(),
            )
        })
        .collect();
    let wanted: Vec<_> = blocked
        .into_iter()
        .map(|id| (id, "file-read", "no-reading"))
        .collect();
    assert_eq!(named, wanted);
    // A manifest alone brings its own rules and autonomy.
    let observer = std::fs::read_to_string(agent.path("claw.yaml"))
        .unwrap()
        .replace("autonomy: autonomous", "autonomy: observer");
    std::fs::write(agent.path("observer.yaml"), observer).unwrap();
    let (_, report) = json(
        &agent,
        &[
            "trace",
            "replay",
            "--with-manifest",
            "observer.yaml",
            "--format",
            "json",
        ],
    );
    assert_eq!(report["would_block"], 2, "{report:#}");
}

#[test]
fn a_fork_goes_on_from_a_step_and_leaves_the_source_alone() {
    let agent = configured("");
    said(&agent, "read it");
    let source = last(&agent);
    let (_, before) = json(
        &agent,
        &["trace", "show", "--session", &source, "--format", "json"],
    );
    let completed = before
        .as_array()
        .unwrap()
        .iter()
        .find(|event| event["event_type"] == "ckp.provider.completed")
        .unwrap();
    let at = completed["sequence"].to_string();
    // The model had asked for the file: the call is made again, now with another file, and nothing before it.
    std::fs::write(agent.path("in.txt"), "another line").unwrap();
    let forked = agent
        .clawk(["trace", "fork", "--session", &source, "--at", &at])
        .assert()
        .success();
    assert!(text(&forked.get_output().stdout).contains("another line"));
    let fork = last(&agent);
    assert_ne!(fork, source);
    let (_, events) = json(&agent, &["trace", "show", "--session", &fork, "--format", "json"]);
    let events = events.as_array().unwrap();
    let named = &events[0]["payload"]["fork"];
    assert_eq!(
        (
            &named["session_id"],
            &named["event_hash"],
            &named["sequence"],
            &named["trace_id"]
        ),
        (
            &completed["session_id"],
            &completed["event_hash"],
            &completed["sequence"],
            &completed["trace_id"]
        )
    );
    let count = |kind: &str| events.iter().filter(|event| event["event_type"] == kind).count();
    assert_eq!(
        (count("action.executed"), count("ckp.provider.completed")),
        (1, 1),
        "only the rest was done"
    );
    let (_, after) = json(
        &agent,
        &["trace", "show", "--session", &source, "--format", "json"],
    );
    assert_eq!(before, after, "the source is as it was");
    // It can be gone on with like any session, and its conversation holds what was said before the fork.
    let gone_on = agent
        .clawk(["run", "claw.yaml", "--session", &fork, "-m", "hello"])
        .assert()
        .success();
    assert!(text(&gone_on.get_output().stdout).contains("hello"));
    // From the end of the source, with words of its own.
    let end = (before.as_array().unwrap().len() - 1).to_string();
    let other = agent
        .clawk(["trace", "fork", "--session", &source, "--at", &end, "-m", "hello"])
        .assert()
        .success();
    assert!(text(&other.get_output().stdout).contains("hello"));
    agent
        .clawk(["trace", "fork", "--session", &source, "--at", &end])
        .assert()
        .failure();
    let beyond = agent
        .clawk(["trace", "fork", "--session", &source, "--at", "999", "-m", "x"])
        .assert()
        .failure();
    assert!(text(&beyond.get_output().stderr).contains("has no event 999"));
    let (_, report) = json(&agent, &["trace", "verify", "--format", "json"]);
    assert_eq!(report["valid"], true);
    let replayed = agent
        .clawk(["trace", "replay", "--session", &fork])
        .assert()
        .failure();
    assert!(text(&replayed.get_output().stderr).contains("is a fork"));
}
