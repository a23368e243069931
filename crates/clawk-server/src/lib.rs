//! The agent as a server: a host with connections (JSON-RPC on standard input and on the control socket), and CRA over HTTP.
//!
//! *Owns:* the host, connections, framing, RPC dispatch, gating, rights, heartbeats, the one mapping from errors to wire codes.
//! *Depends on:* proto, manifest (levels), carp (messages), trace (events), kernel.
//! *Must not know:* adapters (stores, providers, tools); the binary brings them through [`agent::AgentFactory`].
//! *Start reading at:* [`host::Host`], then `rpc/mod.rs` (a connection), then `rpc/dispatch.rs`, then `error/mod.rs`.

pub mod access;
pub mod agent;
pub mod control;
mod error;
pub mod host;
pub mod http;
mod rpc;
pub mod transport;

pub use access::Rights;
pub use agent::{AgentFactory, Current, InitFailure, ManifestFault};
pub use control::{Client, Control, ControlError};
pub use host::{Host, Options};
pub use transport::lines::{End, Ended, serve};
pub use transport::standard::standard;
