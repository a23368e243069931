//! `clawk effects`: lists the effects of an agent's calls, including unknown ones, and records a person's statement about an
//! unknown one.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crate::state::kept::{Filter, StateDir, StateReader, read_only};
use anyhow::{Context, Result, bail};
use clawk_kernel::effect::{EffectEntry, EffectLedger, EffectSettlement, State, resolve_offline};
use clawk_kernel::kind;
use clawk_kernel::time::SystemClock;
use clawk_proto::RequestId;
use clawk_secrets::env;
use clawk_server::{ControlClient, ControlError};
use serde_json::{Value, json};

use crate::out::{self, Format, TerminalStyle};
use crate::{compose, state};

/// Flags of `clawk effects`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<EffectsCommand>,

    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    which: state::StateSelector,

    /// Only effects of unknown outcome
    #[arg(long)]
    unknown: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, clap::Subcommand)]
enum EffectsCommand {
    /// Settle an effect of unknown outcome; the trace records who settled it
    Resolve {
        /// The call's id, as the list prints it
        #[arg(value_name = "ID", value_parser = id)]
        id: RequestId,

        /// `done` or `not-done`
        #[arg(value_name = "OUTCOME", value_parser = parse_outcome)]
        outcome: EffectSettlement,

        /// How you know the outcome
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,

        #[command(flatten)]
        which: state::StateSelector,
    },
}

const EXAMPLES: &str = "\
Examples:
  clawk effects --agent hello
  clawk effects --unknown --format json
  clawk effects resolve 550e8400-e29b-41d4-a716-446655440000 not-done --reason 'no such order in the shop'

An effect is unknown when the run was cut short after it was decided on: it may have happened. It is never run again by itself.";

fn id(text: &str) -> Result<RequestId, String> {
    RequestId::parse(text).map_err(|e| e.to_string())
}

fn parse_outcome(text: &str) -> Result<EffectSettlement, String> {
    EffectSettlement::parse(text).ok_or_else(|| "say `done` or `not-done`".to_owned())
}

/// Lists the effects, or records a person's statement.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        None => list_effects(&args.list),
        Some(EffectsCommand::Resolve {
            id,
            outcome,
            reason,
            which,
        }) => resolve_effect(&which.find_dir()?, id, *outcome, reason.as_deref()),
    }
}

fn list_effects(args: &ListArgs) -> Result<ExitCode> {
    let dir = args.which.find_dir()?;
    let mut entries = read_entries(&read_only(&dir)?)?;
    if !is_running(&dir)? {
        for entry in entries.iter_mut().filter(|entry| entry.state == State::Started) {
            entry.state = State::Unknown;
            entry.reason = Some("the runtime stopped while it ran".to_owned());
        }
    }
    entries.retain(|entry| !args.unknown || entry.state == State::Unknown);
    if args.format == Format::Json {
        out::print_json(&json!({ "effects": entries }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if entries.is_empty() {
        out::print_line(if args.unknown {
            "nothing is unknown"
        } else {
            "no effects yet"
        })?;
    }
    let paint = TerminalStyle::for_stdout();
    for entry in &entries {
        print_entry(entry, paint)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_entry(entry: &EffectEntry, paint: TerminalStyle) -> Result<()> {
    let state = match entry.state {
        State::Intended => paint.dim("intended"),
        State::Started => paint.yellow("started "),
        State::Done => paint.green("done    "),
        State::Failed => paint.red("failed  "),
        State::Unknown => paint.yellow("unknown "),
    };
    out::print_line(format!(
        "{state} {}  {}  {}",
        paint.bold(entry.request_id.as_str()),
        out::one_line(&entry.tool),
        paint.dim(&entry.at)
    ))?;
    if let Some(reason) = &entry.reason {
        out::print_line(format!("  {}", out::one_line(reason)))?;
    }
    if let Some(by) = &entry.resolved_by {
        out::print_line(paint.dim(&format!("  found out by {}", out::one_line(by))))?;
    }
    Ok(())
}

/// Builds the list of effects from the whole journal, page by page.
fn read_entries(reader: &StateReader) -> Result<Vec<EffectEntry>> {
    let mut ledger = EffectLedger::default();
    let mut filter = Filter::default();
    loop {
        let page = reader.events(filter)?;
        let Some(last) = page.last() else { break };
        filter.after_row = last.row;
        for stored in &page {
            let event = &stored.event;
            let words = stored
                .content_digest
                .filter(|_| event.event_type == kind::ACTION_FAILED);
            // silent-ok: without the key, or after an erasure, only the code is shown
            let words = words.and_then(|digest| reader.content(digest).ok().flatten());
            ledger.apply_event(
                &event.event_type,
                event.session_id,
                &event.timestamp,
                &clawk_kernel::payload_with_words(event.payload.get(), words.as_deref()),
            )?;
        }
    }
    Ok(ledger.into_entries())
}

fn is_running(dir: &Path) -> Result<bool> {
    compose::build_runtime()?.block_on(async {
        match ControlClient::connect(dir).await {
            Ok(_) => Ok(true),
            Err(ControlError::NotRunning { .. }) => Ok(false),
            Err(e) => Err(e.into()),
        }
    })
}

fn resolve_effect(
    dir: &Path,
    id: &RequestId,
    outcome: EffectSettlement,
    reason: Option<&str>,
) -> Result<ExitCode> {
    let user = env::non_empty("USER").unwrap_or_else(|| "unknown".to_owned());
    let taken = compose::build_runtime()?.block_on(async {
        match ControlClient::connect(dir).await {
            Ok(mut client) => {
                let params = json!({"request_id": id, "outcome": outcome, "reason": reason});
                let answer = client.call_method("clawk.effects.resolve", &params).await;
                let answer = answer.context("the running agent refused")?;
                anyhow::Ok(answer.get("acknowledged") == Some(&Value::Bool(true)))
            }
            Err(ControlError::NotRunning { .. }) => {
                let state = StateDir::open(dir, crate::state::kept::Options::default())?;
                let clock = Arc::new(SystemClock::default());
                let by = format!("local user {user}");
                let taken = resolve_offline(state.journal(), clock, id, outcome, &by, reason).await;
                state.close();
                Ok(taken?)
            }
            Err(e) => Err(e.into()),
        }
    })?;
    if !taken {
        bail!(
            "no effect {id} is unknown; `clawk effects --unknown` lists them (one of a run that died is known to be unknown once the agent has been started again)"
        );
    }
    out::print_line(format!("{id} is recorded as {}", outcome.as_str()))?;
    Ok(ExitCode::SUCCESS)
}
