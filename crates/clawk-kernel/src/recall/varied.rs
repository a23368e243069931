//! Which of the found entries join a prompt: the best ones that say different things. A history holds many turns that say nearly the
//! same ("Noted.", "ticket 7 was closed") and many questions; all of them are near to a question, and would fill the room of what
//! answers it.

use std::collections::HashSet;

use clawk_recall::entry::EntryHit;
use clawk_recall::words;
use serde_json::Value;

/// For each entry that a store may bring, so many are looked at.
const LOOKED_AT: usize = 40;
/// The most that are looked at.
const MAX_LOOKED_AT: usize = 400;
/// Entries that say nearly the same and come in their place; further ones come behind all others. Two, so that a correction comes with
/// what it corrects.
const ALIKE: usize = 2;
/// If more entries than this say nearly the same, they are a form that is filled in again and again, and one comes in its place.
const OFTEN: usize = 8;
/// Words of an entry that are compared.
const MAX_WORDS: usize = 200;

/// How many entries a store is asked for, if it may bring so many.
pub(super) fn looked_at(top_k: usize) -> usize {
    top_k.saturating_mul(LOOKED_AT).min(MAX_LOOKED_AT).max(top_k)
}

/// What the stores before have brought into this prompt.
#[derive(Debug, Default)]
pub(super) struct PromptTexts(HashSet<String>);

/// Entries of which most words are the same.
struct SimilarEntries {
    words: HashSet<String>,
    size: usize,
    chosen: usize,
}

/// Where an entry stands.
enum GroupPosition {
    /// With others that say nearly the same: the number of its group.
    Among(usize),
    /// Behind all that say something: it only asks.
    Behind,
}

impl PromptTexts {
    /// Leaves at most `top_k` hits, the best first. No text comes twice. Of entries that say nearly the same, [`ALIKE`] come in their
    /// place, or one if there are more than [`OFTEN`]; the rest of them and entries that only ask come behind all others.
    pub(super) fn choose_hits(&mut self, hits: Vec<EntryHit>, top_k: usize) -> Vec<EntryHit> {
        let (placed, mut groups) = self.place_hits(hits, top_k);
        let (mut chosen, mut behind) = (Vec::new(), Vec::new());
        for (hit, place) in placed {
            if chosen.len() == top_k {
                break;
            }
            let group = match place {
                GroupPosition::Among(number) => groups.get_mut(number),
                GroupPosition::Behind => None,
            };
            let free = group.filter(|group| group.chosen < if group.size > OFTEN { 1 } else { ALIKE });
            match free {
                Some(group) => {
                    group.chosen += 1;
                    chosen.push(hit);
                }
                None => behind.push(hit),
            }
        }
        let room = top_k.saturating_sub(chosen.len());
        chosen.extend(behind.into_iter().take(room));
        self.0.extend(chosen.iter().map(hit_text));
        chosen
    }

    /// Where each hit stands, and the groups. The first `top_k` groups fill the room, so that what is in none of them is left out.
    fn place_hits(
        &self,
        hits: Vec<EntryHit>,
        top_k: usize,
    ) -> (Vec<(EntryHit, GroupPosition)>, Vec<SimilarEntries>) {
        let (mut placed, mut groups) = (Vec::new(), Vec::<SimilarEntries>::new());
        let mut seen = HashSet::new();
        for hit in hits {
            let text = hit_text(&hit);
            if self.0.contains(&text) {
                continue;
            }
            if only_asks(&text) {
                if seen.insert(text) {
                    placed.push((hit, GroupPosition::Behind));
                }
                continue;
            }
            let words: HashSet<String> = words::folded_words(&text).take(MAX_WORDS).collect();
            let number = groups.iter().position(|group| are_alike(&group.words, &words));
            let number = match number {
                Some(number) => number,
                None if groups.len() == top_k => continue,
                None => {
                    groups.push(SimilarEntries {
                        words,
                        size: 0,
                        chosen: 0,
                    });
                    groups.len() - 1
                }
            };
            if let Some(group) = groups.get_mut(number) {
                group.size += 1;
            }
            if seen.insert(text) {
                placed.push((hit, GroupPosition::Among(number)));
            }
        }
        (placed, groups)
    }
}

/// The text is one question, and tells nothing beside it: such an entry holds no answer. "I eat no nuts, may I have this?" tells something.
fn only_asks(text: &str) -> bool {
    let Some(asked) = text.trim().strip_suffix(['?', '？', '؟', '\u{37e}']) else {
        return false;
    };
    !asked.contains([
        ',', ';', ':', '.', '!', '?', '\n', '、', '，', '。', '！', '？', '،', '؟', '–', '—',
    ])
}

