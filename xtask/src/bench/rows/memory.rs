//! A query must not mind how much is remembered.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::super::Size;
use super::super::agent::Agent;
use super::super::manifest::Setup;
use super::super::programs::Programs;
use super::super::sample::{Sample, timed};
use super::super::table::{Goal, Table};

/// Entries of the small store.
const FEW: u32 = 1_000;
/// Characters of an entry whose bytes are counted.
const LONG: u32 = 1_000;
/// Entries stored with one request.
const AT_ONCE: u32 = 500;
const WORDS: [&str; 10] = [
    "revenue", "pipeline", "garden", "weather", "engine", "poetry", "harbour", "music", "winter", "bread",
];
const QUESTIONS: [&str; 4] = [
    "revenue of the garden",
    "topic123 engine",
    "entry about",
    "topic7",
];

pub(super) fn queries(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let setup = Setup {
        relaxed: true,
        ..Setup::PLAIN
    };
    let mut agent = Agent::start(&programs.clawk, folder, setup)?;
    let mut request = 0;
    for (store, count) in [("few", FEW), ("many", size.entries)] {
        for chunk in 0..count / AT_ONCE {
            let entries: Vec<Value> = (chunk * AT_ONCE..(chunk + 1) * AT_ONCE).map(entry).collect();
            request += 1;
            let id = format!("0198aaaa-0000-4000-8000-{request:012x}");
            let params = json!({ "store": store, "entries": entries, "context": { "request_id": id } });
            agent.ask("claw.memory.store", &params)?;
        }
    }
    let (mut few, mut many) = (Sample::default(), Sample::default());
    for _ in 0..size.starts {
        for question in QUESTIONS {
            for (store, sample) in [("few", &mut few), ("many", &mut many)] {
                let params =
                    json!({ "store": store, "query": { "type": "semantic", "text": question, "top_k": 10 } });
                let (took, found) = timed(|| agent.ask("claw.memory.query", &params));
                let found = found?;
                let entries = found.get("entries").and_then(Value::as_array).map_or(0, Vec::len);
                ensure!(entries > 0, "`{question}` found nothing: {found}");
                sample.push(took);
            }
        }
    }
    agent.end()?;
    table.add(
        format!("memory query at {} entries, p50", size.entries),
        (many.median(), "ms"),
        (format!("at {FEW}"), few.median()),
        Goal::RatioAtMost(2.0),
    );
    table.add(
        "the same, p99",
        (many.quantile(0.99), "ms"),
        (format!("at {FEW}"), few.quantile(0.99)),
        Goal::AtMost(20.0),
    );
    Ok(())
}

/// What an entry of a thousand characters takes of the whole state directory, vectors apart: words alone are indexed.
pub(super) fn bytes(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let setup = Setup {
        relaxed: true,
        ..Setup::PLAIN
    };
    let mut agent = Agent::start(&programs.clawk, folder, setup)?;
    let mut request = 0;
    let mut store = |agent: &mut Agent, from: u32, count: u32| -> Result<Sample> {
        let mut took = Sample::default();
        for chunk in 0..count / AT_ONCE {
            let first = from + chunk * AT_ONCE;
            let entries: Vec<Value> = (first..first + AT_ONCE).map(long).collect();
            request += 1;
            let id = format!("0198bbbb-0000-4000-8000-{request:012x}");
            let params = json!({ "store": "words", "entries": entries, "context": { "request_id": id } });
            let (time, answer) = timed(|| agent.ask("claw.memory.store", &params));
            answer?;
            took.push(time);
        }
        Ok(took)
    };
    let first = store(&mut agent, 0, FEW)?;
    let count = size.entries / 10 / AT_ONCE * AT_ONCE;
    let last = store(&mut agent, FEW, count.max(AT_ONCE))?;
    agent.end()?;
    let (bytes, entries) = (folder_bytes(folder)?, FEW + count.max(AT_ONCE));
    #[expect(clippy::cast_precision_loss, reason = "bytes of a benchmark")]
    let each = bytes as f64 / f64::from(entries) / f64::from(LONG);
    table.add(
        format!(
            "bytes on disk of an entry of {LONG} characters, the whole state directory over {entries} of them"
        ),
        (each, "×"),
        (format!("its {LONG} characters"), 1.0),
        Goal::RatioAtMost(3.3),
    );
    table.add(
        format!("storing {AT_ONCE} of them behind up to {} others", FEW + count),
        (last.median(), "ms"),
        ("into an empty store".to_owned(), first.median()),
        Goal::RatioAtMost(2.0),
    );
    Ok(())
}

/// Bytes of all files below a folder: the state lies in it, and nothing else grows.
fn folder_bytes(folder: &Path) -> Result<u64> {
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

/// Prose of exactly so many characters: common words, and a few of its own.
fn long(n: u32) -> Value {
    let mut text = format!("entry number{n} about topic{} in chapter{}:", n % 977, n % 31);
    let mut at = n;
    while text.len() < usize::try_from(LONG).unwrap_or(1000) {
        at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let word = WORDS
            .get(usize::try_from(at >> 24).unwrap_or(0) % WORDS.len())
            .copied()
            .unwrap_or("bread");
        text.push(' ');
        text.push_str(word);
        if at.is_multiple_of(7) {
            text.push_str(&format!("{}", at % 4999));
        }
    }
    text.truncate(usize::try_from(LONG).unwrap_or(1000));
    json!({ "content": text })
}

/// Ten common words in every combination, a few hundred rarer ones, and a number.
fn entry(n: u32) -> Value {
    let skip = usize::try_from(n * 7 % 10).unwrap_or(0);
    let step = usize::try_from(1 + n % 3).unwrap_or(1);
    let words: Vec<&str> = WORDS
        .iter()
        .cycle()
        .skip(skip)
        .step_by(step)
        .take(5)
        .copied()
        .collect();
    json!({ "content": format!("entry {n} about the {} and topic{} of {}", words.join(" "), n % 997, n % 31) })
}
