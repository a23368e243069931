//! The only module that reads the environment.
//!
//! The program needs environment variables for secrets and for other settings (`NO_COLOR`, XDG folders, proxies). All reads are in
//! this module, so that a reviewer finds them with one search.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// The source of environment variables: this process, or a fixed set (tests, simulation).
#[derive(Clone, Default)]
pub enum EnvironmentSource {
    /// The process's own environment.
    #[default]
    Process,
    /// Exactly these variables and no others.
    Fixed(BTreeMap<String, String>),
}

impl EnvironmentSource {
    /// Makes a fixed environment of name-value pairs.
    pub fn from_pairs<K: Into<String>, V: Into<String>>(vars: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::Fixed(
            vars.into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }

    /// Returns the variable `name`, or `None` if it is unset or not UTF-8. An empty value is `Some("")`.
    pub fn get(&self, name: &str) -> Option<String> {
        match self {
            Self::Process => read(name)?.into_string().ok(), // silent-ok: documented, not UTF-8 counts as unset
            Self::Fixed(vars) => vars.get(name).cloned(),
        }
    }

    /// Like [`EnvironmentSource::get`], but an empty value counts as unset. Most switches follow this convention.
    pub fn non_empty(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// Returns the variable `name` as a path, which may hold any bytes. An empty value counts as unset.
    pub fn path_variable(&self, name: &str) -> Option<PathBuf> {
        let value = match self {
            Self::Process => read(name)?,
            Self::Fixed(vars) => OsString::from(vars.get(name)?),
        };
        (!value.is_empty()).then(|| PathBuf::from(value))
    }
}

/// Shows the names only, because values may be secrets.
impl fmt::Debug for EnvironmentSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process => f.write_str("Env::Process"),
            Self::Fixed(vars) => f.debug_list().entries(vars.keys()).finish(),
        }
    }
}

/// Returns this process's variable `name`: see [`EnvironmentSource::get`].
pub fn get(name: &str) -> Option<String> {
    EnvironmentSource::Process.get(name)
}

/// Returns this process's variable `name` unless it is empty: see [`EnvironmentSource::non_empty`].
pub fn non_empty(name: &str) -> Option<String> {
    EnvironmentSource::Process.non_empty(name)
}

/// Returns this process's variable `name` as a path: see [`EnvironmentSource::path_variable`].
pub fn path_variable(name: &str) -> Option<PathBuf> {
    EnvironmentSource::Process.path_variable(name)
}

fn read(name: &str) -> Option<OsString> {
    // `std::env::var_os` does not define its answer for such names.
    if name.is_empty() || name.contains(['=', '\0']) {
        return None;
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "this module is the reader of the environment"
    )]
    std::env::var_os(name)
}
