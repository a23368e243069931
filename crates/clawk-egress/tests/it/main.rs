//! The proxy of the sandbox, judged by effects: what a canary server saw, what a real client got.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "helpers of tests"
)]

mod bounds;
mod clients;
mod judged;
mod lanes;
mod requests;
mod secrets;
mod support;
mod tunnels;
