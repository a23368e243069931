//! Completes the document's fixtures to valid protocol data.
//!
//! Its policy Atlases have no actions, its packs no names or files, and its requests name an `action`, which the schema forbids. So
//! the actions that a case mentions are declared, and exactly these are evaluated.

use serde_json::{Map, Value, json};

/// An Atlas for a target: its manifest and its files.
#[derive(Debug, Clone)]
pub(super) struct AtlasPackage {
    pub(super) manifest: Value,
    /// Path within the folder, and text.
    pub(super) files: Vec<(String, String)>,
}

/// Returns a complete Atlas made from a fixture's parts. `mentioned`: the actions that the case uses.
pub(super) fn complete_atlas(parts: &Map<String, Value>, mentioned: &[String]) -> AtlasPackage {
    let mut manifest = Map::from_iter([
        ("atlas_version".to_owned(), json!("1.0")),
        ("atlas_id".to_owned(), json!("com.example.case")),
        ("version".to_owned(), json!("1.0.0")),
        ("name".to_owned(), json!("Case")),
        ("description".to_owned(), json!("The Atlas of a conformance case")),
    ]);
    manifest.extend(parts.clone());
    let mut actions: Vec<String> = nested_strings(parts, "capabilities", "actions");
    actions.extend(mentioned.iter().cloned());
    actions.sort_unstable();
    actions.dedup();
    let declared = manifest.entry("actions").or_insert_with(|| json!([]));
    if let Value::Array(declared) = declared {
        let known: Vec<String> = declared
            .iter()
            .filter_map(|action| text_member(action, "action_id"))
            .collect();
        for id in actions.iter().filter(|id| !known.contains(id)) {
            declared.push(json!({ "action_id": id, "name": id, "description": "An action of the case" }));
        }
    }
    for (list, id) in [("context_packs", "pack_id"), ("capabilities", "capability_id")] {
        for entry in manifest
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let name = text_member(entry, id).unwrap_or_default();
            if let Value::Object(entry) = entry {
                entry.entry("name").or_insert(Value::String(name));
            }
        }
    }
    let files = nested_strings(parts, "context_packs", "files")
        .into_iter()
        .map(|name| {
            let body = format!("Text of {name}.\n");
            (name, body)
        })
        .collect();
    AtlasPackage {
        manifest: Value::Object(manifest),
        files,
    }
}

/// Returns a complete resolve request made from a fixture's parts.
pub(super) fn complete_request(parts: &Map<String, Value>) -> Value {
    let mut request = Map::from_iter([
        ("carp_version".to_owned(), json!("1.0")),
        (
            "requester".to_owned(),
            json!({ "agent_id": "test-agent", "session_id": NOBODY }),
        ),
        ("operation".to_owned(), json!("resolve")),
        ("task".to_owned(), json!({ "goal": "Test goal" })),
    ]);
    request.extend(parts.clone());
    request.remove("action");
    Value::Object(request)
}

/// Placeholder for the id of a session or a request.
pub(super) const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

fn text_member(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// Returns the strings under `inner` of every entry of `outer`.
fn nested_strings(parts: &Map<String, Value>, outer: &str, inner: &str) -> Vec<String> {
    let entries = parts.get(outer).and_then(Value::as_array).into_iter().flatten();
    entries
        .filter_map(|entry| entry.get(inner).and_then(Value::as_array))
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
