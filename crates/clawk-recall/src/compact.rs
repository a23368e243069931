//! Compaction rules for every back end: how many entries stay, and which summary replaces the others.

use std::collections::HashMap;

use clawk_manifest::model::{
    CompactionStrategy, ConsolidationMode, ForgettingStrategy, SearchStrategy, Store, StoreType,
};
use clawk_proto::method::NewEntry;
use serde_json::{Value, json};

use crate::entry::{EntryHit, EntryInsertion, EntryProvenance};
use crate::{table, words};

/// `sliding-window` and `summarize` keep at most this many entries of a store that has `max_entries`.
const WINDOW: u64 = 200;

/// How many characters of one entry go into a summary that is made without a model.
const EXTRACT_CHARS: usize = 160;

/// Size limit of a summary that is made without a model, in bytes.
const SUMMARY_BYTES: usize = 16 * 1024;

/// The maximum number of entry ids that a summary lists.
const SUMMARY_IDS: usize = 2000;

/// The maximum number of origins and sources that a summary lists.
const SUMMARY_SOURCES: usize = 64;

/// Replaces the origins beyond the limit. It has the least trusted origin.
const MANY_SOURCES: &str = "web and others, too many to list";

/// A summary that a model wrote, and the exact list of old entries that it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactionSummary {
    /// Ids of the covered entries.
    pub of: Vec<String>,
    /// The summary's text.
    pub text: String,
}

/// Whether a new entry replaces the old one with the same key in a store of this type.
#[must_use]
pub const fn has_unique_keys(kind: StoreType) -> bool {
    matches!(kind, StoreType::KeyValue | StoreType::Workspace)
}

/// Whether entries of a store of this type must have a key.
#[must_use]
pub const fn by_key(kind: StoreType) -> bool {
    matches!(
        kind,
        StoreType::KeyValue | StoreType::Workspace | StoreType::Checkpoint
    )
}

/// The model whose vectors this store's search compares: `static` or `PROVIDER/MODEL`. `None`: the store searches by words only.
#[must_use]
pub fn model_of(store: &Store) -> Option<String> {
    let kind = matches!(
        store.kind,
        StoreType::Semantic | StoreType::Conversation | StoreType::Workspace
    );
    (kind && crate::way::search_strategy(store) != SearchStrategy::FtsOnly).then(|| match &store.embedding {
        Some(embedding) => format!("{}/{}", embedding.provider_ref, embedding.model),
        None => table::NAME.to_owned(),
    })
}

/// How the store is compacted; `None` if it is not.
#[must_use]
pub fn compaction_strategy(store: &Store) -> Option<CompactionStrategy> {
    let strategy = match &store.compaction {
        Some(compaction) => compaction.enabled.then_some(compaction.strategy),
        None => summarizes_old(store).then_some(CompactionStrategy::Summarize),
    };
    strategy.filter(|_| !by_key(store.kind))
}

/// Whether `lifecycle.consolidation` or `forgetting` (0.3.0) asks for summaries of old entries.
fn summarizes_old(store: &Store) -> bool {
    let consolidation = store
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.consolidation);
    let forgetting = store
        .forgetting
        .as_ref()
        .and_then(|forgetting| forgetting.strategy);
    matches!(
        consolidation,
        Some(ConsolidationMode::Summarize | ConsolidationMode::Adaptive)
    ) || matches!(
        forgetting,
        Some(ForgettingStrategy::Summarize | ForgettingStrategy::Adaptive)
    )
}

/// Whether the manifest says `lifecycle.consolidation: none`: no automatic compaction, only on request.
fn is_consolidation_off(store: &Store) -> bool {
    store
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.consolidation)
        == Some(ConsolidationMode::None)
}

/// Whether automatic compaction is due at this number of entries. It starts at nine tenths of `max_entries`, before retention would
/// delete entries. With `summarize` it starts only above `max_entries`, so that there is time to ask a model for a summary.
#[must_use]
pub fn is_due(store: &Store, entries: u64) -> bool {
    let (Some(max), Some(strategy)) = (store.retention.max_entries, compaction_strategy(store)) else {
        return false;
    };
    if is_consolidation_off(store) {
        return false;
    }
    match strategy {
        CompactionStrategy::Summarize => entries > max,
        CompactionStrategy::Truncate | CompactionStrategy::SlidingWindow => is_nearly_full(max, entries),
    }
}

