//! The journal: the one log, durable before the effect. It *is* the TRACE log (DESIGN §2).

use std::fmt;
use std::sync::Arc;

use clawk_events::{Event, EventError, PayloadFault, ReadPayload};
use clawk_proto::trace::PAYLOAD_MAX_BYTES;
use clawk_proto::{Digest, MessageId, RequestId, SessionId};
use clawk_trace::canonical::is_payload;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::BoxFuture;
use super::deliver::{OutboxChange, OutboxRow};
use super::inbox::{ConversationKey, EarlierArrival, InboxChange};
use super::shared::{BatchConditions, HostCluster, UnmetCondition};
use crate::purse::BudgetAmount;
use crate::time::Timestamp;

/// Bytes that an event refers to by digest. They lie outside the chain and can be erased without breaking it.
#[derive(Clone, PartialEq, Eq)]
pub struct EventContent {
    /// SHA-256 of `bytes`.
    pub digest: Digest,
    /// Usually JSON.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for EventContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({}, {} bytes)", self.digest, self.bytes.len())
    }
}

/// One event to append. The journal adds the sequence number, the trace id and the hashes.
#[derive(Debug, Clone)]
pub struct JournalEntry {
    /// The chain that it joins; the first entry of a new session starts its chain.
    pub session: SessionId,
    /// Its id.
    pub event_id: Uuid,
    /// The span.
    pub span: Uuid,
    /// The span above; ignored in a chain's first event.
    pub parent: Option<Uuid>,
    /// When.
    pub at: Timestamp,
    /// The event type, for example `action.executed`.
    pub kind: &'static str,
    /// Canonical JSON (JCS) of the payload object: no floats, no integers beyond 2^53 (R27).
    pub payload: Box<RawValue>,
    /// What the payload refers to by digest.
    pub content: Option<EventContent>,
    /// This event's content is the stored answer to this request (R19): [`Journal::answer_to`] finds it for at least
    /// [`ANSWER_KEPT_MS`] after `at`.
    pub answers: Option<AnswerKey>,
}

/// How long the stored answer of a request is kept, in milliseconds (R19: 5 minutes).
pub const ANSWER_KEPT_MS: i64 = 300_000;

/// The key of a stored answer: which method, which request id (R19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AnswerKey {
    /// 0 `claw.tool.call`, 1 `claw.memory.store`, 2 `claw.swarm.delegate`; 3 the beginning of a `claw.memory.store`; 4
    /// `claw.message.send`, whose answers the inbox finds.
    pub method: u8,
    /// The UUID's bytes.
    pub request_id: [u8; 16],
}

/// An amount that was spent, or was assumed to be. The journal adds it to the sum of its hour and account, or takes it off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpentAmount {
    /// Hours since the epoch.
    pub hour: i64,
    /// Which purse: `agent`, `provider:NAME`, `tool:NAME`, `skill:NAME`.
    pub purse: Arc<str>,
    /// How much.
    pub amount: BudgetAmount,
}

/// An outside effect of unknown outcome that is not settled yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenEffect {
    /// The call.
    pub request_id: RequestId,
    /// Its session.
    pub session: SessionId,
    /// The tool.
    pub tool: String,
    /// SHA-256 of the arguments' canonical JSON.
    pub parameters: Digest,
    /// When it became unknown.
    pub at: Timestamp,
}

/// A change of the index of unknown effects (promise 4): it holds until somebody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectChange {
    /// Its outcome is not known.
    Unknown(OpenEffect),
    /// It is known now. A request id alone does not name an effect: it may have been used again.
    Resolved {
        /// The call.
        request_id: RequestId,
        /// Its session.
        session: SessionId,
        /// SHA-256 of the arguments' canonical JSON.
        parameters: Digest,
    },
}

/// Entries that become durable together or not at all.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// In chain order.
    pub entries: Vec<JournalEntry>,
    /// Changed in the same transaction.
    pub inbox: Vec<InboxChange>,
    /// Added in the same transaction.
    pub spent: Vec<SpentAmount>,
    /// Taken off the same sums, after what is added, and never more than they hold: it was assumed to be spent, and was not.
    pub unspent: Vec<SpentAmount>,
    /// Changed in the same transaction.
    pub effects: Vec<EffectChange>,
    /// Changed in the same transaction, after the inbox.
    pub outbox: Vec<OutboxChange>,
    /// What must hold over all hosts, where there are several.
    pub terms: Option<Box<BatchConditions>>,
}

impl Batch {
    /// Checks the batch. Returns an error if one of its events would make a chain that some verifiers reject.
    #[must_use]
    pub fn fault(&self) -> Option<JournalError> {
        let why = |entry: &JournalEntry| {
            let payload = entry.payload.get();
            if payload.len() > PAYLOAD_MAX_BYTES {
                return Some("is larger than every verifier takes");
            }
            (!is_payload(payload)).then_some("is not canonical JSON")
        };
        let (entry, why) = self.entries.iter().find_map(|entry| Some((entry, why(entry)?)))?;
        let kind = entry.kind;
        Some(JournalError::Unwritable(format!(
            "the payload of a `{kind}` event {why}"
        )))
    }
}

