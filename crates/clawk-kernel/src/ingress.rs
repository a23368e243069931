//! Messages from channels: each is accepted once, durably, into its conversation's session (C1, C2).

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

/// Longest name from a platform in bytes: of a channel, a conversation, a sender, or an id.
const MAX_NAME_BYTES: usize = 1024;
/// Longest time for which a platform's id is stored, in days.
const MAX_REMEMBERED_DAYS: u32 = 3660;
/// Largest number of platform ids of one message. An album has an id for each part.
const MAX_PLATFORM_IDS: usize = 40;

/// A message as a channel decoded it. The channel has already admitted the sender (C3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelMessage {
    /// The channel's name.
    pub channel: String,
    /// The platform's chat, room, thread or mail thread.
    pub conversation: String,
    /// The conversation has only the sender and the agent.
    pub direct: bool,
    /// The platform's id of the sender.
    pub sender: String,
    /// The role given by [`crate::admitted_role`]. The turn has no more rights, and has exactly these after a crash.
    pub role: Role,
    /// The platform's ids of the message. If one message can arrive as two events, the ids of both. A message with a known id is a
    /// duplicate.
    pub platform_ids: Vec<String>,
    /// How long the ids are stored, in days; usually [`crate::REMEMBERED_DAYS`].
    pub remembered_days: u32,
    /// The text.
    pub text: String,
    /// The images.
    pub images: Vec<AttachedPicture>,
    /// The platform's further information about the message.
    pub context: MessageContext,
}

/// A durable message, which may be acknowledged to its platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedMessage {
    /// The message's id; for a duplicate, the id of the first message.
    pub message_id: MessageId,
    /// The session of its conversation.
    pub session_id: SessionId,
    /// The message was accepted before, and nothing new happens.
    pub duplicate: bool,
}

fn check_message(inbound: &ChannelMessage) -> Result<(), KernelError> {
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

/// Accepts a message. When this returns `Ok`, it is durable: see [`crate::Kernel::submit_message`].
pub(crate) async fn submit_message(
    sessions: &Arc<SessionServices>,
    inbound: ChannelMessage,
) -> Result<AcceptedMessage, KernelError> {
    let _working = sessions.life.begin_work().map_err(KernelError::NotReady)?;
    check_message(&inbound)?;
    // Checked before any other work, so that a platform's retry is cheap.
    if let Some(known) = find_accepted(sessions, &inbound).await? {
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
    let Some(key) = door.conversation_key() else {
        return Err(KernelError::UnknownSession(inbound.conversation));
    };
    if let Some(session) = conversation::find_session(sessions, &key).await?
        && hosts::is_elsewhere(sessions, session).await?
    {
        return hand_to_holder(sessions, session, (door, inbound)).await;
    }
    let state = conversation::open_conversation(sessions, &door, ConversationSelector::Channel(&key)).await?;
    // Messages of one conversation are accepted in order. A duplicate waits until the first one is durable.
    let _order = state.arriving.lock().await;
    if let Some(known) = find_accepted(sessions, &inbound).await? {
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
    let message_id = session::accept_message(sessions, &state, origin, said).await?;
    Ok(AcceptedMessage {
        message_id,
        session_id: state.id,
        duplicate: false,
    })
}

/// Hands the message to the host that owns the session. A platform's retry has the same id and is the same message.
async fn hand_to_holder(
    sessions: &SessionServices,
    session_id: SessionId,
    (door, inbound): (EntryPoint, ChannelMessage),
) -> Result<AcceptedMessage, KernelError> {
    let message_id = match inbound.platform_ids.first() {
        Some(id) => talk::message_of(&format!("channel {}", inbound.channel), id),
        None => MessageId(sessions.scribe.clock().new_uuid()),
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

/// Returns the message that was accepted with one of these ids.
pub(crate) async fn find_accepted(
    sessions: &SessionServices,
    inbound: &ChannelMessage,
) -> Result<Option<AcceptedMessage>, KernelError> {
    let now = sessions.scribe.now();
    for id in &inbound.platform_ids {
        let found = sessions
            .scribe
            .journal()
            .find_arrival(&inbound.channel, id, now)
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
