//! Hands a message to the host that owns its session, and waits here for its end.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_proto::{MessageId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::orders::HostOrderRequest;
use super::{PeerHosts, lock, lost_error};
use crate::attach::{AttachedPicture, FrameSource, IncomingMessage};
use crate::conversation::{self, ConversationSelector};
use crate::door::{EntryPoint, Origin, RecordedOrigin};
use crate::error::KernelError;
use crate::ports::{HostOrder, JournalError, MessageContext, ToolOffer};
use crate::session::{self, SessionServices};

/// Time limit for a host to accept the message. It may still be accepted later; the same request then returns its answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which the outcome is looked for.
const AGAIN: Duration = Duration::from_millis(100);
/// Interval at which the record is read, in addition to the followed events.
const LOOK: Duration = Duration::from_secs(1);

/// A message on its way to the host that owns its session.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HandedMessage {
    message: MessageId,
    came: Value,
    remembered_days: u32,
    tools: Vec<ToolOffer>,
    text: String,
    images: Vec<HandedPicture>,
    /// Missing in messages of an earlier version.
    #[serde(default)]
    context: MessageContext,
}

#[derive(Debug, Serialize, Deserialize)]
struct HandedPicture {
    mime_type: String,
    name: Option<String>,
    /// Data in base64.
    data: String,
}

/// The outcome of a handover.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum HandoverOutcome {
    Taken,
    Refused(String),
    Full(String),
    Failed(String),
}

/// Returns whether another host owns the session. Otherwise this host now owns it.
///
/// # Errors
/// The database can't be reached.
pub(crate) async fn is_elsewhere(
    sessions: &Arc<SessionServices>,
    session: SessionId,
) -> Result<bool, KernelError> {
    Ok(super::session_holder(sessions, session).await?.is_some())
}

/// Hands a message to the session's owner. When this returns `Ok`, the message is durable in the session's chain.
///
/// # Errors
/// The owner refused it, or no host accepted it in time.
pub(crate) async fn hand_over(
    sessions: &SessionServices,
    (session, message): (SessionId, MessageId),
    origin: &Origin,
    said: &IncomingMessage,
) -> Result<(), KernelError> {
    let Some(hosts) = &sessions.calls.hosts else {
        return Err(KernelError::NotReady(sessions.life.state()));
    };
    let wish = HostOrderRequest::Message(Box::new(HandedMessage::from_incoming(message, origin, said)));
    let order = HostOrder {
        id: message.0,
        session,
        wish: crate::event::canonical(&wish),
    };
    hosts.shared.give_order(order).await?;
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(outcome) = hosts.shared.order_outcome(message.0).await? {
            // silent-ok: an unreadable outcome counts as none
            let outcome =
                serde_json::from_slice(&outcome).unwrap_or_else(|_| HandoverOutcome::Failed("?".to_owned()));
            return outcome_result(outcome);
        }
        // The outcome was delivered to another caller with the same request.
        if sessions
            .scribe
            .journal()
            .message_session(message)
            .await?
            .is_some()
        {
            return Ok(());
        }
        if Instant::now() >= until {
            let why = format!("no host has taken the message in {} s", PATIENCE.as_secs());
            return Err(JournalError::Away(why).into());
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(AGAIN) => {}
            () = sessions.life.stop.cancelled() => {
                return Err(lost_error(sessions).unwrap_or(KernelError::NotReady(sessions.life.state())));
            }
        }
    }
}

fn outcome_result(outcome: HandoverOutcome) -> Result<(), KernelError> {
    match outcome {
        HandoverOutcome::Taken => Ok(()),
        HandoverOutcome::Refused(reason) => Err(KernelError::Refused(reason)),
        HandoverOutcome::Full(reason) => Err(KernelError::Full(reason)),
        HandoverOutcome::Failed(reason) => Err(JournalError::Away(reason).into()),
    }
}

/// Accepts a message that another host received. A repeated message is accepted once. `None`: the session's next owner accepts it.
pub(super) async fn hand_in(
    sessions: &Arc<SessionServices>,
    session: SessionId,
    handed: HandedMessage,
) -> Option<Vec<u8>> {
    let outcome = match accept_handed(sessions, session, handed).await {
        Ok(()) => HandoverOutcome::Taken,
        Err(KernelError::Refused(reason)) => HandoverOutcome::Refused(reason),
        Err(KernelError::Full(reason)) => HandoverOutcome::Full(reason),
        Err(KernelError::Journal(_) | KernelError::NotReady(_)) => return None,
        Err(error) => HandoverOutcome::Failed(error.to_string()),
    };
    Some(crate::event::canonical(&outcome))
}

