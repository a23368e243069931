//! Deduplication: each request id is executed at most once (R19). The same request gets the same answer.
//!
//! The journal stores the answers. This module holds only the running claims, the latest answers, and a Bloom filter that avoids
//! journal queries for ids never seen. Memory is bounded at any request rate.
//!
//! Its time is the wall clock at the start plus the elapsed time. A jump of the wall clock makes no answer older, so a request
//! repeated within five minutes never runs twice in one process. A start does not know how long the agent was down or whether the
//! clock was changed, so answers of the last five minutes before it are kept for five more.
//!
//! If several hosts serve the agent, their clocks differ. Then the journal's own clock determines an answer's age
//! ([`StoredAnswer::age_us`]).

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_events::payload::{
    ActionDenied, ActionExecuted, ActionFailed, MemoryWrite, SwarmDelegated, SwarmProgress,
};
use clawk_proto::method::{AcknowledgedResult, MemoryStoreResult, ToolCallResult};
use clawk_proto::{Digest, RequestId};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::error::CallError;
use crate::event::kind;
use crate::ports::{ANSWER_KEPT_MS, AnswerKey, Journal, JournalError, RecordedEvent, StoredAnswer};
use crate::time::{Clock, SteadyClock, Timestamp};
use crate::turn_result::TurnResult;

/// Number of answers kept in memory.
const RECENT_ANSWERS: usize = 2048;
/// Number of bits in one generation of the filter.
const FILTER_BITS: u64 = 1 << 23;
/// Number of bits set per id.
const FILTER_HASHES: u64 = 4;

/// The method of a request id (R19).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupMethod {
    /// `tools/call`, and the calls of turns.
    Call,
    /// `claw.memory.store`.
    MemoryStore,
    /// `claw.swarm.delegate`.
    Delegate,
    /// `claw.message.send`. The inbox finds its answers, because it stores every message (R19: at least seven days).
    Message,
    /// The beginning of a `claw.memory.store` with its entries' ids; not an answer.
    MemoryBegun,
}

/// Returns the key of a request's stored answer.
pub fn answer_key(method: DedupMethod, request_id: &RequestId) -> AnswerKey {
    // A RequestId always holds a hyphenated UUID.
    answer_key_from_uuid(
        method,
        uuid::Uuid::parse_str(request_id.as_str()).unwrap_or_default(),
    )
}

/// Like [`answer_key`], for an id that is already a UUID.
pub fn answer_key_from_uuid(method: DedupMethod, id: uuid::Uuid) -> AnswerKey {
    let method = match method {
        DedupMethod::Call => 0,
        DedupMethod::MemoryStore => 1,
        DedupMethod::Delegate => 2,
        DedupMethod::MemoryBegun => 3,
        DedupMethod::Message => 4,
    };
    AnswerKey {
        method,
        request_id: id.into_bytes(),
    }
}

/// A stored answer.
#[derive(Debug, Clone, PartialEq)]
pub enum DedupAnswer {
    /// The outcome of a call.
    Call(Result<ToolCallResult, CallError>),
    /// The ids of stored entries.
    Memory(MemoryStoreResult),
    /// A run was accepted.
    Delegated(AcknowledgedResult),
    /// The result of a message.
    Message(Box<TurnResult>),
}

/// Returns the answer to a request that stored entries with these ids.
pub fn stored_ids(ids: Vec<String>) -> MemoryStoreResult {
    MemoryStoreResult {
        stored: u64::try_from(ids.len()).unwrap_or(u64::MAX),
        ids,
    }
}

/// Returns the answer to a request that stored `count` entries of `batch`.
fn stored_as(batch: uuid::Uuid, count: usize) -> MemoryStoreResult {
    stored_ids((0..count).map(|at| format!("{batch}-{at}")).collect())
}

#[derive(Debug)]
struct AnsweredRequest {
    digest: Digest,
    answer: DedupAnswer,
}

type AnswerSlot = Option<Arc<AnsweredRequest>>;

/// The result of a claim.
#[derive(Debug)]
pub enum Claim<'a> {
    /// The first claim of this request: continue, then settle it.
    Fresh(Guard<'a>),
    /// The request was answered before.
    Answered(DedupAnswer),
    /// The id was used with other arguments.
    Reused,
}

