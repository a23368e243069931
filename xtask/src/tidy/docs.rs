//! Checks that documents name existing things: in ARCHITECTURE.md paths, crates and modules; in every document relative links.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Finding;

const ARCHITECTURE_LINES: usize = 150;

/// Checks that ARCHITECTURE.md is short, and that every path, crate and `module::item` in backticks exists.
pub(super) fn architecture(root: &Path) -> Result<Vec<Finding>> {
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).context("can't read ARCHITECTURE.md")?;
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > ARCHITECTURE_LINES {
        findings.push(format!(
            "ARCHITECTURE.md: {lines} lines, more than {ARCHITECTURE_LINES}"
        ));
    }
    for (number, line) in text.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2) {
            if !exists(root, name) {
                findings.push(format!("ARCHITECTURE.md:{}: `{name}` does not exist", number + 1));
            }
        }
    }
    Ok(findings)
}

/// Returns whether a name in backticks exists. A name that does not refer to the tree counts as existing.
fn exists(root: &Path, name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:".contains(c);
    if !name.chars().all(plain) || name.contains("://") {
        return true;
    }
    if let Some((krate, rest)) = name.split_once("::") {
        let folder = root.join("crates").join(format!("clawk-{krate}"));
        return !folder.is_dir() || item(&folder.join("src"), rest);
    }
    if name.contains('/') {
        return root.join(name).exists() || root.join("crates").join(name).exists();
    }
    !name.starts_with("clawk-") || root.join("crates").join(name).is_dir()
}

/// Follows `a::b::Item` from a source folder through module files. The last name must be a module, or defined or re-exported there.
fn item(src: &Path, names: &str) -> bool {
    let mut folder = src.to_owned();
    let mut file = src.join("lib.rs");
    for name in names.split("::") {
        let modules = [
            folder.join(name).join("mod.rs"),
            folder.join(format!("{name}.rs")),
        ];
        match modules.into_iter().find(|module| module.is_file()) {
            Some(module) => {
                folder = folder.join(name);
                file = module;
            }
            None => return defines(&file, name),
        }
    }
    true
}

fn defines(file: &Path, name: &str) -> bool {
    let Ok(text) = fs::read_to_string(file) else {
        return false;
    };
    text.lines().any(|line| {
        let mut words = line
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty());
        let introduced = words
            .by_ref()
            .any(|word| ["fn", "struct", "enum", "trait", "type", "mod", "use", "const"].contains(&word));
        introduced && words.any(|word| word == name)
    })
}

/// Checks that relative links `[text](path#anchor)` have a target.
pub(super) fn links(root: &Path, path: &Path, text: &str) -> Vec<Finding> {
    let folder = root.join(path.parent().unwrap_or(Path::new("")));
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let relative = !target.is_empty() && !target.contains(':') && !target.contains(' ');
            if relative && !resolve(root, &folder, target).exists() {
                findings.push(format!(
                    "{}:{}: the link `{target}` leads nowhere",
                    path.display(),
                    number + 1
                ));
            }
        }
    }
    findings
}

fn resolve(root: &Path, folder: &Path, target: &str) -> PathBuf {
    match target.strip_prefix('/') {
        Some(absolute) => root.join(absolute),
        None => folder.join(target),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{exists, links};

    #[test]
    fn follows_paths_crates_modules_and_links() {
        let root = tempfile::tempdir().unwrap();
        let call = root.path().join("crates/clawk-kernel/src/call");
        fs::create_dir_all(&call).unwrap();
        fs::write(
            call.join("mod.rs"),
            "pub async fn call() {}\npub(crate) struct Permit;\n",
        )
        .unwrap();
        fs::write(
            root.path().join("crates/clawk-kernel/src/lib.rs"),
            "pub mod call;\npub use call::Permit;\n",
        )
        .unwrap();
        for good in [
            "clawk-kernel",
            "kernel::call",
            "kernel::call::call",
            "kernel::Permit",
            "clawk-kernel/src/call/mod.rs",
            "crates/clawk-kernel",
            "std::fs",
            "claw.yaml",
            "cargo xtask ci",
            "claw://local/tool/x",
        ] {
            assert!(exists(root.path(), good), "{good}");
        }
        for bad in [
            "clawk-gone",
            "kernel::gone",
            "kernel::call::gone",
            "clawk-kernel/src/gone.rs",
        ] {
            assert!(!exists(root.path(), bad), "{bad}");
        }
        let text = "[a](crates/clawk-kernel) [b](https://example.com/x) [c](#here) [d](gone.md#x)";
        assert_eq!(links(root.path(), Path::new("README.md"), text).len(), 1);
    }
}
