//! Secrets at the boundary (R37). The tool has only a placeholder. The proxy replaces it by the secret only in the configured
//! header, only for the bound hosts, and only over a verified connection.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_secrets::{Secret, SecretRedactor};

use super::ProxyFault;
use crate::{EgressError, HostPattern, HostPort};

/// A secret, and the hosts and header that it is bound to.
#[derive(Clone)]
pub struct EgressSecret {
    /// The secret value.
    pub secret: Secret,
    /// The names of the tools that get a placeholder.
    pub tools: Vec<String>,
    /// The hosts that may get the secret; on port 443, unless an entry names another port.
    pub hosts: Vec<HostPattern>,
    /// The only header that may contain the secret.
    pub header: String,
    /// The environment variable of the tool that holds the placeholder.
    pub env: String,
    /// A prefix for clients in which clawk adds the header itself: `Bearer `.
    pub prefix: String,
    /// Whether the secret may also be sent over plain HTTP, where anybody on the network path can read it.
    pub plain_http: bool,
}

impl fmt::Debug for EgressSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Binding({} to {:?} in `{}`)",
            self.secret.name(),
            self.hosts,
            self.header
        )
    }
}

impl EgressSecret {
    /// Whether calls of this tool get a placeholder.
    #[must_use]
    pub fn is_for(&self, tool: &str) -> bool {
        self.tools.iter().any(|own| own == tool)
    }

    /// Whether the secret may be sent to this host and port.
    #[must_use]
    pub fn is_bound(&self, host: &str, port: u16) -> bool {
        let ports: &[u16] = if self.plain_http { &[80, 443] } else { &[443] };
        let place = HostPort {
            host: host.to_owned(),
            port,
        };
        self.hosts.iter().any(|entry| entry.is_for(&place, ports))
    }
}

/// The placeholders of one call.
pub(super) struct PlaceholderSet {
    worn: Vec<(Arc<EgressSecret>, String)>,
    /// Finds placeholders in any encoding.
    placeholders: SecretRedactor,
    /// Removes the secrets from answers.
    pub(super) values: SecretRedactor,
}

type Headers = Vec<(String, Vec<u8>)>;

impl PlaceholderSet {
    pub(super) fn new(bindings: impl Iterator<Item = Arc<EgressSecret>>) -> Result<Self, EgressError> {
        let worn: Vec<(Arc<EgressSecret>, String)> = bindings
            .map(|binding| Ok((binding, random_placeholder()?)))
            .collect::<Result<_, EgressError>>()?;
        let stand_ins: Vec<Secret> = worn
            .iter()
            .map(|(binding, text)| Secret::new(binding.secret.name(), text.as_str()))
            .collect();
        Ok(Self {
            placeholders: SecretRedactor::new(&stand_ins),
            values: SecretRedactor::new(worn.iter().map(|(binding, _)| &binding.secret)),
            worn,
        })
    }

    pub(super) fn variables(&self) -> Vec<(String, String)> {
        self.worn
            .iter()
            .map(|(binding, text)| (binding.env.clone(), text.clone()))
            .collect()
    }

    pub(super) fn is_bound(&self, host: &str, port: u16) -> bool {
        self.worn.iter().any(|(binding, _)| binding.is_bound(host, port))
    }

    /// Whether a binding puts its secret into this header for this host and port.
    pub(super) fn owns_header(&self, header: &str, host: &str, port: u16) -> bool {
        self.worn
            .iter()
            .any(|(binding, _)| binding.header.eq_ignore_ascii_case(header) && binding.is_bound(host, port))
    }

    /// Whether there are no secrets.
    pub(super) fn is_bare(&self) -> bool {
        self.worn.is_empty()
    }

    /// A stream that counts placeholders in outgoing data.
    pub(super) fn placeholder_watch(&self) -> clawk_secrets::RedactStream<'_> {
        self.placeholders.redact_stream()
    }

    /// Returns an error if `bytes` contain a placeholder.
    pub(super) fn reject_placeholders(&self, what: &str, bytes: &[u8]) -> Result<(), ProxyFault> {
        if self.worn.is_empty() {
            return Ok(());
        }
        let (mut stream, mut out) = (self.placeholder_watch(), Vec::new());
        stream.push(bytes, &mut out);
        stream.finish(&mut out);
        if stream.found_count() == 0 {
            Ok(())
        } else {
            Err(misplaced_fault(what))
        }
    }

    /// Puts the secrets into the headers that their bindings name, and checks that no placeholder remains anywhere. Returns the
    /// names of the inserted secrets.
    pub(super) fn insert_secrets(
        &self,
        headers: &mut Headers,
        host: &str,
        port: u16,
        secure: bool,
    ) -> Result<Vec<Arc<str>>, ProxyFault> {
        let mut names: Vec<Arc<str>> = Vec::new();
        for (name, value) in headers.iter_mut() {
            let mut dressed = value.clone();
            for (binding, text) in &self.worn {
                if !binding.header.eq_ignore_ascii_case(name) || !binding.is_bound(host, port) {
                    continue;
                }
                if let Some(swapped) = swap_placeholder(&dressed, text, binding.secret.expose()) {
                    if !secure && !binding.plain_http {
                        return Err(ProxyFault::forbidden(
                            "secret",
                            &format!(
                                "the secret `{}` does not go over plain HTTP",
                                binding.secret.name()
                            ),
                        ));
                    }
                    if swapped
                        .iter()
                        .any(|byte| *byte < 0x20 && *byte != b'\t' || *byte == 0x7f)
                    {
                        return Err(ProxyFault::with_status(
                            502,
                            "secret",
                            "a secret can't be a header's value",
                        ));
                    }
                    dressed = swapped;
                    names.push(binding.secret.name().into());
                }
            }
            // A placeholder that is left now belongs to another secret, or is in the wrong header.
            self.reject_placeholders(&format!("the header `{name}`"), &dressed)?;
            self.reject_placeholders("a header's name", name.to_ascii_lowercase().as_bytes())?;
            *value = dressed;
        }
        Ok(names)
    }
}

pub(super) fn misplaced_fault(what: &str) -> ProxyFault {
    ProxyFault::forbidden(
        "placeholder",
        &format!(
            "a secret's placeholder in {what}: it is only good in the header of its binding, to its hosts"
        ),
    )
}

/// Replaces the placeholder in a header value by the secret, also inside `Basic` credentials. `None` if there is no placeholder.
fn swap_placeholder(value: &[u8], placeholder: &str, secret: &str) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(value).ok()?; // silent-ok: a placeholder is text
    if text.contains(placeholder) {
        return Some(text.replace(placeholder, secret).into_bytes());
    }
    let (scheme, credentials) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(credentials.trim()).ok()?; // silent-ok: no credentials of that kind
    let decoded = String::from_utf8(decoded).ok()?; // silent-ok: as above
    let swapped = decoded
        .contains(placeholder)
        .then(|| decoded.replace(placeholder, secret))?;
    Some(format!("{scheme} {}", STANDARD.encode(swapped)).into_bytes())
}

/// Creates a placeholder: 160 random bits, as letters and digits only, so that tools accept it like a normal key.
fn random_placeholder() -> Result<String, EgressError> {
    let mut bytes = [0_u8; 20];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_error| EgressError::Setup("no randomness".to_owned()))?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("clawkplaceholder{digits}"))
}
