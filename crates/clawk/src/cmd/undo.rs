//! `clawk undo`: restores what a session's calls overwrote.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_kernel::ports::Journal;
use clawk_kernel::time::SystemClock;
use clawk_kernel::{kind, undo as record};
use clawk_proto::SessionId;
use clawk_secrets::env;
use clawk_tools::undo::{self, RecordedPath, State, UndoPlan, UndoRecord};
use serde_json::{Value, json};

use super::trace::source::{SessionSelection, TraceSource};
use crate::compose::{self, UNDO};
use crate::out::{self, Format, TerminalStyle};
use crate::state::kept::{Options, StateDir};
use crate::state::{self};

/// Flags of `clawk undo`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The session: its id, or `last`
    #[arg(value_name = "SESSION")]
    session: String,

    /// Go back to this event of the session: calls up to it stay. Its sequence, as `clawk trace show` prints it [default: the beginning]
    #[arg(long, value_name = "EVENT")]
    to: Option<u64>,

    /// Undo; without this flag, only show what would be undone
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    which: state::StateSelector,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk undo last                        show what would be undone
  clawk undo last --yes                  put it back
  clawk undo last --to 42 --yes          undo only the calls after event 42

clawk puts back files that the file tools overwrote, and files that programs (`shell`, `command`) changed in the writable
folders of their sandbox: contents, modes, modification times. Files that somebody else has changed since stay as they
are. clawk lists the calls that it can't undo: mails, requests, and folders above `[undo] max_mb` of clawk.toml.
The agent must not be running. Exit code 1: some kept content could not be put back.";

/// A call with effects, as recorded in the trace.
#[derive(Debug)]
struct UndoableCall {
    tool: String,
    sequence: u64,
}

/// Shows the changes, or makes them.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let dir = args.which.find_dir()?;
    let source = TraceSource::from_state(&dir)?;
    let SessionSelection::One(session) = source.select_sessions(Some(&args.session))? else {
        bail!("say which session; `clawk sessions` lists them");
    };
    let acted = undoable_calls(&source, session)?;
    let root = dir.join(UNDO);
    let after = |id: &str| {
        acted
            .get(id)
            .is_some_and(|call| args.to.is_none_or(|to| call.sequence > to))
    };
    let mut kept = undo::session_records(&root, session).context("what the calls overwrote can't be read")?;
    kept.retain(|call| after(call.request_id.as_str()));
    let back = undo::plan_undo(&root, &kept)?;
    let known: BTreeSet<&str> = kept.iter().map(|call| call.request_id.as_str()).collect();
    let before = undo::undone_before(&root, session)?;
    let lost: BTreeMap<&str, &UndoableCall> = acted
        .iter()
        .map(|(id, call)| (id.as_str(), call))
        .filter(|(id, _)| after(id) && !known.contains(id) && !before.iter().any(|done| done == id))
        .collect();
    let mut report = report_json(session, &kept, &back, &lost);
    let mut failed = Vec::new();
    if args.yes && !(back.steps.is_empty() && back.calls.is_empty()) {
        let without = back.conflicts.len() + lost.len();
        failed = put_back(&dir, session, (&kept, &back), without, &report)?;
        if let Some(report) = report.as_object_mut() {
            let failed: Vec<Value> = failed
                .iter()
                .map(|(path, why)| json!({"path": RecordedPath::new(path), "why": why}))
                .collect();
            report.insert("done".to_owned(), Value::Bool(true));
            report.insert("failed".to_owned(), failed.into());
        }
    }
    match args.format {
        Format::Json => out::print_json(&report)?,
        Format::Human => print_plan(args.yes, (&kept, &back), &lost, &failed)?,
    }
    let whole = back.conflicts.is_empty() && failed.is_empty();
    Ok(if whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints what an undo of the whole session would put back, and changes nothing. The agent may run.
pub(crate) fn show_plan(state: &std::path::Path, session: SessionId) -> Result<()> {
    let args = Args {
        session: session.to_string(),
        to: None,
        yes: false,
        which: state::StateSelector {
            state: Some(state.to_owned()),
            agent: None,
        },
        format: Format::Human,
    };
    run(&args).map(drop)
}

/// Returns the session's calls with effects, by id.
fn undoable_calls(source: &TraceSource, session: SessionId) -> Result<BTreeMap<String, UndoableCall>> {
    let mut found = BTreeMap::new();
    source.for_each_event(SessionSelection::One(session), |event| {
        let text = |key: &str| event.payload.get(key).and_then(Value::as_str).map(str::to_owned);
        let effects = event.payload.get("side_effects") == Some(&Value::Bool(true));
        if event.event_type == kind::ACTION_APPROVED
            && effects
            && let (Some(id), Some(tool)) = (text("request_id"), text("action_id"))
        {
            let sequence = event.sequence;
            found.insert(id, UndoableCall { tool, sequence });
        }
        Ok(())
    })?;
    Ok(found)
}

fn report_json(
    session: SessionId,
    kept: &[UndoRecord],
    back: &UndoPlan,
    lost: &BTreeMap<&str, &UndoableCall>,
) -> Value {
    let steps = back.steps.iter().map(|step| {
        json!({"path": RecordedPath::new(&step.path), "does": change_label(&step.now, &step.then), "now": step.now, "then": step.then})
    });
    let conflicts = back.conflicts.iter().map(|found| {
        json!({"request_id": found.request_id, "tool": found.tool, "path": found.path.as_deref().map(RecordedPath::new), "why": found.why})
    });
    let lost = lost
        .iter()
        .map(|(id, call)| json!({"request_id": id, "tool": call.tool, "sequence": call.sequence}));
    let beside = kept.iter().filter(|call| !call.alone && !call.changes.is_empty());
    json!({
        "session": session,
        "done": false,
        "calls": back.calls,
        "steps": steps.collect::<Vec<_>>(),
        "conflicts": conflicts.collect::<Vec<_>>(),
        "not_undone": lost.collect::<Vec<_>>(),
        "ran_beside_others": beside.map(|call| &call.request_id).collect::<Vec<_>>(),
        "unlinked": back.unlinked.iter().map(|path| RecordedPath::new(path)).collect::<Vec<_>>(),
    })
}

/// Returns the change as one word.
fn change_label(now: &State, then: &State) -> &'static str {
    match (now, then) {
        (_, State::Absent) => "remove",
        (State::Absent, _) => "bring back",
        (State::File { digest, .. }, State::File { digest: was, .. }) if digest == was => "mode and date",
        (State::Folder { .. }, State::Folder { .. }) => "mode and date",
        _ => "put back",
    }
}

