//! The committed JSON Schemas, and that shape, typed model and schema say the same.

use std::path::PathBuf;

use clawk_manifest::{LoadOptions, SCHEMA_KINDS, schema_file, schema_for_kind, validate_primitive};
use serde_json::{Map, Value, json};

fn committed(kind: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../schema")
        .join(schema_file(kind))
}

/// `UPDATE_SCHEMA=1 cargo test -p clawk-manifest` writes them anew.
#[test]
fn the_committed_schemas_are_the_printed_ones() {
    #[expect(
        clippy::disallowed_methods,
        reason = "a switch for the author of the schema, not configuration"
    )]
    let update = std::env::var_os("UPDATE_SCHEMA").is_some();
    for kind in SCHEMA_KINDS {
        let printed = format!(
            "{}\n",
            serde_json::to_string_pretty(&schema_for_kind(kind).unwrap()).unwrap()
        );
        if update {
            std::fs::write(committed(kind), &printed).unwrap();
        }
        let found = std::fs::read_to_string(committed(kind)).unwrap_or_default();
        assert!(
            found == printed,
            "{} differs: run UPDATE_SCHEMA=1 cargo test -p clawk-manifest",
            schema_file(kind)
        );
    }
    assert!(
        schema_for_kind("Nonsense").is_none()
            && schema_for_kind("world-model").is_some()
            && schema_for_kind("tool").is_some()
    );
}

/// An instance of a schema with every member present, so that a member the model lacks (or one more) shows.
pub(crate) fn fullest(schema: &Value, key: &str) -> Value {
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return words[0].clone();
    }
    if let Some(example) = schema.get("examples").and_then(|examples| examples.get(0)) {
        return example.clone();
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => match key {
            "endpoint" => json!("https://example.com/v1"),
            "uri" => json!("https://example.com/mcp"),
            _ => json!("x1"),
        },
        Some("boolean") => json!(key != "composite"),
        Some("integer" | "number") => json!(schema["minimum"].as_u64().unwrap_or(0).max(1)),
        Some("array") => json!([fullest(&schema["items"], key)]),
        Some("object") => {
            let mut out = Map::new();
            for (name, member) in schema
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                let value = if member.get("const").is_some() {
                    member["const"].clone()
                } else {
                    fullest(member, name)
                };
                out.insert(name.clone(), value);
            }
            Value::Object(out)
        }
        _ => json!({}),
    }
}

/// Members that exclude each other cannot all be present; the model still knows each.
pub(crate) fn without_conflicts(kind: &str, spec: &mut Value) {
    if kind == "Channel" {
        spec["access_control"] =
            json!({"mode": "pairing", "pairing": {"code_expiry_minutes": 1, "max_pending": 1}});
    }
    if kind == "WorldModel" {
        spec["memory_ref"] = json!("x1");
    }
}

#[test]
fn every_member_of_the_schema_is_a_member_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    for kind in SCHEMA_KINDS.into_iter().filter(|kind| *kind != "Claw") {
        let mut spec = fullest(&schema_for_kind(kind).unwrap()["properties"]["spec"], "spec");
        without_conflicts(kind, &mut spec);
        let document = json!({"claw": "0.3.0", "kind": kind, "metadata": {"name": "x1"}, "spec": spec});
        let path = dir.path().join(format!("{kind}.json"));
        std::fs::write(&path, document.to_string()).unwrap();
        let loaded = validate_primitive(&path, &LoadOptions::default());
        assert!(loaded.is_valid(), "{kind}: {:#?}", loaded.diagnostics);
    }
}
