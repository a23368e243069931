//! `clawk-sim [--from N] [--seeds N] [--keep-going]`: plays seeds, each twice, until one breaks something; `--keep-going` plays on
//! and counts. `clawk-sim --tell SEED` prints the events of one.

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
    if args.iter().any(|arg| arg == "--tell") {
        let (played, lines) = clawk_sim::tell(number(&args, "--tell", 0).unwrap_or(0)); // silent-ok: no number is the first seed
        lines.iter().for_each(|line| println!("{line}"));
        println!("{played:?}");
        return ExitCode::from(u8::from(played.is_err()));
    }
    let wanted = number(&args, "--from", 0).and_then(|from| Ok((from, number(&args, "--seeds", 100)?)));
    let (from, seeds) = match wanted {
        Ok(wanted) => wanted,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let (mut crashes, mut repeated, mut effects, mut events) = (0, 0, 0, 0);
    let (mut cuts, mut jumps, mut slow, mut full, mut ends) = (0, 0, 0, 0, 0);
    let (mut outages, mut lost, mut again, mut answers, mut stops) = (0, 0, 0, 0, 0);
    let keep_on = args.iter().any(|arg| arg == "--keep-going");
    let mut failed = 0;
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
                full += first.full;
                ends += first.ends;
                outages += first.outages;
                lost += first.lost;
                again += first.again;
                answers += first.answers;
                stops += first.stops;
            }
            (Err(broken), _) => {
                eprintln!("seed {seed}: {broken}");
                failed += 1;
                if !keep_on {
                    return ExitCode::FAILURE;
                }
            }
            (Ok(first), second) => {
                eprintln!("seed {seed} is not the same twice: {first:?}, {second:?}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{seeds} seeds, each twice: {crashes} crashes, {ends} ends in order, {cuts} cuts, {outages} outages of the bus, {jumps} clocks set, {slow} slow disks, {full} full disks, {lost} lost and {repeated} repeated messages, {again} requests made again, {answers} answers of a person, {stops} stops, {effects} effects, {events} events; {failed} seeds broke something"
    );
    ExitCode::from(u8::from(failed > 0))
}
