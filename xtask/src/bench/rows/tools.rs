//! Measures the cost of the sandbox, compared with the process that it starts.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use super::super::Size;
use super::super::agent::{Agent, Kind};
use super::super::manifest::Setup;
use super::super::process::plain_spawn_ms;
use super::super::programs::Programs;
use super::super::sample::Sample;
use super::super::table::{Goal, Table};

/// Number of calls in one model answer, made in direct succession.
const TOGETHER: usize = 5;

/// Pause between two answers. A real model takes longer.
const THINKING: Duration = Duration::from_millis(100);

/// Number of calls without any pause.
const WITHOUT_PAUSE: usize = 100;

pub(super) fn sandboxed(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    for (view, words) in [("deny", ""), ("full", ", the host's whole view (`full`)")] {
        // Relaxed durability: another row measures the cost of the call's record.
        let setup = Setup {
            relaxed: true,
            view,
            ..Setup::PLAIN
        };
        let folder = folder.join(view);
        std::fs::create_dir(&folder)?;
        let mut agent = Agent::start(&programs.clawk, &folder, setup)?;
        let (mut calls, mut plain) = (Sample::default(), Sample::default());
        agent.sequence(Kind::RunTrue, TOGETHER, &mut Sample::default())?;
        for _ in 0..size.starts {
            sleep(THINKING);
            agent.sequence(Kind::RunTrue, TOGETHER, &mut calls)?;
            plain.push(plain_spawn_ms(TOGETHER)?.median());
        }
        let (call, plain) = (calls.median(), plain.median());
        table.add(
            format!("sandboxed command, {TOGETHER} of one answer right behind one another{words} ({call:.2} ms), over fork and exec"),
            (call - plain, "ms"),
            ("fork, exec, wait of /bin/true", plain),
            Goal::AtMost(3.0),
        );
        let mut endless = Sample::default();
        agent.sequence(Kind::RunTrue, WITHOUT_PAUSE, &mut endless)?;
        agent.end()?;
        table.add(
            format!("the same without any pause, one of {WITHOUT_PAUSE}"),
            (endless.median() - plain, "ms"),
            ("fork, exec, wait of /bin/true", plain),
            Goal::AtMost(3.0),
        );
    }
    Ok(())
}
