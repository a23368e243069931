//! `cargo xtask check [CRATE…]`: what to run before a commit: format, tidy, clippy and unit tests of the crates that changed and of
//! those that depend on them. Tests of the whole program are CI's.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::run::{self, command, output, say};
use crate::tidy;

/// A package of the workspace.
#[derive(Debug, PartialEq)]
struct WorkspacePackage {
    name: String,
    /// Relative to the workspace's root.
    folder: String,
    /// Names of everything that it depends on, for building and for its tests.
    dependencies: BTreeSet<String>,
}

/// Checks the named crates, or those with changes that the main branch does not have.
///
/// # Errors
/// A crate is not known, or a step failed.
pub(crate) fn run(named: &[String]) -> Result<()> {
    let began = Instant::now();
    let packages = read_packages()?;
    let changed: BTreeSet<String> = if named.is_empty() {
        changed_packages(&packages, &changed_files()?)
    } else {
        resolve_names(&packages, named)?
    };
    run_step("fmt", || {
        run::must(command("cargo").args(["fmt", "--all", "--check"]))
    })?;
    run_step("tidy", || tidy::check(&run::root()))?;
    if changed.is_empty() {
        say("no crate has changed: name one to check it anyway");
        return Ok(());
    }
    let selected = with_dependents(&packages, &changed);
    say(&format!(
        "changed: {}; checked: {}",
        join_names(&changed),
        join_names(&selected)
    ));
    run_step("clippy", || {
        let mut cargo = command("cargo");
        cargo.arg("clippy");
        select_packages(&mut cargo, &selected);
        run::must(cargo.args(["--all-targets", "--locked", "--", "-D", "warnings"]))
    })?;
    run_step("unit tests", || {
        let mut cargo = command("cargo");
        if run::has("cargo", &["nextest", "--version"]) {
            cargo.args(["nextest", "run", "--no-tests", "pass"]);
        } else {
            cargo.arg("test");
        }
        select_packages(&mut cargo, &selected);
        run::must(cargo.args(["--lib", "--locked"]))
    })?;
    say(&format!("check: ok in {:.0} s", began.elapsed().as_secs_f64()));
    Ok(())
}

fn run_step(name: &str, step: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    say(&format!("\n==> {name}"));
    step().with_context(|| format!("step `{name}`"))?;
    say(&format!("{name}: ok in {:.1} s", start.elapsed().as_secs_f64()));
    Ok(())
}

fn select_packages(cargo: &mut std::process::Command, packages: &BTreeSet<String>) {
    for package in packages {
        cargo.args(["--package", package]);
    }
}

