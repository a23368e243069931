//! Secrets by reference, never printable.
//!
//! * **Owns:** turning a `secret_ref` into a [`Secret`] (runtime profile §7); every read of the environment and of
//!   secret files; removing secrets from text that came from outside ([`SecretRedactor`]).
//! * **Depends on:** the rules for names.
//! * **Must not know:** the users of a secret and their purpose.
//! * **Start reading at:** [`SecretResolver::resolve`].

mod given;
mod kept_secrets;
mod secret;

pub mod env;
mod store;

mod resolve;

mod redact;

#[cfg(test)]
mod tests;

pub use env::EnvironmentSource;
pub use given::ResolvedSecrets;
pub use kept_secrets::{keep_secret, kept_secrets_dir};
pub use redact::{RedactStream, SecretRedactor};
pub use resolve::{ResolveError, SecretResolver};
pub use secret::Secret;
pub use store::{StoreConfig, StoreError};