/// The outcome of a request on another host.
#[derive(Debug)]
pub enum RemoteClaimOutcome {
    /// It was answered.
    Answered(Claim<'static>),
    /// The other agent ended before the request ran. `row` is the row of the event that records it.
    NotRun {
        /// The row of that event.
        row: u64,
    },
}

/// A running claim. If it is dropped without being settled, the next claim may try.
#[derive(Debug)]
pub struct Guard<'a> {
    dedup: &'a DedupTable,
    key: AnswerKey,
    digest: Digest,
    sender: watch::Sender<AnswerSlot>,
}

/// The table of claims.
#[derive(Debug)]
pub struct DedupTable {
    clock: Arc<dyn Clock>,
    steady: SteadyClock,
    /// Wall-clock time of the journal's last event before the start.
    before: Option<Timestamp>,
    inner: Mutex<DedupState>,
    /// Time until which the journal may hold answers of an earlier process.
    cold_until: Timestamp,
}

#[derive(Debug)]
struct DedupState {
    running: HashMap<AnswerKey, (Digest, watch::Receiver<AnswerSlot>)>,
    recent: HashMap<AnswerKey, Arc<AnsweredRequest>>,
    order: VecDeque<(Timestamp, AnswerKey)>,
    evicted: Filter,
}

enum ClaimLookup {
    Fresh(watch::Sender<AnswerSlot>),
    Wait(Digest, watch::Receiver<AnswerSlot>),
    Answered(Arc<AnsweredRequest>),
    AskJournal,
}

impl DedupTable {
    /// Makes the table. `before`: time of an earlier process's last event. `shared`: other hosts answer, too, so the journal is
    /// always queried.
    pub fn new(clock: Arc<dyn Clock>, before: Option<Timestamp>, shared: bool) -> Self {
        let steady = SteadyClock::new(Arc::clone(&clock));
        let now = steady.now();
        let inner = DedupState {
            running: HashMap::new(),
            recent: HashMap::new(),
            order: VecDeque::new(),
            evicted: Filter::new(now),
        };
        let cold_until = if shared {
            Timestamp(i64::MAX)
        } else if before.is_some() {
            now.plus_millis(ANSWER_KEPT_MS)
        } else {
            now
        };
        Self {
            clock,
            steady,
            before,
            inner: Mutex::new(inner),
            cold_until,
        }
    }

    fn now(&self) -> Timestamp {
        self.steady.now()
    }

    /// Returns whether the journal's answer is still valid for its request.
    pub fn is_kept(&self, answer: &StoredAnswer) -> bool {
        let (kept_us, at) = (ANSWER_KEPT_MS * 1000, answer.event.at);
        let latest_of_before = self
            .before
            .is_some_and(|last| at <= last && last.0.saturating_sub(at.0) < kept_us);
        let age_us = answer.age_us.unwrap_or_else(|| self.now().0.saturating_sub(at.0));
        age_us < kept_us || latest_of_before && self.steady.passed_us() < kept_us
    }

    /// Does the same for a given request. If the wall clock was changed under this process, event times are not usable; an answer
    /// that was in memory some minutes ago still counts.
    fn still_answers(&self, key: AnswerKey, answer: &StoredAnswer) -> bool {
        let at_hand = || self.steady.has_jumped() && self.lock().evicted.may_hold(key);
        self.is_kept(answer) || answer.age_us.is_none() && at_hand()
    }

    /// Returns whether this time was in the future when an earlier process recorded its last event.
    pub fn was_ahead(&self, at: Timestamp) -> bool {
        self.before.is_some_and(|last| last < at)
    }

    /// Returns whether the wall clock is behind an earlier process's record. It was set back, so earlier times do not give an age.
    pub fn is_behind(&self) -> bool {
        self.before.is_some_and(|last| self.clock.now() < last)
    }

