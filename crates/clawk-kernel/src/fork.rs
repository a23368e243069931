//! A fork: a new session that continues live from a step of another one. The source session is only read.

use std::sync::Arc;

use clawk_events::payload::SessionStarted;
use clawk_proto::{MessageId, SessionId};

use crate::door::{EntryPoint, Origin};
use crate::error::KernelError;
use crate::event::{ForkPoint, Thread};
use crate::open_turn::OpenTurn;
use crate::ports::InboxChange;
use crate::purse::BudgetAmount;
use crate::recover;
use crate::session::{self, SessionHandle, SessionOpening, SessionServices};
use crate::turn::Event;

/// Opens the fork. With `go_on`, a turn that was running at this point continues with its next step; without it, the turn ends
/// there.
pub(crate) async fn fork_session(
    sessions: &Arc<SessionServices>,
    mut point: ForkPoint,
    door: EntryPoint,
    go_on: bool,
) -> Result<(SessionHandle, bool), KernelError> {
    let mut rebuilt = recover::rebuild_until(&sessions.calls, point.session_id, point.sequence).await?;
    if !rebuilt.exists {
        return Err(KernelError::UnknownSession(point.session_id.to_string()));
    }
    // The first turn was running or had not begun. Turns that wait after it stay with the source.
    rebuilt.open.truncate(1);
    let mut open = rebuilt.open.pop();
    if let Some(turn) = open.as_mut() {
        if go_on {
            let id = sessions.scribe.clock().new_uuid();
            (turn.message, turn.resumes) = (MessageId(id), 0);
            turn.origin = turn.origin.clone().forked_by(&Origin::from(door.clone()));
            point.turn = Some(id);
            point.keeps_sender = true;
        } else {
            let mut turn = turn.turn.clone();
            if turn.has_begun() {
                turn.handle_event(Event::Cancelled);
                rebuilt.history = turn.into_messages();
            }
        }
    }
    let id = SessionId(sessions.scribe.clock().new_uuid());
    let thread = Thread {
        session: id,
        span: id.0,
        parent: None,
    };
    let payload = SessionStarted {
        agent_hash: Some(sessions.agent_hash),
        agent_id: sessions.calls.manifest.identity.name.to_string(),
        door: Some(door.name().to_owned()),
        fork: Some(point.clone()),
        goal: "fork".to_owned(),
        role: Some(door.role().as_str().to_owned()),
        run: Some(sessions.life.root.session.0),
    };
    let first = sessions.scribe.draft_event(&thread, &payload);
    let accepted = point.turn.map(|turn| InboxChange::Accepted {
        session: id,
        message: MessageId(turn),
        arrival: None,
    });
    sessions
        .scribe
        .submit_with(vec![first], accepted.into_iter().collect())?
        .wait_until_durable()
        .await?;
    let opening = SessionOpening {
        id: Some(id),
        door,
        provider: sessions.calls.models.primary_provider().to_owned(),
        goal: String::new(),
        history: rebuilt.history,
        under: None,
        spent: BudgetAmount::default(),
        surface: true,
        peer_messages: Vec::new(),
        member: None,
    };
    let session = SessionHandle::open(sessions, opening).await?;
    session.services_and_state().1.set_model(rebuilt.model);
    let goes_on = point.turn.is_some();
    if let Some(open) = open.filter(|_| goes_on) {
        session.go_on(open)?;
    }
    Ok((session, goes_on))
}

impl SessionHandle {
    fn go_on(&self, open: OpenTurn) -> Result<(), KernelError> {
        let (sessions, state) = self.services_and_state();
        session::queue_resumed_turn(sessions, state, open)
    }
}
