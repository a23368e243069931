//! Background maintenance of memory: removes entries beyond a store's limits, makes vectors, and summarises stores that are nearly
//! full.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_events::payload::{MemoryCompacted, MemoryExpired};
use clawk_manifest::model::Store;
use clawk_recall::compact::{self, CompactionSummary};
use clawk_recall::entry::EntryHit;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::author::TextAuthor;
use crate::compaction;
use crate::event::Thread;
use crate::infer::{self, InferenceContext, NoAnswer};
use crate::memory::MemoryServices;
use crate::ports::{InferRequest, Memory, ModelMessage, Scope};
use crate::purse::BudgetAccount;
use crate::vectors;
use crate::watch::NoticeSender;

/// Interval at which expired entries are removed.
const EVERY: Duration = Duration::from_secs(60);

/// Time to collect further entries before vectors are made.
const GATHER: Duration = Duration::from_millis(200);

/// Delay after a failure before vectors are requested again.
const AGAIN: Duration = Duration::from_secs(5);

/// Largest number of scopes that wait for maintenance. A further one is added when it gets another entry.
const MAX_PLACES: usize = 1024;

/// Largest text from which one summary is made, in bytes.
const TOLD_BYTES: usize = 48 * 1024;

/// Time limit for a model server to be reachable before a summary is made without a model.
const REACH: Duration = Duration::from_secs(2);

/// Gets notified when an entry was stored.
#[derive(Debug, Default)]
pub(crate) struct RetentionWorker {
    wake: Notify,
    /// Stores and scopes with new entries.
    places: Mutex<BTreeSet<(String, String, String)>>,
}

