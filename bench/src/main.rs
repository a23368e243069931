//! What `cargo xtask bench` measures inside a process: decisions, a long trace, the speed of SHA-256, how often the scanners are wrong, a request by the proxy.
//!
//! *Owns:* the library rows of DESIGN §8.
//! *Depends on:* the crates it measures.
//! *Must not know:* goals, neighbours, how rows are shown: xtask does.
//! *Start reading at:* `main`.
//!
//! Prints one number, or nothing.

mod egress;
mod policy;
mod screen;
mod trace;

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};

const HELP: &str = "usage: clawk-bench policy RULES | trace FILE EVENTS | sha256 FILE | false-positives secrets|injections FOLDER… | \
                    found secrets|injections CORPUS | egress straight|proxied REQUESTS";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let printed = match words.as_slice() {
        ["policy", rules] => Some(policy::nanoseconds(rules.parse().context(HELP)?)?),
        ["trace", file, events] => {
            trace::write(Path::new(file), events.parse().context(HELP)?)?;
            None
        }
        ["sha256", file] => Some(trace::sha256_mb_per_second(Path::new(file))?),
        ["false-positives", what, folders @ ..] => Some(screen::per_megabyte(what, folders)?),
        ["found", what, corpus] => Some(screen::found_percent(what, Path::new(corpus))?),
        ["egress", "straight", requests] => {
            Some(egress::microseconds(false, requests.parse().context(HELP)?)?)
        }
        ["egress", "proxied", requests] => Some(egress::microseconds(true, requests.parse().context(HELP)?)?),
        _ => bail!(HELP),
    };
    if let Some(number) = printed {
        writeln!(std::io::stdout(), "{number}")?;
    }
    Ok(())
}
