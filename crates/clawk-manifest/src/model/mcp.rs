//! The location of an MCP tool's server (CKP §5.4): `stdio:///program?arg=…` or `https://…`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The MCP server behind a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpSource {
    /// The server's URI.
    pub uri: McpUri,
    /// The tool's name at the server; `None`: the CKP tool's own name.
    #[serde(default)]
    pub tool_name: Option<String>,
}

/// A transport URI of an MCP server. Equal URIs name the same server process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum McpUri {
    /// A program that speaks MCP on its standard streams.
    Stdio {
        /// The program: absolute, or `./…` relative to the manifest's directory (our extension: `stdio://./…`).
        path: String,
        /// Its arguments, in order.
        args: Vec<String>,
    },
    /// A Streamable HTTP endpoint: `https`, or `http` to loopback.
    Http {
        /// The URL as given.
        url: String,
    },
}

/// Why a text is not a valid MCP transport URI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum McpUriError {
    /// The scheme is reserved (CKP §5.4).
    #[error("the `mcp://` scheme is reserved and must not be used")]
    Reserved,
    /// The scheme is neither `stdio:///` nor `https://`.
    #[error("`{0}` is not a valid MCP transport URI")]
    Scheme(String),
    /// The URI names no program.
    #[error("a `stdio:///` URI needs an absolute path to a program")]
    NoProgram,
    /// The query has parameters other than `arg`.
    #[error("`{0}` is not a parameter of a `stdio:///` URI; only `arg` is")]
    Parameter(String),
    /// The URI has an invalid percent escape.
    #[error("bad percent escape in `{0}`")]
    Escape(String),
    /// The URI uses plain HTTP to another machine.
    #[error("plain `http://` is for loopback only; use `https://`")]
    PlainHttp,
    /// The URI has no host.
    #[error("the URL names no host")]
    NoHost,
}

impl McpUri {
    /// Parses a transport URI.
    ///
    /// # Errors
    /// See [`McpUriError`].
    pub fn parse(text: &str) -> Result<Self, McpUriError> {
        if text.starts_with("mcp:") {
            return Err(McpUriError::Reserved);
        }
        if let Some(rest) = text.strip_prefix("stdio://") {
            return parse_stdio(rest);
        }
        let (rest, plain) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(McpUriError::Scheme(text.chars().take(80).collect())),
        };
        let host = host_of(rest);
        if host.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(McpUriError::NoHost);
        }
        if plain && !is_loopback(host) {
            return Err(McpUriError::PlainHttp);
        }
        Ok(Self::Http { url: text.to_owned() })
    }
}

fn parse_stdio(rest: &str) -> Result<McpUri, McpUriError> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = percent_decode(path)?;
    if !(path.starts_with('/') || path.starts_with("./")) || path.trim_matches(['/', '.']).is_empty() {
        return Err(McpUriError::NoProgram);
    }
    let mut args = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key != "arg" {
            return Err(McpUriError::Parameter(key.to_owned()));
        }
        args.push(percent_decode(value)?);
    }
    Ok(McpUri::Stdio { path, args })
}

/// The host in `host[:port][/path]`, without the brackets of an IPv6 literal. Empty if the text has user info.
pub(crate) fn host_of(rest: &str) -> &str {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return "";
    }
    match authority.strip_prefix('[') {
        Some(inner) => inner.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

fn percent_decode(text: &str) -> Result<String, McpUriError> {
    let bad = || McpUriError::Escape(text.to_owned());
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let pair = [bytes.next().ok_or_else(bad)?, bytes.next().ok_or_else(bad)?];
        let digits = std::str::from_utf8(&pair)
            .ok()
            .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        out.push(u8::from_str_radix(digits.ok_or_else(bad)?, 16).map_err(|_| bad())?); // silent-ok: digits checked above
    }
    match String::from_utf8(out) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(bad()),
    }
}

impl TryFrom<String> for McpUri {
    type Error = McpUriError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<McpUri> for String {
    fn from(uri: McpUri) -> Self {
        uri.to_string()
    }
}

impl fmt::Display for McpUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { url } => f.write_str(url),
            Self::Stdio { path, args } => {
                write!(f, "stdio://{}", percent_escape(path))?;
                for (index, arg) in args.iter().enumerate() {
                    write!(
                        f,
                        "{}arg={}",
                        if index == 0 { '?' } else { '&' },
                        percent_escape(arg)
                    )?;
                }
                Ok(())
            }
        }
    }
}

fn percent_escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/@:,=".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
