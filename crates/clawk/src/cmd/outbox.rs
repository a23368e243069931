//! `clawk outbox`: answers that wait for delivery, and those that could not be delivered. Each can be tried again.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crate::state::kept::{StateDir, StateReader, read_only};
use anyhow::{Context, Result, bail};
use clawk_kernel::outbox::requeue_offline;
use clawk_kernel::ports::OutboxRow;
use clawk_kernel::time::SystemClock;
use clawk_proto::MessageId;
use clawk_secrets::env;
use clawk_server::{ControlClient, ControlError};
use serde_json::{Value, json};

use crate::out::{self, Format, TerminalStyle, clip_line, one_line};
use crate::{compose, state};

/// Largest number of listed entries.
const LISTED: usize = 10_000;

/// Flags of `clawk outbox`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: OutboxCommand,
}

const EXAMPLES: &str = "\
Examples:
  clawk outbox list --agent hello
  clawk outbox retry 0195f1c2-6d3e-7aaa-8bbb-0123456789ab --agent hello

clawk owes an answer until it is delivered. It tries again by itself, as often as `[outbox]` of clawk.toml says. Then the
answer is dead and stays in the list. `retry` starts again with the first attempt, at once if the agent runs.";

#[derive(Debug, clap::Subcommand)]
enum OutboxCommand {
    /// List answers that are not delivered yet, and dead ones, the oldest first
    List {
        #[command(flatten)]
        which: state::StateSelector,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Try a dead one again
    Retry {
        /// The id of the answered message, as `list` prints it
        #[arg(value_name = "ID")]
        id: MessageId,

        #[command(flatten)]
        which: state::StateSelector,
    },
}

/// Lists the entries, or repeats a delivery.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        OutboxCommand::List { which, format } => list_outbox(&read_only(which.find_dir()?)?, *format),
        OutboxCommand::Retry { id, which } => retry_message(&which.find_dir()?, *id),
    }
}

fn list_outbox(reader: &StateReader, format: Format) -> Result<ExitCode> {
    let rows = reader.outbox(LISTED)?;
    if format == Format::Json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| row_json(reader, row))
            .collect::<Result<_>>()?;
        out::print_json(&json!({ "outbox": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        out::print_line("nothing is owed")?;
    }
    let paint = TerminalStyle::for_stdout();
    for row in &rows {
        let state = if row.dead {
            paint.red("dead")
        } else {
            paint.yellow("owed")
        };
        let text = state::text_of(reader, row.owed.text)?;
        out::print_line(format!(
            "{state} {}  {}  {}",
            paint.bold(&row.owed.message.to_string()),
            one_line(&format_destination(row)),
            clip_line(text.as_deref().unwrap_or("(no text)"), 60)
        ))?;
        if let Some(reason) = row.reason.as_ref().filter(|reason| !reason.is_empty()) {
            out::print_line(format!("  {}", one_line(reason)))?;
        }
        let next = if row.dead {
            String::new()
        } else {
            format!(", next not before {}", row.next_at)
        };
        out::print_line(paint.dim(&format!("  since {}, attempts {}{next}", row.at, row.attempts)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the destination: a channel's conversation, or a client of the process itself.
fn format_destination(row: &OutboxRow) -> String {
    if row.owed.channel.is_empty() {
        row.owed.conversation.clone()
    } else {
        format!("{}:{}", row.owed.channel, row.owed.conversation)
    }
}

fn row_json(reader: &StateReader, row: &OutboxRow) -> Result<Value> {
    Ok(json!({
        "message": row.owed.message,
        "session": row.owed.session,
        "channel": row.owed.channel,
        "conversation": row.owed.conversation,
        "state": if row.dead { "dead" } else { "owed" },
        "at": row.at.to_string(),
        "attempts": row.attempts,
        "next_at": (!row.dead).then(|| row.next_at.to_string()),
        "may_have_arrived": row.doubt,
        "reason": row.reason,
        "text": state::text_of(reader, row.owed.text)?,
    }))
}

fn retry_message(dir: &Path, id: MessageId) -> Result<ExitCode> {
    let user = env::non_empty("USER").unwrap_or_else(|| "unknown".to_owned());
    let known = compose::build_runtime()?.block_on(async {
        match ControlClient::connect(dir).await {
            Ok(mut client) => {
                let answer = client
                    .call_method("clawk.outbox.retry", &json!({ "message": id }))
                    .await;
                let answer = answer.context("the running agent refused")?;
                anyhow::Ok(answer.get("acknowledged") == Some(&Value::Bool(true)))
            }
            Err(ControlError::NotRunning { .. }) => {
                let state = StateDir::open(dir, crate::state::kept::Options::default())?;
                let clock = Arc::new(SystemClock::default());
                let by = format!("local user {user}");
                let known = requeue_offline(state.journal(), clock, id, &by).await;
                state.close();
                Ok(known?)
            }
            Err(e) => Err(e.into()),
        }
    })?;
    if !known {
        bail!("no dead answer to {id}; `clawk outbox list` shows what is owed and what is dead");
    }
    out::print_line(format!("{id} is tried again"))?;
    Ok(ExitCode::SUCCESS)
}
