//! The bounds of numbers and lists: the schema and the checker hold the same ones.

use clawk_manifest::{LoadOptions, LoadedDocument, SCHEMA_KINDS, schema_for_kind, validate_primitive};
use serde_json::{Value, json};

use crate::schemas::{fullest, without_conflicts};
use crate::{errors, load_text, manifest};

/// A bound of the schema: where, in JSON pointers of the schema and of a document, and which.
struct Bound {
    path: String,
    pointer: String,
    /// Of a number, else of a list.
    number: bool,
    least: f64,
    /// The same as a whole number, where it is one.
    exact: Option<u64>,
}

fn bounds(schema: &Value, path: &str, pointer: &str, out: &mut Vec<Bound>) {
    for (key, number) in [("minimum", true), ("minItems", false)] {
        if let Some(least) = schema[key].as_f64() {
            let (path, pointer) = (path.to_owned(), pointer.to_owned());
            out.push(Bound {
                path,
                pointer,
                number,
                least,
                exact: schema[key].as_u64(),
            });
        }
    }
    if schema["items"].is_object() {
        bounds(
            &schema["items"],
            &format!("{path}[]"),
            &format!("{pointer}/0"),
            out,
        );
    }
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        bounds(member, &path, &format!("{pointer}/{name}"), out);
    }
}

fn with(kind: &str, pointer: &str, value: Value) -> LoadedDocument {
    let mut spec = fullest(&schema_for_kind(kind).unwrap()["properties"]["spec"], "spec");
    without_conflicts(kind, &mut spec);
    if let Some(place) = spec.pointer_mut(pointer) {
        *place = value;
    } else {
        assert!(pointer.starts_with("/access_control"), "{kind} {pointer}");
    }
    let document = json!({"claw": "0.3.0", "kind": kind, "metadata": {"name": "x1"}, "spec": spec});
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("primitive.json");
    std::fs::write(&path, document.to_string()).unwrap();
    validate_primitive(&path, &LoadOptions::default())
}

