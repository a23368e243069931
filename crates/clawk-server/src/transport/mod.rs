//! How bytes come and go: lines in, whole messages out.

pub(crate) mod frames;
pub(crate) mod outbox;
pub mod standard;
pub mod stdio;
