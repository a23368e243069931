//! Memory stores on a Qdrant server (CKP §5.6, R21), over its HTTP API.
//!
//! A store is a collection of entries. The vectors of each embedding model are in another collection; their points have the same
//! ids. Qdrant has no transactions. So changes that belong together are one server operation, or are ordered so that a stop between
//! two steps shows an entry twice instead of losing it. Repeating the request completes the change.

mod change;
mod look;
mod row;
mod search;
mod server;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clawk_core::ports::{Batch, BoxFuture, Memory, MemoryError, MemorySearch, Scope, UnembeddedEntry};
use clawk_core::time::Timestamp;
use clawk_manifest::model::{Store, StoreBackend};
use clawk_recall::compact::CompactionSummary;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryInsertion, EntrySearchResult};
use clawk_secrets::EnvironmentSource;
use clawk_trace::chain::digest_of;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use row::{LIVE, PointPayload, match_condition, scope_name};
pub use server::Options;
use server::QdrantServer;

/// The maximum number of points in one request or answer.
const PAGE: usize = 1000;

/// Whether the store has `backend: qdrant`.
#[must_use]
pub fn is_on_qdrant(store: &Store) -> bool {
    store.backend == Some(StoreBackend::Qdrant)
}

/// Memory stores of one agent on a Qdrant server.
#[derive(Debug)]
pub struct QdrantMemory {
    server: QdrantServer,
    /// The prefix of this agent's collection names.
    prefix: String,
    /// State by collection. A writer locks its collection's state, so that no other task of this process changes the collection
    /// between a read and a write.
    open: Mutex<BTreeMap<String, Arc<Mutex<QdrantStoreState>>>>,
}

/// The state of one store that this process remembers.
#[derive(Debug, Default)]
struct QdrantStoreState {
    /// Collections that are known to exist, with their indexes.
    made: BTreeSet<String>,
    /// The number of the newest entry.
    last: i64,
    /// By scope: the number of entries and the newest entry's number at the last merge.
    merged: BTreeMap<String, (u64, i64)>,
}

/// One store's collection.
#[derive(Debug, Clone, Copy)]
struct QdrantCollection<'a> {
    server: &'a QdrantServer,
    name: &'a str,
}

#[derive(Debug, Deserialize)]
struct PointPage {
    points: Vec<QdrantPoint>,
    #[serde(default)]
    next_page_offset: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
struct QdrantPoint {
    id: String,
    #[serde(default)]
    score: f64,
    #[serde(default)]
    payload: Option<PointPayload>,
}

/// Encodes a name for a collection's name. Letters, digits, `-` and `_` stay; every other character is written as its bytes, so
/// that two names never collide.
fn part_of_name(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            text.push(char::from(byte));
        } else {
            text.push('~');
            text.push_str(&hex::encode([byte]));
        }
    }
    text
}

impl QdrantMemory {
    /// Creates the stores of the agent with this name. The connection is opened at the first request.
    ///
    /// # Errors
    /// The address is invalid, or an API key would be sent over an unencrypted connection.
    pub fn new(options: &Options, agent: &str, env: &EnvironmentSource) -> Result<Self, String> {
        Ok(Self {
            server: QdrantServer::new(options, env)?,
            prefix: format!("{}.{}.", part_of_name(&options.prefix), part_of_name(agent)),
            open: Mutex::default(),
        })
    }

    fn name(&self, store: &Store) -> String {
        format!("{}{}", self.prefix, part_of_name(&store.name))
    }

    async fn store_state(&self, name: &str) -> Arc<Mutex<QdrantStoreState>> {
        Arc::clone(self.open.lock().await.entry(name.to_owned()).or_default())
    }

    /// Restores entries of a scope that compaction set aside: one entry, the entries of one summary, or all. Returns how many
    /// entries were restored.
    ///
    /// # Errors
    /// The server is unreachable or refuses.
    pub async fn restore_entries(
        &self,
        store: &Store,
        place: &Scope,
        id: Option<&str>,
    ) -> Result<u64, MemoryError> {
        let name = self.name(store);
        let known = self.store_state(&name).await;
        let _held = known.lock().await;
        let scope = scope_name(&place.part_name(store));
        self.collection(&name).restore_entries(&scope, id).await
    }

    const fn collection<'a>(&'a self, name: &'a str) -> QdrantCollection<'a> {
        QdrantCollection {
            server: &self.server,
            name,
        }
    }
}

/// A filter that requires all conditions.
fn all_conditions(conditions: impl IntoIterator<Item = Value>) -> Value {
    json!({"must": conditions.into_iter().collect::<Vec<_>>()})
}

/// The conditions for live entries of a scope.
fn live_conditions(scope: &str) -> Vec<Value> {
    vec![match_condition("scope", scope), match_condition("state", LIVE)]
}

