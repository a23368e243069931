use std::path::Path;

use crate::state::kept::{Options, StateDir};
use clap::Parser;
#[cfg(not(feature = "postgres"))]
use clawk_kernel::ports::Journal as _;
use clawk_kernel::ports::{Batch, JournalEntry};
use clawk_kernel::time::Timestamp;
use clawk_proto::SessionId;
use clawk_trace::canonical::payload_of;
use serde_json::{Value, json};

use super::{Args, run};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// Exit codes compare by their text.
fn outcome(words: &[&str]) -> String {
    let cli = Cli::try_parse_from(["trace"].iter().chain(words)).unwrap();
    format!("{:?}", run(&cli.args, None).unwrap())
}

fn id(n: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(n)
}

async fn state(path: &Path) -> StateDir {
    let state = StateDir::open(path, Options::default()).unwrap();
    let events = [
        ("session.started", json!({ "agent_id": "a", "goal": "Grüße" })),
        ("ckp.test.first", json!({})),
        (
            "action.requested",
            json!({ "action_id": "order", "call_id": null, "door": "rpc", "identity": "t", "parameters_hash": "0".repeat(64),
                "policy": null, "request_id": "r", "sandbox": null, "turn": null }),
        ),
        ("ckp.test.second", json!({})),
        (
            "session.ended",
            json!({ "duration_ms": 1, "reason": "completed" }),
        ),
    ];
    for (n, (kind, payload)) in (0..).zip(events) {
        let entry = JournalEntry {
            session: SessionId(id(1)),
            event_id: id(100 + n),
            span: id(2),
            parent: Some(id(3)),
            at: Timestamp(1_700_000_000_000_000 + i64::try_from(n).unwrap()),
            kind,
            payload: payload_of(&payload).unwrap(),
            content: None,
            answers: None,
        };
        let batch = Batch {
            entries: vec![entry],
            ..Batch::default()
        };
        state
            .journal()
            .submit_batch(batch)
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
    }
    state
}

const DONE: &str = "ExitCode(unix_exit_status(0))";
const BAD: &str = "ExitCode(unix_exit_status(1))";

#[tokio::test]
async fn a_record_is_verified_exported_and_verified_again_while_its_agent_runs() {
    let dir = tempfile::tempdir().unwrap();
    let state = state(&dir.path().join("state")).await;
    let (from, file) = (state.path().to_str().unwrap(), dir.path().join("run.trace.jsonl"));
    let to = file.to_str().unwrap();
    assert_eq!(outcome(&["verify", "--state", from]), DONE);
    assert_eq!(
        outcome(&["export", "--state", from, "--session", "last", "-o", to]),
        DONE
    );
    assert_eq!(outcome(&["verify", to]), DONE);
    assert_eq!(outcome(&["show", to, "--session", "last"]), DONE);
    assert_eq!(outcome(&["tail", "-n", "2", to]), DONE);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 5);
    std::fs::write(&file, text.replacen("Grüße", "Gruße", 1)).unwrap();
    assert_eq!(outcome(&["verify", to, "--format", "json"]), BAD);
    assert_eq!(outcome(&["verify", to, "--session", &id(1).to_string()]), BAD);
    let unknown = id(9).to_string();
    let cli = Cli::try_parse_from(["trace", "verify", to, "--session", &unknown]).unwrap();
    assert!(
        run(&cli.args, None)
            .unwrap_err()
            .to_string()
            .contains("no session")
    );
}

#[tokio::test]
async fn a_strict_export_holds_and_says_what_it_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let state = state(&dir.path().join("state")).await;
    let file = dir.path().join("strict.jsonl");
    let words = [
        "export",
        "--strict",
        "--state",
        state.path().to_str().unwrap(),
        "-o",
        file.to_str().unwrap(),
    ];
    assert_eq!(outcome(&words), DONE);
    let text = std::fs::read_to_string(&file).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["event_type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["session.started", "action.requested", "session.ended"]);
    let note = &events[0]["payload"]["strict_export"];
    assert_eq!(
        (&note["rechained"], &note["events_left_out"]),
        (&json!(true), &json!(2))
    );
    assert!(clawk_trace::verify(text.as_bytes()).unwrap().valid);
}

