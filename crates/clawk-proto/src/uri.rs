//! `claw://` URIs (CKP §7, R8): names of primitives, in the same manifest (`local`) or in a registry.
//!
//! ```
//! use clawk_proto::uri::ClawUri;
//! let uri = ClawUri::parse("claw://tool/web-fetch")?; // the alias form, for manifests
//! assert_eq!(uri.to_string(), "claw://local/tool/web-fetch");
//! assert!(ClawUri::parse_canonical("claw://tool/web-fetch").is_err()); // never on the wire
//! # Ok::<(), clawk_proto::uri::UriError>(())
//! ```

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[cfg(test)]
mod tests;

/// The longest name or namespace, characters (CKP §7).
pub const MAX_NAME: usize = 63;

/// A kind of primitive that a URI can address. The root, `Claw`, can't be addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The agent's identity.
    Identity,
    /// An inference endpoint.
    Provider,
    /// How people and events reach the agent.
    Channel,
    /// A function that the agent can call.
    Tool,
    /// A workflow of tools.
    Skill,
    /// The stores of the agent.
    Memory,
    /// The isolation of tools.
    Sandbox,
    /// The rules about calls.
    Policy,
    /// Several agents that work on one task.
    Swarm,
    /// The exported events and metrics (0.3.0 grammar).
    Telemetry,
    /// A model that predicts outcomes for plans (0.3.0).
    WorldModel,
}

impl Kind {
    /// Every kind, in the order of CKP §5.
    pub const ALL: [Self; 11] = [
        Self::Identity,
        Self::Provider,
        Self::Channel,
        Self::Tool,
        Self::Skill,
        Self::Memory,
        Self::Sandbox,
        Self::Policy,
        Self::Swarm,
        Self::Telemetry,
        Self::WorldModel,
    ];

    /// The name after `kind:` in a document.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Identity => "Identity",
            Self::Provider => "Provider",
            Self::Channel => "Channel",
            Self::Tool => "Tool",
            Self::Skill => "Skill",
            Self::Memory => "Memory",
            Self::Sandbox => "Sandbox",
            Self::Policy => "Policy",
            Self::Swarm => "Swarm",
            Self::Telemetry => "Telemetry",
            Self::WorldModel => "WorldModel",
        }
    }

    /// The name in a URI, which also begins generated names (R7).
    #[must_use]
    pub const fn segment(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Provider => "provider",
            Self::Channel => "channel",
            Self::Tool => "tool",
            Self::Skill => "skill",
            Self::Memory => "memory",
            Self::Sandbox => "sandbox",
            Self::Policy => "policy",
            Self::Swarm => "swarm",
            Self::Telemetry => "telemetry",
            Self::WorldModel => "world-model",
        }
    }

    /// The kind with this name in a URI; upper and lower case are equal (RFC 5234 §2.3).
    #[must_use]
    pub fn from_segment(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.segment().eq_ignore_ascii_case(word))
    }

    /// The kind with exactly this name after `kind:`.
    #[must_use]
    pub fn from_title(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.title() == word)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// A primitive's address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClawUri {
    /// `claw://local/{kind}/{name}[@{version}]`: a primitive in the same manifest.
    Local {
        /// The kind of primitive.
        kind: Kind,
        /// Its name.
        name: String,
        /// The requested version, if any.
        version: Option<String>,
    },
    /// `claw://registry/{namespace}/{name}@{version}`: a document in a registry.
    Registry {
        /// The owner's namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The requested version; always present.
        version: String,
    },
}

/// Why a text is not a valid `claw://` URI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// The text has another scheme, or none.
    #[error("a claw URI starts with `claw://`")]
    Scheme,
    /// The kind is unknown.
    #[error("`{0}` is not a valid kind of primitive")]
    Kind(String),
    /// The name is not 1 to 63 letters, digits and hyphens.
    #[error("`{0}` is not a valid name: 1 to 63 letters, digits and hyphens")]
    Name(String),
    /// The namespace is not 1 to 63 letters, digits, hyphens and dots.
    #[error("`{0}` is not a valid namespace: 1 to 63 letters, digits, hyphens and dots")]
    Namespace(String),
    /// The version is not `MAJOR.MINOR.PATCH[-PRE]`.
    #[error("`{0}` is not a valid version: `MAJOR.MINOR.PATCH`, with `-PRERELEASE` at most")]
    Version(String),
    /// A registry URI has no `@version`.
    #[error("a registry URI always names a version: `claw://registry/NAMESPACE/NAME@VERSION`")]
    NoVersion,
    /// The alias form has an `@version`.
    #[error("the alias form takes no version; write `claw://local/KIND/NAME@VERSION`")]
    AliasVersion,
    /// The alias form is not allowed here.
    #[error("the alias form is for manifests only; write `claw://local/KIND/NAME`")]
    Alias,
    /// There are too few or too many segments.
    #[error(
        "a claw URI is `claw://local/KIND/NAME`, `claw://registry/NAMESPACE/NAME@VERSION` or `claw://KIND/NAME`"
    )]
    Form,
}