/// Why the journal did not take or find something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum JournalError {
    /// The bounded queue is full.
    #[error("the journal's queue is full ({limit} waiting); the disk is slower than the work")]
    Full {
        /// The bound that was hit, entries.
        limit: usize,
    },
    /// It can't be written: disk full, I/O error, closed.
    #[error("the journal can't be written: {0}")]
    Unwritable(String),
    /// It can't be read.
    #[error("the journal can't be read: {0}")]
    Unreadable(String),
    /// The server that keeps it is gone for now: nothing new begins, and the same again may succeed soon.
    #[error("the state can't be reached: {0}")]
    Away(String),
    /// Another host has taken the agent: nothing of what is under way here can be recorded any more, and the same request to any host
    /// gets its one answer.
    #[error("another host has taken over from `{host}`")]
    Fenced {
        /// The host that lost its lease.
        host: String,
    },
    /// A condition of the batch does not hold over all hosts: nothing of it was taken.
    #[error("{0}")]
    Unmet(UnmetCondition),
}

/// The promise that a submitted batch will be durable.
#[derive(Debug)]
pub struct JournalTicket(tokio::sync::oneshot::Receiver<Result<(), JournalError>>);

impl JournalTicket {
    /// A ticket and the sender that fulfils it.
    #[must_use]
    pub fn new() -> (tokio::sync::oneshot::Sender<Result<(), JournalError>>, Self) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        (sender, Self(receiver))
    }

    /// Waits until the batch is durable.
    ///
    /// # Errors
    /// It will never be: the write failed or the journal is gone.
    pub async fn durable(self) -> Result<(), JournalError> {
        match self.0.await {
            Ok(outcome) => outcome,
            Err(_) => Err(JournalError::Unwritable("the writer has ended".to_owned())), // silent-ok: RecvError says no more
        }
    }
}

/// One event as kept.
#[derive(Debug, Clone)]
pub struct RecordedEvent {
    /// Its place in the whole journal; grows.
    pub row: u64,
    /// Its chain.
    pub session: SessionId,
    /// Its place in the chain.
    pub sequence: u64,
    /// When.
    pub at: Timestamp,
    /// The type.
    pub kind: String,
    /// The payload's canonical text.
    pub payload: String,
    /// The content it refers to; `None` when there is none or it was erased.
    pub content: Option<EventContent>,
}

impl RecordedEvent {
    /// The payload as people read it: with the words that its content holds, where the content was loaded.
    #[must_use]
    pub fn payload_with_words(&self) -> std::borrow::Cow<'_, str> {
        let content = self.content.as_ref().map(|content| content.bytes.as_slice());
        crate::event_words::payload_with_words(&self.payload, content)
    }

    /// The event.
    ///
    /// # Errors
    /// [`JournalError::Unreadable`], with the event's place and the field: what an event lacks is never taken for a default.
    pub fn read(&self) -> Result<Event, JournalError> {
        Event::read(&self.kind, &self.payload).map_err(|error| self.unreadable(&error))
    }

    /// The event, where all that it says counts.
    ///
    /// # Errors
    /// As [`Self::read`]; also a payload that was cut to the size of an event.
    pub fn read_whole(&self) -> Result<Event, JournalError> {
        match self.read()? {
            Event::Shortened { kind, .. } => Err(self.unreadable(&EventError {
                kind: kind.to_owned(),
                fault: PayloadFault::Shortened,
            })),
            event => Ok(event),
        }
    }

    /// The payload, where the event can only be of this type.
    ///
    /// # Errors
    /// As [`Self::read`]; also a payload that was cut to the size of an event.
    pub fn read_as<P: ReadPayload>(&self) -> Result<P, JournalError> {
        P::read_payload(&self.kind, &self.payload).map_err(|error| self.unreadable(&error))
    }

    /// The same with the words that its content holds, where the content was loaded.
    ///
    /// # Errors
    /// As [`Self::read_as`].
    pub fn read_with_words<P: ReadPayload>(&self) -> Result<P, JournalError> {
        P::read_payload(&self.kind, &self.payload_with_words()).map_err(|error| self.unreadable(&error))
    }

    /// The members of its payload with the words that its content holds, for who compares or shows them all.
    ///
    /// # Errors
    /// The payload is not an object.
    pub fn members_with_words(&self) -> Result<Map<String, Value>, JournalError> {
        clawk_events::read_members(&self.kind, &self.payload_with_words())
            .map_err(|error| self.unreadable(&error))
    }

    /// The error that names this event as one that can't be read.
    #[must_use]
    pub fn unreadable(&self, error: &EventError) -> JournalError {
        let (sequence, session) = (self.sequence, self.session);
        JournalError::Unreadable(format!("event {sequence} of session {session}: {error}"))
    }
}

