//! The channels' side of the kernel: incoming messages and answers to deliver.

use std::sync::Arc;

use clawk_proto::{MessageId, SessionId};

use super::Kernel;
use crate::error::KernelError;
use crate::ingress::{self, AcceptedMessage, ChannelMessage};
use crate::outbox::{self, DeliveryGuard, UndeliveredAnswer};
use crate::ports::{ChannelDelivery, OutboxRow};

impl Kernel {
    /// Accepts a channel's message. When this returns `Ok`, the message is durable (C1): it may be acknowledged to its platform,
    /// and will be answered or become a dead letter. A message with a known platform id is a duplicate and starts nothing.
    ///
    /// # Errors
    /// The message was refused: a name or the text is empty or too long, too many messages wait, or the agent accepts no work. A
    /// refusal of the text is recorded; the message may be acknowledged to its platform, because a retry would be refused again.
    pub async fn submit_message(&self, inbound: ChannelMessage) -> Result<AcceptedMessage, KernelError> {
        ingress::submit_message(&self.agent.sessions, inbound).await
    }

    /// Delivers a channel's answers with this port until the guard is dropped: waiting ones and new ones. The channel's previous
    /// port is ended first.
    #[must_use = "deliveries end when it is dropped"]
    pub fn deliver_channel(&self, channel: &str, port: Arc<dyn ChannelDelivery>) -> DeliveryGuard {
        outbox::attach_channel(&self.agent.outbox, channel, port)
    }

    /// Returns at most `limit` entries of the outbox, oldest first: waiting answers and dead letters.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn read_outbox(&self, limit: usize) -> Result<Vec<OutboxRow>, KernelError> {
        Ok(self.agent.scribe.journal().read_outbox(limit).await?)
    }

    /// Queues an undeliverable answer again. Returns `false` if the outbox has no dead letter for this message.
    ///
    /// # Errors
    /// The journal can't be read or written.
    pub async fn retry_delivery(&self, message: MessageId, by: &str) -> Result<bool, KernelError> {
        let known = outbox::requeue_message(&self.agent.scribe, message, by).await?;
        self.agent.outbox.wake_delivery();
        Ok(known)
    }

    /// Returns answers that were not yet shown at a client of the process itself (`cli`): those of turns that continued by
    /// themselves.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn undelivered_answers(&self, surface: &str) -> Result<Vec<UndeliveredAnswer>, KernelError> {
        Ok(outbox::undelivered_answers(&self.agent.outbox, surface).await?)
    }

    /// Records that the waiting caller has the answer to this message.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn mark_delivered(&self, session: SessionId, message: MessageId) -> Result<(), KernelError> {
        Ok(outbox::mark_delivered(&self.agent.outbox, session, message).await?)
    }
}
