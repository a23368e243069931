//! Storing entries, retention and compaction on Qdrant.

use std::collections::{BTreeMap, BTreeSet};

use clawk_core::ports::{MemoryError, UnembeddedEntry};
use clawk_core::time::Timestamp;
use clawk_manifest::model::{CompactionStrategy, Store, StoreType};
use clawk_recall::compact::{self, CompactionSummary, has_unique_keys, model_of};
use clawk_recall::entry::{EntryHit, EntryInsertion, check_free_size};
use clawk_recall::table;
use serde_json::{Value, json};

use super::row::{ASIDE, LIVE, PointPayload, match_condition, owner_name};
use super::server::MAX_REQUEST_BYTES;
use super::{QdrantCollection, QdrantStoreState, live_conditions};

/// How entries of a store are written.
#[derive(Clone, Copy)]
struct QdrantWriteMode {
    /// Whether a new entry replaces the old one with the same key.
    replaces: bool,
    /// Whether entries get a vector of the built-in table.
    embeds: bool,
}

impl QdrantWriteMode {
    fn for_store(store: &Store) -> Self {
        Self {
            replaces: has_unique_keys(store.kind),
            embeds: model_of(store).as_deref() == Some(table::NAME),
        }
    }
}

fn row_of(scope: &str, n: i64, at: Timestamp, bytes: usize, new: EntryInsertion) -> PointPayload {
    let EntryInsertion { id, entry, mark } = new;
    PointPayload {
        id,
        scope: scope.to_owned(),
        n,
        at: at.0,
        key: entry.key,
        whose: owner_name(&mark.whose),
        state: LIVE.to_owned(),
        instead: String::new(),
        bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
        content: entry.content.to_string(),
        metadata: entry.metadata.map(|metadata| metadata.to_string()),
        mark,
        vectors: Vec::new(),
    }
}

impl QdrantStoreState {
    /// The number of the next entry. It is greater than every number that this process wrote, and follows time across processes.
    fn next(&mut self, at: Timestamp) -> i64 {
        self.last = self.last.saturating_add(1).max(at.0);
        self.last
    }
}

fn any_condition(field: &str, of: &[String]) -> Value {
    json!({"key": field, "match": {"any": of}})
}