#[tokio::test]
async fn two_traces_are_compared_by_meaning() {
    let dir = tempfile::tempdir().unwrap();
    let state = state(&dir.path().join("state")).await;
    let from = state.path().to_str().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let event = |ms: u8, result: &str| {
        format!(
            "{{\"event_type\":\"action.executed\",\"payload\":{{\"duration_ms\":{ms},\"result\":\"{result}\"}}}}\n"
        )
    };
    let (a, b, c) = (
        write("a.jsonl", &event(1, "x")),
        write("b.jsonl", &event(2, "x")),
        write("c.jsonl", &event(1, "y")),
    );
    assert_eq!(outcome(&["diff", &a, &a]), DONE);
    assert_eq!(outcome(&["diff", &a, &b]), DONE);
    assert_eq!(outcome(&["diff", &a, &c, "--format", "json"]), BAD);
    let session = id(1).to_string();
    assert_eq!(outcome(&["diff", &session, "last", "--state", from]), DONE);
    assert_eq!(outcome(&["diff", &session, &a, "--state", from]), BAD);
    let unknown = id(9).to_string();
    let cli = Cli::try_parse_from(["trace", "diff", &a, &unknown, "--state", from]).unwrap();
    assert!(
        run(&cli.args, None)
            .unwrap_err()
            .to_string()
            .contains("no session")
    );
}

#[tokio::test]
async fn a_record_that_was_cut_off_is_found_out_by_a_checkpoint() {
    use clawk_trace::checkpoint::{CheckpointStatement, TraceSigner};

    let dir = tempfile::tempdir().unwrap();
    let state = state(&dir.path().join("state")).await;
    let (from, file) = (state.path().to_str().unwrap(), dir.path().join("run.trace.jsonl"));
    let to = file.to_str().unwrap();
    assert_eq!(outcome(&["export", "--state", from, "-o", to]), DONE);
    let text = std::fs::read_to_string(&file).unwrap();
    let last: clawk_proto::trace::TraceEvent = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let signer = TraceSigner::from_seed(&[1; 32]);
    let checkpoint = signer.sign(CheckpointStatement {
        session_id: last.session_id,
        events: 5,
        head: last.event_hash,
        timestamp: last.timestamp,
    });
    let (key, checkpoints) = (dir.path().join("key"), dir.path().join("checkpoints.jsonl"));
    std::fs::write(&key, signer.public().to_hex() + "\n").unwrap();
    std::fs::write(&checkpoints, serde_json::to_string(&checkpoint).unwrap()).unwrap();
    let with = [
        "--key",
        key.to_str().unwrap(),
        "--checkpoints",
        checkpoints.to_str().unwrap(),
    ];
    let held = |front: &[&str]| outcome(&[front, &with].concat());
    assert_eq!(held(&["verify", to]), DONE);
    assert_eq!(held(&["verify", "--state", from]), DONE);
    let shorter: String = text.lines().take(4).map(|line| line.to_owned() + "\n").collect();
    std::fs::write(&file, shorter).unwrap();
    assert_eq!(outcome(&["verify", to]), DONE, "the chain alone does not show it");
    assert_eq!(held(&["verify", to, "--format", "json"]), BAD);
    let key_alone = Cli::try_parse_from(["trace", "verify", to, "--key", with[1]]).unwrap();
    let error = run(&key_alone.args, None).unwrap_err().to_string();
    assert!(error.contains("takes `--checkpoints FILE`"), "{error}");
}

#[test]
fn what_cannot_be_done_is_an_error_that_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for (words, word) in [
        (vec!["verify", "--state", path], "state"),
        (vec!["show", "/nowhere.jsonl"], "nowhere"),
        (vec!["show", "--content", "12", "--state", path], "64 hex"),
        (vec!["show", "/nowhere.jsonl", "--session", "x"], "`x`"),
    ] {
        let cli = Cli::try_parse_from(["trace"].iter().chain(&words)).unwrap();
        let error = format!("{:#}", run(&cli.args, None).unwrap_err());
        assert!(error.contains(word), "{words:?}: {error}");
    }
    assert!(Cli::try_parse_from(["trace", "show", "a.jsonl", "--state", "d"]).is_err());
}