fn join_names(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn read_packages() -> Result<Vec<WorkspacePackage>> {
    let mut cargo = command("cargo");
    let text = output(cargo.args(["metadata", "--no-deps", "--format-version", "1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&text).context("`cargo metadata` printed no JSON")?;
    packages_of(&metadata)
}

fn packages_of(metadata: &Value) -> Result<Vec<WorkspacePackage>> {
    let root = metadata.get("workspace_root").and_then(Value::as_str);
    let root = Path::new(root.context("`cargo metadata` names no workspace_root")?);
    let packages = metadata.get("packages").and_then(Value::as_array);
    packages
        .context("`cargo metadata` names no packages")?
        .iter()
        .map(|package| {
            let text = |key: &str| package.get(key).and_then(Value::as_str);
            let manifest = Path::new(text("manifest_path").context("a package without a manifest")?);
            let folder = manifest.parent().unwrap_or(manifest);
            let dependencies = package.get("dependencies").and_then(Value::as_array);
            Ok(WorkspacePackage {
                name: text("name").context("a package without a name")?.to_owned(),
                folder: folder.strip_prefix(root)?.display().to_string(),
                dependencies: dependencies
                    .into_iter()
                    .flatten()
                    .filter_map(|dependency| dependency.get("name")?.as_str().map(str::to_owned))
                    .collect(),
            })
        })
        .collect()
}

/// Files that differ from the main branch (from the last commit, on the main branch itself), with those that git does not know yet.
fn changed_files() -> Result<Vec<String>> {
    let branch = output(command("git").args(["rev-parse", "--abbrev-ref", "HEAD"]))?;
    let base = if branch.trim() == "main" {
        "HEAD".to_owned()
    } else {
        output(command("git").args(["merge-base", "HEAD", "main"]))
            .context("there is no branch `main` to compare with: name the crates")?
            .trim()
            .to_owned()
    };
    let mut files = output(command("git").args(["diff", "--name-only", "-z", &base]))?;
    files.push_str(&output(command("git").args([
        "ls-files",
        "-z",
        "--others",
        "--exclude-standard",
    ]))?);
    Ok(files
        .split('\0')
        .filter(|file| !file.is_empty())
        .map(str::to_owned)
        .collect())
}

/// The packages whose folders hold the files. The workspace's own manifest and lock file belong to every package.
fn changed_packages(packages: &[WorkspacePackage], files: &[String]) -> BTreeSet<String> {
    let everything = files
        .iter()
        .any(|file| matches!(file.as_str(), "Cargo.toml" | "Cargo.lock" | "clippy.toml"));
    packages
        .iter()
        .filter(|package| {
            let folder = Path::new(&package.folder);
            everything || files.iter().any(|file| Path::new(file).starts_with(folder))
        })
        .map(|package| package.name.clone())
        .collect()
}

/// The packages by their names, with or without `clawk-` before them.
fn resolve_names(packages: &[WorkspacePackage], named: &[String]) -> Result<BTreeSet<String>> {
    let find = |name: &str| packages.iter().find(|package| package.name == name);
    named
        .iter()
        .map(
            |name| match find(name).or_else(|| find(&format!("clawk-{name}"))) {
                Some(package) => Ok(package.name.clone()),
                None => bail!(
                    "no crate `{name}`; there are {}",
                    join_names(&packages.iter().map(|package| package.name.clone()).collect())
                ),
            },
        )
        .collect()
}

/// The packages and all that depend on them, directly or through others.
fn with_dependents(packages: &[WorkspacePackage], changed: &BTreeSet<String>) -> BTreeSet<String> {
    let mut selected = changed.clone();
    loop {
        let before = selected.len();
        for package in packages {
            if !package.dependencies.is_disjoint(&selected) {
                selected.insert(package.name.clone());
            }
        }
        if selected.len() == before {
            return selected;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::{changed_packages, packages_of, resolve_names, with_dependents};

    fn packages() -> Vec<super::WorkspacePackage> {
        let package = |name: &str, dependencies: &[&str]| {
            let dependencies: Vec<_> = dependencies.iter().map(|name| json!({ "name": name })).collect();
            json!({ "name": name, "manifest_path": format!("/w/crates/{name}/Cargo.toml"), "dependencies": dependencies })
        };
        packages_of(&json!({ "workspace_root": "/w", "packages": [
            package("clawk-low", &["serde"]),
            package("clawk-mid", &["clawk-low"]),
            package("clawk-high", &["clawk-mid"]),
            package("clawk-lower", &[]),
        ] }))
        .unwrap()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_file_belongs_to_the_crate_of_its_folder_and_not_to_a_longer_name() {
        let changed = |files: &[&str]| {
            let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
            changed_packages(&packages(), &files)
        };
        assert_eq!(
            changed(&["crates/clawk-low/src/lib.rs", "README.md"]),
            set(&["clawk-low"])
        );
        assert_eq!(changed(&["docs/adr/0001-x.md"]), set(&[]));
        assert_eq!(changed(&["Cargo.lock"]).len(), 4);
    }

    #[test]
    fn dependents_come_along_through_others() {
        let packages = packages();
        assert_eq!(
            with_dependents(&packages, &set(&["clawk-low"])),
            set(&["clawk-high", "clawk-low", "clawk-mid"])
        );
        assert_eq!(
            with_dependents(&packages, &set(&["clawk-lower"])),
            set(&["clawk-lower"])
        );
    }

    #[test]
    fn a_crate_is_named_in_short_and_an_unknown_one_is_refused() {
        let packages = packages();
        assert_eq!(
            resolve_names(&packages, &["mid".to_owned()]).unwrap(),
            set(&["clawk-mid"])
        );
        let error = resolve_names(&packages, &["none".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("no crate `none`; there are clawk-high"),
            "{error}"
        );
    }
}
