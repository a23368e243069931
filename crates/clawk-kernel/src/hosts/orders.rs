//! Orders from one host to a session's owner: to accept a message or an approval answer, or to pass something to the swarm's
//! coordinator.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clawk_manifest::model::Role;
use clawk_proto::{RequestId, SessionId};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::hand::{self, HandedMessage};
use super::runs::{self, CoordinatorRequest};
use super::{ASLEEP, AWAKE, GAP, LOOK, PeerHosts, TICK, follow, lock};
use crate::agent::Agent;
use crate::call::{self, ApprovalReply, CallGovernor, GrantScope, ReplyOutcome};
use crate::event::canonical;
use crate::notice::ApprovalAnswer;
use crate::ports::{HostOrder, JournalError};
use crate::roles::KnownPerson;
use crate::sheet::PreviewReceipt;

/// Time limit for an approval answer to reach the host of its call.
const PATIENCE: Duration = Duration::from_secs(15);
/// Interval at which the outcome is looked for.
const AGAIN: Duration = Duration::from_millis(100);

/// The request of an order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "wish", rename_all = "kebab-case")]
pub(super) enum HostOrderRequest {
    Message(Box<HandedMessage>),
    Reply(Box<HandedReply>),
    /// Release the session of a task, unless it is open there.
    Release,
    Swarm {
        what: Box<CoordinatorRequest>,
    },
}

/// A person's answer on its way to the waiting call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HandedReply {
    id: String,
    answer: ApprovalAnswer,
    breadth: GrantScope,
    channel: String,
    name: String,
    role: String,
    reason: Option<String>,
    seen: PreviewReceipt,
}

/// Follows the journal and executes orders, until the agent ends or other hosts have taken over.
pub(super) async fn listen_for_orders(agent: &Arc<Agent>, hosts: &Arc<PeerHosts>) {
    let (mut row, mut happened) = (0, Instant::now());
    let mut looked: Option<Instant> = None;
    while !hosts.shared.is_lost() {
        // Done with the read that is closest to the due time.
        let look = looked.is_none_or(|last| last.elapsed() + TICK > LOOK);
        match follow_once(agent, hosts, look).await {
            Ok(seen) => {
                if look {
                    looked = Some(Instant::now());
                }
                if seen.row != row || seen.ordered {
                    (row, happened) = (seen.row, Instant::now());
                }
            }
            Err(error) => tracing::debug!(%error, "what other hosts do can't be seen"),
        }
        let awake = happened.elapsed() < AWAKE || !lock(&hosts.waits).is_empty();
        pause_until_woken(hosts, if awake { TICK } else { ASLEEP }).await;
    }
}

/// Waits for the given time, or until another host wakes this one.
async fn pause_until_woken(hosts: &PeerHosts, time: Duration) {
    tokio::time::sleep(GAP).await;
    tokio::select! {
        biased;
        () = hosts.shared.wait_for_wake() => {}
        () = tokio::time::sleep(time.saturating_sub(GAP)) => {}
    }
}

/// The progress of following.
struct FollowProgress {
    row: u64,
    ordered: bool,
}

async fn follow_once(
    agent: &Arc<Agent>,
    hosts: &Arc<PeerHosts>,
    look: bool,
) -> Result<FollowProgress, JournalError> {
    let news = hosts.shared.poll_news(look).await?;
    if news.due {
        hosts.due.notify_one();
    }
    let seen = FollowProgress {
        row: news.last_row,
        ordered: !news.orders.is_empty(),
    };
    let before = hosts.line.swap(news.line, Ordering::SeqCst);
    if before != 0 && before != news.line {
        follow::rewind_position(hosts).await;
    }
    follow::follow_to_row(agent, hosts, news.last_row).await?;
    hosts.shared.confirm_followed();
    for order in news.orders {
        if lock(&hosts.obeying).insert(order.id) {
            let (agent, hosts) = (Arc::clone(agent), Arc::clone(hosts));
            let tracker = agent.life.tracker.clone();
            tracker.spawn(async move { obey_order(&agent, &hosts, order).await });
        }
    }
    Ok(seen)
}

async fn obey_order(agent: &Agent, hosts: &PeerHosts, order: HostOrder) {
    let id = order.id;
    let stop = &agent.life.stop;
    let outcome = tokio::select! {
        biased;
        outcome = perform_order(agent, order) => outcome,
        () = stop.cancelled() => None,
    };
    // Without an outcome the order stays open, and the session's next owner executes it.
    if let Some(outcome) = outcome
        && let Err(error) = hosts.shared.report_outcome(id, outcome).await
    {
        tracing::warn!(%error, order = %id, "what became of another host's order can't be told; it is obeyed again");
    }
    lock(&hosts.obeying).remove(&id);
}

