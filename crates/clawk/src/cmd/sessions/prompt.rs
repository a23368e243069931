//! `clawk sessions prompt`: shows what the model saw, with the cost of each part.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_events::payload::{MemoryRecalled, MessageAccepted, ProviderRequested};
use clawk_kernel::kind;
use clawk_kernel::ports::{InferRequest, ModelMessage, RecordedEvent};
use clawk_kernel::replay::{Prompt, rebuild_prompts};
use clawk_proto::Digest;
use clawk_trace::chain::digest_of;
use serde_json::{Value, json};

use crate::cmd::trace::{TraceSource, build_tape, context_files};
use crate::out::{self, Format, TerminalStyle, one_line, sanitize_block};
use crate::state;

/// Bytes per token in the estimate.
const TOKEN_BYTES: usize = 4;

/// Flags of `clawk sessions prompt`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session's id, or `last`
    #[arg(value_name = "SESSION")]
    session: String,

    /// Which turn, the first is 1; or several: `FIRST-LAST`. In JSON, several turns are one line each
    #[arg(long, value_name = "N", value_parser = TurnRange::parse)]
    turn: TurnRange,

    /// Which of a turn's questions to the model, the first is 1 [default: the last]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    step: Option<u32>,

    #[command(flatten)]
    which: state::StateSelector,

    /// How to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The range of turns to print.
#[derive(Debug, Clone, Copy)]
struct TurnRange {
    first: u32,
    last: u32,
}

impl TurnRange {
    fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0); // silent-ok: the error below says what is wanted
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(format!(
                "`{text}` is not a turn (example: `3`) or several (example: `3-5`)"
            )),
        }
    }
}

/// A part of the prompt.
struct PromptPart {
    kind: &'static str,
    source: String,
    text: String,
}

