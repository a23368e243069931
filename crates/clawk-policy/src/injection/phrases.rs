//! The phrases, in normal spelling. The phrases and the text are both folded before the comparison.

use std::sync::LazyLock;

use super::fold::fold_phrase;
use super::{InjectionGoal, PhraseWeight};

/// A phrase with at least this many letters counts even inside joined words.
pub(super) const SURE_LETTERS: usize = 16;

/// Objects of an override. `true`: enough alone with a strong verb.
pub(super) const NOUNS: &[(&str, bool)] = &[
    ("instructions", true),
    ("instruction", true),
    ("prompt", true),
    ("prompts", true),
    ("directives", true),
    ("guidelines", true),
    ("system prompt", true),
    ("system message", true),
    ("training", true),
    ("programming", true),
    ("orders", true),
    ("directions", true),
    ("rules", false),
    ("commands", false),
    ("messages", false),
    ("message", false),
    ("conversation", false),
    ("context", false),
    ("text", false),
    ("constraints", false),
    ("restrictions", false),
    ("policies", false),
    ("safeguards", false),
    ("limitations", false),
];

/// Adjectives before such an object.
pub(super) const ADJECTIVES: &[&str] = &[
    "previous",
    "prior",
    "above",
    "earlier",
    "preceding",
    "foregoing",
    "initial",
    "original",
    "old",
    "past",
    "former",
    "your",
    "system",
    "developer",
    "security",
    "safety",
    "aforementioned",
    "your previous",
    "your original",
    "your initial",
    "your current",
    "your own",
    "your safety",
    "your system",
    "operator",
    "operators",
    "existing",
];

/// Phrases after such an object.
pub(super) const TAILS: &[&str] = &[
    "above",
    "before this",
    "you were given",
    "you have been given",
    "you received",
    "given to you",
    "given above",
    "so far",
    "from before",
    "from above",
    "you got",
    "that came before",
    "that preceded",
    "up to this point",
    "until now",
    "you have received",
    "you were told",
    "from the system",
    "from your developer",
    "from your operator",
    "from earlier",
];

/// Override verbs. `true`: a strong verb.
const VERBS: &[(&str, bool)] = &[
    ("ignore", true),
    ("ignoring", true),
    ("disregard", true),
    ("disregarding", true),
    ("forget", true),
    ("forget about", true),
    ("pay no attention to", true),
    ("do not follow", true),
    ("dont follow", true),
    ("stop following", true),
    ("stop obeying", true),
    ("do not obey", true),
    ("dont obey", true),
    ("no longer follow", true),
    ("do not listen to", true),
    ("dont listen to", true),
    ("disobey", true),
    ("set aside", true),
    ("put aside", true),
    ("throw away", true),
    ("throw out", true),
    ("supersedes", true),
    ("supersede", true),
    ("overrule", true),
    ("overrules", true),
    ("override", true),
    ("overrides", true),
    ("break free from", true),
    ("neglect", true),
    ("abandon", true),
    ("nullify", true),
    ("bypass", true),
    ("circumvent", true),
    ("replaces", false),
    ("replace", false),
    ("discard", false),
    ("dismiss", false),
    ("erase", false),
    ("drop", false),
    ("cancel", false),
    ("skip", false),
    ("clear", false),
    ("delete", false),
    ("violate", false),
    ("break", false),
];

/// Words that may be between the verb and its object.
const FILLERS: &[&str] = &[
    "rules",
    "all",
    "any",
    "the",
    "your",
    "these",
    "those",
    "of",
    "my",
    "every",
    "each",
    "and",
    "that",
    "to",
    "me",
    "about",
    "it",
    "other",
    "everything",
    "whatever",
    "completely",
    "entirely",
    "please",
    "all of",
    "just",
    "now",
    "its",
    "their",
    "our",
    "such",
    "user",
    "ai",
    "assistants",
    "both",
    "single",
    "from",
    "or",
    "in",
];

/// Words before the verb that reverse its meaning.
const NEGATIONS: &[&str] = &[
    "do not",
    "dont",
    "never",
    "not",
    "cannot",
    "cant",
    "must not",
    "should not",
    "wont",
    "to not",
    "doesnt",
];

struct PhraseLexicon {
    verbs: Vec<(Vec<u8>, bool)>,
    fillers: Vec<Vec<u8>>,
    negations: Vec<Vec<u8>>,
}

static WORDS: LazyLock<PhraseLexicon> = LazyLock::new(|| {
    let mut verbs: Vec<_> = VERBS
        .iter()
        .map(|(verb, strong)| (fold_phrase(verb), *strong))
        .collect();
    verbs.sort_by_key(|(verb, _)| std::cmp::Reverse(verb.len()));
    let mut fillers: Vec<_> = FILLERS.iter().map(|word| fold_phrase(word)).collect();
    fillers.sort_by_key(|word| std::cmp::Reverse(word.len()));
    PhraseLexicon {
        verbs,
        fillers,
        negations: NEGATIONS.iter().map(|word| fold_phrase(word)).collect(),
    }
});

/// An override verb before an object.
pub(super) struct OverrideVerb {
    pub(super) start: usize,
    pub(super) strong: bool,
}

/// Finds the verb before an object, with at most four small words in between.
pub(super) fn verb_before(text: &[u8], object: usize) -> Option<OverrideVerb> {
    let words = &*WORDS;
    let mut ends = vec![object];
    for _ in 0..5 {
        let mut further = Vec::new();
        for &end in &ends {
            let before = text.get(..end)?;
            for (verb, strong) in &words.verbs {
                if before.ends_with(verb) {
                    let start = end - verb.len();
                    let turned = words
                        .negations
                        .iter()
                        .any(|word| before.get(..start).is_some_and(|b| b.ends_with(word)));
                    return (!turned).then_some(OverrideVerb {
                        start,
                        strong: *strong,
                    });
                }
            }
            let fitting = words.fillers.iter().filter(|word| before.ends_with(word));
            further.extend(fitting.map(|word| end - word.len()));
        }
        further.sort_unstable();
        further.dedup();
        ends = further;
    }
    None
}

/// Words that are searched in disguise. If a text has one, it is also read as rot13 or reversed.
pub(super) const DRESSED: &[&str] = &[
    "instructions",
    "previous",
    "disregard",
    "system prompt",
    "you are now",
    "jailbreak",
];

/// The phrases with their goal and weight.
pub(super) fn phrase_lists() -> Vec<(InjectionGoal, PhraseWeight, &'static str)> {
    let (mut all, mut section) = (Vec::new(), None);
    for line in include_str!("phrases.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = section_of(name);
        } else if let Some((family, weight)) = section.filter(|_| !line.is_empty()) {
            all.push((family, weight, line));
        }
    }
    all
}

fn section_of(name: &str) -> Option<(InjectionGoal, PhraseWeight)> {
    let (family, weight) = name.split_once(' ')?;
    let family = [
        InjectionGoal::Override,
        InjectionGoal::Jailbreak,
        InjectionGoal::Impersonation,
        InjectionGoal::PromptLeak,
        InjectionGoal::Hijack,
    ]
    .into_iter()
    .find(|known| known.word() == family)?;
    let weight = if weight == "strong" {
        PhraseWeight::Strong
    } else {
        PhraseWeight::Weak
    };
    Some((family, weight))
}
