//! Makes replay tapes from a record: a session's events with their contents, and the description of its agent.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path};
use std::sync::Arc;

use crate::state::kept::StateReader;
use anyhow::{Context, Result, bail};
use clawk_carp::{Atlas, Options};
use clawk_events::payload::{AgentDescribed, AtlasLoaded, SessionStarted, ToolDescribed};
use clawk_kernel::carp::AtlasRef;
use clawk_kernel::kind;
use clawk_kernel::ports::{EventContent, JournalScan, RecordedEvent};
use clawk_kernel::replay::{AgentFacts, ReplayTape, ToolFacts, atlas_of};
use clawk_kernel::time::Timestamp;
use clawk_proto::trace::TraceEvent;
use clawk_proto::{Digest, SessionId};
use serde_json::Value;
use tempfile::TempDir;

use crate::cmd::trace::source::{SessionSelection, TraceSource};

/// Event types that show that a session can be replayed.
const INPUTS: [&str; 2] = [kind::MESSAGE_ACCEPTED, kind::ACTION_REQUESTED];

/// The same for a session of the CRA API.
const ASKED: [&str; 2] = [kind::CARP_REQUEST, kind::ACTION_REQUESTED];

/// Sessions that can be replayed, in order of appearance.
#[derive(Debug, Default)]
pub(super) struct ReplayableSessions {
    /// Sessions of an agent with a message or a call.
    pub(super) played: Vec<SessionId>,
    /// Sessions of the CRA API with a resolution or an execution and without an agent.
    pub(super) served: Vec<SessionId>,
}

