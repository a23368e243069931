//! Soak tests of all transports: 1,000 reconnects, 10,000 idle connections, 200 truncated messages, killed brokers and agents. CI
//! runs the same tests with smaller numbers.

use anyhow::Result;

use crate::parts;
use crate::run::{command, must};

/// Environment variable that selects the full size of the tests.
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