async fn perform_order(agent: &Agent, order: HostOrder) -> Option<Vec<u8>> {
    match serde_json::from_slice::<HostOrderRequest>(&order.wish) {
        Ok(HostOrderRequest::Message(handed)) => hand::hand_in(&agent.sessions, order.session, *handed).await,
        Ok(HostOrderRequest::Release) => release_session(agent, order.session).await,
        Ok(HostOrderRequest::Swarm { what }) => runs::obey_request(agent, *what).await,
        Ok(HostOrderRequest::Reply(answered)) => {
            let id = RequestId::parse(&answered.id).ok()?; // silent-ok: ids of ours are UUIDs
            let reception = call::reply_here(&agent.calls, &id, answered.into_reply()).await;
            Some(canonical(&reception_name(reception)))
        }
        Err(error) => {
            tracing::warn!(%error, order = %order.id, "an order of another host can't be read; its version may be a later one");
            Some(canonical(&"unreadable"))
        }
    }
}

const fn reception_name(reception: ReplyOutcome) -> &'static str {
    match reception {
        ReplyOutcome::Taken => "taken",
        ReplyOutcome::Nothing => "nothing",
        ReplyOutcome::NotAllowed => "not-allowed",
        ReplyOutcome::Unseen => "unseen",
    }
}

/// Hands an approval answer to the host of the waiting call. Returns the outcome.
pub(super) async fn forward_reply(
    calls: &CallGovernor,
    hosts: &PeerHosts,
    id: &RequestId,
    reply: &ApprovalReply,
) -> ReplyOutcome {
    let Some(session) = lock(&hosts.asked).get(id).map(|question| question.session) else {
        return ReplyOutcome::Nothing;
    };
    let wish = HostOrderRequest::Reply(Box::new(HandedReply::from_reply(id, reply)));
    let outcome = match ask_holder(calls, hosts, (session, wish), PATIENCE).await {
        Ok(outcome) => outcome,
        Err(error) => {
            tracing::error!(%error, "an answer could not be given to the host whose call asks");
            return ReplyOutcome::Nothing;
        }
    };
    // silent-ok: an unreadable outcome counts as none
    let word: String = serde_json::from_slice(&outcome).unwrap_or_default();
    match word.as_str() {
        "taken" => ReplyOutcome::Taken,
        "not-allowed" => ReplyOutcome::NotAllowed,
        "unseen" => ReplyOutcome::Unseen,
        _ => ReplyOutcome::Nothing,
    }
}

/// Sends an order to a session's owner and waits for the outcome.
///
/// # Errors
/// The order can't be written, or no host executed it in time. It may still be executed later.
pub(super) async fn ask_holder(
    calls: &CallGovernor,
    hosts: &PeerHosts,
    (session, wish): (SessionId, HostOrderRequest),
    patience: Duration,
) -> Result<Vec<u8>, JournalError> {
    let order = HostOrder {
        id: calls.clock().new_uuid(),
        session,
        wish: canonical(&wish),
    };
    let id = order.id;
    hosts.shared.give_order(order).await?;
    let until = Instant::now() + patience;
    while Instant::now() < until {
        match hosts.shared.order_outcome(id).await {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => {}
            Err(error @ JournalError::Fenced { .. }) => return Err(error),
            Err(error) => tracing::debug!(%error, "what became of an order can't be seen yet"),
        }
        tokio::time::sleep(AGAIN).await;
    }
    let why = format!("no host has obeyed in {} s", patience.as_secs());
    Err(JournalError::Away(why))
}

/// Releases a session, unless it is open here. Its unfinished work was settled when this host took it over.
async fn release_session(agent: &Agent, session: SessionId) -> Option<Vec<u8>> {
    let hosts = agent.calls.hosts.as_ref()?;
    let _alone = hosts.gate.lock().await;
    let idle = agent.sessions.table.get(session).is_none();
    if idle {
        lock(&hosts.taken).retain(|(taken, _)| *taken != session);
        hosts.shared.release_session(session);
    }
    Some(canonical(&idle))
}

impl HandedReply {
    fn from_reply(id: &RequestId, reply: &ApprovalReply) -> Self {
        Self {
            id: id.as_str().to_owned(),
            answer: reply.answer,
            breadth: reply.breadth,
            channel: reply.person.channel.clone(),
            name: reply.person.name.clone(),
            role: reply.person.role.as_str().to_owned(),
            reason: reply.reason.clone(),
            seen: reply.seen.clone(),
        }
    }

    fn into_reply(self) -> ApprovalReply {
        ApprovalReply {
            answer: self.answer,
            breadth: self.breadth,
            person: KnownPerson {
                channel: self.channel,
                name: self.name,
                role: Role::parse(&self.role).unwrap_or(Role::Viewer),
            },
            reason: self.reason,
            seen: self.seen,
        }
    }
}
