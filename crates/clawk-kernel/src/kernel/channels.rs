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

/// Rows of the outbox that are looked through for one message.
const LOOKED_AT: usize = 10_000;

/// An event of a channel that is recorded and is not a message, for example a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelFact {
    /// Somebody's messages, or presses of a button, were not taken. Their text is nowhere.
    Refused {
        /// The channel.
        channel: String,
        /// Where.
        conversation: String,
        /// Who, as the platform knows them.
        sender: String,
        /// Why.
        reason: String,
        /// How many since the last such event of this sender.
        count: u64,
    },
    /// A step of a pairing.
    Pairing {
        /// The channel.
        channel: String,
        /// Who is or was to be let in, as the platform knows them.
        sender: String,
        /// What happened.
        step: PairingChange,
        /// SHA-256 of the code; not of a revocation.
        code: Option<Digest>,
        /// When the code lapses, RFC 3339.
        expires_at: Option<String>,
        /// Who decided.
        by: Option<String>,
    },
    /// What a trigger did.
    Run {
        /// The channel.
        channel: String,
        /// `started`, `skipped`, `queued`, `missed`.
        what: String,
        /// Which run: its time, or what set it off.
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
            } => scribe.entry(
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
            } => scribe.entry(
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
            } => scribe.entry(
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
    /// Puts something about a channel on the record, durably.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn record_channel(&self, fact: &ChannelFact) -> Result<(), KernelError> {
        let scribe = &self.agent.scribe;
        let draft = fact.draft(scribe, &self.agent.life.root);
        Ok(scribe.write(vec![draft]).await?)
    }

    /// The same with the event that the fact is about: it becomes the record's content, which is sealed in an encrypted state.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn record_channel_event(&self, fact: &ChannelFact, event: Vec<u8>) -> Result<(), KernelError> {
        let scribe = &self.agent.scribe;
        let draft = fact.draft(scribe, &self.agent.life.root);
        let draft = draft.content(crate::event::digest(&event), event);
        Ok(scribe.write(vec![draft]).await?)
    }

    /// Remembers, durably, that these bytes came from a sender: a file that holds them is that person's words and not this agent's
    /// own, for whoever reads it later.
    ///
    /// # Errors
    /// It can't be kept, so the file must not be.
    pub async fn mark_sent(&self, content: Vec<u8>, sender: &str, channel: &str) -> Result<(), String> {
        let origins = BTreeSet::from([taint::of_attachment(sender, channel)]);
        self.agent.calls.runner.mark(content, origins).await
    }

    /// Notes the place of a file whose bytes were marked, so that its wording is known again when somebody changes it by hand.
    pub async fn note_sent(&self, path: PathBuf) {
        let file = MarkedContent::File(path);
        let _marked = self.agent.calls.runner.marked(vec![file]).await;
    }

    /// Every step of every pairing, in order.
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

    /// The message that was taken before under one of this one's platform ids.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn arrived(&self, inbound: &ChannelMessage) -> Result<Option<AcceptedMessage>, KernelError> {
        ingress::known(&self.agent.sessions, inbound).await
    }

    /// Tells whether a message is still open: its turn has not ended, or its answer is not delivered.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn is_open(&self, message: MessageId) -> Result<bool, KernelError> {
        let journal = self.agent.scribe.journal();
        let open = journal.open_messages().await?;
        if open.iter().any(|open| open.message == message) {
            return Ok(true);
        }
        let owed = journal.outbox(LOOKED_AT).await?;
        Ok(owed.iter().any(|row| !row.dead && row.owed.message == message))
    }

    /// The record of the last turn that ended in a channel's conversation. In a direct conversation it is the sender's own.
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
        match conversation::known(sessions, &key).await? {
            Some(session) => Ok(shown::last(&**sessions.scribe.journal(), session).await?),
            None => Ok(None),
        }
    }

    /// The door of the person whose turn runs in a session, or ran last: whom a question of the agent's own asks. Not always the one
    /// who opened the session. `None`: the session is not in memory, or nothing was said in it since.
    #[must_use]
    pub fn asker_of(&self, session: SessionId) -> Option<EntryPoint> {
        self.agent.sessions.table.get(session)?.asker()
    }

    /// The door by which a session was opened; `None` if the session is not in memory.
    #[must_use]
    pub fn door_of(&self, session: SessionId) -> Option<EntryPoint> {
        let state = self.agent.sessions.table.get(session)?;
        Some(state.door.clone())
    }
}
