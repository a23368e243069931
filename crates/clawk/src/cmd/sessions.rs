//! `clawk sessions`: lists what an agent has done, by conversation.

mod prompt;
mod record;

use std::process::ExitCode;

use anyhow::Result;
use clawk_events::payload::SessionStarted;
use clawk_kernel::kind;
use clawk_kernel::ports::{JournalScan, RecordedEvent, SessionRow};
use serde_json::{Value, json};

use crate::out::{self, Format, TerminalStyle, clip_line, one_line};
use crate::state;
use crate::state::kept::{StateReader, read_only};

/// Entry point of the chain in which each run of an agent records its lifecycle.
const RUNTIME: &str = "runtime";
/// Length of the first message in a list, in characters.
const OPENING_CHARS: usize = 60;

/// Flags of `clawk sessions`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "`clawk sessions` alone is `clawk sessions list`.\n\nExamples:\n  clawk sessions\n  clawk sessions list --all\n  clawk sessions list --agent hello --format json\n  clawk sessions prompt last --turn 2\n  clawk sessions record last"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<SessionsCommand>,

    #[command(flatten)]
    list: SessionListArgs,
}

/// Flags of `clawk sessions list`.
#[derive(Debug, clap::Args)]
struct SessionListArgs {
    #[command(flatten)]
    which: state::StateSelector,

    /// Print at most this many, the latest first
    #[arg(long, default_value_t = 50)]
    limit: usize,

    /// Also list the chains in which runs keep their starts and ends
    #[arg(long)]
    all: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, clap::Subcommand)]
enum SessionsCommand {
    /// List the sessions, the latest first
    List(SessionListArgs),
    /// Print the exact prompt of a turn, rebuilt from the record and compared with its digest
    Prompt(prompt::Args),
    /// Print what each turn did, call by call, by the record and not by the model
    Record(record::Args),
}

/// Lists the sessions, or runs a subcommand on one.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Some(SessionsCommand::Prompt(asked)) => prompt::run(asked),
        Some(SessionsCommand::Record(asked)) => record::run(asked),
        Some(SessionsCommand::List(asked)) => list_sessions(asked),
        None => list_sessions(&args.list),
    }
}

fn list_sessions(args: &SessionListArgs) -> Result<ExitCode> {
    let reader = read_only(&args.which.find_dir()?)?;
    let mut listed = Vec::new();
    let mut looked_at = 0;
    while listed.len() < args.limit {
        // Most conversations have a lifecycle chain beside them, so reading twice the number is usually enough.
        let wanted = args.limit.saturating_mul(2).saturating_add(looked_at);
        let rows = reader.sessions(wanted)?;
        let found = rows.len();
        for row in rows.into_iter().skip(looked_at) {
            let about = SessionSynopsis::from_row(&reader, &row)?;
            if args.all || about.door != RUNTIME {
                listed.push((row, about));
            }
        }
        if found < wanted {
            break;
        }
        looked_at = found;
    }
    listed.truncate(args.limit);
    match args.format {
        Format::Json => {
            let rows: Vec<Value> = listed.iter().map(|(row, about)| about.to_json(row)).collect();
            out::print_json(&json!({ "sessions": rows }))?;
        }
        Format::Human if listed.is_empty() => out::print_line("no sessions yet")?,
        Format::Human => {
            for (row, about) in &listed {
                about.print_row(row)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A summary of a session.
struct SessionSynopsis {
    /// The entry point of the session.
    door: String,
    /// Number of accepted messages.
    turns: usize,
    /// The first message; `None` if there was none or it was erased.
    opening: Option<String>,
}

impl SessionSynopsis {
    fn from_row(reader: &StateReader, row: &SessionRow) -> Result<Self> {
        let scan = |kinds, limit, with_content| {
            reader.recorded_events(&JournalScan {
                session: Some(row.session),
                kinds,
                limit,
                with_content,
                ..JournalScan::default()
            })
        };
        let started = scan(&[kind::SESSION_STARTED], 1, false)?;
        let first = scan(&[kind::MESSAGE_ACCEPTED], 1, true)?;
        let turns = if first.is_empty() {
            0
        } else {
            scan(&[kind::MESSAGE_ACCEPTED], usize::MAX, false)?.len()
        };
        Ok(Self {
            door: started.first().map(format_entry_point).unwrap_or_default(),
            turns,
            opening: first.into_iter().next().and_then(message_text),
        })
    }

    fn to_json(&self, row: &SessionRow) -> Value {
        json!({
            "session": row.session, "door": self.door, "turns": self.turns, "opening": self.opening, "events": row.events,
            "started": row.started.to_string(), "last": row.last.to_string(),
        })
    }

    fn print_row(&self, row: &SessionRow) -> Result<()> {
        let paint = TerminalStyle::for_stdout();
        let turns = match self.turns {
            1 => "1 turn".to_owned(),
            turns => format!("{turns} turns"),
        };
        out::print_line(format!(
            "{}  {turns:>9}  {}",
            row.session,
            clip_line(self.opening.as_deref().unwrap_or("–"), OPENING_CHARS)
        ))?;
        let line = format!(
            "    {} · {} events · {} … {}",
            one_line(&self.door),
            row.events,
            row.started,
            row.last
        );
        out::print_line(paint.dim(&line))?;
        Ok(())
    }
}

/// Returns the entry point; the CRA interface has none. A list includes every session, even if its first event can't be read.
fn format_entry_point(started: &RecordedEvent) -> String {
    match SessionStarted::read(&started.kind, &started.payload) {
        Ok(session) => session.door.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%error, session = %started.session, "the first event of a session can't be read");
            "unreadable".to_owned()
        }
    }
}

fn message_text(message: RecordedEvent) -> Option<String> {
    String::from_utf8(message.content?.bytes).ok()
}
