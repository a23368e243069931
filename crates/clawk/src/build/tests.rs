use clawk_manifest::{WireOptions, from_value};
use serde_json::{Value, json};

use super::{BuildFeature, feature_uses, missing_from_build};
use crate::config::Settings;

fn uses(spec: &Value, config: &str) -> Vec<(BuildFeature, String)> {
    let mut whole = json!({"identity": {"inline": {"personality": "p"}},
        "providers": [{"inline": {"protocol": "custom", "endpoint": "script:x", "model": "m", "auth": {"type": "none"}}}]});
    let members = spec.as_object().unwrap().clone();
    whole.as_object_mut().unwrap().extend(members);
    let manifest = json!({"claw": "0.3.0", "kind": "Claw", "metadata": {"name": "w"}, "spec": whole});
    let loaded = from_value(&manifest, &WireOptions::default());
    let manifest = loaded
        .manifest
        .unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let settings: Settings = toml::from_str(config).unwrap();
    let missing = missing_from_build(&manifest, &settings);
    let all = feature_uses(&manifest, &settings);
    // What is reported is exactly what this build has not, each with its cure.
    let absent: Vec<_> = all.iter().filter(|used| !used.feature.is_present()).collect();
    assert_eq!(missing.len(), absent.len());
    for (found, used) in missing.iter().zip(absent) {
        let cure = found.help.as_deref().unwrap();
        assert!(
            cure.contains(&format!("--features {}", used.feature.name())),
            "{cure}"
        );
    }
    all.into_iter().map(|used| (used.feature, used.pointer)).collect()
}

fn channel(kind: &str, more: Value) -> Value {
    let mut channel =
        json!({"name": "c", "type": kind, "transport": "polling", "auth": {"secret_ref": "NONE"}});
    channel
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({"channels": [{"inline": channel}]})
}

#[test]
fn whatever_needs_an_optional_part_is_found() {
    let at = |text: &str| text.to_owned();
    let mail = channel("imap", json!({"trigger": {"mailbox": "INBOX"}}));
    assert_eq!(
        uses(&mail, ""),
        [(BuildFeature::Mail, at("/spec/channels/0/type"))]
    );
    let queue = channel("queue", json!({"trigger": {"queue_name": "q"}}));
    for (url, feature) in [("nats", BuildFeature::Nats), ("redis", BuildFeature::Redis)] {
        let config = format!("[channels.c]\nurl = \"{url}://127.0.0.1\"\n");
        assert_eq!(uses(&queue, &config), [(feature, at("/spec/channels/0/type"))]);
    }
    assert!(uses(&queue, "[channels.c]\nurl = \"amqp://127.0.0.1\"\n").is_empty());
    for (level, feature) in [("wasm", BuildFeature::Wasm), ("vm", BuildFeature::Vm)] {
        let sandbox = json!({"sandbox": {"inline": {"level": level}}});
        assert_eq!(uses(&sandbox, ""), [(feature, at("/spec/sandbox"))]);
    }
    let tool =
        json!({"tools": [{"inline": {"name": "t", "description": "d", "input_schema": {"type": "object"}}}]});
    assert_eq!(
        uses(&tool, "[tools.t]\nwasm = \"t.wasm\"\n"),
        [(BuildFeature::Wasm, at("/spec/tools/0"))]
    );
    let memory = json!({"memory": {"inline": {"stores": [{"name": "a", "type": "semantic"}, {"name": "b", "type": "semantic", "backend": "pgvector"}]}}});
    assert_eq!(
        uses(&memory, ""),
        [(BuildFeature::Postgres, at("/spec/memory/stores/1/backend"))]
    );
    assert_eq!(
        uses(&json!({}), "[state]\nurl = \"postgres://h/d\"\n"),
        [(BuildFeature::Postgres, String::new())]
    );
    assert_eq!(
        uses(&json!({}), "[peers.p]\nbus = \"nats://127.0.0.1\"\n"),
        [(BuildFeature::Nats, String::new())]
    );
    assert!(uses(&json!({"tools": ["file-read"]}), "").is_empty());
}
