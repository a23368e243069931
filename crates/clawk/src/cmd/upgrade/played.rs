//! Replays the last sessions of a record.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};
use clawk_kernel::kind;
use clawk_kernel::ports::Executor;
use clawk_kernel::replay::{ReplayTape, SessionShadowReport, ShadowAgent, ToolFacts, replay_shadow};
use clawk_manifest::Manifest;
use clawk_manifest::model::Tool;
use clawk_proto::SessionId;
use clawk_tools::builtin;
use serde_json::json;

use super::{NotReplayed, UpgradeReport};
use crate::cmd::trace::replay::{require_valid_chain, tapes};
use crate::cmd::trace::source::{SessionSelection, TraceSource};
use crate::config::{Config, Settings};
use crate::state::kept::{StateReader, read_only};

/// The record, and the sessions that are replayed.
pub(super) struct ReplayedRecord {
    source: TraceSource,
    reader: StateReader,
    sessions: Vec<SessionId>,
}

impl ReplayedRecord {
    /// Opens a record and selects its last sessions.
    ///
    /// # Errors
    /// The record can't be read, is not valid, or has no message or call.
    pub(super) fn open(state: &Path, last: usize) -> Result<Self> {
        let source = TraceSource::from_state(state)?;
        require_valid_chain(&source, SessionSelection::All)?;
        let mut sessions = replayable_sessions(&source)?;
        if sessions.is_empty() {
            bail!(
                "nobody spoke or called in `{}`: there is nothing to compare",
                state.display()
            );
        }
        sessions.drain(..sessions.len().saturating_sub(last));
        Ok(Self {
            source,
            reader: read_only(state)?,
            sessions,
        })
    }

    /// Replays all of them with `manifest` in place of the recorded one. `None`: as recorded, with this program.
    ///
    /// # Errors
    /// The record can't be read. A single session that can't be replayed is listed in the report instead.
    pub(super) async fn replay_all(
        &self,
        manifest: Option<&Manifest>,
        config: &Config,
    ) -> Result<UpgradeReport> {
        let mut found = UpgradeReport::default();
        for session in &self.sessions {
            match self.replay_session(*session, manifest, &config.settings).await {
                Ok(one) => found.add_session(one),
                Err(error) => found.not_replayed.push(NotReplayed {
                    session_id: *session,
                    reason: format!("{error:#}"),
                }),
            }
        }
        Ok(found)
    }

    async fn replay_session(
        &self,
        session: SessionId,
        manifest: Option<&Manifest>,
        settings: &Settings,
    ) -> Result<SessionShadowReport> {
        let tape = tapes::build_tape(&self.source, &self.reader, session, &[])?;
        let Some(manifest) = manifest else {
            let folder = tapes::context_files(&tape)?;
            return Ok(replay_shadow(tape, folder.path(), ShadowAgent::default()).await?);
        };
        let new = shadow_agent(manifest, &tape, settings);
        Ok(replay_shadow(tape, &manifest.dir, new).await?)
    }
}

/// Returns the agent's sessions with a message or a call, in order of appearance. A forked session can't be replayed alone.
fn replayable_sessions(source: &TraceSource) -> Result<Vec<SessionId>> {
    let (mut own, mut found) = (BTreeSet::new(), Vec::new());
    source.for_each_event(SessionSelection::All, |event| {
        let session = event.session_id;
        let payload = &event.payload;
        if event.sequence == 0 && payload.contains_key("door") && !payload.contains_key("fork") {
            own.insert(session);
        }
        let spoke = match event.event_type.as_str() {
            kind::MESSAGE_ACCEPTED => true,
            kind::ACTION_REQUESTED => payload
                .get("action_id")
                .is_none_or(|action| *action != *clawk_kernel::SAMPLING),
            _ => false,
        };
        if spoke && own.contains(&session) && !found.contains(&session) {
            found.push(session);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns the new manifest for a tape, with this program's descriptions of its tools.
fn shadow_agent(manifest: &Manifest, tape: &ReplayTape, settings: &Settings) -> ShadowAgent {
    let mut tools = BTreeMap::new();
    let mut built_in = BTreeSet::new();
    for tool in &manifest.tools {
        let ours = is_built_in(tool, settings);
        if ours {
            built_in.insert(tool.name.clone());
        }
        if let Some(facts) = tool_facts(tool, ours, tape) {
            tools.insert(tool.name.clone(), facts);
        }
    }
    let old = &tape.facts.manifest;
    let same = old.sandboxes().eq(manifest.sandboxes())
        && manifest.tools.iter().all(|tool| {
            let before = old.tools.iter().find(|before| before.name == tool.name);
            before.is_none_or(|before| before.sandbox_ref == tool.sandbox_ref)
        });
    ShadowAgent {
        manifest: Some(Box::new(manifest.clone())),
        tools,
        checks: (!same).then_some((builtin::preflight_builtin as _, built_in)),
    }
}

/// Returns whether this program itself runs the tool.
fn is_built_in(tool: &Tool, settings: &Settings) -> bool {
    let bound = settings.tools.tools.get(&tool.name);
    let elsewhere = bound.is_some_and(|bound| {
        bound.command.is_some() || bound.http.is_some() || bound.wasm.is_some() || bound.a2a.is_some()
    });
    !elsewhere && !tool.composite && tool.mcp_source.is_none()
}

/// Returns the description that replaces the recorded one; `None`: the recorded one is used.
fn tool_facts(tool: &Tool, ours: bool, tape: &ReplayTape) -> Option<ToolFacts> {
    let known = builtin::describe_builtin(&tool.name).filter(|_| ours);
    if let Some(known) = known {
        let category = known
            .category
            .map(|category| ("category".to_owned(), category.to_owned()));
        return Some(ToolFacts {
            annotations: known.trusted_annotations,
            description: known.description,
            input_schema: known.input_schema,
            labels: category.into_iter().collect(),
            from: None,
            executor: known.executor,
            own_category: known.category.map(str::to_owned),
            output_schema: known.output_schema,
        });
    }
    if tape.tools.contains_key(&tool.name) || tool.composite {
        return None;
    }
    Some(ToolFacts {
        annotations: serde_json::Map::new(),
        description: tool.description.clone().unwrap_or_default(),
        input_schema: tool
            .input_schema
            .clone()
            .unwrap_or_else(|| json!({"type": "object"})),
        labels: BTreeMap::new(),
        from: None,
        executor: Executor::Unrecorded,
        own_category: None,
        output_schema: None,
    })
}
