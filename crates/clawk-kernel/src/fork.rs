//! A fork: a new session that goes on live from a step of another. The source is read, never written.

use std::sync::Arc;

use clawk_proto::{Digest, MessageId, SessionId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::agent::Agent;
use crate::door::{Door, Origin};
use crate::error::KernelError;
use crate::event::{SessionForked, Thread, kind};
use crate::ports::InboxChange;
use crate::purse::Amount;
use crate::recover;
use crate::session::{self, Opening, Session};
use crate::turn::Event;

/// Forks of forks.
pub(crate) const MAX_DEPTH: usize = 64;

/// Where a session was forked; stands in its first event. Fields in alphabetical order, as in every payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkPoint {
    /// The hash of the last event that counts.
    pub event_hash: Digest,
    /// Its sequence.
    pub sequence: u64,
    /// The source.
    pub session_id: SessionId,
    /// The source's trace.
    pub trace_id: Uuid,
    /// The id under which the turn that was under way there goes on here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Uuid>,
}

/// Opens the fork. With `go_on`, a turn that was under way at the point is taken up, from its next step; without, it has ended there.
pub(crate) async fn fork(
    agent: &Arc<Agent>,
    mut point: ForkPoint,
    door: Door,
    go_on: bool,
) -> Result<(Session, bool), KernelError> {
    let mut rebuilt = recover::rebuild_until(agent, point.session_id, point.sequence).await?;
    if !rebuilt.exists {
        return Err(KernelError::UnknownSession(point.session_id.to_string()));
    }
    // The first is under way, or came and has not begun; what waits behind it stays with the source.
    rebuilt.open.truncate(1);
    let mut open = rebuilt.open.pop();
    if let Some(turn) = open.as_mut() {
        if go_on {
            let id = agent.clock().uuid();
            (turn.message, turn.resumes) = (MessageId(id), 0);
            // Who forks it hears of it; its message's rights stay a bound.
            turn.origin = Origin::from(door.clone()).at_most(turn.origin.role);
            point.turn = Some(id);
        } else {
            let mut turn = turn.turn.clone();
            if turn.has_begun() {
                turn.step(Event::Cancelled);
                rebuilt.history = turn.into_messages();
            }
        }
    }
    let id = SessionId(agent.clock().uuid());
    let thread = Thread {
        session: id,
        span: id.0,
        parent: None,
    };
    let payload = SessionForked {
        agent_hash: agent.agent_hash,
        agent_id: &agent.manifest.identity.name,
        door: door.name(),
        fork: &point,
        goal: "fork",
        role: door.role().as_str(),
        run: agent.root.session.0,
    };
    let first = agent.scribe.entry(&thread, kind::SESSION_STARTED, &payload);
    let accepted = point.turn.map(|turn| InboxChange::Accepted {
        session: id,
        message: MessageId(turn),
        arrival: None,
    });
    agent
        .scribe
        .submit_with(vec![first], accepted.into_iter().collect())?
        .durable()
        .await?;
    let opening = Opening {
        id: Some(id),
        door,
        provider: agent.primary_provider().to_owned(),
        goal: String::new(),
        history: rebuilt.history,
        under: None,
        spent: Amount::default(),
        surface: true,
        peer_messages: Vec::new(),
    };
    let session = Session::open(agent, opening).await?;
    let goes_on = point.turn.is_some();
    if let Some(open) = open.filter(|_| goes_on) {
        session.go_on(open)?;
    }
    Ok((session, goes_on))
}

impl Session {
    fn go_on(&self, open: recover::OpenTurn) -> Result<(), KernelError> {
        let (agent, state) = self.inside();
        session::resume(agent, state, open)
    }
}
