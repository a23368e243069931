//! `[postgres]`: the server of the stores that say `backend: postgresql` or `pgvector`.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};

/// `[postgres]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PostgresConfig {
    /// Where the server is, without a password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<ServerUrl>,
    /// A reference to the password; without `url`, to the whole URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_ref: Option<String>,
    /// Who the server must prove to be.
    pub(crate) tls: PostgresTlsMode,
    /// PEM certificates of the authorities that count instead of the platform's; relative to the file's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Our tables' schema.
    pub(crate) schema: String,
    /// Connections open at once, at most.
    pub(crate) connections: usize,
    /// How long a connection, or a place among them, is waited for.
    pub(crate) connect_timeout_ms: u64,
    /// How long one operation may take.
    pub(crate) operation_timeout_ms: u64,
    /// The extension `vector` compares vectors where the database has it, or lets us add it.
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

/// `tls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PostgresTlsMode {
    /// Its certificate comes from a known authority and names the host.
    VerifyFull,
    /// Its certificate comes from an authority in `ca_file`.
    VerifyCa,
    /// No encryption; on this machine only.
    Disable,
}

/// A URL that is shown without what might be a password in it.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub(crate) struct ServerUrl(String);

impl ServerUrl {
    /// From a command line.
    pub(crate) fn of(url: &str) -> Self {
        Self(url.to_owned())
    }

    /// The URL, for the connection.
    ///
    /// # Errors
    /// It holds a password, which belongs to a secret.
    pub(crate) fn plain(&self) -> Result<&str, String> {
        let user = self.user().unwrap_or_default();
        if user.contains(':') || self.0.contains("password=") {
            return Err(
                "the `url` of the PostgreSQL server holds a password; leave it out and name it by `secret_ref` in `[postgres]`, by \
                 `password` in `[state]`"
                    .to_owned(),
            );
        }
        Ok(&self.0)
    }

    /// What stands before the last `@` of the place.
    fn user(&self) -> Option<&str> {
        let (_, rest) = self.0.split_once("://")?;
        rest.rsplit_once('@').map(|(user, _)| user)
    }

    fn shown(&self) -> String {
        match (self.plain(), self.user()) {
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
        f.write_str(&self.shown())
    }
}

impl Serialize for ServerUrl {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.shown())
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
            assert_eq!(url.plain().is_ok(), ok, "{url:?}");
            let shown = format!("{url:?} {}", serde_json::to_string(&url).unwrap());
            assert!(!shown.contains("CAN") && !shown.contains("ARY"), "{shown}");
            assert_eq!(shown.contains("hidden"), !ok, "{shown}");
        }
    }
}
