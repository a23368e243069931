//! The state directory: journal, inbox, memory and content on SQLite.
//!
//! *Owns:* the files of a state directory, their lock, schema and migrations; the one writer; chain checks at start.
//! *Depends on:* the kernel's ports, `clawk-trace` for the chain, SQLite.
//! *Must not know:* RPC, policy, what an event means.
//! *Start reading at:* [`StateDir::open`], then `writer`, then `append`.
//!
//! ```text
//! submit ─► queue (bounded) ─► writer thread: BEGIN · link · insert … · COMMIT ─► tickets
//! scan, query ─► read-only connections, one transaction each
//! ```

mod answers;
mod append;
mod audit;
mod backup;
mod blobs;
mod boxes;
mod chain;
mod check;
mod contents;
mod dir;
mod erase;
mod error;
mod heads;
mod journal;
mod keys;
mod memory;
pub mod moving;
mod queue;
mod reader;
mod schema;
mod seal;
mod writer;

pub use audit::{AuditDb, AuditRow};
pub use backup::{FiledContent, content_file, detach_heads, snapshot_database};
pub use clawk_recall::keys::{Keys, SealKeyLookup, SealKeyReferences};
pub use contents::{ContentInventory, LostContent, UnreadableRecord};
pub use dir::{Options, StateDir, WriteDurability, WriterStats};
pub use erase::{ErasureResult, ErasureSelection, REDACTED, redaction_entries};
pub use error::StateError;
pub use heads::{Delivery, SESSIONS_SIGNED, StoredHead};
pub use journal::SqliteJournal;
pub use keys::{public_key, signer_of};
pub use memory::{
    FORGOTTEN, MAX_FORGOTTEN, MemoryPart, RESTORED, RememberedEntry, RestoreSelection, SqliteMemory,
    forgotten_journal_entries, restored_journal_entries,
};
pub use reader::{Filter, StateDirReader, StoredEvent};
pub use schema::schema_version;
pub use seal::find_keys_by;