impl QdrantCollection<'_> {
    /// The name of the collection with this model's vectors.
    fn of_model(self, model: &str) -> String {
        let hex = digest_of(model.as_bytes()).to_hex();
        format!("{}.{}", self.name, hex.get(..16).unwrap_or(&hex))
    }

    async fn post_request<T: DeserializeOwned>(
        self,
        path: &[&str],
        body: &Value,
    ) -> Result<Option<T>, MemoryError> {
        self.server.post_request(self.name, path, body).await
    }

    async fn count_entries(self, conditions: Vec<Value>) -> Result<u64, MemoryError> {
        #[derive(Deserialize)]
        struct PointCount {
            count: u64,
        }
        let body = json!({"filter": all_conditions(conditions), "exact": true});
        let count: Option<PointCount> = self.post_request(&["points", "count"], &body).await?;
        Ok(count.map_or(0, |count| count.count))
    }

    /// Counts live entries by each value of a field, for example by scope or by size.
    async fn count_by_value(self, field: &str) -> Result<Vec<(Value, u64)>, MemoryError> {
        self.counted_of(LIVE, field).await
    }

    /// Counts entries in this state by each value of a field.
    async fn counted_of(self, state: &str, field: &str) -> Result<Vec<(Value, u64)>, MemoryError> {
        #[derive(Deserialize)]
        struct FacetHit {
            value: Value,
            count: u64,
        }
        #[derive(Deserialize)]
        struct FacetHits {
            hits: Vec<FacetHit>,
        }
        let body = json!({"key": field, "filter": all_conditions([match_condition("state", state)]), "limit": 1_000_000, "exact": true});
        let counted: Option<FacetHits> = self.post_request(&["facet"], &body).await?;
        let hits = counted.into_iter().flat_map(|counted| counted.hits);
        Ok(hits.map(|one| (one.value, one.count)).collect())
    }

    /// The first `limit` entries, ordered by a number field and then by entry number. If more than [`PAGE`] entries at the end have
    /// equal values, any of them may be returned.
    async fn ordered_entries(
        self,
        conditions: Vec<Value>,
        (field, newest_first): (&str, bool),
        limit: usize,
    ) -> Result<Vec<PointPayload>, MemoryError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let direction = if newest_first { "desc" } else { "asc" };
        let body = json!({
            "filter": all_conditions(conditions),
            "order_by": {"key": field, "direction": direction},
            "limit": limit.saturating_add(PAGE),
            "with_payload": true,
        });
        let found: Option<PointPage> = self.post_request(&["points", "scroll"], &body).await?;
        let mut rows: Vec<PointPayload> = found
            .into_iter()
            .flat_map(|found| found.points)
            .filter_map(|point| point.payload)
            .collect();
        let order = |row: &PointPayload| {
            if field == "at" {
                (row.at, row.n)
            } else {
                (row.n, row.at)
            }
        };
        rows.sort_by(|a, b| {
            let way = order(a).cmp(&order(b));
            if newest_first { way.reverse() } else { way }
        });
        rows.truncate(limit);
        Ok(rows)
    }

    /// All matching points, in no order.
    async fn all_points(self, conditions: Vec<Value>) -> Result<Vec<QdrantPoint>, MemoryError> {
        let filter = all_conditions(conditions);
        let (mut points, mut offset) = (Vec::new(), None);
        loop {
            let mut body = json!({"filter": filter, "limit": PAGE, "with_payload": true});
            if let (Some(members), Some(offset)) = (body.as_object_mut(), offset.take()) {
                members.insert("offset".to_owned(), offset);
            }
            let found: Option<PointPage> = self.post_request(&["points", "scroll"], &body).await?;
            let Some(found) = found else { return Ok(points) };
            points.extend(found.points);
            match found.next_page_offset {
                Some(next) if !next.is_null() => offset = Some(next),
                _ => return Ok(points),
            }
        }
    }

    /// The names of the vector collections that belong to this store.
    async fn vector_collections(self) -> Result<Vec<String>, MemoryError> {
        self.server
            .collections_with_prefix(&format!("{}.", self.name))
            .await
    }

    /// Deletes the vectors of these points from all vector collections.
    async fn drop_vectors(self, points: &[String]) -> Result<(), MemoryError> {
        for name in self.vector_collections().await? {
            for page in points.chunks(PAGE) {
                let body = json!({"points": page});
                self.server
                    .send_change(&name, &["points", "delete"], &body)
                    .await?;
            }
        }
        Ok(())
    }

    /// Permanently deletes entries. Deletes their vectors first, so that no vector remains without its entry.
    async fn delete_entries(self, points: &[String]) -> Result<(), MemoryError> {
        if points.is_empty() {
            return Ok(());
        }
        self.drop_vectors(points).await?;
        for page in points.chunks(PAGE) {
            let body = json!({"points": page});
            self.server
                .send_change(self.name, &["points", "delete"], &body)
                .await?;
        }
        Ok(())
    }

    async fn set_payload(self, points: &[String], payload: Value) -> Result<(), MemoryError> {
        for page in points.chunks(PAGE) {
            let body = json!({"payload": payload, "points": page});
            self.server
                .send_change(self.name, &["points", "payload"], &body)
                .await?;
        }
        Ok(())
    }
}

