//! `cargo xtask soak`: what CI runs in a small form or not at all, as long and as large as it takes.

mod channels;
mod doors;
mod hosts;
mod memory;
mod swarm;
#[cfg(test)]
mod tests;

use anyhow::{Result, bail};

/// Runs the part that is named with its further words, all parts without a name.
///
/// # Errors
/// The words are wrong, or what must hold did not.
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

/// Nothing but these words, each with its value: a word that is misspelt would start hours of something else.
///
/// # Errors
/// There is another word.
pub(crate) fn only(args: &[String], words: &[&str]) -> Result<()> {
    for (at, arg) in args.iter().enumerate() {
        if at % 2 == 0 && !words.contains(&arg.as_str()) {
            bail!("`{arg}` is not known here; known are: {}", words.join(", "));
        }
    }
    Ok(())
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
