//! The agent as a server: JSON-RPC over lines, CRA over HTTP, and the control socket beside them.
//!
//! *Owns:* framing, RPC dispatch, gating, heartbeats, the one mapping from errors to wire codes, the control socket.
//! *Depends on:* proto, manifest (levels), carp (messages), trace (events), kernel.
//! *Must not know:* adapters (stores, providers, tools); the binary brings them through [`agent::AgentFactory`].
//! *Start reading at:* [`transport::stdio::serve`], then `rpc/dispatch.rs`, then `rpc/error.rs`.

pub mod agent;
pub mod control;
pub mod http;
mod rpc;
pub mod transport;

pub use agent::{AgentFactory, Current, InitFailure, ManifestFault};
pub use control::{Client, Control, ControlError};
pub use transport::standard::standard;
pub use transport::stdio::{End, Ended, Options, serve};
