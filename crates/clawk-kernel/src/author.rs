//! The author of a text (R50). It is determined by the entry point through which the text arrived, never by the text. A user
//! message can't be built without an author, and an author can't be built without an entry point.
//!
//! The provenance of a text is determined when it is used: the text of the person whose turn runs is that person's own; the text of
//! everybody else below admin counts as a peer's.

use std::collections::BTreeSet;

use clawk_manifest::model::{ChannelType, Manifest, Role};
use serde::{Deserialize, Serialize};

use crate::door::{EntryPoint, Origin};
use crate::ports::{MessageContext, QuoteAuthor, QuoteKind};
use crate::taint;

/// The sender of a message whose platform does not name its author (C3a). Two such senders may be different people.
pub(crate) const UNVERIFIED: &str = "(unverified)";
/// Prefix of client names at entry points whose clients are other agents.
const AGENT_CLIENTS: &str = "a2a:";
/// Prefix of client names whose text comes from a queue or a folder. Anybody who can write there may be the author.
pub const QUEUE_CLIENTS: &str = "queue:";

/// The kind of a text's author.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AuthorKind {
    /// clawk itself: its own questions to models, and its texts about calls.
    Runtime,
    /// The agent's operator, in the manifest: a `cron` channel.
    Operator,
    /// A person whom an entry point has identified.
    Person,
    /// No person: a row, a file or a mail triggered the run. Anybody who can write there may be the author.
    Trigger,
    /// Another agent.
    Agent,
}

/// The author of a text: the entry point, the sender's name there, and the sender's role there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextAuthor {
    kind: AuthorKind,
    /// Name of the channel or entry point.
    door: String,
    sender: String,
    role: Role,
    /// Sources of other people's text that the text repeats.
    repeats: BTreeSet<String>,
    /// The text arrived at a terminal of this machine.
    at_terminal: bool,
}

impl TextAuthor {
    /// The author of clawk's own text. Such a text must not contain anything from outside.
    #[must_use]
    pub const fn runtime() -> Self {
        Self {
            kind: AuthorKind::Runtime,
            door: String::new(),
            sender: String::new(),
            role: Role::Admin,
            repeats: BTreeSet::new(),
            at_terminal: false,
        }
    }

