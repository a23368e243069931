//! Entry points: how a request arrives, who its sender is there, and the sender's rights (R39).

use std::collections::BTreeSet;

use clawk_events::payload::{MessageAccepted, SessionStarted};
use clawk_manifest::model::Role;
use clawk_proto::{Digest, MessageId, SessionId};
use serde::Deserialize;

use crate::author::{AuthorKind, TextAuthor};
use crate::model_choice::ModelChoice;
use crate::ports::{ConversationKey, InboxArrival, OwedAnswer, ToolOffer};
use crate::time::Timestamp;

/// How long the ids of a platform's messages are kept if the channel does not say, in days.
pub const REMEMBERED_DAYS: u32 = 7;

/// The entry point of a request. Each entry point gives its sender a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryPoint {
    /// JSON-RPC.
    Rpc {
        /// `clientInfo.name`.
        client: String,
        /// Role by the scopes of the connection's token. Standard input and output belong to the user who started the agent: admin.
        role: Role,
    },
    /// The terminal of the process owner: admin.
    Cli,
    /// A swarm peer, at a task.
    Peer {
        /// The peer's identity.
        identity: String,
        /// The task.
        task_id: String,
        /// At most the role of the sender who delegated the task.
        role: Role,
    },
    /// A channel: a sender with a role, admitted by the channel's access control.
    Channel {
        /// The channel's name.
        channel: String,
        /// The platform's chat, room, thread or mail thread.
        conversation: String,
        /// The conversation has only this sender and the agent.
        direct: bool,
        /// The platform's id of the sender.
        sender: String,
        /// By [`crate::roles::admitted_role`].
        role: Role,
    },
    /// An entry point that the record does not fully describe: the lowest role.
    Unknown {
        /// The sender in the record.
        sender: String,
    },
}

impl EntryPoint {
    /// Makes the launcher's entry point: JSON-RPC on standard input and output, as admin.
    #[must_use]
    pub fn from_launcher(client: &str) -> Self {
        Self::Rpc {
            client: client.to_owned(),
            role: Role::Admin,
        }
    }

    /// Returns the word in the trace.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Rpc { .. } => "rpc",
            Self::Cli => "cli",
            Self::Peer { .. } => "peer",
            Self::Channel { .. } => "channel",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Returns the sender's name at this entry point.
    #[must_use]
    pub fn sender(&self) -> &str {
        match self {
            Self::Rpc { client, .. } => client,
            Self::Cli => "owner",
            Self::Peer { identity, .. } => identity,
            Self::Channel { sender, .. } | Self::Unknown { sender } => sender,
        }
    }

    /// The conversation of a channel: one session has it (C2).
    pub fn conversation_key(&self) -> Option<ConversationKey> {
        match self {
            Self::Channel {
                channel,
                conversation,
                direct,
                sender,
                ..
            } => Some(ConversationKey {
                channel: channel.clone(),
                conversation: conversation.clone(),
                sender: if *direct { sender.clone() } else { String::new() },
            }),
            Self::Rpc { .. } | Self::Cli | Self::Peer { .. } | Self::Unknown { .. } => None,
        }
    }

    /// Returns the sender's role (CKP §5.3).
    #[must_use]
    pub const fn role(&self) -> Role {
        match self {
            Self::Cli => Role::Admin,
            Self::Rpc { role, .. } | Self::Peer { role, .. } | Self::Channel { role, .. } => *role,
            Self::Unknown { .. } => Role::Viewer,
        }
    }
}

/// The origin of a message: its sender, and the rights of its turn. Recorded with the message and restored after a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Where the answer goes.
    pub door: EntryPoint,
    /// At most the door's own.
    pub role: Role,
    /// The platform's ids of the message.
    pub platform_ids: Vec<String>,
    /// So long a message with one of these ids is the same message.
    pub remembered_days: u32,
    /// The client's own tools, for the turn of this message.
    pub tools: Vec<ToolOffer>,
    /// What kind of author the record says; `None`: the door and the manifest decide.
    pub author_kind: Option<AuthorKind>,
    /// Origins of words of others that the text repeats.
    pub repeats: BTreeSet<String>,
    /// By which door the message came, where its turn goes on in a fork and answers at another one.
    pub written_by: Option<EntryPoint>,
    /// Which model answers, where a person chose one for the conversation.
    pub model: Option<ModelChoice>,
}

