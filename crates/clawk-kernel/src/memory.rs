//! Memory operations (CKP §9.3.4): validated, executed once per request, recorded.

use std::collections::BTreeSet;
use std::sync::Arc;

use clawk_events::count_of;
use clawk_events::payload::{MemoryQueried, MemoryWrite};
use clawk_manifest::model::{Manifest, Role, Store};
use clawk_proto::method::{
    MemoryCompactParams, MemoryCompactResult, MemoryQuery, MemoryQueryParams, MemoryQueryResult,
    MemoryStoreParams, MemoryStoreResult, NewEntry,
};
use clawk_proto::{Digest, SessionId};
use clawk_recall::entry::{ConversationFilter, EntryInsertion, EntryProvenance, EntrySearchResult};
use serde_json::Value;
use uuid::Uuid;

use crate::author::TextAuthor;
use crate::dedup::{Claim, DedupAnswer, DedupMethod, DedupTable, answer_key, stored_ids};
use crate::error::KernelError;
use crate::event::{Draft, JournalWriter, Thread, batch_from_drafts, canonical, digest};
use crate::judge::{self, InjectionClassifier};
use crate::lifecycle::AgentLifecycle;
use crate::ports::{AnswerKey, Batch, MarkedContent, Memory, MemorySearch, Scope, StoreQuery, ToolRunner};
use crate::rank;
use crate::recall;
use crate::screen::{ScreenedTextKind, ScreeningPass};
use crate::taint;
use crate::tend::{self, RetentionWorker};
use crate::time::Timestamp;
use crate::vectors;
use crate::watch::NoticeSender;

/// Largest number of entries in one answer.
const MAX_TOP_K: usize = 1000;
/// Largest number of entries in one `claw.memory.store`.
const MAX_ENTRIES: usize = 1000;

/// The dependencies of memory operations.
#[derive(Debug)]
pub(crate) struct MemoryServices {
    pub(crate) manifest: Arc<Manifest>,
    /// The back end of the stores.
    pub(crate) backend: Option<Arc<dyn Memory>>,
    /// Knows which files hold untrusted text.
    pub(crate) runner: Arc<dyn ToolRunner>,
    pub(crate) classifier: InjectionClassifier,
    pub(crate) dedup: Arc<DedupTable>,
    pub(crate) life: Arc<AgentLifecycle>,
    pub(crate) scribe: JournalWriter,
    /// Stores whose entries every turn may recall, even those of other senders: `[memory.NAME] across_senders`.
    pub(crate) across_senders: BTreeSet<String>,
    /// Notified when an entry was stored.
    pub(crate) tender: RetentionWorker,
    /// Results come from a record (replay).
    pub(crate) taped: bool,
}

impl MemoryServices {
    /// Ranks results by the store's settings. A replay's results were ranked when they were recorded.
    pub(crate) fn rank_entries(&self, store: &Store, found: &mut EntrySearchResult, whose: &str) {
        if !self.taped {
            rank::rank_entries(store, found, whose, self.scribe.now());
        }
    }
}

pub(crate) fn find_store<'a>(
    memories: &'a MemoryServices,
    name: &str,
) -> Result<(&'a Store, &'a dyn Memory), KernelError> {
    let stores = memories
        .manifest
        .memory
        .as_ref()
        .map(|memory| memory.stores.as_slice())
        .unwrap_or_default();
    let found = stores
        .iter()
        .find(|store| store.name == name)
        .zip(memories.backend.as_deref());
    found.ok_or_else(|| {
        let names: Vec<&str> = stores.iter().map(|store| store.name.as_str()).collect();
        let known = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        KernelError::UnknownStore {
            name: name.chars().take(64).collect(),
            known,
        }
    })
}

/// Returns the scope of the session's channel, from which its turns recall.
fn session_scope(memories: &MemoryServices, session: SessionId) -> Scope {
    let state = memories.classifier.table.get(session);
    Scope {
        identity: memories.manifest.identity.name.clone(),
        channel: state.map_or_else(|| "rpc".to_owned(), |state| recall::scope_channel(&state.door)),
    }
}

/// Returns the filter for a client's entries: an admin sees everybody's, others only their own and those for everybody, unless the
/// store is open to all. Without an open session there are none.
fn whose_of_wire(memories: &MemoryServices, session: SessionId, store: &str) -> ConversationFilter {
    let table = &memories.classifier.table;
    if table.role_of(session) >= Role::Admin || memories.across_senders.contains(store) {
        return ConversationFilter::All;
    }
    ConversationFilter::Of(owner_of_wire(memories, session).into_iter().collect())
}

/// Returns the owner mark of a client's entries; `None` for an admin, whose entries are for everybody.
fn owner_of_wire(memories: &MemoryServices, session: SessionId) -> Option<String> {
    let table = &memories.classifier.table;
    let state = table
        .get(session)
        .filter(|state| state.door.role() < Role::Admin)?;
    Some(recall::conversation_label(&state.door))
}

fn session_thread(memories: &MemoryServices, session: SessionId) -> Thread {
    Thread::for_session(session).child(memories.scribe.clock().new_uuid())
}

