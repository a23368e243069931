//! Memory stores on an MCP server (`backend: custom`, CKP §5.6). The server offers the tools `store`, `query` and `forget`.
//!
//! The server is a third party's and is not trusted. Each entry is stored together with its provenance and conversation as an
//! encrypted mark. Only this state's key opens the mark, and only for this entry and content. If an entry comes back without its
//! mark, or changed, it is untrusted and belongs to no conversation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use clawk_core::ports::{
    Batch, BoxFuture, Memory, MemoryError, MemoryInspector, MemorySearch, Page, Scope, StoreQuery,
    UnembeddedEntry,
};
use clawk_core::time::Timestamp;
use clawk_manifest::model::{Retention, Store, StoreBackend, StoreType};
use clawk_proto::method::MemoryEntry;
use clawk_recall::compact::{self, CompactionSummary, has_unique_keys};
use clawk_recall::entry::{
    ConversationFilter, EntryHit, EntryInsertion, EntryProvenance, EntrySearchResult, SearchMethod,
};
use clawk_recall::seal::SealKeyring;
use clawk_trace::chain::digest_of;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// How many entries of one scope an operator can list. The three tools have no paging.
const MAX_LISTED: usize = 10_000;

/// A time range that covers every entry.
const EVER: (&str, &str) = ("1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z");

/// The origin of an entry without a valid mark.
const UNKNOWN: &str = "memory";

/// Whether the store has `backend: custom`.
#[must_use]
pub fn is_custom(store: &Store) -> bool {
    store.backend == Some(StoreBackend::Custom)
}

/// An MCP server that holds a store.
pub trait CustomStoreServer: Send + Sync + fmt::Debug {
    /// Calls one of the server's tools. Returns its result, or the reason for the failure.
    fn call<'a>(
        &'a self,
        tool: &'static str,
        arguments: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Value, String>>;
}

/// The memory stores of an agent that are on MCP servers.
#[derive(Debug)]
pub struct CustomMemory {
    /// By store name: the server, or the reason why there is none.
    keepers: BTreeMap<String, Result<Arc<dyn CustomStoreServer>, String>>,
    vault: SealKeyring,
}

/// An entry as the server returns it.
#[derive(Debug, Deserialize)]
struct CustomStoreEntry {
    id: String,
    content: Value,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    metadata: Option<Value>,
    #[serde(default)]
    timestamp: Option<String>,
    #[serde(default)]
    score: Option<f64>,
    /// The sealed mark that was stored with the entry.
    #[serde(default)]
    mark: Option<String>,
}

#[derive(Debug, Deserialize)]
struct CustomStoreResponse {
    entries: Vec<CustomStoreEntry>,
    #[serde(default)]
    used: Option<SearchMethod>,
    #[serde(default)]
    total: Option<u64>,
}

/// The place that a mark is bound to: this store, scope, entry and content.
fn place_of((store, part): (&str, &str), id: &str, key: Option<&str>, content: &Value) -> String {
    let whole = json!([store, part, id, key, content]).to_string();
    format!("custom/{}", digest_of(whole.as_bytes()).to_hex())
}

impl CustomMemory {
    /// Creates the stores. `vault` seals the entries' marks.
    #[must_use]
    pub const fn new(
        keepers: BTreeMap<String, Result<Arc<dyn CustomStoreServer>, String>>,
        vault: SealKeyring,
    ) -> Self {
        Self { keepers, vault }
    }

    fn store_server(&self, store: &Store) -> Result<&dyn CustomStoreServer, MemoryError> {
        match self.keepers.get(&store.name) {
            Some(Ok(keeper)) => Ok(&**keeper),
            Some(Err(why)) => Err(store_error(store, why)),
            None => Err(store_error(
                store,
                &format!(
                    "`backend: custom` is an MCP server that offers `store`, `query` and `forget`: name it by `[memory.{}] server = \
                     \"stdio:///…\"` in `clawk.toml`",
                    store.name
                ),
            )),
        }
    }

    async fn call(
        &self,
        store: &Store,
        tool: &'static str,
        arguments: Map<String, Value>,
    ) -> Result<Value, MemoryError> {
        let answer = self.store_server(store)?.call(tool, arguments).await;
        answer.map_err(|why| store_error(store, &why))
    }

    async fn query_server(
        &self,
        store: &Store,
        place: &Scope,
        what: Vec<(&str, Value)>,
    ) -> Result<CustomStoreResponse, MemoryError> {
        self.query_part(store, &place.part_name(store), what).await
    }