    fn lock(&self) -> MutexGuard<'_, DedupState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a request. If the same request is running, waits for its answer.
    pub async fn claim_request(
        &self,
        key: AnswerKey,
        digest: Digest,
        journal: &dyn Journal,
    ) -> Result<Claim<'_>, JournalError> {
        let now = self.now();
        let mut asked = now >= self.cold_until;
        let mut journal_asked = false;
        loop {
            let found = self.lookup_claim(key, digest, now, asked, journal_asked);
            match found {
                ClaimLookup::Fresh(sender) => {
                    return Ok(Claim::Fresh(Guard {
                        dedup: self,
                        key,
                        digest,
                        sender,
                    }));
                }
                ClaimLookup::Answered(answered) => return Ok(answered.claim_for_digest(digest)),
                ClaimLookup::Wait(other, _) if other != digest => return Ok(Claim::Reused),
                ClaimLookup::Wait(_, mut receiver) => {
                    // The sender is dropped when the first call ends, which ends this wait.
                    let outcome = receiver
                        .wait_for(Option::is_some)
                        .await
                        .ok()
                        .and_then(|slot| slot.clone()); // silent-ok: dropped means unsettled; try again
                    if let Some(answered) = outcome {
                        return Ok(answered.claim_for_digest(digest));
                    }
                }
                ClaimLookup::AskJournal => {
                    if let Some(answer) = journal.answer_to(key).await?
                        && self.still_answers(key, &answer)
                        && let Some(answered) = AnsweredRequest::read(&answer.event)?
                        && !answered.is_no_answer()
                    {
                        return Ok(Arc::new(answered).claim_for_digest(digest));
                    }
                    asked = true;
                    journal_asked = true;
                }
            }
        }
    }

    /// Returns the journal's record of a request that another host has begun; `None`: nothing yet.
    pub async fn recorded_outcome(
        &self,
        key: AnswerKey,
        digest: Digest,
        journal: &dyn Journal,
    ) -> Result<Option<RemoteClaimOutcome>, JournalError> {
        let answer = journal.answer_to(key).await?;
        let Some(StoredAnswer { event, .. }) = answer.filter(|answer| self.is_kept(answer)) else {
            return Ok(None);
        };
        Ok(
            AnsweredRequest::read(&event)?.map(|answered| match answered.is_no_answer() {
                true => RemoteClaimOutcome::NotRun { row: event.row },
                false => RemoteClaimOutcome::Answered(answered.claim_for_digest(digest)),
            }),
        )
    }

    fn lookup_claim(
        &self,
        key: AnswerKey,
        digest: Digest,
        now: Timestamp,
        warm: bool,
        journal_asked: bool,
    ) -> ClaimLookup {
        let mut inner = self.lock();
        inner.expire_answers(now);
        if let Some((other, receiver)) = inner.running.get(&key) {
            return ClaimLookup::Wait(*other, receiver.clone());
        }
        if let Some(answered) = inner.recent.get(&key) {
            return ClaimLookup::Answered(Arc::clone(answered));
        }
        if !journal_asked && (!warm || inner.evicted.may_hold(key)) {
            return ClaimLookup::AskJournal;
        }
        let (sender, receiver) = watch::channel(None);
        inner.running.insert(key, (digest, receiver));
        ClaimLookup::Fresh(sender)
    }
}

impl AnsweredRequest {
    /// Returns whether the agent ended before the request ran.
    fn is_no_answer(&self) -> bool {
        matches!(&self.answer, DedupAnswer::Call(Err(error)) if error.is_no_answer())
    }

    fn claim_for_digest<'a>(&self, digest: Digest) -> Claim<'a> {
        if self.digest == digest {
            Claim::Answered(self.answer.clone())
        } else {
            Claim::Reused
        }
    }

    /// Reads an answering event back; `None`: its content is erased, or of another form.
    ///
    /// # Errors
    /// The event can't be read: a request that has an answer must not run again.
    fn read(recorded: &RecordedEvent) -> Result<Option<Self>, JournalError> {
        let bytes = recorded.content.as_ref().map(|content| content.bytes.as_slice());
        let (digest, answer) = match recorded.kind.as_str() {
            kind::ACTION_EXECUTED => {
                let executed: ActionExecuted = recorded.read_as()?;
                let result = content_of(bytes).map(|result| DedupAnswer::Call(Ok(result)));
                (Some(executed.request_hash), result)
            }
            kind::ACTION_DENIED => {
                let denied: ActionDenied = recorded.read_as()?;
                let error = content_of(bytes).map(|error| DedupAnswer::Call(Err(error)));
                (Some(denied.request_hash), error)
            }
            kind::ACTION_FAILED => {
                let failed: ActionFailed = recorded.read_as()?;
                let error = content_of(bytes).map(|error| DedupAnswer::Call(Err(error)));
                (Some(failed.request_hash), error)
            }
            kind::MEMORY_STORED => {
                let stored: MemoryWrite = recorded.read_as()?;
                let ids = match bytes {
                    Some(_) => content_of(bytes),
                    // One commit with the entries: their ids follow from it.
                    None => stored.batch.and_then(|batch| {
                        // silent-ok: more than memory holds is no number of ours
                        let count = usize::try_from(stored.count).ok()?;
                        Some(stored_as(batch, count))
                    }),
                };
                (stored.request_hash, ids.map(DedupAnswer::Memory))
            }
            kind::SWARM_RUN => (
                recorded.read_as::<SwarmProgress>()?.request_hash,
                Some(ACKNOWLEDGED),
            ),
            kind::SWARM_DELEGATED => (
                recorded.read_as::<SwarmDelegated>()?.request_hash,
                Some(ACKNOWLEDGED),
            ),
            _ => (None, None),
        };
        Ok(digest.zip(answer).map(|(digest, answer)| Self { digest, answer }))
    }
}

