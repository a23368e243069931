//! `clawk backup` and `clawk restore`: a state in one file (ADR 0356). The file is a tar archive, or one that is sealed in pieces.
//! Its last entry lists every file with its digest, so that a file that was cut off is seen.

pub(crate) mod read;
mod sealed;
pub(crate) mod write;

use std::collections::BTreeMap;

use clawk_proto::Digest;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Version of the layout.
const FORMAT: u32 = 1;
/// The first entry of the archive.
const HEADER: &str = "clawk-backup.json";
/// The last entry of the archive.
const INVENTORY: &str = "clawk-inventory.json";
/// The folder of the state in the archive.
const STATE: &str = "state";
/// Largest header or inventory, bytes.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// What a backup is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackupHeader {
    pub(crate) format: u32,
    /// The backup's own id.
    pub(crate) backup: Uuid,
    /// The agent's id and name.
    pub(crate) id: Uuid,
    pub(crate) agent: String,
    /// When it was made, RFC 3339.
    pub(crate) at: String,
    /// The program that made it.
    pub(crate) clawk: String,
    /// It holds the agent's keys.
    pub(crate) keys: bool,
    /// Where the state lay: `directory` or `postgres`.
    pub(crate) source: String,
}

/// One file of the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct BackupFile {
    bytes: u64,
    sha256: Digest,
}

/// Every file of the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct BackupInventory {
    files: BTreeMap<String, BackupFile>,
    /// Events in the journal.
    events: u64,
    /// Contents that were lost before the backup.
    lost: u64,
}

/// What was written or restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct BackupReport {
    #[serde(flatten)]
    pub(crate) header: BackupHeader,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) events: u64,
    /// Contents that were lost before the backup.
    pub(crate) lost: u64,
    pub(crate) encrypted: bool,
}

#[cfg(test)]
mod tests;