const fn is_nearly_full(max: u64, entries: u64) -> bool {
    entries > 1 && entries.saturating_mul(10) > max.saturating_mul(9)
}

/// Whether a model should write a summary now: the store is nearly full.
#[must_use]
pub fn wants_summary(store: &Store, entries: u64) -> bool {
    let max = store.retention.max_entries;
    compaction_strategy(store) == Some(CompactionStrategy::Summarize)
        && !is_consolidation_off(store)
        && max.is_some_and(|max| is_nearly_full(max, entries))
}

/// How many of the oldest of `entries` entries to set aside. If `max_entries` is nearly reached, half of it stays; otherwise at
/// most `WINDOW` entries stay. Without `max_entries`, the newest half stays.
#[must_use]
pub fn compaction_count(store: &Store, entries: u64) -> u64 {
    let Some(strategy) = compaction_strategy(store) else {
        return 0;
    };
    let stays = match (store.retention.max_entries, strategy) {
        (None, _) => entries.div_ceil(2),
        (Some(max), _) if is_nearly_full(max, entries) => max.div_ceil(2),
        (Some(max), CompactionStrategy::Truncate) => max,
        (Some(max), CompactionStrategy::SlidingWindow | CompactionStrategy::Summarize) => max.min(WINDOW),
    };
    match strategy {
        // The summary counts as one of the entries that stay, and it must replace at least two.
        CompactionStrategy::Summarize => {
            let goes = entries.saturating_sub(stays.saturating_sub(1));
            if goes < 2 { 0 } else { goes }
        }
        CompactionStrategy::Truncate | CompactionStrategy::SlidingWindow => entries.saturating_sub(stays),
    }
}

/// Whether the manifest says `lifecycle.consolidation: merge`: of entries with the same text, only the newest stays.
#[must_use]
pub fn merges_duplicates(store: &Store) -> bool {
    let consolidation = store
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.consolidation);
    consolidation == Some(ConsolidationMode::Merge) && !by_key(store.kind)
}

/// Finds entries that a later entry repeats. Input: entries, oldest first. Two entries are equal if they have the same words in the
/// same order (case, accents and punctuation do not count), the same conversation and the same trust. Returns the older ones, which
/// the caller sets aside one by one.
#[must_use]
pub fn said_again<'a, T: Copy>(entries: impl IntoIterator<Item = (T, &'a EntryHit)>) -> Vec<T> {
    let mut newest: HashMap<(String, &str, bool), T> = HashMap::new();
    let mut again = Vec::new();
    for (name, hit) in entries {
        let text = words::text_of(&hit.entry.content, None);
        let said: Vec<String> = words::folded_words(&text).collect();
        if said.is_empty() {
            continue;
        }
        let same = (said.join(" "), hit.mark.whose.as_str(), hit.mark.untrusted);
        again.extend(newest.insert(same, name));
    }
    again
}

/// Builds the entry that replaces `old` (oldest first). Its text is `written` if that summary covers exactly these entries, else
/// the beginning of each entry. It lists the ids of the entries that it replaces. `at` is the current time, RFC 3339.
#[must_use]
pub fn summary_entry(old: &[EntryHit], written: Option<&CompactionSummary>, at: &str) -> EntryInsertion {
    let ids: Vec<&str> = old.iter().map(|hit| hit.entry.id.as_str()).collect();
    let fits = |summary: &&CompactionSummary| summary.of.iter().map(String::as_str).eq(ids.iter().copied());
    let (text, method) = match written.filter(fits) {
        Some(summary) => (summary.text.clone(), "model"),
        None => (entry_extracts(old), "extracts"),
    };
    let time = |hit: &EntryHit| hit.entry.timestamp.clone().unwrap_or_default();
    let about = json!({
        "summary_of": old.len(), "ids": ids.iter().take(SUMMARY_IDS).collect::<Vec<_>>(),
        "from": old.first().map(time), "to": old.last().map(time), "method": method, "compacted_at": at,
    });
    EntryInsertion {
        id: format!("summary-{}", ids.last().copied().unwrap_or_default()),
        entry: NewEntry {
            content: Value::String(text),
            key: None,
            metadata: Some(about),
        },
        mark: mark_of(old),
    }
}

