//! What `cargo xtask bench` measures inside a process: decisions, resolutions, executions, a long trace, the speed of SHA-256, the
//! false positives of the scanners, a request through the proxy, a sandbox, and the leftovers of ten thousand sandboxes.
//!
//! *Owns:* the library rows of DESIGN §8. *Depends on:* the crates it measures. *Must not know:* goals, competing products, how
//! rows are shown. These belong to xtask. *Start reading at:* `main`.
//!
//! Prints numbers, or nothing. Run as `clawk-bench __sandbox`, the program is the sandbox's own helper process.

mod boxes;
mod broker;
mod carp;
mod egress;
mod execute;
mod policy;
mod scan;
mod screen;
mod trace;
mod transport;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const HELP: &str = "usage: clawk-bench policy RULES | trace FILE EVENTS | sha256 FILE | verify FILE | diff FILE | \
                    governed FILE EVENTS | replay FILE | resolve ACTIONS | execute pure|acting FOLDER EXECUTIONS | false-positives secrets|injections FOLDER… | \
                    found secrets|injections CORPUS | egress straight|proxied REQUESTS | boxes waiting | boxes ROUNDS plain|bubblewrap|runc|cold|warm|container|wasm… | burst ROUNDS CALLS WAY… | deadline ROUNDS | calls N | transport URL|echo:unix|echo:http|echo:ws|echo:dir REQUESTS FOLDER | idle URL CONNECTIONS | scan DIMENSIONS ROWS | broker URL MESSAGES | first-word ADDRESS REQUESTS";

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(word) if word == "__sandbox" => return clawk_sandbox::child::main(),
        Some(word) if word == clawk_sandbox::container::stage::MODE => {
            return clawk_sandbox::container::stage::main();
        }
        Some(_) | None => {}
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error:#}"); // silent-ok: nobody reads standard error
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let printed = match words.as_slice() {
        ["policy", rules] => Some(policy::nanoseconds(rules.parse().context(HELP)?)?),
        ["trace", file, events] => {
            trace::write(Path::new(file), events.parse().context(HELP)?)?;
            None
        }
        ["sha256", file] => Some(trace::sha256_mb_per_second(Path::new(file))?),
        ["verify", file] => {
            trace::verify(Path::new(file))?;
            None
        }
        ["diff", file] => Some(trace::diff_s(Path::new(file))?),
        ["governed", file, events] => {
            carp::write(Path::new(file), events.parse().context(HELP)?)?;
            None
        }
        ["replay", file] => Some(carp::replay_s(Path::new(file))?),
        ["resolve", actions] => Some(carp::resolve_us(actions.parse().context(HELP)?)?),
        ["execute", what @ ("pure" | "acting"), folder, executions] => {
            let executions = executions.parse().context(HELP)?;
            Some(execute::per_second(
                Path::new(folder),
                executions,
                *what == "pure",
            )?)
        }
        ["false-positives", what, folders @ ..] => Some(screen::per_megabyte(what, folders)?),
        ["found", what, corpus] => Some(screen::found_percent(what, Path::new(corpus))?),
        ["egress", "straight", requests] => {
            Some(egress::microseconds(false, requests.parse().context(HELP)?)?)
        }
        ["egress", "proxied", requests] => Some(egress::microseconds(true, requests.parse().context(HELP)?)?),
        ["deadline", rounds] => return say(&boxes::after_deadline(rounds.parse().context(HELP)?)?),
        ["boxes", "waiting"] => return say(&boxes::waiting_kib()?),
        ["boxes", rounds, ways @ ..] => {
            return say(&boxes::milliseconds(ways, rounds.parse().context(HELP)?, 1)?);
        }
        ["burst", rounds, calls, ways @ ..] => {
            let (rounds, calls) = (rounds.parse().context(HELP)?, calls.parse().context(HELP)?);
            return say(&boxes::milliseconds(ways, rounds, calls)?);
        }
        ["calls", calls] => return say(&boxes::leave_nothing(calls.parse().context(HELP)?)?.to_string()),
        ["transport", target, requests, folder] => {
            let requests = requests.parse().context(HELP)?;
            return say(&transport::measure(target, requests, Path::new(folder))?);
        }
        ["scan", dimensions, rows] => {
            let (dimensions, rows) = (dimensions.parse().context(HELP)?, rows.parse().context(HELP)?);
            return say(&scan::milliseconds(dimensions, rows));
        }
        ["broker", url, messages] => return say(&broker::measure(url, messages.parse().context(HELP)?)?),
        ["first-word", address, requests] => {
            let requests = requests.parse().context(HELP)?;
            return say(&transport::first_word(address, requests)?);
        }
        ["idle", target, connections] => return transport::idle(target, connections.parse().context(HELP)?),
        _ => bail!(HELP),
    };
    printed.map_or(Ok(()), |number| say(&number.to_string()))
}

fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}