/// `claw.memory.query`.
pub(crate) async fn query_store(
    memories: &MemoryServices,
    session: SessionId,
    params: MemoryQueryParams,
) -> Result<MemoryQueryResult, KernelError> {
    let _working = memories.life.begin_work().map_err(KernelError::NotReady)?;
    let (store, memory) = find_store(memories, &params.store)?;
    let (name, query, top_k) = match params.query {
        MemoryQuery::Semantic { mut text, top_k } => {
            memories.classifier.models.screens.without_known(&mut text);
            ("semantic", StoreQuery::Text(text), top_k)
        }
        MemoryQuery::Key { mut key, top_k } => {
            memories.classifier.models.screens.without_known(&mut key);
            ("key", StoreQuery::Key(key), top_k)
        }
        MemoryQuery::TimeRange { time_range, top_k } => {
            let from = parse_time(&time_range.from, "query.time_range.from")?;
            let to = parse_time(&time_range.to, "query.time_range.to")?;
            ("time-range", StoreQuery::Between(from, to), top_k)
        }
    };
    let default = usize::try_from(store.search.top_k).unwrap_or(MAX_TOP_K);
    let limit = top_k
        .map_or(default, |k| usize::try_from(k).unwrap_or(MAX_TOP_K))
        .min(MAX_TOP_K);
    let cancel = memories.life.stop.child_token();
    let vector = match &query {
        StoreQuery::Text(text) => {
            let purse = memories.classifier.table.purse_of(session);
            vectors::of_question(memories, store, text, &purse, &cancel).await
        }
        StoreQuery::Key(_) | StoreQuery::Between(..) => None,
    };
    let ask = MemorySearch {
        whose: whose_of_wire(memories, session, &store.name),
        query,
        vector,
        limit,
    };
    let mut found = memory
        .search_entries(store, &session_scope(memories, session), ask)
        .await?;
    memories.rank_entries(store, &mut found, "");
    let mut entries: Vec<_> = found.hits.into_iter().map(|hit| hit.entry).collect();
    let thread = session_thread(memories, session);
    let mut look = ScreeningPass::new(
        &memories.classifier.models.screens,
        thread,
        ScreenedTextKind::Memory,
        &store.name,
        &NoticeSender::default(),
    );
    judge::screen_found_entries(&memories.classifier, &mut look, &mut entries, &cancel).await;
    let mut drafts = look.drafts;
    let payload = MemoryQueried {
        found: count_of(entries.len()),
        query: name.to_owned(),
        store: store.name.to_string(),
    };
    drafts.push(memories.scribe.draft_event(&thread, &payload));
    let _ticket = memories.scribe.submit_drafts(drafts)?; // a read changes nothing: its record need not be waited for
    Ok(MemoryQueryResult { entries })
}

fn parse_time(text: &str, member: &'static str) -> Result<Timestamp, KernelError> {
    Timestamp::parse(text).map_err(|error| KernelError::BadParameter {
        member,
        reason: error.to_string(),
    })
}

fn check_count(count: usize) -> Result<(), KernelError> {
    if (1..=MAX_ENTRIES).contains(&count) {
        return Ok(());
    }
    Err(KernelError::BadParameter {
        member: "entries",
        reason: format!("holds {count} entries; 1 to {MAX_ENTRIES} are taken"),
    })
}

/// `claw.memory.store`: once per `request_id` (R19).
pub(crate) async fn store_entries(
    memories: &MemoryServices,
    session: SessionId,
    mut params: MemoryStoreParams,
) -> Result<MemoryStoreResult, KernelError> {
    let _working = memories.life.begin_work().map_err(KernelError::NotReady)?;
    let (spec, memory) = find_store(memories, &params.store)?;
    check_count(params.entries.len())?;
    // Compare the text before screening, so that the same request stays equal even if screening knows more secrets later.
    let asked = digest(&canonical(&params.entries));
    let request_hash = digest(&[&asked.0[..], spec.name.as_bytes()].concat());
    let request_id = params.context.request_id;
    let key = answer_key(DedupMethod::MemoryStore, &request_id);
    let (scribe, now) = (&memories.scribe, memories.scribe.now());
    let claim = memories
        .dedup
        .claim_request(key, request_hash, &**scribe.journal())
        .await?;
    let guard = match claim {
        Claim::Fresh(guard) => guard,
        Claim::Answered(DedupAnswer::Memory(result)) => return Ok(result),
        Claim::Answered(DedupAnswer::Call(_) | DedupAnswer::Delegated(_) | DedupAnswer::Message(_))
        | Claim::Reused => {
            return Err(KernelError::RequestIdReused(request_id));
        }
    };
    let (count, thread) = (params.entries.len(), session_thread(memories, session));
    let drafts = screen_entries(memories, thread, &spec.name, &mut params.entries).await?;
    let entries_hash = digest(&canonical(&params.entries));
    let begun = self::answer_key(DedupMethod::MemoryBegun, &request_id);
    let batch = batch_id(memories, begun, request_hash).await?;
    let about = MemoryWrite {
        batch: Some(batch),
        by: None,
        count: count_of(count),
        entries_hash,
        request_hash: Some(request_hash),
        request_id: request_id.as_str().to_owned(),
        store: spec.name.to_string(),
    };
    let entries = mark_entries(memories, session, batch, params.entries).await;
    let place = session_scope(memories, session);
    let result = if memory.joins_journal(spec) {
        // Entries and their event are in one commit, because the ids follow from the event.
        let mut record = drafts;
        record.push(
            scribe
                .draft_event(&thread, &about.as_stored())
                .with_answer_key(Some(key)),
        );
        let ids = memory
            .store_entries(spec, &place, entries, now, batch_from_drafts(record))
            .await?;
        stored_ids(ids)
    } else {
        let mut first = drafts;
        first.push(
            scribe
                .draft_event(&thread, &about.as_requested())
                .with_answer_key(Some(begun)),
        );
        scribe.write(first).await?;
        let result = stored_ids(
            memory
                .store_entries(spec, &place, entries, now, Batch::default())
                .await?,
        );
        let answer = canonical(&result);
        let draft = scribe.draft_event(&thread, &about.as_stored());
        scribe
            .write(vec![
                draft
                    .with_content(digest(&answer), answer)
                    .with_answer_key(Some(key)),
            ])
            .await?;
        result
    };
    guard.publish_answer(DedupAnswer::Memory(result.clone()));
    memories.tender.mark_due(spec, &place);
    Ok(result)
}

