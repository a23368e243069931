//! `clawk trace replay`: runs a recorded session again without effects, or decides it again with other rules.

mod carp;
mod sets;
pub(in crate::cmd) mod tapes;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use crate::state::kept::{StateReader, read_only};
use anyhow::{Context, Result, bail};
use clawk_carp::Atlas;
use clawk_kernel::replay::{ReplayResult, replay_tape};
use clawk_proto::SessionId;
use serde_json::{Value, json};

use super::source::{SessionSelection, TraceSource};
use crate::cmd::policy::what_if;
use crate::config::AllowOutsideArgs;
use crate::out::{self, Format, TerminalStyle};
use crate::state;

/// Flags of `clawk trace replay`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A `.trace.jsonl` file; contents are looked for in the state directory that --state or --agent names
    file: Option<PathBuf>,

    #[command(flatten)]
    which: state::StateSelector,

    /// Only this session: its id, or `last` [default: every session with a message or a call]
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    /// Replay this many times; every run must give the same result
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    times: u32,

    /// Use this Atlas instead of the recorded ones, for turns and for CARP requests; repeatable
    #[arg(long, value_name = "PATH", conflicts_with_all = ["with_atlas", "with_policy", "with_manifest"])]
    atlas: Vec<PathBuf>,

    /// Show what this Atlas would have resolved differently; repeatable
    #[arg(long, value_name = "PATH", conflicts_with_all = ["with_policy", "with_manifest"])]
    with_atlas: Vec<PathBuf>,

    /// With --atlas or --with-atlas: deny actions that no policy mentions [default: as recorded]
    #[arg(long, conflicts_with_all = ["with_policy", "with_manifest"])]
    strict: bool,

    /// Show what this policy file would have decided differently; repeatable
    #[arg(long, value_name = "FILE")]
    with_policy: Vec<PathBuf>,

    /// Show what this manifest would have decided differently: its tools, autonomy and policies; --with-policy replaces the policies
    #[arg(long, value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
    with_manifest: Option<PathBuf>,

    #[command(flatten)]
    outside: AllowOutsideArgs,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(super) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    if !args.with_policy.is_empty() || args.with_manifest.is_some() {
        let asked = what_if::WhatIfQuery {
            policies: &args.with_policy,
            manifest: args.with_manifest.as_deref(),
            trace: args.file.as_deref(),
            session: args.session.as_deref(),
            autonomy: None,
            which: &args.which,
            outside: args.outside,
        };
        return what_if::run(&asked, config, args.format);
    }
    let source = match &args.file {
        Some(file) => TraceSource::from_file(file.clone()),
        None => TraceSource::from_state(&args.which.find_dir()?)?,
    };
    let pick = source.select_sessions(args.session.as_deref())?;
    require_valid_chain(&source, pick)?;
    let given = if args.with_atlas.is_empty() {
        &args.atlas
    } else {
        &args.with_atlas
    };
    let atlases = carp::load_atlases(given)?;
    let contents = open_contents(args, &source)?;
    let mut resolved = None;
    if !atlases.is_empty() {
        let recorded = contents
            .as_ref()
            .map(tapes::recorded_options)
            .transpose()?
            .flatten();
        let mut options = recorded.unwrap_or_default();
        options.strict |= args.strict;
        let set = carp::compile_set(&atlases, options)?;
        if !args.with_atlas.is_empty() {
            return carp::what_if(&source, pick, &set, args.format);
        }
        resolved = Some(repeat_replay(args.times, || {
            carp::replay_judgements(&source, pick, &set)
        })?);
    }
    let found = tapes::replayable_sessions(&source, pick)?;
    if found.played.is_empty() && found.served.is_empty() && resolved.is_none() {
        bail!("the record has no message, call or resolution to replay");
    }
    if !found.served.is_empty() && resolved.is_none() {
        let Some(reader) = &contents else {
            bail!(
                "a trace file holds no Atlases: say --state DIR or --agent NAME, where they lie, or --atlas PATH"
            );
        };
        let again = || carp::as_recorded(&source, reader, &found.served);
        resolved = Some(repeat_replay(args.times, again)?);
    }
    let mut replayed = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    for session in &found.played {
        let Some(reader) = &contents else {
            bail!("a trace file holds no contents: say --state DIR or --agent NAME, where they lie");
        };
        replayed.push(of_session(
            &runtime, &source, reader, *session, &atlases, args.times,
        )?);
    }
    print_results(&replayed, resolved.as_ref(), args)
}

