//! A manifest for tests, here and in other crates.

#![expect(clippy::expect_used, reason = "a test part: a broken one should fail loudly")]

use std::path::PathBuf;

use clawk_manifest::model::Manifest;

/// A manifest from the model's own JSON: `identity`, `providers`, `tools`, … Names are as given; no rule is checked.
///
/// # Panics
/// The JSON is not the model's.
#[must_use]
pub fn manifest(spec: serde_json::Value) -> Manifest {
    fn part<T: serde::de::DeserializeOwned>(spec: &serde_json::Value, name: &str) -> Option<T> {
        spec.get(name)
            .map(|value| serde_json::from_value(value.clone()).expect(name))
    }
    let identity =
        serde_json::json!({"name": "tester", "personality": "You test.", "autonomy": "autonomous"});
    let provider = serde_json::json!([{
        "name": "model", "protocol": "custom", "endpoint": "script:none", "model": "scripted", "auth": {"type": "none"},
    }]);
    Manifest {
        claw: semver::Version::new(0, 3, 0),
        metadata: clawk_manifest::model::Metadata {
            name: "tester".to_owned(),
            ..Default::default()
        },
        identity: part(&spec, "identity")
            .unwrap_or_else(|| serde_json::from_value(identity).expect("identity")),
        providers: part(&spec, "providers")
            .unwrap_or_else(|| serde_json::from_value(provider).expect("provider")),
        channels: part(&spec, "channels").unwrap_or_default(),
        tools: part(&spec, "tools").unwrap_or_default(),
        skills: part(&spec, "skills").unwrap_or_default(),
        memory: part(&spec, "memory"),
        world_models: part(&spec, "world_models").unwrap_or_default(),
        sandbox: part(&spec, "sandbox"),
        further_sandboxes: part(&spec, "further_sandboxes").unwrap_or_default(),
        policies: part(&spec, "policies").unwrap_or_default(),
        swarm: part(&spec, "swarm"),
        telemetry: None,
        dir: PathBuf::from("/work"),
    }
}
