//! A state that somebody changed beside its chains: `trace verify` says so in JSON, text and exit code, `doctor` fails, and what
//! a start would lose or do twice keeps it from starting.

use crate::agent::{Agent, text};
use crate::trace::{forge, json};

/// What is changed, and a word of the finding.
const PROJECTIONS: [(&str, &str); 8] = [
    ("DELETE FROM spent", "spent: purse"),
    ("UPDATE spent SET tokens = tokens / 2", "spent: purse"),
    ("UPDATE spent SET hour = hour - 48", "spent: purse"),
    ("DELETE FROM inbox", "inbox: message"),
    ("UPDATE inbox SET state = 'open'", "inbox: message"),
    ("DELETE FROM answers", "answers: the answer"),
    ("UPDATE answers SET row = row - 1", "answers: "),
    (
        "INSERT INTO effects_open (request, session, tool, parameters, at) VALUES \
         ('0195f1c2-6d3e-7aaa-8bbb-0123456789ab', zeroblob(16), 'x', zeroblob(32), 1)",
        "effects: ",
    ),
];

/// The end of the journal cut off, so that the tables agree; the heads are gone, too.
const CUT: &str = "DELETE FROM heads; DELETE FROM events WHERE row = (SELECT max(row) FROM events); \
    UPDATE sessions SET events = events - 1, head = (SELECT hash FROM events e WHERE e.session = sessions.id \
    AND e.sequence = sessions.events - 2) WHERE last = (SELECT max(last) FROM sessions)";
/// A whole session is gone.
const GONE: &str = "DELETE FROM heads; DELETE FROM events WHERE session = (SELECT min(id) FROM sessions); \
    DELETE FROM sessions WHERE id = (SELECT min(id) FROM sessions)";

fn used() -> Agent {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "read it"])
        .assert()
        .success();
    let (code, report) = json(&agent, &["trace", "verify", "--format", "json"]);
    assert_eq!((code, &report["valid"]), (0, &true.into()), "{report:#}");
    agent
}

/// What `trace verify` says, in all its words.
fn found(agent: &Agent, what: &str) -> String {
    let (code, report) = json(agent, &["trace", "verify", "--format", "json"]);
    assert_eq!((code, &report["valid"]), (1, &false.into()), "{what}: {report:#}");
    let output = agent.clawk(["trace", "verify"]).output().unwrap();
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{what}");
    assert!(told.contains("INVALID"), "{what}: {told}");
    assert!(!told.contains("valid  "), "{what}: {told}");
    let (code, checks) = json(agent, &["doctor", "claw.yaml", "--format", "json"]);
    let checks = checks["checks"].as_array().unwrap();
    let state = checks.iter().find(|check| check["id"] == "state").unwrap();
    assert_eq!((code, &state["status"]), (1, &"fail".into()), "{what}: {state:#}");
    report["problems"].to_string()
}

fn start(agent: &Agent) -> (bool, String) {
    let output = agent.clawk(["run", "claw.yaml", "-m", "hello"]).output().unwrap();
    (output.status.success(), text(&output.stderr))
}

#[test]
fn a_wiped_projection_is_found_and_nothing_starts() {
    for (sql, word) in PROJECTIONS {
        let agent = used();
        forge(&agent, sql);
        let problems = found(&agent, sql);
        assert!(problems.contains(word), "{sql}: {problems}");
        let (started, told) = start(&agent);
        assert!(
            !started && told.contains("does not fit its journal"),
            "{sql}: {told}"
        );
    }
}

#[test]
fn what_was_cut_off_is_found_by_verify_and_start_alike() {
    for sql in [CUT, GONE, "UPDATE sessions SET verified = verified + 1"] {
        let agent = used();
        forge(&agent, sql);
        found(&agent, sql);
        let (started, told) = start(&agent);
        assert!(!started && told.contains("nothing was started"), "{sql}: {told}");
    }
}

#[test]
fn forged_contents_are_one_truth_and_used_by_nobody() {
    let agent = used();
    forge(
        &agent,
        "UPDATE events SET content = x'7b7d' WHERE content IS NOT NULL",
    );
    found(&agent, "contents");
    let output = agent
        .clawk(["trace", "replay", "--session", "last"])
        .output()
        .unwrap();
    let told = text(&output.stderr);
    assert!(!output.status.success() && told.contains("was changed"), "{told}");
}
