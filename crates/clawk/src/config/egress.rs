//! `[egress]` and `[secrets.NAME]`: where tools may go on this machine, and the secrets that are put in on their way (R37).

use clawk_egress::HostPattern;
use serde::{Deserialize, Serialize};

/// `[egress]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LocalEgressConfig {
    /// Places inside the own network that tools may reach where the manifest's `allowed_hosts` name them, too: exact names or IP
    /// literals, best with a port.
    pub(crate) allow_private: Vec<HostPattern>,
    /// Strict: TLS to every allowed host ends at the proxy, so that every request is seen.
    pub(crate) terminate_tls: bool,
}

/// `[secrets.NAME]`: NAME is the reference that is looked up.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SecretBinding {
    /// Tools that get it.
    pub(crate) tools: Vec<String>,
    /// Hosts that may get it; at port 443 unless an entry names another.
    pub(crate) hosts: Vec<HostPattern>,
    /// The header that it is put into.
    #[serde(default = "authorization")]
    pub(crate) header: String,
    /// The variable of the tool that holds its placeholder; NAME when absent.
    #[serde(default)]
    pub(crate) env: Option<String>,
    /// Put before it where `http-request` and `web-fetch` send the header by themselves.
    #[serde(default)]
    pub(crate) prefix: String,
    /// It may also go over plain HTTP.
    #[serde(default)]
    pub(crate) plain_http: bool,
}

fn authorization() -> String {
    "Authorization".to_owned()
}
