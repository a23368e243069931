//! A state directory that an earlier version left: it opens, migrates, verifies and replays. One of a later version does not.

use predicates::str::contains;
use serde_json::json;

use crate::agent::{Agent, text};
use crate::trace::json;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/state-b4f763d.tar.gz");

/// The agent and the state of b4f763d, in a folder of its own.
fn kept() -> Agent {
    let agent = Agent::new();
    let unpacked = std::process::Command::new("tar")
        .args(["xzf", KEPT, "-C"])
        .arg(agent.path(""))
        .status();
    assert!(unpacked.unwrap().success());
    std::fs::write(agent.path("notes.txt"), "kept\n").unwrap();
    agent
}

fn sqlite(agent: &Agent, sql: &str) -> String {
    let script =
        "import sqlite3,sys; c=sqlite3.connect(sys.argv[1]); print(list(c.execute(sys.argv[2]))); c.commit()";
    let output = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(agent.path("st/state.db"))
        .arg(sql)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_state_of_b4f763d_opens_migrates_verifies_and_replays() {
    let agent = kept();
    let (code, before) = json(&agent, &["trace", "verify", "--state", "st", "--format", "json"]);
    assert_eq!((code, &before["valid"]), (0, &json!(true)), "{before:#}");
    assert_eq!(before["event_count"], 58);

    // A start migrates it; the conversation goes on with what was said before.
    agent
        .clawk([
            "run",
            "claw.yaml",
            "--state",
            "st",
            "--session",
            "last",
            "-m",
            "read it",
        ])
        .assert()
        .success()
        .stdout(contains("It says: kept"))
        .stderr(contains("chain valid"));
    let found = sqlite(&agent, "SELECT count(*) FROM memory");
    assert_eq!(found.trim(), "[(1,)]", "the memory is there");

    let (code, after) = json(&agent, &["trace", "verify", "--state", "st", "--format", "json"]);
    assert_eq!((code, &after["valid"]), (0, &json!(true)), "{after:#}");
    assert!(after["event_count"].as_u64() > before["event_count"].as_u64());
    let (code, replayed) = json(&agent, &["trace", "replay", "--state", "st", "--format", "json"]);
    assert_eq!(
        (code, &replayed["deterministic"]),
        (0, &json!(true)),
        "{replayed:#}"
    );
    let (code, memory) = json(&agent, &["memory", "list", "--state", "st", "--format", "json"]);
    assert_eq!(code, 0, "{memory:#}");
}

#[test]
fn a_state_of_a_later_program_is_refused_with_its_version() {
    let agent = kept();
    sqlite(&agent, "PRAGMA user_version = 99");
    for args in [
        &["run", "claw.yaml", "--state", "st", "-m", "read it"][..],
        &["trace", "verify", "--state", "st"],
        &["sessions", "--state", "st"],
    ] {
        let output = assert_cmd::Command::new(crate::agent::program())
            .args(args)
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .output()
            .unwrap();
        let told = text(&output.stderr);
        assert!(!output.status.success(), "{args:?}");
        assert!(
            told.contains("schema version 99") && told.contains("a newer one"),
            "{args:?}: {told}"
        );
    }
    assert_eq!(
        sqlite(&agent, "PRAGMA user_version").trim(),
        "[(99,)]",
        "nothing was changed"
    );
}
