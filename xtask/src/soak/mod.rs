//! `cargo xtask soak`: what CI runs in a small form or not at all, as long and as large as it takes.

mod channels;
mod doors;

use anyhow::{Result, bail};

/// Runs the part that is named with its further words, all parts without a name.
pub(crate) fn run(args: &[String]) -> Result<()> {
    match args.split_first() {
        None => {
            channels::run(&[])?;
            doors::run()
        }
        Some((name, words)) if name == "channels" => channels::run(words),
        Some((name, [])) if name == "doors" => doors::run(),
        _ => bail!("usage: cargo xtask soak [channels [WORD…] | doors]"),
    }
}
