//! Resolves a reference to a value, in the order of runtime profile §7.

use std::path::{Component, Path};

use zeroize::Zeroizing;

use crate::kept_secrets::{describe_kept, look_up_kept};
use crate::store::{SecretLookup, Store, read_file};
use crate::{EnvironmentSource, ResolvedSecrets, Secret, SecretRedactor, StoreConfig, StoreError};

/// Why a reference has no value. The error never holds a value.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The reference itself is malformed.
    #[error("secret reference {name:?} is not valid: {why}")]
    BadName {
        /// The reference, shortened.
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// No place has a value for the reference.
    #[error("secret `{name}` not found: looked in {}", .looked.join("; "))]
    NotFound {
        /// The reference.
        name: String,
        /// Every place that was asked, with its answer.
        looked: Vec<String>,
    },
    /// A place that must be asked is broken.
    #[error("secret `{name}` could not be looked up: {source}")]
    Store {
        /// The reference.
        name: String,
        /// The cause.
        source: StoreError,
    },
}

/// Resolves references. It remembers every value it returned, so that [`SecretResolver::redactor`] can remove them from text.
/// Clones share this memory.
#[derive(Debug, Clone)]
pub struct SecretResolver {
    env: EnvironmentSource,
    store: Option<Store>,
    max_bytes: usize,
    given: ResolvedSecrets,
}

impl SecretResolver {
    /// Makes a resolver for `config`. A relative `file` is resolved against `base`. No store is contacted yet.
    ///
    /// # Errors
    /// `config` contradicts itself.
    pub fn new(config: &StoreConfig, base: &Path, env: EnvironmentSource) -> Result<Self, StoreError> {
        let store = Store::new(config, base)?;
        Ok(Self {
            env,
            store,
            max_bytes: config.max_bytes,
            given: ResolvedSecrets::default(),
        })
    }

    /// Makes a resolver without a configured store: it reads the environment, then `$CLAW_SECRETS_DIR`.
    pub fn without_store(env: EnvironmentSource) -> Self {
        Self {
            env,
            store: None,
            max_bytes: StoreConfig::default().max_bytes,
            given: ResolvedSecrets::default(),
        }
    }

    /// Returns the resolver's environment, for variables that are not secrets.
    pub fn env(&self) -> &EnvironmentSource {
        &self.env
    }

    /// Returns the value of `name`. The resolver asks the configured store, then the environment variable, then the file
    /// `$CLAW_SECRETS_DIR/{name}` (profile §7), and at last the file that `clawk login` keeps. Blanks and line ends around a value are removed, and an empty value counts as
    /// absent. A store command blocks the thread, at most until its deadline.
    ///
    /// # Errors
    /// [`ResolveError`]: the reference is malformed, no place has it, or a place is broken. If a place is broken, the places after
    /// it are not tried, because they are weaker.
    pub fn resolve(&self, name: &str) -> Result<Secret, ResolveError> {
        check_name(name)?;
        let mut looked = Vec::new();
        for place in [
            Self::in_store,
            Self::in_environment,
            Self::in_directory,
            Self::in_kept,
        ] {
            match place(self, name) {
                Ok(SecretLookup::Value(value)) if !trim_value(&value).is_empty() => {
                    return Ok(self.remember_secret(name, trim_value(&value)));
                }
                Ok(SecretLookup::Value(_)) => {
                    looked.push(format!("{} (empty)", self.describe_place(looked.len(), name)))
                }
                Ok(SecretLookup::Absent(words)) => looked.push(words),
                Err(source) => {
                    return Err(ResolveError::Store {
                        name: name.to_owned(),
                        source,
                    });
                }
            }
        }
        looked.retain(|words| !words.is_empty());
        Err(ResolveError::NotFound {
            name: name.to_owned(),
            looked,
        })
    }

    /// Makes a redactor that removes every secret resolved so far from text.
    pub fn redactor(&self) -> SecretRedactor {
        SecretRedactor::new(&self.given.secrets())
    }

    /// Returns the shared list of resolved secrets, which later secrets join.
    pub fn resolved_secrets(&self) -> ResolvedSecrets {
        self.given.clone()
    }

    /// Adds a value derived from a secret (a token, one half of a pair) to the values that [`SecretResolver::redactor`] removes.
    /// The last few values of each name are kept, because a token is replaced every hour and text may still quote an old one.
    pub fn add_derived_secret(&self, secret: &Secret) {
        self.given.add(secret);
    }

    fn remember_secret(&self, name: &str, value: &str) -> Secret {
        let secret = Secret::new(name, value);
        self.add_derived_secret(&secret);
        secret
    }

    fn in_store(&self, name: &str) -> Result<SecretLookup, StoreError> {
        match &self.store {
            Some(store) => store.look_up(name, self.max_bytes),
            None => Ok(SecretLookup::Absent(String::new())),
        }
    }

    fn in_environment(&self, name: &str) -> Result<SecretLookup, StoreError> {
        let place = format!("environment variable `{name}`");
        match self.env.get(name) {
            Some(value) if value.len() > self.max_bytes => Err(StoreError::TooLarge {
                place,
                max_bytes: self.max_bytes,
            }),
            Some(value) => Ok(SecretLookup::Value(Zeroizing::new(value))),
            None => Ok(SecretLookup::Absent(format!("{place} (not set)"))),
        }
    }

    fn in_directory(&self, name: &str) -> Result<SecretLookup, StoreError> {
        let place = format!("file `$CLAW_SECRETS_DIR/{name}`");
        let Some(dir) = self.env.path_variable("CLAW_SECRETS_DIR") else {
            return Ok(SecretLookup::Absent(format!(
                "{place} (CLAW_SECRETS_DIR is not set)"
            )));
        };
        if !is_file_name(name) {
            return Ok(SecretLookup::Absent(
                "`$CLAW_SECRETS_DIR` (not asked: the reference is not a plain file name)".to_owned(),
            ));
        }
        read_file(&dir.join(name), &place, self.max_bytes)
    }

    fn in_kept(&self, name: &str) -> Result<SecretLookup, StoreError> {
        look_up_kept(&self.env, name, self.max_bytes)
    }

    fn describe_place(&self, place: usize, name: &str) -> String {
        match place {
            0 => "the secrets store".to_owned(),
            1 => format!("environment variable `{name}`"),
            2 => format!("file `$CLAW_SECRETS_DIR/{name}`"),
            _ => describe_kept(name),
        }
    }
}

/// Returns the value without the byte order mark, blanks and line ends around it.
fn trim_value(value: &str) -> &str {
    value.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}')
}

pub(crate) fn check_name(name: &str) -> Result<(), ResolveError> {
    const NAME_MAX_BYTES: usize = 256;
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > NAME_MAX_BYTES {
        "it is longer than 256 bytes"
    } else if name.chars().any(char::is_control) {
        "it holds control characters"
    } else if clawk_proto::secret_name::looks_like_key(name) {
        return Err(ResolveError::BadName {
            // The reference is not shown: it is most likely a secret pasted by mistake.
            name: "(not shown)".to_owned(),
            why: "it looks like the secret itself; only its name belongs there",
        });
    } else if name.starts_with('-') {
        "it starts with `-`, which a store command would read as an option"
    } else {
        return Ok(());
    };
    Err(ResolveError::BadName {
        name: name.chars().take(64).collect(),
        why,
    })
}

/// Returns whether the name is one ordinary path component: no separator, no `..`, not absolute.
pub(crate) fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    plain && !name.contains(['/', '\\']) && !name.contains("..")
}
