//! `clawk trace diff A B`.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_trace::diff::{Change, Compatibility, Difference, Significance};
use clawk_trace::{Diff, diff};

use super::source::{Source, pages};
use crate::out::{self, Format, Paint, harmless};
use crate::state;

/// A diff holds both traces in memory; more than this is refused.
const MAX_BYTES: u64 = 1024 * 1024 * 1024;

/// Differences that are printed for people.
const SHOWN: usize = 100;

pub(super) fn run(first: &str, second: &str, which: &state::Which, format: Format) -> Result<ExitCode> {
    if first == "-" && second == "-" {
        bail!("only one of the two can come from standard input");
    }
    let found = diff(&text(first, which)?, &text(second, which)?)?;
    match format {
        Format::Json => out::json(&found)?,
        Format::Human => human(&found)?,
    }
    Ok(match found.compatibility {
        Compatibility::Identical | Compatibility::SemanticallyEquivalent => ExitCode::SUCCESS,
        Compatibility::Incompatible => ExitCode::FAILURE,
    })
}

/// A trace as JSON Lines: of a file, of standard input, or of a session in an agent's state.
fn text(name: &str, which: &state::Which) -> Result<String> {
    let path = Path::new(name);
    let is_session = name == "last" || name.parse::<clawk_proto::SessionId>().is_ok();
    if is_session && !path.exists() {
        return session(name, which);
    }
    let mut text = String::new();
    let input: Box<dyn std::io::Read> = if name == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(path).with_context(|| format!("can't open `{name}`"))?)
    };
    input
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("can't read `{name}`"))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_BYTES {
        bail!("`{name}` is larger than {MAX_BYTES} bytes; compare one session at a time");
    }
    Ok(text)
}

fn session(name: &str, which: &state::Which) -> Result<String> {
    let source = Source::state(&which.dir()?)?;
    let pick = source.pick(Some(name))?;
    let Source::State(reader) = &source else {
        bail!("`{name}` is no session");
    };
    let mut text = String::new();
    pages(reader, pick, 0, |stored| {
        text.push_str(&serde_json::to_string(&stored.event)?);
        text.push('\n');
        Ok(())
    })?;
    if text.is_empty() {
        bail!("there is no session `{name}` here");
    }
    Ok(text)
}

fn human(diff: &Diff) -> Result<()> {
    let paint = Paint::stdout();
    let verdict = match diff.compatibility {
        Compatibility::Identical => paint.green("identical"),
        Compatibility::SemanticallyEquivalent => paint.green("semantically equivalent"),
        Compatibility::Incompatible => paint.red("INCOMPATIBLE"),
    };
    let major = diff
        .differences
        .iter()
        .filter(|d| d.significance == Significance::Major);
    let (major, all) = (major.count(), diff.differences.len());
    out::line(&format!(
        "{verdict}  {major} major, {} minor differences",
        all - major
    ))?;
    // What matters first.
    let mut sorted: Vec<&Difference> = diff.differences.iter().collect();
    sorted.sort_by_key(|d| d.significance == Significance::Minor);
    for difference in sorted.iter().take(SHOWN) {
        out::line(&format!("  {}", line(difference)))?;
    }
    if all > SHOWN {
        out::line(&format!("  … and {} more; --format json lists all", all - SHOWN))?;
    }
    Ok(())
}

fn line(difference: &Difference) -> String {
    let path = harmless(&difference.path);
    let short = |value: &Option<serde_json::Value>| {
        let text = value.as_ref().map(ToString::to_string).unwrap_or_default();
        let cut: String = text.chars().take(60).collect();
        let more = if cut.len() < text.len() { "…" } else { "" };
        format!("{}{more}", harmless(&cut))
    };
    let (before, after) = (short(&difference.before), short(&difference.after));
    let kind = |value: &Option<serde_json::Value>| {
        let name = value.as_ref().and_then(|event| event.get("event_type"));
        harmless(name.and_then(|name| name.as_str()).unwrap_or("event")).clone()
    };
    match difference.change {
        Change::ValueChanged | Change::TypeChanged => format!("~ {path}: {before} → {after}"),
        Change::Added => format!("+ {path}: {after}"),
        Change::Removed => format!("- {path}: {before}"),
        Change::EventAdded => format!("+ {path}: {} (of the second trace)", kind(&difference.after)),
        Change::EventRemoved => format!("- {path}: {}", kind(&difference.before)),
    }
}
