//! The session of a conversation: at hand, rebuilt from its chain, or new. Every door that names conversations comes here.

use std::sync::Arc;

use clawk_proto::SessionId;

use crate::door::EntryPoint;
use crate::error::KernelError;
use crate::hosts;
use crate::ports::ConversationKey;
use crate::recover::{self, RebuiltSession};
use crate::session::{self, SessionOpening, SessionServices};
use crate::state::State;

/// Which conversation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ConversationSelector<'a> {
    /// That of a caller who names it: its name gives the session's id.
    Named(SessionId),
    /// A channel's: the journal keeps which session it is.
    Channel(&'a ConversationKey),
}

/// The conversation's session. One at a time looks for it, so that two first messages make one.
pub(crate) async fn open(
    sessions: &Arc<SessionServices>,
    door: &EntryPoint,
    which: ConversationSelector<'_>,
) -> Result<Arc<State>, KernelError> {
    let _alone = sessions.looking.lock().await;
    let known = match which {
        ConversationSelector::Named(id) => Some(id),
        ConversationSelector::Channel(key) => known(sessions, key).await?,
    };
    if let Some(state) = known.and_then(|id| sessions.table.get(id)) {
        return Ok(state);
    }
    if let Some(id) = known {
        hosts::hold(sessions, id).await?;
        // What a lost host left in it may go on here already.
        if let Some(state) = sessions.table.get(id) {
            return Ok(state);
        }
    }
    let rebuilt = match known {
        Some(id) => recover::rebuild(&sessions.calls, id).await?,
        None => RebuiltSession::default(),
    };
    let opening = SessionOpening {
        id: known.filter(|_| rebuilt.exists),
        door: door.clone(),
        provider: sessions.calls.models.primary().to_owned(),
        goal: "conversation".to_owned(),
        history: rebuilt.history,
        under: None,
        spent: rebuilt.spent,
        surface: false,
        peer_messages: Vec::new(),
        member: None,
    };
    let (state, _) = match which {
        ConversationSelector::Named(id) => session::open_as(sessions, opening, id).await?,
        ConversationSelector::Channel(_) => session::open(sessions, opening).await?,
    };
    state.set_model(rebuilt.model);
    for open in rebuilt.open {
        state.mailbox.resume(open);
    }
    if let ConversationSelector::Channel(key) = which {
        sessions.table.conversations().insert(key.clone(), state.id);
    }
    Ok(state)
}

/// The session of a channel's conversation; none: nothing was said in it yet.
pub(crate) async fn known(
    sessions: &SessionServices,
    key: &ConversationKey,
) -> Result<Option<SessionId>, KernelError> {
    let at_hand = sessions.table.conversations().get(key).copied();
    match at_hand {
        Some(id) => Ok(Some(id)),
        None => Ok(sessions.scribe.journal().conversation(key).await?),
    }
}