impl Memory for QdrantMemory {
    fn check_store(&self, store: &Store) -> Result<(), MemoryError> {
        if store.encryption {
            return Err(MemoryError::Backend(format!(
                "store `{}`: Qdrant searches what it keeps, so it keeps it readable; leave `encryption` out, or write `backend: sqlite`, \
                 `postgresql` or `filesystem`",
                store.name
            )));
        }
        Ok(())
    }

    fn search_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            self.collection(&name)
                .search_entries(store, &scope_name(&place.part_name(store)), &ask)
                .await
        })
    }

    fn store_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
        record: Batch,
    ) -> BoxFuture<'a, Result<Vec<String>, MemoryError>> {
        Box::pin(async move {
            if !record.entries.is_empty() {
                return Err(MemoryError::Backend("Qdrant keeps no journal".to_owned()));
            }
            let name = self.name(store);
            let known = self.store_state(&name).await;
            let mut known = known.lock().await;
            let scope = scope_name(&place.part_name(store));
            self.collection(&name)
                .insert_entries(&mut known, store, &scope, entries, at)
                .await
        })
    }

    fn compaction_candidates<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            let rows = self
                .collection(&name)
                .entries_to_compact(store, &scope_name(&place.part_name(store)))
                .await?;
            Ok(rows.iter().map(PointPayload::entry_hit).collect())
        })
    }

    fn compact_store<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            let known = self.store_state(&name).await;
            let mut known = known.lock().await;
            let (scope, here) = (scope_name(&place.part_name(store)), self.collection(&name));
            let before = here.count_entries(live_conditions(&scope)).await?;
            if before == 0 {
                return Ok((0, 0));
            }
            here.apply_retention(&mut known, store, &scope, at).await?;
            here.compact_entries(&mut known, store, &scope, at, summary.as_ref())
                .await?;
            Ok((before, here.count_entries(live_conditions(&scope)).await?))
        })
    }

    fn apply_retention<'a>(
        &'a self,
        store: &'a Store,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            let known = self.store_state(&name).await;
            let mut known = known.lock().await;
            let here = self.collection(&name);
            let mut gone = 0;
            for (scope, _) in here.count_by_value("scope").await? {
                let Some(scope) = scope.as_str() else { continue };
                gone += here.apply_retention(&mut known, store, scope, at).await?;
                here.merge_duplicates(&mut known, store, scope).await?;
            }
            Ok(gone)
        })
    }

    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            let known = self.store_state(&name).await;
            let _held = known.lock().await;
            let scope = scope_name(&place.part_name(store));
            self.collection(&name).remove(&scope, &whose, &id).await
        })
    }

    fn count_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            self.collection(&name)
                .count_entries(live_conditions(&scope_name(&place.part_name(store))))
                .await
        })
    }

    fn unembedded_entries<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            self.collection(&name)
                .unembedded_entries(store, model, limit)
                .await
        })
    }

    fn add_vectors<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            let known = self.store_state(&name).await;
            let mut known = known.lock().await;
            self.collection(&name)
                .add_vectors(&mut known, model, vectors)
                .await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_never_meet_and_none_has_a_forbidden_character() {
        let names = ["a", "a.b", "a/b", "a~2eb", "ä", "a b", "a:b", ""];
        let made: BTreeSet<String> = names.iter().map(|name| part_of_name(name)).collect();
        assert_eq!(made.len(), names.len(), "{made:?}");
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '~');
        assert!(made.iter().all(|name| name.chars().all(fine)), "{made:?}");
    }

    #[test]
    fn an_api_key_never_crosses_the_network_readable() {
        let with = |url: &str| {
            let options = Options {
                url: url.to_owned(),
                api_key: Some(clawk_secrets::Secret::new("key", "s3cret")),
                prefix: "clawk".to_owned(),
                connect_timeout: std::time::Duration::from_secs(1),
                operation_timeout: std::time::Duration::from_secs(1),
            };
            QdrantMemory::new(&options, "a", &EnvironmentSource::Fixed(BTreeMap::new())).map(drop)
        };
        for url in [
            "http://127.0.0.1:6333",
            "http://localhost:6333/",
            "http://[::1]:6333",
        ] {
            with(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        }
        for (url, word) in [
            ("http://db.example.com:6333", "https"),
            ("http://127.0.0.1.example.com", "https"),
            ("http://user:pw@localhost", "password"),
            ("file:///etc/passwd", "http"),
            ("not a url", "url"),
        ] {
            let refused = with(url).err().unwrap_or_default();
            assert!(
                refused.contains(word) && !refused.contains("s3cret"),
                "{url}: {refused}"
            );
        }
    }
}