fn hit_text(hit: &EntryHit) -> String {
    match &hit.entry.content {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Seven tenths of all words of the two are in both.
fn are_alike(a: &HashSet<String>, b: &HashSet<String>) -> bool {
    let both = a.intersection(b).count();
    let all = a.len() + b.len() - both;
    both * 10 >= all * 7
}

#[cfg(test)]
mod tests {
    use clawk_proto::method::MemoryEntry;
    use clawk_recall::entry::EntryProvenance;
    use serde_json::json;

    use super::*;

    fn hits<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<EntryHit> {
        let hit = |text: &str| EntryHit {
            entry: MemoryEntry {
                id: text.to_owned(),
                content: json!(text),
                score: Some(0.5),
                timestamp: None,
                key: None,
                metadata: None,
            },
            mark: EntryProvenance::default(),
        };
        texts.into_iter().map(hit).collect()
    }

    fn ids(hits: &[EntryHit]) -> Vec<&str> {
        hits.iter().map(|hit| hit.entry.id.as_str()).collect()
    }

    const TICKETS: [&str; 4] = [
        "Please note that ticket 7 was closed without further remarks",
        "Please note that ticket 8 was closed without further remarks",
        "Please note that ticket 9 was closed without further remarks",
        "Please note that ticket 10 was closed without further remarks",
    ];

    #[test]
    fn entries_that_say_nearly_the_same_leave_room_for_others() {
        let found: Vec<&str> = TICKETS
            .into_iter()
            .chain(["My physician is called Weber."])
            .collect();
        let chosen = PromptTexts::default().choose_hits(hits(found.clone()), 3);
        assert_eq!(
            ids(&chosen),
            [TICKETS[0], TICKETS[1], "My physician is called Weber."]
        );
        // Where there is nothing else, they come.
        let chosen = PromptTexts::default().choose_hits(hits(found), 10);
        assert_eq!(chosen.len(), 5);
        assert_eq!(
            ids(&chosen)[2..],
            ["My physician is called Weber.", TICKETS[2], TICKETS[3]]
        );
    }

    #[test]
    fn of_a_form_that_is_filled_in_again_and_again_one_comes() {
        let forms: Vec<String> = (0..=OFTEN)
            .map(|n| format!("Please note that ticket {n} was closed without further remarks"))
            .collect();
        let found = forms
            .iter()
            .map(String::as_str)
            .chain(["The boat is moored at pier fourteen."]);
        let chosen = PromptTexts::default().choose_hits(hits(found), 3);
        assert_eq!(
            ids(&chosen),
            [&forms[0], "The boat is moored at pier fourteen.", &forms[1]]
        );
    }

    #[test]
    fn what_only_asks_comes_behind_what_tells_something() {
        let asked = ["Where does our ship lie?", "你住在哪里？"];
        let told = [
            "I am allergic to peanuts, may I eat this?",
            "Rex is a dog. What does he eat?",
            "The boat is moored at pier fourteen.",
        ];
        let found = hits(asked.into_iter().chain(told));
        assert_eq!(ids(&PromptTexts::default().choose_hits(found.clone(), 3)), told);
        // Where there is room, it comes.
        assert_eq!(ids(&PromptTexts::default().choose_hits(found, 4))[3], asked[0]);
    }

    #[test]
    fn the_same_text_comes_once() {
        let chosen = PromptTexts::default().choose_hits(hits(["Noted.", "Noted.", "e f", "Why?", "Why?"]), 5);
        assert_eq!(ids(&chosen), ["Noted.", "e f", "Why?"]);
    }

    #[test]
    fn a_text_comes_from_one_store_only() {
        let mut shown = PromptTexts::default();
        assert_eq!(shown.choose_hits(hits(["a b", "c d"]), 2).len(), 2);
        assert_eq!(ids(&shown.choose_hits(hits(["c d", "e f"]), 2)), ["e f"]);
        assert_eq!(shown.choose_hits(hits(["g h"]), 0).len(), 0);
    }

    #[test]
    fn a_correction_is_not_taken_for_the_same() {
        let texts = [
            "My favourite colour is blue",
            "My favourite colour is green",
            "My favourite colour is red",
        ];
        assert_eq!(PromptTexts::default().choose_hits(hits(texts), 3).len(), 3);
        assert_eq!(looked_at(5), 200);
        assert_eq!(looked_at(50), 400);
    }
}
