//! What several hosts of one agent share beside the journal (R48): who works on which session, what one host asks of another, and
//! what has to be exact over all of them.

use std::fmt;
use std::sync::Arc;

use clawk_events::kind;
use clawk_proto::SessionId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{AnswerKey, BoxFuture, JournalError};
use crate::purse::{BudgetAmount, BudgetUnit};

/// Conditions of a batch. They are looked at in the transaction that appends it, so they hold over all hosts; where one does not hold,
/// nothing of the batch is written. A journal of one host ignores them: that host has looked already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchConditions {
    /// This request begins here: no other session has begun it.
    pub claim: Option<AnswerKey>,
    /// No emergency stop stands in the journal behind this row: up to there this host knows them.
    pub stops: Option<u64>,
    /// This request ended here before it ran: any session may begin it.
    pub disclaim: Option<AnswerKey>,
    /// One more call has a place in the present minute, which holds so many.
    pub per_minute: Option<u64>,
    /// One more request to this provider has a place in the present minute.
    pub request: Option<ProviderRate>,
    /// There is room under each of these limits.
    pub room: Vec<BudgetDemand>,
    /// Set aside under this id until a batch settles it.
    pub aside: Option<BatchReservation>,
    /// What was set aside under this id is given back: the batch holds what was spent.
    pub settles: Option<Uuid>,
}

/// `requests_per_minute` of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRate {
    /// Its name.
    pub provider: Arc<str>,
    /// How many requests a minute holds.
    pub per_minute: u64,
}

/// One limit, and what is wanted of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetDemand {
    /// Whose: `agent`, `provider:NAME`, `tool:NAME`, `skill:NAME`.
    pub purse: Arc<str>,
    /// The first hour of its window, hours since the epoch.
    pub since_hour: i64,
    /// What is counted.
    pub unit: BudgetUnit,
    /// How much there may be in the window.
    pub bound: u64,
    /// How much is wanted.
    pub wanted: u64,
}

/// What is set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchReservation {
    /// Its id.
    pub id: Uuid,
    /// The purses that it is taken from.
    pub purses: Vec<Arc<str>>,
    /// How much of each.
    pub amount: BudgetAmount,
}

/// Why a batch whose terms do not hold was not written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnmetCondition {
    /// Another session has begun this request: its answer is this one's.
    Claimed,
    /// There is an emergency stop that this host does not know yet.
    Stopped,
    /// The minute is full.
    Rate {
        /// Until a place is free.
        wait_ms: u64,
    },
    /// A limit has no room.
    Room {
        /// Which of [`BatchConditions::room`].
        at: usize,
        /// How much of it is used and set aside on all hosts.
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

/// Who works on a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionHolder {
    /// This host.
    Here,
    /// This host, from now on. Another one had it before: what that one left has to be taken up first.
    Taken,
    /// The host of this name.
    There(String),
}

/// Something that only the host may do which holds a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostOrder {
    /// Its id: the same order is obeyed once.
    pub id: Uuid,
    /// The session.
    pub session: SessionId,
    /// JSON.
    pub wish: Vec<u8>,
}

/// What came since a host looked last.
#[derive(Debug, Default)]
pub struct HostNews {
    /// The journal's last row.
    pub last_row: u64,
    /// Another number than before: another server keeps the journal since a failover, and its last rows may be others.
    pub line: u32,
    /// Open orders for sessions that this host holds, oldest first.
    pub orders: Vec<HostOrder>,
    /// [`HostCluster::take_over`] would find something.
    pub due: bool,
}

/// The hosts of one agent, as one of them sees the others.
pub trait HostCluster: Send + Sync + fmt::Debug {
    /// The name of this host.
    fn host(&self) -> &str;

    /// Whether this host does what one host alone may do: channels, signing, letting contents expire.
    fn leads(&self) -> bool;

    /// Whether others have taken over from this host: it can record nothing any more.
    fn is_lost(&self) -> bool;

    /// Whether this host holds the session, as far as it knows.
    fn holds(&self, session: SessionId) -> bool;

    /// Takes the session if no host holds it.
    fn hold(&self, session: SessionId) -> BoxFuture<'_, Result<SessionHolder, JournalError>>;

    /// Gives the session up once all that was submitted before is durable.
    fn release(&self, session: SessionId);

    /// Something in these sessions may have no end in the record. They are not given up but with this host's run, and taken over then.
    fn unsettled(&self, sessions: &[SessionId]);

    /// The same is settled now.
    fn all_settled(&self, sessions: &[SessionId]);

    /// Looks for hosts that are gone and for work without a holder. Returns sessions that this host holds from now on and has to take
    /// up; at most some dozens at a time.
    fn take_over(&self) -> BoxFuture<'_, Result<Vec<SessionId>, JournalError>>;

    /// What a lost host had set aside for these sessions is settled.
    fn settled(&self, sessions: Vec<SessionId>) -> BoxFuture<'_, Result<(), JournalError>>;

    /// A secret that all hosts of the agent know. The first one that asks brings it: `fresh`.
    fn secret(&self, id: Uuid, fresh: [u8; 32]) -> BoxFuture<'_, Result<[u8; 32], JournalError>>;

    /// What came. `look`: also whether there is something to take over.
    fn news(&self, look: bool) -> BoxFuture<'_, Result<HostNews, JournalError>>;

    /// All that the last [`Self::news`] told of is known here. A host that has not heard of the others for long begins nothing.
    fn followed(&self);

    /// Completes once other hosts may have done something since the last time. It may never complete: whoever waits looks by itself,
    /// too.
    fn woken(&self) -> BoxFuture<'_, ()>;

    /// Gives an order, durably. The same id again changes nothing.
    fn order(&self, order: HostOrder) -> BoxFuture<'_, Result<(), JournalError>>;

    /// What became of an order that this host gave; `None`: nothing yet. Once told, it is forgotten.
    fn outcome(&self, id: Uuid) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>>;

    /// Says what became of an order that this host obeyed.
    fn obeyed(&self, id: Uuid, outcome: Vec<u8>) -> BoxFuture<'_, Result<(), JournalError>>;
}

/// Events about a session that any host may append: they are not part of its turns.
pub const BESIDE: [&str; 5] = [
    kind::DELIVERY_STARTED,
    kind::DELIVERY_ENDED,
    kind::DELIVERY_REQUEUED,
    kind::EFFECT_RESOLVED,
    "ckp.content.redacted",
];
