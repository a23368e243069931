//! Call ids in the form that each dialect accepts. The mapping depends only on the conversation, so that a repeated request is
//! identical.

use std::collections::BTreeSet;

use clawk_core::ports::ToolUse;

/// The format of call ids in a dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdRule {
    /// At most 40 characters. An id made by the same server is sent back unchanged.
    Chat,
    /// `[a-zA-Z0-9_-]`, at most 64 characters.
    Anthropic,
    /// `[a-zA-Z0-9_-]`, at most 64 characters.
    Responses,
    /// Exactly nine characters of `[a-zA-Z0-9]`.
    Short,
}

const SHORT: usize = 9;
const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

impl IdRule {
    /// Returns whether the dialect accepts `id`. `own`: whether this server made the id; `None`: unknown.
    fn accepts_id(self, id: &str, own: Option<bool>) -> bool {
        let letters = |more: &str| id.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
        match self {
            Self::Chat => match own {
                Some(true) => !id.is_empty(),
                Some(false) => id.len() == SHORT && letters(""),
                None => (1..=40).contains(&id.len()) && letters("_-.:"),
            },
            Self::Anthropic | Self::Responses => (1..=64).contains(&id.len()) && letters("_-"),
            Self::Short => id.len() == SHORT && letters(""),
        }
    }
}

/// Maps the call ids of one conversation to the ids that are sent.
#[derive(Debug)]
pub(crate) struct CallIds {
    rule: IdRule,
    used: BTreeSet<String>,
}

impl CallIds {
    pub(crate) const fn new(rule: IdRule) -> Self {
        Self {
            rule,
            used: BTreeSet::new(),
        }
    }

    /// Returns the id that is sent for one more call.
    pub(crate) fn name_call(&mut self, call: &ToolUse, own: Option<bool>) -> String {
        let id = match self.rule.accepts_id(&call.id, own) && !self.used.contains(&call.id) {
            true => call.id.clone(),
            false => self.made_up(&call.id),
        };
        self.used.insert(id.clone());
        id
    }

    fn made_up(&self, id: &str) -> String {
        (0_u32..)
            .map(|n| short_id(&format!("{n}:{id}")))
            .find(|made| !self.used.contains(made))
            .unwrap_or_default()
    }
}

/// Derives nine letters and digits from the text.
fn short_id(text: &str) -> String {
    let digest = clawk_trace::chain::digest_of(text.as_bytes());
    let letters = digest.0.iter().take(SHORT).filter_map(|byte| {
        let at = usize::from(*byte) % ALPHABET.len();
        ALPHABET.get(at).map(|letter| char::from(*letter))
    });
    letters.collect()
}

#[cfg(test)]
mod tests {
    use super::{CallIds, IdRule};
    use clawk_core::ports::ToolUse;

    fn ids(rule: IdRule, own: Option<bool>, given: &[&str]) -> Vec<String> {
        let mut ids = CallIds::new(rule);
        let call = |id: &&str| ToolUse {
            id: (*id).to_owned(),
            name: "t".to_owned(),
            arguments: Ok(serde_json::Map::new()),
        };
        given.iter().map(|id| ids.name_call(&call(id), own)).collect()
    }

    const GIVEN: [&str; 12] = [
        "call_0",
        "call_0",
        "",
        "",
        "functions.read:0",
        "exec:2",
        "toolu_01A09q90qw90lq917835lq9",
        "call_abcDEF123456789012345678|fc_0123456789012345678901234567890123456789",
        "ünï",
        "abcDEF123",
        "abcDEF123",
        "a b",
    ];

    #[test]
    fn every_dialect_gets_unique_ids_in_its_own_form() {
        let long = "x".repeat(256);
        let given: Vec<&str> = GIVEN.into_iter().chain([long.as_str()]).collect();
        for rule in [IdRule::Chat, IdRule::Anthropic, IdRule::Responses, IdRule::Short] {
            for own in [None, Some(false), Some(true)] {
                let made = ids(rule, own, &given);
                let unique: std::collections::BTreeSet<_> = made.iter().collect();
                assert_eq!(unique.len(), made.len(), "{rule:?} {own:?}: {made:?}");
                for id in &made {
                    let plain =
                        |more: &str| id.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
                    match rule {
                        IdRule::Chat if own == Some(true) => assert!(!id.is_empty()),
                        IdRule::Chat => assert!(!id.is_empty() && id.len() <= 40, "{id}"),
                        IdRule::Anthropic | IdRule::Responses => {
                            assert!((1..=64).contains(&id.len()) && plain("_-"), "{id}");
                        }
                        IdRule::Short => assert!(id.len() == 9 && plain(""), "{id}"),
                    }
                }
                assert_eq!(
                    made,
                    ids(rule, own, &given),
                    "the same conversation gives the same ids"
                );
            }
        }
    }

    #[test]
    fn the_maker_of_an_id_gets_it_back() {
        let given = ["functions.read:0", "call_123", &"y".repeat(200)];
        assert_eq!(ids(IdRule::Chat, Some(true), &given), given);
        // Another server gets ids that every vendor accepts.
        for id in ids(IdRule::Chat, Some(false), &given) {
            assert_eq!(id.len(), 9);
        }
    }
}
