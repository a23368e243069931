//! `clawk logs`: prints an agent's activity from its journal, in the lines that `clawk serve` writes.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clawk_kernel::time::{Clock as _, SystemClock, Timestamp};

use crate::activity::{ActivityDescriber, ActivityLevel, ActivityPlace, LogFormat};
use crate::config::Config;
use crate::manifest;
use crate::out;
use crate::state::kept::{Filter, StateReader, StoredEvent, holds_state, read_only};
use crate::state::server::StateConfig;
use crate::state::{Origin, StateLookup, StateSelector};

/// Interval at which new events are looked for.
const POLL: Duration = Duration::from_millis(200);
/// Number of events that are read at once.
const PAGE: usize = 1000;
/// Default of `-n`, and the largest number that it takes.
const USUAL_LINES: usize = 100;
const MAX_LINES: u64 = 1_000_000;

/// Flags of `clawk logs`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The agent: its manifest, its state directory, or its name [default: the only agent that has a state]
    #[arg(value_name = "CLAW|NAME", conflicts_with_all = ["state", "agent"])]
    claw: Option<PathBuf>,

    #[command(flatten)]
    which: StateSelector,

    /// Go on with new lines until interrupted
    #[arg(short, long)]
    follow: bool,

    /// Only what happened since then: `90s`, `30m`, `2h`, `7d` before now, a day (`2026-11-28`), or an RFC 3339 time
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<SinceTime>,

    /// Print at most this many of the latest lines [default: 100; with `--since`: all]
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(..=MAX_LINES))]
    lines: Option<u64>,

    /// Only lines of this level and of higher ones
    #[arg(long, value_enum, default_value = "info")]
    level: ActivityLevel,

    /// `json` prints one object on each line
    #[arg(long, value_enum, default_value = "text", hide_possible_values = true)]
    format: LinesFormat,
}

const EXAMPLES: &str = "\
Examples:
  clawk logs                          what the only agent did last, running or not
  clawk logs claw.yaml --follow       as it works
  clawk logs my-agent --since 1h --level warn    what was refused or failed in the last hour
  clawk logs --since 2026-11-28 --format json    for programs, with trace ids

The lines are made from the journal: each stands for a recorded fact, and has no words of people, models or tools.
`clawk serve` writes the same lines to standard error. `clawk trace show` prints the whole record.";

/// Output format of `clawk logs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LinesFormat {
    /// Lines of text.
    #[value(alias = "human")]
    Text,
    /// JSON Lines.
    Json,
}

/// The value of `--since`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SinceTime {
    /// So many milliseconds before now.
    Ago(i64),
    At(Timestamp),
}

fn parse_since(text: &str) -> Result<SinceTime, String> {
    let unit_ms = |unit: char| match unit {
        's' => Some(1_000),
        'm' => Some(60_000),
        'h' => Some(3_600_000),
        'd' => Some(86_400_000),
        _ => None,
    };
    let ago = text.chars().last().and_then(unit_ms).and_then(|unit: i64| {
        let count: u32 = text.get(..text.len() - 1)?.parse().ok()?; // silent-ok: it is no duration, and may be a time
        i64::from(count).checked_mul(unit)
    });
    if let Some(ms) = ago {
        return Ok(SinceTime::Ago(ms));
    }
    let day = format!("{text}T00:00:00Z");
    Timestamp::parse(text)
        .or_else(|_no_time| Timestamp::parse(&day))
        .map(SinceTime::At)
        .map_err(|_| {
            "is neither a duration (`30m`, `2h`, `7d`) nor a day (`2026-11-28`) nor an RFC 3339 time"
                .to_owned()
        }) // silent-ok: the message says what is valid
}

/// Runs the command.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let dir = match &args.claw {
        Some(claw) => find_state(claw, config)?,
        None => args.which.find_dir()?,
    };
    let mut printer = LogPrinter::new(args);
    let reader = read_only(&dir)?;
    let most = match (args.lines, args.since) {
        (Some(lines), _) => usize::try_from(lines)?,
        (None, Some(_)) => usize::MAX,
        (None, None) => USUAL_LINES,
    };
    let mut latest = VecDeque::new();
    // All rows are read: earlier ones say which tools there are, and what open turns have cost.
    let mut row = printer.visit_lines(&reader, 0, |line| {
        if most == usize::MAX {
            return Ok(out::print_line(out::one_line(&line))?);
        }
        if latest.len() >= most {
            latest.pop_front();
        }
        if most > 0 {
            latest.push_back(line);
        }
        Ok(())
    })?;
    for line in &latest {
        out::print_line(out::one_line(line))?;
    }
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        std::thread::sleep(POLL);
        row = printer.visit_lines(&reader, row, |line| Ok(out::print_line(out::one_line(&line))?))?;
    }
}

