//! Names of chats and people, as a platform told them beside its messages. They are in memory alone: what is not known is told by its id.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Names of one channel; further ones are not remembered.
const MOST: usize = 10_000;

/// Names by the platform's ids.
#[derive(Debug, Default)]
pub(crate) struct DisplayNameCache(Mutex<BTreeMap<String, String>>);

impl DisplayNameCache {
    /// Remembers a name; an empty one is forgotten.
    pub(crate) fn remember_name(&self, id: &str, name: &str) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if name.trim().is_empty() {
            names.remove(id);
        } else if names.len() < MOST || names.contains_key(id) {
            names.insert(id.to_owned(), name.chars().take(200).collect());
        }
    }

    pub(crate) fn name_of(&self, id: &str) -> Option<String> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::{DisplayNameCache, MOST};

    #[test]
    fn names_are_learnt_changed_and_bounded() {
        let names = DisplayNameCache::default();
        names.remember_name("a", "Ann");
        names.remember_name("a", "Anna");
        names.remember_name("b", "Bo");
        names.remember_name("b", " ");
        assert_eq!(
            (names.name_of("a").as_deref(), names.name_of("b")),
            (Some("Anna"), None)
        );
        for n in 0..MOST + 5 {
            names.remember_name(&n.to_string(), "x");
        }
        assert_eq!(names.name_of(&(MOST + 1).to_string()), None);
        assert_eq!(names.name_of("a").as_deref(), Some("Anna"));
    }
}