/// The stored answer to a request (see [`JournalEntry::answers`]).
#[derive(Debug, Clone)]
pub struct StoredAnswer {
    /// The event that holds it, with its content.
    pub event: RecordedEvent,
    /// Microseconds since it was stored, by a clock that all hosts of the agent share. `None`: the event's time says how old it is.
    pub age_us: Option<i64>,
}

impl From<RecordedEvent> for StoredAnswer {
    fn from(event: RecordedEvent) -> Self {
        Self { event, age_us: None }
    }
}

/// The conditions of [`Journal::scan`]. All given conditions must hold; rows come in their order.
#[derive(Debug, Clone, Default)]
pub struct JournalScan {
    /// Only rows after this one.
    pub after_row: u64,
    /// At most so many; 0 means the journal's own page size.
    pub limit: usize,
    /// Only this chain.
    pub session: Option<SessionId>,
    /// Only these types; empty: all.
    pub kinds: &'static [&'static str],
    /// Only events at or after this time.
    pub since: Option<Timestamp>,
    /// Only events whose payload holds this text.
    pub says: Option<String>,
    /// Also load contents.
    pub with_content: bool,
}

/// An accepted message whose turn did not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenMessage {
    /// Its session.
    pub session: SessionId,
    /// Its id.
    pub message: MessageId,
}

/// A session as the journal lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// Its id.
    pub session: SessionId,
    /// Events in its chain.
    pub events: u64,
    /// The first event's time.
    pub started: Timestamp,
    /// The last event's time.
    pub last: Timestamp,
}

/// The one log. Submission order is chain order; nothing is ever written past it.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Queues a batch; never blocks. The ticket is fulfilled when the batch is durable.
    ///
    /// # Errors
    /// The queue is full, the journal can't be written, or the batch has a [`Batch::fault`]: nothing was taken.
    fn submit(&self, batch: Batch) -> Result<JournalTicket, JournalError>;

    /// Wakes readers: it changes after each commit that holds entries. What it counts up means nothing.
    fn watch(&self) -> tokio::sync::watch::Receiver<u64>;

    /// Reads events in row order.
    fn scan(&self, scan: JournalScan) -> BoxFuture<'_, Result<Vec<RecordedEvent>, JournalError>>;

    /// The last row of this type, if any. Fast for `ckp.lifecycle.transition`.
    fn last_row_of(&self, kind: &'static str) -> BoxFuture<'_, Result<Option<u64>, JournalError>>;

    /// The stored answer to a request. Submitted
    /// entries are found as soon as they are durable. Answers older than [`ANSWER_KEPT_MS`] may be forgotten.
    fn answer_to(&self, key: AnswerKey) -> BoxFuture<'_, Result<Option<StoredAnswer>, JournalError>>;

    /// Bytes by digest; `None` when erased or unknown.
    fn content(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>>;

    /// Messages that were accepted and not closed, oldest first.
    fn open_messages(&self) -> BoxFuture<'_, Result<Vec<OpenMessage>, JournalError>>;

    /// The session of a message that was ever accepted, however it ended.
    fn message(&self, id: MessageId) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>>;

    /// The message of a channel that has this platform id, if one was taken and is still remembered at `now`.
    fn arrived(
        &self,
        channel: &str,
        platform_id: &str,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<EarlierArrival>, JournalError>>;

    /// The session of a conversation.
    fn conversation(&self, key: &ConversationKey) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>>;

    /// The first entry of each conversation of a channel that is owed and not dead, those that are due first, at most `limit`.
    fn owed(&self, channel: &str, limit: usize) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>>;

    /// The whole outbox, dead letters among it, oldest first, at most `limit`.
    fn outbox(&self, limit: usize) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>>;

    /// Sessions, the latest first.
    fn sessions(&self, limit: usize) -> BoxFuture<'_, Result<Vec<SessionRow>, JournalError>>;

    /// What was spent in this hour and later, summed by hour and purse.
    fn spent_since(&self, hour: i64) -> BoxFuture<'_, Result<Vec<SpentAmount>, JournalError>>;

    /// Effects whose outcome is still unknown, oldest first.
    fn open_effects(&self) -> BoxFuture<'_, Result<Vec<OpenEffect>, JournalError>>;

    /// The other hosts; `None`: there are none, and whoever has the journal has the whole agent.
    fn shared(&self) -> Option<Arc<dyn HostCluster>> {
        None
    }

    /// Waits until all that was submitted is durable.
    fn flush(&self) -> BoxFuture<'_, Result<(), JournalError>>;
}
