//! The faults of every transport as a whole: 1,000 reconnects, 10,000 connections that say nothing, 200 cut messages, brokers
//! and agents that are killed. CI runs the same tests with less of each.

use anyhow::Result;

use crate::parts;
use crate::run::{command, must};

/// Tells the tests to do the whole.
const WHOLE: &str = "CLAWK_SOAK";

pub(super) fn run() -> Result<()> {
    let parts_dir = parts::install()?;
    let mut tests = command("cargo");
    tests.args([
        "nextest",
        "run",
        "-p",
        "clawk",
        "--features",
        "nats,redis",
        "--test",
        "it",
        "--no-capture",
    ]);
    tests.args(["-E", "test(faults::) + test(queues::) + test(transports::)"]);
    must(tests.env(WHOLE, "1").env(parts::VARIABLE, parts_dir))
}
