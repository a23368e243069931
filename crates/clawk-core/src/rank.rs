//! The store settings for the weight of entries (CKP 0.3: `role`, `lifecycle`, `forgetting`, `salience`, `confidence`): the ranking
//! of entries, the stores that are asked before a turn, and the confidence of an entry. Nothing is deleted: a faded entry is still
//! found by its words.

use clawk_manifest::model::{
    AcquisitionMode, ConfidenceDecay, ForgettingStrategy, RetrievalMode, Store, StoreRole, StoreType,
};
use clawk_recall::entry::{EntryProvenance, EntrySearchResult};

use crate::time::Timestamp;

/// Signals that `salience` and `forgetting` may name.
const SIGNALS: [&str; 4] = ["context", "recency", "source", "trust"];

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;

/// Smallest part of its score that a faded entry keeps.
const LEAST: f64 = 0.5;

/// The default signals of `salience`. If it names signals, only these count.
const USUAL: [&str; 2] = ["recency", "trust"];

/// Why the store cannot be ranked as its manifest says.
pub fn ranking_fault(store: &Store) -> Option<String> {
    let salience = store.salience.iter().flat_map(|salience| &salience.signals);
    let forgetting = store.forgetting.iter().flat_map(|forgetting| &forgetting.signals);
    let unknown = salience
        .chain(forgetting)
        .find(|signal| !SIGNALS.contains(&signal.as_str()))?;
    Some(format!(
        "the signal `{unknown}` is not known; known are: {}",
        SIGNALS.join(", ")
    ))
}

/// The store is asked before a turn.
pub fn speaks_up(store: &Store) -> bool {
    match (store.kind, store.role) {
        // Sensory memory is only searched explicitly.
        (_, Some(StoreRole::Sensory)) => false,
        (StoreType::Conversation | StoreType::Semantic | StoreType::Workspace, _) => true,
        // Procedural and working memory is available whatever the store's type.
        (StoreType::KeyValue | StoreType::Checkpoint, role) => {
            matches!(role, Some(StoreRole::Working | StoreRole::Procedural))
        }
    }
}

/// The store takes up finished turns by itself.
pub fn takes_up(store: &Store) -> bool {
    let acquisition = store
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.acquisition);
    match store.kind {
        StoreType::Conversation => acquisition != Some(AcquisitionMode::Manual),
        StoreType::Semantic => acquisition == Some(AcquisitionMode::Continuous),
        StoreType::KeyValue | StoreType::Workspace | StoreType::Checkpoint => false,
    }
}

/// Returns the time in seconds after which an entry's weight is halved: half of `retention.max_age`, or the default of the store's
/// role.
fn half_life(store: &Store) -> f64 {
    if let Some(age) = store.retention.max_age {
        #[expect(clippy::cast_precision_loss, reason = "seconds far below 2^53")]
        let seconds = age.as_secs() as f64;
        return (seconds / 2.0).max(1.0);
    }
    match store.role {
        Some(StoreRole::Sensory) => HOUR,
        Some(StoreRole::Working) => DAY,
        Some(StoreRole::Episodic) => 30.0 * DAY,
        Some(StoreRole::Semantic | StoreRole::Procedural) | None => 180.0 * DAY,
    }
}

/// Returns the rest of a weight of 1 after the given age.
fn decay_factor(age_seconds: f64, half_life: f64) -> f64 {
    (-age_seconds.max(0.0) / half_life * std::f64::consts::LN_2).exp()
}

fn entry_age(timestamp: Option<&str>, now: Timestamp) -> f64 {
    let at = timestamp.and_then(|text| Timestamp::parse(text).ok()); // silent-ok: what has no time does not fade
    let us = at.map_or(0, |at| now.0.saturating_sub(at.0));
    #[expect(clippy::cast_precision_loss, reason = "a ranking")]
    let us = us as f64;
    us / 1_000_000.0
}

