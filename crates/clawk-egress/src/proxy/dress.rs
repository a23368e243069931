//! Secrets at the boundary (R37): the tool holds a placeholder, and only the right header to the right host over a verified
//! connection turns it into the secret.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_secrets::{Secret, SecretRedactor};

use super::ProxyFault;
use crate::{EgressError, HostPattern, HostPort};

/// A secret, and where it may go.
#[derive(Clone)]
pub struct EgressSecret {
    /// The secret.
    pub secret: Secret,
    /// The tools that get a placeholder.
    pub tools: Vec<String>,
    /// The hosts that get the secret; port 443 unless an entry names another.
    pub hosts: Vec<HostPattern>,
    /// The only header that it is put into.
    pub header: String,
    /// The variable of the tool's environment that holds the placeholder.
    pub env: String,
    /// Put before the secret where a client of ours adds the header by itself: `Bearer `.
    pub prefix: String,
    /// It may also go over plain HTTP. Anybody on the way can read it then.
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

    /// Whether the secret may go there.
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
    /// Finds placeholders, in whatever encoding.
    placeholders: SecretRedactor,
    /// Takes the secrets out of answers.
    pub(super) values: SecretRedactor,
}

type Headers = Vec<(String, Vec<u8>)>;

impl PlaceholderSet {
    pub(super) fn new(bindings: impl Iterator<Item = Arc<EgressSecret>>) -> Result<Self, EgressError> {
        let worn: Vec<(Arc<EgressSecret>, String)> = bindings
            .map(|binding| Ok((binding, placeholder()?)))
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

    /// Whether a binding puts its secret into this header on its way there.
    pub(super) fn owns(&self, header: &str, host: &str, port: u16) -> bool {
        self.worn
            .iter()
            .any(|(binding, _)| binding.header.eq_ignore_ascii_case(header) && binding.is_bound(host, port))
    }

    /// Whether there are no secrets at all.
    pub(super) fn is_bare(&self) -> bool {
        self.worn.is_empty()
    }

    /// A stream that counts placeholders in what leaves.
    pub(super) fn watch(&self) -> clawk_secrets::RedactStream<'_> {
        self.placeholders.stream()
    }

    /// No placeholder may be here.
    pub(super) fn check(&self, what: &str, bytes: &[u8]) -> Result<(), ProxyFault> {
        if self.worn.is_empty() {
            return Ok(());
        }
        let (mut stream, mut out) = (self.watch(), Vec::new());
        stream.push(bytes, &mut out);
        stream.finish(&mut out);
        if stream.found() == 0 {
            Ok(())
        } else {
            Err(misplaced(what))
        }
    }

    /// Puts the secrets into the headers that their bindings name, and checks that no placeholder is left anywhere. Returns the
    /// names of the secrets put in.
    pub(super) fn dress(
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
                if let Some(swapped) = swap(&dressed, text, binding.secret.expose()) {
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
                        return Err(ProxyFault::status(
                            502,
                            "secret",
                            "a secret can't be a header's value",
                        ));
                    }
                    dressed = swapped;
                    names.push(binding.secret.name().into());
                }
            }
            // What is left of placeholders has no business here: another secret's, or in the wrong header.
            self.check(&format!("the header `{name}`"), &dressed)?;
            self.check("a header's name", name.to_ascii_lowercase().as_bytes())?;
            *value = dressed;
        }
        Ok(names)
    }
}

pub(super) fn misplaced(what: &str) -> ProxyFault {
    ProxyFault::forbidden(
        "placeholder",
        &format!(
            "a secret's placeholder in {what}: it is only good in the header of its binding, to its hosts"
        ),
    )
}

/// The header with the secret in the placeholder's place; also inside of `Basic` credentials.
fn swap(value: &[u8], placeholder: &str, secret: &str) -> Option<Vec<u8>> {
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

/// 160 random bits; letters and digits only, so that no tool finds it odd.
fn placeholder() -> Result<String, EgressError> {
    let mut bytes = [0_u8; 20];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_error| EgressError::Setup("no randomness".to_owned()))?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("clawkplaceholder{digits}"))
}
