//! Measures how memory stores scale: stores of a thousand to a million entries are filled and searched. One client sends requests
//! over the wire and waits for each answer; each store is compared with the smallest.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::super::Size;
use super::super::agent::Agent;
use super::super::manifest::Setup;
use super::super::process::{cpu_seconds, rss_mib};
use super::super::programs::Programs;
use super::super::prose::Prose;
use super::super::sample::{Sample, timed};
use super::super::table::{Goal, Table};
use super::disk::fdatasync_ms;

/// Entries stored with one request.
pub(super) const AT_ONCE: u32 = 500;
/// Length of an entry in characters, like a remark or a message.
const SHORT: usize = 200;
/// Number of different questions.
const QUESTIONS: u32 = 40;
/// Number of entries that are stored one by one.
const SINGLE: u32 = 100;
/// The goal for one question, in milliseconds.
const GOAL_MS: f64 = 20.0;

pub(super) const FILLING: Setup = Setup {
    relaxed: true,
    ..Setup::PLAIN
};

/// A state directory whose store `notes` is filled.
#[derive(Debug)]
struct Filled {
    entries: u32,
    folder: PathBuf,
}

/// Counts the requests to an agent, so that each has a new id.
#[derive(Debug, Default)]
pub(super) struct Writer {
    requests: u64,
}

impl Writer {
    /// Makes a writer whose request ids differ from those of any other.
    pub(super) const fn beside() -> Self {
        Self { requests: 1 << 32 }
    }

    /// Stores entries with one request. Returns milliseconds.
    pub(super) fn store(&mut self, agent: &mut Agent, entries: &[Value]) -> Result<f64> {
        self.requests += 1;
        let id = format!("0198aaaa-0000-4000-8000-{:012x}", self.requests);
        let params = json!({ "store": "notes", "entries": entries, "context": { "request_id": id } });
        let (took, answer) = timed(|| agent.ask("claw.memory.store", &params));
        let stored = answer?.get("stored").and_then(Value::as_u64);
        ensure!(stored == u64::try_from(entries.len()).ok(), "stored {stored:?}"); // silent-ok: it is compared
        Ok(took)
    }

    /// Fills the store. Returns milliseconds for each request.
    pub(super) fn fill(
        &mut self,
        agent: &mut Agent,
        prose: &Prose,
        (entries, characters): (u32, usize),
    ) -> Result<Sample> {
        let mut took = Sample::default();
        for first in (0..entries).step_by(usize::try_from(AT_ONCE)?) {
            let numbers = first..entries.min(first + AT_ONCE);
            let texts = numbers.map(|n| json!({ "content": prose.text(n, characters) }));
            took.push(self.store(agent, &texts.collect::<Vec<_>>())?);
        }
        Ok(took)
    }
}

pub(super) fn rows(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let prose = Prose::load()?;
    let stores = filled(programs, folder, size, &prose, table)?;
    single(programs, &stores, folder, &prose, table)?;
    for (search, name, goal) in [
        ("fts-only", "by words", Goal::RatioAtMost(2.0)),
        (
            "vector-only",
            "by vectors of 256 dimensions, all scanned",
            Goal::None,
        ),
        ("hybrid", "by both", Goal::None),
    ] {
        let mut agents = started(programs, &stores, search)?;
        let first = first_question(&mut agents, &prose)?;
        let asked = asked(&mut agents, &prose, size.starts)?;
        add(table, &stores, &asked, (search, name), goal);
        add_first(table, &stores, &first, name);
        if search == "vector-only" {
            add_slope(table, &stores, &asked);
        }
        if search == "hybrid" {
            add_resident(table, &stores, &agents)?;
        }
        agents.into_iter().try_for_each(Agent::end)?;
    }
    scans(programs, &stores, table)
}

/// Fills a store of each size, each in its own state directory.
fn filled(
    programs: &Programs,
    folder: &Path,
    size: Size,
    prose: &Prose,
    table: &mut Table,
) -> Result<Vec<Filled>> {
    let mut stores = Vec::new();
    let mut least = 0.0;
    for entries in size.entries {
        let folder = folder.join(entries.to_string());
        std::fs::create_dir(&folder)?;
        let mut agent = Agent::start(&programs.clawk, &folder, FILLING)?;
        let took = Writer::default().fill(&mut agent, prose, (*entries, SHORT))?;
        agent.end()?;
        let rate = f64::from(*entries) / took.sum() * 1e3;
        if stores.is_empty() {
            least = rate;
        }
        let text = SHORT as f64 * f64::from(*entries);
        table.add(
            format!("filling a store with {entries} entries of {SHORT} characters, {AT_ONCE} a request"),
            (rate, "/s"),
            (smallest(size.entries), least),
            Goal::None,
        );
        #[expect(clippy::cast_precision_loss, reason = "bytes of a benchmark")]
        let bytes = super::entry::folder_bytes(&folder)? as f64;
        table.add(
            "the same, bytes on disk with words and vectors",
            (bytes / 1e6, "MB"),
            ("its text", text / 1e6),
            Goal::None,
        );
        stores.push(Filled {
            entries: *entries,
            folder,
        });
    }
    Ok(stores)
}