#[test]
fn every_bound_of_the_schema_is_kept_by_the_checker() {
    let mut seen = 0;
    for kind in SCHEMA_KINDS.into_iter().filter(|kind| *kind != "Claw") {
        let mut all = Vec::new();
        bounds(
            &schema_for_kind(kind).unwrap()["properties"]["spec"],
            "",
            "",
            &mut all,
        );
        for bound in all {
            let below = match (bound.number, bound.exact) {
                (false, _) => json!([]),
                (true, Some(0)) => json!(-1),
                (true, Some(least)) => json!(least - 1),
                (true, None) => json!(bound.least - 1.0),
            };
            let code = if bound.number {
                "out-of-range"
            } else {
                "empty-list"
            };
            let refused = errors(&with(kind, &bound.pointer, below));
            let expected = format!("{code} /spec{}", bound.pointer);
            assert!(refused.contains(&expected), "{kind} {}: {refused:?}", bound.path);
            if bound.number {
                let least = bound.exact.map_or(json!(bound.least), Value::from);
                let taken = errors(&with(kind, &bound.pointer, least));
                assert!(taken.is_empty(), "{kind} {}: {taken:?}", bound.path);
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn the_public_schemas_bounds_are_there() {
    let least = [
        ("Provider", "retry.max_attempts", 1.0),
        ("Tool", "retry.max_attempts", 1.0),
        ("Memory", "stores[].retention.max_entries", 1.0),
        ("Memory", "stores[].search.top_k", 1.0),
        ("Memory", "stores[].max_size_mb", 1.0),
        ("Memory", "stores[].checkpoint.max_snapshots", 1.0),
        ("Swarm", "coordination.concurrency.max_parallel", 1.0),
        ("Swarm", "failure.circuit_breaker.failure_threshold", 1.0),
        ("Channel", "trigger.max_parallel", 1.0),
        ("Channel", "processing.max_message_length", 1.0),
        ("Channel", "access_control.pairing.code_expiry_minutes", 1.0),
        ("Telemetry", "exporters[].batch.max_size", 1.0),
        ("Telemetry", "exporters[].batch.flush_interval_ms", 100.0),
        ("Skill", "tools_required", 1.0),
        ("Channel", "trigger.events", 1.0),
    ];
    for (kind, path, expected) in least {
        let mut all = Vec::new();
        bounds(
            &schema_for_kind(kind).unwrap()["properties"]["spec"],
            "",
            "",
            &mut all,
        );
        let found = all.iter().find(|bound| bound.path == path);
        assert_eq!(found.map(|bound| bound.least), Some(expected), "{kind} {path}");
    }
}

#[test]
fn hints_are_booleans_and_other_annotations_are_data() {
    for hint in [
        "readOnlyHint",
        "destructiveHint",
        "idempotentHint",
        "openWorldHint",
    ] {
        let told = errors(&with("Tool", "/annotations", json!({hint: "yes"})));
        assert_eq!(told, [format!("wrong-type /spec/annotations/{hint}")]);
        assert_eq!(
            schema_for_kind("Tool").unwrap().pointer(&format!(
                "/properties/spec/properties/annotations/properties/{hint}/type"
            )),
            Some(&json!("boolean"))
        );
    }
    let data = json!({"readOnlyHint": true, "title": "Echo", "cost": {"usd": 1}});
    assert_eq!(errors(&with("Tool", "/annotations", data)), [""; 0]);
}

#[test]
fn the_empty_schema_is_a_schema() {
    let loaded = load_text(&manifest(
        "  tools:\n    - inline: {name: t, description: d, input_schema: {}, output_schema: {}}\n",
    ));
    assert_eq!(errors(&loaded), [""; 0]);
    // Who reads it finds what it means.
    let tool = &loaded.manifest.unwrap().tools[0];
    assert_eq!(tool.input_schema, Some(json!({"type": "object"})));
    assert_eq!(
        errors(&with("Tool", "/input_schema", json!({"type": "array"}))),
        ["bad-schema /spec/input_schema/type"]
    );
}

#[test]
fn twenty_thousand_rules_load() {
    use std::fmt::Write as _;
    let mut text = manifest("  policies:\n    - inline:\n        name: many\n        rules:\n");
    for n in 0..20_000 {
        writeln!(
            text,
            "          - {{ id: rule-{n}, action: deny, scope: tool, match: {{ name: tool-{n}, labels: {{ a: b }} }}, reason: no }}"
        )
        .unwrap();
    }
    let started = std::time::Instant::now();
    let loaded = load_text(&text);
    assert_eq!(errors(&loaded), [""; 0]);
    assert_eq!(loaded.manifest.unwrap().policies[0].rules.len(), 20_000);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[test]
fn a_name_that_is_taken_is_shown_at_the_second_one() {
    let tool = |name: &str| format!("    - inline: {{name: {name}, description: d, input_schema: {{}}}}\n");
    let loaded = load_text(&manifest(&format!(
        "  tools:\n{}{}{}",
        tool("same"),
        tool("other"),
        tool("same")
    )));
    assert_eq!(errors(&loaded), ["name-collision /spec/tools/2/inline/name"]);
    let found = loaded
        .diagnostics
        .iter()
        .find(|one| one.code == "name-collision")
        .unwrap();
    assert!(
        found
            .message
            .contains("the first is at /spec/tools/0/inline/name"),
        "{}",
        found.message
    );
    assert_eq!(found.line, Some(20));
}

#[test]
fn a_third_of_a_name_is_told_of_the_first_in_its_file() {
    let loaded = crate::load_files(&[
        ("claw.yaml", &manifest("  tools: [\"tools/*.yaml\"]\n")),
        ("tools/a.yaml", TOOL),
        ("tools/b.yaml", TOOL),
    ]);
    assert_eq!(errors(&loaded), ["name-collision /metadata/name"]);
    let found = loaded
        .diagnostics
        .iter()
        .find(|one| one.code == "name-collision")
        .unwrap();
    assert!(found.file.as_ref().unwrap().ends_with("b.yaml"), "{found:?}");
    assert!(found.message.contains("a.yaml"), "{}", found.message);
}

const TOOL: &str = "claw: \"0.3.0\"\nkind: Tool\nmetadata: {name: same}\nspec: {description: d, input_schema: {type: object}}\n";

#[test]
fn no_number_of_warnings_hides_an_error() {
    let warned = "    - inline: {name: N, description: d, input_schema: {}, skill_ref: s}\n";
    let mut tools = String::from(
        "  skills:\n    - inline: {name: s, description: d, tools_required: [plain], instruction: i}\n  tools:\n    \
         - inline: {name: plain, description: d, input_schema: {}}\n",
    );
    for n in 0..600 {
        tools.push_str(&warned.replace("name: N", &format!("name: t{n}")));
    }
    tools.push_str("    - inline: {name: bad, description: d, input_schema: {}, policy_ref: nobody}\n");
    let loaded = load_text(&manifest(&tools));
    assert_eq!(
        errors(&loaded),
        ["unresolved-reference /spec/tools/601/inline/policy_ref"]
    );
    assert!(loaded.manifest.is_none());
}
