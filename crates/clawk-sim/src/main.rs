//! `clawk-sim [--from N] [--seeds N] [--hours H] [--jobs N] [--world bus|state] [--keep-going]`: plays seeds, each twice, until one
//! breaks an invariant or the time is over. With `--keep-going` it continues and counts failures. `clawk-sim --world W --tell SEED`
//! prints the events of one seed.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is a tool: it prints"
)]

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clawk_sim::{Kind, SeedRunOptions};

/// Parses the value after the option `name`.
fn option_value<T: FromStr>(args: &[String], name: &str) -> Result<Option<T>, String> {
    let Some(at) = args.iter().position(|arg| arg == name) else {
        return Ok(None);
    };
    let value = args.get(at.saturating_add(1));
    let value = value.and_then(|value| value.parse().ok()); // silent-ok: said below
    value.map(Some).ok_or_else(|| format!("`{name}` wants a number"))
}

fn parse_kinds(args: &[String]) -> Result<&'static [Kind], String> {
    Ok(
        match option_value::<String>(args, "--world")
            .unwrap_or_default()
            .as_deref()
        {
            None if args.iter().any(|arg| arg == "--world") => {
                return Err("`--world` wants `bus` or `state`".to_owned());
            }
            None => &Kind::ALL,
            Some("bus") => &[Kind::Bus],
            Some("state") => &[Kind::State],
            Some(other) => {
                return Err(format!(
                    "there is no world `{other}`: `--world` wants `bus` or `state`"
                ));
            }
        },
    )
}

fn parse_options(args: &[String]) -> Result<SeedRunOptions, String> {
    let time = match option_value::<f64>(args, "--hours")? {
        None => None,
        Some(hours) => Some(
            Duration::try_from_secs_f64(hours * 3600.0)
                .map_err(|_| format!("`--hours {hours}` is not a valid time"))?,
        ),
    };
    let usual = if time.is_some() { u64::MAX } else { 100 };
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(SeedRunOptions {
        from: option_value(args, "--from")?.unwrap_or(0),
        seeds: option_value(args, "--seeds")?.unwrap_or(usual),
        kinds: parse_kinds(args)?,
        time,
        jobs: option_value(args, "--jobs")?.unwrap_or(jobs),
        keep_going: args.iter().any(|arg| arg == "--keep-going"),
        tell_every: Duration::from_mins(1),
    })
}

fn print_seed(kinds: &[Kind], seed: u64) -> ExitCode {
    let mut broke = false;
    for kind in kinds {
        let (played, lines) = clawk_sim::play_and_describe(*kind, seed);
        lines.iter().for_each(|line| println!("{line}"));
        println!("{kind:?}: {played:?}");
        broke |= played.is_err();
    }
    ExitCode::from(u8::from(broke))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted = match (option_value(&args, "--tell"), parse_options(&args)) {
        (Ok(Some(seed)), Ok(wanted)) => return print_seed(wanted.kinds, seed),
        (Ok(None), Ok(wanted)) => wanted,
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let total = clawk_sim::play_seeds(wanted, |line| eprintln!("{line}"));
    println!("{total}");
    ExitCode::from(u8::from(!total.failed.is_empty()))
}