fn smallest(sizes: &[u32]) -> String {
    format!("with {}", sizes.first().copied().unwrap_or(0))
}

/// Stores entries one by one, durably, into each filled store.
fn single(
    programs: &Programs,
    stores: &[Filled],
    folder: &Path,
    prose: &Prose,
    table: &mut Table,
) -> Result<()> {
    let mut agents = started(programs, stores, "hybrid")?;
    let (mut sync, mut took) = (Sample::default(), vec![Sample::default(); agents.len()]);
    let mut writer = Writer::beside();
    for n in 0..SINGLE {
        let entry = [json!({ "content": prose.text(u32::MAX - n, SHORT) })];
        for (agent, took) in agents.iter_mut().zip(&mut took) {
            took.push(writer.store(agent, &entry)?);
        }
        sync.push(fdatasync_ms(folder, 1)?.median());
    }
    for (store, took) in stores.iter().zip(&took) {
        table.add(
            format!("storing one entry, durable, behind {} others, p50", store.entries),
            (took.median(), "ms"),
            ("one fdatasync", sync.median()),
            Goal::None,
        );
    }
    agents.into_iter().try_for_each(Agent::end)
}

/// Starts an agent for each store, with the given search strategy.
fn started(programs: &Programs, stores: &[Filled], search: &'static str) -> Result<Vec<Agent>> {
    let setup = Setup {
        search,
        ..Setup::PLAIN
    };
    stores
        .iter()
        .map(|store| Agent::start(&programs.clawk, &store.folder, setup))
        .collect()
}

/// Sends a question. Returns milliseconds.
pub(super) fn ask(agent: &mut Agent, question: &str) -> Result<f64> {
    let params = json!({ "store": "notes", "query": { "type": "semantic", "text": question, "top_k": 10 } });
    let (took, found) = timed(|| agent.ask("claw.memory.query", &params));
    let found = found?;
    let entries = found.get("entries").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(entries > 0, "`{question}` found nothing: {found}");
    Ok(took)
}

/// Milliseconds of the first question after a start.
fn first_question(agents: &mut [Agent], prose: &Prose) -> Result<Vec<f64>> {
    let question = prose.question(QUESTIONS);
    agents.iter_mut().map(|agent| ask(agent, &question)).collect()
}

/// The measured times of questions.
#[derive(Debug, Clone, Default)]
struct Asked {
    took: Sample,
    /// Mean CPU time of the agent per question. Other work on the machine hardly changes it.
    cpu_ms: f64,
    /// The slowest question, where each question counts with its fastest run. This removes most of the other load of the machine.
    slowest_ms: f64,
}

/// Sends every question to every store, one store after the other, `rounds` times.
fn asked(agents: &mut [Agent], prose: &Prose, rounds: usize) -> Result<Vec<Asked>> {
    let mut samples = vec![Sample::default(); agents.len()];
    let mut each = vec![vec![Sample::default(); usize::try_from(QUESTIONS)?]; agents.len()];
    let cpu = |agents: &[Agent]| -> Result<Vec<f64>> {
        agents.iter().map(|agent| cpu_seconds(agent.pid())).collect()
    };
    let before = cpu(agents)?;
    for _ in 0..rounds {
        for (at, question) in (0..QUESTIONS).map(|n| prose.question(n)).enumerate() {
            let both = samples.iter_mut().zip(&mut each);
            for (agent, (sample, each)) in agents.iter_mut().zip(both) {
                let took = ask(agent, &question)?;
                sample.push(took);
                each.get_mut(at).context("no such question")?.push(took);
            }
        }
    }
    let after = cpu(agents)?;
    let count = f64::from(QUESTIONS) * f64::from(u32::try_from(rounds)?);
    let spent = before.iter().zip(&after).map(|(before, after)| after - before);
    let both = samples.into_iter().zip(spent).zip(each);
    let asked = both.map(|((took, spent), each)| Asked {
        took,
        cpu_ms: spent * 1e3 / count,
        slowest_ms: each.iter().map(Sample::least).fold(0.0, f64::max),
    });
    Ok(asked.collect())
}

