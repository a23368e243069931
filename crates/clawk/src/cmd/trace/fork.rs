//! `clawk trace fork`: continues live from a step of a recorded session, in a new session.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::state::kept::{Filter, StateReader};
use anyhow::{Context, Result, bail};
use clawk_kernel::ForkPoint;

use super::source::{SessionSelection, TraceSource};
use crate::cmd::run::{self, ApproveMode};
use crate::config::AllowOutsideArgs;

/// Flags of `clawk trace fork`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The manifest to continue with
    #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser(), default_value = "claw.yaml")]
    manifest: PathBuf,

    /// The session to continue from: its id, or `last`; it does not change
    #[arg(long, value_name = "ID")]
    session: String,

    /// The last event (its sequence) of the new session's past; later events are left out
    #[arg(long, value_name = "N")]
    at: u64,

    /// The next message; without it, the open turn continues from its next step
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,

    /// How clawk answers questions whether a call may run
    #[arg(long, value_enum, default_value_t = ApproveMode::Ask)]
    approve: ApproveMode,

    /// State directory; default `$XDG_STATE_HOME/clawk/<agent>`
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(flatten)]
    outside: AllowOutsideArgs,
}

pub(super) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    if args.message.as_deref().is_some_and(|text| text.trim().is_empty()) {
        bail!("the message is empty");
    }
    run::run_fork(
        &run::Args {
            manifest: args.manifest.clone(),
            message: args.message.clone(),
            approve: args.approve,
            state: args.state.clone(),
            session: None,
            trust: false,
            dry: Default::default(),
            outside: args.outside,
        },
        config,
        |state| find_fork_point(state, &args.session, args.at),
    )
}

/// Returns the step as recorded in the journal.
fn find_fork_point(state: &Path, session: &str, at: u64) -> Result<ForkPoint> {
    let source = TraceSource::from_state(state)?;
    let SessionSelection::One(session) = source.select_sessions(Some(session))? else {
        bail!("say which session");
    };
    let reader = StateReader::open(state)?;
    let report = reader.verify(Some(session))?;
    if !report.valid {
        bail!(
            "the chain of session {session} is not valid, so it can't be forked; `clawk trace verify` names the event"
        );
    }
    let mut filter = Filter {
        session: Some(session),
        ..Filter::default()
    };
    loop {
        let page = reader.events(filter)?;
        let last = page.last().map(|stored| stored.row);
        if let Some(stored) = page.into_iter().find(|stored| stored.event.sequence == at) {
            return Ok(ForkPoint {
                keeps_sender: false,
                event_hash: stored.event.event_hash,
                sequence: at,
                session_id: session,
                trace_id: stored.event.trace_id,
                turn: None,
            });
        }
        filter.after_row = last.with_context(|| {
            format!(
                "session {session} has no event {at}; it has {}",
                report.event_count
            )
        })?;
    }
}
