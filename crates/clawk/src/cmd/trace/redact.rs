//! `clawk trace redact`: erases content, on the record.

use std::process::ExitCode;

use crate::state::kept::{ErasureSelection, Options, StateDir, StateError};
use anyhow::{Context, Result, bail};
use clawk_kernel::time::SystemClock;
use clawk_proto::{Digest, SessionId};
use serde_json::json;

use super::source::{SessionSelection, TraceSource};
use crate::out::{self, Format};
use crate::{compose, state};

/// Flags of `clawk trace redact`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: state::StateSelector,

    /// The session: its id, or `last`
    #[arg(long, value_name = "ID")]
    session: String,

    /// Erase only what this event refers to (its sequence) [default: the whole session]
    #[arg(long, value_name = "N", conflicts_with = "digest")]
    event: Option<u64>,

    /// Erase only this content (64 hex digits), in every session
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,

    /// The reason; it is recorded as a content, which `clawk trace redact` erases in its turn
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Longest reason, in bytes.
const MAX_REASON_BYTES: usize = 1000;

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if args.reason.trim().is_empty() || args.reason.len() > MAX_REASON_BYTES {
        bail!("`--reason` takes 1 to {MAX_REASON_BYTES} bytes");
    }
    let dir = args.which.find_dir()?;
    let SessionSelection::One(session) =
        TraceSource::from_state(&dir)?.select_sessions(Some(&args.session))?
    else {
        bail!("say which session");
    };
    let what = parse_selection(args, session)?;
    let by = format!("local user {}", rustix::process::getuid().as_raw());
    let erased = compose::build_runtime()?.block_on(async {
        let state = match StateDir::open(&dir, Options::default()) {
            Err(error @ StateError::Locked { .. }) => {
                return Err(error).context("content is erased while no agent writes");
            }
            other => other?,
        };
        let erased = state
            .erase(what, &args.reason, &by, &SystemClock::default())
            .await?;
        if erased.contents > 0 {
            // Rebuilt pages may hold old copies, so the whole file is rewritten.
            state.rewrite().await?;
        }
        if state.is_signed()? {
            state
                .seal(
                    &state.signer()?,
                    clawk_kernel::time::Clock::now(&SystemClock::default()),
                )
                .await?;
        }
        state.close();
        Ok::<_, anyhow::Error>(erased)
    })?;
    match args.format {
        Format::Json => out::print_json(&json!({
            "session": session, "erased": erased.contents, "kept": erased.kept,
            "in_force": erased.in_force, "reason": args.reason,
        }))?,
        Format::Human => {
            out::print_line(format!(
                "{} contents of session {session} are erased",
                erased.contents
            ))?;
            if erased.kept > 0 {
                out::print_line(format!(
                    "{} stay: other sessions refer to them, too; `--digest` erases one everywhere",
                    erased.kept
                ))?;
            }
            if erased.in_force > 0 {
                out::print_line(format!(
                    "{} stay: an Atlas that came over the API governs by them; remove it first (`DELETE /v1/atlases/ID`)",
                    erased.in_force
                ))?;
            }
        }
    }
    Ok(if erased.contents == 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn parse_selection(args: &Args, session: SessionId) -> Result<ErasureSelection> {
    Ok(match (args.event, &args.digest) {
        (Some(sequence), _) => ErasureSelection::Event(session, sequence),
        (None, Some(text)) => {
            let digest = Digest::from_hex(text)
                .with_context(|| format!("`--digest` takes 64 hex digits, not `{text}`"))?;
            ErasureSelection::Digest(session, digest)
        }
        (None, None) => ErasureSelection::Session(session),
    })
}
