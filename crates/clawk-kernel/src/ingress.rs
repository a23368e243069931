//! Messages of channels: taken once, durably, into the session of their conversation (C1, C2).

use std::sync::Arc;

use clawk_manifest::model::Role;
use clawk_proto::{MessageId, SessionId};

use crate::attach::{AttachedPicture, FrameSource, IncomingMessage};
use crate::author;
use crate::conversation::{self, ConversationSelector};
use crate::door::{EntryPoint, Origin};
use crate::error::KernelError;
use crate::hosts;
use crate::ports::MessageContext;
use crate::session::{self, SessionServices};
use crate::talk;

/// Bytes of a name that a platform gives: a channel, a conversation, a sender, an id.
const MAX_NAME_BYTES: usize = 1024;
/// The longest that a platform's id is remembered, days.
const MAX_REMEMBERED_DAYS: u32 = 3660;
/// Ids that one message may have on its platform: an album has those of each of its parts.
const MAX_PLATFORM_IDS: usize = 40;

/// A message as a channel decoded it. The channel has already admitted the sender (C3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelMessage {
    /// The channel's name.
    pub channel: String,
    /// The chat, room, thread or mail thread there.
    pub conversation: String,
    /// The sender is alone in the conversation with the agent.
    pub direct: bool,
    /// The platform's id of the sender.
    pub sender: String,
    /// By [`crate::admit`]: the turn has no more rights than that, and is taken up after a crash with exactly these.
    pub role: Role,
    /// The platform's own ids of the message, if it has any; where one human message can come as two events, the ids of both.
    /// A message of which any is known is a duplicate.
    pub platform_ids: Vec<String>,
    /// How long these are remembered, days; [`crate::REMEMBERED_DAYS`] as a rule.
    pub remembered_days: u32,
    /// What was said.
    pub text: String,
    /// Pictures that came with it.
    pub images: Vec<AttachedPicture>,
    /// What the platform says of it beside the text.
    pub context: MessageContext,
}

/// A message that is durable: its platform may be told so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedMessage {
    /// Its id; of a duplicate, that of the message which came first.
    pub message_id: MessageId,
    /// The session of its conversation.
    pub session_id: SessionId,
    /// It had been taken before: nothing new happens.
    pub duplicate: bool,
}

fn check(inbound: &ChannelMessage) -> Result<(), KernelError> {
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
pub(crate) async fn submit(
    sessions: &Arc<SessionServices>,
    inbound: ChannelMessage,
) -> Result<AcceptedMessage, KernelError> {
    let _working = sessions.life.enter().map_err(KernelError::NotReady)?;
    check(&inbound)?;
    // Before anything is judged or opened: a platform's retry costs a look.
    if let Some(known) = known(sessions, &inbound).await? {
        return Ok(known);
    }
    let ChannelMessage {
        channel,
        conversation,
        direct,
        sender,
        role,
        platform_ids,
        remembered_days,
        text,
        images,
        context,
    } = inbound.clone();
    let repeats = author::of_quotes(&context, &channel);
    let door = EntryPoint::Channel {
        channel,
        conversation,
        direct,
        sender,
        role,
    };
    let Some(key) = door.key() else {
        return Err(KernelError::UnknownSession(inbound.conversation));
    };
    if let Some(session) = conversation::known(sessions, &key).await?
        && hosts::is_elsewhere(sessions, session).await?
    {
        return elsewhere(sessions, session, (door, inbound)).await;
    }
    let state = conversation::open(sessions, &door, ConversationSelector::Channel(&key)).await?;
    // Messages of one conversation are taken in their order; a duplicate waits until the first one is durable.
    let _order = state.arriving.lock().await;
    if let Some(known) = known(sessions, &inbound).await? {
        return Ok(known);
    }
    let origin = Origin {
        platform_ids,
        remembered_days: remembered_days.min(MAX_REMEMBERED_DAYS),
        repeats,
        ..Origin::from(door)
    };
    let said = IncomingMessage {
        text,
        images,
        setting: FrameSource::Given(context),
    };
    let message_id = session::accept(sessions, &state, origin, said).await?;
    Ok(AcceptedMessage {
        message_id,
        session_id: state.id,
        duplicate: false,
    })
}

/// Another host holds the conversation's session: it is given the message. A platform's retry of one that is on its way is the same
/// message, by the same id.
async fn elsewhere(
    sessions: &SessionServices,
    session_id: SessionId,
    (door, inbound): (EntryPoint, ChannelMessage),
) -> Result<AcceptedMessage, KernelError> {
    let message_id = match inbound.platform_ids.first() {
        Some(id) => talk::message_of(&format!("channel {}", inbound.channel), id),
        None => MessageId(sessions.scribe.clock().uuid()),
    };
    let origin = Origin {
        repeats: author::of_quotes(&inbound.context, &inbound.channel),
        platform_ids: inbound.platform_ids,
        remembered_days: inbound.remembered_days.min(MAX_REMEMBERED_DAYS),
        ..Origin::from(door)
    };
    let said = IncomingMessage {
        text: inbound.text,
        images: inbound.images,
        setting: FrameSource::Given(inbound.context),
    };
    hosts::hand_over(sessions, (session_id, message_id), &origin, &said).await?;
    Ok(AcceptedMessage {
        message_id,
        session_id,
        duplicate: false,
    })
}

/// The message that was taken under one of these ids before.
pub(crate) async fn known(
    sessions: &SessionServices,
    inbound: &ChannelMessage,
) -> Result<Option<AcceptedMessage>, KernelError> {
    let now = sessions.scribe.now();
    for id in &inbound.platform_ids {
        let found = sessions
            .scribe
            .journal()
            .arrived(&inbound.channel, id, now)
            .await?;
        if let Some(found) = found {
            return Ok(Some(AcceptedMessage {
                message_id: found.message,
                session_id: found.session,
                duplicate: true,
            }));
        }
    }
    Ok(None)
}
