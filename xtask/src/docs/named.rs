//! Checks that documents name existing things: a repository path in backticks exists, and a task of xtask exists.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use pulldown_cmark::{Event, Parser};

use crate::tidy::Finding;

/// Folders of the repository to which documents refer.
const FOLDERS: [&str; 8] = [
    "bench/",
    "crates/",
    "docs/",
    "examples/",
    "schema/",
    "tests/",
    "vectors/",
    "xtask/",
];

/// Checks every path in backticks that begins with a folder of the repository, and every task of xtask.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut open = vec![root.join("docs")];
    let mut pages: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md"]
        .map(|name| root.join(name))
        .into();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    for page in pages {
        let Ok(text) = fs::read_to_string(&page) else {
            continue; // silent-ok: the links' check names a missing page
        };
        for event in Parser::new(&text) {
            let Event::Code(name) = event else { continue };
            if !exists(root, &name) {
                let page = page.strip_prefix(root).unwrap_or(&page);
                findings.push(format!("{}: `{name}` does not exist", page.display()));
            }
        }
    }
    Ok(findings)
}

fn exists(root: &Path, name: &str) -> bool {
    if let Some(chore) = name.strip_prefix("cargo xtask ") {
        let chore = chore.split_whitespace().next().unwrap_or_default();
        return crate::HELP
            .lines()
            .any(|line| line.starts_with("  ") && line.split_whitespace().next() == Some(chore));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    // `NAME` stands for a name that the reader chooses.
    if name.contains("NAME")
        || !name.chars().all(plain)
        || !FOLDERS.iter().any(|folder| name.starts_with(folder))
    {
        return true;
    }
    // The path may be relative to a crate, if the page is about that crate.
    let within = |folder: fs::DirEntry| {
        ["", "src"]
            .iter()
            .any(|sub| folder.path().join(sub).join(name).exists())
    };
    root.join(name).exists()
        || root.join("crates").join(name).exists()
        || fs::read_dir(root.join("crates")).is_ok_and(|crates| crates.flatten().any(within))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::exists;

    #[test]
    fn paths_and_chores_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for good in [
            "docs/adr",
            "crates/clawk",
            "cargo xtask docs",
            "clawk run",
            "tests/*.rs",
            "/docs/x",
        ] {
            assert!(exists(root, good), "{good}");
        }
        for bad in ["docs/gone.md", "crates/gone", "cargo xtask gone"] {
            assert!(!exists(root, bad), "{bad}");
        }
    }
}
