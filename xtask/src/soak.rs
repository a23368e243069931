//! `cargo xtask soak`: long and large tests. CI runs a smaller form of them, or none.

mod channels;
mod doors;
mod hosts;
mod memory;
mod swarm;
#[cfg(test)]
mod tests;

use anyhow::{Result, bail};

/// Runs the named test with its arguments; without a name, all of them.
///
/// # Errors
/// The arguments are wrong, or a test failed.
pub(crate) fn run(args: &[String]) -> Result<()> {
    match args.split_first() {
        None => {
            channels::run(&[])?;
            doors::run()?;
            memory::run(&[])?;
            hosts::run(&[])?;
            swarm::run(&[])
        }
        Some((name, words)) if name == "channels" => channels::run(words),
        Some((name, [])) if name == "doors" => doors::run(),
        Some((name, words)) if name == "memory" => memory::run(words),
        Some((name, words)) if name == "hosts" => hosts::run(words),
        Some((name, words)) if name == "swarm" => swarm::run(words),
        _ => bail!(
            "usage: cargo xtask soak [channels [WORD…] | doors | memory [--turns N] | hosts [--minutes N] [--conversations N] | swarm [--backend NAME] [--tasks N] [--workers N]]"
        ),
    }
}

/// Checks that all arguments are known words with a value, because a misspelt word would start hours of the wrong test.
///
/// # Errors
/// An argument is unknown.
pub(crate) fn only(args: &[String], words: &[&str]) -> Result<()> {
    for (at, arg) in args.iter().enumerate() {
        if at % 2 == 0 && !words.contains(&arg.as_str()) {
            bail!("`{arg}` is not known here; known are: {}", words.join(", "));
        }
    }
    Ok(())
}

/// Returns the number after an argument `name`, or `usual` without it.
///
/// # Errors
/// The value is not a number.
pub(crate) fn number(args: &[String], name: &str, usual: u64) -> Result<u64> {
    let Some(at) = args.iter().position(|arg| arg == name) else {
        return Ok(usual);
    };
    match args.get(at.saturating_add(1)).map(|value| value.parse()) {
        Some(Ok(number)) => Ok(number),
        _ => bail!("`{name}` wants a number"),
    }
}
