//! All outgoing network connections: clawk's own clients, and the proxy for sandboxed tools. No other crate opens connections.
//!
//! * **Owns:** connecting to exactly the address that was checked, inserting secrets at the boundary ([`proxy`]), TLS roots,
//!   deadlines and size limits, the record of each connection ([`record`]).
//! * **Depends on:** `clawk-proto` (where a request may go: [`HostAllowList`]), `clawk-secrets` (the environment's proxy and
//!   certificate variables, redaction).
//! * **Must not know:** what a request means, and who sent it.
//! * **Start reading at:** [`HostAllowList::judge_place`], then [`proxy`], then [`EgressClient::with_allow_list`].

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

pub use clawk_proto::place::{
    HostAllowList, HostPattern, HostPort, PatternError, PermittedTarget, UrlRefusal,
};
pub use client::{ClientDeadlines, EgressClient, NameResolver, Request, ResolveHook};
pub use error::{DeadlinePhase, EgressError};
pub use proxy::{EgressSecret, Proxy, ProxyCall};
pub use record::{ConnectionLedger, ConnectionRecord, ConnectionReport};
pub use reqwest::Url;
pub use response::Response;
pub use screen::{ScreenVerdict, SecretScan, SecretScreen};
pub use stream::EgressStream;
pub use tls::verified_config as tls_config;
