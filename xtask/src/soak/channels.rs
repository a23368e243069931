//! Soak tests of channels under load and with killed processes. They take minutes.

use anyhow::{Result, bail};

use crate::run::{command, has, must};

/// Filter for the tests: channels under load and with kills, and the real program with a hundred kills and with ten thousand
/// messages.
const TESTS: &str =
    "(package(clawk-channels) & test(weather::)) | test(a_hundred_kills) | test(ten_thousand_messages)";
/// The nextest profile: one test at a time, with long time limits.
const PROFILE: &str = "soak";

/// Runs all tests, or those whose name contains one of `words`. Shows their output.
pub(super) fn run(words: &[String]) -> Result<()> {
    if !has("cargo", &["nextest", "--version"]) {
        bail!("`cargo nextest` is missing: cargo install --locked cargo-nextest");
    }
    let mut soak = command("cargo");
    soak.args([
        "nextest",
        "run",
        "-p",
        "clawk-channels",
        "-p",
        "clawk",
        "--no-fail-fast",
    ])
    .args([
        "--profile",
        PROFILE,
        "--run-ignored",
        "all",
        "--success-output",
        "final",
        "-E",
        TESTS,
    ])
    .args(words);
    must(&mut soak)
}
