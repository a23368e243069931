//! `clawk dead-letters`: messages whose turn could not be finished, and swarm tasks that no member could complete. Each can be sent
//! again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::state::kept::{Filter, StateReader, StoredEvent, read_only};
use anyhow::{Context, Result, bail};
use clawk_events::payload::SwarmProgress;
use clawk_events::read_members;
use clawk_kernel::{EntryPoint, fact_of, kind};
use clawk_manifest::model::Role;
use clawk_proto::{MessageId, SessionId};
use clawk_swarm::SwarmFact;
use serde::Serialize;
use serde_json::Value;

use super::run::{self, ApproveMode};
use super::swarm;
use super::trace::source::{expand_event, with_words};
use crate::config::AllowOutsideArgs;
use crate::out::{self, Format, TerminalStyle, clip_line};
use crate::state;

/// Flags of `clawk dead-letters`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: DeadLettersCommand,
}

const EXAMPLES: &str = "\
Examples:
  clawk dead-letters list --agent hello
  clawk dead-letters replay 0195f1c2-6d3e-7aaa-8bbb-0123456789ab claw.yaml";

#[derive(Debug, clap::Subcommand)]
enum DeadLettersCommand {
    /// List them, the oldest first
    List {
        #[command(flatten)]
        which: state::StateSelector,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Say one again in its session, with its sender's rights; the old one stays listed
    Replay {
        /// The message's id, as `list` prints it
        #[arg(value_name = "ID")]
        id: MessageId,

        /// The agent's manifest
        #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
        manifest: PathBuf,

        #[command(flatten)]
        which: state::StateSelector,

        /// How clawk answers questions whether a call may run
        #[arg(long, value_enum, default_value_t = ApproveMode::Ask)]
        approve: ApproveMode,

        #[command(flatten)]
        outside: AllowOutsideArgs,
    },
}

/// An entry in the dead-letter box.
#[derive(Debug, Serialize)]
struct DeadLetterEntry {
    /// `message` or `task`.
    kind: &'static str,
    message: MessageId,
    /// The task, if the entry is one.
    #[serde(flatten)]
    task: Option<DeadLetterTask>,
    session: SessionId,
    at: String,
    reason: String,
    /// The text; `None` if its content was erased.
    text: Option<String>,
    /// The record of its arrival: entry point, sender, role.
    #[serde(skip)]
    accepted: Option<String>,
}

/// The member and the sender of a task.
#[derive(Debug, Serialize)]
struct DeadLetterTask {
    task_id: String,
    swarm: String,
    member: String,
    attempts: u64,
    #[serde(skip)]
    input: Option<Value>,
    /// Role of the person who started the run; the lowest role if the record has none.
    #[serde(skip)]
    role: Role,
}

/// Lists the entries, or sends one again.
pub(crate) fn run(args: Args, config: Option<&Path>) -> Result<ExitCode> {
    match args.what {
        DeadLettersCommand::List { which, format } => {
            print_letters(&read_letters(&read_only(which.find_dir()?)?)?, format)
        }
        DeadLettersCommand::Replay {
            id,
            manifest,
            which,
            approve,
            outside,
        } => {
            let state = which.find_dir()?;
            let letters = read_letters(&StateReader::open(&state)?)?;
            let Some(letter) = letters.into_iter().find(|letter| letter.message == id) else {
                bail!(
                    "no dead letter {id} in `{}`; `clawk dead-letters list` shows them",
                    state.display()
                );
            };
            let text = letter
                .text
                .context("the message's content was erased; it can't be said again")?;
            // The same member gets a new task. The old one has ended and was reported as failed.
            if let Some(of) = letter.task {
                let args = swarm::SwarmRunArgs {
                    manifest,
                    text,
                    input: of.input,
                    to: Some(of.member).filter(|member| !member.is_empty()),
                    task: None,
                    state: Some(state),
                    format: Format::Human,
                    trust: false,
                    outside,
                };
                return swarm::give_as(&args, config, replay_entry_point(of.role));
            }
            let args = run::Args {
                manifest,
                message: Some(text),
                approve,
                state: Some(state),
                session: Some(letter.session.to_string()),
                outside,
                trust: false,
                dry: Default::default(),
            };
            let accepted = letter
                .accepted
                .context("the record of the message's arrival is missing; whose it is can't be said")?;
            run::run_again(&args, config, &accepted)
        }
    }
}

/// Returns the entry point for a repeated task. It never gives more rights than the original sender had.
fn replay_entry_point(role: Role) -> EntryPoint {
    match role {
        Role::Admin => EntryPoint::Cli,
        Role::User | Role::Viewer => EntryPoint::Rpc {
            client: "a dead letter".to_owned(),
            role,
        },
    }
}

fn print_letters(letters: &[DeadLetterEntry], format: Format) -> Result<ExitCode> {
    if format == Format::Json {
        out::print_json(&serde_json::json!({ "dead_letters": letters }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if letters.is_empty() {
        out::print_line("the dead-letter box is empty")?;
    }
    let paint = TerminalStyle::for_stdout();
    for letter in letters {
        let text = letter.text.as_deref().unwrap_or("(erased)");
        out::print_line(format!(
            "{}  {}",
            paint.bold(&letter.message.to_string()),
            clip_line(text, 80)
        ))?;
        out::print_line(format!("  why: {}", out::one_line(&letter.reason)))?;
        out::print_line(paint.dim(&format!("  {} in session {}", letter.at, letter.session)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read_letters(reader: &StateReader) -> Result<Vec<DeadLetterEntry>> {
    let mut letters = Vec::new();
    for_each_event(reader, None, |stored| {
        if stored.event.event_type == kind::MESSAGE_DEAD {
            let event = with_words(reader, expand_event(&stored.event)?);
            let text = |name: &str| {
                event
                    .payload
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            letters.push(DeadLetterEntry {
                kind: "message",
                task: None,
                message: text("message_id")
                    .parse()
                    .context("an event without a message id")?,
                session: stored.event.session_id,
                at: stored.event.timestamp.clone(),
                reason: text("reason").to_owned(),
                text: None,
                accepted: None,
            });
        }
        Ok(())
    })?;
    for letter in letters.iter_mut().filter(|letter| letter.task.is_none()) {
        let (mut digest, mut arrival) = (None, None);
        for_each_event(reader, Some(letter.session), |stored| {
            let accepted = stored.event.event_type == kind::MESSAGE_ACCEPTED;
            if accepted
                && parse_payload(stored)?.get("message_id").and_then(Value::as_str)
                    == Some(letter.message.to_string().as_str())
            {
                digest = stored.content_digest;
                arrival = Some(stored.event.payload.get().to_owned());
            }
            Ok(())
        })?;
        letter.text = state::text_of(reader, digest)?;
        letter.accepted = arrival;
    }
    letters.extend(read_exhausted_tasks(reader)?);
    Ok(letters)
}

/// Returns the tasks that used up all their attempts.
fn read_exhausted_tasks(reader: &StateReader) -> Result<Vec<DeadLetterEntry>> {
    let (mut briefs, mut letters) = (BTreeMap::new(), Vec::new());
    swarm::for_each_event(reader, |event| match fact_of(event) {
        Some(SwarmFact::Delegated { new, .. }) => {
            briefs.insert(new.task, new.brief);
        }
        Some(SwarmFact::DeadLettered { task, reason }) => {
            let brief = briefs.get(&task).cloned();
            letters.push(event.read_as::<SwarmProgress>().map(|said| DeadLetterEntry {
                kind: "task",
                message: task.as_str().parse().unwrap_or(MessageId(uuid::Uuid::nil())), // silent-ok: a task's id is a UUID
                session: event.session,
                at: event.at.to_string(),
                reason,
                text: brief.as_ref().map(|brief| brief.description.clone()),
                accepted: None,
                task: Some(DeadLetterTask {
                    task_id: task.to_string(),
                    swarm: said.swarm,
                    member: said.member.unwrap_or_default(),
                    attempts: said.attempt.unwrap_or_default().into(),
                    input: brief.and_then(|brief| brief.input),
                    role: said.role.as_deref().and_then(Role::parse).unwrap_or(Role::Viewer),
                }),
            }));
        }
        _ => {}
    })?;
    Ok(letters.into_iter().collect::<Result<_, _>>()?)
}

fn parse_payload(stored: &StoredEvent) -> Result<Value> {
    let event = &stored.event;
    Ok(Value::Object(read_members(
        &event.event_type,
        event.payload.get(),
    )?))
}

/// Reads every event, page by page.
fn for_each_event(
    reader: &StateReader,
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
