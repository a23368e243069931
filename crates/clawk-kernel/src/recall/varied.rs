//! Which of the found entries join a prompt: the best ones that say different things. A history holds many turns that say nearly the
//! same ("Noted.", "ticket 7 was closed"); they are all equally near to a question, and would fill the room of what answers it.

use std::collections::HashSet;

use clawk_recall::entry::Hit;
use clawk_recall::words;
use serde_json::Value;

/// For each entry that a store may bring, so many are looked at.
const LOOKED_AT: usize = 20;
/// The most that are looked at.
const MAX_LOOKED_AT: usize = 400;
/// Entries that say nearly the same and come in their place; further ones come behind all others.
const ALIKE: usize = 2;
/// Words of an entry that are compared.
const MAX_WORDS: usize = 200;

/// How many entries a store is asked for, if it may bring so many.
pub(super) fn looked_at(top_k: usize) -> usize {
    top_k.saturating_mul(LOOKED_AT).min(MAX_LOOKED_AT).max(top_k)
}

/// What the stores before have brought into this prompt.
#[derive(Debug, Default)]
pub(super) struct Shown(HashSet<String>);

/// Words of which most are the same in all entries of the group.
struct Group {
    words: HashSet<String>,
    size: usize,
}

impl Shown {
    /// Leaves at most `top_k` hits, the best first: no text that another store brought already; of those that say nearly the same,
    /// [`ALIKE`] in their place and the rest behind all others. What was chosen once is chosen again.
    pub(super) fn choose(&mut self, hits: Vec<Hit>, top_k: usize) -> Vec<Hit> {
        let mut groups: Vec<Group> = Vec::new();
        let (mut chosen, mut behind) = (Vec::new(), Vec::new());
        for hit in hits {
            if chosen.len() == top_k {
                break;
            }
            let text = text(&hit);
            if self.0.contains(&text) {
                continue;
            }
            let words: HashSet<String> = words::words(&text).take(MAX_WORDS).collect();
            match groups.iter_mut().find(|group| alike(&group.words, &words)) {
                Some(group) if group.size == ALIKE => behind.push(hit),
                Some(group) => {
                    group.size += 1;
                    chosen.push(hit);
                }
                None => {
                    groups.push(Group { words, size: 1 });
                    chosen.push(hit);
                }
            }
        }
        let room = top_k.saturating_sub(chosen.len());
        chosen.extend(behind.into_iter().take(room));
        self.0.extend(chosen.iter().map(text));
        chosen
    }
}

fn text(hit: &Hit) -> String {
    match &hit.entry.content {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Seven tenths of all words of the two are in both.
fn alike(a: &HashSet<String>, b: &HashSet<String>) -> bool {
    let both = a.intersection(b).count();
    let all = a.len() + b.len() - both;
    both * 10 >= all * 7
}

#[cfg(test)]
mod tests {
    use clawk_proto::method::MemoryEntry;
    use clawk_recall::entry::Mark;
    use serde_json::json;

    use super::*;

    fn hits<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Hit> {
        let hit = |text: &str| Hit {
            entry: MemoryEntry {
                id: text.to_owned(),
                content: json!(text),
                score: Some(0.5),
                timestamp: None,
                key: None,
                metadata: None,
            },
            mark: Mark::default(),
        };
        texts.into_iter().map(hit).collect()
    }

    fn ids(hits: &[Hit]) -> Vec<&str> {
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
        let chosen = Shown::default().choose(hits(found.clone()), 3);
        assert_eq!(
            ids(&chosen),
            [TICKETS[0], TICKETS[1], "My physician is called Weber."]
        );
        // Where there is nothing else, they come.
        let chosen = Shown::default().choose(hits(found), 10);
        assert_eq!(chosen.len(), 5);
        assert_eq!(
            ids(&chosen)[2..],
            ["My physician is called Weber.", TICKETS[2], TICKETS[3]]
        );
        // What a replay finds was chosen before.
        let again: Vec<Hit> = Shown::default().choose(chosen.clone(), 10);
        assert_eq!(ids(&again), ids(&chosen));
    }

    #[test]
    fn a_text_comes_from_one_store_only() {
        let mut shown = Shown::default();
        assert_eq!(shown.choose(hits(["a b", "c d"]), 2).len(), 2);
        assert_eq!(ids(&shown.choose(hits(["c d", "e f"]), 2)), ["e f"]);
        assert_eq!(shown.choose(hits(["g h"]), 0).len(), 0);
    }

    #[test]
    fn a_correction_is_not_taken_for_the_same() {
        let texts = [
            "My favourite colour is blue",
            "My favourite colour is green",
            "My favourite colour is red",
        ];
        assert_eq!(Shown::default().choose(hits(texts), 3).len(), 3);
        assert_eq!(looked_at(10), 200);
        assert_eq!(looked_at(50), 400);
    }
}
