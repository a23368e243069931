//! How bytes come and go: lines in, whole messages out.

pub(crate) mod converse;
pub(crate) mod frames;
pub mod lines;
pub(crate) mod outbox;
pub(crate) mod stalling;
pub mod standard;
