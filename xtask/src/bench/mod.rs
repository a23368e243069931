//! `cargo xtask bench`: the rows of DESIGN §8, each against a neighbour measured in the same run.
//!
//! The program under test is the shipped binary, in a process of its own, driven over standard input and output as any
//! client would. What only a library can show comes from `bench/`. Throughput and CPU are the best of several rounds and
//! latencies are medians, because other work on the machine only ever makes them worse.

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

/// What was asked for on the command line.
#[derive(Debug, Clone)]
struct Flags {
    quick: bool,
    json: bool,
    /// With the row of level `wasm`, whose back end takes minutes to build.
    wasm: bool,
    /// A built program to measure instead of the tree's.
    program: Option<String>,
    /// The profile that the programs are built with.
    profile: String,
    /// Only rows of measurements whose name holds this.
    only: String,
    /// Stores of more entries than this are not made.
    most: u32,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Starts of the whole program.
    pub(crate) starts: usize,
    /// Rounds of a flood; the best counts.
    pub(crate) rounds: usize,
    /// Requests in one round of cheap requests; calls get a fifth.
    pub(crate) requests: u32,
    /// Calls for the memory growth row, after the first ten thousand.
    pub(crate) flat_calls: u32,
    /// Delegated turns and sessions for the rows beside it, after the first.
    pub(crate) turns: u32,
    pub(crate) sessions: u32,
    /// Events of the verified trace.
    pub(crate) events: u32,
    /// Entries of the memory stores, from few to many.
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

/// Measures and prints. One measurement's failure does not take the others'.
///
/// # Errors
/// Wrong words, a failed build, or an agent that answers anything but what it should.
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
    // silent-ok: nobody reads standard error
    let _ = writeln!(std::io::stderr(), "{text}");
}
