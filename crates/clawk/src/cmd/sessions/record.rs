//! `clawk sessions record`: lists the calls of each turn, which the line below an answer summarises.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_kernel::ports::JournalScan;
use clawk_kernel::shown::{CallOutcome, KINDS, RecordedCall, TurnRecord, TurnRecordFold};
use serde_json::{Value, json};

use crate::cmd::trace::TraceSource;
use crate::out::{self, Format, TerminalStyle, one_line};
use crate::state;

/// Flags of `clawk sessions record`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  clawk sessions record last\n  clawk sessions record last --turn 1 --format json"
)]
pub(super) struct Args {
    /// The session's id, or `last`
    #[arg(value_name = "SESSION")]
    session: String,

    /// Only this turn, the first is 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    turn: Option<u32>,

    #[command(flatten)]
    which: state::StateSelector,

    /// How to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Prints the record of each ended turn.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let source = TraceSource::from_state(&args.which.find_dir()?)?;
    let TraceSource::State(reader) = &source else {
        bail!("a trace file holds no contents");
    };
    let session = source
        .select_sessions(Some(&args.session))?
        .session()
        .context("name one session")?;
    let events = reader.recorded_events(&JournalScan {
        session: Some(session),
        kinds: KINDS,
        limit: usize::MAX,
        with_content: true,
        ..JournalScan::default()
    })?;
    let mut fold = TurnRecordFold::default();
    let turns = events
        .iter()
        .filter_map(|event| fold.apply_event(event).transpose());
    let turns = turns.collect::<Result<Vec<TurnRecord>, _>>()?;
    let wanted: Vec<(usize, &TurnRecord)> = (1..)
        .zip(&turns)
        .filter(|(number, _)| args.turn.is_none_or(|turn| usize::try_from(turn) == Ok(*number)))
        .collect();
    if wanted.is_empty() {
        bail!("session {session} has {} turns that have ended", turns.len());
    }
    match args.format {
        Format::Json => {
            let turns: Vec<Value> = wanted
                .iter()
                .map(|(number, turn)| turn_json(*number, turn))
                .collect();
            out::print_json(&json!({"session": session, "turns": turns}))?;
        }
        Format::Human => {
            for (number, turn) in wanted {
                print_turn(number, turn)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn turn_json(number: usize, turn: &TurnRecord) -> Value {
    json!({"turn": number, "record": turn, "text": turn.call_summary().record_line()})
}

fn print_turn(number: usize, turn: &TurnRecord) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let who = turn.sender.as_deref().map(one_line).unwrap_or_default();
    let when = turn.ended.map(|at| at.to_string()).unwrap_or_default();
    out::print_line(format!(
        "turn {number}  {}",
        paint.dim(&format!("{} {who} {when}", turn.message))
    ))?;
    for call in &turn.calls {
        print_call(call)?;
    }
    if let Some(line) = turn.call_summary().record_line() {
        out::print_line(format!("  {}", one_line(&line)))?;
    }
    Ok(())
}

fn print_call(call: &RecordedCall) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let word = match call.outcome {
        CallOutcome::Done | CallOutcome::Read => paint.green(call.outcome.name()),
        CallOutcome::Denied | CallOutcome::Failed => paint.red(call.outcome.name()),
        CallOutcome::Unknown => paint.yellow(call.outcome.name()),
    };
    let rule = call
        .rule_id
        .as_deref()
        .map(|rule| format!("  rule {}", one_line(rule)));
    out::print_line(format!(
        "  {} {word}  {}{}",
        one_line(&call.tool),
        paint.dim(&format!("{} {}", call.at, call.request_id)),
        rule.unwrap_or_default()
    ))?;
    let parts = [
        ("arguments", &call.arguments),
        ("result", &call.result),
        ("reason", &call.reason),
    ];
    for (name, text) in parts {
        if let Some(text) = text {
            out::print_line(format!("    {name}: {}", one_line(text)))?;
        }
    }
    Ok(())
}
