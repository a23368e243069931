//! Checkpoints (CKP 0.3, stores of type `checkpoint`): the state of a long task after each of its steps. After a crash, turns and
//! tasks continue from the journal; a composite tool's inner turn continues from its checkpoint. Results of earlier steps come from
//! the journal, so that no effect happens twice.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use clawk_events::payload::MemoryWrite;
use clawk_manifest::model::{Manifest, Skill, Store, StoreType};
use clawk_proto::method::NewEntry;
use clawk_proto::{Digest, RequestId};
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryInsertion, EntryProvenance};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::author::TextAuthor;
use crate::call::{Context, Permit};
use crate::event::{Thread, batch_from_drafts, canonical, digest};
use crate::ports::{Batch, MemorySearch, ModelMessage, RunError, Scope, StoreQuery};
use crate::recall;
use crate::recover;
use crate::services::KernelServices;
use crate::time::Timestamp;
use crate::turn::{Effect, Turn};
use crate::world_model::SkillPlanResult;

/// The first source of every checkpoint. Only the kernel writes entries with this source.
const MADE_FROM: &str = "checkpoint";
/// Largest conversation in a checkpoint, in bytes of JSON. A longer one is left out and read from the journal.
const MAX_CONVERSATION_BYTES: usize = 512 * 1024;

/// Returns the store of checkpoints: the manifest's first store of that type.
pub(crate) fn checkpoint_store(manifest: &Manifest) -> Option<&Store> {
    let mut stores = manifest.memory.iter().flat_map(|memory| &memory.stores);
    stores.find(|store| store.kind == StoreType::Checkpoint)
}

/// Interrupted composite calls, which continue when their turn makes them again.
#[derive(Debug, Default)]
pub(crate) struct InterruptedComposites(Mutex<BTreeSet<String>>);

impl InterruptedComposites {
    pub(crate) fn add(&self, all: impl IntoIterator<Item = String>) {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ids.extend(all);
    }

    fn remove_request(&self, id: &RequestId) -> bool {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ids.remove(id.as_str())
    }
}

/// The kind of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CheckpointTask {
    /// A turn that answers a message.
    Turn,
    /// The turn of a swarm member at its task.
    Delegated,
    /// The inner turn of a composite tool.
    Composite,
}

/// One checkpoint: the content of its entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TaskCheckpoint {
    /// The composite tool's skill and arguments; absent for other tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call: Option<InnerTurnStart>,
    /// Messages since the one that began the task; absent if they are too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    messages: Option<Vec<ModelMessage>>,
    /// `running` or `done`.
    state: String,
    /// Number of model answers so far.
    steps: usize,
    task: CheckpointTask,
    tokens: u64,
    /// The turn's id in the journal.
    turn: Uuid,
}

/// The inputs of a composite tool's inner turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct InnerTurnStart {
    arguments_hash: Digest,
    /// The first message of the inner turn.
    first: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    planned: Option<SkillPlanResult>,
    skill: String,
}

/// Writes the checkpoints of one task.
#[derive(Debug)]
pub(crate) struct CheckpointWriter {
    key: String,
    task: CheckpointTask,
    turn: Uuid,
    call: Option<InnerTurnStart>,
    /// Number of messages in the conversation when the task began.
    before: usize,
    /// Number of messages at the last checkpoint.
    written: usize,
}

impl CheckpointWriter {
    /// Makes the writer for a turn; `None`: the manifest has no checkpoint store.
    pub(crate) fn of_turn(
        calls: &KernelServices,
        turn_id: Uuid,
        task: Option<&str>,
        turn: &Turn,
    ) -> Option<Self> {
        checkpoint_store(&calls.manifest)?;
        let is_user = |message: &ModelMessage| matches!(message, ModelMessage::User { .. });
        Some(Self {
            key: match task {
                Some(task) => format!("task/{task}"),
                None => format!("turn/{turn_id}"),
            },
            task: if task.is_some() {
                CheckpointTask::Delegated
            } else {
                CheckpointTask::Turn
            },
            turn: turn_id,
            call: None,
            before: turn.messages().iter().rposition(is_user).unwrap_or_default(),
            written: 0,
        })
    }