impl RetentionWorker {
    /// Records that an entry was stored in this scope.
    pub(crate) fn mark_due(&self, store: &Store, place: &Scope) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() < MAX_PLACES {
            places.insert((store.name.clone(), place.identity.clone(), place.channel.clone()));
        }
        self.wake.notify_one();
    }

    fn take_due(&self) -> BTreeSet<(String, String, String)> {
        std::mem::take(&mut *self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts the maintenance of the stores, which runs until the agent stops.
pub(crate) fn spawn_retention(memories: &Arc<MemoryServices>) {
    if memories.backend.is_none() || memory_stores(memories).next().is_none() {
        return;
    }
    let own = Arc::clone(memories);
    memories.life.tracker.spawn(async move {
        tokio::select! {
            biased;
            () = own.life.closing.cancelled() => {}
            () = run(&own) => {}
        }
    });
}

fn memory_stores(memories: &MemoryServices) -> impl Iterator<Item = &Store> {
    memories.manifest.memory.iter().flat_map(|memory| &memory.stores)
}

async fn run(memories: &MemoryServices) {
    // Entries that were stored before a crash get their vectors now.
    let mut whole = false;
    let mut next = tokio::time::Instant::now();
    loop {
        if tokio::time::Instant::now() >= next {
            next = tokio::time::Instant::now() + EVERY;
            apply_retention(memories).await;
        }
        summarise_stores(memories).await;
        if !whole {
            whole = fill_vectors(memories).await;
        }
        let again = if whole { EVERY } else { AGAIN };
        let wait = again.min(next.saturating_duration_since(tokio::time::Instant::now()));
        tokio::select! {
            () = memories.tender.wake.notified() => {
                tokio::time::sleep(GATHER).await;
                whole = false;
            }
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Removes entries that are too old or too many, in every scope.
async fn apply_retention(memories: &MemoryServices) {
    let Some(backend) = memories.backend.as_deref() else {
        return;
    };
    for store in memory_stores(memories) {
        match backend.apply_retention(store, memories.scribe.now()).await {
            Ok(0) => {}
            Ok(entries) => {
                let payload = MemoryExpired {
                    entries,
                    store: store.name.to_string(),
                };
                let draft = memories.scribe.draft_event(&memory_thread(memories), &payload);
                if let Err(error) = memories.scribe.submit_drafts(vec![draft]) {
                    tracing::warn!(%error, "what retention removed could not be recorded");
                }
            }
            Err(error) => tracing::warn!(store = store.name, %error, "retention could not be applied"),
        }
    }
}

fn memory_thread(memories: &MemoryServices) -> Thread {
    memories.life.root.child(memories.scribe.clock().new_uuid())
}

/// Makes missing vectors. Returns whether every entry now has its vector.
async fn fill_vectors(memories: &MemoryServices) -> bool {
    let cancel = memories.life.stop.child_token();
    let mut whole = true;
    for store in memory_stores(memories) {
        match vectors::fill_vectors(memories, store, &cancel).await {
            Ok(done) => whole &= done,
            Err(error) => {
                tracing::warn!(
                    store = store.name,
                    error,
                    "entries have no vectors yet; words find them"
                );
                whole = false;
            }
        }
    }
    whole
}

/// Summarises scopes with new entries whose store is nearly full.
async fn summarise_stores(memories: &MemoryServices) {
    let Some(backend) = memories.backend.as_deref() else {
        return;
    };
    for (name, identity, channel) in memories.tender.take_due() {
        let Some(store) = memory_stores(memories).find(|store| store.name == name) else {
            continue;
        };
        let place = Scope { identity, channel };
        let due = match backend.count_entries(store, &place).await {
            Ok(count) => compact::wants_summary(store, count),
            Err(error) => {
                tracing::warn!(store = name, %error, "it could not be counted");
                false
            }
        };
        if due
            && let Err(error) = compact_store(
                memories,
                backend,
                (store, &place),
                &memory_thread(memories),
                memories.classifier.models.purses.root_account(),
            )
            .await
        {
            tracing::warn!(store = name, %error, "it could not be compacted");
        }
    }
}

/// Compacts a store, with a model's summary if the strategy requires one. Returns the recorded counts before and after.
///
/// # Errors
/// The reason for people.
pub(crate) async fn compact_store(
    memories: &MemoryServices,
    backend: &dyn Memory,
    (store, place): (&Store, &Scope),
    thread: &Thread,
    purse: &BudgetAccount,
) -> Result<(u64, u64), crate::error::KernelError> {
    let summary = match compact::compaction_strategy(store) {
        Some(clawk_manifest::model::CompactionStrategy::Summarize) => {
            summarise_entries(
                memories,
                &backend.compaction_candidates(store, place).await?,
                purse,
            )
            .await
        }
        Some(_) | None => None,
    };
    let (entries_before, entries_after) = backend
        .compact_store(store, place, memories.scribe.now(), summary)
        .await?;
    let payload = MemoryCompacted {
        entries_after,
        entries_before,
        store: store.name.to_string(),
    };
    let draft = memories.scribe.draft_event(thread, &payload);
    memories.scribe.write(vec![draft]).await?;
    Ok((entries_before, entries_after))
}

/// Returns a model's summary of exactly these entries; `None` if no model gives one.
async fn summarise_entries(
    memories: &MemoryServices,
    old: &[EntryHit],
    purse: &BudgetAccount,
) -> Option<CompactionSummary> {
    if old.len() < 2 {
        return None;
    }
    let models = &memories.classifier.models;
    let name = models.primary_provider().to_owned();
    let provider = models.providers.get(&name)?;
    // No caller waits for a server's retries here.
    if !matches!(
        tokio::time::timeout(REACH, provider.check_reachable()).await,
        Ok(Ok(()))
    ) {
        return None;
    }
    let room = (TOLD_BYTES / old.len()).max(80);
    let lines = old.iter().map(|hit| {
        let text = clawk_recall::words::text_of(&hit.entry.content, hit.entry.key.as_deref());
        format!(
            "{}: {}\n",
            hit.mark.kind(),
            compaction::clip_text(text.trim(), room)
        )
    });
    let mut told: String = lines.collect();
    models.screens.without_known(&mut told);
    let request = InferRequest {
        system: compaction::ORDER.to_owned(),
        messages: vec![ModelMessage::User {
            text: told,
            images: Vec::new(),
            frame: String::new(),
            author: TextAuthor::from_runtime(),
        }],
        tools: Vec::new(),
        max_output_tokens: 0,
        ..InferRequest::default()
    };
    let quiet = NoticeSender::default();
    let place = InferenceContext {
        // Not a session's chain, because a session's replay does not have this answer.
        thread: memory_thread(memories),
        // Uses an own turn id, so that no conversation is rebuilt with this request.
        turn: memories.scribe.clock().new_uuid(),
        notices: &quiet,
        purse,
        member: None,
    };
    let cancel: CancellationToken = memories.life.stop.child_token();
    match infer::infer_with_fallback(models, place, &name, request, &cancel).await {
        Ok(completion) if !completion.text.trim().is_empty() => Some(CompactionSummary {
            of: old.iter().map(|hit| hit.entry.id.clone()).collect(),
            text: completion.text,
        }),
        Ok(_) | Err(NoAnswer::Cancelled | NoAnswer::Failed(_) | NoAnswer::Quota(_)) => None, // silent-ok: the attempt is in the journal
    }
}