/// Marks the provenance of entries from the wire. Their source is the client, whatever their metadata says. Text that a call wrote
/// into a file keeps its known provenance.
async fn mark_entries(
    memories: &MemoryServices,
    session: SessionId,
    batch: Uuid,
    entries: Vec<NewEntry>,
) -> Vec<EntryInsertion> {
    let state = memories.classifier.table.get(session);
    let author = state.map_or_else(TextAuthor::unknown, |state| {
        TextAuthor::of_door(&state.door, &memories.manifest)
    });
    let origin = author.own_origin();
    let whose = owner_of_wire(memories, session).unwrap_or_default();
    let new = |(at, entry)| EntryInsertion {
        id: format!("{batch}-{at}"),
        entry,
        mark: EntryProvenance {
            origin: origin.clone().unwrap_or_else(|| "user".to_owned()),
            untrusted: origin.is_some(),
            author: author.display_name(),
            session: session.to_string(),
            whose: whose.clone(),
            ..EntryProvenance::default()
        },
    };
    let mut entries: Vec<EntryInsertion> = entries.into_iter().enumerate().map(new).collect();
    for one in &mut entries {
        let text = match &one.entry.content {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let name = one.entry.key.clone().unwrap_or_default();
        let known = memories
            .runner
            .marked_origins(vec![MarkedContent::Text { name, text }])
            .await;
        if !known.is_empty() {
            one.mark.untrusted = true;
            one.mark.made_from.extend(taint::through(&known));
        }
    }
    entries
}

/// Returns the batch from which the ids of a request's entries are made. A repeated request uses the same batch, so that a crash
/// between the two commits doubles nothing. A request whose id was used long ago is a new one with its own entries.
async fn batch_id(
    memories: &MemoryServices,
    begun: AnswerKey,
    request_hash: Digest,
) -> Result<Uuid, KernelError> {
    let known = memories.scribe.journal().answer_to(begun).await?;
    let Some(answer) = known.filter(|answer| memories.dedup.is_kept(answer)) else {
        return Ok(memories.scribe.clock().new_uuid());
    };
    let begun: MemoryWrite = answer.event.read_as()?;
    // An earlier version's has no batch.
    let batch = begun.batch.filter(|_| begun.request_hash == Some(request_hash));
    Ok(batch.unwrap_or_else(|| memories.scribe.clock().new_uuid()))
}

/// Returns the entries in a form that may be stored. A refusal is recorded before it is returned.
async fn screen_entries(
    memories: &MemoryServices,
    thread: Thread,
    store: &str,
    entries: &mut [NewEntry],
) -> Result<Vec<Draft>, KernelError> {
    let mut look = ScreeningPass::new(
        &memories.classifier.models.screens,
        thread,
        ScreenedTextKind::Memory,
        store,
        &NoticeSender::default(),
    );
    match judge::screen_new_entries(&mut look, entries).await {
        Ok(()) => Ok(look.drafts),
        Err(refused) => {
            memories.scribe.write(look.drafts).await?;
            Err(refused.into())
        }
    }
}

/// `claw.memory.compact`.
pub(crate) async fn compact_store(
    memories: &MemoryServices,
    session: SessionId,
    params: MemoryCompactParams,
) -> Result<MemoryCompactResult, KernelError> {
    let _working = memories.life.begin_work().map_err(KernelError::NotReady)?;
    let (store, memory) = find_store(memories, &params.store)?;
    let purse = memories.classifier.table.purse_of(session);
    let at = (store, &session_scope(memories, session));
    let (entries_before, entries_after) =
        tend::compact_store(memories, memory, at, &session_thread(memories, session), &purse).await?;
    Ok(MemoryCompactResult {
        entries_before,
        entries_after,
    })
}