    /// Makes the writer for a composite tool's inner turn.
    pub(crate) fn of_call(
        calls: &KernelServices,
        (permit, skill): (&Permit, &Skill),
        turn_id: Uuid,
        (first, planned): (&str, Option<SkillPlanResult>),
    ) -> Option<Self> {
        checkpoint_store(&calls.manifest)?;
        Some(Self {
            key: key_of(permit.request_id()),
            task: CheckpointTask::Composite,
            turn: turn_id,
            call: Some(InnerTurnStart {
                arguments_hash: permit.digest(),
                first: first.to_owned(),
                planned,
                skill: skill.name.clone(),
            }),
            before: 0,
            written: 0,
        })
    }

    /// Stores the task's state durably, once for each state of its conversation.
    ///
    /// # Errors
    /// The reason why it is not stored, as text for people.
    pub(crate) async fn save_state(
        &mut self,
        calls: &KernelServices,
        (thread, context): (Thread, &Context),
        turn: &Turn,
        done: bool,
    ) -> Result<(), String> {
        let Some(store) = checkpoint_store(&calls.manifest) else {
            return Ok(());
        };
        let count = turn.messages().len();
        if count == self.written && !done {
            return Ok(());
        }
        self.written = count;
        let messages = turn.messages().get(self.before..).unwrap_or_default();
        let short = canonical(&messages).len() <= MAX_CONVERSATION_BYTES;
        let checkpoint = TaskCheckpoint {
            call: self.call.clone(),
            messages: short.then(|| messages.to_vec()),
            state: if done { "done" } else { "running" }.to_owned(),
            steps: messages
                .iter()
                .filter(|message| matches!(message, ModelMessage::Assistant { .. }))
                .count(),
            task: self.task,
            tokens: turn.usage().total(),
            turn: self.turn,
        };
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let id = format!("{}-{count}{}", self.turn, if done { "-done" } else { "" });
        let entry = NewEntry {
            content: serde_json::to_value(&checkpoint).map_err(|error| said(&error))?,
            key: Some(self.key.clone()),
            metadata: None,
        };
        let hash = digest(&canonical(&entry));
        let mut made_from = vec![MADE_FROM.to_owned()];
        let sources = context.output_origins();
        let untrusted = !sources.is_empty();
        made_from.extend(sources);
        let new = EntryInsertion {
            id,
            entry,
            mark: EntryProvenance {
                origin: "agent".to_owned(),
                untrusted,
                author: context
                    .requester
                    .as_ref()
                    .map(TextAuthor::display_name)
                    .unwrap_or_default(),
                session: thread.session.to_string(),
                whose: context
                    .origin
                    .as_ref()
                    .map(|origin| recall::conversation_label(origin.sender_door()))
                    .unwrap_or_default(),
                made_from,
            },
        };
        store_checkpoint(calls, store, (thread, context), (new, hash, self.turn)).await
    }
}

/// Stores a checkpoint and its event, in one commit if the store supports it.
async fn store_checkpoint(
    calls: &KernelServices,
    store: &Store,
    (thread, context): (Thread, &Context),
    (new, hash, turn): (EntryInsertion, Digest, Uuid),
) -> Result<(), String> {
    let Some(backend) = &calls.memories.backend else {
        return Ok(());
    };
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let (scribe, request_id) = (&calls.scribe, turn.to_string());
    let payload = MemoryWrite {
        batch: Some(thread.span),
        by: Some(MADE_FROM.to_owned()),
        count: 1,
        entries_hash: hash,
        request_hash: Some(hash),
        request_id: request_id.to_string(),
        store: store.name.to_string(),
    };
    let draft = scribe.draft_event(&thread, &payload.as_stored());
    let place = checkpoint_scope(calls, context);
    if backend.joins_journal(store) {
        let record = batch_from_drafts(vec![draft]);
        let kept = backend
            .store_entries(store, &place, vec![new], scribe.now(), record)
            .await;
        kept.map_err(|error| said(&error))?;
    } else {
        let kept = backend
            .store_entries(store, &place, vec![new], scribe.now(), Batch::default())
            .await;
        kept.map_err(|error| said(&error))?;
        scribe.write(vec![draft]).await.map_err(|error| said(&error))?;
    }
    calls.memories.tender.mark_due(store, &place);
    Ok(())
}

fn key_of(id: &RequestId) -> String {
    format!("call/{}", id.as_str())
}

