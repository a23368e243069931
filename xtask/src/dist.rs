//! `cargo xtask dist`: builds the shipped program with its profile and its features.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{command, output, say};

/// The cargo profile of the shipped program, defined in the root's `Cargo.toml`.
pub(crate) const PROFILE: &str = "dist";

/// Features of the shipped program besides the default ones. With them it has every optional part.
pub(crate) const FEATURES: &str = "clawk/wasm";

/// Builds the shipped program. Prints its path and size.
///
/// # Errors
/// An argument is not `--features LIST`, or the build failed.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let more = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => String::new(),
        ["--features", list] => list.split(',').map(|name| format!(",clawk/{name}")).collect(),
        _ => bail!("`cargo xtask dist` takes `--features LIST` only, for example `--features NAME`"),
    };
    let program = built(PROFILE, &format!("{FEATURES}{more}"))?;
    let bytes = fs::metadata(&program)?.len();
    say(&format!("{} ({bytes} bytes)", program.display()));
    Ok(())
}

/// Builds the program with the shipped features and returns its path. The profile [`PROFILE`] makes it the shipped program.
///
/// # Errors
/// The build failed.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    built(profile, FEATURES)
}

fn built(profile: &str, features: &str) -> Result<PathBuf> {
    let words = ["--profile", profile, "--package", "clawk", "--features", features];
    let built = executables(&words)?;
    let program = built
        .into_iter()
        .find(|path| path.file_stem().is_some_and(|stem| stem == "clawk"));
    program.context("cargo built no `clawk`")
}

/// Runs `cargo build` with these arguments. Returns the paths of all programs, newly built or up to date.
///
/// # Errors
/// The build failed.
pub(crate) fn executables(words: &[&str]) -> Result<Vec<PathBuf>> {
    let mut cargo = command("cargo");
    cargo.args(["build", "--locked", "--message-format=json-render-diagnostics"]);
    let told = output(cargo.args(words))?;
    Ok(told
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()) // silent-ok: not a message
        .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .collect())
}
