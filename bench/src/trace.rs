//! Measures the verification of a long trace, and this machine's fastest SHA-256.

use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clawk_proto::SessionId;
use clawk_trace::{Draft, HashBuffer, SessionChain};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// Writes a trace of one session: `action.executed` events as the kernel writes them.
///
/// # Errors
/// The file can't be written.
pub(crate) fn write(file: &Path, events: u64) -> Result<()> {
    let session = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0001);
    let mut chain = SessionChain::new(SessionId(session), session);
    let mut scratch = HashBuffer::default();
    let file = File::create(file).with_context(|| format!("can't make `{}`", file.display()))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    for n in 0..events {
        let payload = payload(n);
        let (second, micros) = (n / 1_000_000 % 60, n % 1_000_000);
        let draft = Draft {
            event_id: numbered(n, 2),
            span: numbered(n / 3, 3),
            parent: Some(session),
            timestamp: &format!("2026-11-22T00:00:{second:02}.{micros:06}Z"),
            event_type: "action.executed",
            payload: &payload,
        };
        let sealed = chain.link_event(&draft, &mut scratch)?;
        serde_json::to_writer(&mut out, &sealed)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

fn payload(n: u64) -> String {
    // serde_json's maps are sorted, so this is canonical.
    json!({
        "action_id": "echo", "attempts": 1, "duration_ms": n % 50, "is_error": false, "level": "none",
        "request_id": numbered(n, 4), "result_hash": format!("{n:064x}"),
    })
    .to_string()
}

fn numbered(n: u64, kind: u128) -> Uuid {
    Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0000 | kind << 40 | u128::from(n))
}

/// Megabytes (10^6 bytes) per second of plain SHA-256 over a file's bytes on one core. The time for reading is not counted.
///
/// # Errors
/// The file can't be read.
pub(crate) fn sha256_mb_per_second(file: &Path) -> Result<f64> {
    let mut input = File::open(file).with_context(|| format!("can't read `{}`", file.display()))?;
    let mut chunk = vec![0; 8 << 20];
    let (mut bytes, mut seconds) = (0.0, 0.0);
    let mut hasher = Sha256::new();
    loop {
        let count = input.read(&mut chunk)?;
        let Some(part) = chunk.get(..count).filter(|part| !part.is_empty()) else {
            break;
        };
        let start = Instant::now();
        hasher.update(part);
        seconds += start.elapsed().as_secs_f64();
        bytes += f64::from(u32::try_from(count)?);
    }
    std::hint::black_box(hasher.finalize());
    Ok(bytes / 1e6 / f64::max(seconds, 1e-9))
}

/// Number of edits in a trace that is compared with its original.
pub(crate) const EDITS: usize = 530;

/// Seconds to read two traces and compare them: a file, and the same file with 530 edits of four kinds (a changed duration, a
/// changed digest, an added event, a removed event).
///
/// # Errors
/// The file can't be read, or the comparison finds other differences than these edits.
pub(crate) fn diff_s(file: &Path) -> Result<f64> {
    let first = std::fs::read_to_string(file)?;
    let edited = file.with_extension("edited");
    std::fs::write(&edited, edits(&first))?;
    drop(first);
    let start = Instant::now();
    let (first, second) = (std::fs::read_to_string(file)?, std::fs::read_to_string(&edited)?);
    let diff = clawk_trace::diff(&first, &second)?;
    let seconds = start.elapsed().as_secs_f64();
    std::fs::remove_file(&edited)?;
    ensure!(
        diff.differences.len() == EDITS,
        "{} differences",
        diff.differences.len()
    );
    Ok(seconds)
}

fn edits(first: &str) -> String {
    let step = (first.lines().count() / EDITS).max(2);
    let mut second = String::with_capacity(first.len());
    for (index, line) in first.lines().enumerate() {
        let edit = (index % step == step / 2 && index / step < EDITS).then_some(index / step % 4);
        match edit {
            Some(0) => second.push_str(&line.replacen("\"duration_ms\":", "\"duration_ms\":9", 1)),
            Some(1) => second.push_str(&line.replacen("\"result_hash\":\"", "\"result_hash\":\"f", 1)),
            Some(2) => second.extend([&line.replacen("_hash\":\"", "_hash\":\"new", 1), "\n", line]),
            Some(_) => continue,
            None => second.push_str(line),
        }
        second.push('\n');
    }
    second
}

/// Verifies a trace as `clawk trace verify` does. The caller measures the whole process.
///
/// # Errors
/// The trace is not valid.
pub(crate) fn verify(file: &Path) -> Result<()> {
    let report = clawk_trace::verify(std::io::BufReader::with_capacity(256 * 1024, File::open(file)?))?;
    ensure!(report.valid, "{:?}", report.fault);
    Ok(())
}
