//! What the sandbox costs over the process that it starts.

use std::path::Path;

use anyhow::Result;

use super::super::Size;
use super::super::agent::{Agent, Kind};
use super::super::manifest::Setup;
use super::super::process::plain_spawn_ms;
use super::super::programs::Programs;
use super::super::sample::Sample;
use super::super::table::{Goal, Table};

pub(super) fn sandboxed(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    // Relaxed: what the record of the call costs is another row's subject.
    let setup = Setup {
        relaxed: true,
        side_effects: false,
    };
    let mut agent = Agent::start(&programs.clawk, folder, setup)?;
    let (mut calls, mut plain) = (Sample::default(), Sample::default());
    agent.sequence(Kind::RunTrue, 5, &mut Sample::default())?;
    for _ in 0..size.starts {
        agent.sequence(Kind::RunTrue, 5, &mut calls)?;
        plain.push(plain_spawn_ms(5)?.median());
    }
    agent.end()?;
    let (call, plain) = (calls.median(), plain.median());
    table.add(
        format!("sandboxed command at level `process` ({call:.2} ms), over plain fork and exec"),
        (call - plain, "ms"),
        ("fork, exec, wait of /bin/true", plain),
        Goal::AtMost(3.0),
    );
    Ok(())
}
