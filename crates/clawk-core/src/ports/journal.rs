//! The journal: the only log, durable before the effect. It *is* the TRACE log (DESIGN §2).

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

/// Bytes that an event refers to by digest. They are stored outside the chain and can be erased without breaking it.
#[derive(Clone, PartialEq, Eq)]
pub struct EventContent {
    /// SHA-256 of `bytes`.
    pub digest: Digest,
    /// The bytes, usually JSON.
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
    /// The session whose chain it extends. A new session's first entry starts its chain.
    pub session: SessionId,
    /// Its id.
    pub event_id: Uuid,
    /// The span.
    pub span: Uuid,
    /// The parent span; ignored in a chain's first event.
    pub parent: Option<Uuid>,
    /// Time of the event.
    pub at: Timestamp,
    /// The event type, for example `action.executed`.
    pub kind: &'static str,
    /// Canonical JSON (JCS) of the payload object: no floats, no integers beyond 2^53 (R27).
    pub payload: Box<RawValue>,
    /// The content to which the payload refers.
    pub content: Option<EventContent>,
    /// This event's content is the stored answer to this request (R19): [`Journal::answer_to`] finds it for at least
    /// [`ANSWER_KEPT_MS`] after `at`.
    pub answers: Option<AnswerKey>,
}

/// How long the stored answer of a request is kept, in milliseconds (R19: 5 minutes).
pub const ANSWER_KEPT_MS: i64 = 300_000;

/// The key of a stored answer: method and request id (R19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AnswerKey {
    /// 0 `claw.tool.call`, 1 `claw.memory.store`, 2 `claw.swarm.delegate`; 3 the beginning of a `claw.memory.store`; 4
    /// `claw.message.send`, whose answers the inbox finds.
    pub method: u8,
    /// Bytes of the request id's UUID.
    pub request_id: [u8; 16],
}

/// An amount that was spent, or assumed to be. The journal adds it to the sum of its hour and budget, or subtracts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpentAmount {
    /// The hour, as whole hours since the Unix epoch.
    pub hour: i64,
    /// The budget: `agent`, `provider:NAME`, `tool:NAME`, `skill:NAME`.
    pub purse: Arc<str>,
    /// The amount.
    pub amount: BudgetAmount,
}

/// An external effect with an unknown outcome that is not settled yet.
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
    /// Time when it became unknown.
    pub at: Timestamp,
}

/// A change of the index of unknown effects (promise 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectChange {
    /// The outcome is unknown.
    Unknown(OpenEffect),
    /// The outcome is known now. A request id alone does not identify an effect, because it may have been used again.
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
    /// The entries in chain order.
    pub entries: Vec<JournalEntry>,
    /// Inbox changes in the same transaction.
    pub inbox: Vec<InboxChange>,
    /// Amounts added in the same transaction.
    pub spent: Vec<SpentAmount>,
    /// Amounts subtracted from the same sums after the additions, at most to zero: they were assumed to be spent, and were not.
    pub unspent: Vec<SpentAmount>,
    /// Effect changes in the same transaction.
    pub effects: Vec<EffectChange>,
    /// Outbox changes in the same transaction, after the inbox.
    pub outbox: Vec<OutboxChange>,
    /// Conditions over all hosts, if there are several.
    pub terms: Option<Box<BatchConditions>>,
}

impl Batch {
    /// Checks the batch. Returns an error if one of its events would make a chain that some verifiers reject.
    #[must_use]
    pub fn find_fault(&self) -> Option<JournalError> {
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

/// Errors of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum JournalError {
    /// The bounded queue is full.
    #[error("the journal's queue is full ({limit} waiting); the disk is slower than the work")]
    Full {
        /// The size of the queue, in entries.
        limit: usize,
    },
    /// The journal can't be written: disk full, I/O error, closed.
    #[error("the journal can't be written: {0}")]
    Unwritable(String),
    /// The journal can't be read.
    #[error("the journal can't be read: {0}")]
    Unreadable(String),
    /// The journal's server can't be reached now. Nothing new begins, and a repetition may succeed soon.
    #[error("the state can't be reached: {0}")]
    Away(String),
    /// Another host has taken over the agent. Running work can no longer be recorded here; the same request to any host gets its
    /// only answer.
    #[error("another host has taken over from `{host}`")]
    Fenced {
        /// The host that lost its lease.
        host: String,
    },
    /// A condition of the batch does not hold over all hosts. Nothing was written.
    #[error("{0}")]
    Unmet(UnmetCondition),
}

/// Completes when a submitted batch is durable.
#[derive(Debug)]
pub struct JournalTicket(tokio::sync::oneshot::Receiver<Result<(), JournalError>>);

impl JournalTicket {
    /// Makes a ticket and the sender that completes it.
    #[must_use]
    pub fn new() -> (tokio::sync::oneshot::Sender<Result<(), JournalError>>, Self) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        (sender, Self(receiver))
    }

