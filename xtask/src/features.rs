//! `cargo xtask features`: checks that the program compiles without its optional parts, and with each of them alone.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::run::{command, must, say};

/// The optional parts: the features of the crate `clawk`.
const PARTS: [&str; 7] = ["mail", "nats", "redis", "postgres", "vm", "conformance", "wasm"];

/// Checks `clawk` with no part and with each part alone, or only with the named parts. Prints how long each took.
///
/// # Errors
/// A word is not a part, or one of the builds fails.
pub(crate) fn run(wanted: &[String]) -> Result<()> {
    if let Some(unknown) = wanted.iter().find(|word| !PARTS.contains(&word.as_str())) {
        bail!(
            "`{unknown}` is not an optional part; these are: {}",
            PARTS.join(", ")
        );
    }
    let parts = PARTS.iter().copied();
    let mut builds: Vec<&str> = parts
        .filter(|part| wanted.is_empty() || wanted.iter().any(|word| word == part))
        .collect();
    if wanted.is_empty() {
        builds.insert(0, "");
    }
    for part in builds {
        let began = Instant::now();
        let words = ["check", "--locked", "--package", "clawk", "--no-default-features"];
        must(command("cargo").args(words).args(["--features", part]))?;
        let name = if part.is_empty() { "none" } else { part };
        say(&format!("{name:<12} ok {:>7.1} s", began.elapsed().as_secs_f64()));
    }
    Ok(())
}
