//! The state that several hosts of one agent share beside the journal (R48): session ownership, orders between hosts, and limits
//! that must be exact over all hosts.

use std::fmt;
use std::sync::Arc;

use clawk_events::kind;
use clawk_proto::SessionId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{AnswerKey, BoxFuture, JournalError};
use crate::purse::{BudgetAmount, BudgetUnit};

/// Conditions of a batch. They are checked in the transaction that appends it, so they hold over all hosts; if one fails, nothing
/// is written. A journal with a single host ignores them, because that host has checked already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchConditions {
    /// This request begins here, and no other session has begun it.
    pub claim: Option<AnswerKey>,
    /// No emergency stop is in the journal after this row, up to which this host knows them.
    pub stops: Option<u64>,
    /// This request ended here before it ran, so any session may begin it.
    pub disclaim: Option<AnswerKey>,
    /// There is room for one more call in the current minute, whose limit is given.
    pub per_minute: Option<u64>,
    /// There is room for one more request to this provider in the current minute.
    pub request: Option<ProviderRate>,
    /// There is room under each of these limits.
    pub room: Vec<BudgetDemand>,
    /// An amount to reserve under this id until a batch settles it.
    pub aside: Option<BatchReservation>,
    /// The reservation with this id ends, because the batch holds what was spent.
    pub settles: Option<Uuid>,
}

/// `requests_per_minute` of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRate {
    /// Name of the provider.
    pub provider: Arc<str>,
    /// Largest number of requests per minute.
    pub per_minute: u64,
}

/// One limit, and the amount wanted from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetDemand {
    /// The budget: `agent`, `provider:NAME`, `tool:NAME`, `skill:NAME`.
    pub purse: Arc<str>,
    /// First hour of its window, as whole hours since the Unix epoch.
    pub since_hour: i64,
    /// The counted unit.
    pub unit: BudgetUnit,
    /// The limit's maximum in the window.
    pub bound: u64,
    /// The wanted amount.
    pub wanted: u64,
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchReservation {
    /// Its id.
    pub id: Uuid,
    /// The budgets that it is taken from.
    pub purses: Vec<Arc<str>>,
    /// The amount for each budget.
    pub amount: BudgetAmount,
}

/// Why a batch was not written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnmetCondition {
    /// Another session has begun this request. Its answer is this one's, too.
    Claimed,
    /// There is an emergency stop that this host does not know yet.
    Stopped,
    /// The limit per minute is used up.
    Rate {
        /// Milliseconds until there is room.
        wait_ms: u64,
    },
    /// A limit is used up.
    Room {
        /// Index in [`BatchConditions::room`].
        at: usize,
        /// The used and reserved amount over all hosts.
        used: u64,
    },
}

impl fmt::Display for UnmetCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claimed => "another host works on the same request",
            Self::Stopped => "another host has stopped the agent",
            Self::Rate { .. } => "the calls or requests of this minute are used up, on all hosts together",
            Self::Room { .. } => "a limit is used up, on all hosts together",
        })
    }
}

/// The owner of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionHolder {
    /// This host.
    Here,
    /// This host, from now on. Another host owned it before, and its unfinished work must be resumed first.
    Taken,
    /// The host with this name.
    There(String),
}

/// An order that only the session's owner may execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostOrder {
    /// Id of the order. The same order is executed once.
    pub id: Uuid,
    /// The session.
    pub session: SessionId,
    /// The request as JSON.
    pub wish: Vec<u8>,
}

/// News since the host's last look.
#[derive(Debug, Default)]
pub struct HostNews {
    /// The journal's last row.
    pub last_row: u64,
    /// Number of the server's timeline. If it changed, another server holds the journal after a failover, and its last rows may
    /// differ.
    pub line: u32,
    /// Open orders for sessions that this host owns, oldest first.
    pub orders: Vec<HostOrder>,
    /// `true` if [`HostCluster::take_over`] would find something.
    pub due: bool,
}

/// The hosts of one agent, as seen by one of them.
pub trait HostCluster: Send + Sync + fmt::Debug {
    /// Returns the name of this host.
    fn host_name(&self) -> &str;

    /// Returns whether this host is the leader: it runs channels, signs, and deletes expired contents.
    fn is_leader(&self) -> bool;

    /// Returns whether others have taken over from this host, so that it can record nothing any more.
    fn is_lost(&self) -> bool;

    /// Returns whether this host owns the session, as far as it knows.
    fn holds_session(&self, session: SessionId) -> bool;

    /// Takes ownership of the session if no host has it.
    fn hold_session(&self, session: SessionId) -> BoxFuture<'_, Result<SessionHolder, JournalError>>;

    /// Releases the session once everything submitted before is durable.
    fn release_session(&self, session: SessionId);

    /// Marks sessions with work that may have no recorded end. They are released only with this host's run, and are then taken
    /// over.
    fn mark_unsettled(&self, sessions: &[SessionId]);

    /// Removes the mark of [`Self::mark_unsettled`].
    fn all_settled(&self, sessions: &[SessionId]);

    /// Looks for lost hosts and for work without an owner. Returns sessions that this host now owns and must resume, at most some
    /// dozens at a time.
    fn take_over(&self) -> BoxFuture<'_, Result<Vec<SessionId>, JournalError>>;

    /// Records that a lost host's reservations for these sessions are settled.
    fn mark_settled(&self, sessions: Vec<SessionId>) -> BoxFuture<'_, Result<(), JournalError>>;

    /// Returns a secret that all hosts of the agent share. The first caller's `fresh` becomes the secret.
    fn shared_secret(&self, id: Uuid, fresh: [u8; 32]) -> BoxFuture<'_, Result<[u8; 32], JournalError>>;

    /// Returns the news. `look`: also checks whether there is something to take over.
    fn poll_news(&self, look: bool) -> BoxFuture<'_, Result<HostNews, JournalError>>;

    /// Confirms that all of the last [`Self::poll_news`] is applied here. A host without news for long begins nothing.
    fn confirm_followed(&self);

    /// Completes when other hosts may have done something since the last time. It may never complete, so a waiting task must also
    /// look by itself.
    fn wait_for_wake(&self) -> BoxFuture<'_, ()>;

    /// Writes an order, durably. Repeating an id changes nothing.
    fn give_order(&self, order: HostOrder) -> BoxFuture<'_, Result<(), JournalError>>;

    /// Returns the outcome of an order of this host; `None`: not yet known. It is deleted when returned.
    fn order_outcome(&self, id: Uuid) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>>;

    /// Records the outcome of an order that this host executed.
    fn report_outcome(&self, id: Uuid, outcome: Vec<u8>) -> BoxFuture<'_, Result<(), JournalError>>;
}

/// Event types about a session that any host may append, because they are not part of its turns.
pub const BESIDE: [&str; 5] = [
    kind::DELIVERY_STARTED,
    kind::DELIVERY_ENDED,
    kind::DELIVERY_REQUEUED,
    kind::EFFECT_RESOLVED,
    "ckp.content.redacted",
];
