//! Fragments of configuration that a page shows: each is accepted by the program, in the frame that it belongs to.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::{Value, json};

/// Fails unless clawk accepts the fragment.
pub(super) fn tried(folder: &Path, language: &str, text: &str, place: &str) {
    match language {
        "toml" => {
            fs::write(folder.join("clawk.toml"), text).unwrap();
            clawk(folder, &["config", "--config", "clawk.toml"], place, text);
        }
        "yaml" => yaml(folder, text, place),
        "json" if text.contains('…') => {}
        "json" => {
            let parsed = serde_json::from_str::<Value>(text);
            assert!(parsed.is_ok(), "{place}: {parsed:?}");
        }
        other => panic!("{place}: {other}"),
    }
}

fn yaml(folder: &Path, text: &str, place: &str) {
    let value: Value = serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{place}: {error}"));
    let has = |key: &str| value.get(key).is_some();
    fs::write(
        folder.join("script.yaml"),
        "scenes: [{ steps: [{ say: hello }] }]\n",
    )
    .unwrap();
    if has("claw") {
        fs::write(folder.join("document.yaml"), text).unwrap();
        clawk(folder, &["validate", "document.yaml"], place, text);
    } else if has("scenes") {
        fs::write(folder.join("script.yaml"), text).unwrap();
        fs::write(folder.join("claw.yaml"), manifest(&json!({})).to_string()).unwrap();
        // A script that can't be read is a warning of `validate`, because another machine may have it.
        let told = clawk(folder, &["validate", "claw.yaml"], place, text);
        assert!(!told.contains("warning[provider]"), "{place}: {told}");
    } else if has("rules") {
        let policy = json!([{ "inline": { "name": "shown", "rules": value["rules"] } }]);
        let whole = manifest(&json!({ "policies": policy }));
        fs::write(folder.join("claw.yaml"), whole.to_string()).unwrap();
        clawk(folder, &["validate", "claw.yaml"], place, text);
    } else if value.is_array() {
        // A list of its own in a page is one of channels.
        fs::write(
            folder.join("claw.yaml"),
            manifest(&json!({ "channels": value })).to_string(),
        )
        .unwrap();
        clawk(folder, &["validate", "claw.yaml"], place, text);
    } else {
        let spec = value.get("spec").unwrap_or(&value);
        fs::write(folder.join("claw.yaml"), manifest(spec).to_string()).unwrap();
        clawk(folder, &["validate", "claw.yaml"], place, text);
    }
}

/// A manifest with these members of `spec`, and the least besides.
fn manifest(spec: &Value) -> Value {
    let mut whole = json!({
        "claw": "0.3.0",
        "kind": "Claw",
        "metadata": { "name": "shown", "version": "1.0.0" },
        "spec": {
            "identity": { "inline": { "name": "shown", "personality": "You are shown.", "autonomy": "supervised" } },
            "providers": [{ "inline": {
                "name": "main", "protocol": "custom", "endpoint": "script:script.yaml", "model": "m", "auth": { "type": "none" },
            } }],
        },
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole["spec"][key] = value.clone();
    }
    whole
}

/// What clawk says; it must succeed.
fn clawk(folder: &Path, words: &[&str], place: &str, text: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_clawk"))
        .args(words)
        .env("XDG_STATE_HOME", folder.join("state"))
        .env("HOME", folder)
        .current_dir(folder)
        .output()
        .unwrap();
    let told = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success(),
        "{place}: {words:?} refuses\n{text}\n{told}"
    );
    told
}