    /// Waits until the batch is durable.
    ///
    /// # Errors
    /// The write failed or the journal is gone.
    pub async fn wait_until_durable(self) -> Result<(), JournalError> {
        match self.0.await {
            Ok(outcome) => outcome,
            Err(_) => Err(JournalError::Unwritable("the writer has ended".to_owned())), // silent-ok: RecvError says no more
        }
    }
}

/// One recorded event.
#[derive(Debug, Clone)]
pub struct RecordedEvent {
    /// Its row in the whole journal; ascending.
    pub row: u64,
    /// The session of its chain.
    pub session: SessionId,
    /// Its sequence number in the chain.
    pub sequence: u64,
    /// Time of the event.
    pub at: Timestamp,
    /// The event type.
    pub kind: String,
    /// The payload as canonical JSON text.
    pub payload: String,
    /// The content that it refers to; `None` if there is none or it was erased.
    pub content: Option<EventContent>,
}

impl RecordedEvent {
    /// Returns the payload with the text of its content filled in, if the content was loaded.
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
    /// Microseconds since it was stored, by a clock that all hosts of the agent share. `None`: the event's time gives the age.
    pub age_us: Option<i64>,
}

impl From<RecordedEvent> for StoredAnswer {
    fn from(event: RecordedEvent) -> Self {
        Self { event, age_us: None }
    }
}

/// The conditions of [`Journal::scan_events`]. All given conditions must hold; rows come in their order.
#[derive(Debug, Clone, Default)]
pub struct JournalScan {
    /// Only rows after this one.
    pub after_row: u64,
    /// Largest number of rows; 0: the journal's own page size.
    pub limit: usize,
    /// Only the chain of this session.
    pub session: Option<SessionId>,
    /// Only these types; empty: all.
    pub kinds: &'static [&'static str],
    /// Only events at or after this time.
    pub since: Option<Timestamp>,
    /// Only events whose payload contains this text.
    pub says: Option<String>,
    /// Contents are loaded, too.
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

/// The only log. Submission order is chain order. Nothing is written without it.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Queues a batch without blocking. The ticket completes when the batch is durable.
    ///
    /// # Errors
    /// The queue is full, the journal can't be written, or the batch has a [`Batch::find_fault`]. Then nothing was queued.
    fn submit_batch(&self, batch: Batch) -> Result<JournalTicket, JournalError>;

    /// Returns a counter that changes after each commit with entries, to wake readers. Its value has no meaning.
    fn watch_commits(&self) -> tokio::sync::watch::Receiver<u64>;

    /// Reads events in row order.
    fn scan_events(&self, scan: JournalScan) -> BoxFuture<'_, Result<Vec<RecordedEvent>, JournalError>>;

    /// Returns the last row of this type, if any. Fast for `ckp.lifecycle.transition`.
    fn last_row_of(&self, kind: &'static str) -> BoxFuture<'_, Result<Option<u64>, JournalError>>;

    /// Returns the stored answer to a request. Submitted entries are found as soon as they are durable. Answers older than
    /// [`ANSWER_KEPT_MS`] may be missing.
    fn answer_to(&self, key: AnswerKey) -> BoxFuture<'_, Result<Option<StoredAnswer>, JournalError>>;

    /// Returns a content by digest; `None` if it was erased or is unknown.
    fn read_content(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>>;

    /// Returns accepted messages that are not closed, oldest first.
    fn open_messages(&self) -> BoxFuture<'_, Result<Vec<OpenMessage>, JournalError>>;

    /// Returns the session of any message that was accepted, however it ended.
    fn message_session(&self, id: MessageId) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>>;

    /// Returns the channel's message with this platform id, if it was accepted and the id is still stored at `now`.
    fn find_arrival(
        &self,
        channel: &str,
        platform_id: &str,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<EarlierArrival>, JournalError>>;

    /// Returns the session of a conversation.
    fn conversation_session(
        &self,
        key: &ConversationKey,
    ) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>>;

    /// Returns the first undelivered entry of each conversation of a channel, without dead letters, due ones first, at most
    /// `limit`.
    fn owed_answers(
        &self,
        channel: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>>;

    /// Returns the whole outbox with dead letters, oldest first, at most `limit`.
    fn read_outbox(&self, limit: usize) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>>;

    /// Returns sessions, newest first.
    fn list_sessions(&self, limit: usize) -> BoxFuture<'_, Result<Vec<SessionRow>, JournalError>>;

    /// Returns the amounts spent in this hour and later, summed by hour and budget.
    fn spent_since(&self, hour: i64) -> BoxFuture<'_, Result<Vec<SpentAmount>, JournalError>>;

    /// Returns effects with an unknown outcome, oldest first.
    fn open_effects(&self) -> BoxFuture<'_, Result<Vec<OpenEffect>, JournalError>>;

    /// Returns the other hosts; `None`: this host has the whole agent.
    fn host_cluster(&self) -> Option<Arc<dyn HostCluster>> {
        None
    }

    /// Waits until everything submitted is durable.
    fn flush(&self) -> BoxFuture<'_, Result<(), JournalError>>;
}
