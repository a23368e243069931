use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn facts(diff: &Diff) -> Vec<(&str, DifferenceKind, DifferenceSignificance)> {
    diff.differences
        .iter()
        .map(|d| (d.path.as_str(), d.change, d.significance))
        .collect()
}

fn executed(n: u64) -> Value {
    json!({
        "event_id": format!("e{n}"), "sequence": n, "session_id": "s", "timestamp": format!("t{n}"), "event_type": "action.executed",
        "payload": {"action_id": "echo", "duration_ms": n % 50, "request_id": format!("r{n}"), "result_hash": format!("{n:064x}")},
    })
}

#[test]
fn the_documents_own_case() {
    let event = |ms| json!({"event_type": "action.executed", "payload": {"action_id": "resource.create", "duration_ms": ms}});
    let diff = diff_events(&[event(100)], &[event(150)]).unwrap();
    assert_eq!(
        serde_json::to_value(&diff).unwrap(),
        json!({
            "compatibility": "semantically_equivalent",
            "differences": [{"path": "/0/payload/duration_ms", "type": "value_changed", "significance": "minor"}],
        })
    );
}

#[test]
fn what_is_made_anew_in_every_run_is_no_difference() {
    let events = |run: &str| -> Vec<Value> {
        (0..5)
            .map(|n| {
                let id = |name: &str| format!("{run}-{name}-{n}");
                json!({
                    "event_id": id("e"), "trace_id": run, "span_id": id("s"), "parent_span_id": id("p"), "session_id": run,
                    "sequence": n, "timestamp": id("t"), "event_type": "carp.resolution.completed", "event_hash": id("h"),
                    "previous_event_hash": id("h0"),
                    "payload": {"goal": "g", "inner": [{"resolution_id": id("r"), "execution_id": id("x")}], "request_id": id("q")},
                })
            })
            .collect()
    };
    let diff = diff_events(&events("first"), &events("second")).unwrap();
    assert_eq!(
        diff.compatibility,
        TraceCompatibility::Identical,
        "{:?}",
        diff.differences
    );
    // The order of members is none either.
    let turned = r#"{"payload":{"b":1,"a":2},"event_type":"x"}"#;
    assert_eq!(
        super::diff(turned, r#"{"event_type":"x","payload":{"a":2,"b":1}}"#)
            .unwrap()
            .differences,
        []
    );
}

#[test]
fn every_kind_of_difference_has_its_path_and_weight() {
    let event = |payload: Value| json!({"event_type": "policy.evaluated", "payload": payload});
    let before = event(json!({
        "action_id": "a", "result": "allow", "message": "fine", "a/b~c": 1, "gone": null, "list": [1, 2, 3], "kind": 1,
        "usage": {"input_tokens": 5, "max_tokens": 10}, "duration_ms": 3,
    }));
    let after = event(json!({
        "action_id": "a", "result": "deny", "message": "well", "a/b~c": 2, "list": [1, 3], "kind": "1",
        "usage": {"input_tokens": 6, "max_tokens": 20}, "new": {"x": 1},
    }));
    let diff = diff_events(&[before], &[after]).unwrap();
    let mut found = facts(&diff);
    found.sort_unstable();
    use DifferenceKind::{Added, Removed, TypeChanged, ValueChanged};
    use DifferenceSignificance::{Major, Minor};
    assert_eq!(
        found,
        [
            ("/0/payload/a~1b~0c", ValueChanged, Major),
            ("/0/payload/duration_ms", Removed, Major),
            ("/0/payload/gone", Removed, Major),
            ("/0/payload/kind", TypeChanged, Major),
            ("/0/payload/list/1", ValueChanged, Major),
            ("/0/payload/list/2", Removed, Major),
            ("/0/payload/message", ValueChanged, Minor),
            ("/0/payload/new", Added, Major),
            ("/0/payload/result", ValueChanged, Major),
            ("/0/payload/usage/input_tokens", ValueChanged, Minor),
            ("/0/payload/usage/max_tokens", ValueChanged, Major),
        ]
    );
    assert_eq!(diff.compatibility, TraceCompatibility::Incompatible);
}

#[test]
fn an_insertion_is_one_difference_and_another_action_is_another_event() {
    let first: Vec<_> = (0..100).map(executed).collect();
    let mut second = first.clone();
    second.insert(40, executed(1000));
    let diff = diff_events(&first, &second).unwrap();
    assert_eq!(
        facts(&diff),
        [("/40", DifferenceKind::EventAdded, DifferenceSignificance::Major)]
    );
    let diff = diff_events(&second, &first).unwrap();
    assert_eq!(
        facts(&diff),
        [("/40", DifferenceKind::EventRemoved, DifferenceSignificance::Major)]
    );
    let mut other = first.clone();
    other[7]["payload"]["action_id"] = json!("delete");
    let diff = diff_events(&first, &other).unwrap();
    assert_eq!(
        facts(&diff),
        [
            ("/7", DifferenceKind::EventRemoved, DifferenceSignificance::Major),
            ("/7", DifferenceKind::EventAdded, DifferenceSignificance::Major)
        ]
    );
}

#[test]
fn a_second_run_with_other_timings_is_equivalent_however_long_it_is() {
    let run = |salt: u64| -> Vec<Value> {
        (0..2000)
            .map(|n| {
                let mut event = executed(n % 5);
                event["payload"]["duration_ms"] = json!((n * 7919 + salt * 31) % 13);
                event
            })
            .collect()
    };
    let mut second = run(2);
    assert_eq!(
        diff_events(&run(1), &second).unwrap().compatibility,
        TraceCompatibility::SemanticallyEquivalent
    );
    second.remove(1200);
    let diff = diff_events(&run(1), &second).unwrap();
    let major: Vec<_> = diff
        .differences
        .iter()
        .filter(|d| d.significance == DifferenceSignificance::Major)
        .collect();
    assert_eq!(major.len(), 1);
    assert_eq!(
        (major[0].path.as_str(), major[0].change),
        ("/1200", DifferenceKind::EventRemoved)
    );
}

/// Edits every 18th event or so; answers the edited trace and what a diff has to say.
fn edited(
    events: &[Value],
    edits: usize,
) -> (Vec<Value>, Vec<(String, DifferenceKind, DifferenceSignificance)>) {
    let (mut out, mut expected) = (Vec::new(), Vec::new());
    let distance = events.len() / edits;
    for (index, event) in events.iter().enumerate() {
        let mut event = event.clone();
        let at = |field: &str| format!("/{index}/payload/{field}");
        if index % distance == distance / 2 && index / distance < edits {
            match index / distance % 5 {
                0 => {
                    event["payload"]["duration_ms"] = json!(77);
                    expected.push((
                        at("duration_ms"),
                        DifferenceKind::ValueChanged,
                        DifferenceSignificance::Minor,
                    ));
                }
                1 => {
                    event["payload"]["result_hash"] = json!("other");
                    expected.push((
                        at("result_hash"),
                        DifferenceKind::ValueChanged,
                        DifferenceSignificance::Major,
                    ));
                }
                2 => {
                    event["payload"]["level"] = json!("none");
                    expected.push((at("level"), DifferenceKind::Added, DifferenceSignificance::Major));
                }
                3 => {
                    expected.push((
                        format!("/{}", out.len()),
                        DifferenceKind::EventAdded,
                        DifferenceSignificance::Major,
                    ));
                    out.push(executed(5_000_000 + index as u64));
                }
                _ => {
                    expected.push((
                        format!("/{index}"),
                        DifferenceKind::EventRemoved,
                        DifferenceSignificance::Major,
                    ));
                    continue;
                }
            }
        }
        out.push(event);
    }
    (out, expected)
}

#[test]
fn exactly_the_530_edits_are_found() {
    let events: Vec<_> = (0..10_000).map(executed).collect();
    let (second, expected) = edited(&events, 530);
    assert_eq!(expected.len(), 530);
    let text = |events: &[Value]| events.iter().map(|e| e.to_string() + "\n").collect::<String>();
    let found = super::diff(&text(&events), &text(&second)).unwrap();
    let found: Vec<_> = found
        .differences
        .into_iter()
        .map(|d| (d.path, d.change, d.significance))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_trace_that_repeats_itself_is_aligned_too() {
    let events: Vec<_> = (0..10_000).map(|n| executed(n % 30)).collect();
    let (second, expected) = edited(&events, 100);
    let diff = diff_events(&events, &second).unwrap();
    assert_eq!(diff.differences.len(), expected.len());
}

#[test]
fn traces_without_anything_in_common_are_told_apart_in_bounded_work() {
    let first: Vec<_> = (0..4000).map(executed).collect();
    let second: Vec<_> = (0..4000)
        .map(|n| json!({"event_type": format!("t{}", n % 3), "payload": {"n": n}}))
        .collect();
    let diff = diff_events(&first, &second).unwrap();
    assert_eq!(diff.differences.len(), 8000);
    assert_eq!(
        diff_events(&[], &[]).unwrap().compatibility,
        TraceCompatibility::Identical
    );
    assert_eq!(diff_events(&first, &[]).unwrap().differences.len(), 4000);
}

#[test]
fn a_line_that_is_no_event_is_named() {
    let error = super::diff("{}\n", "{}\n\n[1]\n").unwrap_err();
    assert_eq!((error.side, error.line), (TraceSide::Second, 3));
    assert!(
        error.to_string().starts_with("the second trace, line 3: "),
        "{error}"
    );
    let deep = format!("{{\"payload\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(super::diff(&deep, "").is_err());
    assert!(super::diff("{} {}", "").is_err());
}

proptest! {
    #[test]
    fn a_diff_is_a_script_from_one_trace_to_the_other(
        first in prop::collection::vec(0u64..6, 0..24),
        second in prop::collection::vec(0u64..6, 0..24),
    ) {
        let events = |numbers: &[u64]| -> Vec<Value> { numbers.iter().map(|n| executed(*n)).collect() };
        let (a, b) = (events(&first), events(&second));
        let keys = RandomState::new();
        let read = |events: &[Value]| {
            let texts: Vec<_> = events.iter().map(|e| Cow::Owned(e.to_string())).collect();
            Trace::of(TraceSide::First, (1..).zip(texts), &keys).unwrap()
        };
        let (mut next_a, mut next_b) = (0, 0);
        for step in align::align_traces(&read(&a), &read(&b)) {
            let (x, y) = match step {
                AlignmentStep::Both(x, y) => (Some(x), Some(y)),
                AlignmentStep::First(x) => (Some(x), None),
                AlignmentStep::Second(y) => (None, Some(y)),
            };
            if let Some(x) = x {
                prop_assert_eq!(x, next_a);
                next_a += 1;
            }
            if let Some(y) = y {
                prop_assert_eq!(y, next_b);
                next_b += 1;
            }
        }
        prop_assert_eq!((next_a, next_b), (a.len(), b.len()));
        let diff = diff_events(&a, &b).unwrap();
        let same = first == second;
        prop_assert_eq!(diff.compatibility == TraceCompatibility::Identical, same);
        prop_assert_eq!(diff.differences.is_empty(), same);
    }

    #[test]
    fn the_shortest_script_is_the_shortest(
        a in prop::collection::vec(0u64..4, 1..40),
        b in prop::collection::vec(0u64..4, 1..40),
    ) {
        let pairs = align::shortest_script(&a, &b);
        prop_assert!(pairs.windows(2).all(|p| p[0].0 < p[1].0 && p[0].1 < p[1].1));
        prop_assert!(pairs.iter().all(|(x, y)| a[*x] == b[*y]));
        let mut table = vec![vec![0usize; b.len() + 1]; a.len() + 1];
        for x in 0..a.len() {
            for y in 0..b.len() {
                table[x + 1][y + 1] = if a[x] == b[y] {
                    table[x][y] + 1
                } else {
                    table[x + 1][y].max(table[x][y + 1])
                };
            }
        }
        prop_assert_eq!(pairs.len(), table[a.len()][b.len()]);
    }
}