pub(super) fn replayable_sessions(
    source: &TraceSource,
    pick: SessionSelection,
) -> Result<ReplayableSessions> {
    let mut found = ReplayableSessions::default();
    let mut own = HashSet::new();
    source.for_each_event(pick, |event| {
        let session = event.session_id;
        if event.sequence == 0 && event.payload.contains_key("door") {
            own.insert(session);
        }
        let (list, inputs) = if own.contains(&session) {
            (&mut found.played, &INPUTS)
        } else {
            (&mut found.served, &ASKED)
        };
        if is_servers(&event) {
            return Ok(());
        }
        if inputs.contains(&event.event_type.as_str()) && !list.contains(&session) {
            list.push(session);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns whether an MCP server asked a model in this session. The answer is part of the served call's result and is replayed with
/// it.
fn is_servers(event: &TraceEvent) -> bool {
    event.event_type == kind::ACTION_REQUESTED
        && event.payload.get("action_id").and_then(Value::as_str) == Some(clawk_kernel::SAMPLING)
}

/// Returns the options of the Atlases in the last run that had any.
pub(super) fn recorded_options(reader: &StateReader) -> Result<Option<Options>> {
    let scan = JournalScan {
        kinds: &[kind::AGENT_DESCRIBED],
        limit: usize::MAX,
        ..JournalScan::default()
    };
    for event in reader.recorded_events(&scan)?.iter().rev() {
        let Some(bytes) = reader.content(event.read_as::<AgentDescribed>()?.agent_hash)? else {
            continue;
        };
        // silent-ok: an earlier version recorded no Atlases
        let facts = serde_json::from_slice::<AgentFacts>(&bytes).ok();
        if let Some(carp) = facts.and_then(|facts| facts.carp) {
            return Ok(Some(Options {
                strict: carp.strict,
                ttl_seconds: carp.ttl_seconds,
            }));
        }
    }
    Ok(None)
}

/// Makes the tape of a session's replay. `atlases` replace the recorded ones; if empty, the recorded ones are used.
pub(in crate::cmd) fn build_tape(
    source: &TraceSource,
    reader: &StateReader,
    session: SessionId,
    atlases: &[Arc<Atlas>],
) -> Result<ReplayTape> {
    let mut events = Vec::new();
    source.for_each_event(SessionSelection::One(session), |event| {
        if is_servers(&event) {
            bail!(
                "session {session} is a question of an MCP server; replay the session whose call it served"
            );
        }
        events.push(to_recorded(&event, reader)?);
        Ok(())
    })?;
    let first = events.first().context("there is no such session")?;
    let started: SessionStarted = first.read_as()?;
    if started.fork.is_some() {
        bail!("session {session} is a fork; replay its source, which it goes on from");
    }
    let earlier = "it was recorded by an earlier version, which kept too little for a replay";
    let agent = started.agent_hash.context(earlier)?;
    let run = SessionId(started.run.context(earlier)?);
    let bytes = reader
        .content(agent)?
        .context("the recorded agent (`ckp.agent.described`) is erased or not in this state directory")?;
    let facts: AgentFacts =
        serde_json::from_slice(&bytes).context("the recorded agent can't be read by this version")?;
    let last = events.last().map_or(first.at, |event| event.at);
    let (began, first) = (first.at, first.session);
    let resumed = events.iter().any(|event| event.kind == kind::MESSAGE_RESUMED);
    let tools = recorded_tools(reader, run, resumed.then_some((began, last)))?;
    let mut tape = ReplayTape::new(session, events, facts, tools)?;
    tape.team = swarm_tools(reader)?;
    tape.past = earlier_events(reader, first, began)?;
    if tape.facts.carp.is_some() {
        tape.past.extend(concurrent_events(reader, began, last)?);
    }
    if atlases.is_empty() {
        let refs = tape.facts.carp.as_ref().map(|carp| carp.atlases.as_slice());
        tape.atlases = recorded_atlases(reader, refs.unwrap_or_default())?;
    } else {
        tape.atlases = atlases.to_vec();
        let known = |event: &RecordedEvent| ReplayTape::CHANGES.contains(&event.kind.as_str());
        tape.past.retain(|event| !known(event));
    }
    Ok(tape)
}

/// Returns the Atlases of the agent's configuration, from the record.
pub(super) fn recorded_atlases(reader: &StateReader, refs: &[AtlasRef]) -> Result<Vec<Arc<Atlas>>> {
    let refs = refs.iter();
    refs.map(|known| {
        let bytes = reader.content(known.upload_hash)?.with_context(|| {
            format!(
                "the Atlas `{} {}` that governed then is erased or not in this state directory; give it with `--atlas PATH`",
                known.atlas_id, known.version
            )
        })?;
        if clawk_trace::chain::digest_of(&bytes) != known.upload_hash {
            bail!("the content of the Atlas `{}` is not what was recorded", known.atlas_id);
        }
        let atlas = atlas_of(&bytes).with_context(|| format!("the recorded Atlas `{}`", known.atlas_id))?;
        Ok(Arc::new(atlas))
    })
    .collect()
}

/// Returns other sessions' use of limits, and Atlases loaded or removed over the API, until the session's end.
fn concurrent_events(reader: &StateReader, began: Timestamp, last: Timestamp) -> Result<Vec<RecordedEvent>> {
    let scan = JournalScan {
        kinds: &ReplayTape::BESIDE,
        limit: usize::MAX,
        ..JournalScan::default()
    };
    let mut found = reader.recorded_events(&scan)?;
    found.retain(|event| event.at <= last);
    for event in &mut found {
        if event.kind == kind::ATLAS_LOADED {
            let digest = event.read_as::<AtlasLoaded>()?.upload_hash;
            event.content = reader
                .content(digest)?
                .map(|bytes| EventContent { digest, bytes });
            if event.content.is_none() && event.at >= began {
                bail!(
                    "an Atlas that came while the session lasted is erased; give all of them with `--atlas PATH`"
                );
            }
        }
    }
    Ok(found)
}

/// Returns earlier standing grants, and the spending of the session's day.
fn earlier_events(reader: &StateReader, session: SessionId, began: Timestamp) -> Result<Vec<RecordedEvent>> {
    let scan = JournalScan {
        kinds: &ReplayTape::BEFORE,
        limit: usize::MAX,
        ..JournalScan::default()
    };
    let mut past = reader.recorded_events(&scan)?;
    past.retain(|event| {
        let spent = event.kind.starts_with("ckp.provider.");
        event.session != session && event.at < began && (!spent || event.at >= began.day_start())
    });
    Ok(past)
}

/// Returns the tools as the session's run described them. Tools that it did not describe come from a run that continued the session
/// after a crash, between the two times.
fn recorded_tools(
    reader: &StateReader,
    run: SessionId,
    resumed: Option<(Timestamp, Timestamp)>,
) -> Result<BTreeMap<String, ToolFacts>> {
    let scan = |session| JournalScan {
        session,
        kinds: &[kind::TOOL_DESCRIBED],
        limit: usize::MAX,
        with_content: true,
        ..JournalScan::default()
    };
    let mut described = reader.recorded_events(&scan(Some(run)))?;
    if let Some((began, last)) = resumed {
        let all = reader.recorded_events(&scan(None))?.into_iter();
        described.extend(all.filter(|event| event.session != run && event.at >= began && event.at <= last));
    }
    let mut tools = BTreeMap::new();
    for event in described {
        let name = event.read_as::<ToolDescribed>()?.action_id;
        if let Some(content) = &event.content {
            let facts = serde_json::from_slice(&content.bytes)?;
            tools.entry(name).or_insert(facts);
        }
    }
    Ok(tools)
}

/// Returns the swarm's tools, with the start of the first run that described each.
fn swarm_tools(reader: &StateReader) -> Result<BTreeMap<String, Timestamp>> {
    let scan = |session, kinds| JournalScan {
        session,
        kinds,
        limit: usize::MAX,
        ..JournalScan::default()
    };
    let mut team = BTreeMap::new();
    for event in reader.recorded_events(&scan(None, &[kind::TOOL_DESCRIBED]))? {
        let name = event.read_as::<ToolDescribed>()?.action_id;
        if !ReplayTape::TEAM.contains(&name.as_str()) || team.contains_key(&name) {
            continue;
        }
        let run = reader.recorded_events(&JournalScan {
            limit: 1,
            ..scan(Some(event.session), &[])
        })?;
        let since = run.first().map_or(event.at, |first| first.at);
        team.insert(name, since);
    }
    Ok(team)
}

/// As the journal keeps it.
fn to_recorded(event: &TraceEvent, reader: &StateReader) -> Result<RecordedEvent> {
    let member = match event.event_type.as_str() {
        kind::MESSAGE_ACCEPTED => "text_hash",
        kind::ACTION_REQUESTED => "parameters_hash",
        kind::PROVIDER_COMPLETED => "completion_hash",
        kind::MEMORY_RECALLED => "recalled_hash",
        kind::CONTEXT_READ => "text_hash",
        kind::MESSAGE_ATTACHED => "content_hash",
        kind::MESSAGE_FRAMED => "frame_hash",
        kind::MESSAGE_TOOLS => "tools_hash",
        kind::CLIENT_CALLED => "call_hash",
        kind::ACTION_EXECUTED | kind::ACTION_FAILED | kind::ACTION_DENIED => "result_hash",
        // The digest's field in every event with free text.
        _ => "words_hash",
    };
    let digest = event
        .payload
        .get(member)
        .and_then(Value::as_str)
        .and_then(Digest::from_hex);
    let content = match digest {
        None => None,
        Some(digest) => reader
            .content(digest)?
            .map(|bytes| EventContent { digest, bytes }),
    };
    if let Some(content) = &content
        && clawk_trace::chain::digest_of(&content.bytes) != content.digest
    {
        bail!("the content of event {} is not what was recorded", event.sequence);
    }
    Ok(RecordedEvent {
        row: event.sequence + 1,
        session: event.session_id,
        sequence: event.sequence,
        at: Timestamp::parse(&event.timestamp)?,
        kind: event.event_type.clone(),
        payload: serde_json::to_string(&event.payload)?,
        content,
    })
}

/// Writes the Identity's recorded context files into a new folder.
pub(in crate::cmd) fn context_files(tape: &ReplayTape) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    for (name, text) in &tape.facts.context_files {
        let relative = Path::new(name);
        // The kernel reads no other files.
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
