//! Untrusted input: any bytes end in findings, never in a panic, and in bounded time and memory.

use clawk_manifest::{LoadOptions, WireOptions, from_value, load_manifest, render_diagnostics};
use clawk_proto::uri::ClawUri;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{errors, load_text, manifest};

#[test]
fn deep_wide_and_laughing_documents() {
    assert_eq!(errors(&load_text(&"[".repeat(10_000))), ["too-deep "]);
    assert_eq!(
        errors(&load_text(&manifest(&format!(
            "  tools: {}\n",
            "{a: ".repeat(10_000)
        )))),
        ["too-deep "]
    );
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        laughs.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            vec![format!("*a{}", level - 1); 10].join(", ")
        ));
    }
    let found = load_text(&laughs).diagnostics;
    assert_eq!((found.len(), found[0].code), (1, "too-large"));
    let mut value = json!(1);
    for _ in 0..1_000 {
        value = json!([value]);
    }
    assert_eq!(
        errors(&from_value(
            &json!({"kind": "Claw", "spec": value}),
            &WireOptions::default()
        )),
        ["too-deep "]
    );
}

#[test]
fn large_files_odd_files_and_odd_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claw.yaml");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(100 << 20).unwrap();
    let started = std::time::Instant::now();
    assert_eq!(
        errors(&load_manifest(&path, &LoadOptions::default())),
        ["too-large "]
    );
    assert!(started.elapsed().as_secs() < 5);
    std::fs::write(&path, b"claw: \"0.3.0\"\nkind: \xff\n").unwrap();
    let loaded = load_manifest(&path, &LoadOptions::default());
    assert!(
        loaded.diagnostics[0].message.contains("line 2"),
        "{:?}",
        loaded.diagnostics
    );
    assert_eq!(
        errors(&load_manifest(dir.path(), &LoadOptions::default())),
        ["not-a-file "]
    );
    assert_eq!(
        errors(&load_manifest(
            &dir.path().join("none.yaml"),
            &LoadOptions::default()
        )),
        ["file-not-found "]
    );
}

#[test]
fn thousands_of_wrong_references_end_soon() {
    let tools: Vec<Value> = (0..8_000)
        .map(|n| json!({"inline": {"name": format!("t{n}"), "description": "d", "input_schema": {"type": "object"}, "sandbox_ref": "gone"}}))
        .collect();
    let needs: Vec<String> = (0..20_000).map(|n| format!("u{n}")).collect();
    let value = json!({"kind": "Claw", "metadata": {"name": "t"}, "spec": {
        "identity": {"inline": {"personality": "p"}}, "tools": tools,
        "providers": [{"inline": {"protocol": "custom", "endpoint": "e", "model": "m", "auth": {"type": "none"}}}],
        "skills": [{"inline": {"description": "d", "instruction": "i", "tools_required": needs}}]}});
    let started = std::time::Instant::now();
    let loaded = from_value(&value, &WireOptions::default());
    assert!(!loaded.is_valid() && loaded.diagnostics.len() <= 1_000);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

fn full() -> String {
    std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/vectors/tv-l3-01.yaml"
    ))
    .unwrap()
}

/// Any JSON, with the words of manifests among its keys.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z:/@.*-]{0,12}".prop_map(Value::from),
        Just(json!("claw://tool/x")),
        Just(json!("allowlist")),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        let key = prop_oneof![
            "[a-z_]{1,8}",
            proptest::sample::select(vec![
                "inline",
                "name",
                "type",
                "auth",
                "rules",
                "match",
                "mode",
                "stores",
                "input_schema",
                "mcp_source",
                "uri",
                "fallback",
                "provider_ref",
                "tools_required",
                "backend",
                "ref",
                "trigger",
                "access_control",
                "labels",
                "annotations",
                "level",
            ])
            .prop_map(str::to_owned)
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claw.yaml");
        std::fs::write(&path, &bytes).unwrap();
        let loaded = load_manifest(&path, &LoadOptions::default());
        prop_assert!(!loaded.is_valid() && loaded.manifest.is_none());
        let _ = render_diagnostics(&loaded.diagnostics, &loaded.sources, true);
    }

    #[test]
    fn mutated_manifests_never_panic(at in any::<proptest::sample::Index>(), length in 0usize..20, with in "[ \\-:{}\\[\\]\"'&*#!|>a-z0-9\n\té]{0,12}") {
        let mut text: Vec<char> = full().chars().collect();
        let from = at.index(text.len());
        let to = (from + length).min(text.len());
        text.splice(from..to, with.chars());
        let loaded = load_text(&text.into_iter().collect::<String>());
        prop_assert_eq!(loaded.manifest.is_some(), loaded.is_valid());
        let _ = render_diagnostics(&loaded.diagnostics, &loaded.sources, false);
    }

    #[test]
    fn arbitrary_specs_never_panic(spec in any_json(), slot in proptest::sample::select(vec![
        "identity", "providers", "channels", "tools", "skills", "memory", "world_models", "sandbox", "policies", "swarm", "telemetry"])) {
        let one = json!({"inline": spec.clone()});
        let value = if slot.ends_with('s') { json!([one, spec]) } else { one };
        let manifest = json!({"claw": "0.3.0", "kind": "Claw", "metadata": {"name": "t"}, "spec": {slot: value}});
        let loaded = from_value(&manifest, &WireOptions::default());
        prop_assert_eq!(loaded.manifest.is_some(), loaded.is_valid());
        prop_assert!(loaded.diagnostics.iter().all(|found| found.code != "unreadable-primitive"), "{:?}", loaded.diagnostics);
    }

    #[test]
    fn uris_of_the_grammar_read_back(kind in proptest::sample::select(clawk_proto::uri::Kind::ALL.to_vec()), name in "[A-Za-z0-9-]{1,63}",
        namespace in "[A-Za-z0-9.-]{1,63}", version in "[0-9]{1,4}\\.[0-9]{1,4}\\.[0-9]{1,4}(-[A-Za-z0-9.-]{1,8})?") {
        let segment = kind.segment();
        let local = format!("claw://local/{segment}/{name}");
        prop_assert_eq!(ClawUri::parse(&format!("claw://{segment}/{name}")).unwrap().to_string(), local.clone());
        for uri in [local.clone(), format!("{local}@{version}"), format!("claw://registry/{namespace}/{name}@{version}")] {
            prop_assert_eq!(ClawUri::parse(&uri).unwrap().to_string(), uri.clone());
            prop_assert_eq!(ClawUri::parse_canonical(&uri).unwrap().to_string(), uri);
        }
    }

    #[test]
    fn any_text_as_a_uri_is_read_or_refused(text in "(claw://)?[ -~é]{0,80}") {
        if let Ok(uri) = ClawUri::parse(&text) {
            prop_assert_eq!(ClawUri::parse(&uri.to_string()), Ok(uri));
        }
    }
}