/// Returns the state with the contents, if there is one.
fn open_contents(args: &Args, source: &TraceSource) -> Result<Option<StateReader>> {
    Ok(match source {
        TraceSource::State(reader) => Some(read_only(reader.state())?),
        TraceSource::File(_) if args.which.state.is_some() || args.which.agent.is_some() => {
            Some(read_only(args.which.find_dir()?)?)
        }
        TraceSource::File(_) => None,
    })
}

/// Repeats the replay and returns the result of each repetition.
fn repeat_replay(
    times: u32,
    again: impl Fn() -> Result<carp::CarpReplayReport>,
) -> Result<carp::CarpReplayReport> {
    let first = again()?;
    for n in 2..=times {
        if again()? != first {
            bail!(
                "replay {n} of the CARP resolutions came out otherwise than the ones before; this is a bug of clawk"
            );
        }
    }
    Ok(first)
}

/// Verifies the record. A record that is not valid is not replayed.
pub(in crate::cmd) fn require_valid_chain(source: &TraceSource, pick: SessionSelection) -> Result<()> {
    let report = match source {
        TraceSource::State(reader) => reader.verify(pick.session())?,
        TraceSource::File(path) => clawk_trace::verify(super::source::open_reader(path)?)?,
    };
    if let Some(fault) = &report.fault {
        bail!(
            "the record does not hold ({}: {}); `clawk trace verify` says where",
            fault.kind.code(),
            out::one_line(&fault.detail)
        );
    }
    Ok(())
}

fn of_session(
    runtime: &tokio::runtime::Runtime,
    source: &TraceSource,
    reader: &StateReader,
    session: SessionId,
    atlases: &[Arc<Atlas>],
    times: u32,
) -> Result<ReplayResult> {
    let mut first: Option<ReplayResult> = None;
    for n in 1..=times {
        let tape = tapes::build_tape(source, reader, session, atlases)?;
        let folder = tapes::context_files(&tape)?;
        let replayed = runtime
            .block_on(replay_tape(tape, folder.path()))
            .with_context(|| format!("session {session}"))?;
        match &first {
            None => first = Some(replayed),
            Some(before) if *before == replayed => {}
            Some(_) => bail!(
                "session {session}: replay {n} came out otherwise than the ones before; this is a bug of clawk"
            ),
        }
    }
    first.context("nothing was replayed")
}

fn print_results(
    replayed: &[ReplayResult],
    resolved: Option<&carp::CarpReplayReport>,
    args: &Args,
) -> Result<ExitCode> {
    let diverged = replayed.iter().filter(|one| one.divergence.is_some()).count();
    let differences = resolved.map_or(0, |again| again.differences.len());
    match args.format {
        Format::Json => {
            let mut value = json!({
                "deterministic": diverged + differences == 0, "times": args.times, "sessions": replayed,
            });
            if let (Value::Object(map), Some(again)) = (&mut value, resolved) {
                map.insert("resolutions".to_owned(), json!(again));
            }
            out::print_json(&value)?;
        }
        Format::Human => {
            let paint = TerminalStyle::for_stdout();
            for one in replayed {
                match &one.divergence {
                    None => out::print_line(format!(
                        "{}  session {}: {} events from {} inputs came out the same{}",
                        paint.green("same"),
                        one.session_id,
                        one.compared,
                        one.inputs,
                        if args.times > 1 {
                            format!(", {} times", args.times)
                        } else {
                            String::new()
                        }
                    ))?,
                    Some(divergence) => out::print_line(format!(
                        "{}  session {}, event {} (`{}`): {}",
                        paint.red("DIVERGES"),
                        one.session_id,
                        divergence.sequence,
                        out::one_line(&divergence.event_type),
                        out::one_line(&divergence.detail)
                    ))?,
                }
            }
            if let Some(again) = resolved {
                again.print_human("as recorded", "DIVERGES")?;
            }
        }
    }
    Ok(if diverged + differences == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
