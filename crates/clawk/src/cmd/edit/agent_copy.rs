//! Validates an edited agent in a copy of its files, before anything is written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_manifest::{Diagnostic, LoadedDocument};

use super::AgentEdit;
use crate::cmd::validate::check_document;
use crate::companion;
use crate::config::Config;

/// Warnings that only say that the copy lacks the agent's other files.
const ABOUT_COPY: [&str; 4] = [
    "mount-missing",
    "denied-path-unknown",
    "member_without_identity",
    "provider",
];

/// Returns whether a warning is about the copy and not about the agent.
pub(super) fn is_about_copy(found: &Diagnostic) -> bool {
    ABOUT_COPY.contains(&found.code)
}

/// Validates the agent with its changes. Returns the findings, and the path that the copy of its folder had. Every file has its whole path
/// below the copy, so that a reference out of the folder, which the user allows, finds its file there, too.
///
/// # Errors
/// The copy can't be made, or a file of the agent lies outside of its folder, which the user does not allow.
pub(super) fn check_edited(edit: &AgentEdit<'_>) -> Result<(LoadedDocument, PathBuf)> {
    let copy = tempfile::tempdir().context("can't make a folder for the check")?;
    let manifest = &edit.args.manifest;
    let folder = match manifest.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let root = folder
        .canonicalize()
        .with_context(|| format!("can't read `{}`", folder.display()))?;
    let outside = edit.args.outside.allow_outside;
    let place_of = |file: &Path| place_in_copy(copy.path(), &root, file, outside);
    let copied_folder = place_of(folder)?;
    for file in edit.loaded.sources.files() {
        let place = place_of(file)?;
        let text = edit.current_text(file)?;
        write_copy(&place, &text)?;
        if let Some(tests) = companion::tests_path(file).filter(|tests| tests.is_file()) {
            write_copy(&place_of(&tests)?, &edit.current_text(&tests)?)?;
        }
    }
    for file in &edit.written {
        let place = place_of(file)?;
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(file, &place).with_context(|| format!("can't read `{}`", file.display()))?;
    }
    let config_copy = copied_folder.join("clawk.toml");
    if let Some(file) = &edit.config.file {
        write_copy(&config_copy, &edit.current_text(file)?)?;
    }
    let is_config = |path: &Path| edit.config.file.as_deref() == Some(path);
    for change in edit
        .changes
        .iter()
        .filter(|change| change.before.is_none() && !is_config(&change.path))
    {
        let name = change.path.strip_prefix(folder).unwrap_or(&change.path);
        write_copy(&copied_folder.join(name), &change.after)?;
    }
    let name = manifest.file_name().context("the manifest has no file name")?;
    let copied = copied_folder.join(name);
    let flag = edit.flag.map(|_| config_copy.as_path());
    let config = Config::load(flag, Some(&copied))
        .context("the edited clawk.toml would not be valid; nothing was changed")?
        .with_outside_access(edit.args.outside);
    Ok((check_document(&copied, &config)?, copied_folder))
}

/// Returns the path of the copy of a file: its whole path, below the copy.
fn place_in_copy(copy: &Path, root: &Path, file: &Path, outside: bool) -> Result<PathBuf> {
    let real = file
        .canonicalize()
        .with_context(|| format!("can't read `{}`", file.display()))?;
    if !outside && !real.starts_with(root) {
        bail!(
            "`{}` lies outside of the agent's folder; `--allow-outside` lets it be read",
            file.display()
        );
    }
    Ok(copy.join(real.strip_prefix("/").unwrap_or(&real)))
}

fn write_copy(place: &Path, text: &str) -> Result<()> {
    let failed = || format!("can't write `{}`", place.display());
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    fs::write(place, text).with_context(failed)
}
