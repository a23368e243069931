//! Measures a request without waiting for the disk, and checks that memory does not grow.

use std::path::Path;

use anyhow::Result;

use super::super::Size;
use super::super::agent::{Agent, IN_FLIGHT, Kind};
use super::super::manifest::Setup;
use super::super::process::rss_mib;
use super::super::programs::Programs;
use super::super::sample::Sample;
use super::super::table::{Goal, Table};
use crate::run::command;

/// `durability = "relaxed"`.
const RELAXED: Setup = Setup {
    relaxed: true,
    ..Setup::PLAIN
};
/// Number of calls after which all caches are filled.
const SETTLED: u32 = 10_000;

pub(super) fn floods(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let mut cat = Agent::of(&mut command("cat"))?;
    let lines = cat.best_flood(Kind::Status, size.requests, size.rounds)?;
    cat.end()?;
    let mut agent = Agent::start(&programs.clawk, folder, RELAXED)?;
    let status = agent.best_flood(Kind::Status, size.requests, size.rounds)?;
    let echo = agent.best_flood(Kind::Echo, size.requests / 5, size.rounds)?;
    agent.end()?;
    table.add(
        format!("claw.status, {IN_FLIGHT} in flight: CPU"),
        (status.cpu_us, "µs"),
        ("cat, the same lines", lines.cpu_us),
        Goal::AtMost(3.0),
    );
    table.add(
        format!("claw.status, {IN_FLIGHT} in flight"),
        (status.per_second, "/s"),
        ("cat, the same lines", lines.per_second),
        Goal::AtLeast(300_000.0),
    );
    table.add(
        "claw.tool.call echo: schema, policy, dedup, trace; relaxed: CPU",
        (echo.cpu_us, "µs"),
        ("claw.status", status.cpu_us),
        Goal::AtMost(12.0),
    );
    table.add(
        "the same",
        (echo.per_second, "/s"),
        ("claw.status", status.per_second),
        Goal::AtLeast(100_000.0),
    );
    Ok(())
}

/// Number of memory samples; their median counts. The allocator returns two MiB and takes them again, which a single sample would
/// measure.
const LOOKS: u32 = 11;
const APART: u32 = 2_000;

pub(super) fn flat(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let mut agent = Agent::start(&programs.clawk, folder, RELAXED)?;
    agent.flood(Kind::Echo, SETTLED)?;
    let before = resident_mib(&mut agent)?;
    agent.flood(Kind::Echo, size.flat_calls)?;
    let after = resident_mib(&mut agent)?;
    agent.end()?;
    table.add(
        format!(
            "resident memory after {} calls, median of {LOOKS} looks",
            size.flat_calls + SETTLED
        ),
        (after, "MiB"),
        (format!("after {SETTLED}"), before),
        Goal::RatioAtMost(1.05),
    );
    Ok(())
}

fn resident_mib(agent: &mut Agent) -> Result<f64> {
    let mut looks = Sample::default();
    for _ in 0..LOOKS {
        agent.flood(Kind::Echo, APART)?;
        looks.push(rss_mib(agent.pid())?);
    }
    Ok(looks.median())
}