const ACKNOWLEDGED: DedupAnswer = DedupAnswer::Delegated(AcknowledgedResult { acknowledged: true });

/// The content as what it is an answer of.
fn content_of<T: DeserializeOwned>(bytes: Option<&[u8]>) -> Option<T> {
    serde_json::from_slice(bytes?).ok() // silent-ok: erased content, or an answer that this version does not know
}

impl Guard<'_> {
    /// Publishes the answer to waiting and later callers.
    pub fn publish_answer(self, answer: DedupAnswer) {
        let now = self.dedup.now();
        let answered = Arc::new(AnsweredRequest {
            digest: self.digest,
            answer,
        });
        {
            let mut inner = self.dedup.lock();
            inner.recent.insert(self.key, Arc::clone(&answered));
            inner.order.push_back((now, self.key));
            while inner.order.len() > RECENT_ANSWERS {
                inner.evict_answers(now);
            }
        }
        self.sender.send_replace(Some(answered));
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.dedup.lock().running.remove(&self.key);
    }
}

impl DedupState {
    fn evict_answers(&mut self, now: Timestamp) {
        if let Some((at, key)) = self.order.pop_front() {
            self.recent.remove(&key);
            if now.0 - at.0 < ANSWER_KEPT_MS * 1000 {
                self.evicted.insert(key, now);
            }
        }
    }

    fn expire_answers(&mut self, now: Timestamp) {
        while self
            .order
            .front()
            .is_some_and(|(at, _)| now.0 - at.0 >= ANSWER_KEPT_MS * 1000)
        {
            self.evict_answers(now);
        }
    }
}

/// A Bloom filter with two generations of five minutes each. Allocated when the first answer is evicted.
#[derive(Debug)]
struct Filter {
    hasher: RandomState,
    generations: [Vec<u64>; 2],
    turned: Timestamp,
}

impl Filter {
    fn new(now: Timestamp) -> Self {
        Self {
            hasher: RandomState::new(),
            generations: [Vec::new(), Vec::new()],
            turned: now,
        }
    }

    fn bit_positions(&self, key: AnswerKey) -> impl Iterator<Item = (usize, u64)> + use<> {
        let hash = self.hasher.hash_one(key);
        let (first, second) = (hash & 0xffff_ffff, (hash >> 32) | 1);
        (0..FILTER_HASHES).map(move |i| {
            let bit = first.wrapping_add(i.wrapping_mul(second)) % FILTER_BITS;
            (usize::try_from(bit / 64).unwrap_or(0), 1 << (bit % 64))
        })
    }

    fn insert(&mut self, key: AnswerKey, now: Timestamp) {
        if now.0 - self.turned.0 >= ANSWER_KEPT_MS * 1000 {
            self.turned = now;
            self.generations.swap(0, 1);
            self.generations[0].fill(0);
        }
        let bits = self.bit_positions(key);
        let words = &mut self.generations[0];
        if words.is_empty() {
            words.resize(usize::try_from(FILTER_BITS / 64).unwrap_or(0), 0);
        }
        for (word, mask) in bits {
            if let Some(word) = words.get_mut(word) {
                *word |= mask;
            }
        }
    }

    fn may_hold(&self, key: AnswerKey) -> bool {
        self.generations.iter().any(|words| {
            !words.is_empty()
                && self
                    .bit_positions(key)
                    .all(|(word, mask)| words.get(word).is_some_and(|w| w & mask != 0))
        })
    }
}
