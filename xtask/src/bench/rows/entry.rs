//! Measures the disk space of a memory entry, and the time until its provider's vector is stored.

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

/// Length of an entry for the size measurement, in characters.
const LONG: usize = 1_000;
/// Number of entries in the small store.
const FEW: u32 = 1_000;
/// Time limit for the vectors of a whole store.
const PATIENCE: Duration = Duration::from_secs(1_800);
/// Number of entries that are searched by their vectors.
const LOOKS: u32 = 100;
/// Number of entries whose vectors are awaited one by one.
const SINGLE: u32 = 10;

/// Bytes that an entry of a thousand characters adds to the whole state directory, without vectors: only its words are indexed.
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

/// Vectors of a provider's model over the network: the time until they are stored, and the cost of a question.
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
        // A question's vector is requested once, so only the first time includes its cost.
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

/// Repeats the question until the nearest entry has this text.
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

/// Returns the bytes of all files in a folder. The folder holds the state, and nothing else in it grows.
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
