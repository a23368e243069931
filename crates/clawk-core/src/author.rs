//! The author of a text (R50). It is determined by the entry point through which the text arrived, never by the text. A user
//! message can't be built without an author, and an author can't be built without an entry point.
//!
//! The provenance of a text is determined when it is used: the text of the person whose turn runs is that person's own; the text of
//! everybody else below admin counts as a peer's.

use std::collections::BTreeSet;

pub use clawk_events::shape::AuthorKind;
use clawk_manifest::model::{ChannelType, Manifest, Role};

use crate::door::{EntryPoint, Origin};
use crate::ports::{MessageContext, QuoteAuthor, QuoteKind};
use crate::text_origin;

/// The sender of a message whose platform does not name its author (C3a). Two such senders may be different people.
pub(crate) const UNVERIFIED: &str = "(unverified)";
/// Prefix of client names at entry points whose clients are other agents.
const AGENT_CLIENTS: &str = "a2a:";
/// Prefix of client names whose text comes from a queue or a folder. Anybody who can write there may be the author.
pub const QUEUE_CLIENTS: &str = "queue:";

/// Who wrote a text: by which door it came in, the sender's name there, and the rights that the sender had there.
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
    pub const fn from_runtime() -> Self {
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

    /// The author of a message, by its door as it is recorded with the message.
    pub fn from_origin(origin: &Origin, manifest: &Manifest) -> Self {
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

    /// The author of what somebody says who has this door, where there is no message.
    pub fn of_door(door: &EntryPoint, manifest: &Manifest) -> Self {
        Self::from_origin(&Origin::from(door.clone()), manifest)
    }

    /// Returns the name of the channel or entry point.
    pub(crate) fn door_name(&self) -> &str {
        &self.door
    }

    /// The origin that this author's words have for others. `None`: they are the agent's owner's.
    pub fn own_origin(&self) -> Option<String> {
        match self.kind {
            AuthorKind::Runtime | AuthorKind::Operator => None,
            AuthorKind::Person if self.role >= Role::Admin => None,
            AuthorKind::Agent if self.door == "peer" => Some(text_origin::of_peer(&self.sender)),
            AuthorKind::Agent | AuthorKind::Person | AuthorKind::Trigger => {
                let name = self
                    .sender
                    .strip_prefix(AGENT_CLIENTS)
                    .or_else(|| self.sender.strip_prefix(QUEUE_CLIENTS));
                Some(text_origin::of_sender(name.unwrap_or(&self.sender), &self.door))
            }
        }
    }

    /// All origins of the text: its author's, and those of the words that it repeats.
    pub fn origins(&self) -> BTreeSet<String> {
        self.repeats.iter().cloned().chain(self.own_origin()).collect()
    }

    /// Whether words of this origin are the author's own, wherever they stand. Names that a client gives itself prove nothing: they
    /// are its own only below admin, where they give nothing.
    pub fn is_own_origin(&self, origin: &str) -> bool {
        let known = match self.kind {
            AuthorKind::Person => self.sender != UNVERIFIED,
            AuthorKind::Runtime | AuthorKind::Operator | AuthorKind::Trigger | AuthorKind::Agent => false,
        };
        let vouched = !matches!(self.door.as_str(), "rpc" | "cli" | "unknown");
        let own = || text_origin::of_sender(&self.sender, &self.door);
        known && (vouched || self.role < Role::Admin) && text_origin::bare(origin) == own()
    }

    /// Returns whether the author is clawk itself.
    pub(crate) fn is_runtime(&self) -> bool {
        self.kind == AuthorKind::Runtime
    }

    /// Returns whether the author types at this machine's terminal or pipes text into the program.
    pub(crate) fn is_at_terminal(&self) -> bool {
        self.kind == AuthorKind::Person && self.at_terminal
    }

    /// Who it is, for people: `ann on slack (user)`.
    pub fn display_name(&self) -> String {
        match self.kind {
            AuthorKind::Runtime => "clawk".to_owned(),
            AuthorKind::Operator => format!("the schedule {} of the manifest", self.door),
            AuthorKind::Person if self.at_terminal => "owner at the terminal".to_owned(),
            AuthorKind::Person | AuthorKind::Trigger | AuthorKind::Agent => {
                let role = self.role.as_str();
                match self.own_origin() {
                    Some(origin) => format!("{} ({role})", text_origin::words(&origin)),
                    None => {
                        let origin = text_origin::of_sender(&self.sender, &self.door);
                        format!("{} ({role})", text_origin::words(&origin))
                    }
                }
            }
        }
    }
}

/// Which kind of author comes in by a door.
pub fn kind_of(door: &EntryPoint, manifest: &Manifest) -> AuthorKind {
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

/// Origins of the words of others that a platform says a message repeats. An id that the platform gives names its person as a message
/// of that person would; a name that people give themselves does not.
pub fn of_quotes(context: &MessageContext, channel: &str) -> BTreeSet<String> {
    let others = context.quotes.iter().filter_map(|quote| match &quote.author {
        // The agent's text in another conversation may contain anything.
        QuoteAuthor::Agent if quote.kind == QuoteKind::Forward => {
            Some(text_origin::of_sender("forwarded", channel))
        }
        QuoteAuthor::Agent | QuoteAuthor::Sender => None,
        QuoteAuthor::Other { id: Some(id), .. } => Some(text_origin::of_sender(id, channel)),
        QuoteAuthor::Other { id: None, .. } => Some(text_origin::of_sender("somebody", channel)),
    });
    let made_from = context
        .made_from
        .iter()
        .filter(|origin| text_origin::is_foreign(origin));
    others.chain(made_from.cloned()).collect()
}

#[cfg(test)]
mod tests;
