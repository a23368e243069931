//! Measurements that need no agent: a policy decision, and the verification of a long trace.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::super::Size;
use super::super::process::peak_mib;
use super::super::programs::Programs;
use super::super::sample::{Sample, timed};
use super::super::table::{Goal, Table};
use crate::run::{command, output};

pub(super) fn rows(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let number = |words: &[&str]| -> Result<f64> {
        let printed = output(command(&programs.library).args(words))?;
        printed
            .trim()
            .parse()
            .context("the library program prints a number")
    };
    let (few, many) = (number(&["policy", "10"])?, number(&["policy", "10000"])?);
    let neighbour = ("10 rules", few);
    table.add(
        "policy decision, 10,000 rules",
        (many, "ns"),
        neighbour,
        Goal::AtMost(2000.0),
    );
    table.add(
        "the same, growth",
        (many, "ns"),
        neighbour,
        Goal::RatioAtMost(2.0),
    );

    let (straight, proxied) = (
        number(&["egress", "straight", "2000"])?,
        number(&["egress", "proxied", "2000"])?,
    );
    table.add(
        "request over loopback by the sandbox's proxy",
        (proxied, "µs"),
        ("the same without it", straight),
        Goal::AtMost(straight + 1000.0),
    );

    let file = folder.join("long.trace.jsonl");
    let path = file.to_str().context("the build folder's name is no UTF-8")?;
    output(command(&programs.library).args(["trace", path, &size.events.to_string()]))?;
    let bytes = std::fs::metadata(&file)?.len() as f64;
    let (mut seconds, mut peaks) = (Sample::default(), Sample::default());
    for _ in 0..size.rounds {
        let mut verify = command(&programs.clawk);
        verify.args(["trace", "verify", path]).stdout(Stdio::null());
        let (took, ended) = timed(|| -> Result<_> {
            let mut child = verify.spawn()?;
            let peak = peak_mib(&mut child)?;
            Ok((peak, child.wait()?))
        });
        let (peak, status) = ended?;
        ensure!(status.success(), "a good trace was refused");
        seconds.push(took / 1e3);
        peaks.push(peak);
    }
    let sha256 = number(&["sha256", path])?;
    let (events, megabytes) = (f64::from(size.events), bytes / 1e6);
    table.add(
        format!(
            "trace verify, {} events of {:.0} MB, whole process",
            size.events, megabytes
        ),
        (seconds.least(), "s"),
        ("SHA-256 of the file, one core", megabytes / sha256),
        Goal::AtMost(0.8 * events / 1e6),
    );
    table.add(
        "the same, speed (the ratio is the share of SHA-256)",
        (megabytes / seconds.least(), "MB/s"),
        ("SHA-256, one core", sha256),
        Goal::None,
    );
    table.add(
        "the same, peak memory",
        (peaks.most(), "MiB"),
        ("the file", bytes / 1_048_576.0),
        Goal::AtMost(64.0),
    );
    Ok(())
}
