//! `[postgres]`: the server of stores with `backend: postgresql` or `pgvector`.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};

/// `[postgres]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PostgresConfig {
    /// URL of the server, without a password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<ServerUrl>,
    /// Reference to the password; without `url`, to the whole URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_ref: Option<String>,
    /// How the server's identity is verified.
    pub(crate) tls: PostgresTlsMode,
    /// PEM file of certificate authorities that replace the platform's; relative to the file's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Schema of clawk's tables.
    pub(crate) schema: String,
    /// Largest number of open connections.
    pub(crate) connections: usize,
    /// Time limit for a connection, or for a free place in the pool, in milliseconds.
    pub(crate) connect_timeout_ms: u64,
    /// Time limit for one operation, in milliseconds.
    pub(crate) operation_timeout_ms: u64,
    /// The extension `vector` compares vectors, if the database has it or allows adding it.
    pub(crate) pgvector: bool,
}

impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            url: None,
            secret_ref: None,
            tls: PostgresTlsMode::VerifyFull,
            ca_file: None,
            schema: "clawk".to_owned(),
            connections: 8,
            connect_timeout_ms: 5_000,
            operation_timeout_ms: 10_000,
            pgvector: true,
        }
    }
}

/// How the server's identity is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PostgresTlsMode {
    /// The certificate comes from a known authority and names the host.
    VerifyFull,
    /// The certificate comes from an authority in `ca_file`.
    VerifyCa,
    /// No encryption. Only for a server on this machine.
    Disable,
}

/// A URL whose display hides a possible password.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub(crate) struct ServerUrl(String);

impl ServerUrl {
    /// Makes it from a command-line argument.
    pub(crate) fn from_argument(url: &str) -> Self {
        Self(url.to_owned())
    }

    /// Returns the URL for a connection.
    ///
    /// # Errors
    /// The URL holds a password, which belongs into a secret.
    pub(crate) fn connection_url(&self) -> Result<&str, String> {
        let user = self.user_info().unwrap_or_default();
        if user.contains(':') || self.0.contains("password=") {
            return Err(
                "the `url` of the PostgreSQL server holds a password; leave it out and name it by `secret_ref` in `[postgres]`, by \
                 `password` in `[state]`"
                    .to_owned(),
            );
        }
        Ok(&self.0)
    }

    /// Returns the part before the last `@` of the authority.
    fn user_info(&self) -> Option<&str> {
        let (_, rest) = self.0.split_once("://")?;
        rest.rsplit_once('@').map(|(user, _)| user)
    }

    fn redacted_url(&self) -> String {
        match (self.connection_url(), self.user_info()) {
            (Ok(url), _) => url.to_owned(),
            (Err(_), Some(user)) => {
                let name = user.split(':').next().unwrap_or_default();
                let place = self.0.rsplit_once('@').map_or("", |(_, place)| place);
                let place = place.split('?').next().unwrap_or_default();
                format!("postgres://{name}:(hidden)@{place}")
            }
            (Err(_), None) => "(hidden)".to_owned(),
        }
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted_url())
    }
}

impl Serialize for ServerUrl {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.redacted_url())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_the_url_is_refused_and_not_shown() {
        for (url, ok) in [
            ("postgres://ann@db.example.com:5433/agents", true),
            ("postgres://ann:CANARY@db.example.com/agents", false),
            ("postgres://ann:CAN@ARY@db.example.com/agents?x=1", false),
            ("postgres://db.example.com/agents?user=ann&password=CANARY", false),
            ("host=db password=CANARY", false),
        ] {
            let url = ServerUrl(url.to_owned());
            assert_eq!(url.connection_url().is_ok(), ok, "{url:?}");
            let shown = format!("{url:?} {}", serde_json::to_string(&url).unwrap());
            assert!(!shown.contains("CAN") && !shown.contains("ARY"), "{shown}");
            assert_eq!(shown.contains("hidden"), !ok, "{shown}");
        }
    }
}
