//! A client of any CKP agent: one interface over standard streams, a Unix socket, Streamable HTTP, WebSocket, a folder, NATS
//! and Redis. It reconnects, and repeats only calls that a request id protects from a second
//! execution.
//!
//! *Owns:* addresses, transports (each a pair of message queues), the client with its calls and reconnections, the folder's format,
//! the queues' names.
//! *Depends on:* proto, secrets (tokens), egress (HTTP, TLS).
//! *Must not know:* the kernel, the server, manifests.
//! *Start reading at:* [`AgentClient`], then [`OpenTransport`], then [`AgentAddress`].
//!
//! ```no_run
//! # async fn ask() -> Result<(), clawk_client::ClientError> {
//! use clawk_client::{AgentClient, Options, AgentAddress};
//! let target = AgentAddress::parse("http://127.0.0.1:8420")?;
//! let client = AgentClient::connect(target, Options::for_client("example")).await?;
//! let status = client.call("claw.status", serde_json::json!({})).await?;
//! println!("{status}");
//! client.close().await;
//! # Ok(())
//! # }
//! ```

mod client;
mod error;
pub mod folder;
pub mod queue;
mod target;
mod wire;

pub use client::{AgentClient, Options, UnsolicitedMessage};
pub use error::ClientError;
pub use target::{AgentAddress, QueueAddress};
pub use wire::OpenTransport;

/// A new request id: a random UUID.
#[must_use]
pub fn request_id() -> String {
    #[expect(
        clippy::disallowed_methods,
        reason = "a client has no Clock port; its ids only need to be new"
    )]
    let id = uuid::Uuid::new_v4();
    id.to_string()
}
