//! `cargo xtask bench`: the rows of DESIGN §8, each compared with a reference measured in the same run.
//!
//! The program under test is the shipped binary, in a process of its own, driven over standard input and output as any client
//! would. Measurements inside a library come from `bench/`. Throughput and CPU are the best of several rounds and latencies are
//! medians, because other work on the machine can only make results worse.

mod agent;
mod embeddings;
mod machine;
mod manifest;
mod process;
mod programs;
mod prose;
mod rows;
mod sample;
mod servers;
mod several;
mod table;

use std::io::Write as _;

use anyhow::{Context, Result, bail};

use crate::dist::PROFILE;
use programs::Programs;
use table::Table;

/// Options from the command line.
#[derive(Debug, Clone)]
struct Flags {
    quick: bool,
    json: bool,
    /// Include the row of level `wasm`, whose back end takes minutes to build.
    wasm: bool,
    /// Path of a built program to measure instead of this tree's.
    program: Option<String>,
    /// The cargo profile of the programs.
    profile: String,
    /// Run only measurements whose name contains this text.
    only: String,
    /// Largest number of entries in a memory store.
    most: u32,
}

/// The extent of the measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Number of starts of the whole program.
    pub(crate) starts: usize,
    /// Rounds of a throughput test. The best one counts.
    pub(crate) rounds: usize,
    /// Requests in one round of cheap requests. Rounds of calls have a fifth of this.
    pub(crate) requests: u32,
    /// Calls for the memory growth row, after ten thousand calls to warm up.
    pub(crate) flat_calls: u32,
    /// Delegated turns and sessions for the next rows, after the warm-up.
    pub(crate) turns: u32,
    pub(crate) sessions: u32,
    /// Number of events in the verified trace.
    pub(crate) events: u32,
    /// Sizes of the memory stores, in ascending order.
    pub(crate) entries: &'static [u32],
}

const FULL: Size = Size {
    starts: 30,
    rounds: 5,
    requests: 200_000,
    flat_calls: 1_000_000,
    turns: 10_000,
    sessions: 2_000,
    events: 1_000_000,
    entries: &[1_000, 10_000, 100_000, 1_000_000],
};
const QUICK: Size = Size {
    starts: 10,
    rounds: 3,
    requests: 50_000,
    flat_calls: 100_000,
    turns: 500,
    sessions: 300,
    events: 200_000,
    entries: &[1_000, 20_000],
};

/// Measures everything and prints the table. If one measurement fails, the others still run.
///
/// # Errors
/// The arguments are wrong, a build failed, or an agent gave a wrong answer.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let asked = asked(words)?;
    let mut size = if asked.quick { QUICK } else { FULL };
    let fit = size.entries.partition_point(|entries| *entries <= asked.most);
    size.entries = size.entries.get(..fit.max(1)).unwrap_or(size.entries);
    let programs = Programs::build(asked.program.as_deref(), &asked.profile, asked.wasm)?;
    let mut table = Table::default();
    let mut failed = Vec::new();
    for (name, measure) in rows::ALL {
        if !name.contains(&asked.only) {
            continue;
        }
        progress(&format!("measuring {name}"));
        let scratch = programs.scratch()?;
        if let Err(error) = measure(&programs, scratch.path(), size, &mut table) {
            progress(&format!("{name}: {error:#}"));
            failed.push(name);
        }
    }
    let given = asked.program.as_deref();
    let machine = machine::note(programs.folder(), given, &asked.profile)?;
    if asked.json {
        crate::run::say(&table.json(&machine));
    } else {
        crate::run::say(&table.text(&machine));
    }
    anyhow::ensure!(
        failed.is_empty(),
        "not measured to the end: {}",
        failed.join(", ")
    );
    Ok(())
}

fn asked(words: &[String]) -> Result<Flags> {
    let mut asked = Flags {
        quick: false,
        json: false,
        wasm: false,
        program: None,
        profile: PROFILE.to_owned(),
        only: String::new(),
        most: u32::MAX,
    };
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--quick" => asked.quick = true,
            "--wasm" => asked.wasm = true,
            "--format" => match words.next() {
                Some("json") => asked.json = true,
                Some("human") => asked.json = false,
                _ => bail!("`--format` takes `json` or `human`"),
            },
            "--program" => asked.program = Some(words.next().context("`--program` takes a path")?.to_owned()),
            "--most" => {
                let most = words.next().context("`--most` takes a number of entries")?;
                asked.most = most.parse().context("`--most` takes a number of entries")?;
            }
            "--profile" => words
                .next()
                .context("`--profile` takes a name of `Cargo.toml`")?
                .clone_into(&mut asked.profile),
            "--only" => words
                .next()
                .context("`--only` takes a word")?
                .clone_into(&mut asked.only),
            other => {
                bail!(
                    "`{other}` is none of `--quick`, `--wasm`, `--format json`, `--only WORD`, `--most ENTRIES`, `--profile NAME` and `--program PATH`"
                )
            }
        }
    }
    Ok(asked)
}

fn progress(text: &str) {
    // silent-ok: a closed standard error has no reader
    let _ = writeln!(std::io::stderr(), "{text}");
}
