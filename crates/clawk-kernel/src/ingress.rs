//! Messages of channels: taken once, durably, into the session of their conversation (C1, C2).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_manifest::model::Role;
use clawk_proto::{MessageId, SessionId};
use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::door::{Door, Origin};
use crate::error::KernelError;
use crate::ports::ConversationKey;
use crate::recover::{self, Rebuilt};
use crate::session::{self, Opening, State};

/// How long a platform's id of a message is remembered where the channel does not say, days.
pub const REMEMBERED_DAYS: u32 = 7;
/// Bytes of a name that a platform gives: a channel, a conversation, a sender, an id.
const MAX_NAME_BYTES: usize = 1024;
/// The longest that a platform's id is remembered, days.
const MAX_REMEMBERED_DAYS: u32 = 3660;
/// Ids that one message may have on its platform.
const MAX_PLATFORM_IDS: usize = 8;

/// `[inbox]`: how much waits, and how much runs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InboxLimits {
    /// Messages that wait, beyond 32 in each conversation, durable and without taking memory; more are refused.
    pub waiting: usize,
    /// Turns that run at once, of all conversations.
    pub turns: usize,
    /// A channel's conversation leaves memory when nothing was said in it for so long, milliseconds. It goes on with the next
    /// message.
    pub idle_ms: u64,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self {
            waiting: 1000,
            turns: 64,
            idle_ms: 600_000,
        }
    }
}

/// A message as a channel decodes it. Whoever hands it in has let the sender in (C3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbound {
    /// The channel's name.
    pub channel: String,
    /// The chat, room, thread or mail thread there.
    pub conversation: String,
    /// Nobody else is in the conversation.
    pub direct: bool,
    /// The platform's id of the sender.
    pub sender: String,
    /// By [`crate::admit`]: the turn has no more rights than that, and is taken up after a crash with exactly these.
    pub role: Role,
    /// The platform's own ids of the message, if it has any; where one human message can come as two events, the ids of both.
    /// A message of which any is known is a duplicate.
    pub platform_ids: Vec<String>,
    /// How long these are remembered, days; [`REMEMBERED_DAYS`] as a rule.
    pub remembered_days: u32,
    /// What was said.
    pub text: String,
}

/// A message that is durable: its platform may be told so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// Its id; of a duplicate, that of the message which came first.
    pub message_id: MessageId,
    /// The session of its conversation.
    pub session_id: SessionId,
    /// It had been taken before: nothing new happens.
    pub duplicate: bool,
}

/// Conversations of channels that are in memory.
#[derive(Debug, Default)]
pub(crate) struct Ingress {
    /// One at a time looks for a conversation's session, so that two first messages make one.
    gate: tokio::sync::Mutex<()>,
    sessions: Mutex<HashMap<ConversationKey, SessionId>>,
}

impl Ingress {
    fn lock(&self) -> MutexGuard<'_, HashMap<ConversationKey, SessionId>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The conversation has left memory.
    pub(crate) fn forget(&self, key: &ConversationKey) {
        self.lock().remove(key);
    }
}

fn check(inbound: &Inbound) -> Result<(), KernelError> {
    let wrong = |member, reason: &str| {
        Err(KernelError::BadParameter {
            member,
            reason: reason.to_owned(),
        })
    };
    for (member, name) in [
        ("channel", &inbound.channel),
        ("conversation", &inbound.conversation),
        ("sender", &inbound.sender),
    ] {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return wrong(member, &format!("1 to {MAX_NAME_BYTES} bytes are wanted"));
        }
    }
    let ids = &inbound.platform_ids;
    if ids.len() > MAX_PLATFORM_IDS || ids.iter().any(|id| id.is_empty() || id.len() > MAX_NAME_BYTES) {
        let reason = format!("at most {MAX_PLATFORM_IDS} ids of 1 to {MAX_NAME_BYTES} bytes are wanted");
        return wrong("platform_ids", &reason);
    }
    Ok(())
}

/// Takes a message in. When this returns `Ok`, it is durable: see [`crate::Kernel::submit`].
pub(crate) async fn submit(agent: &Arc<Agent>, inbound: Inbound) -> Result<Accepted, KernelError> {
    let _working = agent.life.enter().map_err(KernelError::NotReady)?;
    check(&inbound)?;
    // Before anything is judged or opened: a platform's retry costs a look.
    if let Some(known) = known(agent, &inbound).await? {
        return Ok(known);
    }
    let Inbound {
        channel,
        conversation,
        direct,
        sender,
        role,
        platform_ids,
        remembered_days,
        text,
    } = inbound.clone();
    let door = Door::Channel {
        channel,
        conversation,
        direct,
        sender,
        role,
    };
    let Some(key) = door.key() else {
        return Err(KernelError::UnknownSession(inbound.conversation));
    };
    let state = conversation_of(agent, &door, &key).await?;
    // Messages of one conversation are taken in their order; a duplicate waits until the first one is durable.
    let _order = state.arriving.lock().await;
    if let Some(known) = known(agent, &inbound).await? {
        return Ok(known);
    }
    let origin = Origin {
        platform_ids,
        remembered_days: remembered_days.min(MAX_REMEMBERED_DAYS),
        ..Origin::from(door)
    };
    let message_id = session::accept(agent, &state, origin, text).await?;
    Ok(Accepted {
        message_id,
        session_id: state.id,
        duplicate: false,
    })
}

/// The message that was taken under one of these ids before.
async fn known(agent: &Agent, inbound: &Inbound) -> Result<Option<Accepted>, KernelError> {
    let now = agent.scribe.now();
    for id in &inbound.platform_ids {
        let found = agent.scribe.journal().arrived(&inbound.channel, id, now).await?;
        if let Some(found) = found {
            return Ok(Some(Accepted {
                message_id: found.message,
                session_id: found.session,
                duplicate: true,
            }));
        }
    }
    Ok(None)
}

/// The conversation's session: at hand, rebuilt from its chain, or new.
async fn conversation_of(
    agent: &Arc<Agent>,
    door: &Door,
    key: &ConversationKey,
) -> Result<Arc<State>, KernelError> {
    let _gate = agent.ingress.gate.lock().await;
    let at_hand = agent.ingress.lock().get(key).copied();
    let known = match at_hand {
        Some(id) => Some(id),
        None => agent.scribe.journal().conversation(key).await?,
    };
    let state = known.and_then(|id| agent.sessions_lock().get(&id).cloned());
    if let Some(state) = state {
        return Ok(state);
    }
    let rebuilt = match known {
        Some(id) => recover::rebuild(agent, id).await?,
        None => Rebuilt::default(),
    };
    let opening = Opening {
        id: known.filter(|_| rebuilt.exists),
        door: door.clone(),
        provider: agent.primary_provider().to_owned(),
        goal: "conversation".to_owned(),
        history: rebuilt.history,
        under: None,
        spent: rebuilt.spent,
        surface: false,
        peer_messages: Vec::new(),
    };
    let (state, _) = session::open(agent, opening).await?;
    for open in rebuilt.open {
        state.mailbox.resume(open);
    }
    agent.ingress.lock().insert(key.clone(), state.id);
    Ok(state)
}
