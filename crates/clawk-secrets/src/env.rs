//! The only reader of the environment.
//!
//! Secrets apart, a program has honest questions to it (`NO_COLOR`, XDG folders, proxies). They are asked here, so
//! that a review sees them all with one search.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// Where variables come from: this process, or a fixed set (tests, simulation).
#[derive(Clone, Default)]
pub enum EnvironmentSource {
    /// The process's own environment.
    #[default]
    Process,
    /// Exactly these variables and no others.
    Fixed(BTreeMap<String, String>),
}

impl EnvironmentSource {
    /// A fixed environment.
    pub fn fixed<K: Into<String>, V: Into<String>>(vars: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::Fixed(
            vars.into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }

    /// The variable `name`, or `None` when it is unset or not UTF-8. An empty value is `Some("")`.
    pub fn get(&self, name: &str) -> Option<String> {
        match self {
            Self::Process => read(name)?.into_string().ok(), // silent-ok: documented, not UTF-8 counts as unset
            Self::Fixed(vars) => vars.get(name).cloned(),
        }
    }

    /// Like [`EnvironmentSource::get`], with an empty value counted as unset: the convention of most switches.
    pub fn non_empty(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// The variable `name` as a path of any bytes; empty counts as unset.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        let value = match self {
            Self::Process => read(name)?,
            Self::Fixed(vars) => OsString::from(vars.get(name)?),
        };
        (!value.is_empty()).then(|| PathBuf::from(value))
    }
}

/// Names only: values may be secrets.
impl fmt::Debug for EnvironmentSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process => f.write_str("Env::Process"),
            Self::Fixed(vars) => f.debug_list().entries(vars.keys()).finish(),
        }
    }
}

/// The process's variable `name`: see [`EnvironmentSource::get`].
pub fn get(name: &str) -> Option<String> {
    EnvironmentSource::Process.get(name)
}

/// The process's variable `name` unless empty: see [`EnvironmentSource::non_empty`].
pub fn non_empty(name: &str) -> Option<String> {
    EnvironmentSource::Process.non_empty(name)
}

/// The process's variable `name` as a path: see [`EnvironmentSource::path`].
pub fn path(name: &str) -> Option<PathBuf> {
    EnvironmentSource::Process.path(name)
}

fn read(name: &str) -> Option<OsString> {
    // `var_os` has no defined answer for these.
    if name.is_empty() || name.contains(['=', '\0']) {
        return None;
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "this module is the reader of the environment"
    )]
    std::env::var_os(name)
}
