//! Measures how much an agent remembers after 2,000 turns, and the quality of memory search, with a real embeddings model. Takes
//! minutes. Each test prints its numbers and fails if they are worse than those in `docs/how-to/memory.md`.

use anyhow::Result;

use crate::parts;
use crate::run::{command, must};

/// Environment variable with the number of turns in a run.
const TURNS: &str = "CLAWK_TURNS";

pub(super) fn run(args: &[String]) -> Result<()> {
    super::only(args, &["--turns"])?;
    let turns = super::number(args, "--turns", 2000)?;
    let parts_dir = parts::install()?;
    let mut tests = command("cargo");
    tests.args([
        "nextest",
        "run",
        "--profile",
        "soak",
        "-p",
        "clawk",
        "--test",
        "it",
        "--run-ignored",
        "only",
        "--no-capture",
    ]);
    tests.args(["-E", "test(planted::) + test(retrieval::)"]);
    tests.env(TURNS, turns.to_string());
    must(tests.env(parts::VARIABLE, parts_dir))
}
