//! What an entry takes of the disk, and when a provider's vector of it is there.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::super::Size;
use super::super::agent::Agent;
use super::super::embeddings::{self, DIMENSIONS};
use super::super::manifest::Setup;
use super::super::programs::Programs;
use super::super::prose::Prose;
use super::super::sample::{Sample, ms};
use super::super::table::{Goal, Table};
use super::memory::{AT_ONCE, FILLING, Writer, ask};

/// Characters of an entry whose bytes are counted.
const LONG: usize = 1_000;
/// Entries of the small store.
const FEW: u32 = 1_000;
/// How long vectors of a whole store may take.
const PATIENCE: Duration = Duration::from_secs(1_800);
/// Entries of a filled store that are looked for by their vectors.
const LOOKS: u32 = 100;
/// Entries whose vectors are waited for one by one.
const SINGLE: u32 = 10;

/// What an entry of a thousand characters takes of the whole state directory, vectors apart: words alone are indexed.
pub(super) fn bytes(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let prose = Prose::load()?;
    let entries = if size.starts < 30 { 2_000 } else { 10_000 };
    let setup = Setup {
        search: "fts-only",
        ..FILLING
    };
    let mut agent = Agent::start(&programs.clawk, folder, setup)?;
    let took = Writer::default().fill(&mut agent, &prose, (entries, LONG))?;
    agent.end()?;
    #[expect(clippy::cast_precision_loss, reason = "bytes of a benchmark")]
    let each = folder_bytes(folder)? as f64 / f64::from(entries) / LONG as f64;
    table.add(
        format!(
            "bytes on disk of an entry of {LONG} characters, the whole state directory over {entries} of them"
        ),
        (each, "×"),
        (format!("its {LONG} characters"), 1.0),
        Goal::RatioAtMost(3.3),
    );
    table.add(
        format!("storing {AT_ONCE} of them behind up to {entries} others, the last tenth"),
        (took.end(0.1).median(), "ms"),
        ("the first tenth", took.beginning(0.1).median()),
        Goal::RatioAtMost(2.0),
    );
    Ok(())
}

/// Vectors of a provider's model, through the wire: when they are there, and what a question costs.
pub(super) fn embedded(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let prose = Prose::load()?;
    let port = embeddings::start()?;
    let setup = Setup {
        search: "vector-only",
        embedder: Some(port),
        ..FILLING
    };
    let mut few: Option<(Sample, f64)> = None;
    for entries in size.entries.iter().copied().filter(|entries| *entries <= 100_000) {
        let folder = folder.join(entries.to_string());
        std::fs::create_dir(&folder)?;
        let mut agent = Agent::start(&programs.clawk, &folder, setup)?;
        let mut writer = Writer::default();
        let began = Instant::now();
        writer.fill(&mut agent, &prose, (entries, 200))?;
        for n in (0..entries).step_by(usize::try_from(entries / LOOKS)?) {
            nearest(&mut agent, &prose.text(n, 200))?;
        }
        let rate = f64::from(entries) / began.elapsed().as_secs_f64();
        let mut single = Sample::default();
        for n in 0..SINGLE {
            let text = prose.text(u32::MAX - n, 200);
            let began = Instant::now();
            writer.store(&mut agent, &[json!({ "content": text })])?;
            nearest(&mut agent, &text)?;
            single.push(ms(began.elapsed()));
        }
        let mut asked = Sample::default();
        // A question's vector is asked for once; the first time says what that costs.
        for round in 0..size.starts {
            for n in 0..20 {
                let took = ask(&mut agent, &prose.question(n))?;
                if round > 0 {
                    asked.push(took);
                }
            }
        }
        agent.end()?;
        let (least, least_rate) = few.get_or_insert_with(|| (asked.clone(), rate));
        let at = format!("at {FEW}");
        table.add(
            format!(
                "memory query by a provider's vectors of {DIMENSIONS} dimensions at {entries} entries, p50"
            ),
            (asked.median(), "ms"),
            (at.clone(), least.median()),
            Goal::None,
        );
        table.add(
            "the same, p99",
            (asked.quantile(0.99), "ms"),
            (at, least.quantile(0.99)),
            Goal::AtMost(20.0),
        );
        table.add(
            format!("an entry's vector can be found so long after it was stored, behind {entries} others, the slowest of {SINGLE}"),
            (single.most() / 1e3, "s"),
            ("the quickest", single.least() / 1e3),
            Goal::AtMost(5.0),
        );
        table.add(
            format!("entries stored, and found by their vectors, of a store of {entries}; the server of embeddings answers at once"),
            (rate, "/s"),
            (format!("of {FEW}"), *least_rate),
            Goal::None,
        );
    }
    Ok(())
}

/// Asks until the nearest entry is the one that says this.
fn nearest(agent: &mut Agent, text: &str) -> Result<()> {
    let began = Instant::now();
    let params = json!({ "store": "notes", "query": { "type": "semantic", "text": text, "top_k": 1 } });
    loop {
        let found = agent.ask("claw.memory.query", &params)?;
        let used = found.get("used").and_then(Value::as_str).unwrap_or("vector");
        let says = found.pointer("/entries/0/content").and_then(Value::as_str);
        if says == Some(text) && used == "vector" {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "its vector does not come: {found}");
        sleep(Duration::from_millis(50));
    }
}

/// Bytes of all files below a folder: the state lies in it, and nothing else grows.
pub(super) fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            bytes += folder_bytes(&entry.path())?;
        } else if kind.is_file() {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}
