//! `clawk-sim [--from N] [--seeds N]`: plays seeds, each twice, until one breaks something.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is a tool: it prints"
)]

use std::process::ExitCode;

fn number(args: &[String], name: &str, usual: u64) -> Result<u64, String> {
    let Some(at) = args.iter().position(|arg| arg == name) else {
        return Ok(usual);
    };
    let value = args.get(at.saturating_add(1));
    let value = value.and_then(|value| value.parse().ok()); // silent-ok: said below
    value.ok_or_else(|| format!("`{name}` wants a number"))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted = number(&args, "--from", 0).and_then(|from| Ok((from, number(&args, "--seeds", 100)?)));
    let (from, seeds) = match wanted {
        Ok(wanted) => wanted,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let (mut crashes, mut repeated, mut effects, mut events) = (0, 0, 0, 0);
    let (mut cuts, mut jumps, mut slow) = (0, 0, 0);
    for seed in from..from.saturating_add(seeds) {
        let once = clawk_sim::run(seed);
        match (&once, clawk_sim::run(seed)) {
            (Ok(first), Ok(second)) if *first == second => {
                crashes += first.crashes;
                repeated += first.repeated;
                effects += first.effects;
                events += first.events;
                cuts += first.cuts;
                jumps += first.jumps;
                slow += first.slow;
            }
            (Err(broken), _) => {
                eprintln!("seed {seed}: {broken}");
                return ExitCode::FAILURE;
            }
            (Ok(first), second) => {
                eprintln!("seed {seed} is not the same twice: {first:?}, {second:?}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{seeds} seeds, each twice: {crashes} crashes, {cuts} cuts, {jumps} clocks set, {slow} slow disks, {repeated} repeated messages, {effects} effects, {events} events; nothing broke"
    );
    ExitCode::SUCCESS
}