    async fn query_part(
        &self,
        store: &Store,
        part: &str,
        what: Vec<(&str, Value)>,
    ) -> Result<CustomStoreResponse, MemoryError> {
        let here = [("store", json!(store.name)), ("scope", json!(part))];
        let arguments = here.into_iter().chain(what);
        let arguments = arguments.map(|(name, value)| (name.to_owned(), value)).collect();
        let answer = self.call(store, "query", arguments).await?;
        serde_json::from_value(answer).map_err(|error| {
            store_error(
                store,
                &format!("its server's `query` answered something else: {error}"),
            )
        })
    }

    /// Converts a returned entry. Its provenance is taken from the mark if the mark is valid.
    fn entry_hit(&self, store: &Store, part: &str, given: CustomStoreEntry) -> EntryHit {
        let CustomStoreEntry {
            id,
            content,
            key,
            metadata,
            timestamp,
            score,
            mark,
        } = given;
        let place = place_of((&store.name, part), &id, key.as_deref(), &content);
        let opened = mark.and_then(|mark| self.vault.open_text(&place, &mark).ok().flatten()); // silent-ok: it counts as untrusted
        let mark = opened.and_then(|text| serde_json::from_str(&text).ok()); // silent-ok: the same
        EntryHit {
            entry: MemoryEntry {
                id,
                content,
                score,
                timestamp: timestamp.filter(|text| Timestamp::parse(text).is_ok()),
                key,
                metadata,
            },
            mark: mark.unwrap_or_else(unknown_provenance),
        }
    }

    /// The returned entries that `whose` admits, at most `limit`.
    fn matching_hits(
        &self,
        (store, part): (&Store, &str),
        answer: Vec<CustomStoreEntry>,
        whose: &ConversationFilter,
        limit: usize,
    ) -> Vec<EntryHit> {
        let hits = answer.into_iter().map(|given| self.entry_hit(store, part, given));
        let counts = |hit: &EntryHit| match whose {
            ConversationFilter::All => true,
            // An entry without a valid mark may belong to another conversation.
            ConversationFilter::Of(_) => hit.mark.origin != UNKNOWN && whose.includes_owner(&hit.mark.whose),
        };
        hits.filter(counts).take(limit).collect()
    }
}

fn unknown_provenance() -> EntryProvenance {
    EntryProvenance {
        origin: UNKNOWN.to_owned(),
        untrusted: true,
        ..EntryProvenance::default()
    }
}

fn store_error(store: &Store, why: &str) -> MemoryError {
    MemoryError::Backend(format!("store `{}`: {why}", store.name))
}

