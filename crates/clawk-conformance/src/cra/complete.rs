//! What the document's fixtures leave out, filled in as the facts of the protocol say.
//!
//! Its policy Atlases have no actions, its packs no names and no files, and its requests name an `action`, which the
//! schema forbids: the actions that a case mentions are declared, and it is those that are evaluated.

use serde_json::{Map, Value, json};

/// An Atlas to be governed by: its manifest and its files.
#[derive(Debug, Clone)]
pub(super) struct AtlasPackage {
    pub(super) manifest: Value,
    /// Name below the folder, and text.
    pub(super) files: Vec<(String, String)>,
}

/// A whole Atlas of a fixture's parts. `mentioned`: actions that the case asks about.
pub(super) fn atlas(parts: &Map<String, Value>, mentioned: &[String]) -> AtlasPackage {
    let mut manifest = Map::from_iter([
        ("atlas_version".to_owned(), json!("1.0")),
        ("atlas_id".to_owned(), json!("com.example.case")),
        ("version".to_owned(), json!("1.0.0")),
        ("name".to_owned(), json!("Case")),
        ("description".to_owned(), json!("The Atlas of a conformance case")),
    ]);
    manifest.extend(parts.clone());
    let mut actions: Vec<String> = strings(parts, "capabilities", "actions");
    actions.extend(mentioned.iter().cloned());
    actions.sort_unstable();
    actions.dedup();
    let declared = manifest.entry("actions").or_insert_with(|| json!([]));
    if let Value::Array(declared) = declared {
        let known: Vec<String> = declared
            .iter()
            .filter_map(|action| text(action, "action_id"))
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
            let name = text(entry, id).unwrap_or_default();
            if let Value::Object(entry) = entry {
                entry.entry("name").or_insert(Value::String(name));
            }
        }
    }
    let files = strings(parts, "context_packs", "files")
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

/// A whole resolve request of a fixture's parts.
pub(super) fn request(parts: &Map<String, Value>) -> Value {
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

/// Stands where a session or a request gets its own id.
pub(super) const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// The strings under `inner` of every entry of `outer`.
fn strings(parts: &Map<String, Value>, outer: &str, inner: &str) -> Vec<String> {
    let entries = parts.get(outer).and_then(Value::as_array).into_iter().flatten();
    entries
        .filter_map(|entry| entry.get(inner).and_then(Value::as_array))
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
