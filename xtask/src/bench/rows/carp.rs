//! Measures CARP and TRACE: resolutions, executions, replay of a record, comparison of two traces.

use std::path::Path;

use anyhow::{Context, Result};

use super::super::Size;
use super::super::agent::IN_FLIGHT;
use super::super::programs::Programs;
use super::super::table::{Goal, Table};
use super::disk::fdatasync_ms;
use crate::run::{command, output};

/// Number of events in the traces that are replayed and compared.
const EVENTS: &str = "100000";

fn number(programs: &Programs, words: &[&str]) -> Result<f64> {
    let printed = output(command(&programs.library).args(words))?;
    printed
        .trim()
        .parse()
        .context("the library program prints a number")
}

fn executions(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let sync_ms = fdatasync_ms(folder, 200)?.median();
    let executions = (size.requests / 5).to_string();
    for (what, name, goal) in [
        ("pure", "CARP execute, durable", Goal::AtLeast(20_000.0)),
        (
            "acting",
            "the same with side effects: decision, then outcome",
            Goal::None,
        ),
    ] {
        let mut best: f64 = 0.0;
        for round in 0..size.rounds {
            let state = folder.join(format!("{what}-{round}"));
            let state = state.to_str().context("the build folder's name is no UTF-8")?;
            best = best.max(number(programs, &["execute", what, state, &executions])?);
        }
        table.add(
            format!("{name}, {IN_FLIGHT} in flight"),
            (best, "/s"),
            ("one fdatasync after the other", 1e3 / sync_ms),
            goal,
        );
    }
    Ok(())
}

pub(super) fn rows(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let few = number(programs, &["resolve", "10"])? / 1e3;
    for (actions, goal) in [
        ("100", Goal::None),
        ("1000", Goal::AtMost(1.2)),
        ("10000", Goal::AtMost(15.0)),
    ] {
        table.add(
            format!("CARP resolve with its events, {actions} actions and policies"),
            (number(programs, &["resolve", actions])? / 1e3, "ms"),
            ("10 of each", few),
            goal,
        );
    }
    executions(programs, folder, size, table)?;
    let traces = ["governed.trace.jsonl", "plain.trace.jsonl"].map(|name| folder.join(name));
    let [governed, plain] = &traces;
    let name = |path: &Path| -> Result<String> {
        Ok(path
            .to_str()
            .context("the build folder's name is no UTF-8")?
            .to_owned())
    };
    output(command(&programs.library).args(["governed", &name(governed)?, EVENTS]))?;
    output(command(&programs.library).args(["trace", &name(plain)?, EVENTS]))?;
    let megabytes = |path: &Path| -> Result<f64> { Ok(std::fs::metadata(path)?.len() as f64 / 1e6) };
    for (what, path, said) in [
        ("replay", governed, "all judged the same"),
        (
            "diff",
            plain,
            "against itself with 530 edits, exactly those found",
        ),
    ] {
        let mut best = f64::INFINITY;
        for _ in 0..size.rounds {
            best = best.min(number(programs, &[what, &name(path)?])?);
        }
        let sha256 = number(programs, &["sha256", &name(path)?])?;
        table.add(
            format!("trace {what}, {EVENTS} events, {said}"),
            (best, "s"),
            ("SHA-256 of the file, one core", megabytes(path)? / sha256),
            Goal::AtMost(1.0),
        );
    }
    Ok(())
}