fn json_object<const N: usize>(members: [(&str, Value); N]) -> Map<String, Value> {
    members
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

/// The conversations that the server should search; `None`: all.
fn owner_names(whose: &ConversationFilter) -> Option<Vec<&str>> {
    match whose {
        ConversationFilter::All => None,
        ConversationFilter::Of(known) => {
            let everybodys = std::iter::once("");
            Some(everybodys.chain(known.iter().map(String::as_str)).collect())
        }
    }
}

impl MemoryInspector for CustomMemory {
    /// The three tools can't list scopes. So the scopes that the manifest names are queried one by one.
    fn list_parts<'a>(
        &'a self,
        store: &'a Store,
        known: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, MemoryError>> {
        Box::pin(async move {
            let mut parts = Vec::new();
            for part in known {
                let nothing = vec![("text", json!("")), ("limit", json!(0))];
                let answer = self.query_part(store, part, nothing).await?;
                let total = match answer.total {
                    Some(total) => total,
                    // The server does not have to return a total.
                    None => {
                        let all = self.list_entries(store, part, WHOLE).await?;
                        u64::try_from(all.len()).unwrap_or(u64::MAX)
                    }
                };
                parts.push((part.clone(), total));
            }
            Ok(parts)
        })
    }

    fn list_entries<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        page: Page,
    ) -> BoxFuture<'a, Result<Vec<(i64, EntryHit)>, MemoryError>> {
        Box::pin(async move {
            if page.aside || page.limit == 0 {
                return Ok(Vec::new());
            }
            let (from, to) = EVER;
            let all = vec![
                ("since", json!(from)),
                ("until", json!(to)),
                ("limit", json!(MAX_LISTED + 1)),
            ];
            let answer = self.query_part(store, part, all).await?;
            let mut hits = self.matching_hits(
                (store, part),
                answer.entries,
                &ConversationFilter::All,
                MAX_LISTED + 1,
            );
            if hits.len() > MAX_LISTED {
                let why = format!(
                    "it holds more than {MAX_LISTED} entries, and its server lists no pages; search it instead"
                );
                return Err(store_error(store, &why));
            }
            hits.sort_by(|a, b| a.entry.timestamp.cmp(&b.entry.timestamp));
            let before = page.before.unwrap_or(i64::MAX);
            let numbered = (1..).zip(hits).filter(|(n, _)| *n < before);
            let mut numbered: Vec<(i64, EntryHit)> = numbered.collect();
            numbered.reverse();
            numbered.truncate(page.limit);
            Ok(numbered)
        })
    }

    fn find_entries<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        Box::pin(async move {
            let mut hits: Vec<EntryHit> = Vec::new();
            for by in ["id", "key"] {
                let one = vec![(by, json!(name)), ("limit", json!(MAX_LISTED))];
                let answer = self.query_part(store, part, one).await?;
                // Ignore entries that were not asked for: the server is not trusted.
                let is_meant = |given: &CustomStoreEntry| {
                    (if by == "id" {
                        Some(&given.id)
                    } else {
                        given.key.as_ref()
                    })
                    .is_some_and(|is| is == name)
                };
                let meant = answer.entries.into_iter().filter(is_meant).collect();
                for hit in self.matching_hits((store, part), meant, &ConversationFilter::All, MAX_LISTED) {
                    if !hits.iter().any(|known| known.entry.id == hit.entry.id) {
                        hits.push(hit);
                    }
                }
            }
            Ok(hits)
        })
    }

    fn bring_back<'a>(
        &'a self,
        store: &'a Store,
        _part: &'a str,
        _id: Option<&'a str>,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        let why = "its server sets nothing aside, so there is nothing to restore";
        Box::pin(std::future::ready(Err(store_error(store, why))))
    }
}

/// A page that covers all entries.
const WHOLE: Page = Page {
    aside: false,
    before: None,
    limit: MAX_LISTED,
};

impl Memory for CustomMemory {
    fn check_store(&self, store: &Store) -> Result<(), MemoryError> {
        let refuse = |what: &str| {
            let why = format!(
                "{what}: an MCP server with `store`, `query` and `forget` can't be told so; leave it out, or write `backend: sqlite`"
            );
            Err(store_error(store, &why))
        };
        if matches!(store.kind, StoreType::Checkpoint | StoreType::Workspace) {
            return refuse(&format!("`type: {}`", store.kind.as_str()));
        }
        if store.encryption {
            return refuse("`encryption`");
        }
        if store.retention != Retention::default() {
            return refuse("`retention`");
        }
        if store.max_size_mb.is_some() {
            return refuse("`max_size_mb`");
        }
        if store.embedding.is_some() {
            return refuse("`embedding`");
        }
        if compact::compaction_strategy(store).is_some() || compact::merges_duplicates(store) {
            return refuse("compaction");
        }
        self.store_server(store).map(drop)
    }

