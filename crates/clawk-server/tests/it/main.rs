//! The server against a real kernel with scripted parts, over in-memory streams.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::disallowed_methods,
    reason = "tests: a broken helper should fail loudly; they make their own tasks and ids"
)]

mod agent;
mod approvals;
mod beat;
mod claw;
mod control;
mod flow;
mod framing;
mod fuzz;
mod host;
mod lifecycle;
mod methods;
mod socket;
mod wire;
