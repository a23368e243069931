//! Numbers of the journal, the verifier and memory on this machine: `cargo run --release -p clawk-store --example measure`.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement prints, and may fail that way"
)]

use std::time::Instant;

use clawk_kernel::ports::{
    AnswerKey, Batch, EventContent, Journal as _, JournalEntry, JournalTicket, Memory as _, Scope, StoreQuery,
};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::Store;
use clawk_proto::SessionId;
use clawk_proto::method::NewEntry;
use clawk_store::{Filter, Options, StateDir, StateDirReader, WriteDurability};
use clawk_trace::canonical::payload_of;
use clawk_trace::chain::digest_of;
use serde_json::json;
use uuid::Uuid;

fn entry(session: u128, n: u64, content: bool, answers: bool) -> JournalEntry {
    let payload = payload_of(&json!({
        "action_id": "echo", "args_digest": "ab".repeat(32), "duration_us": n, "execution_id": Uuid::from_u128(n.into()),
        "level": "none", "outcome": "success", "result_digest": "cd".repeat(32),
    }));
    let bytes = format!("{{\"text\":\"result number {n}\"}}").into_bytes();
    JournalEntry {
        session: SessionId(Uuid::from_u128(session)),
        event_id: Uuid::from_u128(u128::from(n) << 64 | session),
        span: Uuid::from_u128(1),
        parent: Some(Uuid::from_u128(2)),
        at: Timestamp(1_700_000_000_000_000 + i64::try_from(n).unwrap() * 10),
        kind: "action.executed",
        payload: payload.unwrap(),
        content: content.then(|| EventContent {
            digest: digest_of(&bytes),
            bytes,
        }),
        answers: answers.then(|| AnswerKey {
            method: 0,
            request_id: Uuid::from_u128(
                u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
            )
            .into_bytes(),
        }),
    }
}

async fn journal(name: &str, durability: WriteDurability, count: u64, content: bool, answers: bool) {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(
        dir.path(),
        Options {
            durability,
            ..Options::default()
        },
    )
    .unwrap();
    let journal = state.journal();
    // Entries are made beforehand: what is measured is the journal.
    let entries: Vec<JournalEntry> = (0..count)
        .map(|n| entry(u128::from(n % 16), n, content, answers))
        .collect();
    let (start, cpu_before) = (Instant::now(), cpu());
    let mut ticket = None;
    for (n, entry) in entries.into_iter().enumerate() {
        let next = journal
            .submit_batch(Batch {
                entries: vec![entry],
                ..Batch::default()
            })
            .unwrap();
        // Never more than the queue takes: wait for what was sent a good while ago.
        if n % 16_384 == 0
            && let Some(earlier) = ticket.replace(next)
        {
            JournalTicket::wait_until_durable(earlier).await.unwrap();
        }
    }
    journal.flush().await.unwrap();
    let took = start.elapsed();
    let stats = state.stats();
    let rate = count as f64 / took.as_secs_f64();
    let cpu = (cpu() - cpu_before) * 1e6 / count as f64;
    let grouped = count as f64 / stats.commits as f64;
    println!("{name}: {rate:.0} events/s wall, {cpu:.2} us CPU each, {grouped:.0} events per commit");
    if name == "relaxed" {
        verify(&state, count);
    }
}

fn verify(state: &StateDir, count: u64) {
    let reader = StateDirReader::open(state.path()).unwrap();
    let start = Instant::now();
    assert!(reader.verify(None).unwrap().valid);
    println!(
        "verify --state: {:.2} us/event",
        start.elapsed().as_secs_f64() * 1e6 / count as f64
    );
    let mut lines = Vec::new();
    let mut filter = Filter {
        limit: 10_000,
        ..Filter::default()
    };
    loop {
        let page = reader.events(filter).unwrap();
        let Some(last) = page.last() else { break };
        filter.after_row = last.row;
        for stored in &page {
            serde_json::to_writer(&mut lines, &stored.event).unwrap();
            lines.push(b'\n');
        }
    }
    for _ in 0..3 {
        let before = cpu();
        assert!(clawk_trace::verify(lines.as_slice()).unwrap().valid);
        let each = (cpu() - before) * 1e6 / count as f64;
        println!(
            "verify JSONL: {each:.2} us CPU/event of {} bytes",
            lines.len() as u64 / count
        );
    }
    let start = Instant::now();
    let _ = digest_of(&lines);
    println!(
        "SHA-256: {:.0} MB/s",
        lines.len() as f64 / 1e6 / start.elapsed().as_secs_f64()
    );
}