/// The origin as recorded in `ckp.message.accepted`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RecordedOrigin {
    author_kind: Option<AuthorKind>,
    channel: Option<String>,
    conversation: Option<String>,
    direct: Option<bool>,
    door: String,
    effort: Option<String>,
    platform_ids: Vec<String>,
    provider: Option<String>,
    repeats: BTreeSet<String>,
    role: Option<String>,
    sender: String,
    task_id: Option<String>,
}

impl From<MessageAccepted> for RecordedOrigin {
    fn from(accepted: MessageAccepted) -> Self {
        Self {
            author_kind: accepted.author_kind,
            channel: accepted.channel.into_value(),
            conversation: accepted.conversation.into_value(),
            direct: accepted.direct.into_value(),
            door: accepted.door,
            effort: accepted.effort,
            platform_ids: accepted.platform_ids.unwrap_or_default(),
            provider: accepted.provider,
            repeats: accepted.repeats.into_iter().collect(),
            role: accepted.role,
            sender: accepted.sender,
            task_id: accepted.task_id.into_value(),
        }
    }
}

/// Whoever opened a session, as its first event has it.
impl From<&SessionStarted> for RecordedOrigin {
    fn from(started: &SessionStarted) -> Self {
        Self {
            door: started.door.clone().unwrap_or_default(),
            role: started.role.clone(),
            ..Self::default()
        }
    }
}

impl From<EntryPoint> for Origin {
    fn from(door: EntryPoint) -> Self {
        Self {
            role: door.role(),
            door,
            platform_ids: Vec::new(),
            remembered_days: REMEMBERED_DAYS,
            tools: Vec::new(),
            author_kind: None,
            repeats: BTreeSet::new(),
            written_by: None,
            model: None,
        }
    }
}

impl Origin {
    /// The same, where the text repeats words of others.
    pub fn with_repeated_author(mut self, author: &TextAuthor) -> Self {
        self.repeats.extend(author.origins());
        self
    }

    /// The same with no more rights than `most`.
    pub fn at_most(mut self, most: Role) -> Self {
        self.role = self.role.min(most);
        self
    }

    /// Restores the origin from the record, never with more rights than recorded.
    ///
    /// Versions before R39 recorded a door without a role. Of these, `cli` and `rpc` were always the process owner's terminal
    /// and the launcher's wire, both admin, and nothing else was called so. Every other door may have stood for anybody, so its
    /// turns go on as a viewer's: the task of a peer that such a version left open gets no tools and is best asked for again.
    pub fn from_record(came: RecordedOrigin) -> Self {
        let role = match (&came.role, came.door.as_str()) {
            (Some(word), _) => Role::parse(word).unwrap_or(Role::Viewer),
            (None, "cli" | "rpc") => Role::Admin,
            (None, _) => Role::Viewer,
        };
        let platform_ids = came.platform_ids;
        let sender = came.sender;
        let door = match (came.door.as_str(), came.task_id, came.channel, came.conversation) {
            ("cli", ..) => EntryPoint::Cli,
            ("rpc", ..) => EntryPoint::Rpc { client: sender, role },
            ("peer", Some(task_id), ..) => EntryPoint::Peer {
                identity: sender,
                task_id,
                role,
            },
            ("channel", _, Some(channel), Some(conversation)) => EntryPoint::Channel {
                channel,
                conversation,
                direct: came.direct.unwrap_or(false),
                sender,
                role,
            },
            _ => EntryPoint::Unknown { sender },
        };
        Self {
            role: role.min(door.role()),
            door,
            platform_ids,
            remembered_days: REMEMBERED_DAYS,
            tools: Vec::new(),
            author_kind: came.author_kind,
            repeats: came.repeats,
            written_by: None,
            model: ModelChoice::recorded(came.provider, came.effort.as_deref()),
        }
    }

