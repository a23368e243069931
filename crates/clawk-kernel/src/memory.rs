//! Memory operations (CKP §9.3.4): checked, done once per request, recorded.

use clawk_manifest::model::Store;
use clawk_proto::method::{
    MemoryCompactParams, MemoryCompactResult, MemoryQuery, MemoryQueryParams, MemoryQueryResult,
    MemoryStoreParams, MemoryStoreResult, NewEntry,
};
use clawk_proto::{Digest, SessionId};
use serde::Deserialize;
use uuid::Uuid;

use crate::agent::Agent;
use crate::call::{Claim, Keyed, Stored, key};
use crate::error::KernelError;
use crate::event::{
    Draft, MemoryCompacted, MemoryQueried, MemoryRequested, MemoryStored, Thread, canonical, digest, kind,
};
use crate::ports::{ANSWER_KEPT_MS, AnswerKey, Memory, Place, StoreQuery};
use crate::screen::{self, Look, Spot};
use crate::session::Notices;
use crate::time::Timestamp;

/// Entries of one answer.
const MAX_TOP_K: usize = 1000;
/// Entries of one `claw.memory.store`.
const MAX_ENTRIES: usize = 1000;

fn find<'a>(agent: &'a Agent, name: &str) -> Result<(&'a Store, &'a dyn Memory), KernelError> {
    let stores = agent
        .manifest
        .memory
        .as_ref()
        .map(|memory| memory.stores.as_slice())
        .unwrap_or_default();
    let found = stores
        .iter()
        .find(|store| store.name == name)
        .zip(agent.memory.as_deref());
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

fn place(agent: &Agent) -> Place {
    Place {
        identity: agent.manifest.identity.name.clone(),
        channel: String::new(),
    }
}

fn thread(agent: &Agent, session: SessionId) -> Thread {
    Thread {
        session,
        span: session.0,
        parent: None,
    }
    .child(agent.clock().uuid())
}

/// `claw.memory.query`.
pub(crate) async fn query(
    agent: &Agent,
    session: SessionId,
    params: MemoryQueryParams,
) -> Result<MemoryQueryResult, KernelError> {
    let _working = agent.life.enter().map_err(KernelError::NotReady)?;
    let (store, memory) = find(agent, &params.store)?;
    let (name, query, top_k) = match params.query {
        MemoryQuery::Semantic { text, top_k } => ("semantic", StoreQuery::Text(text), top_k),
        MemoryQuery::Key { key, top_k } => ("key", StoreQuery::Key(key), top_k),
        MemoryQuery::TimeRange { time_range, top_k } => {
            let from = time(&time_range.from, "query.time_range.from")?;
            let to = time(&time_range.to, "query.time_range.to")?;
            ("time-range", StoreQuery::Between(from, to), top_k)
        }
    };
    let default = usize::try_from(store.search.top_k).unwrap_or(MAX_TOP_K);
    let limit = top_k
        .map_or(default, |k| usize::try_from(k).unwrap_or(MAX_TOP_K))
        .min(MAX_TOP_K);
    let mut entries = memory.query(store, &place(agent), query, limit).await?;
    let thread = thread(agent, session);
    let mut look = Look::new(agent, thread, Spot::Memory, &store.name, &Notices::default());
    screen::memory(&mut look, &mut entries, &agent.stop.child_token()).await;
    let mut drafts = look.drafts;
    let payload = MemoryQueried {
        found: entries.len(),
        query: name,
        store: &store.name,
    };
    drafts.push(agent.scribe.entry(&thread, kind::MEMORY_QUERIED, &payload));
    let _ticket = agent.scribe.submit(drafts)?; // a read changes nothing: its record need not be waited for
    Ok(MemoryQueryResult { entries })
}

fn time(text: &str, member: &'static str) -> Result<Timestamp, KernelError> {
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
pub(crate) async fn store(
    agent: &Agent,
    session: SessionId,
    mut params: MemoryStoreParams,
) -> Result<MemoryStoreResult, KernelError> {
    let _working = agent.life.enter().map_err(KernelError::NotReady)?;
    let (spec, memory) = find(agent, &params.store)?;
    check_count(params.entries.len())?;
    // What was asked, before screening: the same request is the same, whatever has become known since.
    let asked = digest(&canonical(&params.entries));
    let request_hash = digest(&[&asked.0[..], spec.name.as_bytes()].concat());
    let request_id = params.context.request_id;
    let key = key(Keyed::MemoryStore, &request_id);
    let claim = agent
        .dedup
        .claim(key, request_hash, &**agent.scribe.journal(), agent.scribe.now())
        .await?;
    let guard = match claim {
        Claim::Fresh(guard) => guard,
        Claim::Answered(Stored::Memory(result)) => return Ok(result),
        Claim::Answered(Stored::Call(_) | Stored::Delegated(_) | Stored::Message(_)) | Claim::Reused => {
            return Err(KernelError::RequestIdReused(request_id));
        }
    };
    let (count, now) = (params.entries.len(), agent.scribe.now());
    let thread = thread(agent, session);
    let mut drafts = screened(agent, thread, &spec.name, &mut params.entries).await?;
    let bytes = canonical(&params.entries);
    let entries_hash = digest(&bytes);
    let (id, name) = (request_id.as_str(), spec.name.as_str());
    let begun = self::key(Keyed::MemoryBegun, &request_id);
    let batch = batch(agent, begun, request_hash).await?;
    let requested = MemoryRequested {
        batch,
        count,
        entries_hash,
        request_hash,
        request_id: id,
        store: name,
    };
    let draft = agent
        .scribe
        .entry(&thread, kind::MEMORY_REQUESTED, &requested)
        .content(entries_hash, bytes)
        .answers(Some(begun));
    drafts.push(draft);
    agent.scribe.write(drafts).await?;
    let ids = (0..count).map(|at| format!("{batch}-{at}")).collect();
    let ids = memory
        .store(spec, &place(agent), params.entries, ids, now)
        .await?;
    let result = MemoryStoreResult {
        stored: u64::try_from(ids.len()).unwrap_or(u64::MAX),
        ids,
    };
    let payload = MemoryStored {
        count,
        entries_hash,
        request_hash,
        request_id: id,
        store: name,
    };
    let answer = canonical(&result);
    let draft = agent.scribe.entry(&thread, kind::MEMORY_STORED, &payload);
    agent
        .scribe
        .write(vec![draft.content(digest(&answer), answer).answers(Some(key))])
        .await?;
    guard.settle(Stored::Memory(result.clone()), agent.scribe.now());
    Ok(result)
}

/// What the ids of a request's entries are made of. The same request again finds what it was begun with, so a repetition after a
/// crash between the two commits doubles nothing. A request whose id was used longer ago is another one, with entries of its own.
async fn batch(agent: &Agent, begun: AnswerKey, request_hash: Digest) -> Result<Uuid, KernelError> {
    #[derive(Deserialize)]
    struct Begun {
        batch: Uuid,
        request_hash: Digest,
    }
    let now = agent.scribe.now();
    let known = agent.scribe.journal().answer_to(begun).await?;
    let known = known
        .filter(|event| now.0 - event.at.0 < ANSWER_KEPT_MS * 1000)
        .and_then(|event| serde_json::from_str::<Begun>(&event.payload).ok()) // silent-ok: an earlier version's has no batch
        .filter(|begun| begun.request_hash == request_hash);
    Ok(known.map_or_else(|| agent.clock().uuid(), |begun| begun.batch))
}

/// Entries as they may be kept; the refusal is recorded before it is told.
async fn screened(
    agent: &Agent,
    thread: Thread,
    store: &str,
    entries: &mut [NewEntry],
) -> Result<Vec<Draft>, KernelError> {
    let mut look = Look::new(agent, thread, Spot::Memory, store, &Notices::default());
    match screen::remembered(&mut look, entries).await {
        Ok(()) => Ok(look.drafts),
        Err(refused) => {
            agent.scribe.write(look.drafts).await?;
            Err(refused.into())
        }
    }
}

/// `claw.memory.compact`.
pub(crate) async fn compact(
    agent: &Agent,
    session: SessionId,
    params: MemoryCompactParams,
) -> Result<MemoryCompactResult, KernelError> {
    let _working = agent.life.enter().map_err(KernelError::NotReady)?;
    let (store, memory) = find(agent, &params.store)?;
    let (entries_before, entries_after) = memory.compact(store, &place(agent), agent.scribe.now()).await?;
    let payload = MemoryCompacted {
        entries_after,
        entries_before,
        store: &store.name,
    };
    agent
        .scribe
        .write(vec![agent.scribe.entry(
            &thread(agent, session),
            kind::MEMORY_COMPACTED,
            &payload,
        )])
        .await?;
    Ok(MemoryCompactResult {
        entries_before,
        entries_after,
    })
}
