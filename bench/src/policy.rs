//! Measures one policy decision, with few rules and with many.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use clawk_manifest::model::Policy;
use clawk_policy::{Effect, Engine, PolicySubject, UsageView};
use serde_json::{Map, Value, json};

/// Decisions per round. The fastest round counts, because other programs use this machine, too.
const DECISIONS: u32 = 20_000;
const ROUNDS: u32 = 25;

/// Nanoseconds of one decision that only the last of `rules` rules matches.
///
/// # Errors
/// The rules do not compile, or decide differently than expected.
pub(crate) fn nanoseconds(rules: u32) -> Result<f64> {
    let engine = engine(rules)?;
    let tool = format!("tool-{}", rules.saturating_sub(1));
    let labels = BTreeMap::from([("category".to_owned(), "files".to_owned())]);
    let arguments = Map::from_iter([("path".to_owned(), json!("src/main.rs"))]);
    let annotations = Map::new();
    let subject = PolicySubject {
        values: None,
        tool: &tool,
        labels: &labels,
        annotations: &annotations,
        arguments: &arguments,
        schema: None,
        taint: None,
        workdir: Path::new("/srv/agent"),
        usage: UsageView::default(),
        places: None,
    };
    ensure!(
        engine.decide(&subject).effect == Effect::Allow,
        "the last rule must decide"
    );
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..DECISIONS {
            black_box(engine.decide(black_box(&subject)));
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(DECISIONS));
    }
    Ok(best)
}

/// Builds rules of every form in turn: by exact name, by glob, by category, by annotation, by the folder of a path.
fn engine(rules: u32) -> Result<Engine> {
    let rule = |n: u32| {
        let (scope, matched) = match n % 5 {
            1 => ("tool", json!({ "name": format!("other-{n}-*") })),
            2 => ("category", json!({ "category": format!("category-{n}") })),
            3 => ("tool", json!({ "annotations": { "destructiveHint": true } })),
            4 => (
                "tool",
                json!({ "name": format!("tool-{n}"), "labels": { "team": format!("team-{n}") } }),
            ),
            _ => ("tool", json!({ "name": format!("tool-{n}") })),
        };
        json!({ "id": format!("rule-{n}"), "action": "deny", "scope": scope, "match": matched })
    };
    let last = json!({
        "id": "last", "action": "allow", "scope": "tool",
        "match": { "name": format!("tool-{}", rules.saturating_sub(1)) },
    });
    let list: Vec<Value> = (0..rules.saturating_sub(1)).map(rule).chain([last]).collect();
    let policy: Policy = serde_json::from_value(json!({ "name": "bench", "rules": list }))?;
    Ok(Engine::compile(&[policy])?)
}
