//! What an agent still knows after 2,000 turns, and how well its stores find: measurements of minutes with a real model of embeddings.
//! Each prints its numbers, and fails where they are worse than what `docs/how-to/memory.md` says.

use anyhow::Result;

use crate::parts;
use crate::run::{command, must};

/// How many turns a run has, for the tests.
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
