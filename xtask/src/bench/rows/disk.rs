//! Measures the cost of durability, compared with the disk's own.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;

use anyhow::{Context, Result};

use super::super::Size;
use super::super::agent::{Agent, IN_FLIGHT, Kind};
use super::super::manifest::Setup;
use super::super::programs::Programs;
use super::super::sample::{Sample, timed};
use super::super::table::{Goal, Table};

/// One page of a write-ahead log.
const PAGE: [u8; 4096] = [7; 4096];
/// Number of calls until the log has its full length and is overwritten in place, like the reference file.
const SETTLE: u32 = 12_000;

/// Milliseconds of one `fdatasync` after one page was overwritten in place: the minimum cost of a durable write on this disk.
pub(crate) fn fdatasync_ms(folder: &Path, times: u32) -> Result<Sample> {
    const PAGES: u32 = 64;
    let path = folder.join(format!("fdatasync-{}", std::process::id()));
    let mut file = File::create(&path).with_context(|| format!("can't make `{}`", path.display()))?;
    for _ in 0..PAGES {
        file.write_all(&PAGE)?;
    }
    file.sync_all()?;
    let mut sample = Sample::default();
    for time in 0..times {
        file.seek(SeekFrom::Start(u64::from(time % PAGES) * 4096))?;
        file.write_all(&PAGE)?;
        let (took, done) = timed(|| file.sync_data());
        done?;
        sample.push(took);
    }
    drop(file);
    std::fs::remove_file(&path)?;
    Ok(sample)
}

pub(super) fn sequential(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    for (side_effects, what, goal) in [
        (false, "claw.tool.call, durable, one by one, no side effects", 1.3),
        (true, "the same with side effects: decision, then outcome", 2.5),
    ] {
        let folder = folder.join(side_effects.to_string());
        std::fs::create_dir(&folder)?;
        let setup = Setup {
            side_effects,
            ..Setup::PLAIN
        };
        let mut agent = Agent::start(&programs.clawk, &folder, setup)?;
        agent.flood(Kind::Echo, SETTLE)?;
        let (mut calls, mut syncs) = (Sample::default(), Sample::default());
        // Measure in turns, so that both see the same load of the machine.
        for _ in 0..size.starts {
            agent.sequence(Kind::Echo, 20, &mut calls)?;
            syncs.push(fdatasync_ms(&folder, 20)?.median());
        }
        agent.end()?;
        table.add(
            what,
            (calls.median(), "ms"),
            ("one fdatasync", syncs.median()),
            Goal::RatioAtMost(goal),
        );
    }
    Ok(())
}

pub(super) fn group(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let mut agent = Agent::start(&programs.clawk, folder, Setup::PLAIN)?;
    let flood = agent.best_flood(Kind::Echo, size.requests / 5, size.rounds)?;
    agent.end()?;
    let sync_ms = fdatasync_ms(folder, 200)?.median();
    table.add(
        format!("claw.tool.call, durable, {IN_FLIGHT} in flight"),
        (flood.per_second, "/s"),
        ("one fdatasync after the other", 1e3 / sync_ms),
        Goal::AtLeast(20_000.0),
    );
    Ok(())
}
