//! `cargo xtask sim`: the deterministic simulation, each seed twice.

use anyhow::Result;

use crate::run;
use crate::soak::number;

/// Plays so many seeds.
///
/// # Errors
/// A seed broke something, or was not the same twice: the message names it.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (from, seeds) = (number(args, "--from", 0)?, number(args, "--seeds", 1_000)?);
    let mut command = run::command("cargo");
    command.args(["run", "--release", "--package", "clawk-sim", "--locked", "--"]);
    command.args(["--from", &from.to_string(), "--seeds", &seeds.to_string()]);
    run::must(&mut command)
}
