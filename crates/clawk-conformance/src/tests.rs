//! The harness against an agent that is right, and against the same agent with one fault at a time: it must be able to fail.

pub(super) mod fixture;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::pattern::match_pattern;
use super::{CkpReport, CkpTarget, run, vector};
use fixture::{FAULTS, Fault};

fn play(fault: Option<Fault>) -> CkpReport {
    let target = CkpTarget::Thread(Arc::new(move |reader, writer| {
        fixture::serve(reader, writer, fault)
    }));
    run(&target, 3, |_| {}).expect("vectors are readable")
}

fn failed(report: &CkpReport) -> BTreeSet<&str> {
    report
        .results
        .iter()
        .filter(|outcome| !outcome.passed)
        .map(|outcome| outcome.id.as_str())
        .collect()
}

#[test]
fn there_are_31_vectors_and_a_right_agent_passes_them_all() {
    let report = play(None);
    assert_eq!(failed(&report), BTreeSet::new(), "{report:#?}");
    let of = |level| {
        report
            .results
            .iter()
            .filter(|outcome| outcome.level == level)
            .count()
    };
    assert_eq!((of(1), of(2), of(3)), (13, 10, 8));
    assert_eq!((report.total, report.passed, report.failed), (31, 31, 0));
    assert_eq!(
        (report.implementation.as_str(), report.version.as_deref()),
        ("fixture-agent", Some("1.2.3"))
    );
    let ids: BTreeSet<&str> = report.results.iter().map(|outcome| outcome.id.as_str()).collect();
    assert_eq!(ids.len(), 31);
}

#[test]
fn every_fault_is_found_where_it_lies_and_nowhere_else() {
    let mut caught = BTreeSet::new();
    // Each agent in its own thread: most of the time is spent waiting for answers that never come.
    let plays: Vec<_> = FAULTS
        .iter()
        .map(|(fault, wanted)| (fault, wanted, std::thread::spawn(|| play(Some(*fault)))))
        .collect();
    for (fault, wanted, report) in plays {
        let report = report.join().expect("plays");
        assert_eq!(
            failed(&report),
            wanted.iter().copied().collect(),
            "{fault:?}: {report:#?}"
        );
        for failure in report
            .results
            .iter()
            .filter_map(|outcome| outcome.failure.as_ref())
        {
            assert!(!failure.expected.is_empty() && !failure.got.is_empty());
        }
        caught.extend(wanted.iter().copied());
    }
    let all: BTreeSet<String> = vector::load_vectors()
        .expect("readable")
        .into_iter()
        .map(|vector| vector.id)
        .collect();
    let caught: BTreeSet<String> = caught.into_iter().map(str::to_owned).collect();
    assert_eq!(caught, all, "a vector that no fault breaks proves nothing");
}

#[test]
fn an_agent_that_is_none_fails_everything_quickly() {
    for command in ["true", "echo hello", "no-such-program-anywhere"] {
        let report = run(&CkpTarget::Command(command.to_owned()), 1, |_| {}).expect("runs");
        assert_eq!(report.passed, 0, "{command}");
        assert_eq!(report.total, 13);
    }
    let noise = run(&CkpTarget::Command("echo hello".to_owned()), 1, |_| {}).expect("runs");
    let failure = noise.results[0].failure.as_ref().expect("failed");
    assert!(failure.got.contains("`hello` is not valid JSON"), "{failure:?}");
    assert!(
        failure.conversation.iter().any(|line| line == "< hello"),
        "{failure:?}"
    );
}

#[test]
fn patterns() {
    let row = |pattern: &str, found: &str| {
        let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        match_pattern(&json(pattern), &json(found)).is_ok()
    };
    for (pattern, found, holds) in [
        (r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#, true),
        (r#"{"a": 1}"#, r#"{"b": 2}"#, false),
        (r#"{"a": null}"#, r#"{"b": 2}"#, false),
        (r"{}", "[]", false),
        (r#"{"$any": [1, null]}"#, "null", true),
        (r#"{"$any": [1, null]}"#, "2", false),
        (r#"{"$text": true}"#, r#""""#, false),
        (r#"{"$integer": 0}"#, "0", true),
        (r#"{"$integer": 0}"#, "-1", false),
        (r#"{"$integer": 0}"#, "1.5", false),
        (r#"{"$integer": 0}"#, r#""1""#, false),
        (r#"{"a": {"$optional": false}}"#, "{}", true),
        (r#"{"a": {"$optional": false}}"#, r#"{"a": true}"#, false),
        (r#"{"$some": {"x": 1}}"#, r#"[{"x": 2}, {"x": 1}]"#, true),
        (r#"{"$some": {"x": 1}}"#, "[]", false),
        (r#"{"$every": {"$text": true}, "$count": 1}"#, r#"["a"]"#, true),
        (
            r#"{"$every": {"$text": true}, "$count": 1}"#,
            r#"["a", "b"]"#,
            false,
        ),
        (r#"{"a": {"$at_most": "b"}}"#, r#"{"a": 3, "b": 3}"#, true),
        (r#"{"a": {"$at_most": "b"}}"#, r#"{"a": 4, "b": 3}"#, false),
        (r#"{"$utc": true}"#, r#""2026-02-22T10:32:00Z""#, true),
        (r#"{"$utc": true}"#, r#""2026-02-22T10:32:00.123456Z""#, true),
        (r#"{"$utc": true}"#, r#""2026-02-22T10:32:00+02:00""#, false),
        (r#"{"$utc": true}"#, r#""2026-13-22T10:32:00Z""#, false),
        (r#"{"$utc": true}"#, r#""1771756320""#, false),
        (r#"{"$unheard": true}"#, "1", false),
    ] {
        assert_eq!(row(pattern, found), holds, "{pattern} {found}");
    }
    let misfit = match_pattern(&json!({"a": {"b": 1}}), &json!({"a": {"b": 2}})).expect_err("differs");
    assert_eq!((misfit.at.as_str(), misfit.wanted.as_str()), ("/a/b", "1"));
}

#[test]
fn an_agent_that_will_not_end_is_ended() {
    let mut command = super::target::build_command("sh");
    command.args(["-c", "exec sleep 60"]);
    let started = std::time::Instant::now();
    let mut connection = super::connection::AgentConnection::start(command).expect("starts");
    connection.farewell = std::time::Duration::from_millis(50);
    drop(connection);
    assert!(started.elapsed().as_secs() < 10);
}
