//! `cargo xtask dist`: builds the program that is shipped, with its profile and its features.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{command, output, say};

/// The profile of the shipped program, in the root's `Cargo.toml`.
pub(crate) const PROFILE: &str = "dist";

/// Features of the shipped program. CI turns them on, too, and `wasm` besides.
const FEATURES: &str = "clawk/vm,clawk/conformance,clawk/nats,clawk/redis,clawk/mail,clawk/postgres";

/// Builds the shipped program and prints where it is and how large.
///
/// # Errors
/// Words other than `--features LIST`; the build failed.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let more = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => String::new(),
        ["--features", list] => list.split(',').map(|name| format!(",clawk/{name}")).collect(),
        _ => bail!("`cargo xtask dist` takes `--features LIST` only, for example `--features wasm`"),
    };
    let program = built(PROFILE, &format!("{FEATURES}{more}"))?;
    let bytes = fs::metadata(&program)?.len();
    say(&format!("{} ({bytes} bytes)", program.display()));
    Ok(())
}

/// Builds a program with the features of the shipped one and returns its path. [`PROFILE`] makes it the shipped one.
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

/// Runs `cargo build` with these words and returns every program that it built or found built.
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
