//! The transports: they read lines and write whole messages.

pub(crate) mod converse;
pub(crate) mod frames;
pub mod lines;
pub(crate) mod outbox;
pub(crate) mod stalling;
pub mod standard;
