//! Memory stores that do not lie in the state's database: files that a person can read, collections of a Qdrant server, an MCP
//! server of somebody else's.
//!
//! *Owns:* the files of a store: `entries.jsonl`, `entries.md`, a workspace's folder; the collections on Qdrant; which back end serves which store.
//! *Depends on:* the kernel's memory port, `clawk-recall`, `clawk-egress` for HTTP.
//! *Must not know:* SQL, policy, sessions.
//! *Start reading at:* [`FolderMemory`], then `files::part`, then [`QdrantMemory`].

mod custom;
mod files;
mod qdrant;
mod stores;

pub use custom::{CustomMemory, CustomStoreServer, is_custom};
pub use files::{FolderMemory, FolderScopeView, Options};
pub use qdrant::{Options as QdrantOptions, QdrantMemory, is_on_qdrant};
pub use stores::{MemoryStores, is_on_postgres};
