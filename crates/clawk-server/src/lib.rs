//! Serves an agent. One host owns the agent and offers it through several doors: JSON-RPC on standard streams, sockets, HTTP,
//! WebSocket, queues and folders. The crate also serves the CRA API over HTTP.
//!
//! *Owns:* the host, its doors, connections, framing, RPC dispatch, gating, rights, heartbeats, the one mapping from errors to wire
//! codes. *Depends on:* proto, manifest (levels), carp (messages), trace (events), client (the folder's format, the queues' names;
//! peers over it), kernel. *Must not know:* adapters (stores, providers, tools); the binary brings them through
//! [`agent::AgentFactory`]. *Start reading at:* [`host::AgentHost`], then `rpc/mod.rs` (a connection), then `rpc/dispatch.rs`, then
//! `error/mod.rs`.

mod a2a;
pub mod access;
mod acp;
pub mod agent;
mod channels;
mod clients;
pub mod control;
mod error;
pub mod folder;
mod guests;
pub mod host;
pub mod http;
mod mcp;
pub mod oauth;
mod openai;
pub mod peers;
#[cfg_attr(
    not(any(feature = "nats", feature = "redis")),
    allow(dead_code, reason = "the door needs a broker; a swarm's bus may be a file")
)]
pub mod queue;
mod rpc;
mod telling;
pub mod transport;

pub use a2a::push::{BookError, PushError, PushNotifier};
pub use access::ClientRights;
pub use acp::serve_acp;
pub use agent::{AgentFactory, CurrentKernel, InitFailure, ManifestFault};
pub use channels::{Channels, HookBody, HookSocket};
pub use control::{ControlClient, ControlError, ControlSocket};
pub use host::{AgentHost, Options};
pub use mcp::serve_mcp;
pub use transport::converse::{ConnectionEnd, ConnectionEndCause};
pub use transport::lines::serve;
pub use transport::standard::standard_streams;
