//! Decides which addresses an agent may reach: checks a URL, or a host and port, without I/O. This is the only code that makes this
//! decision. The static check of a call, the guarded client and a sandbox's proxy all use it.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use url::Url;

pub mod address;

/// An allow-list for requests that an agent chooses. The default allows nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostAllowList {
    /// Public hosts: `example.com`, `*.example.com` (subdomains only), `example.com:8443`, an IP literal, or `*`.
    pub hosts: Vec<HostPattern>,
    /// Hosts that may have private addresses: exact names or IP literals, with or without a port. They need not be in `hosts` too.
    pub allow_private: Vec<HostPattern>,
    /// The allowed ports of entries without a port.
    pub ports: Vec<u16>,
    /// Whether `hosts` may have private addresses: the manifest has switched this protection off.
    pub any_private: bool,
    /// Whether entries without a port allow every port: the manifest allows everything.
    pub any_port: bool,
    /// The largest number of redirects; each one is checked like a first request.
    pub max_redirects: u8,
    /// The largest response body, bytes.
    pub max_response_bytes: u64,
}

impl Default for HostAllowList {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            allow_private: Vec::new(),
            ports: vec![80, 443],
            any_private: false,
            any_port: false,
            max_redirects: 5,
            max_response_bytes: 4 * 1024 * 1024,
        }
    }
}

/// One entry of an allow-list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPattern {
    kind: Kind,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Any,
    Below(String),
    Exact(String),
}

/// An entry that is not a host, `host:port` or `*.suffix`.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a host, `*.suffix`, IP literal or `*`, each with or without `:port`")]
pub struct PatternError(String);

/// Why a URL is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlRefusal {
    /// The scheme is neither http nor https.
    #[error("scheme `{0}` is not allowed, only http and https")]
    Scheme(String),
    /// The URL contains `user:password@`.
    #[error("credentials in a URL are not allowed")]
    Credentials,
    /// The URL has no host.
    #[error("the URL has no host")]
    NoHost,
    /// The host is not on the list.
    #[error("host `{0}` is not on the allow-list")]
    Host(String),
    /// The host is an IP literal that no entry names.
    #[error("IP literal `{0}` is not named in the allow-list")]
    Literal(IpAddr),
    /// The port is not allowed for this host.
    #[error("port {port} is not allowed for host `{host}`")]
    Port {
        /// The requested host.
        host: String,
        /// The requested port.
        port: u16,
    },
    /// The host has an address that is not public.
    #[error("host `{host}` has the address {address}, which is not public ({range})")]
    Address {
        /// The requested host.
        host: String,
        /// The first address that is not public.
        address: IpAddr,
        /// The name of its range.
        range: &'static str,
    },
    /// A redirect from https to http.
    #[error("redirect from https to http is not followed")]
    Downgrade,
    /// More redirects than allowed.
    #[error("more than {0} redirects")]
    Redirects(u8),
}

impl UrlRefusal {
    /// A stable identifier for programs and the trace.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Scheme(_) | Self::NoHost | Self::Downgrade | Self::Redirects(_) => "malformed",
            Self::Credentials => "credentials",
            Self::Host(_) => "host",
            Self::Literal(_) => "literal",
            Self::Port { .. } => "port",
            Self::Address { .. } => "address",
        }
    }
}

/// The target of a URL that passed the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermittedTarget {
    /// The host in lower case, without a trailing dot; an IPv6 literal without brackets.
    pub host: String,
    /// The port to connect to.
    pub port: u16,
    /// The address, if the URL contains an IP literal.
    pub literal: Option<IpAddr>,
    /// Whether private addresses are allowed.
    pub private: bool,
    /// The entry that allowed it, as written; for the trace.
    pub rule: String,
    /// Whether the entry names this port explicitly.
    pub named_port: bool,
}

