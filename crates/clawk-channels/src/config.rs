//! `[channels.NAME]` of `clawk.toml`: what is local about a channel of the manifest.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// When a message in a group is for the agent. Direct messages always are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResponsePolicy {
    /// The agent is named or replied to, or it is a command.
    #[default]
    Mention,
    /// Every message.
    All,
}

/// What a sender who is not let in is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusalPolicy {
    /// Nothing.
    #[default]
    Silent,
    /// That they are not let in; each sender at most once an hour.
    Say,
}

/// What happens to runs of a schedule that were missed while the agent was down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissedRunPolicy {
    /// Nothing.
    Skip,
    /// One run makes up for all of them.
    #[default]
    Once,
}

/// Every key, with its default. An unknown key is an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelConfig {
    /// Where the platform's API is; the vendor's when absent. Loopback only when it is written here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The address under which the platform reaches this channel, to register and check webhooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_url: Option<String>,
    /// Further secrets by name, as references.
    pub secrets: BTreeMap<String, String>,
    /// Platform ids. They are not secret.
    pub settings: BTreeMap<String, String>,
    /// Senders with the role `admin`, in access modes that have no roles.
    pub admins: Vec<String>,
    /// People with tokens of their own, as references to secrets: the name is the sender's id.
    pub users: BTreeMap<String, String>,
    /// When a message in a group is for the agent.
    pub respond: ResponsePolicy,
    /// What a sender who is not let in is told.
    pub refuse: RefusalPolicy,
    /// What a trigger says to the agent; `{time}` and `{event}` are filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Where a trigger's answer goes, `CHANNEL:CONVERSATION`; else it is kept in the journal alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_to: Option<String>,
    /// Where the service is: of `queue`, `db-trigger`, `imap` and `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Where mail is handed in: of `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smtp_url: Option<String>,
    /// IANA name of a time zone: of a schedule (UTC when absent), or of the people who write (the agent's when absent).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Runs of the schedule that were missed.
    pub missed: MissedRunPolicy,
    /// Program and arguments of a `custom` channel.
    pub command: Vec<String>,
    /// A sandbox of the manifest that the program runs in; without one, a box without files, with the network below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Hosts that the program may reach.
    pub allowed_hosts: Vec<String>,
    /// Files that the program reads; relative ones start from the folder of `clawk.toml`.
    pub read_paths: Vec<PathBuf>,
    /// Variables of the program.
    pub env: BTreeMap<String, String>,
    /// Variables of the program whose values are secrets, as references.
    pub secret_env: BTreeMap<String, String>,
    /// Larger attachments are named and not fetched, MiB.
    pub max_attachment_mb: u32,
}

impl Default for ChannelConfig {
    fn default() -> Self {
        Self {
            base_url: None,
            public_url: None,
            secrets: BTreeMap::new(),
            settings: BTreeMap::new(),
            admins: Vec::new(),
            users: BTreeMap::new(),
            respond: ResponsePolicy::default(),
            refuse: RefusalPolicy::default(),
            prompt: None,
            deliver_to: None,
            url: None,
            smtp_url: None,
            timezone: None,
            missed: MissedRunPolicy::default(),
            command: Vec::new(),
            sandbox: None,
            allowed_hosts: Vec::new(),
            read_paths: Vec::new(),
            env: BTreeMap::new(),
            secret_env: BTreeMap::new(),
            max_attachment_mb: 20,
        }
    }
}
