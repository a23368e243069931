//! Tapes from a record: a session's events with their contents, and what was told of its agent.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use anyhow::{Context, Result, bail};
use clawk_kernel::kind;
use clawk_kernel::ports::{Content, Recorded, Scan};
use clawk_kernel::replay::{AgentFacts, Tape, ToolFacts};
use clawk_kernel::time::Timestamp;
use clawk_proto::trace::TraceEvent;
use clawk_proto::{Digest, SessionId};
use clawk_store::Reader;
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::cmd::trace::source::{Pick, Source};

/// What shows that a session has something to replay.
const INPUTS: [&str; 2] = [kind::MESSAGE_ACCEPTED, kind::ACTION_REQUESTED];

/// The sessions in which somebody spoke or called, in order of appearance. A named one always counts.
pub(super) fn sessions(source: &Source, pick: Pick) -> Result<Vec<SessionId>> {
    let mut found = Vec::new();
    source.each(pick, |event| {
        if INPUTS.contains(&event.event_type.as_str()) && !found.contains(&event.session_id) {
            found.push(event.session_id);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Everything that the session's replay takes.
pub(super) fn tape(source: &Source, reader: &Reader, session: SessionId) -> Result<Tape> {
    let mut events = Vec::new();
    source.each(Pick::One(session), |event| {
        events.push(recorded(&event, reader)?);
        Ok(())
    })?;
    let first = events.first().context("there is no such session")?;
    let started: Map<String, Value> = serde_json::from_str(&first.payload)?;
    if started.contains_key("fork") {
        bail!("session {session} is a fork; replay its source, which it goes on from");
    }
    let text = |key: &str| started.get(key).and_then(Value::as_str);
    let earlier = "it was recorded by an earlier version, which kept too little for a replay";
    let agent = text("agent_hash").and_then(Digest::from_hex).context(earlier)?;
    let run: SessionId = text("run").context(earlier)?.parse()?;
    let bytes = reader
        .content(agent)?
        .context("the recorded agent (`ckp.agent.described`) is erased or not in this state directory")?;
    let facts: AgentFacts =
        serde_json::from_slice(&bytes).context("the recorded agent can't be read by this version")?;
    let (began, first) = (first.at, first.session);
    let mut tape = Tape::new(session, events, facts, tools(reader, run)?)?;
    tape.past = past(reader, first, began)?;
    Ok(tape)
}

/// Standing grants of before, and what was spent on that day.
fn past(reader: &Reader, session: SessionId, began: Timestamp) -> Result<Vec<Recorded>> {
    let scan = Scan {
        kinds: &Tape::PAST,
        limit: usize::MAX,
        ..Scan::default()
    };
    let mut past = reader.recorded_events(&scan)?;
    past.retain(|event| {
        let spent = event.kind.starts_with("ckp.provider.");
        event.session != session && event.at < began && (!spent || event.at >= began.day_start())
    });
    Ok(past)
}

fn tools(reader: &Reader, run: SessionId) -> Result<BTreeMap<String, ToolFacts>> {
    let scan = Scan {
        session: Some(run),
        kinds: &[kind::TOOL_DESCRIBED],
        limit: usize::MAX,
        with_content: true,
        ..Scan::default()
    };
    let mut tools = BTreeMap::new();
    for event in reader.recorded_events(&scan)? {
        let payload: Map<String, Value> = serde_json::from_str(&event.payload)?;
        let name = payload
            .get("action_id")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if let Some(content) = &event.content {
            tools.insert(name.to_owned(), serde_json::from_slice(&content.bytes)?);
        }
    }
    Ok(tools)
}

/// As the journal keeps it.
fn recorded(event: &TraceEvent, reader: &Reader) -> Result<Recorded> {
    let member = match event.event_type.as_str() {
        kind::MESSAGE_ACCEPTED => Some("text_hash"),
        kind::ACTION_REQUESTED => Some("parameters_hash"),
        kind::PROVIDER_COMPLETED => Some("completion_hash"),
        kind::ACTION_EXECUTED | kind::ACTION_FAILED | kind::ACTION_DENIED => Some("result_hash"),
        _ => None,
    };
    let digest = member
        .and_then(|member| event.payload.get(member))
        .and_then(Value::as_str)
        .and_then(Digest::from_hex);
    let content = match digest {
        None => None,
        Some(digest) => reader.content(digest)?.map(|bytes| Content { digest, bytes }),
    };
    if let Some(content) = &content
        && clawk_trace::chain::digest_of(&content.bytes) != content.digest
    {
        bail!("the content of event {} is not what was recorded", event.sequence);
    }
    Ok(Recorded {
        row: event.sequence + 1,
        session: event.session_id,
        sequence: event.sequence,
        at: Timestamp::parse(&event.timestamp)?,
        kind: event.event_type.clone(),
        payload: serde_json::to_string(&event.payload)?,
        content,
    })
}

/// The Identity's context files as they were, in a folder of their own.
pub(super) fn context_files(tape: &Tape) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    for (name, text) in &tape.facts.context_files {
        let relative = Path::new(name);
        // The kernel reads no others.
        if relative
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
        {
            let file = folder.path().join(relative);
            if let Some(parent) = file.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(file, text)?;
        }
    }
    Ok(folder)
}
