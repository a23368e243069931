//! Memory stores on a Qdrant server (CKP §5.6, R21), over its HTTP API.
//!
//! A store is a collection of entries; the vectors of each embedding model are a collection beside it, whose points have the same ids.
//! Qdrant knows no transactions: what must happen together is one operation of the server, or comes in an order in which a stop between
//! two of them shows an entry twice rather than never, and the same request again ends it.

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

use row::{LIVE, PointPayload, is, scope_name};
pub use server::Options;
use server::QdrantServer;

/// Points that one request names or brings, at most.
const PAGE: usize = 1000;

/// `backend: qdrant`.
#[must_use]
pub fn is_on_qdrant(store: &Store) -> bool {
    store.backend == Some(StoreBackend::Qdrant)
}

/// Memory stores of one agent on a Qdrant server.
#[derive(Debug)]
pub struct QdrantMemory {
    server: QdrantServer,
    /// How this agent's collections begin.
    prefix: String,
    /// By collection. Whoever changes a store holds its own, so that in this process nothing comes between a look and a change.
    open: Mutex<BTreeMap<String, Arc<Mutex<QdrantStoreState>>>>,
}

/// What this process knows of a store.
#[derive(Debug, Default)]
struct QdrantStoreState {
    /// Collections that are there with their indexes.
    made: BTreeSet<String>,
    /// The number of the newest entry.
    last: i64,
    /// By scope: how many entries there were, and the newest one's number, when they were last compared with each other.
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

/// A name as a part of a collection's: letters, digits, `-` and `_` stay, everything else is written as its bytes, so that two names
/// never meet.
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
    /// The stores of the agent with this name. The server is connected to at the first question.
    ///
    /// # Errors
    /// The address is none, or an API key would cross the network readable.
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

    async fn known(&self, name: &str) -> Arc<Mutex<QdrantStoreState>> {
        Arc::clone(self.open.lock().await.entry(name.to_owned()).or_default())
    }

    /// Brings back what compaction set aside of a place: one entry or what a summary stands for, or everything. Returns how many
    /// entries came back.
    ///
    /// # Errors
    /// The server is away or refuses.
    pub async fn restore(&self, store: &Store, place: &Scope, id: Option<&str>) -> Result<u64, MemoryError> {
        let name = self.name(store);
        let known = self.known(&name).await;
        let _held = known.lock().await;
        let scope = scope_name(&place.part(store));
        self.at(&name).restore(&scope, id).await
    }

    const fn at<'a>(&'a self, name: &'a str) -> QdrantCollection<'a> {
        QdrantCollection {
            server: &self.server,
            name,
        }
    }
}

/// A filter of conditions that all hold.
fn all(conditions: impl IntoIterator<Item = Value>) -> Value {
    json!({"must": conditions.into_iter().collect::<Vec<_>>()})
}

/// Entries of a scope that count.
fn live(scope: &str) -> Vec<Value> {
    vec![is("scope", scope), is("state", LIVE)]
}

