//! Conversations with people to whom the agent wrote by their ids, as the platform named them. A question to a person is answered there.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// People that are remembered.
const REMEMBERED: usize = 1_000;

/// The direct conversation of each person.
#[derive(Debug, Default)]
pub(crate) struct DirectConversations(Mutex<BTreeMap<String, String>>);

impl DirectConversations {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The platform put a message to `person` into `conversation`.
    pub(crate) fn remember_conversation(&self, person: &str, conversation: &str) {
        if person == conversation {
            return;
        }
        let mut all = self.lock();
        if all.len() >= REMEMBERED {
            all.pop_first();
        }
        all.insert(person.to_owned(), conversation.to_owned());
    }

    /// The conversation with a person; the text itself, where it names none that is known.
    pub(crate) fn conversation_with(&self, person: &str) -> String {
        self.lock()
            .get(person)
            .cloned()
            .unwrap_or_else(|| person.to_owned())
    }

    /// Whether what is said in `answered` is said to a person who was asked as `asked`.
    pub(crate) fn is_same(&self, asked: &str, answered: &str) -> bool {
        asked == answered || self.lock().get(asked).is_some_and(|direct| direct == answered)
    }
}

#[cfg(test)]
mod tests {
    use super::DirectConversations;

    #[test]
    fn a_person_is_answered_in_the_conversation_with_them_alone() {
        let direct = DirectConversations::default();
        direct.remember_conversation("U1", "D1");
        direct.remember_conversation("D2", "D2");
        assert!(direct.is_same("U1", "D1") && direct.is_same("C9", "C9"));
        for (asked, answered) in [("U1", "D2"), ("U2", "D1"), ("D1", "U1"), ("", "D1")] {
            assert!(!direct.is_same(asked, answered), "{asked} {answered}");
        }
        assert_eq!(
            (
                direct.conversation_with("U1").as_str(),
                direct.conversation_with("C9").as_str()
            ),
            ("D1", "C9")
        );
    }
}
