//! `clawk sessions`: what an agent has done so far, by conversation.

use std::process::ExitCode;

use anyhow::Result;
use clawk_store::Reader;

use crate::out::{self, Format, Paint};
use crate::state;

/// Flags of `clawk sessions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  clawk sessions\n  clawk sessions --agent hello --format json")]
pub(crate) struct Args {
    #[command(flatten)]
    which: state::Which,

    /// At most so many, the latest first
    #[arg(long, default_value_t = 50)]
    limit: usize,

    /// How to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Lists them.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
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
