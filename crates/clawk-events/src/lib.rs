//! The events of the journal as types: one enum, read from and written as canonical JSON.
//!
//! *Owns:* the names of all event types, the payload of each, which fields later versions added, what a malformed payload is told.
//! *Depends on:* `clawk-proto`, `clawk-trace`; serde.
//! *Must not know:* the kernel, stores, clocks, what an event leads to.
//! *Start reading at:* [`Event`], then [`payload`]; [`WrittenEvent`] is what the journal's writer takes.

pub mod error;
pub mod event;
pub mod field;
mod group;
pub mod kind;
pub mod payload;
pub mod shape;
pub mod text;
mod turn;
pub mod written;

#[cfg(test)]
mod tests;

pub use error::{EventError, PayloadFault};
pub use event::{Event, KINDS, read_members};
pub use field::{AddedField, ReadPayload, count_of};
pub use text::{CanonicalObject, ChainText};
pub use written::WrittenEvent;