impl QdrantCollection<'_> {
    async fn ensure_created(self, known: &mut QdrantStoreState) -> Result<(), MemoryError> {
        if !known.made.contains(self.name) {
            self.server.make_entries(self.name).await?;
            known.made.insert(self.name.to_owned());
        }
        Ok(())
    }

    pub(super) async fn insert_entries(
        self,
        known: &mut QdrantStoreState,
        store: &Store,
        scope: &str,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
    ) -> Result<Vec<String>, MemoryError> {
        let ids: Vec<String> = entries.iter().map(|new| new.id.clone()).collect();
        let mut sizes = Vec::with_capacity(entries.len());
        for (index, new) in entries.iter().enumerate() {
            sizes.push(
                new.checked_size(store)
                    .map_err(|reason| MemoryError::Entry { index, reason })?,
            );
        }
        self.ensure_created(known).await?;
        let there = self
            .all_points(vec![match_condition("scope", scope), any_condition("id", &ids)])
            .await?;
        let there: BTreeSet<String> = there
            .into_iter()
            .filter_map(|point| point.payload.map(|row| row.id))
            .collect();
        let (way, mut points, mut more) = (QdrantWriteMode::for_store(store), BTreeMap::new(), 0_u64);
        for (bytes, new) in sizes.into_iter().zip(entries) {
            if there.contains(&new.id) {
                continue;
            }
            let row = row_of(scope, known.next(at), at, bytes, new);
            more += row.bytes;
            // If a batch has a key twice, the last entry counts, as with two batches.
            points.insert(
                row.at_point(way.replaces),
                row.to_point(way.replaces, way.embeds)?,
            );
        }
        if points.is_empty() {
            return Ok(ids);
        }
        if store.max_size_mb.is_some() {
            let sizes = self.count_by_value("bytes").await?;
            let held = sizes
                .iter()
                .map(|(bytes, count)| bytes.as_u64().unwrap_or(0) * count);
            check_free_size(store, held.sum(), more)
                .map_err(|reason| MemoryError::Entry { index: 0, reason })?;
        }
        let points = Value::Array(points.into_values().collect());
        let bytes = points.to_string().len();
        if bytes > MAX_REQUEST_BYTES {
            let reason = format!(
                "the entries are {bytes} bytes for the server, at most {MAX_REQUEST_BYTES} at once; store fewer"
            );
            return Err(MemoryError::Entry { index: 0, reason });
        }
        self.server.upsert_points(self.name, &points).await?;
        self.apply_retention(known, store, scope, at).await?;
        Ok(ids)
    }

    /// Permanently deletes the entries that match.
    async fn purge_entries(self, conditions: Vec<Value>) -> Result<(), MemoryError> {
        let points = self.all_points(conditions).await?;
        let points: Vec<String> = points.into_iter().map(|point| point.id).collect();
        self.delete_entries(&points).await
    }

    /// Applies retention by age, number and snapshots. If compaction is due, it runs first.
    pub(super) async fn apply_retention(
        self,
        known: &mut QdrantStoreState,
        store: &Store,
        scope: &str,
        at: Timestamp,
    ) -> Result<u64, MemoryError> {
        let snapshots = store.checkpoint.clone().unwrap_or_default();
        let is_checkpoint = store.kind == StoreType::Checkpoint;
        let ages: Vec<_> = [store.retention.max_age, snapshots.ttl.filter(|_| is_checkpoint)]
            .into_iter()
            .flatten()
            .collect();
        let max_snapshots = snapshots.max_snapshots.filter(|_| is_checkpoint);
        let max = store.retention.max_entries;
        if ages.is_empty() && max_snapshots.is_none() && max.is_none() {
            return Ok(0);
        }
        let before = self.count_entries(live_conditions(scope)).await?;
        for age in ages {
            let ms = i64::try_from(age.as_secs())
                .unwrap_or(i64::MAX)
                .saturating_mul(1000);
            let oldest = at.plus_millis(ms.saturating_neg()).0;
            let old = json!({"key": "at", "range": {"lt": oldest}});
            self.purge_entries(vec![match_condition("scope", scope), old])
                .await?;
        }
        if let Some(max) = max_snapshots {
            let mut of: BTreeMap<Option<String>, Vec<(i64, String)>> = BTreeMap::new();
            for point in self.all_points(live_conditions(scope)).await? {
                if let Some(row) = point.payload {
                    of.entry(row.key).or_default().push((row.n, point.id));
                }
            }
            let mut gone = Vec::new();
            for mut snapshots in of.into_values() {
                snapshots.sort_by(|a, b| b.cmp(a));
                let stay = usize::try_from(max).unwrap_or(usize::MAX);
                gone.extend(snapshots.into_iter().skip(stay).map(|(_, point)| point));
            }
            self.delete_entries(&gone).await?;
        }
        let mut left = self.count_entries(live_conditions(scope)).await?;
        if compact::is_due(store, left) {
            self.compact_entries(known, store, scope, at, None).await?;
            left = self.count_entries(live_conditions(scope)).await?;
        }
        if let Some(max) = max
            && left > max
        {
            let excess = usize::try_from(left - max).unwrap_or(usize::MAX);
            let oldest = self
                .ordered_entries(live_conditions(scope), ("at", false), excess)
                .await?;
            self.delete_entries(&points_of(store, &oldest)).await?;
            left = max;
        }
        Ok(before.saturating_sub(left))
    }

    /// The entries that compaction would set aside now, oldest first.
    pub(super) async fn entries_to_compact(
        self,
        store: &Store,
        scope: &str,
    ) -> Result<Vec<PointPayload>, MemoryError> {
        let goes = compact::compaction_count(store, self.count_entries(live_conditions(scope)).await?);
        let goes = usize::try_from(goes).unwrap_or(usize::MAX);
        self.ordered_entries(live_conditions(scope), ("at", false), goes)
            .await
    }

    pub(super) async fn compact_entries(
        self,
        known: &mut QdrantStoreState,
        store: &Store,
        scope: &str,
        at: Timestamp,
        written: Option<&CompactionSummary>,
    ) -> Result<(), MemoryError> {
        let old = self.entries_to_compact(store, scope).await?;
        let Some(last) = old.last() else { return Ok(()) };
        let points = points_of(store, &old);
        if compact::compaction_strategy(store) != Some(CompactionStrategy::Summarize) {
            return self.set_aside(&points, "").await;
        }
        let hits: Vec<EntryHit> = old.iter().map(PointPayload::entry_hit).collect();
        let mut new = compact::summary_entry(&hits, written, &at.to_string());
        while !self
            .all_points(vec![
                match_condition("scope", scope),
                match_condition("id", &new.id),
            ])
            .await?
            .is_empty()
        {
            new.id.push('+');
        }
        let instead = new.id.clone();
        let bytes = new.entry.content.to_string().len();
        let way = QdrantWriteMode::for_store(store);
        let row = row_of(scope, known.next(at), Timestamp(last.at), bytes, new);
        let point = row.to_point(way.replaces, way.embeds)?;
        self.ensure_created(known).await?;
        // Write the summary first: a stop between the two steps then loses nothing.
        self.server.upsert_points(self.name, &json!([point])).await?;
        self.set_aside(&points, &instead).await
    }

    /// Sets entries aside and deletes their vectors. A restored entry is embedded again from the cache of paid embeddings.
    async fn set_aside(self, points: &[String], instead: &str) -> Result<(), MemoryError> {
        if points.is_empty() {
            return Ok(());
        }
        let nothing: [String; 0] = [];
        self.set_payload(
            points,
            json!({"state": ASIDE, "instead": instead, "vectors": nothing}),
        )
        .await?;
        self.drop_vectors(points).await
    }

    /// Sets aside entries that a later entry repeats.
    pub(super) async fn merge_duplicates(
        self,
        known: &mut QdrantStoreState,
        store: &Store,
        scope: &str,
    ) -> Result<(), MemoryError> {
        if !compact::merges_duplicates(store) {
            return Ok(());
        }
        let newest = self
            .ordered_entries(live_conditions(scope), ("n", true), 1)
            .await?;
        let now = (
            self.count_entries(live_conditions(scope)).await?,
            newest.first().map_or(0, |row| row.n),
        );
        if known.merged.get(scope) == Some(&now) {
            return Ok(());
        }
        let points = self.all_points(live_conditions(scope)).await?;
        let mut rows: Vec<PointPayload> = points.into_iter().filter_map(|point| point.payload).collect();
        rows.sort_by_key(|row| (row.at, row.n));
        let hits: Vec<EntryHit> = rows.iter().map(PointPayload::entry_hit).collect();
        let again = compact::said_again(hits.iter().enumerate());
        let again: Vec<PointPayload> = again
            .into_iter()
            .filter_map(|index| rows.get(index).cloned())
            .collect();
        self.set_aside(&points_of(store, &again), "").await?;
        known.merged.insert(scope.to_owned(), now);
        Ok(())
    }

    pub(super) async fn unembedded_entries(
        self,
        store: &Store,
        model: &str,
        limit: usize,
    ) -> Result<Vec<UnembeddedEntry>, MemoryError> {
        let body = json!({
            "filter": {"must": [match_condition("state", LIVE)], "must_not": [match_condition("vectors", model)]},
            "order_by": {"key": "n", "direction": "desc"},
            "limit": limit,
            "with_payload": true,
        });
        let found: Option<super::PointPage> = self.post_request(&["points", "scroll"], &body).await?;
        let rows = found.into_iter().flat_map(|found| found.points);
        let rows = rows.filter_map(|point| point.payload);
        let way = QdrantWriteMode::for_store(store);
        Ok(rows
            .map(|row| UnembeddedEntry {
                handle: row.at_point(way.replaces),
                text: row.text(),
            })
            .collect())
    }

    /// Stores vectors of entries that still exist, and then records this at the entries.
    pub(super) async fn add_vectors(
        self,
        known: &mut QdrantStoreState,
        model: &str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> Result<(), MemoryError> {
        let Some((_, first)) = vectors.first() else {
            return Ok(());
        };
        let (name, size) = (self.of_model(model), first.len());
        if !known.made.contains(&name) {
            self.server.make_vectors(&name, size).await?;
            known.made.insert(name.clone());
        }
        for page in vectors.chunks(PAGE_OF_VECTORS) {
            let ids: Vec<&String> = page.iter().map(|(point, _)| point).collect();
            let here = self
                .all_points(vec![json!({"has_id": ids}), match_condition("state", LIVE)])
                .await?;
            let mut rows: BTreeMap<String, PointPayload> = here
                .into_iter()
                .filter_map(|point| Some((point.id, point.payload?)))
                .collect();
            rows.retain(|_, row| !row.vectors.iter().any(|known| known == model));
            let points: Vec<Value> = page
                .iter()
                .filter_map(|(point, values)| {
                    let PointPayload { scope, whose, .. } = rows.get(point)?;
                    Some(json!({"id": point, "vector": values, "payload": {"scope": scope, "whose": whose}}))
                })
                .collect();
            if points.is_empty() {
                continue;
            }
            self.server.upsert_points(&name, &Value::Array(points)).await?;
            // Most entries have no vectors of other models. They are updated in one request.
            let mut alike: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
            for (point, row) in rows {
                let mut models = row.vectors;
                models.push(model.to_owned());
                alike.entry(models).or_default().push(point);
            }
            for (models, points) in alike {
                self.set_payload(&points, json!({"vectors": models})).await?;
            }
        }
        Ok(())
    }
}

/// How many vectors go into one request. With 16,384 dimensions each, the request stays below the server's limit.
const PAGE_OF_VECTORS: usize = 128;

/// The point ids of these entries.
pub(super) fn points_of(store: &Store, rows: &[PointPayload]) -> Vec<String> {
    let replaces = has_unique_keys(store.kind);
    rows.iter().map(|row| row.at_point(replaces)).collect()
}
