//! `clawk dead-letters`: messages whose turn could not be finished. None is lost; each can be said again.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_kernel::kind;
use clawk_proto::{MessageId, SessionId};
use clawk_store::{Filter, Reader, StoredEvent};
use serde::Serialize;
use serde_json::Value;

use super::run::{self, Approve};
use crate::config::Outside;
use crate::out::{self, Format, Paint, clipped};
use crate::state;

/// Flags of `clawk dead-letters`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

const EXAMPLES: &str = "\
Examples:
  clawk dead-letters list --agent hello
  clawk dead-letters replay 0195f1c2-6d3e-7aaa-8bbb-0123456789ab claw.yaml";

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List them, the oldest first
    List {
        #[command(flatten)]
        which: state::Which,

        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Say one again in its session; a new message in the trace, the old one stays listed
    Replay {
        /// The message's id, as `list` prints it
        #[arg(value_name = "ID")]
        id: MessageId,

        /// The agent's manifest
        #[arg(value_name = "CLAW")]
        manifest: PathBuf,

        #[command(flatten)]
        which: state::Which,

        /// How questions are answered whether a call may run
        #[arg(long, value_enum, default_value_t = Approve::Ask)]
        approve: Approve,

        #[command(flatten)]
        outside: Outside,
    },
}

/// A message in the box.
#[derive(Debug, Serialize)]
struct Letter {
    message: MessageId,
    session: SessionId,
    at: String,
    reason: String,
    /// What it said; `None` when its content was erased.
    text: Option<String>,
}

/// Lists, or says one again.
pub(crate) fn run(args: Args, config: Option<&Path>) -> Result<ExitCode> {
    match args.what {
        What::List { which, format } => list(&letters(&Reader::open(which.dir()?)?)?, format),
        What::Replay {
            id,
            manifest,
            which,
            approve,
            outside,
        } => {
            let state = which.dir()?;
            let letters = letters(&Reader::open(&state)?)?;
            let Some(letter) = letters.into_iter().find(|letter| letter.message == id) else {
                bail!(
                    "no dead letter {id} in `{}`; `clawk dead-letters list` shows them",
                    state.display()
                );
            };
            let text = letter
                .text
                .context("the message's content was erased; it can't be said again")?;
            let args = run::Args {
                manifest,
                message: Some(text),
                approve,
                state: Some(state),
                session: Some(letter.session.to_string()),
                outside,
            };
            run::run(&args, config)
        }
    }
}

fn list(letters: &[Letter], format: Format) -> Result<ExitCode> {
    if format == Format::Json {
        out::json(&serde_json::json!({ "dead_letters": letters }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if letters.is_empty() {
        out::line("the dead-letter box is empty")?;
    }
    let paint = Paint::stdout();
    for letter in letters {
        let text = letter.text.as_deref().unwrap_or("(erased)");
        out::line(&format!(
            "{}  {}",
            paint.bold(&letter.message.to_string()),
            clipped(text, 80)
        ))?;
        out::line(&format!("  why: {}", out::harmless(&letter.reason)))?;
        out::line(&paint.dim(&format!("  {} in session {}", letter.at, letter.session)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn letters(reader: &Reader) -> Result<Vec<Letter>> {
    let mut letters = Vec::new();
    each(reader, None, |stored| {
        if stored.event.event_type == kind::MESSAGE_DEAD {
            let payload = payload(stored)?;
            let text = |name: &str| payload.get(name).and_then(Value::as_str).unwrap_or_default();
            letters.push(Letter {
                message: text("message_id")
                    .parse()
                    .context("an event without a message id")?,
                session: stored.event.session_id,
                at: stored.event.timestamp.clone(),
                reason: text("reason").to_owned(),
                text: None,
            });
        }
        Ok(())
    })?;
    for letter in &mut letters {
        let mut digest = None;
        each(reader, Some(letter.session), |stored| {
            let accepted = stored.event.event_type == kind::MESSAGE_ACCEPTED;
            if accepted
                && payload(stored)?.get("message_id").and_then(Value::as_str)
                    == Some(letter.message.to_string().as_str())
            {
                digest = stored.content_digest;
            }
            Ok(())
        })?;
        let bytes = digest.map(|digest| reader.content(digest)).transpose()?.flatten();
        letter.text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    }
    Ok(letters)
}

fn payload(stored: &StoredEvent) -> Result<Value> {
    Ok(serde_json::from_str(stored.event.payload.get())?)
}

/// Every event, page by page.
fn each(
    reader: &Reader,
    session: Option<SessionId>,
    mut take: impl FnMut(&StoredEvent) -> Result<()>,
) -> Result<()> {
    let mut filter = Filter {
        session,
        ..Filter::default()
    };
    loop {
        let page = reader.events(filter)?;
        let Some(last) = page.last() else { return Ok(()) };
        filter.after_row = last.row;
        page.iter().try_for_each(&mut take)?;
    }
}
