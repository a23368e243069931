//! A value that cannot be printed.

use std::fmt;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

/// A secret's value under the name it was asked for.
///
/// It has no `Display` and no `Serialize`; `Debug` shows the name alone; the memory is zeroed when the last clone
/// goes. Clones share one value.
#[derive(Clone)]
pub struct Secret {
    name: Arc<str>,
    value: Arc<SecretString>,
}

impl Secret {
    /// A secret named `name`. Use [`crate::Resolver`] wherever a reference exists; this is for values that are derived
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

    /// The only door to the value. What comes out must go into a request header or a child's environment, and never
    /// into a log, an error or a message.
    pub fn expose(&self) -> &str {
        self.value.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.name)
    }
}