impl HostAllowList {
    /// Checks everything about `url` that needs no name lookup.
    ///
    /// # Errors
    /// [`UrlRefusal`] with the broken rule.
    pub fn judge_url(&self, url: &Url) -> Result<PermittedTarget, UrlRefusal> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(UrlRefusal::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlRefusal::Credentials);
        }
        // The parser has already converted `0x7f.1`, `2130706433` and `[::ffff:7f00:1]` to plain literals.
        let host = url.host_str().ok_or(UrlRefusal::NoHost)?;
        let port = url.port_or_known_default().ok_or(UrlRefusal::NoHost)?;
        self.judge_place(&HostPort {
            host: normalize_host(host),
            port,
        })
    }

    /// Checks a host and a port, before the host is looked up.
    ///
    /// # Errors
    /// [`UrlRefusal`] with the broken rule.
    pub fn judge_place(&self, place: &HostPort) -> Result<PermittedTarget, UrlRefusal> {
        let (host, port) = (&place.host, place.port);
        let literal = place.literal_address();
        let target = |private, entry: &HostPattern| PermittedTarget {
            host: host.clone(),
            port,
            literal,
            private,
            rule: entry.to_string(),
            named_port: entry.port.is_some(),
        };
        let mut private = self.allow_private.iter();
        if let Some(entry) = private.find(|entry| entry.names_host(host) && self.opens_port(entry, port)) {
            return Ok(target(true, entry));
        }
        let mut named = self.hosts.iter().filter(|entry| match literal {
            Some(_) if self.any_private => entry.names_host(host) || entry.kind == Kind::Any,
            Some(_) => entry.names_host(host),
            None => entry.covers_host(host),
        });
        match (named.clone().next(), literal) {
            (None, Some(address)) => Err(UrlRefusal::Literal(address)),
            (None, None) => Err(UrlRefusal::Host(host.clone())),
            (Some(_), _) => {
                let Some(entry) = named.find(|entry| self.opens_port(entry, port)) else {
                    let host = host.clone();
                    return Err(UrlRefusal::Port { host, port });
                };
                let target = target(self.any_private, entry);
                literal.map_or(Ok(()), |address| target.admit_address(address))?;
                Ok(target)
            }
        }
    }
}

impl HostAllowList {
    fn opens_port(&self, entry: &HostPattern, port: u16) -> bool {
        entry.opens_port(port, &self.ports) || (self.any_port && entry.port.is_none())
    }
}

/// A host and a port in normal form. A URL, an authority and a SOCKS request are all converted to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// The host in lower case, ASCII, without a trailing dot; an IPv6 literal without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostPort {
    /// Reads `host`, `host:port` or `[v6]:port`, by the URL parser's own normal form: case, IDNA, odd spellings of IPv4.
    /// Returns `None` for a text that another parser might read differently (escapes, blanks, user names, zones).
    ///
    /// ```
    /// use clawk_proto::place::HostPort;
    ///
    /// let place = HostPort::parse("EXAMPLE.com:8443", Some(443)).ok_or("not a place")?;
    /// assert_eq!((place.host.as_str(), place.port), ("example.com", 8443));
    /// let odd = HostPort::parse("0x7f.1", Some(80)).ok_or("not a place")?;
    /// assert_eq!(odd.host, "127.0.0.1");
    /// # Ok::<(), &str>(())
    /// ```
    #[must_use]
    pub fn parse(authority: &str, default_port: Option<u16>) -> Option<Self> {
        const MAX_BYTES: usize = 300;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        if authority.is_empty() || authority.len() > MAX_BYTES || !authority.bytes().all(plain) {
            return None;
        }
        // A scheme without a default port shows whether the text contains a port; `foo:` alone contains none.
        let url = Url::parse(&format!("http://{authority}/")).ok()?; // silent-ok: no place
        let written = authority
            .rsplit_once(':')
            .filter(|(_, port)| !port.contains(']'))
            .map(|(_, port)| port);
        let port = match written {
            None => default_port?,
            Some(digits) => digits.parse().ok().filter(|port| *port != 0)?, // silent-ok: no place
        };
        let host = normalize_host(url.host_str()?);
        (!host.is_empty()).then_some(Self { host, port })
    }

    /// The place of an address.
    #[must_use]
    pub fn of_address(address: IpAddr, port: u16) -> Self {
        Self {
            host: address.to_string(),
            port,
        }
    }

    /// The address, if the host is an IP literal.
    #[must_use]
    pub fn literal_address(&self) -> Option<IpAddr> {
        self.host.parse().ok() // silent-ok: not a literal
    }

    /// The authority form: `host`, or `host:port` if the port is not `default`.
    #[must_use]
    pub fn authority(&self, default: u16) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        if self.port == default {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }
}