    fn search_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>> {
        Box::pin(async move {
            let MemorySearch {
                whose, query, limit, ..
            } = ask;
            let mut what = match &query {
                StoreQuery::Text(text) => vec![("text", json!(text))],
                StoreQuery::Key(key) => vec![("key", json!(key))],
                StoreQuery::Between(from, to) => {
                    vec![
                        ("since", json!(from.to_string())),
                        ("until", json!(to.to_string())),
                    ]
                }
            };
            what.push(("limit", json!(limit)));
            what.extend(owner_names(&whose).map(|owners| ("owners", json!(owners))));
            let answer = self.query_server(store, place, what).await?;
            let used = answer.used;
            let mut given = answer.entries;
            if let StoreQuery::Key(key) = &query {
                // Ignore entries that were not asked for: the server is not trusted.
                given.retain(|given| given.key.as_ref() == Some(key) || given.id == *key);
            }
            let mut hits = self.matching_hits((store, &place.part_name(store)), given, &whose, limit);
            match query {
                StoreQuery::Text(_) => {
                    for (rank, hit) in (1_u32..).zip(&mut hits) {
                        let score = hit.entry.score.filter(|score| score.is_finite());
                        let score = score.unwrap_or(1.0 / f64::from(rank)).clamp(0.0, 1.0);
                        hit.entry.score = Some(score);
                    }
                    return Ok(EntrySearchResult {
                        hits,
                        used: Some(used.unwrap_or(SearchMethod::FullText)),
                        ..EntrySearchResult::default()
                    });
                }
                StoreQuery::Key(_) => {}
                StoreQuery::Between(..) => hits.sort_by(|a, b| a.entry.timestamp.cmp(&b.entry.timestamp)),
            }
            for hit in &mut hits {
                hit.entry.score = None;
            }
            Ok(EntrySearchResult {
                hits,
                ..EntrySearchResult::default()
            })
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
                return Err(store_error(store, "its server keeps no journal"));
            }
            let mut given = Vec::with_capacity(entries.len());
            let mut ids = Vec::with_capacity(entries.len());
            for (index, new) in entries.into_iter().enumerate() {
                new.checked_size(store)
                    .map_err(|reason| MemoryError::Entry { index, reason })?;
                let EntryInsertion { id, entry, mark } = new;
                let sealed_for = place_of(
                    (&store.name, &place.part_name(store)),
                    &id,
                    entry.key.as_deref(),
                    &entry.content,
                );
                let text =
                    serde_json::to_string(&mark).map_err(|error| store_error(store, &error.to_string()))?;
                let sealed = self.vault.seal_text(&sealed_for, &text);
                let sealed = sealed.map_err(|error| store_error(store, &error.to_string()))?;
                let mut one = json_object([
                    ("id", json!(id)),
                    ("content", entry.content),
                    ("timestamp", json!(at.to_string())),
                    ("owner", json!(mark.whose)),
                    ("mark", json!(sealed)),
                ]);
                one.extend(entry.key.map(|key| ("key".to_owned(), json!(key))));
                one.extend(entry.metadata.map(|metadata| ("metadata".to_owned(), metadata)));
                given.push(one);
                ids.push(id);
            }
            let arguments = json_object([
                ("store", json!(store.name)),
                ("scope", json!(place.part_name(store))),
                ("replace", json!(has_unique_keys(store.kind))),
                ("entries", json!(given)),
            ]);
            let answer = self.call(store, "store", arguments).await?;
            if answer.get("ids") != Some(&json!(ids)) {
                let why = "its server's `store` did not answer `ids`, those of the entries in their order; nothing counts as kept";
                return Err(store_error(store, why));
            }
            Ok(ids)
        })
    }

    fn compaction_candidates<'a>(
        &'a self,
        _store: &'a Store,
        _place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn compact_store<'a>(
        &'a self,
        store: &'a Store,
        _place: &'a Scope,
        _at: Timestamp,
        _summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>> {
        let why = "its server can't be told to compact; forget entries one by one";
        Box::pin(std::future::ready(Err(store_error(store, why))))
    }

    fn apply_retention<'a>(
        &'a self,
        _store: &'a Store,
        _at: Timestamp,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(std::future::ready(Ok(0)))
    }

    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>> {
        Box::pin(async move {
            let look = || self.query_server(store, place, vec![("id", json!(id)), ("limit", json!(1))]);
            let named = |answer: CustomStoreResponse| -> Vec<CustomStoreEntry> {
                answer
                    .entries
                    .into_iter()
                    .filter(|given| given.id == id)
                    .collect()
            };
            let found = self.matching_hits((store, &place.part_name(store)), named(look().await?), &whose, 1);
            let Some(hit) = found.into_iter().next() else {
                return Ok(None);
            };
            let arguments = json_object([
                ("store", json!(store.name)),
                ("scope", json!(place.part_name(store))),
                ("ids", json!([id])),
            ]);
            let _told = self.call(store, "forget", arguments).await?;
            // Check again, because the server is not trusted.
            if !named(look().await?).is_empty() {
                return Err(store_error(
                    store,
                    "its server's `forget` left the entry where it was",
                ));
            }
            Ok(Some(hit))
        })
    }

    fn count_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(async move {
            let answer = self
                .query_server(store, place, vec![("text", json!("")), ("limit", json!(0))])
                .await?;
            Ok(answer.total.unwrap_or(0))
        })
    }

    fn unembedded_entries<'a>(
        &'a self,
        _store: &'a Store,
        _model: &'a str,
        _limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn add_vectors<'a>(
        &'a self,
        _store: &'a Store,
        _model: &'a str,
        _vectors: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
