//! `cargo xtask sim`: the deterministic simulation, each seed twice.

use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};

use crate::run;
use crate::soak::{number, only};

/// Seeds between two runs that begin a second apart: `--hours` never plays what another such run has played.
const APART: u64 = 10_000;

/// Plays so many seeds, or for so many hours. How far it is is said once a minute, the sums at the end.
///
/// # Errors
/// A seed broke something, or was not the same twice: the message names it.
pub(crate) fn run(args: &[String]) -> Result<()> {
    only(args, &["--seeds", "--hours", "--from"])?;
    let hours = hours(args)?;
    let mut command = run::command("cargo");
    command.args(["run", "--release", "--package", "clawk-sim", "--locked", "--"]);
    let from = match hours {
        Some(hours) => {
            command.args(["--hours", &hours.to_string()]);
            let from = number(args, "--from", unplayed()?)?;
            // Without a number of seeds, the time alone is the limit.
            let seeds = number(args, "--seeds", u64::MAX)?;
            command.args(["--seeds", &seeds.to_string()]);
            from
        }
        None => {
            let seeds = number(args, "--seeds", 1_000)?;
            command.args(["--seeds", &seeds.to_string()]);
            number(args, "--from", 0)?
        }
    };
    command.args(["--from", &from.to_string()]);
    run::must(&mut command)
}

/// The hours that are wanted; a part of an hour is a number too.
fn hours(args: &[String]) -> Result<Option<f64>> {
    let Some(at) = args.iter().position(|arg| arg == "--hours") else {
        return Ok(None);
    };
    match args.get(at.saturating_add(1)).map(|value| value.parse::<f64>()) {
        Some(Ok(hours)) if hours.is_finite() && hours > 0.0 => Ok(Some(hours)),
        _ => bail!("`--hours` wants a number above 0 (example: `0.5`)"),
    }
}

/// A first seed that no run before has played.
#[expect(
    clippy::disallowed_methods,
    reason = "a chore asks for the time; the seeds that it gives are printed"
)]
fn unplayed() -> Result<u64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Ok(now
        .context("the clock stands before 1970")?
        .as_secs()
        .saturating_mul(APART))
}
