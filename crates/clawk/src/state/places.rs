//! The one inventory of what lies in a state directory (ADR 0356). Backups and their tests go by it: a new file needs a place here,
//! or a test fails.

use std::path::{Component, Path};

/// What an entry of a state directory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StatePlace {
    /// Journal, inbox, outbox, memory with vectors, spending: `state.db`.
    Database,
    /// Large contents of the journal: `blobs`.
    Contents,
    /// Stores in folders: `memory`.
    MemoryFolders,
    /// Shelves, pages, threads, positions and dead events of channels: `channels`.
    Channels,
    /// What calls overwrote: `undo`.
    Originals,
    /// Records of audits: `audit`.
    Audit,
    /// Lines typed at the terminal: `history`.
    TypedLines,
    /// Where the words in files came from: `origins`.
    Origins,
    /// Notifications that are owed: `push.db`.
    Notifications,
    /// The swarm's bus: `swarm.db`.
    SwarmBus,
    /// States of members that are processes of their own: `peers`.
    Members,
    /// Positions of exporters: `telemetry`.
    Telemetry,
    /// Who agreed to what the agent runs: `consents.jsonl`.
    Consents,
    /// Who the state belongs to: `agent.json`, `manifest`.
    Identity,
    /// Where the state really lies: `postgres.json`, `moved`.
    Location,
    /// Keys, and tokens that they seal: `keys`, `oauth`.
    Keys,
    /// What can be made again: `cache`.
    Cache,
    /// What belongs to a running process: `lock`, `control.sock`, copies on their way into a backup.
    Running,
    /// Anything else.
    Unknown,
}

/// How a backup takes an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackupMethod {
    /// The state's own database and contents, as of one moment.
    State,
    /// File by file; databases as of one moment.
    Files,
    /// Only where keys were asked for.
    Secret,
    /// Not at all.
    LeftOut,
}

impl StatePlace {
    /// Every place.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 19] = [
        Self::Database,
        Self::Contents,
        Self::MemoryFolders,
        Self::Channels,
        Self::Originals,
        Self::Audit,
        Self::TypedLines,
        Self::Origins,
        Self::Notifications,
        Self::SwarmBus,
        Self::Members,
        Self::Telemetry,
        Self::Consents,
        Self::Identity,
        Self::Location,
        Self::Keys,
        Self::Cache,
        Self::Running,
        Self::Unknown,
    ];

    /// Returns the place of an entry, by its path below the state directory.
    pub(crate) fn of_entry(path: &Path) -> Self {
        let mut parts = path.components();
        let first = match parts.next() {
            Some(Component::Normal(name)) => name.to_string_lossy(),
            Some(_) | None => return Self::Unknown,
        };
        // A member's folder is a state of its own.
        if first == "peers" && parts.next().is_some() && parts.clone().next().is_some() {
            return Self::of_entry(parts.as_path());
        }
        // Beside a database SQLite keeps its log and an index of it.
        let name = first
            .strip_suffix("-wal")
            .or_else(|| first.strip_suffix("-shm"))
            .unwrap_or(&first);
        match name {
            "state.db" => Self::Database,
            "blobs" => Self::Contents,
            "memory" => Self::MemoryFolders,
            "channels" => Self::Channels,
            "undo" => Self::Originals,
            "audit" => Self::Audit,
            "history" => Self::TypedLines,
            "origins" => Self::Origins,
            "push.db" => Self::Notifications,
            "swarm.db" => Self::SwarmBus,
            "peers" => Self::Members,
            "telemetry" => Self::Telemetry,
            "consents.jsonl" => Self::Consents,
            "agent.json" | "manifest" => Self::Identity,
            "postgres.json" | "moved" => Self::Location,
            "keys" | "oauth" => Self::Keys,
            "cache" => Self::Cache,
            "lock" | "control.sock" | ".backup" | ".backup.lock" => Self::Running,
            _ => Self::Unknown,
        }
    }

    /// Returns how a backup takes it. What is unknown is taken: too much is better than a state with a hole.
    pub(crate) const fn backup_method(self) -> BackupMethod {
        match self {
            Self::Database | Self::Contents => BackupMethod::State,
            Self::MemoryFolders
            | Self::Channels
            | Self::Originals
            | Self::Audit
            | Self::TypedLines
            | Self::Origins
            | Self::Notifications
            | Self::SwarmBus
            | Self::Members
            | Self::Telemetry
            | Self::Consents
            | Self::Identity
            | Self::Unknown => BackupMethod::Files,
            Self::Keys => BackupMethod::Secret,
            Self::Location | Self::Cache | Self::Running => BackupMethod::LeftOut,
        }
    }
}
