//! The server against a real kernel with scripted parts, over in-memory streams.

#![expect(
    clippy::disallowed_methods,
    reason = "tests make their own tasks and ids, and end with them"
)]

mod agent;
mod approvals;
mod beat;
mod control;
mod flow;
mod framing;
mod fuzz;
mod lifecycle;
mod methods;
mod wire;