/// CPU seconds of this process so far, all threads; what counts when the machine is busy with others.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = text.rsplit(") ").next().unwrap();
    let ticks: f64 = after_name
        .split(' ')
        .skip(11)
        .take(2)
        .map(|n| n.parse::<f64>().unwrap())
        .sum();
    ticks / 100.0
}

fn link() {
    let mut chain = clawk_trace::SessionChain::new(SessionId(Uuid::nil()), Uuid::nil());
    let mut scratch = clawk_trace::HashBuffer::default();
    let entry = entry(1, 1, false, false);
    let draft = clawk_trace::Draft {
        event_id: entry.event_id,
        span: entry.span,
        parent: entry.parent,
        timestamp: "2026-11-21T22:00:00.123456Z",
        event_type: entry.kind,
        payload: entry.payload.get(),
    };
    let before = cpu();
    for _ in 0..1_000_000 {
        chain.append(&draft, &mut scratch);
    }
    println!("link: {:.2} us CPU/event", cpu() - before);
}

/// Ten common words in every combination, a few hundred rarer ones, and a number.
fn text(n: usize) -> String {
    const SUBJECTS: [&str; 10] = [
        "revenue", "pipeline", "garden", "weather", "engine", "poetry", "harbour", "music", "winter", "bread",
    ];
    let words: Vec<&str> = SUBJECTS
        .iter()
        .cycle()
        .skip(n * 7 % 10)
        .step_by(1 + n % 3)
        .take(5)
        .copied()
        .collect();
    format!(
        "entry {n} about the {} and topic{} of {}",
        words.join(" "),
        n % 997,
        n % 31
    )
}

async fn memory() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        durability: WriteDurability::Relaxed,
        ..Options::default()
    };
    let state = StateDir::open(dir.path(), options).unwrap();
    let memory = state.memory();
    let place = Scope {
        identity: "a".into(),
        channel: String::new(),
    };
    for count in [1_000_usize, 100_000] {
        let store: Store =
            serde_json::from_value(json!({"name": format!("m{count}"), "type": "semantic"})).unwrap();
        for chunk in 0..count / 500 {
            let numbers = chunk * 500..(chunk + 1) * 500;
            let new = |n| NewEntry {
                content: json!(text(n)),
                key: None,
                metadata: None,
            };
            let entries = numbers.clone().map(new).collect();
            let ids = numbers.map(|n| n.to_string()).collect();
            memory
                .store_unattributed(&store, &place, entries, ids, Timestamp(1_700_000_000_000_000))
                .await
                .unwrap();
        }
        for query in [
            "revenue of the garden",
            "topic123 engine",
            "entry about",
            "topic7",
        ] {
            let mut times = Vec::new();
            for _ in 0..50 {
                let start = Instant::now();
                let found = memory
                    .query_entries(&store, &place, StoreQuery::Text(query.into()), 10)
                    .await
                    .unwrap();
                times.push(start.elapsed());
                assert!(!found.is_empty());
            }
            times.sort();
            let (best, middle) = (times.first().unwrap(), times.get(25).unwrap());
            println!("memory {count:>6}: best {best:>6.0?} p50 {middle:>6.0?}  {query}");
        }
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    link();
    journal("relaxed", WriteDurability::Relaxed, 500_000, false, false).await;
    journal("relaxed, content", WriteDurability::Relaxed, 300_000, true, false).await;
    journal(
        "relaxed, content and answer",
        WriteDurability::Relaxed,
        300_000,
        true,
        true,
    )
    .await;
    journal("durable", WriteDurability::Durable, 200_000, false, false).await;
    memory().await;
}
