use std::collections::BTreeMap;

use clawk_providers::{ProviderConfig, ProviderFactory, ScriptAccess};
use clawk_secrets::{EnvironmentSource, SecretResolver};
use serde_json::{Value, json};

use crate::fixture::*;

fn refusal(change: impl FnOnce(&mut Value)) -> String {
    let mut spec = spec("openai-compatible", "https://api.example.com/v1", true);
    change(&mut spec);
    let spec = serde_json::from_value(spec).unwrap();
    factory(ProviderConfig::default(), "/nonexistent".into())
        .build_provider(&spec)
        .unwrap_err()
        .to_string()
}

#[test]
fn what_cannot_be_served_is_refused_with_the_cure() {
    for (change, words) in [
        (json!({ "transport": "grpc" }), "only `http` is served"),
        (json!({ "endpoint": "ftp://x" }), "must be http or https"),
        (json!({ "endpoint": "nonsense" }), "is not a URL"),
        (
            json!({ "endpoint": "https://u:canary@x/" }),
            "must not hold credentials",
        ),
        (
            json!({ "auth": { "type": "bearer" } }),
            "`auth.secret_ref` is required",
        ),
        (
            json!({ "auth": { "type": "oauth2", "secret_ref": "K" } }),
            "`[providers.main] token_url` is required",
        ),
        (
            json!({ "protocol": "custom", "endpoint": "https://x" }),
            "must be `script:PATH`",
        ),
        (
            json!({ "protocol": "custom", "endpoint": "script:missing.yaml" }),
            "cannot be read",
        ),
    ] {
        let message = refusal(|spec| {
            spec.as_object_mut()
                .unwrap()
                .extend(change.as_object().cloned().unwrap());
        });
        assert!(message.contains("`main`") && message.contains(words), "{message}");
        assert!(!message.contains("canary"), "{message}");
    }
}

#[test]
fn unknown_keys_of_the_configuration_are_errors() {
    assert!(toml::from_str::<ProviderConfig>("token_uri = 'x'").is_err());
    assert_eq!(
        toml::from_str::<ProviderConfig>("").unwrap(),
        ProviderConfig::default()
    );
}

#[test]
fn scripts_stay_inside_the_manifests_directory() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("agent");
    std::fs::create_dir(&inside).unwrap();
    let script = "scenes: [{steps: [{say: hi}]}]";
    std::fs::write(dir.path().join("out.yaml"), script).unwrap();
    std::fs::write(inside.join("in.yaml"), script).unwrap();
    std::os::unix::fs::symlink("../out.yaml", inside.join("link.yaml")).unwrap();
    let make = |scripts: ScriptAccess, endpoint: &str| {
        let spec = serde_json::from_value(spec("custom", endpoint, true)).unwrap();
        ProviderFactory::new(
            SecretResolver::without_store(EnvironmentSource::default()),
            BTreeMap::new(),
            scripts,
        )
        .build_provider(&spec)
        .map(|_| ())
    };
    let absolute = format!("file://{}", inside.join("in.yaml").display());
    for endpoint in [
        "script:in.yaml",
        "file:in.yaml",
        "script:../agent/in.yaml",
        &absolute,
    ] {
        make(ScriptAccess::Inside(inside.clone()), endpoint).unwrap();
        make(ScriptAccess::Refused, endpoint).unwrap_err();
    }
    for endpoint in [
        "script:../out.yaml",
        "script:link.yaml",
        "script:../../none.yaml",
        "script:/none.yaml",
    ] {
        let message = make(ScriptAccess::Inside(inside.clone()), endpoint)
            .unwrap_err()
            .to_string();
        assert!(message.contains("--allow-outside"), "{message}");
    }
    make(ScriptAccess::Anywhere(inside), "script:../out.yaml").unwrap();
}
