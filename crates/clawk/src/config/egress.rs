//! `[egress]` and `[secrets.NAME]`: hosts that tools may reach from this machine, and secrets inserted into their requests (R37).

use clawk_egress::HostPattern;
use serde::{Deserialize, Serialize};

/// `[egress]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LocalEgressConfig {
    /// Addresses in the private network that tools may reach if the manifest's `allowed_hosts` also name them: exact names or IP
    /// literals, preferably with a port.
    pub(crate) allow_private: Vec<HostPattern>,
    /// Strict mode: the proxy terminates TLS to every allowed host, so that it sees every request.
    pub(crate) terminate_tls: bool,
}

/// `[secrets.NAME]`, where NAME is the secret's reference.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SecretBinding {
    /// Tools that may use the secret.
    pub(crate) tools: Vec<String>,
    /// Hosts that may receive the secret; at port 443 unless the entry has a port.
    pub(crate) hosts: Vec<HostPattern>,
    /// The header that carries the secret.
    #[serde(default = "default_header")]
    pub(crate) header: String,
    /// The tool's environment variable with the placeholder; NAME if absent.
    #[serde(default)]
    pub(crate) env: Option<String>,
    /// Text before the secret in the header, if `http-request` and `web-fetch` add the header themselves.
    #[serde(default)]
    pub(crate) prefix: String,
    /// The secret may be sent over plain HTTP.
    #[serde(default)]
    pub(crate) plain_http: bool,
}

fn default_header() -> String {
    "Authorization".to_owned()
}
