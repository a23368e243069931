//! `[doors.NAME]`: settings for requests that arrive over a folder or a queue (R39).

use std::path::PathBuf;

use clawk_kernel::Role;
use serde::{Deserialize, Serialize};

/// `[doors]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DoorsConfig {
    /// Settings of `--dir`.
    pub(crate) dir: DirDoor,
    /// Settings of `--nats`.
    pub(crate) nats: QueueDoor,
    /// Settings of `--redis`.
    pub(crate) redis: QueueDoor,
}

/// `[doors.nats]`, `[doors.redis]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QueueDoor {
    /// Role of the senders: `viewer`, `user` or `admin`.
    pub(crate) role: Role,
    /// Number of attempts for a message before it becomes a dead letter.
    pub(crate) tries: u64,
    /// Reference to the broker's password, so that the URL on the command line needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) password_ref: Option<String>,
}

impl Default for QueueDoor {
    fn default() -> Self {
        Self {
            role: Role::User,
            tries: 5,
            password_ref: None,
        }
    }
}

/// `[doors.dir]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DirDoor {
    /// Role of the senders: `viewer`, `user` or `admin`.
    pub(crate) role: Role,
    /// Largest number of files in `archive/`. The oldest are deleted. 0: no file is kept.
    pub(crate) archived_files: usize,
    /// The folder that `--dir` names. Tools must not write there, because its files are messages to the agent.
    #[serde(skip)]
    pub(crate) served: Option<PathBuf>,
}

impl Default for DirDoor {
    fn default() -> Self {
        Self {
            role: Role::User,
            archived_files: 10_000,
            served: None,
        }
    }
}