fn checkpoint_scope(calls: &KernelServices, context: &Context) -> Scope {
    match &context.origin {
        Some(origin) => recall::message_scope(calls, origin.sender_door()),
        None => Scope {
            identity: calls.manifest.identity.name.clone(),
            channel: String::new(),
        },
    }
}

/// A composite tool's inner turn that continues.
pub(crate) struct ResumedInnerTurn {
    pub(crate) turn_id: Uuid,
    pub(crate) turn: Turn,
    pub(crate) effects: Vec<Effect>,
    pub(crate) requests: std::collections::BTreeMap<String, RequestId>,
    pub(crate) repaired: bool,
    pub(crate) first: String,
    pub(crate) planned: Option<SkillPlanResult>,
}

/// Returns the point at which an interrupted composite call continues; `None`: it begins.
///
/// # Errors
/// The call was interrupted and its checkpoint is gone, so its earlier steps are unknown.
pub(crate) async fn resume_composite(
    calls: &KernelServices,
    (thread, context): (Thread, &Context),
    skill: &Skill,
    permit: &Permit,
) -> Result<Option<ResumedInnerTurn>, RunError> {
    let lost = |why: &str| {
        RunError::Unknown(format!(
            "the runtime stopped while it ran, and it can't go on: {why}; it has not been run again"
        ))
    };
    let interrupted = calls.interrupted.remove_request(permit.request_id());
    let (Some(store), Some(backend)) = (checkpoint_store(&calls.manifest), &calls.memories.backend) else {
        return Ok(None);
    };
    if calls.memories.taped {
        return Ok(None);
    }
    let ask = MemorySearch {
        whose: ConversationFilter::All,
        query: StoreQuery::Key(key_of(permit.request_id())),
        vector: None,
        limit: 1,
    };
    let found = backend
        .search_entries(store, &checkpoint_scope(calls, context), ask)
        .await;
    let newest = match found {
        Ok(found) => {
            let newest = found.hits.into_iter().next();
            let newest = newest.filter(|hit| in_time(calls, store, hit));
            newest.and_then(|hit| read(&hit, thread))
        }
        Err(error) => return Err(lost(&format!("its checkpoint can't be read: {error}"))),
    };
    let own = newest.and_then(|found| {
        let call = found.call?;
        let same = call.arguments_hash == permit.digest() && call.skill == skill.name;
        (same && found.state == "running").then_some((found.turn, call))
    });
    let Some((turn_id, call)) = own else {
        return match interrupted {
            true => Err(lost("there is no checkpoint of it")),
            false => Ok(None),
        };
    };
    let open = recover::rebuild_inner(calls, thread.session, turn_id, &call.first)
        .await
        .map_err(|error| lost(&error.to_string()))?;
    let Some(open) = open else {
        return Err(lost("what its model said is erased"));
    };
    Ok(Some(ResumedInnerTurn {
        turn_id,
        repaired: open.repaired,
        turn: open.open.turn,
        effects: open.open.effects,
        requests: open.open.requests,
        first: call.first,
        planned: call.planned,
    }))
}

/// Returns whether the checkpoint is within its `ttl`. Retention may remove an expired one later.
fn in_time(calls: &KernelServices, store: &Store, hit: &EntryHit) -> bool {
    let Some(ttl) = store.checkpoint.as_ref().and_then(|checkpoint| checkpoint.ttl) else {
        return true;
    };
    let ms = i64::try_from(ttl.as_secs())
        .unwrap_or(i64::MAX)
        .saturating_mul(1000);
    let oldest = calls.scribe.now().plus_millis(ms.saturating_neg());
    let written = hit.entry.timestamp.as_deref().map(Timestamp::parse);
    written.is_some_and(|at| at.is_ok_and(|at| at >= oldest))
}

/// Reads a checkpoint. `None` if it was not written by the kernel itself in this session.
fn read(hit: &EntryHit, thread: Thread) -> Option<TaskCheckpoint> {
    let own = hit.mark.made_from.first().is_some_and(|first| first == MADE_FROM);
    if !own || hit.mark.session != thread.session.to_string() {
        return None;
    }
    let content: Value = hit.entry.content.clone();
    serde_json::from_value(content).ok() // silent-ok: what is no checkpoint is none
}
