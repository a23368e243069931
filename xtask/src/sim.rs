//! `cargo xtask sim`: runs the deterministic simulation, each seed twice.

use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};

use crate::run;
use crate::soak::{number, only};

/// Number of seeds between the first seeds of runs that start one second apart. It keeps `--hours` from repeating seeds of an
/// earlier run.
const APART: u64 = 10_000;

/// Runs the given number of seeds, or runs for the given hours. Prints the progress once a minute and the totals at the end.
///
/// # Errors
/// A seed broke an invariant, or its two runs differ. The message names the seed.
pub(crate) fn run(args: &[String]) -> Result<()> {
    only(args, &["--seeds", "--hours", "--from"])?;
    let hours = hours(args)?;
    let mut command = run::command("cargo");
    command.args(["run", "--release", "--package", "clawk-sim", "--locked", "--"]);
    let from = match hours {
        Some(hours) => {
            command.args(["--hours", &hours.to_string()]);
            let from = number(args, "--from", unplayed()?)?;
            // Without a number of seeds, only the time limits the run.
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

/// Returns the number of hours, which may be a fraction.
fn hours(args: &[String]) -> Result<Option<f64>> {
    let Some(at) = args.iter().position(|arg| arg == "--hours") else {
        return Ok(None);
    };
    match args.get(at.saturating_add(1)).map(|value| value.parse::<f64>()) {
        Some(Ok(hours)) if hours.is_finite() && hours > 0.0 => Ok(Some(hours)),
        _ => bail!("`--hours` wants a number above 0 (example: `0.5`)"),
    }
}

/// Returns a first seed that no earlier run has used.
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
