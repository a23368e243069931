//! `[qdrant]`: the server of stores with `backend: qdrant`.

use serde::{Deserialize, Serialize, Serializer};

/// `[qdrant]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QdrantConfig {
    /// Base URL of its HTTP API, without a password.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "serialize_redacted"
    )]
    pub(crate) url: Option<String>,
    /// Reference to its API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_ref: Option<String>,
    /// Prefix of clawk's collections.
    pub(crate) prefix: String,
    /// Time limit for a connection, in milliseconds.
    pub(crate) connect_timeout_ms: u64,
    /// Time limit for one request, in milliseconds.
    pub(crate) operation_timeout_ms: u64,
}

/// Hides a password. A URL with one is refused, but may be shown before.
fn serialize_redacted<S: Serializer>(url: &Option<String>, to: S) -> Result<S::Ok, S::Error> {
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
