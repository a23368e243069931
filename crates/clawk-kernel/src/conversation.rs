//! The session of a conversation: at hand, rebuilt from its chain, or new. Every door that names conversations comes here.

use std::sync::Arc;

use clawk_proto::SessionId;

use crate::door::Door;
use crate::error::KernelError;
use crate::hosts;
use crate::ports::ConversationKey;
use crate::recover::{self, Rebuilt};
use crate::session::{self, Opening, Sessions};
use crate::state::State;

/// Which conversation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which<'a> {
    /// That of a caller who names it: its name gives the session's id.
    Named(SessionId),
    /// A channel's: the journal keeps which session it is.
    Channel(&'a ConversationKey),
}

/// The conversation's session. One at a time looks for it, so that two first messages make one.
pub(crate) async fn open(
    sessions: &Arc<Sessions>,
    door: &Door,
    which: Which<'_>,
) -> Result<Arc<State>, KernelError> {
    let _alone = sessions.looking.lock().await;
    let known = match which {
        Which::Named(id) => Some(id),
        Which::Channel(key) => known(sessions, key).await?,
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
        None => Rebuilt::default(),
    };
    let opening = Opening {
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
        Which::Named(id) => session::open_as(sessions, opening, id).await?,
        Which::Channel(_) => session::open(sessions, opening).await?,
    };
    for open in rebuilt.open {
        state.mailbox.resume(open);
    }
    if let Which::Channel(key) = which {
        sessions.table.conversations().insert(key.clone(), state.id);
    }
    Ok(state)
}

/// The session of a channel's conversation; none: nothing was said in it yet.
pub(crate) async fn known(
    sessions: &Sessions,
    key: &ConversationKey,
) -> Result<Option<SessionId>, KernelError> {
    let at_hand = sessions.table.conversations().get(key).copied();
    match at_hand {
        Some(id) => Ok(Some(id)),
        None => Ok(sessions.scribe.journal().conversation(key).await?),
    }
}
