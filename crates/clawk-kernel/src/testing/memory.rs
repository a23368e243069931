//! Stores in memory: substring search, enough for the kernel's tests; the contract suite runs on the real ones.

use std::collections::BTreeMap;
use std::sync::Mutex;

use clawk_manifest::model::{Store, StoreType};
use clawk_proto::method::MemoryEntry;
use clawk_recall::compact::CompactionSummary;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryInsertion, EntrySearchResult, SearchMethod};

use crate::ports::{Batch, BoxFuture, Memory, MemoryError, MemorySearch, Scope, StoreQuery, UnembeddedEntry};
use crate::time::Timestamp;

/// Entries by store.
#[derive(Debug, Default)]
pub struct MemMemory(Mutex<BTreeMap<String, Vec<(Timestamp, EntryHit)>>>);

impl MemMemory {
    /// Changes every mark, as if another version had written it.
    pub fn retold(&self, change: impl Fn(&mut clawk_recall::entry::EntryProvenance)) {
        let mut stores = self.0.lock().unwrap();
        let hits = stores.values_mut().flatten();
        hits.for_each(|(_, hit)| change(&mut hit.mark));
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

/// Any word of four letters and more that both have.
fn meets(content: &str, text: &str) -> bool {
    let content = content.to_lowercase();
    let text = text.to_lowercase();
    content.contains(&text)
        || text
            .split(|c: char| !c.is_alphanumeric())
            .any(|word| word.len() > 3 && content.contains(word))
}

impl Memory for MemMemory {
    fn check_store(&self, _: &Store) -> Result<(), MemoryError> {
        Ok(())
    }

    fn search_entries<'a>(
        &'a self,
        store: &'a Store,
        _: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>> {
        let stores = self.0.lock().unwrap();
        let entries = stores.get(&store.name).into_iter().flatten();
        let found = entries.filter(|(at, hit)| match &ask.query {
            StoreQuery::Text(text) => meets(&hit.entry.content.to_string(), text),
            StoreQuery::Key(key) => hit.entry.key.as_ref().unwrap_or(&hit.entry.id) == key,
            StoreQuery::Between(from, to) => from <= at && at <= to,
        });
        let mine = found.filter(|(_, hit)| ask.whose.includes_owner(&hit.mark.whose));
        let hits = mine.take(ask.limit).map(|(_, hit)| hit.clone()).collect();
        let used = matches!(ask.query, StoreQuery::Text(_)).then_some(SearchMethod::FullText);
        ready(Ok(EntrySearchResult {
            hits,
            used,
            ..EntrySearchResult::default()
        }))
    }

    fn store_entries<'a>(
        &'a self,
        store: &'a Store,
        _: &'a Scope,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
        _: Batch,
    ) -> BoxFuture<'a, Result<Vec<String>, MemoryError>> {
        let mut stores = self.0.lock().unwrap();
        let kept = stores.entry(store.name.clone()).or_default();
        let mut ids = Vec::new();
        for (index, EntryInsertion { id, entry, mark }) in entries.into_iter().enumerate() {
            if store.kind == StoreType::KeyValue && entry.key.is_none() {
                let error = MemoryError::Entry {
                    index,
                    reason: "a key-value store needs a `key`".to_owned(),
                };
                return ready(Err(error));
            }
            ids.push(id.clone());
            if kept.iter().any(|(_, old)| old.entry.id == id) {
                continue;
            }
            kept.retain(|(_, old)| old.entry.key.is_none() || old.entry.key != entry.key);
            let entry = MemoryEntry {
                id,
                content: entry.content,
                score: None,
                timestamp: Some(at.to_string()),
                key: entry.key,
                metadata: entry.metadata,
            };
            kept.push((at, EntryHit { entry, mark }));
        }
        ready(Ok(ids))
    }

    fn compaction_candidates<'a>(
        &'a self,
        _: &'a Store,
        _: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        ready(Ok(Vec::new()))
    }

    fn compact_store<'a>(
        &'a self,
        store: &'a Store,
        _: &'a Scope,
        _: Timestamp,
        _: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>> {
        let mut stores = self.0.lock().unwrap();
        let entries = stores.entry(store.name.clone()).or_default();
        let before = u64::try_from(entries.len()).unwrap();
        if let Some(max) = store
            .retention
            .max_entries
            .and_then(|max| usize::try_from(max).ok())
        {
            let surplus = entries.len().saturating_sub(max);
            entries.drain(..surplus);
        }
        let after = u64::try_from(entries.len()).unwrap();
        ready(Ok((before, after)))
    }

    fn apply_retention<'a>(&'a self, _: &'a Store, _: Timestamp) -> BoxFuture<'a, Result<u64, MemoryError>> {
        ready(Ok(0))
    }

    fn remove<'a>(
        &'a self,
        store: &'a Store,
        _: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>> {
        let mut stores = self.0.lock().unwrap();
        let entries = stores.entry(store.name.clone()).or_default();
        let found = entries
            .iter()
            .position(|(_, hit)| hit.entry.id == id && whose.includes_owner(&hit.mark.whose));
        ready(Ok(found.map(|at| entries.remove(at).1)))
    }

    fn count_entries<'a>(
        &'a self,
        store: &'a Store,
        _: &'a Scope,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        let stores = self.0.lock().unwrap();
        let count = stores.get(&store.name).map_or(0, Vec::len);
        ready(Ok(u64::try_from(count).unwrap()))
    }

    fn unembedded_entries<'a>(
        &'a self,
        _: &'a Store,
        _: &'a str,
        _: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>> {
        ready(Ok(Vec::new()))
    }

    fn add_vectors<'a>(
        &'a self,
        _: &'a Store,
        _: &'a str,
        _: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        ready(Ok(()))
    }
}