/// Rebuilds the prompt and prints it.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let source = TraceSource::from_state(&args.which.find_dir()?)?;
    let TraceSource::State(reader) = &source else {
        bail!("a trace file holds no contents");
    };
    let pick = source.select_sessions(Some(&args.session))?;
    let session = pick.session().context("name one session")?;
    let tape = build_tape(&source, reader, session, &[])?;
    let (turns, searches) = collect_prompts(&tape.events)?;
    let folder = context_files(&tape)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let asked = runtime.block_on(rebuild_prompts(tape, folder.path()))?;
    let record = PromptRecord {
        session: session.to_string(),
        turns,
        searches,
        asked: asked
            .into_iter()
            .map(|prompt| (prompt.request_hash, prompt))
            .collect(),
    };
    for turn in args.turn.first..=args.turn.last {
        record.print_record(turn, args)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A session's record, and the rebuilt requests to its models.
struct PromptRecord {
    session: String,
    turns: TurnPrompts,
    searches: BTreeMap<String, Vec<Value>>,
    asked: HashMap<Digest, Prompt>,
}

impl PromptRecord {
    fn print_record(&self, number: u32, args: &Args) -> Result<()> {
        let at = usize::try_from(number)? - 1;
        let (turn, hashes) = self.turns.get(at).with_context(|| {
            format!(
                "session {} has {} turns in which a model was asked",
                self.session,
                self.turns.len()
            )
        })?;
        let step = args
            .step
            .map_or(hashes.len(), |step| usize::try_from(step).unwrap_or(usize::MAX));
        let hash = hashes
            .get(step.wrapping_sub(1))
            .with_context(|| format!("the model was asked {} times in this turn", hashes.len()))?;
        let Some(Prompt { request, .. }) = self.asked.get(hash) else {
            bail!(
                "what the model was sent in turn {number} can't be built again: something that it was made of is erased, or an earlier \
                 version built it otherwise; the record's digest is {hash}"
            );
        };
        let parts = split_prompt(request);
        let none = Vec::new();
        let searches = self.searches.get(turn).unwrap_or(&none);
        let several = args.turn.first != args.turn.last;
        match args.format {
            Format::Json => {
                let document = json_document(number, (&self.session, hash), request, (&parts, searches));
                if several {
                    Ok(out::print_line(document.to_string())?)
                } else {
                    out::print_json(&document)
                }
            }
            Format::Human => {
                if several {
                    out::print_line(TerminalStyle::for_stdout().bold(&format!("turn {number}")))?;
                }
                print_human(&parts, hash)
            }
        }
    }
}

type TurnPrompts = Vec<(String, Vec<Digest>)>;

/// The digests of what the model was asked, by turn in order; and the searches of each. A summary of what left the context, and the
/// steps of a composite tool, are no turns of the conversation.
fn collect_prompts(events: &[RecordedEvent]) -> Result<(TurnPrompts, BTreeMap<String, Vec<Value>>)> {
    let mut turns: TurnPrompts = Vec::new();
    let mut searches = BTreeMap::new();
    let mut said = BTreeSet::new();
    for event in events {
        match event.kind.as_str() {
            kind::MESSAGE_ACCEPTED => {
                said.insert(event.read_as::<MessageAccepted>()?.message_id);
            }
            kind::PROVIDER_REQUESTED => {
                let asked: ProviderRequested = event.read_as()?;
                if !said.contains(&asked.turn) {
                    continue;
                }
                let turn = asked.turn.to_string();
                match turns.last_mut().filter(|(last, _)| *last == turn) {
                    Some((_, hashes)) => hashes.push(asked.request_hash),
                    None => turns.push((turn, vec![asked.request_hash])),
                }
            }
            kind::MEMORY_RECALLED => {
                let recalled: MemoryRecalled = event.read_as()?;
                let found = recalled.searches.iter().map(serde_json::to_value);
                searches.insert(recalled.turn.to_string(), found.collect::<Result<_, _>>()?);
            }
            _ => {}
        }
    }
    Ok((turns, searches))
}

/// Splits the prompt into its parts.
fn split_prompt(request: &InferRequest) -> Vec<PromptPart> {
    let mut parts = Vec::new();
    let mut rest = request.system.as_str();
    let marks = [
        ("<context name=\"", "</context>", "context-file"),
        ("<recalled ", "</recalled>", "recalled"),
    ];
    let mut own = String::new();
    while !rest.is_empty() {
        let next = marks
            .iter()
            .filter_map(|mark| Some((rest.find(mark.0)?, mark)))
            .min_by_key(|(at, _)| *at);
        let Some((at, (open, close, kind))) = next else {
            own.push_str(rest);
            break;
        };
        let (before, from) = rest.split_at_checked(at).unwrap_or((rest, ""));
        own.push_str(before);
        let end = from.find(close).map_or(from.len(), |end| end + close.len());
        let (text, behind) = from.split_at_checked(end).unwrap_or((from, ""));
        let name = text
            .strip_prefix(open)
            .and_then(|rest| rest.split('"').next())
            .unwrap_or_default();
        let source = if *kind == "recalled" { "memory" } else { name };
        parts.push(PromptPart {
            kind,
            source: source.to_owned(),
            text: text.to_owned(),
        });
        rest = behind;
    }
    parts.insert(
        0,
        PromptPart {
            kind: "system",
            source: "identity".to_owned(),
            text: own,
        },
    );
    add_messages(&mut parts, request);
    for tool in &request.tools {
        parts.push(PromptPart {
            kind: "tool",
            source: tool.name.clone(),
            text: serde_json::to_string(tool).unwrap_or_default(), // silent-ok: plain members
        });
    }
    parts
}

fn add_messages(parts: &mut Vec<PromptPart>, request: &InferRequest) {
    let last_user = request
        .messages
        .iter()
        .rposition(|message| matches!(message, ModelMessage::User { .. }));
    for (at, message) in request.messages.iter().enumerate() {
        let (source, text) = match message {
            ModelMessage::User { text, frame, .. } => {
                ("user", clawk_kernel::join_frame(frame, text).into_owned())
            }
            ModelMessage::Assistant { text, calls, .. } if calls.is_empty() => ("assistant", text.clone()),
            ModelMessage::Assistant { .. } => {
                // silent-ok: these members always serialise
                ("assistant", serde_json::to_string(message).unwrap_or_default())
            }
            ModelMessage::ToolResult { text, .. } => ("tool-result", text.clone()),
        };
        let kind = match last_user {
            Some(last) if at == last => "message",
            Some(last) if at > last => "turn",
            _ => "history",
        };
        parts.push(PromptPart {
            kind,
            source: source.to_owned(),
            text,
        });
    }
}

fn json_document(
    turn: u32,
    (session, hash): (&str, &Digest),
    request: &InferRequest,
    (parts, searches): (&[PromptPart], &[Value]),
) -> Value {
    let parts = parts.iter().map(|part| {
        json!({
            "kind": part.kind, "source": part.source, "tokens": part.text.len().div_ceil(TOKEN_BYTES),
            "digest": digest_of(part.text.as_bytes()),
        })
    });
    json!({
        "session": session, "turn": turn, "request_hash": hash, "system": request.system, "messages": request.messages,
        "tools": request.tools, "parts": parts.collect::<Vec<_>>(), "searches": searches,
    })
}

fn print_human(parts: &[PromptPart], hash: &Digest) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    out::print_line(paint.dim(&format!("as sent; the record's digest {hash} holds")))?;
    for part in parts {
        let tokens = part.text.len().div_ceil(TOKEN_BYTES);
        out::print_line(paint.bold(&format!(
            "── {} {} (about {tokens} tokens)",
            part.kind,
            one_line(&part.source)
        )))?;
        out::lines(&sanitize_block(&part.text))?;
    }
    Ok(())
}
