//! The list of resolved secrets, from which a redactor recognises them in text.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Secret;

/// Number of values that are kept for one name. A token is replaced every hour, and text may still quote an old one.
const KEPT_PER_NAME: usize = 4;

/// Every secret that was resolved so far. Clones share one list, which grows.
#[derive(Clone, Default)]
pub struct ResolvedSecrets(Arc<Mutex<ResolvedSecretsInner>>);

#[derive(Default)]
struct ResolvedSecretsInner {
    secrets: Vec<Secret>,
    generation: u64,
}

impl ResolvedSecrets {
    fn lock(&self) -> MutexGuard<'_, ResolvedSecretsInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that changes when a secret is added. If it changed, an earlier copy of [`ResolvedSecrets::secrets`] is out
    /// of date.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Returns all secrets. The clones share the values.
    #[must_use]
    pub fn secrets(&self) -> Vec<Secret> {
        self.lock().secrets.clone()
    }

    /// Adds a secret. Does nothing if the same value is already stored under the same name.
    pub fn add(&self, secret: &Secret) {
        let mut inner = self.lock();
        let same = |known: &Secret| known.name() == secret.name();
        if inner
            .secrets
            .iter()
            .any(|known| same(known) && known.expose() == secret.expose())
        {
            return;
        }
        if inner.secrets.iter().filter(|known| same(known)).count() >= KEPT_PER_NAME
            && let Some(oldest) = inner.secrets.iter().position(same)
        {
            inner.secrets.remove(oldest);
        }
        inner.secrets.push(secret.clone());
        inner.generation += 1;
    }
}

impl fmt::Debug for ResolvedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Given({} secrets)", self.lock().secrets.len())
    }
}
