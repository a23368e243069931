//! Measures sandboxes: their cost compared with a plain process and with other sandboxes, the cost of prewarmed boxes, and what a
//! deadline and many calls leave behind.

use std::path::Path;

use anyhow::{Context, Result};

use super::super::Size;
use super::super::programs::Programs;
use super::super::table::{Goal, Table};
use crate::run::{command, has, output};

/// Number of calls after which nothing may be left.
const CALLS: usize = 10_000;
const CALLS_QUICK: usize = 500;

/// Number of runs of each way.
const ROUNDS: usize = 100;

/// Number of WebAssembly guests called in direct succession, the first of them after a pause. They leave the kernel no work that
/// could delay other measurements.
const GUESTS: usize = 5;

pub(super) fn rows(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let numbers = |words: &[&str]| -> Result<Vec<f64>> {
        // The check counts temporary files, so it gets its own folder.
        let printed = output(command(&programs.library).args(words).env("TMPDIR", folder))?;
        let parsed = printed.split_whitespace().map(str::parse);
        parsed
            .collect::<Result<_, _>>()
            .context("the library program prints numbers")
    };
    let rounds = if size.starts < 30 { ROUNDS / 4 } else { ROUNDS }.to_string();
    // Other sandboxes are measured if they are installed; clawk's always.
    let mut ways = vec!["plain", "cold", "warm", "alone", "first"];
    if has("bwrap", &["--version"]) {
        ways.push("bubblewrap");
    }
    let measured = |ways: &[&str]| -> Result<Vec<f64>> {
        let words: Vec<&str> = ["boxes", &rounds]
            .into_iter()
            .chain(ways.iter().copied())
            .collect();
        numbers(&words)
    };
    let mut medians = measured(&ways)?;
    if has("runc", &["--version"]) {
        // Measured separately: the kernel is still cleaning up after a container when the next run begins.
        let containers = ["runc", "container"];
        medians.extend(measured(&containers)?);
        ways.extend(containers);
    }
    let of = |way: &str| {
        let at = ways.iter().position(|one| *one == way);
        at.and_then(|at| medians.get(at)).copied()
    };
    let (plain, cold, warm) = (
        of("plain").unwrap_or_default(),
        of("cold").unwrap_or_default(),
        of("warm").unwrap_or_default(),
    );
    table.add(
        format!("first call of a configuration at level `process`, a blank box waits ({cold:.2} ms), over fork and exec"),
        (cold - plain, "ms"),
        ("fork, exec, wait of /bin/true", plain),
        Goal::AtMost(3.0),
    );
    table.add(
        "a call whose configuration's box has waited",
        (warm, "ms"),
        ("fork, exec, wait of /bin/true", plain),
        Goal::RatioAtMost(2.0),
    );
    let [alone, first] = [of("alone"), of("first")].map(Option::unwrap_or_default);
    unprepared(plain, [alone, first], table);
    if let Some(other) = of("bubblewrap") {
        let neighbour = ("bubblewrap, the same program", other);
        table.add(
            "first call of a configuration at level `process`, a blank box waits",
            (cold, "ms"),
            neighbour,
            Goal::RatioAtMost(0.6),
        );
    }
    if let (Some(other), Some(ours)) = (of("runc"), of("container")) {
        let neighbour = ("runc run, the same program", other);
        table.add(
            "level `container`",
            (ours, "ms"),
            neighbour,
            Goal::RatioAtMost(1.15),
        );
    }
    if programs.wasm {
        guest(&numbers, &rounds, table)?;
    }
    left(&numbers, size, table)
}

/// Measures a call for which no box is prewarmed.
fn unprepared(plain: f64, [alone, first]: [f64; 2], table: &mut Table) {
    for (what, value) in [
        ("a box of level `process` made for its call, nothing waits", alone),
        ("the very first call of all, its program to be loaded", first),
    ] {
        let neighbour = ("fork, exec, wait of /bin/true", plain);
        table.add(what, (value, "ms"), neighbour, Goal::None);
    }
}

/// Level `wasm`: calls of each way in direct succession, then 50 ms apart.
fn guest(numbers: &dyn Fn(&[&str]) -> Result<Vec<f64>>, rounds: &str, table: &mut Table) -> Result<()> {
    let together = numbers(&["burst", rounds, &GUESTS.to_string(), "plain", "wasm"])?;
    let (plains, guests) = together.split_at(together.len() / 2);
    let rested = numbers(&["boxes", rounds, "plain", "wasm"])?;
    let [plain, rested] = rested.as_slice() else {
        anyhow::bail!("two numbers");
    };
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
    table.add(
        format!("level `wasm`: instantiate a compiled guest and call it, mean of {GUESTS} calls right behind one another"),
        (mean(guests), "ms"),
        ("fork, exec, wait of /bin/true", mean(plains)),
        Goal::AtMost(0.3),
    );
    table.add(
        "the same when nothing has run for 50 ms, so that an idle processor is woken for the guest and one for its caller",
        (*rested, "ms"),
        ("fork, exec, wait of /bin/true", *plain),
        Goal::AtMost(0.3),
    );
    Ok(())
}

/// Measures the memory of prewarmed boxes and the leftovers of many calls.
fn left(numbers: &dyn Fn(&[&str]) -> Result<Vec<f64>>, size: Size, table: &mut Table) -> Result<()> {
    let waiting = numbers(&["boxes", "waiting"])?;
    let [private, share, nursery, _, blank] = waiting.as_slice() else {
        anyhow::bail!("five numbers");
    };
    table.add(
        "a box that waits: pages that only its three processes have, mean of four",
        (*private, "KiB"),
        ("its share of all pages (PSS)", *share),
        Goal::AtMost(300.0),
    );
    table.add(
        "the blank box, the same of its two processes",
        (*blank, "KiB"),
        ("one box", *private),
        Goal::AtMost(300.0),
    );
    table.add(
        "the process that such boxes are forked from, private pages",
        (*nursery, "KiB"),
        ("one box", *private),
        Goal::None,
    );
    let after = numbers(&["deadline", "20"])?;
    let [median, most] = after.as_slice() else {
        anyhow::bail!("two numbers");
    };
    table.add(
        "from a call's deadline until nothing of it lives, longest of 20 that ignore SIGTERM",
        (*most, "ms"),
        ("the median", *median),
        Goal::AtMost(200.0),
    );
    let calls = if size.starts < 30 { CALLS_QUICK } else { CALLS };
    // The program fails if a mount, a control group, a descriptor, a zombie, a process or a temporary file is left.
    let served = numbers(&["calls", &calls.to_string()])?;
    table.add(
        format!("after {calls} calls: nothing is left"),
        (0.0, "things"),
        (
            "calls that a waiting box served",
            served.first().copied().unwrap_or(1.0),
        ),
        Goal::AtMost(0.0),
    );
    Ok(())
}