/// Ranks what was found as the manifest says; `whose`: the conversation that asks. Scores stay within 0..1.
pub fn rank_entries(store: &Store, found: &mut EntrySearchResult, whose: &str, now: Timestamp) {
    let forgetting = store.forgetting.as_ref();
    let decays = forgetting.is_some_and(|forgetting| {
        matches!(
            forgetting.strategy,
            Some(ForgettingStrategy::Decay | ForgettingStrategy::Adaptive)
        )
    });
    let contextual =
        store.lifecycle.as_ref().and_then(|lifecycle| lifecycle.retrieval) == Some(RetrievalMode::Contextual);
    let salience = store.salience.as_ref().filter(|salience| salience.enabled);
    if !decays && !contextual && salience.is_none() {
        return;
    }
    // The signals that count, once each.
    let mut signals: Vec<&str> = Vec::new();
    let mut add = |named: &mut dyn Iterator<Item = &'static str>| {
        for signal in named {
            if !signals.contains(&signal) {
                signals.push(signal);
            }
        }
    };
    let known = |wanted: &[String]| {
        SIGNALS
            .into_iter()
            .filter(|signal| wanted.iter().any(|one| one == signal))
            .collect::<Vec<_>>()
    };
    if let Some(salience) = salience {
        let named = known(&salience.signals);
        let named = if named.is_empty() { USUAL.to_vec() } else { named };
        add(&mut named.into_iter());
    }
    if let Some(forgetting) = forgetting.filter(|_| decays) {
        let named = known(&forgetting.signals);
        let named = if named.is_empty() { vec!["recency"] } else { named };
        add(&mut named.into_iter());
    }
    if contextual {
        add(&mut std::iter::once("context"));
    }
    for hit in &mut found.hits {
        let Some(score) = hit.entry.score else { continue };
        let mut weight = 1.0;
        for signal in &signals {
            weight *= match *signal {
                "recency" => decay_factor(entry_age(hit.entry.timestamp.as_deref(), now), half_life(store)),
                "trust" if hit.mark.untrusted => 0.5,
                "source" => origin_confidence(&hit.mark),
                "context" if !whose.is_empty() && hit.mark.whose != whose => 0.6,
                _ => 1.0,
            };
        }
        hit.entry.score = Some((score * (LEAST + (1.0 - LEAST) * weight)).clamp(0.0, 1.0));
    }
    let score = |hit: &clawk_recall::entry::EntryHit| hit.entry.score.unwrap_or(0.0);
    // The sort is stable: entries with equal scores keep their order.
    found.hits.sort_by(|a, b| score(b).total_cmp(&score(a)));
}

/// Returns the confidence by an entry's provenance.
fn origin_confidence(mark: &EntryProvenance) -> f64 {
    let of_kind = match mark.kind() {
        "user" => 1.0,
        "agent" => 0.8,
        "tool" | "file" | "memory" => 0.6,
        _ => 0.4,
    };
    if mark.untrusted { of_kind * 0.5 } else { of_kind }
}

/// How sure an entry is, within 0..1, where the store says that it is tracked.
pub fn entry_confidence(
    store: &Store,
    mark: &EntryProvenance,
    timestamp: Option<&str>,
    now: Timestamp,
) -> Option<f64> {
    let said = store.confidence.as_ref().filter(|said| said.source_tracking)?;
    let forgets = store
        .forgetting
        .as_ref()
        .and_then(|forgetting| forgetting.strategy);
    let fades = match said.decay {
        None | Some(ConfidenceDecay::None) => false,
        Some(ConfidenceDecay::Adaptive) => true,
        // Applies if the store forgets anyway.
        Some(ConfidenceDecay::Optional) => {
            matches!(
                forgets,
                Some(ForgettingStrategy::Decay | ForgettingStrategy::Adaptive)
            )
        }
    };
    let left = if fades {
        decay_factor(entry_age(timestamp, now), half_life(store))
    } else {
        1.0
    };
    Some((origin_confidence(mark) * left).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
