//! The record of channels besides their messages: refused senders, pairings, runs of triggers.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clawk_events::payload::{ChannelPairing, ChannelRefused, ChannelRun};
pub use clawk_events::shape::PairingStep as PairingChange;
use clawk_proto::{Digest, MessageId, SessionId};

use super::Kernel;
use crate::conversation;
use crate::door::EntryPoint;
use crate::error::KernelError;
use crate::event::{Draft, JournalWriter, Thread, kind};
use crate::ingress::{self, AcceptedMessage, ChannelMessage};
use crate::ports::{ConversationKey, JournalScan, MarkedContent, RecordedEvent};
use crate::shown::{self, TurnRecord};
use crate::taint;

/// Largest number of outbox rows that are searched for one message.
const LOOKED_AT: usize = 10_000;

/// An event of a channel that is recorded and is not a message, for example a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelFact {
    /// Messages or button presses of a sender were refused. Their text is not stored.
    Refused {
        /// The channel.
        channel: String,
        /// The conversation.
        conversation: String,
        /// The sender's id on the platform.
        sender: String,
        /// The reason.
        reason: String,
        /// The count since the last such event of this sender.
        count: u64,
    },
    /// A step of a pairing.
    Pairing {
        /// The channel.
        channel: String,
        /// The person to be admitted, by their id on the platform.
        sender: String,
        /// What happened.
        step: PairingChange,
        /// SHA-256 of the code; `None` for a revocation.
        code: Option<Digest>,
        /// Expiry time of the code, RFC 3339.
        expires_at: Option<String>,
        /// The person who decided.
        by: Option<String>,
    },
    /// A trigger's action.
    Run {
        /// The channel.
        channel: String,
        /// `started`, `skipped`, `queued`, `missed`.
        what: String,
        /// The run: its time, or its trigger.
        run: String,
        /// Why it was not started.
        reason: Option<String>,
    },
}

impl ChannelFact {
    fn draft(&self, scribe: &JournalWriter, thread: &Thread) -> Draft {
        match self.clone() {
            Self::Refused {
                channel,
                conversation,
                sender,
                reason,
                count,
            } => scribe.draft_event(
                thread,
                &ChannelRefused {
                    channel,
                    conversation,
                    count,
                    fact: "refused".to_owned(),
                    reason,
                    sender,
                },
            ),
            Self::Pairing {
                channel,
                sender,
                step,
                code,
                expires_at,
                by,
            } => scribe.draft_event(
                thread,
                &ChannelPairing {
                    by,
                    channel,
                    code,
                    expires_at,
                    fact: "pairing".to_owned(),
                    sender,
                    step,
                },
            ),
            Self::Run {
                channel,
                what,
                run,
                reason,
            } => scribe.draft_event(
                thread,
                &ChannelRun {
                    channel,
                    fact: "run".to_owned(),
                    reason,
                    run,
                    what,
                },
            ),
        }
    }
}

impl From<ChannelPairing> for ChannelFact {
    fn from(pairing: ChannelPairing) -> Self {
        Self::Pairing {
            channel: pairing.channel,
            sender: pairing.sender,
            step: pairing.step,
            code: pairing.code,
            expires_at: pairing.expires_at,
            by: pairing.by,
        }
    }
}

impl Kernel {
    /// Records an event of a channel, durably.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn record_channel(&self, fact: &ChannelFact) -> Result<(), KernelError> {
        let scribe = &self.agent.scribe;
        let draft = fact.draft(scribe, &self.agent.life.root);
        Ok(scribe.write(vec![draft]).await?)
    }

    /// Records an event of a channel with the platform's event as its content, which is encrypted in an encrypted state.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn record_channel_event(&self, fact: &ChannelFact, event: Vec<u8>) -> Result<(), KernelError> {
        let scribe = &self.agent.scribe;
        let draft = fact.draft(scribe, &self.agent.life.root);
        let draft = draft.with_content(crate::event::digest(&event), event);
        Ok(scribe.write(vec![draft]).await?)
    }

    /// Records durably that these bytes came from a sender. A file with these bytes then counts as that person's text, not the
    /// agent's, for later readers.
    ///
    /// # Errors
    /// The record can't be stored. Then the file must not be stored either.
    pub async fn mark_sent(&self, content: Vec<u8>, sender: &str, channel: &str) -> Result<(), String> {
        let origins = BTreeSet::from([taint::of_attachment(sender, channel)]);
        self.agent.calls.runner.mark_content(content, origins).await
    }

    /// Records the path of a file whose bytes were marked, so that its text is recognised after manual changes.
    pub async fn note_sent(&self, path: PathBuf) {
        let file = MarkedContent::File(path);
        let _marked = self.agent.calls.runner.marked_origins(vec![file]).await;
    }

    /// Returns every step of every pairing, in order.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn pairings(&self) -> Result<Vec<ChannelFact>, KernelError> {
        let scan = JournalScan {
            kinds: &[kind::CHANNEL_PAIRING],
            ..JournalScan::default()
        };
        let mut found = Vec::new();
        let pairing = |event: &RecordedEvent| {
            found.push(event.read_as::<ChannelPairing>()?.into());
            Ok(())
        };
        self.agent.scribe.read_each(scan, pairing).await?;
        Ok(found)
    }

    /// Returns the message that was accepted before with one of these platform ids.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn find_arrival(
        &self,
        inbound: &ChannelMessage,
    ) -> Result<Option<AcceptedMessage>, KernelError> {
        ingress::find_accepted(&self.agent.sessions, inbound).await
    }

    /// Returns whether a message is still open: its turn has not ended, or its answer is not delivered.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn is_open(&self, message: MessageId) -> Result<bool, KernelError> {
        let journal = self.agent.scribe.journal();
        let open = journal.open_messages().await?;
        if open.iter().any(|open| open.message == message) {
            return Ok(true);
        }
        let owed = journal.read_outbox(LOOKED_AT).await?;
        Ok(owed.iter().any(|row| !row.dead && row.owed.message == message))
    }

    /// Returns the summary of the last ended turn in a channel's conversation; in a direct conversation, the sender's own.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn last_record(
        &self,
        channel: &str,
        conversation: &str,
        (sender, direct): (&str, bool),
    ) -> Result<Option<TurnRecord>, KernelError> {
        let key = ConversationKey {
            channel: channel.to_owned(),
            conversation: conversation.to_owned(),
            sender: if direct { sender.to_owned() } else { String::new() },
        };
        let sessions = &self.agent.sessions;
        match conversation::find_session(sessions, &key).await? {
            Some(session) => Ok(shown::last_turn_record(&**sessions.scribe.journal(), session).await?),
            None => Ok(None),
        }
    }

    /// Returns the entry point of the person whose turn runs or ran last in a session. The agent's own questions go to this person,
    /// who may not be the session's opener. `None`: the session is not in memory, or had no turn since.
    #[must_use]
    pub fn asker_of(&self, session: SessionId) -> Option<EntryPoint> {
        self.agent.sessions.table.get(session)?.asker()
    }

    /// Returns the entry point by which a session was opened; `None` if the session is not in memory.
    #[must_use]
    pub fn door_of(&self, session: SessionId) -> Option<EntryPoint> {
        let state = self.agent.sessions.table.get(session)?;
        Some(state.door.clone())
    }
}
