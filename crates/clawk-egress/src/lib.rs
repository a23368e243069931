//! Outbound HTTP: the only constructor of clients.
//!
//! * **Owns:** where a request may go ([`Rules`], [`address`]), the connection to exactly the address that was judged,
//!   TLS roots, proxies, deadlines and size limits.
//! * **Depends on:** `clawk-secrets` (the environment's proxy and certificate variables).
//! * **Must not know:** what a request means, and who sent it.
//! * **Start reading at:** [`Client::guarded`], then [`Rules::judge`].

pub mod address;

mod rules;

mod error;

mod tls;

mod client;

mod response;

#[cfg(test)]
mod tests;

pub use client::{Client, Deadlines, Names, Request};
pub use error::{EgressError, Phase};
pub use reqwest::Url;
pub use response::Response;
pub use rules::{HostPattern, PatternError, Refusal, Rules, Target};
