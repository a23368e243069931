//! Measures the start time and the memory of an idle agent.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::super::Size;
use super::super::agent::Agent;
use super::super::manifest::{self, Setup};
use super::super::process::{own_mib, plain_spawn_ms, rss_mib};
use super::super::programs::Programs;
use super::super::sample::{Sample, ms};
use super::super::table::{Goal, Table};
use crate::run::command;

pub(super) fn starts(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let (mut plain, mut first, mut again) = (Sample::default(), Sample::default(), Sample::default());
    manifest::write(folder, Setup::PLAIN)?;
    for round in 0..size.starts {
        plain.push(plain_spawn_ms(5)?.median());
        again.push(start_ms(programs, folder)?);
        let fresh = folder.join(format!("fresh-{round}"));
        std::fs::create_dir(&fresh)?;
        manifest::write(&fresh, Setup::PLAIN)?;
        first.push(start_ms(programs, &fresh)?);
    }
    let neighbour = ("fork, exec, wait of /bin/true", plain.median());
    table.add(
        "spawn to answered claw.initialize",
        (again.median(), "ms"),
        neighbour,
        Goal::AtMost(15.0),
    );
    table.add(
        "the same, first start: state is made",
        (first.median(), "ms"),
        neighbour,
        Goal::None,
    );
    Ok(())
}

fn start_ms(programs: &Programs, folder: &Path) -> Result<f64> {
    let start = Instant::now();
    let mut agent = Agent::spawn(&programs.clawk, folder)?;
    agent.initialize()?;
    let took = ms(start.elapsed());
    agent.end()?;
    Ok(took)
}

pub(super) fn idle(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let (mut ours, mut python) = (Memory::default(), Memory::default());
    for _ in 0..size.rounds {
        let agent = Agent::start(&programs.clawk, folder, Setup::PLAIN)?;
        std::thread::sleep(Duration::from_millis(300));
        ours.look(agent.pid())?;
        agent.end()?;
        let mut python3 = command("python3");
        python3.args(["-c", "import sys; sys.stdin.readline()"]);
        let idle = Agent::of(&mut python3)?;
        std::thread::sleep(Duration::from_millis(300));
        python.look(idle.pid())?;
        idle.end()?;
    }
    table.add(
        "idle memory after initialize, its own",
        (ours.own.median(), "MiB"),
        ("python3 -c, idle", python.own.median()),
        Goal::AtMost(14.0),
    );
    table.add(
        "the same with mapped pages of files",
        (ours.resident.median(), "MiB"),
        ("python3 -c, idle", python.resident.median()),
        Goal::None,
    );
    Ok(())
}

/// Memory of a process, sampled several times.
#[derive(Default)]
struct Memory {
    own: Sample,
    resident: Sample,
}

impl Memory {
    fn look(&mut self, pid: u32) -> Result<()> {
        self.own.push(own_mib(pid)?);
        self.resident.push(rss_mib(pid)?);
        Ok(())
    }
}