fn add(table: &mut Table, stores: &[Filled], asked: &[Asked], (search, name): (&str, &str), p50_goal: Goal) {
    let Some((few, least)) = stores.first().zip(asked.first()) else {
        return;
    };
    for (store, asked) in stores.iter().zip(asked).skip(1) {
        let Asked {
            took: sample,
            cpu_ms,
            slowest_ms,
        } = asked;
        // The goals are defined for 100,000 entries; another one is the hybrid search's p99.
        let counts = store.entries <= 100_000;
        let p99_goal = if counts && search != "vector-only" {
            Goal::AtMost(GOAL_MS)
        } else {
            Goal::None
        };
        table.add(
            format!("memory query {name} at {} entries, p50", store.entries),
            (sample.median(), "ms"),
            (format!("at {}", few.entries), least.took.median()),
            if counts { p50_goal } else { Goal::None },
        );
        table.add(
            "the same, CPU of the agent",
            (*cpu_ms, "ms"),
            (format!("at {}", few.entries), least.cpu_ms),
            if counts { p50_goal } else { Goal::None },
        );
        table.add(
            "the same, p99",
            (sample.quantile(0.99), "ms"),
            (format!("at {}", few.entries), least.took.quantile(0.99)),
            p99_goal,
        );
        table.add(
            format!("the same, the slowest of {QUESTIONS} questions, each at its best"),
            (*slowest_ms, "ms"),
            (format!("at {}", few.entries), least.slowest_ms),
            p99_goal,
        );
    }
}

fn add_first(table: &mut Table, stores: &[Filled], first: &[f64], name: &str) {
    if let (Some(store), Some(took), Some(few), Some(least)) =
        (stores.last(), first.last(), stores.first(), first.first())
    {
        table.add(
            format!(
                "the first question {name} after a start, at {} entries",
                store.entries
            ),
            (*took, "ms"),
            (format!("at {}", few.entries), *least),
            Goal::None,
        );
    }
}

/// Adds rows for the cost of a scan per entry, and for the number of entries that a scan covers within [`GOAL_MS`], both by the
/// agent's CPU time.
fn add_slope(table: &mut Table, stores: &[Filled], asked: &[Asked]) {
    let (Some(few), Some(many)) = (stores.first(), stores.last()) else {
        return;
    };
    let (Some(least), Some(most)) = (asked.first(), asked.last()) else {
        return;
    };
    let more = f64::from(many.entries - few.entries);
    let each = (most.cpu_ms - least.cpu_ms) / more;
    table.add(
        "an exact scan through the wire: CPU of 100,000 more vectors of 256 dimensions",
        (each * 1e5, "ms"),
        (format!("the whole query at {}", few.entries), least.cpu_ms),
        Goal::None,
    );
    let reach = f64::from(few.entries) + (GOAL_MS - least.cpu_ms) / each;
    table.add(
        format!("entries at which the scan's query takes {GOAL_MS} ms of CPU"),
        (reach / 1e3, "thousand"),
        ("the largest store measured", f64::from(many.entries) / 1e3),
        Goal::None,
    );
}

fn add_resident(table: &mut Table, stores: &[Filled], agents: &[Agent]) -> Result<()> {
    let (few, many) = stores.first().zip(stores.last()).context("no store")?;
    let (least, most) = agents.first().zip(agents.last()).context("no agent")?;
    table.add(
        format!(
            "resident memory with {} entries, words and vectors asked",
            many.entries
        ),
        (rss_mib(most.pid())?, "MiB"),
        (format!("with {}", few.entries), rss_mib(least.pid())?),
        Goal::None,
    );
    Ok(())
}

/// Measures the scan alone, in the library, with vectors of the built-in table and of a model.
fn scans(programs: &Programs, stores: &[Filled], table: &mut Table) -> Result<()> {
    let most = stores.last().map_or(1_000, |store| store.entries);
    for dimensions in [256, super::super::embeddings::DIMENSIONS] {
        let mut library = crate::run::command(&programs.library);
        let words = [dimensions.to_string(), most.to_string()];
        let printed = crate::run::output(library.arg("scan").args(words))?;
        let mut numbers = printed.split_whitespace().map(str::parse::<f64>);
        let mut next = || numbers.next().context("the library program prints two numbers");
        let (scan, read) = (next()??, next()??);
        table.add(
            format!("one exact scan of {most} vectors of {dimensions} dimensions, in the library"),
            (scan, "ms"),
            ("reading their bytes once", read),
            Goal::None,
        );
    }
    Ok(())
}