impl ClawUri {
    /// Parses any of the three forms; an alias is converted to its canonical form.
    ///
    /// ```
    /// use clawk_proto::uri::ClawUri;
    ///
    /// let uri = ClawUri::parse("claw://local/tool/file-read")?;
    /// assert_eq!(uri.name(), "file-read");
    /// assert!(ClawUri::parse("https://example.com").is_err());
    /// # Ok::<(), clawk_proto::uri::UriError>(())
    /// ```
    ///
    /// # Errors
    /// The text does not follow the grammar of CKP §7.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        read(text).map(|(uri, _)| uri)
    }

    /// Parses only the canonical forms, as on the wire.
    ///
    /// # Errors
    /// The text does not follow the grammar of CKP §7, or it is the alias form.
    pub fn parse_canonical(text: &str) -> Result<Self, UriError> {
        match read(text)? {
            (_, true) => Err(UriError::Alias),
            (uri, false) => Ok(uri),
        }
    }

    /// The name of the addressed primitive.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Local { name, .. } | Self::Registry { name, .. } => name,
        }
    }
}

/// Whether the text is a name: 1 to 63 letters, digits and hyphens (CKP §7, R8).
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Whether the text is a version: `MAJOR.MINOR.PATCH[-PRE]` by the grammar of CKP §7 (no build metadata).
#[must_use]
pub fn is_version(text: &str) -> bool {
    let (numbers, pre) = match text.split_once('-') {
        Some((numbers, pre)) => (numbers, Some(pre)),
        None => (text, None),
    };
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    numbers.split('.').count() == 3
        && numbers.split('.').all(number)
        && pre.is_none_or(|pre| !pre.is_empty() && pre.bytes().all(is_dotted))
}

fn is_dotted(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.'
}

/// The URI, and whether it was written as an alias.
fn read(text: &str) -> Result<(ClawUri, bool), UriError> {
    let scheme_ends = "claw://".len();
    let (scheme, rest) = text.split_at_checked(scheme_ends).ok_or(UriError::Scheme)?;
    if !scheme.eq_ignore_ascii_case("claw://") {
        return Err(UriError::Scheme);
    }
    let segments: Vec<&str> = rest.splitn(4, '/').collect();
    match segments.as_slice() {
        [authority, kind, name] if authority.eq_ignore_ascii_case("local") => {
            let (name, version) = split_version(name)?;
            Ok((
                ClawUri::Local {
                    kind: read_kind(kind)?,
                    name: read_name(name)?,
                    version,
                },
                false,
            ))
        }
        [authority, namespace, name] if authority.eq_ignore_ascii_case("registry") => {
            let (name, version) = split_version(name)?;
            let version = version.ok_or(UriError::NoVersion)?;
            if !(1..=MAX_NAME).contains(&namespace.len()) || !namespace.bytes().all(is_dotted) {
                return Err(UriError::Namespace(shown(namespace)));
            }
            Ok((
                ClawUri::Registry {
                    namespace: (*namespace).to_owned(),
                    name: read_name(name)?,
                    version,
                },
                false,
            ))
        }
        [kind, name] => {
            let kind = read_kind(kind)?;
            if name.contains('@') {
                return Err(UriError::AliasVersion);
            }
            Ok((
                ClawUri::Local {
                    kind,
                    name: read_name(name)?,
                    version: None,
                },
                true,
            ))
        }
        _ => Err(UriError::Form),
    }
}

fn read_kind(text: &str) -> Result<Kind, UriError> {
    Kind::from_segment(text).ok_or_else(|| UriError::Kind(shown(text)))
}

fn read_name(text: &str) -> Result<String, UriError> {
    if is_name(text) {
        Ok(text.to_owned())
    } else {
        Err(UriError::Name(shown(text)))
    }
}

fn split_version(text: &str) -> Result<(&str, Option<String>), UriError> {
    match text.split_once('@') {
        None => Ok((text, None)),
        Some((name, version)) if is_version(version) => Ok((name, Some(version.to_owned()))),
        Some((_, version)) => Err(UriError::Version(shown(version))),
    }
}

/// Shortens user text for a message.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

impl fmt::Display for ClawUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local {
                kind,
                name,
                version: None,
            } => write!(f, "claw://local/{}/{name}", kind.segment()),
            Self::Local {
                kind,
                name,
                version: Some(version),
            } => {
                write!(f, "claw://local/{}/{name}@{version}", kind.segment())
            }
            Self::Registry {
                namespace,
                name,
                version,
            } => write!(f, "claw://registry/{namespace}/{name}@{version}"),
        }
    }
}

impl std::str::FromStr for ClawUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl Serialize for ClawUri {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ClawUri {
    /// Accepts only canonical forms, as on the wire.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse_canonical(&text).map_err(serde::de::Error::custom)
    }
}
