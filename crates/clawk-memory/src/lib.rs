//! Memory stores outside the state's database: files that a person can read, collections on a Qdrant server, third-party MCP
//! servers.
//!
//! *Owns:* the files of a store (`entries.jsonl`, `entries.md`, a workspace's folder), the collections on Qdrant, the choice of a
//! back end per store.
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
pub use stores::{MemoryStores, declared_store_fault, is_on_postgres};
