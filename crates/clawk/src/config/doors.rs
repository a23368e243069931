//! `[doors.NAME]`: what holds for who comes by a folder or a queue (R39).

use std::path::PathBuf;

use clawk_kernel::Role;
use serde::{Deserialize, Serialize};

/// `[doors]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DoorsConfig {
    /// `--dir`.
    pub(crate) dir: DirDoor,
    /// `--nats`.
    pub(crate) nats: QueueDoor,
    /// `--redis`.
    pub(crate) redis: QueueDoor,
}

/// `[doors.nats]`, `[doors.redis]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QueueDoor {
    /// With which role messages come in: `viewer`, `user` or `admin`.
    pub(crate) role: Role,
    /// How often a message is tried before it is a dead letter.
    pub(crate) tries: u64,
    /// A reference to the broker's password, so that the URL on the command line needs none.
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
    /// With which role messages come in: `viewer`, `user` or `admin`.
    pub(crate) role: Role,
    /// Files that `archive/` holds at most; the oldest go. 0: none is kept.
    pub(crate) archived_files: usize,
    /// The folder that `--dir` names: who writes there talks to the agent, so no tool may.
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
