//! `[qdrant]`: the server of the stores that say `backend: qdrant`.

use serde::{Deserialize, Serialize, Serializer};

/// `[qdrant]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QdrantConfig {
    /// The base address of its HTTP API, without a password.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shown")]
    pub(crate) url: Option<String>,
    /// A reference to its API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_ref: Option<String>,
    /// How the names of our collections begin.
    pub(crate) prefix: String,
    /// How long a connection is waited for.
    pub(crate) connect_timeout_ms: u64,
    /// How long one request may take.
    pub(crate) operation_timeout_ms: u64,
}

/// One with a password in it is refused, but it is shown before that.
fn shown<S: Serializer>(url: &Option<String>, to: S) -> Result<S::Ok, S::Error> {
    match url {
        Some(url) if url.contains('@') => to.serialize_str("(hidden)"),
        url => url.serialize(to),
    }
}

impl Default for QdrantConfig {
    fn default() -> Self {
        Self {
            url: None,
            secret_ref: None,
            prefix: "clawk".to_owned(),
            connect_timeout_ms: 5_000,
            operation_timeout_ms: 10_000,
        }
    }
}
