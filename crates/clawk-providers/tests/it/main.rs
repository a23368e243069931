//! The adapters against loopback servers that send exactly the bytes a test says.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "tests: a panic is how they fail"
)]

mod auth;
mod bounds;
mod contract;
mod cut;
mod dialects;
mod embeddings;
mod factory;
mod faults;
mod fixture;
mod kept_parts;
mod reach;
mod responses;
mod scripted;
mod shapes;
mod speech;
mod sse;
mod windows;
