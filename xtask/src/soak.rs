//! `cargo xtask soak NAME`: what CI runs in a small form, for as long and as large as one wants.

mod swarm;

use anyhow::{Result, bail};

/// Runs one of them; each reads its own words.
///
/// # Errors
/// The words are wrong, or what must hold did not.
pub(crate) fn run(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((name, rest)) if name == "swarm" => swarm::run(rest),
        _ => bail!("usage: cargo xtask soak swarm [--tasks N] [--workers N]"),
    }
}

/// The number after a word; else the usual one.
///
/// # Errors
/// It is no number.
pub(crate) fn number(args: &[String], name: &str, usual: u64) -> Result<u64> {
    let Some(at) = args.iter().position(|arg| arg == name) else {
        return Ok(usual);
    };
    match args.get(at.saturating_add(1)).map(|value| value.parse()) {
        Some(Ok(number)) => Ok(number),
        _ => bail!("`{name}` wants a number"),
    }
}
