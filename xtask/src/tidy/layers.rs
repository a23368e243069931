//! Crates depend downwards: a normal dependency must have a lower layer number (DESIGN §3).

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Finding;
use crate::run::{command, output};

pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let metadata = output(
        command("cargo")
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(root),
    )?;
    let metadata: Value = serde_json::from_str(&metadata).context("`cargo metadata` printed no JSON")?;
    Ok(judge(&metadata))
}

fn judge(metadata: &Value) -> Vec<Finding> {
    let packages = metadata
        .get("packages")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut findings = Vec::new();
    let mut layers = BTreeMap::new();
    for package in packages {
        match package.pointer("/metadata/clawk/layer").and_then(Value::as_u64) {
            Some(layer) => {
                layers.insert(text(package, "name"), layer);
            }
            None => findings.push(format!(
                "{}: no `[package.metadata.clawk] layer`",
                text(package, "name")
            )),
        }
    }
    for package in packages {
        let name = text(package, "name");
        let Some(own) = layers.get(name) else { continue };
        let dependencies = package
            .get("dependencies")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        for dependency in dependencies
            .iter()
            .filter(|dependency| dependency.get("kind").is_none_or(|kind| kind != "dev"))
        {
            let other = text(dependency, "name");
            if let Some(layer) = layers.get(other).filter(|layer| *layer >= own) {
                findings.push(format!("{name} (layer {own}) depends on {other} (layer {layer}): dependencies point downwards only"));
            }
        }
    }
    findings
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::judge;

    #[test]
    fn finds_upward_and_sideways_dependencies_but_lets_tests_look_anywhere() {
        let crate_of = |name: &str, layer: u64, dependencies: serde_json::Value| json!({ "name": name, "metadata": { "clawk": { "layer": layer } }, "dependencies": dependencies });
        let findings = judge(&json!({ "packages": [
            crate_of("low", 0, json!([{ "name": "high", "kind": null }, { "name": "high", "kind": "dev" }])),
            crate_of("high", 4, json!([{ "name": "low", "kind": null }, { "name": "side", "kind": "build" }])),
            crate_of("side", 4, json!([{ "name": "serde", "kind": null }])),
            json!({ "name": "unnumbered", "metadata": null, "dependencies": [] }),
        ] }));
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(
            findings
                .iter()
                .any(|finding| finding.starts_with("low (layer 0) depends on high"))
        );
        assert!(
            findings
                .iter()
                .any(|finding| finding.starts_with("high (layer 4) depends on side"))
        );
        assert!(
            findings
                .iter()
                .any(|finding| finding.starts_with("unnumbered: no"))
        );
    }
}
