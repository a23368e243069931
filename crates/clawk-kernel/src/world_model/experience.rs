//! What came of plans: the outcome beside the prediction, in the record; and in the store that the world model names, where it learns.
//!
//! An experience holds tools' names and numbers alone, and is read back only in that form: no text of anybody reaches the question
//! through it.

use clawk_events::count_of;
use clawk_events::payload::{MemoryRecalled, MemoryWrite, WorldModelCompared};
use clawk_manifest::model::{Evidence, Skill, Store, WorldModel, WorldModelScope};
use clawk_proto::method::NewEntry;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryInsertion, EntryProvenance};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{ActingSkill, SkillPlanResult, experience_store, skill_world_model};
use crate::author::TextAuthor;
use crate::call::Context;
use crate::door::Origin;
use crate::event::{Draft, Thread, batch_from_drafts, canonical, digest};
use crate::ports::{Batch, MemorySearch, ModelMessage, Scope, StoreQuery};
use crate::recall;
use crate::services::KernelServices;
use crate::skill::{self, RunningSkill};
use crate::turn::Turn;

/// Experiences that a question holds.
const MOST: usize = 20;
/// Calls of one experience.
const MOST_CALLS: usize = 64;
/// Stands for a tool that is none of the skill's.
const OTHER: &str = "other";

/// A call that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperiencedCall {
    is_error: bool,
    tool: String,
}

/// What was foretold, and how far it was off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PredictionOutcome {
    error_permille: u64,
    predicted_calls: Option<u64>,
    predicted_steps: Vec<String>,
    predicted_tokens: Option<u64>,
    risk_permille: Option<u64>,
}

/// One run of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SkillExperience {
    calls: Vec<ExperiencedCall>,
    /// `observations+outcomes`: beside what was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outcome: Option<PredictionOutcome>,
    skill: String,
    tokens: u64,
    world_model: String,
}

/// What the store is asked with.
fn search_text(model: &WorldModel, skill: &str) -> String {
    format!("world_model {} skill {skill}", model.name)
}

/// Earlier runs of the skill. A store that can't be asked is like one that holds nothing.
pub(super) async fn recall_runs(site: ActingSkill<'_>, model: &WorldModel) -> Vec<SkillExperience> {
    let ActingSkill {
        calls, caller, skill, ..
    } = site;
    let (Some(store), Some(backend)) = (experience_store(&calls.manifest, model), &calls.memories.backend)
    else {
        return Vec::new();
    };
    let origin = caller.context.origin.as_ref();
    let question = search_text(model, &skill.name);
    let ask = MemorySearch {
        whose: origin.map_or(ConversationFilter::Of(Vec::new()), |origin| {
            recall::may_recall(calls, &store.name, origin)
        }),
        query: StoreQuery::Text(question.clone()),
        vector: None,
        limit: MOST,
    };
    let found = match backend
        .search_entries(store, &experience_scope(calls, origin, caller.door), ask)
        .await
    {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, store = store.name, "a world model's experience could not be read");
            return Vec::new();
        }
    };
    let session = caller.thread.session.to_string();
    let task = model.scope == WorldModelScope::TaskScoped;
    let known = found
        .hits
        .iter()
        .filter(|hit| !task || hit.mark.session == session);
    let earlier: Vec<SkillExperience> = known
        .filter_map(read)
        .filter(|one| one.world_model == model.name && one.skill == skill.name)
        .filter(|one| one.calls.len() <= MOST_CALLS && one.calls.iter().all(|made| made.tool.len() <= 64))
        .collect();
    // A replay finds here what was found: no text of it is anybody's but the agent's.
    let search = [recall::RecallSearch {
        store: store.name.clone(),
        found,
    }];
    let content = canonical(&search);
    let searches = search.each_ref().map(recall::RecallSearch::recorded);
    let payload = MemoryRecalled {
        left_out: 0,
        query_hash: digest(question.as_bytes()),
        recalled_hash: digest(&content),
        searches: searches.to_vec(),
        tokens: 0,
        turn: calls.clock().new_uuid(),
        untrusted: Vec::new(),
    };
    let draft = calls.scribe.draft_event(&caller.thread, &payload);
    if let Err(error) = calls
        .scribe
        .submit_drafts(vec![draft.with_content(payload.recalled_hash, content)])
    {
        tracing::warn!(%error, "what a world model recalled could not be recorded");
    }
    earlier
}

