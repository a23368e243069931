//! A secret value that cannot be printed.

use std::fmt;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

/// A secret's value, with the name of its reference.
///
/// The type has no `Display` and no `Serialize`. `Debug` shows only the name. The memory is zeroed when the last clone is dropped;
/// clones share one value.
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
    /// Makes a secret named `name`. Use [`crate::SecretResolver`] if a reference exists. This constructor is for values derived
    /// from another secret (an access token, one half of `id:secret`).
    pub fn new(name: impl Into<Arc<str>>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: Arc::new(SecretString::from(value.into())),
        }
    }

    /// Returns the reference's name. The name is not secret.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value. This is the only way to read it. Put the value into a request header or a child's environment; never into
    /// a log, an error or a message.
    pub fn expose(&self) -> &str {
        self.value.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.name)
    }
}
