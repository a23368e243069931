//! That nothing is left of turns and sessions that are over.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::super::Size;
use super::super::agent::Agent;
use super::super::manifest::{self, Setup};
use super::super::process::rss_mib;
use super::super::programs::Programs;
use super::super::sample::Sample;
use super::super::table::{Goal, Table};

/// After so many, everything that is filled on first use is filled.
const SETTLED: u32 = 3_000;
/// Looks at the memory for one number, so long apart.
const LOOKS: u32 = 11;
const APART: Duration = Duration::from_millis(50);
/// Peers that work side by side.
const PEERS: u32 = 16;
/// A session leaves memory when nothing is said for so long.
const IDLE: Duration = Duration::from_millis(500);
/// How often a request is made again while every peer is busy, at most.
const PATIENCE: u32 = 10_000;

pub(super) fn flat(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let setup = Setup {
        relaxed: true,
        ..Setup::PLAIN
    };
    manifest::write(folder, setup)?;
    append(
        &folder.join("claw.yaml"),
        &format!(
            "  swarm:\n    inline:\n      name: team\n      topology: peer-to-peer\n      \
             agents: [{{ identity_ref: hand, role: peer, count: {PEERS} }}]\n      \
             coordination: {{ message_passing: direct, backend: in-process, concurrency: {{ max_parallel: {PEERS} }} }}\n      \
             aggregation: {{ strategy: merge }}\n"
        ),
    )?;
    let inbox = format!("\n[inbox]\nidle_ms = {}\n", IDLE.as_millis());
    append(&folder.join("clawk.toml"), &inbox)?;
    fs::write(
        folder.join("model.yaml"),
        "scenes: [{ steps: [{ say: done }] }]\n",
    )?;
    let mut agent = Agent::spawn(&programs.clawk, folder)?;
    agent.initialize()?;
    let mut ids = 0;
    let turns: Request = (
        "claw.swarm.delegate",
        // For one of the peers. A task for the swarm is worked on by every one of them: the topology says so.
        |id| json!({ "task_id": id, "task": { "description": "count the beans" }, "context": { "request_id": id, "swarm": "team", "member": "hand" } }),
    );
    let sessions: Request = (
        "claw.message.send",
        |id| json!({ "text": "hello", "request_id": id }),
    );
    for (what, request, count) in [
        ("delegated turns", turns, size.turns),
        ("sessions", sessions, size.sessions),
    ] {
        let settled = SETTLED.min(count);
        work(&mut agent, request, &mut ids, settled)?;
        let before = resident_mib(&agent)?;
        work(&mut agent, request, &mut ids, count)?;
        let after = resident_mib(&agent)?;
        table.add(
            format!("resident memory after {} {what}", settled + count),
            (after, "MiB"),
            (format!("after {settled}"), before),
            Goal::RatioAtMost(1.1),
        );
    }
    agent.end()
}

/// The method, and its parameters for an id.
type Request = (&'static str, fn(&str) -> Value);

/// So many requests one after the other. Where every peer is busy, a request waits and is made again.
fn work(agent: &mut Agent, (method, params): Request, ids: &mut u64, count: u32) -> Result<()> {
    for _ in 0..count {
        *ids += 1;
        let id = format!("0198bbbb-0000-4000-8000-{ids:012x}");
        let mut tries = 0;
        while let Err(error) = agent.ask(method, &params(&id)) {
            tries += 1;
            if tries > PATIENCE || !error.to_string().contains("\"busy\"") {
                bail!(error);
            }
            sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// After what is over has left; the median, since the allocator gives memory back and takes it again.
fn resident_mib(agent: &Agent) -> Result<f64> {
    sleep(IDLE * 3);
    let mut looks = Sample::default();
    for _ in 0..LOOKS {
        sleep(APART);
        looks.push(rss_mib(agent.pid())?);
    }
    Ok(looks.median())
}

fn append(path: &Path, text: &str) -> Result<()> {
    let before = fs::read_to_string(path).with_context(|| format!("can't read `{}`", path.display()))?;
    Ok(fs::write(path, before + text)?)
}