/// The provenance of an entry made from `old`: as untrusted as the least trusted of them. It belongs to one conversation only if
/// all of them do.
#[must_use]
pub fn mark_of(old: &[EntryHit]) -> EntryProvenance {
    let mut made_from: Vec<String> = Vec::new();
    let origins = old.iter().map(|hit| &hit.mark.origin);
    let sources = old.iter().flat_map(|hit| &hit.mark.made_from);
    let known = origins.chain(sources);
    let known = known.filter(|source| !source.is_empty() && *source != "memory");
    // List other people's words before message ids: the limit must not drop an untrusted source.
    let (others, rest): (Vec<&String>, Vec<&String>) = known.partition(|source| is_others(source));
    for source in others.into_iter().chain(rest) {
        if made_from.contains(source) {
            continue;
        }
        if made_from.len() >= SUMMARY_SOURCES {
            if is_others(source) && !made_from.iter().any(|known| known == MANY_SOURCES) {
                made_from.push(MANY_SOURCES.to_owned());
            }
            continue;
        }
        made_from.push(source.clone());
    }
    let author = old.first().map(|hit| hit.mark.author.clone()).unwrap_or_default();
    let one_author = old.iter().all(|hit| hit.mark.author == author);
    let whose = old.first().map(|hit| hit.mark.whose.clone()).unwrap_or_default();
    let one = old.iter().all(|hit| hit.mark.whose == whose);
    EntryProvenance {
        origin: "memory".to_owned(),
        untrusted: old.iter().any(|hit| hit.mark.untrusted),
        author: if one_author {
            author
        } else {
            "several authors".to_owned()
        },
        session: String::new(),
        // If the text mixes several conversations, only the administrator may see it.
        whose: if one { whose } else { "several".to_owned() },
        made_from,
    }
}

/// Whether this source is neither the owner nor the agent.
fn is_others(source: &str) -> bool {
    matches!(source.split(' ').next(), Some("web" | "peer" | "tool" | "file"))
}

/// The beginning of each entry, up to the size limit, made without a model.
fn entry_extracts(old: &[EntryHit]) -> String {
    let mut text = String::new();
    for hit in old {
        if text.len() >= SUMMARY_BYTES {
            break;
        }
        let words = words::text_of(&hit.entry.content, None);
        let line = words.lines().next().unwrap_or_default();
        text.extend(line.trim().chars().take(EXTRACT_CHARS));
        text.push('\n');
    }
    format!("Earlier, in extracts:\n{}", text.trim_end())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn store(mut spec: Value) -> Store {
        let members = spec.as_object_mut().unwrap();
        members.insert("name".to_owned(), json!("s"));
        members.insert("type".to_owned(), json!("semantic"));
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn what_was_said_again_is_found_and_nothing_else() {
        let hit = |text: &str, whose: &str, untrusted: bool| EntryHit {
            entry: clawk_proto::method::MemoryEntry {
                id: String::new(),
                key: None,
                content: json!(text),
                metadata: None,
                timestamp: None,
                score: None,
            },
            mark: EntryProvenance {
                whose: whose.to_owned(),
                untrusted,
                ..EntryProvenance::default()
            },
        };
        let all = [
            hit("The lamp is green.", "", false),
            hit("the LAMP is green", "", false),
            hit("The lamp is not green.", "", false),
            hit("The lamp is green!", "other", false),
            hit("The lamp is green", "", true),
            hit("...", "", false),
            hit("...", "", false),
            hit("the lamp is green", "", false),
        ];
        assert_eq!(said_again(all.iter().enumerate()), [0, 1]);
    }

    #[test]
    fn consolidation_and_forgetting_summarise_and_none_rests() {
        let kept = json!({"max_entries": 10});
        for (spec, settles) in [
            (json!({}), false),
            (json!({"lifecycle": {"consolidation": "summarize"}}), true),
            (json!({"lifecycle": {"consolidation": "adaptive"}}), true),
            (json!({"lifecycle": {"consolidation": "none"}}), false),
            (json!({"forgetting": {"strategy": "summarize"}}), true),
            (json!({"forgetting": {"strategy": "adaptive"}}), true),
            (json!({"forgetting": {"strategy": "decay"}}), false),
            (
                json!({"compaction": {"strategy": "summarize"}, "lifecycle": {"consolidation": "none"}}),
                false,
            ),
            (
                json!({"compaction": {"enabled": false}, "forgetting": {"strategy": "summarize"}}),
                false,
            ),
        ] {
            let mut full = spec.clone();
            full["retention"] = kept.clone();
            assert_eq!(wants_summary(&store(full), 10), settles, "{spec}");
        }
    }
}
