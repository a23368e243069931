//! The manifest vectors of the conformance suite, and the specification's full example (Appendix A).

use std::path::PathBuf;

use clawk_manifest::{LoadOptions, LoadedDocument, load_manifest, validate_file, validate_primitive};

use crate::{errors, warnings};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn vector(name: &str) -> LoadedDocument {
    validate_file(&fixture(&format!("vectors/{name}.yaml")), &LoadOptions::default())
}

#[test]
fn valid_manifests_reach_their_level() {
    for (name, level) in [
        ("tv-l1-01", "level-1"),
        ("tv-l2-01", "level-2"),
        ("tv-l3-01", "level-3"),
    ] {
        let loaded = vector(name);
        assert_eq!(errors(&loaded), Vec::<String>::new(), "{name}");
        assert_eq!(
            loaded.manifest.unwrap().conformance_level().as_str(),
            level,
            "{name}"
        );
    }
}

#[test]
fn invalid_manifests_are_refused_for_the_right_reason() {
    let cases = [
        ("tv-l1-02", "missing-field /spec/identity"),
        ("tv-l1-03", "missing-field /spec/providers"),
        ("tv-l1-09", "empty-list /spec/providers"),
        ("tv-l3-04", "field-of-other-mode /spec/access_control/roles"),
        ("tv-l3-05", "field-of-other-mode /spec/access_control/allowed_ids"),
    ];
    for (name, error) in cases {
        let loaded = vector(name);
        assert_eq!(errors(&loaded), [error], "{name}");
        assert!(loaded.manifest.is_none(), "{name}");
    }
}

#[test]
fn a_primitive_is_no_manifest_and_the_reverse() {
    let primitive = load_manifest(&fixture("vectors/tv-l3-04.yaml"), &LoadOptions::default());
    assert_eq!(errors(&primitive), ["kind-mismatch /kind"]);
    let whole = validate_primitive(&fixture("vectors/tv-l1-01.yaml"), &LoadOptions::default());
    assert_eq!(errors(&whole), ["kind-mismatch /kind"]);
}

#[test]
fn the_full_example_loads_from_its_files() {
    let loaded = load_manifest(&fixture("appendix-a/claw.yaml"), &LoadOptions::default());
    assert_eq!(errors(&loaded), Vec::<String>::new());
    // The specification's own example: its spending rule stands behind the security policy's `default-deny`.
    assert_eq!(warnings(&loaded), ["unreachable-rule /spec/rules/0"]);
    assert!(
        loaded.diagnostics[0]
            .file
            .as_ref()
            .unwrap()
            .ends_with("policies/spending.yaml")
    );
    let manifest = loaded.manifest.unwrap();
    assert_eq!(manifest.conformance_level().as_str(), "level-2");
    assert_eq!(manifest.next_level_missing().unwrap().primitives, ["Swarm"]);
    assert_eq!(manifest.tools.len(), 6);
    assert_eq!(manifest.tools[5].name, "mcp-github");
    assert_eq!(manifest.tools[5].version.as_deref(), Some("1.0.0"));
    let fallback: Vec<&str> = manifest.providers[0]
        .fallback
        .iter()
        .map(|f| f.provider_ref.as_str())
        .collect();
    assert_eq!(fallback, ["fast-llm", "local-llm"]);
    assert_eq!(
        manifest.policies[1].rules[0]
            .rate_limit
            .as_ref()
            .unwrap()
            .cost_per_day_usd,
        Some(25.0)
    );
    assert_eq!(
        manifest.memory.unwrap().stores[0]
            .retention
            .max_age
            .unwrap()
            .as_secs(),
        90 * 86_400
    );
    assert_eq!(
        manifest.metadata.description.as_deref(),
        Some("An AI assistant for project management and data analysis")
    );
}