fn print_plan(
    yes: bool,
    (kept, back): (&[UndoRecord], &UndoPlan),
    lost: &BTreeMap<&str, &UndoableCall>,
    failed: &[(std::path::PathBuf, String)],
) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    if back.steps.is_empty() {
        out::print_line("nothing is to be put back")?;
    }
    for step in &back.steps {
        let word = change_label(&step.now, &step.then);
        let word = if word == "remove" {
            paint.red(word)
        } else {
            paint.green(word)
        };
        out::print_line(format!("{word}  {}", out::one_line(&step.path.to_string_lossy())))?;
    }
    for call in kept.iter().filter(|call| !call.alone && !call.changes.is_empty()) {
        out::print_line(format!(
            "{} `{}` ({}) ran beside another call: what both changed in the same folders is counted as its own",
            paint.yellow("note:"),
            out::one_line(&call.tool),
            call.request_id
        ))?;
    }
    show_conflicts(back, paint)?;
    for (id, call) in lost {
        out::print_line(format!(
            "{} `{}` ({id}, event {}): nothing is kept of it",
            paint.yellow("can't be undone:"),
            out::one_line(&call.tool),
            call.sequence
        ))?;
    }
    for (path, why) in failed {
        out::print_line(format!(
            "{} {}: {}",
            paint.red("failed:"),
            out::one_line(&path.to_string_lossy()),
            out::one_line(why)
        ))?;
    }
    match (yes, back.steps.is_empty()) {
        (true, false) => out::print_line(format!("{} places are put back", back.steps.len() - failed.len()))?,
        (false, false) => out::print_note("nothing was changed; say --yes to do it"),
        (_, true) => {}
    }
    Ok(())
}

fn show_conflicts(back: &UndoPlan, paint: TerminalStyle) -> Result<()> {
    for path in &back.unlinked {
        out::print_line(format!(
            "{} {} is put back as a file of its own: its name outside of the writable folders (a hard link) is not linked to it again",
            paint.yellow("note:"),
            out::one_line(&path.to_string_lossy())
        ))?;
    }
    for found in &back.conflicts {
        let place = found
            .path
            .as_ref()
            .map(|path| format!(" {}", path.display()))
            .unwrap_or_default();
        out::print_line(format!(
            "{} `{}`{}: {}",
            paint.yellow("not put back:"),
            out::one_line(&found.tool),
            out::one_line(&place),
            out::one_line(&found.why)
        ))?;
    }
    Ok(())
}

/// Records the start, restores the data, and records the end. Returns what failed.
fn put_back(
    dir: &std::path::Path,
    session: SessionId,
    (kept, back): (&[UndoRecord], &UndoPlan),
    without: usize,
    report: &Value,
) -> Result<Vec<(std::path::PathBuf, String)>> {
    let state = StateDir::open(dir, Options::default())
        .context("an undo is recorded in the agent's journal, so the agent must not be running")?;
    let user = env::non_empty("USER").unwrap_or_else(|| "unknown".to_owned());
    let root = dir.join(UNDO);
    let outcome = compose::build_runtime()?.block_on(async {
        let journal: Arc<dyn Journal> = state.journal();
        let sums = record::UndoTotals {
            by: &format!("local user {user}"),
            calls: back.calls.len(),
            places: back.steps.len(),
            without,
        };
        let ports = (journal, Arc::new(SystemClock::default()) as _);
        let list = serde_json::to_vec(report)?;
        let undoing = record::begin_undo(ports, session, sums, list).await?;
        let failed = undo::apply_undo(&root, back, state.vault());
        if failed.is_empty() {
            for call in kept.iter().filter(|call| back.calls.contains(&call.request_id)) {
                undo::mark_undone(&root, call)?;
            }
        }
        undoing
            .record_end(back.steps.len() - failed.len(), failed.len())
            .await?;
        anyhow::Ok(failed)
    });
    state.close();
    outcome
}
