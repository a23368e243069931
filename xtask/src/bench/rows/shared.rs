//! Measures a memory store on a PostgreSQL server: full-text search, and vector search with the extension `vector`, compared with
//! clawk's own scan.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::super::Size;
use super::super::agent::Agent;
use super::super::manifest;
use super::super::manifest::Setup;
use super::super::programs::Programs;
use super::super::prose::Prose;
use super::super::sample::Sample;
use super::super::servers::{Database, secrets};
use super::super::several::{clawk, trust};
use super::super::table::{Goal, Table};
use super::memory::{FILLING, Writer, ask};

const QUESTIONS: u32 = 20;
/// Largest store. Larger ones take minutes to fill.
const MOST: u32 = 100_000;

/// Starts the agent of a folder, with its store on the server.
fn started(
    programs: &Programs,
    folder: &Path,
    database: &Database,
    (backend, search): (&str, &'static str),
) -> Result<Agent> {
    let setup = Setup { search, ..FILLING };
    manifest::write(folder, setup)?;
    let path = folder.join("claw.yaml");
    let text = std::fs::read_to_string(&path)?.replace("backend: sqlite", &format!("backend: {backend}"));
    std::fs::write(&path, text)?;
    let path = folder.join("clawk.toml");
    let config = format!(
        "{}\n[secrets_store]\nfile = \"secrets.toml\"\n[postgres]\nurl = \"{}\"\nsecret_ref = \"PG_PASSWORD\"\ntls = \"disable\"\n\
         operation_timeout_ms = 60000\n",
        std::fs::read_to_string(&path)?,
        database.url()
    );
    std::fs::write(&path, config)?;
    secrets(folder)?;
    trust(&programs.clawk, folder)?;
    let mut agent = Agent::of(&mut clawk(
        &programs.clawk,
        folder,
        &["serve", "claw.yaml", "--stdio"],
    ))?;
    agent.initialize()?;
    Ok(agent)
}

/// Sends every question `rounds` times.
fn asked(agent: &mut Agent, prose: &Prose, rounds: usize) -> Result<Sample> {
    let mut sample = Sample::default();
    // Not counted: the first question may make this process read all vectors.
    ask(agent, &prose.question(QUESTIONS))?;
    for _ in 0..rounds {
        for n in 0..QUESTIONS {
            sample.push(ask(agent, &prose.question(n))?);
        }
    }
    Ok(sample)
}

pub(super) fn rows(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let prose = Prose::load()?;
    let rounds = size.starts / 3;
    let mut least: Option<(f64, f64)> = None;
    for entries in size.entries.iter().copied().filter(|entries| *entries <= MOST) {
        // Use a new server for each size: a store that shares its table with another one would be a different measurement.
        let folder = folder.join(entries.to_string());
        std::fs::create_dir(&folder)?;
        let database = Database::start(&folder)?;
        let mut agent = started(programs, &folder, &database, ("postgresql", "hybrid"))?;
        let took = Writer::default().fill(&mut agent, &prose, (entries, 200))?;
        // When this entry is stored, all entries before it are stored, too.
        Writer::beside().store(&mut agent, &[json!({ "content": prose.text(u32::MAX, 200) })])?;
        agent.end()?;
        database.sql("vacuum analyze")?;
        let by = |backend, search| -> Result<Sample> {
            let mut agent = started(programs, &folder, &database, (backend, search))?;
            let sample = asked(&mut agent, &prose, rounds)?;
            agent.end()?;
            Ok(sample)
        };
        let words = by("postgresql", "fts-only")?;
        let extension = by("pgvector", "vector-only")?;
        let own = by("postgresql", "vector-only")?;
        let rate = f64::from(entries) / took.sum() * 1e3;
        let (least_rate, least_words) = *least.get_or_insert((rate, words.median()));
        let few = size.entries.first().copied().unwrap_or(0);
        table.add(
            format!("PostgreSQL: filling a store with {entries} entries of 200 characters"),
            (rate, "/s"),
            (format!("with {few}"), least_rate),
            Goal::None,
        );
        table.add(
            format!("PostgreSQL: query by words at {entries} entries, p50"),
            (words.median(), "ms"),
            (format!("at {few}"), least_words),
            Goal::None,
        );
        table.add(
            format!("PostgreSQL: query by vectors of 256 dimensions with the extension `vector`, {entries} entries, p50"),
            (extension.median(), "ms"),
            ("`backend: postgresql`: clawk scans them", own.median()),
            Goal::None,
        );
    }
    Ok(())
}
