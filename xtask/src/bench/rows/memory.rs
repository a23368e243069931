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
