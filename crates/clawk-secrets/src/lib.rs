//! Secrets by reference, never printable.
//!
//! * **Owns:** turning a `secret_ref` into a [`Secret`] (runtime profile §7); every read of the environment and of
//!   secret files; removing secrets from text that came from outside ([`Redactor`]).
//! * **Depends on:** what a name looks like.
//! * **Must not know:** who uses a secret, and for what.
//! * **Start reading at:** [`Resolver::resolve`].

mod given;
mod secret;

pub mod env;
mod store;

mod resolve;

mod redact;

#[cfg(test)]
mod tests;

pub use env::Env;
pub use given::Given;
pub use redact::{RedactStream, Redactor};
pub use resolve::{ResolveError, Resolver};
pub use secret::Secret;
pub use store::{StoreConfig, StoreError};
