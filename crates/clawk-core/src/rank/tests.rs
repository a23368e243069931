use clawk_proto::method::MemoryEntry;
use clawk_recall::entry::EntryHit;
use serde_json::{Value, json};

use super::*;

const NOW: Timestamp = Timestamp(1_700_000_000_000_000);

fn store(mut spec: Value) -> Store {
    let members = spec.as_object_mut().unwrap();
    members.entry("name").or_insert(json!("s"));
    members.entry("type").or_insert(json!("semantic"));
    serde_json::from_value(spec).unwrap()
}

fn hit(id: &str, score: f64, days: i64, origin: &str, untrusted: bool, whose: &str) -> EntryHit {
    EntryHit {
        entry: MemoryEntry {
            id: id.to_owned(),
            content: json!("x"),
            score: Some(score),
            timestamp: Some(NOW.plus_millis(-days * 86_400_000).to_string()),
            key: None,
            metadata: None,
        },
        mark: EntryProvenance {
            origin: origin.to_owned(),
            untrusted,
            whose: whose.to_owned(),
            ..EntryProvenance::default()
        },
    }
}

/// An old word of the user's, a fresh page, and something fresh that another conversation said.
fn found() -> EntrySearchResult {
    EntrySearchResult {
        hits: vec![
            hit("old", 0.9, 60, "user", false, "me"),
            hit("page", 0.8, 0, "web https://x.test", true, "me"),
            hit("other", 0.7, 0, "agent", false, "you"),
        ],
        ..EntrySearchResult::default()
    }
}

fn order(spec: Value) -> Vec<String> {
    let mut found = found();
    rank_entries(&store(spec), &mut found, "me", NOW);
    assert!(
        found
            .hits
            .iter()
            .all(|hit| (0.0..=1.0).contains(&hit.entry.score.unwrap()))
    );
    found.hits.into_iter().map(|hit| hit.entry.id).collect()
}

#[test]
fn salience_and_decay_rank_by_their_signals() {
    assert_eq!(order(json!({})), ["old", "page", "other"]);
    assert_eq!(
        order(json!({"salience": {"enabled": false, "signals": ["recency"]}})),
        ["old", "page", "other"]
    );
    assert_eq!(
        order(json!({"role": "working", "salience": {"enabled": true, "signals": ["recency"]}})),
        ["page", "other", "old"]
    );
    assert_eq!(
        order(json!({"salience": {"enabled": true, "signals": ["trust"]}})),
        ["old", "other", "page"]
    );
    assert_eq!(
        order(json!({"salience": {"enabled": true, "signals": ["source"]}})),
        ["old", "other", "page"]
    );
    for strategy in ["decay", "adaptive"] {
        assert_eq!(
            order(json!({"role": "episodic", "forgetting": {"strategy": strategy}})),
            ["page", "other", "old"]
        );
    }
    for strategy in ["none", "summarize"] {
        assert_eq!(
            order(json!({"role": "episodic", "forgetting": {"strategy": strategy}})),
            ["old", "page", "other"]
        );
    }
    // The half-life is half of what retention allows; without a role a year's memory fades slowly.
    assert_eq!(
        order(json!({"retention": {"max_age": "90d"}, "forgetting": {"strategy": "decay"}})),
        ["page", "other", "old"]
    );
    assert_eq!(
        order(json!({"forgetting": {"strategy": "decay", "signals": ["trust"]}})),
        ["old", "other", "page"]
    );
    assert_eq!(
        order(
            json!({"lifecycle": {"retrieval": "contextual"}, "salience": {"enabled": true, "signals": ["trust"]}})
        )[0],
        "old"
    );
    let mut found = found();
    rank_entries(
        &store(json!({"lifecycle": {"retrieval": "contextual"}})),
        &mut found,
        "you",
        NOW,
    );
    assert_eq!(
        found.hits[1].entry.id, "other",
        "what this conversation said comes nearer"
    );
}

#[test]
fn a_signal_that_nobody_knows_is_refused() {
    for block in ["salience", "forgetting"] {
        let refused = ranking_fault(&store(json!({block: {"signals": ["mood"]}}))).unwrap();
        assert!(
            refused.contains("`mood`") && refused.contains("recency"),
            "{refused}"
        );
    }
    assert_eq!(
        ranking_fault(&store(json!({"salience": {"signals": ["recency", "trust"]}}))),
        None
    );
}

#[test]
fn a_role_says_what_comes_by_itself_and_acquisition_what_is_taken_up() {
    assert!(speaks_up(&store(json!({}))));
    assert!(!speaks_up(&store(json!({"role": "sensory"}))));
    for (role, speaks) in [
        ("working", true),
        ("procedural", true),
        ("semantic", false),
        ("episodic", false),
    ] {
        assert_eq!(
            speaks_up(&store(json!({"type": "key-value", "role": role}))),
            speaks,
            "{role}"
        );
    }
    for (kind, acquisition, takes) in [
        ("conversation", "event-driven", true),
        ("conversation", "continuous", true),
        ("conversation", "manual", false),
        ("semantic", "continuous", true),
        ("semantic", "event-driven", false),
        ("semantic", "manual", false),
    ] {
        let spec = json!({"type": kind, "lifecycle": {"acquisition": acquisition}});
        assert_eq!(takes_up(&store(spec)), takes, "{kind} {acquisition}");
    }
}

#[test]
fn confidence_follows_the_source_and_fades_as_declared() {
    let of = |spec: Value, origin: &str, untrusted: bool, days: i64| {
        let hit = hit("x", 1.0, days, origin, untrusted, "");
        entry_confidence(&store(spec), &hit.mark, hit.entry.timestamp.as_deref(), NOW)
    };
    let tracked =
        |decay: &str| json!({"role": "episodic", "confidence": {"source_tracking": true, "decay": decay}});
    assert_eq!(of(json!({}), "user", false, 0), None);
    assert_eq!(
        of(
            json!({"confidence": {"source_tracking": false}}),
            "user",
            false,
            0
        ),
        None
    );
    assert_eq!(of(tracked("none"), "user", false, 300), Some(1.0));
    assert_eq!(of(tracked("none"), "web x", true, 0), Some(0.2));
    let half = of(tracked("adaptive"), "user", false, 30).unwrap();
    assert!((half - 0.5).abs() < 0.01, "{half}");
    assert_eq!(of(tracked("optional"), "user", false, 30), Some(1.0));
    let mut both = tracked("optional");
    both["forgetting"] = json!({"strategy": "decay"});
    assert!(of(both, "user", false, 30).unwrap() < 0.6);
}
