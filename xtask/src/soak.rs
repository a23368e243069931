//! `cargo xtask soak`: what takes too long for CI, each part in a file of its own.

mod doors;

use anyhow::{Result, bail};

/// Runs the parts that are named; all without a name.
pub(crate) fn run(names: &[String]) -> Result<()> {
    let known = ["doors"];
    if let Some(other) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("no soak `{other}`; there are: {}", known.join(", "));
    }
    doors::run()
}