    /// The door of whoever said it. The answer goes to [`Origin::door`].
    pub fn sender_door(&self) -> &EntryPoint {
        self.written_by.as_ref().unwrap_or(&self.door)
    }

    /// The same message said once more by somebody with at most these rights: its door, its sender and its role stay. It is another
    /// message of the platform, so the ids go.
    pub fn said_again(self, most: Role) -> Self {
        Self {
            platform_ids: Vec::new(),
            tools: Vec::new(),
            ..self
        }
        .at_most(most)
    }

    /// The same for a turn that goes on in a fork. Who forks it hears of it, and its message's rights stay a bound. The message stays its
    /// sender's, unless whoever forks it may know less than the sender: a fork must not recall what the forker may not read.
    pub fn forked_by(self, by: &Self) -> Self {
        if by.role < Role::Admin && by.role <= self.role {
            return by.clone().at_most(self.role);
        }
        Self {
            author_kind: self.author_kind,
            repeats: self.repeats,
            written_by: Some(self.written_by.unwrap_or(self.door)),
            ..by.clone()
        }
        .at_most(self.role)
    }

    /// The same as records have it whose fork does not say that it keeps the sender.
    pub fn taken_over_by(self, by: &Self) -> Self {
        by.clone().at_most(self.role)
    }

    /// The same for a replay, where nothing runs: versions before R39 gave every turn the rights of an admin, so a record without
    /// a role is only repeated by those. `judged`: a version that judges authors went on with the session; where none did, a message
    /// without a kind of author had no author to judge.
    pub fn from_replayed_record(mut came: RecordedOrigin, judged: bool) -> Self {
        let then = came.role.is_none().then_some(Role::Admin);
        if !judged {
            came.author_kind = came.author_kind.or(Some(AuthorKind::Runtime));
        }
        let origin = Self::from_record(came);
        Self {
            role: then.unwrap_or(origin.role),
            ..origin
        }
    }

    /// The name of the channel, the conversation there, and whether it is a direct one.
    pub fn channel(&self) -> Option<(&str, &str, bool)> {
        match &self.door {
            EntryPoint::Channel {
                channel,
                conversation,
                direct,
                ..
            } => Some((channel, conversation, *direct)),
            EntryPoint::Rpc { .. }
            | EntryPoint::Cli
            | EntryPoint::Peer { .. }
            | EntryPoint::Unknown { .. } => None,
        }
    }

    /// What a message of a channel changes beside the inbox.
    pub fn inbox_arrival(&self, now: Timestamp) -> Option<InboxArrival> {
        let kept_ms = i64::from(self.remembered_days) * 86_400_000;
        Some(InboxArrival {
            key: self.door.conversation_key()?,
            platform_ids: self.platform_ids.clone(),
            at: now,
            kept_until: now.plus_millis(kept_ms),
        })
    }

    /// What is owed to whoever said it: to a channel's conversation, or to the process owner at the terminal. Other doors have
    /// a caller of their own who waits for the answer.
    pub fn owed_answer(
        &self,
        message: MessageId,
        session: SessionId,
        text: Option<Digest>,
    ) -> Option<OwedAnswer> {
        let (channel, conversation) = match &self.door {
            EntryPoint::Channel {
                channel,
                conversation,
                ..
            } => (channel.clone(), conversation.clone()),
            EntryPoint::Cli => (String::new(), self.door.name().to_owned()),
            EntryPoint::Rpc { .. } | EntryPoint::Peer { .. } | EntryPoint::Unknown { .. } => return None,
        };
        Some(OwedAnswer {
            message,
            session,
            channel,
            conversation,
            sender: self.door.sender().to_owned(),
            reply_to: self.platform_ids.first().cloned(),
            text,
        })
    }

    /// The task, where another agent asks.
    pub fn task_id(&self) -> Option<&str> {
        match &self.door {
            EntryPoint::Peer { task_id, .. } => Some(task_id),
            EntryPoint::Rpc { .. }
            | EntryPoint::Cli
            | EntryPoint::Channel { .. }
            | EntryPoint::Unknown { .. } => None,
        }
    }
}
