//! Each crate names in its manifest only what its code uses, and the workspace only what a crate names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use toml::Table;

use super::Finding;

/// Dependencies that code does not name: they are there for a feature that they switch on in another crate, or are named by what a
/// macro writes.
const UNNAMED: &[(&str, &str)] = &[];

/// Findings for dependencies that nothing names.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut inherited = BTreeSet::new();
    for manifest in files.iter().filter(|path| path.ends_with("Cargo.toml")) {
        let text = fs::read_to_string(root.join(manifest))
            .with_context(|| format!("can't read {}", manifest.display()))?;
        let table: Table =
            toml::from_str(&text).with_context(|| format!("{} is not valid", manifest.display()))?;
        if !table.contains_key("package") {
            continue;
        }
        let folder = manifest.parent().unwrap_or(manifest);
        let words = words_of_code(root, folder, files);
        for name in dependency_names(&table) {
            inherited.insert(name.clone());
            let exempt = UNNAMED
                .iter()
                .any(|(krate, dependency)| folder.ends_with(krate) && *dependency == name);
            if !exempt && !words.contains(&name.replace('-', "_")) {
                findings.push(format!(
                    "{}: nothing in the crate uses `{name}`: remove it",
                    manifest.display()
                ));
            }
        }
    }
    findings.extend(unused_of_the_workspace(root, &inherited)?);
    Ok(findings)
}

/// The keys of all tables of dependencies of a package, those for one target included.
fn dependency_names(manifest: &Table) -> BTreeSet<String> {
    let tables = |table: &Table| -> Vec<String> {
        ["dependencies", "dev-dependencies", "build-dependencies"]
            .iter()
            .filter_map(|key| table.get(*key)?.as_table())
            .flat_map(|table| table.keys().cloned())
            .collect()
    };
    let mut names: BTreeSet<String> = tables(manifest).into_iter().collect();
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    for target in targets
        .into_iter()
        .flat_map(Table::values)
        .filter_map(toml::Value::as_table)
    {
        names.extend(tables(target));
    }
    names
}

/// All words of the crate's sources, comments apart.
fn words_of_code(root: &Path, folder: &Path, files: &[PathBuf]) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let sources = files
        .iter()
        .filter(|path| path.starts_with(folder) && path.extension().is_some_and(|end| end == "rs"));
    for path in sources {
        let Ok(text) = fs::read_to_string(root.join(path)) else {
            continue;
        }; // silent-ok: just removed
        for line in text.lines() {
            let documents = line.trim_start().starts_with("//");
            // A doc comment's example uses dependencies, too; prose only names them.
            if documents && !line.contains("::") {
                continue;
            }
            words.extend(
                line.split(|c: char| !c.is_alphanumeric() && c != '_')
                    .filter(|word| !word.is_empty())
                    .map(str::to_owned),
            );
        }
    }
    words
}

fn unused_of_the_workspace(root: &Path, inherited: &BTreeSet<String>) -> Result<Vec<Finding>> {
    let text = fs::read_to_string(root.join("Cargo.toml")).context("can't read Cargo.toml")?;
    let table: Table = toml::from_str(&text).context("Cargo.toml is not valid")?;
    let named = table
        .get("workspace")
        .and_then(|workspace| workspace.get("dependencies"))
        .and_then(toml::Value::as_table);
    Ok(named
        .into_iter()
        .flat_map(Table::keys)
        .filter(|name| !inherited.contains(*name))
        .map(|name| format!("Cargo.toml: no crate uses the workspace's dependency `{name}`: remove it"))
        .collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::check;

    #[test]
    fn finds_what_no_code_names_and_lets_tests_and_targets_use_it() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "Cargo.toml",
            "[workspace.dependencies]\nserde-json = \"1\"\nlost = \"1\"\n",
        );
        write(
            "one/Cargo.toml",
            "[package]\nname = \"one\"\n[dependencies]\nserde-json = \"1\"\nidle = \"1\"\n[target.'cfg(unix)'.dev-dependencies]\nseldom = \"1\"\n",
        );
        write(
            "one/src/lib.rs",
            "use serde_json::Value;\n// idle is only mentioned\n",
        );
        write("one/tests/it.rs", "use seldom::Thing;\n");
        let files: Vec<PathBuf> = [
            "Cargo.toml",
            "one/Cargo.toml",
            "one/src/lib.rs",
            "one/tests/it.rs",
        ]
        .iter()
        .map(PathBuf::from)
        .collect();
        let findings = check(root.path(), &files).unwrap();
        assert_eq!(
            findings,
            [
                "one/Cargo.toml: nothing in the crate uses `idle`: remove it",
                "Cargo.toml: no crate uses the workspace's dependency `lost`: remove it",
            ]
        );
    }
}
