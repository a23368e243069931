//! The only way out: clients of our own, and the proxy that a sandboxed tool has.
//!
//! * **Owns:** the connection to exactly the address that was judged, secrets at
//!   the boundary ([`proxy`]), TLS roots, deadlines and size limits, what became of each connection ([`record`]).
//! * **Depends on:** `clawk-proto` (where a request may go: [`Rules`]), `clawk-secrets` (the environment's proxy and certificate variables, redaction).
//! * **Must not know:** what a request means, and who sent it.
//! * **Start reading at:** [`Rules::judge_place`], then [`proxy`], then [`Client::guarded`].

mod error;

mod tls;

mod client;

mod response;

mod stream;

pub mod record;

pub mod screen;

mod authority;

pub mod proxy;

#[cfg(test)]
mod tests;

pub use clawk_proto::place::{HostPattern, PatternError, Place, Refusal, Rules, Target};
pub use client::{Ask, Client, Deadlines, Names, Request};
pub use error::{EgressError, Phase};
pub use proxy::{Binding, Proxy, ProxyCall};
pub use record::{Connection, Ledger, Reached};
pub use reqwest::Url;
pub use response::Response;
pub use screen::{Screen, Screened, Screening};
pub use stream::Stream;
pub use tls::verified as tls_config;
