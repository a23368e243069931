//! Measures the scanners' errors: false positives on ordinary developer text of this machine, and detections on clawk's corpus of
//! attacks.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clawk_policy::injection;
use clawk_policy::leak::Scanner;
use clawk_policy::testing::{DRESSES, Dice, dress, secrets, texts};
use serde_json::Value;

/// Largest amount of text that is scanned, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// Smallest amount of text that makes a valid sample, in bytes.
const MIN_BYTES: usize = 5 << 20;
/// Acceptable findings per megabyte of ordinary text. More findings fail the run.
const MOST_PER_MEGABYTE: f64 = 1.0;
/// Largest part of one file that is scanned, in bytes.
const MAX_FILE_BYTES: u64 = 256 << 10;
/// File name extensions that count as developer text.
const KINDS: &[&str] = &[
    "rs", "py", "md", "txt", "toml", "json", "yaml", "yml", "c", "h", "js", "ts", "html", "sh", "rst", "cfg",
    "ini", "log", "css",
];

/// Findings per megabyte, for `secrets` or `injections`. Standard error lists the findings by kind and file, never their text.
///
/// # Errors
/// The folders hold less than 5 MB of text.
pub(crate) fn per_megabyte(what: &str, folders: &[&str]) -> Result<f64> {
    let mut files = Vec::new();
    for folder in folders {
        gather(Path::new(folder), &mut files, 0);
    }
    files.sort();
    let mut dice = Dice::new(11);
    // A fixed shuffle, so that no single package dominates the sample.
    for at in (1..files.len()).rev() {
        files.swap(at, dice.below(at + 1));
    }
    let scanner = Scanner::new([]);
    let (mut bytes, mut found) = (0_usize, BTreeMap::<String, usize>::new());
    let mut told = std::io::stderr().lock();
    for file in files {
        if bytes >= MAX_BYTES {
            break;
        }
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        bytes += text.len();
        let kinds: Vec<&str> = match what {
            "secrets" => scanner
                .find(text.as_bytes())
                .iter()
                .map(|leak| leak.kind.word())
                .collect(),
            _ => injection::find(&text)
                .iter()
                .map(|hit| hit.family.word())
                .collect(),
        };
        for kind in &kinds {
            *found.entry((*kind).to_owned()).or_default() += 1;
        }
        if !kinds.is_empty() {
            let name: PathBuf = file
                .components()
                .rev()
                .take(3)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect();
            writeln!(told, "{}: {}", name.display(), kinds.join(", "))?;
        }
    }
    ensure!(
        bytes >= MIN_BYTES,
        "{bytes} bytes of text are no sample; 5 MB are needed"
    );
    writeln!(told, "{what}: {found:?} in {bytes} bytes")?;
    let count: usize = found.values().sum();
    let rate = count as f64 / (bytes as f64 / 1e6);
    ensure!(
        rate <= MOST_PER_MEGABYTE,
        "{rate:.2} {what} found per MB of ordinary text, {MOST_PER_MEGABYTE} at most"
    );
    Ok(rate)
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>, depth: usize) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(facts) = entry.metadata() else { continue };
        if facts.is_dir() && depth < 12 {
            gather(&path, files, depth + 1);
        } else if facts.is_file() && facts.len() <= MAX_FILE_BYTES {
            let kind = path.extension().and_then(|kind| kind.to_str());
            if kind.is_some_and(|kind| KINDS.contains(&kind)) {
                files.push(path);
            }
        }
    }
}

/// Returns the percentage of a corpus that is detected.
///
/// # Errors
/// The corpus can't be read.
pub(crate) fn found_percent(what: &str, corpus: &Path) -> Result<f64> {
    let text = fs::read_to_string(corpus).with_context(|| format!("can't read `{}`", corpus.display()))?;
    let mut told = std::io::stderr().lock();
    let (mut all, mut found) = (0_u32, 0_u32);
    if what == "secrets" {
        let scanner = Scanner::new([]);
        for case in secrets(&text, 42) {
            all += 1;
            let right = scanner
                .redact(&case.text)
                .is_some_and(|(clean, _)| !case.parts.iter().any(|part| clean.contains(part)));
            found += u32::from(right);
            if !right {
                writeln!(told, "missed: {}", case.template)?;
            }
        }
    } else {
        let data: Value = serde_json::from_str(&text)?;
        let mut dice = Dice::new(42);
        for attack in texts(data.get("attacks").unwrap_or(&Value::Null)) {
            for name in DRESSES {
                all += 1;
                let right = !injection::find(&dress(name, &attack, &mut dice)).is_empty();
                found += u32::from(right);
                if !right {
                    writeln!(told, "missed ({name}): {attack}")?;
                }
            }
        }
    }
    ensure!(all >= 300, "{all} cases are no corpus");
    writeln!(told, "{what}: {found} of {all}")?;
    Ok(f64::from(found) * 100.0 / f64::from(all))
}