/// An entry that this agent wrote as an experience, and nobody else.
fn read(hit: &EntryHit) -> Option<SkillExperience> {
    if hit.mark.origin != "agent" || hit.mark.untrusted {
        return None;
    }
    serde_json::from_value(hit.entry.content.clone()).ok() // silent-ok: what is no experience is none
}

fn experience_scope(calls: &KernelServices, origin: Option<&Origin>, door: &str) -> Scope {
    match origin {
        Some(origin) => recall::message_scope(calls, origin.sender_door()),
        None => Scope {
            identity: calls.manifest.identity.name.clone(),
            channel: door.to_owned(),
        },
    }
}

/// How wrong earlier predictions were on average, thousandths.
pub(super) fn mean_error(earlier: &[SkillExperience]) -> Option<u64> {
    let errors: Vec<u64> = earlier
        .iter()
        .filter_map(|one| Some(one.outcome.as_ref()?.error_permille.min(1000)))
        .collect();
    let count = u64::try_from(errors.len()).ok().filter(|count| *count > 0)?; // silent-ok: 64 bits hold it
    Some(errors.iter().sum::<u64>() / count)
}

/// The calls that a turn made since the skill joined it.
fn calls_since_joined(turn: &Turn, skill: &Skill, since: usize) -> Vec<ExperiencedCall> {
    let own: Vec<String> = skill::needed_tools(skill).collect();
    let mut asked: Vec<(&str, &str)> = Vec::new();
    let mut ends = Vec::new();
    for message in turn.messages() {
        match message {
            ModelMessage::Assistant { calls, .. } => {
                asked.extend(calls.iter().map(|call| (call.id.as_str(), call.name.as_str())));
            }
            ModelMessage::ToolResult {
                call_id, is_error, ..
            } => {
                // Ids may come again: the latest question is the one that is answered.
                let tool = asked.iter().rev().find(|(id, _)| id == call_id);
                ends.push(ExperiencedCall {
                    is_error: *is_error,
                    // A name that a model made up is text, and no text is learnt.
                    tool: tool
                        .map(|(_, name)| (*name).to_owned())
                        .filter(|name| own.contains(name))
                        .unwrap_or_else(|| OTHER.to_owned()),
                });
            }
            ModelMessage::User { .. } => {}
        }
    }
    ends.split_off(since.min(ends.len()))
}

/// How far the prediction was off, thousandths: the mean over what was foretold.
fn prediction_error(planned: &SkillPlanResult, calls: &[ExperiencedCall], tokens: u64) -> u64 {
    let off =
        |foretold: u64, seen: u64| foretold.abs_diff(seen).saturating_mul(1000) / foretold.max(seen).max(1);
    let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
    let mut left: Vec<&str> = calls.iter().map(|made| made.tool.as_str()).collect();
    let mut met = 0;
    for step in &planned.steps {
        if let Some(at) = left.iter().position(|tool| tool == step) {
            left.remove(at);
            met += 1;
        }
    }
    let longer = planned.steps.len().max(calls.len());
    let failed = calls.iter().any(|made| made.is_error);
    let parts = [
        Some(off(count(longer), met)),
        planned.calls.map(|foretold| off(foretold, count(calls.len()))),
        planned.tokens.map(|foretold| off(foretold, tokens)),
        planned
            .told_permille
            .map(|risk| risk.abs_diff(if failed { 1000 } else { 0 })),
    ];
    let parts: Vec<u64> = parts.into_iter().flatten().collect();
    parts.iter().sum::<u64>() / count(parts.len()).max(1)
}

