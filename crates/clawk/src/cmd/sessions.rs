//! `clawk sessions`: what an agent has done so far, by conversation.

mod prompt;
mod record;

use std::process::ExitCode;

use crate::state::kept::Reader;
use anyhow::Result;

use crate::out::{self, Format, Paint};
use crate::state;

/// Flags of `clawk sessions`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  clawk sessions\n  clawk sessions --agent hello --format json\n  clawk sessions prompt last --turn 2\n  clawk sessions record last"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,

    #[command(flatten)]
    which: state::Which,

    /// Print at most this many, the latest first
    #[arg(long, default_value_t = 50)]
    limit: usize,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Print the exact prompt of a turn, rebuilt from the record and compared with its digest
    Prompt(prompt::Args),
    /// Print what each turn did, call by call, by the record and not by the model
    Record(record::Args),
}

/// Lists them, or does what is asked of one.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Some(Verb::Prompt(asked)) => return prompt::run(asked),
        Some(Verb::Record(asked)) => return record::run(asked),
        None => {}
    }
    let dir = args.which.dir()?;
    let rows = Reader::open(&dir)?.sessions(args.limit)?;
    if args.format == Format::Json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                serde_json::json!({ "session": row.session, "events": row.events,
                    "started": row.started.to_string(), "last": row.last.to_string() })
            })
            .collect();
        out::json(&serde_json::json!({ "sessions": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let paint = Paint::stdout();
    if rows.is_empty() {
        out::line("no sessions yet")?;
    }
    for row in &rows {
        out::line(&format!(
            "{}  {:>6} events  {}",
            row.session,
            row.events,
            paint.dim(&format!("{} … {}", row.started, row.last))
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
