//! A value that cannot be printed.

use std::fmt;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

/// A secret's value, under the name by which it was looked up.
///
/// It has no `Display` and no `Serialize`. `Debug` shows only the name. The memory is zeroed when the last clone is dropped; clones share
/// one value.
///
/// ```
/// use clawk_secrets::Secret;
///
/// let key = Secret::new("API_KEY", "abc123");
/// assert!(!format!("{key:?}").contains("abc123"));
/// assert_eq!(key.expose(), "abc123");
/// ```
#[derive(Clone)]
pub struct Secret {
    name: Arc<str>,
    value: Arc<SecretString>,
}

impl Secret {
    /// A secret named `name`. Use [`crate::SecretResolver`] wherever a reference exists; this is for values that are derived
    /// from another secret (an access token, one half of `id:secret`).
    pub fn new(name: impl Into<Arc<str>>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: Arc::new(SecretString::from(value.into())),
        }
    }

    /// The reference's name: not secret.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value; there is no other way to it. Put it into a request header or a child's environment, and never into a log, an
    /// error or a message.
    pub fn expose(&self) -> &str {
        self.value.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.name)
    }
}
