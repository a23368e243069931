//! The events of the journal as types: one enum, read from and written as canonical JSON.
//!
//! *Owns:* the names of all event types, the payload of each, the fields that later versions added, the errors for malformed
//! payloads. *Depends on:* `clawk-proto`, `clawk-trace`; serde. *Must not know:* the kernel, stores, clocks, the consequences of an
//! event. *Start reading at:* [`Event`], then [`payload`].

pub mod error;
pub mod event;
pub mod field;
pub mod kind;
pub mod payload;
pub mod shape;

#[cfg(test)]
mod tests;

pub use error::{EventError, PayloadFault};
pub use event::{Event, KINDS};
pub use field::AddedField;