/// A skill that planned has ended: the outcome beside the prediction, and what is learnt of it.
pub(crate) async fn record_experience(
    (calls, context): (&KernelServices, &Context),
    (thread, turn_id, door): (Thread, Uuid, &str),
    joined: &RunningSkill,
    turn: &Turn,
) {
    let (Some(planned), Some(model)) = (&joined.planned, skill_world_model(calls, &joined.skill)) else {
        return;
    };
    let (tokens, _) = joined.usage_since_start(turn);
    let mut seen = calls_since_joined(turn, &joined.skill, joined.results_before());
    let followed = planned.fallback.is_none();
    let error_permille = prediction_error(planned, &seen, tokens);
    if followed {
        let payload = WorldModelCompared {
            calls: count_of(seen.len()),
            error_permille,
            errors: count_of(seen.iter().filter(|made| made.is_error).count()),
            planned_hash: planned.planned_hash,
            predicted_calls: planned.calls,
            predicted_tokens: planned.tokens,
            skill: joined.skill.name.to_string(),
            tokens,
            turn: turn_id,
            world_model: model.name.to_string(),
        };
        let draft = calls.scribe.draft_event(&thread, &payload);
        if let Err(error) = calls.scribe.submit_drafts(vec![draft]) {
            tracing::warn!(%error, "what came of a plan could not be recorded");
        }
    }
    let (Some(_), Some(store)) = (model.update.mode, experience_store(&calls.manifest, model)) else {
        return;
    };
    seen.truncate(MOST_CALLS);
    let outcomes = model.update.evidence == Some(Evidence::ObservationsOutcomes);
    let outcome = PredictionOutcome {
        error_permille,
        predicted_calls: planned.calls,
        predicted_steps: planned.steps.clone(),
        predicted_tokens: planned.tokens,
        risk_permille: planned.told_permille,
    };
    let experience = SkillExperience {
        calls: seen,
        outcome: Some(outcome).filter(|_| outcomes && followed),
        skill: joined.skill.name.clone(),
        tokens,
        world_model: model.name.clone(),
    };
    let kept = store_experience(
        calls,
        store,
        (context.origin.as_ref(), door),
        (thread, turn_id),
        &experience,
    )
    .await;
    if let Err(error) = kept {
        tracing::warn!(%error, store = store.name, "what a plan came to could not be kept");
    }
}

async fn store_experience(
    calls: &KernelServices,
    store: &Store,
    (origin, door): (Option<&Origin>, &str),
    (thread, turn_id): (Thread, Uuid),
    experience: &SkillExperience,
) -> Result<(), String> {
    let Some(backend) = &calls.memories.backend else {
        return Ok(());
    };
    let told = |error: &dyn std::fmt::Display| error.to_string();
    // The same turn again finds its entry there.
    let id = format!("{turn_id}-{}-{}", experience.world_model, experience.skill);
    let entry = NewEntry {
        content: serde_json::to_value(experience).map_err(|error| told(&error))?,
        key: Some(format!("{}/{id}", words_key(experience))),
        metadata: None,
    };
    let (hash, request_id) = (digest(&canonical(&entry)), turn_id.to_string());
    let new = EntryInsertion {
        id: id.clone(),
        entry,
        // Names of the skill's tools and numbers: none of it is the word of what the turn read.
        mark: EntryProvenance {
            origin: "agent".to_owned(),
            untrusted: false,
            author: TextAuthor::from_runtime().display_name(),
            session: thread.session.to_string(),
            whose: origin
                .map(|origin| recall::conversation_label(origin.sender_door()))
                .unwrap_or_default(),
            made_from: vec![format!("message {turn_id}")],
        },
    };
    let place = experience_scope(calls, origin, door);
    let scribe = &calls.scribe;
    let payload = MemoryWrite {
        batch: Some(thread.span),
        by: Some("world-model".to_owned()),
        count: 1,
        entries_hash: hash,
        request_hash: Some(hash),
        request_id: request_id.to_string(),
        store: store.name.to_string(),
    };
    let draft: Draft = scribe.draft_event(&thread, &payload.as_stored());
    if backend.joins_journal(store) {
        let record = batch_from_drafts(vec![draft]);
        let kept = backend
            .store_entries(store, &place, vec![new], scribe.now(), record)
            .await;
        kept.map_err(|error| told(&error))?;
    } else {
        let kept = backend
            .store_entries(store, &place, vec![new], scribe.now(), Batch::default())
            .await;
        kept.map_err(|error| told(&error))?;
        scribe.write(vec![draft]).await.map_err(|error| told(&error))?;
    }
    calls.memories.tender.mark_due(store, &place);
    Ok(())
}

fn words_key(experience: &SkillExperience) -> String {
    format!("world-model/{}/{}", experience.world_model, experience.skill)
}