/// Returns the state directory that the argument names.
fn find_state(claw: &Path, config: Option<&Path>) -> Result<PathBuf> {
    if claw.is_dir() && holds_state(claw) {
        return Ok(claw.to_owned());
    }
    let inside = claw.join("claw.yaml");
    let file = if claw.is_dir() && inside.is_file() {
        inside
    } else {
        claw.to_owned()
    };
    if !file.is_file() {
        let agent = claw.to_str().filter(|name| !name.contains('/'));
        let Some(agent) = agent else {
            bail!(
                "`{}` is neither a manifest nor a state directory; `--agent NAME` and `--state DIR` say which agent",
                claw.display()
            );
        };
        let named = StateSelector {
            state: None,
            agent: Some(agent.to_owned()),
        };
        return named
            .find_dir()
            .with_context(|| format!("`{agent}` is neither a manifest nor an agent with a state"));
    }
    let config = Config::load(config, Some(&file))?;
    let (manifest, _) = manifest::load_valid_manifest(&file, &config)?;
    let wanted = StateLookup {
        flag: None,
        configured: config.settings.state.as_ref().and_then(StateConfig::dir),
        agent: &manifest.metadata.name,
        origin: &Origin::of_file(&file)?,
    };
    wanted.dir()
}

/// Makes the lines that the flags ask for.
struct LogPrinter {
    describer: ActivityDescriber,
    since: Option<String>,
    level: ActivityLevel,
    format: LogFormat,
}

impl LogPrinter {
    fn new(args: &Args) -> Self {
        let since = args.since.map(|since| match since {
            SinceTime::Ago(ms) => SystemClock::default().now().plus_millis(-ms),
            SinceTime::At(at) => at,
        });
        Self {
            describer: ActivityDescriber::default(),
            // Times of the journal have one width, so they compare as texts.
            since: since.map(|at| at.to_string()),
            level: args.level,
            format: match args.format {
                LinesFormat::Text => LogFormat::Text,
                LinesFormat::Json => LogFormat::Json,
            },
        }
    }

    /// Visits the lines of all events after a row. Returns the last row.
    fn visit_lines(
        &mut self,
        reader: &StateReader,
        after_row: u64,
        mut visit: impl FnMut(String) -> Result<()>,
    ) -> Result<u64> {
        let mut filter = Filter {
            session: None,
            after_row,
            limit: PAGE,
        };
        loop {
            let page = reader.events(filter)?;
            let Some(last) = page.last() else {
                return Ok(filter.after_row);
            };
            filter.after_row = last.row;
            for stored in &page {
                if let Some(line) = self.line(stored) {
                    visit(line)?;
                }
            }
        }
    }

    fn line(&mut self, stored: &StoredEvent) -> Option<String> {
        let event = &stored.event;
        let line = self
            .describer
            .describe_event(&event.event_type, event.payload.get())?;
        let early = self.since.as_ref().is_some_and(|since| event.timestamp < *since);
        if early || line.level < self.level {
            return None;
        }
        let place = ActivityPlace {
            at: event.timestamp.clone(),
            session: event.session_id.0,
            sequence: event.sequence,
        };
        line.format_line(&event.event_type, &place, self.format)
    }
}

#[cfg(test)]
mod tests {
    use super::{SinceTime, Timestamp, parse_since};

    #[test]
    fn since_takes_durations_days_and_times() {
        assert_eq!(parse_since("90s"), Ok(SinceTime::Ago(90_000)));
        assert_eq!(parse_since("2h"), Ok(SinceTime::Ago(7_200_000)));
        assert_eq!(parse_since("7d"), Ok(SinceTime::Ago(604_800_000)));
        let day = Timestamp::parse("2026-11-28T00:00:00Z").unwrap();
        assert_eq!(parse_since("2026-11-28"), Ok(SinceTime::At(day)));
        assert_eq!(parse_since("2026-11-28T00:00:00Z"), Ok(SinceTime::At(day)));
        for bad in ["", "h", "-1h", "2w", "yesterday", "1.5h", "é", "2026-13-01"] {
            assert!(parse_since(bad).is_err(), "{bad}");
        }
    }
}
