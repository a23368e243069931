//! Memory stores that do not lie in the state's database: files that a person can read.
//!
//! *Owns:* the files of a store: `entries.jsonl`, `entries.md`, a workspace's folder; which back end serves which store.
//! *Depends on:* the kernel's memory port, `clawk-recall`.
//! *Must not know:* SQL, policy, sessions.
//! *Start reading at:* [`Files`], then `files::part`.

mod files;
mod stores;

pub use files::{Files, Held, Options};
pub use stores::{Stores, is_on_postgres};
