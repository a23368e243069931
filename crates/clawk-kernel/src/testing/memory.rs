//! Stores in memory: substring search, enough for the kernel's tests; the contract suite runs on the real ones.

use std::collections::BTreeMap;
use std::sync::Mutex;

use clawk_manifest::model::{Store, StoreType};
use clawk_proto::method::{MemoryEntry, NewEntry};

use crate::ports::{Later, Memory, MemoryError, Place, StoreQuery};
use crate::time::Timestamp;

/// Entries by store.
#[derive(Debug, Default)]
pub struct MemMemory(Mutex<BTreeMap<String, Vec<(Timestamp, MemoryEntry)>>>);

impl Memory for MemMemory {
    fn check(&self, _: &Store) -> Result<(), MemoryError> {
        Ok(())
    }

    fn query<'a>(
        &'a self,
        store: &'a Store,
        _: &'a Place,
        query: StoreQuery,
        limit: usize,
    ) -> Later<'a, Result<Vec<MemoryEntry>, MemoryError>> {
        let stores = self.0.lock().unwrap();
        let entries = stores.get(&store.name).into_iter().flatten();
        let found = entries.filter(|(at, entry)| match &query {
            StoreQuery::Text(text) => entry
                .content
                .to_string()
                .to_lowercase()
                .contains(&text.to_lowercase()),
            StoreQuery::Key(key) => entry.key.as_ref().unwrap_or(&entry.id) == key,
            StoreQuery::Between(from, to) => from <= at && at <= to,
        });
        let found = found.take(limit).map(|(_, entry)| entry.clone()).collect();
        Box::pin(std::future::ready(Ok(found)))
    }

    fn store<'a>(
        &'a self,
        store: &'a Store,
        _: &'a Place,
        entries: Vec<NewEntry>,
        ids: Vec<String>,
        at: Timestamp,
    ) -> Later<'a, Result<Vec<String>, MemoryError>> {
        let mut stores = self.0.lock().unwrap();
        let kept = stores.entry(store.name.clone()).or_default();
        for (index, (entry, id)) in entries.into_iter().zip(&ids).enumerate() {
            if store.kind == StoreType::KeyValue && entry.key.is_none() {
                let error = MemoryError::Entry {
                    index,
                    reason: "a key-value store needs a `key`".to_owned(),
                };
                return Box::pin(std::future::ready(Err(error)));
            }
            if kept.iter().any(|(_, old)| old.id == *id) {
                continue;
            }
            kept.retain(|(_, old)| old.key.is_none() || old.key != entry.key);
            let NewEntry {
                content,
                key,
                metadata,
            } = entry;
            let timestamp = Some(at.to_string());
            kept.push((
                at,
                MemoryEntry {
                    id: id.clone(),
                    content,
                    score: None,
                    timestamp,
                    key,
                    metadata,
                },
            ));
        }
        Box::pin(std::future::ready(Ok(ids)))
    }

    fn compact<'a>(
        &'a self,
        store: &'a Store,
        _: &'a Place,
        _: Timestamp,
    ) -> Later<'a, Result<(u64, u64), MemoryError>> {
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
        Box::pin(std::future::ready(Ok((before, after))))
    }
}