async fn accept_handed(
    sessions: &Arc<SessionServices>,
    session: SessionId,
    handed: HandedMessage,
) -> Result<(), KernelError> {
    let HandedMessage {
        message,
        came,
        remembered_days,
        tools,
        text,
        images,
        context,
    } = handed;
    // silent-ok: an unreadable origin gets the lowest role
    let came: RecordedOrigin = serde_json::from_value(came).unwrap_or_default();
    let origin = Origin {
        remembered_days,
        tools,
        ..Origin::from_record(came)
    };
    let state =
        conversation::open_conversation(sessions, &origin.door, ConversationSelector::Named(session)).await?;
    let _order = state.arriving.lock().await;
    if sessions
        .scribe
        .journal()
        .message_session(message)
        .await?
        .is_some()
    {
        return Ok(());
    }
    let images = images
        .into_iter()
        .map(HandedPicture::read)
        .collect::<Result<_, _>>()?;
    let said = IncomingMessage {
        text,
        images,
        setting: FrameSource::Given(context),
    };
    session::accept_as(sessions, &state, message, origin, said).await?;
    Ok(())
}

/// Registers a waiter for the end of this message's turn.
pub(crate) fn register_waiter(hosts: &PeerHosts, message: MessageId) -> Arc<Notify> {
    Arc::clone(lock(&hosts.waits).entry(message).or_default())
}

/// Removes the waiters of a message.
pub(crate) fn remove_waiter(hosts: &PeerHosts, message: MessageId) {
    lock(&hosts.waits).remove(&message);
}

/// Waits until the turn may have ended. The record says whether it has.
///
/// # Errors
/// The agent ends here first.
pub(crate) async fn wait_for_end(
    sessions: &SessionServices,
    ended: impl Future<Output = ()>,
) -> Result<(), KernelError> {
    tokio::select! {
        biased;
        () = ended => Ok(()),
        () = tokio::time::sleep(LOOK) => Ok(()),
        () = sessions.life.stop.cancelled() => {
            Err(lost_error(sessions).unwrap_or(KernelError::NotReady(sessions.life.state())))
        }
    }
}

impl HandedMessage {
    fn from_incoming(message: MessageId, origin: &Origin, said: &IncomingMessage) -> Self {
        let images = said.images.iter().map(|image| HandedPicture {
            mime_type: image.mime_type.clone(),
            name: image.name.clone(),
            data: STANDARD.encode(&image.data),
        });
        Self {
            message,
            came: origin_json(origin),
            remembered_days: origin.remembered_days,
            tools: origin.tools.clone(),
            text: said.text.clone(),
            images: images.collect(),
            context: match &said.setting {
                FrameSource::Given(context) => context.clone(),
                FrameSource::Recorded(_) => MessageContext::default(),
            },
        }
    }
}

/// Returns the value that [`Origin::from_record`] reads.
fn origin_json(origin: &Origin) -> Value {
    let (channel, conversation, direct) = match &origin.door {
        EntryPoint::Channel {
            channel,
            conversation,
            direct,
            ..
        } => (Some(channel), Some(conversation), Some(direct)),
        EntryPoint::Rpc { .. } | EntryPoint::Cli | EntryPoint::Peer { .. } | EntryPoint::Unknown { .. } => {
            (None, None, None)
        }
    };
    json!({
        "channel": channel, "conversation": conversation, "direct": direct, "door": origin.door.name(),
        "platform_ids": origin.platform_ids, "role": origin.role.as_str(), "sender": origin.door.sender(),
        "task_id": origin.task_id(), "repeats": origin.repeats,
    })
}

impl HandedPicture {
    fn read(self) -> Result<AttachedPicture, KernelError> {
        let data = STANDARD
            .decode(&self.data)
            .map_err(|error| KernelError::Refused(format!("a picture can't be read: {error}")))?;
        Ok(AttachedPicture {
            mime_type: self.mime_type,
            name: self.name,
            data,
        })
    }
}
