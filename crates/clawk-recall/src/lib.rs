//! Search in memory entries: by words, by vectors, or by both.
//!
//! *Owns:* the static embedding table, packed vectors and their exact scan, the words of a text, a word index in memory, rank
//! fusion, and what all stores share: limits, compaction rules, encryption of entries.
//! *Depends on:* the wire types of entries; the manifest's description of a store; Unicode tables; a cipher.
//! *Must not know:* stores, files, the kernel.
//! *Start reading at:* [`fuse`], then [`packed`], then [`table`].

pub mod compact;
pub mod entry;
pub mod fuse;
pub mod index;
pub mod keys;
pub mod packed;
mod pieces;
pub mod reseal;
pub mod seal;
pub mod table;
pub mod way;
pub mod words;