impl PermittedTarget {
    /// Checks one address of the host.
    ///
    /// # Errors
    /// [`UrlRefusal::Address`] if it is not public but has to be.
    pub fn admit_address(&self, address: IpAddr) -> Result<(), UrlRefusal> {
        match address::judge_address(address) {
            Err(range) if !self.private => Err(UrlRefusal::Address {
                host: self.host.clone(),
                address,
                range,
            }),
            _ => Ok(()),
        }
    }
}

impl HostPattern {
    /// Whether the entry matches this host and port. An entry without a port matches the `ports`.
    #[must_use]
    pub fn is_for(&self, place: &HostPort, ports: &[u16]) -> bool {
        let fits = match place.literal_address() {
            Some(_) => self.names_host(&place.host),
            None => self.covers_host(&place.host),
        };
        fits && self.opens_port(place.port, ports)
    }

    /// Whether the entry matches this host, at any port.
    #[must_use]
    pub fn is_for_host(&self, host: &str) -> bool {
        match host.parse::<IpAddr>() {
            Ok(_) => self.names_host(host),
            Err(_name) => self.covers_host(host),
        }
    }

    /// The port that the entry names.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The host, if the entry is neither `*` nor a suffix.
    #[must_use]
    pub fn exact_host(&self) -> Option<&str> {
        match &self.kind {
            Kind::Exact(host) => Some(host),
            Kind::Any | Kind::Below(_) => None,
        }
    }

    /// The name with which every host of the entry ends; `None` for `*`.
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        match &self.kind {
            Kind::Exact(name) | Kind::Below(name) => Some(name),
            Kind::Any => None,
        }
    }

    fn names_host(&self, host: &str) -> bool {
        matches!(&self.kind, Kind::Exact(name) if name == host)
    }

    fn covers_host(&self, host: &str) -> bool {
        match &self.kind {
            Kind::Any => true,
            Kind::Exact(name) => name == host,
            Kind::Below(suffix) => host
                .strip_suffix(suffix.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        }
    }

    fn opens_port(&self, port: u16, default: &[u16]) -> bool {
        self.port
            .map_or_else(|| default.contains(&port), |own| own == port)
    }
}

impl TryFrom<String> for HostPattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        let bad = || PatternError(text.clone());
        // A bare IPv6 literal contains colons itself.
        if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(Self {
                kind: Kind::Exact(address.to_string()),
                port: None,
            });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| bad())?)),
            None => (text.as_str(), None),
        };
        let name = |host: &str| {
            // The URL parser's normal form covers upper case, IDNA and unusual spellings of IPv4.
            let url = Url::parse(&format!("http://{host}/")).map_err(|_| bad())?;
            let plain = url.username().is_empty()
                && url.path() == "/"
                && url.port().is_none()
                && !host.contains(['*', '?', '#']);
            url.host_str()
                .filter(|_| plain && !host.is_empty())
                .map(normalize_host)
                .ok_or_else(bad)
        };
        let kind = match (host, host.strip_prefix("*.")) {
            ("*", _) => Kind::Any,
            (_, Some(suffix)) => Kind::Below(name(suffix)?),
            (_, None) => Kind::Exact(name(host)?),
        };
        Ok(Self { kind, port })
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Any => f.write_str("*"),
            Kind::Below(suffix) => write!(f, "*.{suffix}"),
            Kind::Exact(name) if name.contains(':') => write!(f, "[{name}]"),
            Kind::Exact(name) => f.write_str(name),
        }?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// A host in normal form: lower case, without brackets and trailing dots.
#[must_use]
pub fn normalize_host(host: &str) -> String {
    host.trim_matches(['[', ']'])
        .trim_end_matches('.')
        .to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
