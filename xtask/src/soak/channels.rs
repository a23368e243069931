//! Channels under load and kills: tests that take minutes.

use anyhow::{Result, bail};

use crate::run::{command, has, must};

/// Tests of channels under load and kills, and the real binary under a hundred kills and under ten thousand messages.
const TESTS: &str =
    "(package(clawk-channels) & test(weather::)) | test(a_hundred_kills) | test(ten_thousand_messages)";
/// The profile of nextest: one test at a time, with long limits.
const PROFILE: &str = "soak";

/// Runs all of them, or those whose name holds `words`; what each prints is shown.
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
