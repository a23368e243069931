//! The channels' side of the kernel: incoming messages and answers to deliver.

use std::sync::Arc;

use clawk_proto::{MessageId, SessionId};

use super::Kernel;
use crate::error::KernelError;
use crate::ingress::{self, AcceptedMessage, ChannelMessage};
use crate::outbox::{self, DeliveryGuard, UndeliveredAnswer};
use crate::ports::{ChannelDelivery, OutboxRow};

impl Kernel {
    /// Takes in a message of a channel. When this returns `Ok`, the message is durable (C1): its platform may be told so, and it
    /// will end answered or in the dead-letter box. A message whose platform id is known is a duplicate and starts nothing.
    ///
    /// # Errors
    /// It was refused: a name is empty or too long, the text is, too many wait, or the agent does not take work. A refusal of the
    /// text is recorded; the platform may be told that it was taken, since a retry would be refused again.
    pub async fn submit(&self, inbound: ChannelMessage) -> Result<AcceptedMessage, KernelError> {
        ingress::submit(&self.agent.sessions, inbound).await
    }

    /// Delivers a channel's answers by this port until the handle is dropped: those that are owed already, and those that come.
    /// The port that delivered for the channel before is ended first.
    #[must_use = "deliveries end when it is dropped"]
    pub fn deliver(&self, channel: &str, port: Arc<dyn ChannelDelivery>) -> DeliveryGuard {
        outbox::attach(&self.agent.outbox, channel, port)
    }

    /// The outbox: what is owed and what could not be delivered, oldest first, at most `limit`.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn outbox(&self, limit: usize) -> Result<Vec<OutboxRow>, KernelError> {
        Ok(self.agent.scribe.journal().outbox(limit).await?)
    }

    /// Lets an answer that could not be delivered be tried again. `false`: no dead letter of the outbox answers this message.
    ///
    /// # Errors
    /// The journal can't be read or written.
    pub async fn retry_delivery(&self, message: MessageId, by: &str) -> Result<bool, KernelError> {
        let known = outbox::requeue(&self.agent.scribe, message, by).await?;
        self.agent.outbox.wake();
        Ok(known)
    }

    /// Answers that nobody has been given at a surface of the process's own (`cli`): those of turns that went on by themselves.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn undelivered(&self, surface: &str) -> Result<Vec<UndeliveredAnswer>, KernelError> {
        Ok(outbox::undelivered(&self.agent.outbox, surface).await?)
    }

    /// The caller who waited has the answer to this message: it is delivered.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn delivered(&self, session: SessionId, message: MessageId) -> Result<(), KernelError> {
        Ok(outbox::delivered(&self.agent.outbox, session, message).await?)
    }
}
