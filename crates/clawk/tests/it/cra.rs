//! `clawk conformance cra`: clawk passes, and an implementation with one fault does not.
//!
//! The faults are made by `broken_cra.py`, which stands between the harness and a clawk that is right.

use std::collections::BTreeSet;

use assert_cmd::Command;
use serde_json::Value;

const CLAWK: &str = env!("CARGO_BIN_EXE_clawk");
const BROKEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/broken_cra.py");

fn play(arguments: &[&str]) -> Value {
    let output = Command::new(CLAWK)
        .args(["conformance", "cra", "--format", "json"])
        .args(arguments)
        .timeout(std::time::Duration::from_secs(300))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

fn with(report: &Value, status: &str) -> BTreeSet<String> {
    report["results"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|result| result["status"] == status)
        .map(|result| result["test_id"].as_str().unwrap().to_owned())
        .collect()
}

/// The faults' test ids: each is an id or, with a `*` at its end, the beginning of at least one.
fn caught(report: &Value, wanted: &[&str], fault: &str) {
    let failed = with(report, "failed");
    for wanted in wanted {
        let found = match wanted.strip_suffix('*') {
            Some(beginning) => failed.iter().any(|id| id.starts_with(beginning)),
            None => failed.contains(*wanted),
        };
        assert!(found, "{fault}: `{wanted}` did not fail; these did: {failed:?}");
    }
}

#[test]
fn clawk_is_cra_full_with_nothing_skipped() {
    let report = play(&[]);
    assert_eq!(with(&report, "failed"), BTreeSet::new(), "{report:#}");
    assert_eq!(with(&report, "skipped"), BTreeSet::new());
    assert_eq!(report["conformance_level"], "CRA-Full");
    assert_eq!(report["implementation"], "clawk");
    let run = &report["test_run"];
    assert!(run["total"].as_u64().unwrap() > 190, "{run}");
    assert_eq!(run["total"], run["passed"]);
    let passed = with(&report, "passed");
    for id in DOCUMENT {
        assert!(passed.contains(id), "`{id}` of the document was not played");
    }
}

/// The ids that the conformance document gives.
const DOCUMENT: [&str; 18] = [
    "schema.carp.request.valid",
    "schema.carp.request.invalid_version",
    "schema.carp.request.missing_required",
    "schema.carp.request.execute_requires_execution",
    "hash.compute.single_event",
    "hash.chain.valid",
    "hash.chain.broken",
    "hash.chain.sequence_gap",
    "policy.order.deny_precedence",
    "policy.rate_limit.enforced",
    "policy.risk_tier.escalation",
    "resolution.context.ordering",
    "resolution.actions.capability_filter",
    "replay.deterministic",
    "replay.diff.semantic",
    "atlas.manifest.valid",
    "atlas.manifest.invalid_id",
    "atlas.manifest.invalid_version",
];

#[test]
fn a_broken_adapter_is_found_out() {
    let faults: [(&str, &[&str]); 12] = [
        (
            "cra.validate/takes-all",
            &[
                "schema.carp.request.invalid_version",
                "schema.trace.event.missing_event_id",
                "atlas.manifest.invalid_id",
            ],
        ),
        (
            "cra.validate/takes-none",
            &["schema.carp.request.valid", "atlas.manifest.valid"],
        ),
        (
            "cra.validate/wrong-path",
            &[
                "schema.carp.request.missing_required",
                "atlas.manifest.invalid_version",
            ],
        ),
        ("cra.hash/another", &["hash.compute.single_event"]),
        (
            "cra.verify/takes-all",
            &["hash.chain.broken", "hash.chain.sequence_gap"],
        ),
        ("cra.verify/takes-none", &["hash.chain.valid"]),
        (
            "cra.verify/wrong-word",
            &["hash.chain.broken", "hash.chain.sequence_gap"],
        ),
        (
            "cra.verify/wrong-place",
            &["hash.chain.broken", "hash.chain.sequence_gap"],
        ),
        ("cra.diff/identical", &["replay.diff.semantic"]),
        (
            "cra.diff/incompatible",
            &["replay.diff.semantic", "replay.diff.identical"],
        ),
        ("cra.replay/identical", &["replay.drift.policy_added"]),
        ("cra.replay/differs", &["replay.deterministic"]),
    ];
    for (fault, wanted) in faults {
        let target = format!("python3 {BROKEN} adapter {fault} {CLAWK}");
        // What an adapter without sessions and an API cannot be asked is skipped, never passed.
        let report = play(&["--target", &target]);
        caught(&report, wanted, fault);
        assert!(with(&report, "skipped").contains("http.health"));
        assert_eq!(report["conformance_level"], Value::Null, "{fault}");
    }
}

#[test]
fn a_broken_api_is_found_out() {
    let faults: [(&str, &[&str]); 14] = [
        (
            "decision",
            &["policy.order.deny_precedence", "policy.risk_tier.escalation"],
        ),
        ("blocks", &["resolution.context.ordering"]),
        ("allowed", &["policy.decision.partial", "golden.policy-deny"]),
        (
            "never-denies",
            &["policy.rate_limit.enforced", "http.execute.denied"],
        ),
        ("trace-hole", &["golden.simple-resolve", "golden.multi-action"]),
        ("trace-changed", &["golden.*"]),
        ("ndjson", &["http.traces.ndjson"]),
        ("verify", &["http.traces.verify"]),
        (
            "not-found",
            &[
                "http.sessions.get.unknown",
                "http.traces.unknown",
                "http.atlases.get.unknown",
            ],
        ),
        ("conflict", &["http.atlases.post.twice"]),
        (
            "bad-request",
            &["http.resolve.invalid", "http.execute.invalid_parameters"],
        ),
        ("no-auth", &["http.auth.none", "http.auth.guards.execute"]),
        ("health", &["http.health"]),
        ("stream", &["http.traces.stream"]),
    ];
    let target = |fault: &str| format!("python3 {BROKEN} http {fault} {CLAWK} {{port}} {{atlas}} {{state}}");
    let mut all = Vec::new();
    for (fault, wanted) in faults {
        let only: Vec<&str> = wanted
            .iter()
            .flat_map(|id| ["--only", id.trim_end_matches('*')])
            .collect();
        let broken = target(fault);
        caught(
            &play(&[&["--target", broken.as_str()], &*only].concat()),
            wanted,
            fault,
        );
        all.extend(only);
    }
    // What stands between breaks nothing by itself.
    let whole = target("none");
    let report = play(&[&["--target", whole.as_str()], &*all].concat());
    assert_eq!(with(&report, "failed"), BTreeSet::new(), "{report:#}");
}
