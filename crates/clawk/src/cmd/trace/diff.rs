//! `clawk trace diff A B`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_trace::diff::{DifferenceKind, DifferenceSignificance, TraceCompatibility, TraceDifference};
use clawk_trace::{Diff, diff};
use serde::Serialize;

use super::source::{TraceSource, for_each_stored};
use crate::out::{self, Format, TerminalStyle, one_line};
use crate::state;

/// A diff holds both traces in memory; a larger one is refused. In bytes.
const MAX_BYTES: u64 = 1024 * 1024 * 1024;

/// Default number of printed differences.
const SHOWN: usize = 100;

/// Flags of `clawk trace diff`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The first trace: a `.trace.jsonl` file, `-`, a session's id or `last`
    a: String,

    /// The second trace, likewise
    b: String,

    #[command(flatten)]
    which: state::StateSelector,

    /// Print at most this many differences, major ones first; 0 prints all [default: 100 for people, 0 as JSON]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if args.a == "-" && args.b == "-" {
        bail!("only one of the two can come from standard input");
    }
    let found = diff(
        &read_trace(&args.a, &args.which)?,
        &read_trace(&args.b, &args.which)?,
    )?;
    let compatibility = found.compatibility;
    let default = match args.format {
        Format::Human => SHOWN,
        Format::Json => 0,
    };
    let most = match args.limit.unwrap_or(default) {
        0 => usize::MAX,
        most => most,
    };
    let shown = TraceDiffReport::from_diff(found, most);
    match args.format {
        Format::Json => out::print_json(&shown)?,
        Format::Human => print_human(&shown)?,
    }
    Ok(match compatibility {
        TraceCompatibility::Identical | TraceCompatibility::SemanticallyEquivalent => ExitCode::SUCCESS,
        TraceCompatibility::Incompatible => ExitCode::FAILURE,
    })
}

/// Returns a trace as JSON Lines: of a file, of standard input, or of a session in an agent's state.
fn read_trace(name: &str, which: &state::StateSelector) -> Result<String> {
    let path = Path::new(name);
    let is_session = name == "last" || name.parse::<clawk_proto::SessionId>().is_ok();
    if is_session && !path.exists() {
        return read_session(name, which);
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

fn read_session(name: &str, which: &state::StateSelector) -> Result<String> {
    let source = TraceSource::from_state(&which.find_dir()?)?;
    let pick = source.select_sessions(Some(name))?;
    let TraceSource::State(reader) = &source else {
        bail!("`{name}` is not a session");
    };
    let mut text = String::new();
    for_each_stored(reader, pick, 0, |stored| {
        text.push_str(&serde_json::to_string(&stored.event)?);
        text.push('\n');
        Ok(())
    })?;
    if text.is_empty() {
        bail!("there is no session `{name}` here");
    }
    Ok(text)
}

/// The printed report: differences within the limit, and the number beyond it.
#[derive(Debug, Serialize)]
struct TraceDiffReport {
    compatibility: TraceCompatibility,
    differences: Vec<TraceDifference>,
    /// Present only if a limit omitted differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOut>,
    #[serde(skip)]
    major: usize,
    #[serde(skip)]
    minor: usize,
}

/// Counts of the differences beyond the limit.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct LeftOut {
    differences: usize,
    major: usize,
    minor: usize,
    by_type: BTreeMap<DifferenceKind, usize>,
}

impl LeftOut {
    fn from_differences(differences: &[TraceDifference]) -> Self {
        let mut out = Self::default();
        for difference in differences {
            out.differences += 1;
            match difference.significance {
                DifferenceSignificance::Major => out.major += 1,
                DifferenceSignificance::Minor => out.minor += 1,
            }
            *out.by_type.entry(difference.change).or_default() += 1;
        }
        out
    }
}

impl TraceDiffReport {
    fn from_diff(diff: Diff, most: usize) -> Self {
        let mut differences = diff.differences;
        let all = LeftOut::from_differences(&differences);
        let mut left_out = None;
        if differences.len() > most {
            // Significant differences come first, otherwise in the order of the first trace. Without a limit all are printed in
            // that order.
            differences.sort_by_key(|difference| difference.significance == DifferenceSignificance::Minor);
            left_out = Some(LeftOut::from_differences(
                differences.get(most..).unwrap_or_default(),
            ));
            differences.truncate(most);
        }
        Self {
            compatibility: diff.compatibility,
            differences,
            left_out,
            major: all.major,
            minor: all.minor,
        }
    }
}

fn print_human(shown: &TraceDiffReport) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let verdict = match shown.compatibility {
        TraceCompatibility::Identical => paint.green("identical"),
        TraceCompatibility::SemanticallyEquivalent => paint.green("semantically equivalent"),
        TraceCompatibility::Incompatible => paint.red("INCOMPATIBLE"),
    };
    let TraceDiffReport { major, minor, .. } = shown;
    out::print_line(format!("{verdict}  {major} major, {minor} minor differences"))?;
    // Significant differences come first.
    let mut sorted: Vec<&TraceDifference> = shown.differences.iter().collect();
    sorted.sort_by_key(|d| d.significance == DifferenceSignificance::Minor);
    for difference in sorted {
        out::print_line(format!("  {}", format_difference(difference)))?;
    }
    if let Some(rest) = &shown.left_out {
        let kinds: Vec<String> = rest
            .by_type
            .iter()
            .map(|(change, count)| format!("{count} {}", change_label(*change)))
            .collect();
        out::print_line(format!(
            "  … and {} more, {} of them major ({}); --limit 0 prints all",
            rest.differences,
            rest.major,
            kinds.join(", ")
        ))?;
    }
    Ok(())
}

const fn change_label(change: DifferenceKind) -> &'static str {
    match change {
        DifferenceKind::ValueChanged => "with another value",
        DifferenceKind::TypeChanged => "with another type",
        DifferenceKind::Added => "members added",
        DifferenceKind::Removed => "members removed",
        DifferenceKind::EventAdded => "events added",
        DifferenceKind::EventRemoved => "events removed",
    }
}

fn format_difference(difference: &TraceDifference) -> String {
    let path = one_line(&difference.path);
    let short = |value: &Option<serde_json::Value>| {
        let text = value.as_ref().map(ToString::to_string).unwrap_or_default();
        let cut: String = text.chars().take(60).collect();
        let more = if cut.len() < text.len() { "…" } else { "" };
        format!("{}{more}", one_line(&cut))
    };
    let (before, after) = (short(&difference.before), short(&difference.after));
    let kind = |value: &Option<serde_json::Value>| {
        let name = value.as_ref().and_then(|event| event.get("event_type"));
        one_line(name.and_then(|name| name.as_str()).unwrap_or("event")).clone()
    };
    match difference.change {
        DifferenceKind::ValueChanged | DifferenceKind::TypeChanged => format!("~ {path}: {before} → {after}"),
        DifferenceKind::Added => format!("+ {path}: {after}"),
        DifferenceKind::Removed => format!("- {path}: {before}"),
        DifferenceKind::EventAdded => format!("+ {path}: {} (of the second trace)", kind(&difference.after)),
        DifferenceKind::EventRemoved => format!("- {path}: {}", kind(&difference.before)),
    }
}
