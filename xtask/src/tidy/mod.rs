//! Checks of the source tree that the compiler does not make. Each check returns its findings. All findings are shown together.

mod dependencies;
mod docs;
mod doors;
mod events;
mod layers;
mod names;
mod seams;
mod source;
mod tokens;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::run::{command, output, say};

/// One finding: the place, what is wrong, and how to fix it.
pub(crate) type Finding = String;

/// Runs every check.
///
/// # Errors
/// A check can't run, or has findings.
pub(crate) fn check(root: &Path) -> Result<()> {
    let files = files(root)?;
    let mut findings = layers::check(root)?;
    let seams = fs::read_to_string(root.join("clippy.toml"))?;
    for path in &files {
        let Ok(text) = fs::read_to_string(root.join(path)) else {
            continue;
        }; // silent-ok: binary, or just removed
        findings.extend(source::size(path, &text));
        findings.extend(doors::check(path, &text));
        findings.extend(events::check(path, &text));
        findings.extend(seams::check(&seams, path, &text));
        findings.extend(source::words(path, &text, &machine_paths(root)));
        if path.extension().is_some_and(|extension| extension == "md") {
            findings.extend(docs::links(root, path, &text));
        }
    }
    findings.extend(names::check(root, &files)?);
    findings.extend(dependencies::check(root, &files)?);
    findings.extend(source::headers(root)?);
    findings.extend(docs::architecture(root)?);
    findings.extend(crate::docs::check(root)?);
    findings.sort();
    for finding in &findings {
        say(finding);
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    say(&format!("tidy: {} files, nothing to mend", files.len()));
    Ok(())
}

/// Returns every file that is committed or untracked but not ignored, relative to the root.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let list = output(
        command("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root),
    )
    .context("tidy looks at the files that git knows")?;
    Ok(list
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .collect())
}

/// Returns paths that exist only on this machine: the checkout, its sibling folders, and the tools' folders in the home directory.
fn machine_paths(root: &Path) -> Vec<String> {
    let mut paths = vec![root.display().to_string()];
    // A checkout directly under `/` or a home folder has siblings with ordinary names, which are not listed.
    if let Some(parent) = root.parent().filter(|parent| parent.components().count() == 2) {
        paths.push(parent.join("shared").display().to_string());
    }
    if let Some(home) = crate::run::env("HOME").filter(|home| home.len() > 1) {
        paths.extend([".cargo", ".cache", ".rustup", ".claude"].map(|folder| format!("{home}/{folder}")));
    }
    paths
}