impl QdrantCollection<'_> {
    /// The collection of a model's vectors.
    fn of_model(self, model: &str) -> String {
        let hex = digest_of(model.as_bytes()).to_hex();
        format!("{}.{}", self.name, hex.get(..16).unwrap_or(&hex))
    }

    async fn post<T: DeserializeOwned>(self, path: &[&str], body: &Value) -> Result<Option<T>, MemoryError> {
        self.server.post(self.name, path, body).await
    }

    async fn count(self, conditions: Vec<Value>) -> Result<u64, MemoryError> {
        #[derive(Deserialize)]
        struct PointCount {
            count: u64,
        }
        let body = json!({"filter": all(conditions), "exact": true});
        let count: Option<PointCount> = self.post(&["points", "count"], &body).await?;
        Ok(count.map_or(0, |count| count.count))
    }

    /// How many entries of each value of a field count: of every scope, or of the sizes.
    async fn counted(self, field: &str) -> Result<Vec<(Value, u64)>, MemoryError> {
        self.counted_of(LIVE, field).await
    }

    /// The same of entries in this state.
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
        let body =
            json!({"key": field, "filter": all([is("state", state)]), "limit": 1_000_000, "exact": true});
        let counted: Option<FacetHits> = self.post(&["facet"], &body).await?;
        let hits = counted.into_iter().flat_map(|counted| counted.hits);
        Ok(hits.map(|one| (one.value, one.count)).collect())
    }

    /// The first entries by a number field; of those that are equal in it, by their own order. More than [`PAGE`] equal ones at the end
    /// may be any of them.
    async fn ordered(
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
            "filter": all(conditions),
            "order_by": {"key": field, "direction": direction},
            "limit": limit.saturating_add(PAGE),
            "with_payload": true,
        });
        let found: Option<PointPage> = self.post(&["points", "scroll"], &body).await?;
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

    /// All points that fulfil this, in no order.
    async fn every(self, conditions: Vec<Value>) -> Result<Vec<QdrantPoint>, MemoryError> {
        let filter = all(conditions);
        let (mut points, mut offset) = (Vec::new(), None);
        loop {
            let mut body = json!({"filter": filter, "limit": PAGE, "with_payload": true});
            if let (Some(members), Some(offset)) = (body.as_object_mut(), offset.take()) {
                members.insert("offset".to_owned(), offset);
            }
            let found: Option<PointPage> = self.post(&["points", "scroll"], &body).await?;
            let Some(found) = found else { return Ok(points) };
            points.extend(found.points);
            match found.next_page_offset {
                Some(next) if !next.is_null() => offset = Some(next),
                _ => return Ok(points),
            }
        }
    }

    /// The names of the collections of vectors beside this one.
    async fn vector_collections(self) -> Result<Vec<String>, MemoryError> {
        self.server.beginning(&format!("{}.", self.name)).await
    }

    /// Takes vectors away, wherever they are.
    async fn drop_vectors(self, points: &[String]) -> Result<(), MemoryError> {
        for name in self.vector_collections().await? {
            for page in points.chunks(PAGE) {
                let body = json!({"points": page});
                self.server.change(&name, &["points", "delete"], &body).await?;
            }
        }
        Ok(())
    }

    /// Takes entries away for good; their vectors first, so that none outlives its entry.
    async fn delete(self, points: &[String]) -> Result<(), MemoryError> {
        if points.is_empty() {
            return Ok(());
        }
        self.drop_vectors(points).await?;
        for page in points.chunks(PAGE) {
            let body = json!({"points": page});
            self.server
                .change(self.name, &["points", "delete"], &body)
                .await?;
        }
        Ok(())
    }

    async fn set(self, points: &[String], payload: Value) -> Result<(), MemoryError> {
        for page in points.chunks(PAGE) {
            let body = json!({"payload": payload, "points": page});
            self.server
                .change(self.name, &["points", "payload"], &body)
                .await?;
        }
        Ok(())
    }
}

impl Memory for QdrantMemory {
    fn check(&self, store: &Store) -> Result<(), MemoryError> {
        if store.encryption {
            return Err(MemoryError::Backend(format!(
                "store `{}`: Qdrant searches what it keeps, so it keeps it readable; leave `encryption` out, or write `backend: sqlite`, \
                 `postgresql` or `filesystem`",
                store.name
            )));
        }
        Ok(())
    }

    fn ask<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            self.at(&name)
                .ask(store, &scope_name(&place.part(store)), &ask)
                .await
        })
    }

    fn keep<'a>(
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
            let known = self.known(&name).await;
            let mut known = known.lock().await;
            let scope = scope_name(&place.part(store));
            self.at(&name).keep(&mut known, store, &scope, entries, at).await
        })
    }

    fn old<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            let rows = self.at(&name).old(store, &scope_name(&place.part(store))).await?;
            Ok(rows.iter().map(PointPayload::hit).collect())
        })
    }

    fn compact<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            let known = self.known(&name).await;
            let mut known = known.lock().await;
            let (scope, here) = (scope_name(&place.part(store)), self.at(&name));
            let before = here.count(live(&scope)).await?;
            if before == 0 {
                return Ok((0, 0));
            }
            here.retain(&mut known, store, &scope, at).await?;
            here.compact(&mut known, store, &scope, at, summary.as_ref())
                .await?;
            Ok((before, here.count(live(&scope)).await?))
        })
    }

    fn retain<'a>(&'a self, store: &'a Store, at: Timestamp) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            let known = self.known(&name).await;
            let mut known = known.lock().await;
            let here = self.at(&name);
            let mut gone = 0;
            for (scope, _) in here.counted("scope").await? {
                let Some(scope) = scope.as_str() else { continue };
                gone += here.retain(&mut known, store, scope, at).await?;
                here.merge(&mut known, store, scope).await?;
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
            let known = self.known(&name).await;
            let _held = known.lock().await;
            let scope = scope_name(&place.part(store));
            self.at(&name).remove(&scope, &whose, &id).await
        })
    }

    fn count<'a>(&'a self, store: &'a Store, place: &'a Scope) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            self.at(&name).count(live(&scope_name(&place.part(store)))).await
        })
    }

    fn lacking<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            self.at(&name).lacking(store, model, limit).await
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
            let known = self.known(&name).await;
            let mut known = known.lock().await;
            self.at(&name).add_vectors(&mut known, model, vectors).await
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
