//! Checks that finished turns and sessions leave no memory behind.

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

/// Number of turns after which all caches are filled.
const SETTLED: u32 = 3_000;
/// Number of memory samples for one value.
const LOOKS: u32 = 11;
const APART: Duration = Duration::from_millis(50);
/// Number of peers that work concurrently.
const PEERS: u32 = 16;
/// Idle time after which a session leaves memory.
const IDLE: Duration = Duration::from_millis(500);
/// Largest number of repetitions of a request while every peer is busy.
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
        // This task is for one of the peers. In this topology every peer works on a task for the whole swarm.
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

/// A method, and a function that makes its parameters from an id.
type Request = (&'static str, fn(&str) -> Value);

/// Makes requests one after the other. If every peer is busy, it waits and repeats the request.
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

/// Returns the median resident memory in MiB after finished work is removed. One sample is not enough, because the allocator
/// returns memory and takes it again.
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
