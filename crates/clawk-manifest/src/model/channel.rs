//! Channel (CKP §5.3): how people and events reach the agent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::closed::closed_set;

closed_set! {
    /// The platform or event source.
    pub enum ChannelType {
        Telegram = "telegram", Discord = "discord", Whatsapp = "whatsapp", Slack = "slack", Email = "email",
        Webhook = "webhook", Cli = "cli", Voice = "voice", Web = "web", Lark = "lark", Matrix = "matrix",
        Line = "line", Wechat = "wechat", Qq = "qq", Dingtalk = "dingtalk", Cron = "cron", Queue = "queue",
        Imap = "imap", DbTrigger = "db-trigger", Custom = "custom",
    }
}

closed_set! {
    /// The transport of the channel's messages.
    pub enum Transport {
        Polling = "polling", Webhook = "webhook", Websocket = "websocket", Stdio = "stdio",
    }
}

closed_set! {
    /// The access mode: who may talk to the agent through the channel.
    pub enum AccessMode {
        Open = "open", Allowlist = "allowlist", Pairing = "pairing", RoleBased = "role-based",
    }
}

closed_set! {
    /// The rights of a person. The variants are ordered; a later one may do more.
    pub enum Role {
        /// Reads answers, triggers nothing.
        Viewer = "viewer",
        /// Talks to the agent; policy applies.
        User = "user",
        /// Everything, approvals included.
        Admin = "admin",
    }
}

closed_set! {
    /// The handling of an event that arrives while `max_parallel` runs are active.
    pub enum OverlapPolicy { Skip = "skip", Queue = "queue", Allow = "allow" }
}

closed_set! {
    /// Database operations that trigger a `db-trigger` channel.
    pub enum DbEvent { Insert = "INSERT", Update = "UPDATE", Delete = "DELETE" }
}

/// A communication surface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// Unique name; `channel-N` when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels, for filtering and policy.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The platform.
    #[serde(rename = "type")]
    pub kind: ChannelType,
    /// The transport.
    pub transport: Transport,
    /// Authentication with the platform.
    pub auth: SecretAuth,
    /// Who may use the channel; `None`: the runtime's default for the type.
    #[serde(default)]
    pub access_control: Option<AccessControl>,
    /// Message handling.
    #[serde(default)]
    pub processing: MessageProcessing,
    /// The platform's features to use.
    #[serde(default)]
    pub features: ChannelFeatures,
    /// For event-driven types; present for `cron`, `queue`, `imap` and `db-trigger` (R7a).
    #[serde(default)]
    pub trigger: Option<Trigger>,
}

/// Authentication by one named secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretAuth {
    /// Name of the secret (never its value).
    pub secret_ref: String,
}

/// Who may talk to the agent (CKP §5.3). Each mode carries exactly the field it needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "kebab-case", deny_unknown_fields)]
pub enum AccessControl {
    /// Anyone on the platform.
    Open,
    /// Listed platform user ids only.
    Allowlist {
        /// The ids.
        allowed_ids: Vec<String>,
    },
    /// Unknown users get a code, which an admin must approve.
    Pairing {
        /// The settings of pairing.
        pairing: PairingSettings,
    },
    /// Each listed user has a role.
    RoleBased {
        /// The roles of the users.
        roles: Vec<RoleAssignment>,
    },
}

impl AccessControl {
    /// The name of the mode.
    #[must_use]
    pub fn mode(&self) -> AccessMode {
        match self {
            Self::Open => AccessMode::Open,
            Self::Allowlist { .. } => AccessMode::Allowlist,
            Self::Pairing { .. } => AccessMode::Pairing,
            Self::RoleBased { .. } => AccessMode::RoleBased,
        }
    }
}

/// Pairing: how unknown users are admitted by a code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairingSettings {
    /// How long a code is valid, minutes.
    pub code_expiry_minutes: u64,
    /// The largest number of pending codes.
    pub max_pending: u64,
}

/// A user's role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleAssignment {
    /// Platform user id.
    pub id: String,
    /// The role.
    pub role: Role,
}

/// Message handling.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MessageProcessing {
    /// The longest message, in characters.
    pub max_message_length: Option<u64>,
    /// The limit of inbound messages.
    pub rate_limit: Option<MessageRate>,
    /// Show that the agent is writing.
    pub typing_indicator: bool,
    /// Confirm that a message was read.
    pub read_receipts: bool,
}

/// The limit of inbound messages per sender.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MessageRate {
    /// The sustained rate.
    pub messages_per_minute: Option<u64>,
    /// Additional messages accepted at once.
    pub burst: Option<u64>,
}

/// The platform's features to use; an absent member means "if the platform has it".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelFeatures {
    /// Voice messages.
    pub voice: Option<bool>,
    /// File attachments. `false`: inbound files are named but not downloaded, and no file is sent.
    pub files: Option<bool>,
    /// Reactions.
    pub reactions: Option<bool>,
    /// Threads.
    pub threads: Option<bool>,
    /// Images inside messages. `false`: pictures are ordinary files, and models do not see them.
    pub inline_images: Option<bool>,
}

/// The trigger of an event-driven channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trigger {
    /// Five-field cron expression; present for `cron`.
    pub schedule: Option<String>,
    /// Queue or topic; present for `queue`.
    pub queue_name: Option<String>,
    /// Mailbox; present for `imap`.
    pub mailbox: Option<String>,
    /// Table; present for `db-trigger`.
    pub table: Option<String>,
    /// The operations that trigger; empty means all.
    pub events: Vec<DbEvent>,
    /// The largest number of simultaneous runs; 1 by default.
    pub max_parallel: u32,
    /// The handling of events beyond `max_parallel`; `skip` by default.
    pub overlap_policy: OverlapPolicy,
}

impl Default for Trigger {
    fn default() -> Self {
        Self {
            schedule: None,
            queue_name: None,
            mailbox: None,
            table: None,
            events: Vec::new(),
            max_parallel: 1,
            overlap_policy: OverlapPolicy::Skip,
        }
    }
}