    /// An unknown author, who counts as a stranger to everybody.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            kind: AuthorKind::Trigger,
            door: "unknown".to_owned(),
            sender: "unknown".to_owned(),
            role: Role::Viewer,
            repeats: BTreeSet::new(),
            at_terminal: false,
        }
    }

    /// Returns the author of a message, from its recorded entry point.
    pub(crate) fn of(origin: &Origin, manifest: &Manifest) -> Self {
        let door = origin.sender_door();
        Self {
            kind: origin.author_kind.unwrap_or_else(|| kind_of(door, manifest)),
            door: match door {
                EntryPoint::Channel { channel, .. } => channel.clone(),
                EntryPoint::Rpc { client, .. } if client.starts_with(AGENT_CLIENTS) => "a2a".to_owned(),
                EntryPoint::Rpc { client, .. } if client.starts_with(QUEUE_CLIENTS) => "queue".to_owned(),
                EntryPoint::Rpc { .. }
                | EntryPoint::Cli
                | EntryPoint::Peer { .. }
                | EntryPoint::Unknown { .. } => door.name().to_owned(),
            },
            sender: door.sender().to_owned(),
            role: origin.role,
            repeats: origin.repeats.clone(),
            at_terminal: matches!(door, EntryPoint::Cli),
        }
    }

    /// Returns the author of text from this entry point that is not a message.
    pub(crate) fn of_door(door: &EntryPoint, manifest: &Manifest) -> Self {
        Self::of(&Origin::from(door.clone()), manifest)
    }

    /// Returns the name of the channel or entry point.
    pub(crate) fn door_name(&self) -> &str {
        &self.door
    }

    /// Returns the source under which this author's text is known to others. `None`: the author is the agent's owner.
    pub(crate) fn own_origin(&self) -> Option<String> {
        match self.kind {
            AuthorKind::Runtime | AuthorKind::Operator => None,
            AuthorKind::Person if self.role >= Role::Admin => None,
            AuthorKind::Agent if self.door == "peer" => Some(taint::of_peer(&self.sender)),
            AuthorKind::Agent | AuthorKind::Person | AuthorKind::Trigger => {
                let name = self
                    .sender
                    .strip_prefix(AGENT_CLIENTS)
                    .or_else(|| self.sender.strip_prefix(QUEUE_CLIENTS));
                Some(taint::of_sender(name.unwrap_or(&self.sender), &self.door))
            }
        }
    }

    /// Returns all sources of the text: its author, and the sources of the text that it repeats.
    pub(crate) fn origins(&self) -> BTreeSet<String> {
        self.repeats.iter().cloned().chain(self.own_origin()).collect()
    }

    /// Returns whether text of this source is the author's own, wherever it appears. A name that a client gives itself proves
    /// nothing: it counts as the client's own only below admin, where it gives no rights.
    pub(crate) fn wrote(&self, origin: &str) -> bool {
        let known = match self.kind {
            AuthorKind::Person => self.sender != UNVERIFIED,
            AuthorKind::Runtime | AuthorKind::Operator | AuthorKind::Trigger | AuthorKind::Agent => false,
        };
        let vouched = !matches!(self.door.as_str(), "rpc" | "cli" | "unknown");
        let own = || taint::of_sender(&self.sender, &self.door);
        known && (vouched || self.role < Role::Admin) && taint::bare(origin) == own()
    }

    /// Returns whether the author is clawk itself.
    pub(crate) fn is_runtime(&self) -> bool {
        self.kind == AuthorKind::Runtime
    }

    /// Returns whether the author types at this machine's terminal or pipes text into the program.
    pub(crate) fn is_at_terminal(&self) -> bool {
        self.kind == AuthorKind::Person && self.at_terminal
    }

    /// Returns a description for people: `ann on slack (user)`.
    pub(crate) fn words(&self) -> String {
        match self.kind {
            AuthorKind::Runtime => "clawk".to_owned(),
            AuthorKind::Operator => format!("the schedule {} of the manifest", self.door),
            AuthorKind::Person if self.at_terminal => "owner at the terminal".to_owned(),
            AuthorKind::Person | AuthorKind::Trigger | AuthorKind::Agent => {
                let role = self.role.as_str();
                match self.own_origin() {
                    Some(origin) => format!("{} ({role})", taint::words(&origin)),
                    None => {
                        let origin = taint::of_sender(&self.sender, &self.door);
                        format!("{} ({role})", taint::words(&origin))
                    }
                }
            }
        }
    }
}

/// Returns the kind of author for an entry point.
pub(crate) fn kind_of(door: &EntryPoint, manifest: &Manifest) -> AuthorKind {
    match door {
        EntryPoint::Cli => AuthorKind::Person,
        EntryPoint::Rpc { client, .. } if client.starts_with(AGENT_CLIENTS) => AuthorKind::Agent,
        EntryPoint::Rpc { client, .. } if client.starts_with(QUEUE_CLIENTS) => AuthorKind::Trigger,
        EntryPoint::Rpc { .. } => AuthorKind::Person,
        EntryPoint::Peer { .. } => AuthorKind::Agent,
        // The sender of a trigger's message is the trigger's channel.
        EntryPoint::Channel { channel, sender, .. } if channel == sender => {
            let declared = manifest.channels.iter().find(|known| known.name == *channel);
            match declared.map(|known| known.kind) {
                Some(ChannelType::Cron) => AuthorKind::Operator,
                Some(_) | None => AuthorKind::Trigger,
            }
        }
        EntryPoint::Channel { .. } => AuthorKind::Person,
        EntryPoint::Unknown { .. } => AuthorKind::Trigger,
    }
}

/// Returns the sources of other people's text that a message repeats, as reported by its platform. An id given by the platform
/// identifies its person; a name that people choose themselves does not.
pub(crate) fn of_quotes(context: &MessageContext, channel: &str) -> BTreeSet<String> {
    let others = context.quotes.iter().filter_map(|quote| match &quote.author {
        // The agent's text in another conversation may contain anything.
        QuoteAuthor::Agent if quote.kind == QuoteKind::Forward => {
            Some(taint::of_sender("forwarded", channel))
        }
        QuoteAuthor::Agent | QuoteAuthor::Sender => None,
        QuoteAuthor::Other { id: Some(id), .. } => Some(taint::of_sender(id, channel)),
        QuoteAuthor::Other { id: None, .. } => Some(taint::of_sender("somebody", channel)),
    });
    let made_from = context
        .made_from
        .iter()
        .filter(|origin| taint::is_foreign(origin));
    others.chain(made_from.cloned()).collect()
}

#[cfg(test)]
mod tests;
