//! `claw://` URIs (CKP §7, R8): names of primitives, here (`local`) or in a registry.
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

/// Longest name, namespace (CKP §7).
pub const MAX_NAME: usize = 63;

/// A primitive that a URI can address. `Claw`, the root, is not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Who the agent is.
    Identity,
    /// Where the model answers.
    Provider,
    /// How people and events reach the agent.
    Channel,
    /// What the agent can call.
    Tool,
    /// What the agent knows how to do.
    Skill,
    /// What the agent keeps.
    Memory,
    /// Where tools run.
    Sandbox,
    /// What is allowed.
    Policy,
    /// Several agents at one task.
    Swarm,
    /// What is told about the agent (0.3.0 grammar).
    Telemetry,
    /// What skills plan with (0.3.0).
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

    /// The word after `kind:` in a document.
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

    /// The word in a URI, and the stem of generated names (R7).
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

    /// The kind with this URI word; letters may be of either case (RFC 5234 §2.3).
    #[must_use]
    pub fn from_segment(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.segment().eq_ignore_ascii_case(word))
    }

    /// The kind with exactly this `kind:` word.
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
    /// `claw://local/{kind}/{name}[@{version}]`: declared in the same manifest.
    Local {
        /// What it is.
        kind: Kind,
        /// Its name.
        name: String,
        /// Its version, when one is asked for.
        version: Option<String>,
    },
    /// `claw://registry/{namespace}/{name}@{version}`: kept elsewhere.
    Registry {
        /// Whose it is.
        namespace: String,
        /// Its name.
        name: String,
        /// Its version; always asked for.
        version: String,
    },
}

/// Why a text is no `claw://` URI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Another scheme, or none.
    #[error("a claw URI starts with `claw://`")]
    Scheme,
    /// Not one of the kinds.
    #[error("`{0}` is not a valid kind of primitive")]
    Kind(String),
    /// Not 1 to 63 letters, digits, hyphens.
    #[error("`{0}` is not a valid name: 1 to 63 letters, digits and hyphens")]
    Name(String),
    /// Not 1 to 63 letters, digits, hyphens, dots.
    #[error("`{0}` is not a valid namespace: 1 to 63 letters, digits, hyphens and dots")]
    Namespace(String),
    /// Not `MAJOR.MINOR.PATCH[-PRE]`.
    #[error("`{0}` is not a valid version: `MAJOR.MINOR.PATCH`, with `-PRERELEASE` at most")]
    Version(String),
    /// A registry URI without `@version`.
    #[error("a registry URI always names a version: `claw://registry/NAMESPACE/NAME@VERSION`")]
    NoVersion,
    /// The alias form with `@version`.
    #[error("the alias form takes no version; write `claw://local/KIND/NAME@VERSION`")]
    AliasVersion,
    /// The alias form where only canonical ones are allowed.
    #[error("the alias form is for manifests only; write `claw://local/KIND/NAME`")]
    Alias,
    /// Too few or too many segments.
    #[error(
        "a claw URI is `claw://local/KIND/NAME`, `claw://registry/NAMESPACE/NAME@VERSION` or `claw://KIND/NAME`"
    )]
    Form,
}

impl ClawUri {
    /// Reads any of the three forms; the alias becomes its canonical form.
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

    /// Reads the canonical forms only, as on the wire.
    ///
    /// # Errors
    /// The text does not follow the grammar of CKP §7, or it is the alias form.
    pub fn parse_canonical(text: &str) -> Result<Self, UriError> {
        match read(text)? {
            (_, true) => Err(UriError::Alias),
            (uri, false) => Ok(uri),
        }
    }

    /// The name of what it addresses.
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

/// User text in a message is bounded.
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
    /// Canonical forms only: this is the wire.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse_canonical(&text).map_err(serde::de::Error::custom)
    }
}
