//! Finds a conversation's session: loaded, rebuilt from its chain, or new. All entry points with named conversations use this
//! module.

use std::sync::Arc;

use clawk_proto::SessionId;

use crate::door::EntryPoint;
use crate::error::KernelError;
use crate::hosts;
use crate::ports::ConversationKey;
use crate::recover::{self, RebuiltSession};
use crate::session::{self, SessionOpening, SessionServices};
use crate::state::State;

/// Selects a conversation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ConversationSelector<'a> {
    /// A conversation named by its client. The name determines the session's id.
    Named(SessionId),
    /// A channel's conversation. The journal stores its session.
    Channel(&'a ConversationKey),
}

/// Opens the conversation's session. Only one caller at a time looks for it, so that two first messages do not make two sessions.
pub(crate) async fn open_conversation(
    sessions: &Arc<SessionServices>,
    door: &EntryPoint,
    which: ConversationSelector<'_>,
) -> Result<Arc<State>, KernelError> {
    let _alone = sessions.looking.lock().await;
    let known = match which {
        ConversationSelector::Named(id) => Some(id),
        ConversationSelector::Channel(key) => find_session(sessions, key).await?,
    };
    if let Some(state) = known.and_then(|id| sessions.table.get(id)) {
        return Ok(state);
    }
    if let Some(id) = known {
        hosts::hold_session(sessions, id).await?;
        // Unfinished work of a lost host may already continue here.
        if let Some(state) = sessions.table.get(id) {
            return Ok(state);
        }
    }
    let rebuilt = match known {
        Some(id) => recover::rebuild_session(&sessions.calls, id).await?,
        None => RebuiltSession::default(),
    };
    let opening = SessionOpening {
        id: known.filter(|_| rebuilt.exists),
        door: door.clone(),
        provider: sessions.calls.models.primary_provider().to_owned(),
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
        ConversationSelector::Channel(_) => session::open_session(sessions, opening).await?,
    };
    state.set_model(rebuilt.model);
    for open in rebuilt.open {
        state.mailbox.push_resumed_turn(open);
    }
    if let ConversationSelector::Channel(key) = which {
        sessions.table.lock_conversations().insert(key.clone(), state.id);
    }
    Ok(state)
}

/// Returns the session of a channel's conversation; `None` if it has no message yet.
pub(crate) async fn find_session(
    sessions: &SessionServices,
    key: &ConversationKey,
) -> Result<Option<SessionId>, KernelError> {
    let at_hand = sessions.table.lock_conversations().get(key).copied();
    match at_hand {
        Some(id) => Ok(Some(id)),
        None => Ok(sessions.scribe.journal().conversation_session(key).await?),
    }
}
