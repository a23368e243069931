//! Memory stores on servers. Requests run on separate threads, so that a blocking command gets its answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, anyhow, bail};
use clawk_kernel::kind;
use clawk_kernel::ports::{JournalScan, MemoryError, MemoryInspector, MemorySearch, Page, Scope, StoreQuery};
use clawk_manifest::model::{Store, StoreBackend};
use clawk_recall::entry::{ConversationFilter, EntryHit};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::compose::{self, ResolvedConfig};
use crate::config::Config;
use crate::out::one_line;
use crate::state::kept::StateReader;
use crate::trust;

/// Entries read at once.
const PAGE: usize = 500;

/// A store and its back end.
pub(super) type InspectedStore = (Store, Arc<dyn MemoryInspector>);

/// One scope of a store on a server.
#[derive(Debug, Clone)]
pub(super) struct OnServer {
    /// The store as the manifest declares it; only its name if the manifest is not known.
    store: Store,
    /// `identity/NAME` or `channel/IDENTITY/CHANNEL`; empty: entries for everyone.
    pub(super) scope: String,
    pub(super) entries: u64,
    kept: Arc<dyn MemoryInspector>,
}

/// Runs work on threads that live until the process ends, and waits for it. Each operation of a back end has a deadline.
fn block_on<T: Send + 'static>(
    work: impl Future<Output = Result<T, MemoryError>> + Send + 'static,
) -> Result<T> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let runtime = RUNTIME
        .get_or_init(|| compose::build_runtime().map_err(|error| format!("{error:#}")))
        .as_ref();
    let runtime = runtime.map_err(|error| anyhow!(error.clone()))?;
    let (send, receive) = sync_channel(1);
    runtime.spawn(async move {
        let _gone = send.send(work.await); // silent-ok: whoever asked has ended
    });
    let done = receive.recv().context("the work on the server ended by itself")?;
    Ok(done?)
}

impl OnServer {
    /// Returns every scope of these stores. `only`: only the store with this name. `known`: scopes from the manifest, and a
    /// requested one.
    pub(super) fn from_stores(
        stores: Vec<InspectedStore>,
        only: Option<&str>,
        known: impl Fn(&Store) -> Vec<String>,
    ) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for (store, kept) in stores {
            if only.is_some_and(|only| only != store.name) {
                continue;
            }
            let (spec, back, parts) = (store.clone(), Arc::clone(&kept), known(&store));
            let found = block_on(async move { back.list_parts(&spec, &parts).await })?;
            all.extend(found.into_iter().map(|(scope, entries)| Self {
                store: store.clone(),
                scope,
                entries,
                kept: Arc::clone(&kept),
            }));
        }
        Ok(all)
    }

    pub(super) fn store(&self) -> &str {
        &self.store.name
    }

    /// Returns at most `limit` entries, newest first; or those that compaction set aside.
    pub(super) fn newest_entries(&self, aside: bool, limit: usize) -> Result<Vec<EntryHit>> {
        let mut hits = Vec::new();
        self.each_of(aside, limit, |hit| {
            hits.push(hit);
            Ok(())
        })?;
        Ok(hits)
    }

    /// Visits each entry, page by page.
    pub(super) fn each_of(
        &self,
        aside: bool,
        limit: usize,
        mut take: impl FnMut(EntryHit) -> Result<()>,
    ) -> Result<()> {
        let (mut before, mut left) = (None, limit);
        while left > 0 {
            let page = Page {
                aside,
                before,
                limit: left.min(PAGE),
            };
            let one = self.clone();
            let found = block_on(async move { one.kept.list_entries(&one.store, &one.scope, page).await })?;
            let Some((last, _)) = found.last() else { break };
            before = Some(*last);
            left = left.saturating_sub(found.len());
            found.into_iter().try_for_each(|(_, hit)| take(hit))?;
        }
        Ok(())
    }

    /// Searches by words as the agent would, best match first.
    pub(super) fn search_entries(&self, words: &str, limit: usize) -> Result<Vec<EntryHit>> {
        let Some((place, store)) = Scope::from_part_name(&self.scope, &self.store) else {
            return Ok(Vec::new());
        };
        let ask = MemorySearch {
            whose: ConversationFilter::All,
            query: StoreQuery::Text(words.to_owned()),
            vector: None,
            limit,
        };
        let kept = Arc::clone(&self.kept);
        let found = block_on(async move { kept.search_entries(&store, &place, ask).await })?;
        Ok(found.hits)
    }

    /// Returns entries with this id or key. Entries that were set aside are found by id, too.
    pub(super) fn find_named(&self, name: &str) -> Result<Vec<EntryHit>> {
        let (one, name) = (self.clone(), name.to_owned());
        block_on(async move { one.kept.find_entries(&one.store, &one.scope, &name).await })
    }

    /// Deletes an entry permanently, with the entries set aside for it and summaries made from it.
    pub(super) fn forget_entry(&self, id: &str) -> Result<Option<EntryHit>> {
        let Some((place, store)) = Scope::from_part_name(&self.scope, &self.store) else {
            return Ok(None);
        };
        let (kept, id) = (Arc::clone(&self.kept), id.to_owned());
        block_on(async move { kept.remove(&store, &place, ConversationFilter::All, id).await })
    }

    /// Restores what compaction set aside: one entry, the entries behind a summary, or everything. Returns their number.
    pub(super) fn restore_entries(&self, id: Option<&str>) -> Result<u64> {
        let (one, id) = (self.clone(), id.map(str::to_owned));
        block_on(async move { one.kept.bring_back(&one.store, &one.scope, id.as_deref()).await })
    }
}

/// The agent whose stores lie on servers: its manifest, and the configuration that says where they are.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct MemoryServerArgs {
    /// The agent's manifest: its stores on PostgreSQL, on Qdrant and with MCP servers are reached, too
    #[arg(long, value_name = "FILE")]
    claw: Option<PathBuf>,

    #[arg(from_global)]
    config: Option<PathBuf>,
}

impl MemoryServerArgs {
    /// Returns the named agent's configuration, if one is named. Asks for consent as a start would.
    pub(super) fn resolve_config(&self) -> Result<Option<ResolvedConfig>> {
        let Some(claw) = &self.claw else { return Ok(None) };
        let config = Config::load(self.config.as_deref(), Some(claw))?;
        let blueprint = compose::build_runtime()?.block_on(async {
            let blueprint = ResolvedConfig::with_config(claw, config).await?;
            blueprint.with_consent(false, trust::can_ask_user()).await
        });
        blueprint.map(Some)
    }
}

/// Returns the stores on servers that the agent's last start described, by back end. A command can't see them without the manifest.
pub(super) fn remote_stores(reader: &StateReader) -> Result<Vec<(String, &'static str)>> {
    let mut scan = JournalScan {
        kinds: &[kind::AGENT_DESCRIBED],
        with_content: true,
        ..JournalScan::default()
    };
    let mut last = None;
    loop {
        let page = reader.recorded_events(&scan)?;
        let Some(event) = page.into_iter().next_back() else {
            break;
        };
        scan.after_row = event.row;
        last = event.content.or(last);
    }
    let described: Value = last
        .and_then(|content| serde_json::from_slice(&content.bytes).ok()) // silent-ok: what is erased or of an earlier version names no store
        .unwrap_or_default();
    let stores = described
        .pointer("/manifest/memory/stores")
        .and_then(Value::as_array);
    let mut found = BTreeMap::new();
    for store in stores.into_iter().flatten() {
        // silent-ok: an earlier version wrote no back end
        let backend = store.get("backend").cloned().unwrap_or_default();
        let backend: Option<StoreBackend> = serde_json::from_value(backend).unwrap_or_default();
        let (Some(name), Some(backend)) = (store.get("name").and_then(Value::as_str), backend) else {
            continue;
        };
        match backend {
            StoreBackend::Postgresql
            | StoreBackend::Pgvector
            | StoreBackend::Qdrant
            | StoreBackend::Custom => {
                found.insert(name.to_owned(), backend.as_str());
            }
            StoreBackend::Sqlite | StoreBackend::SqliteVec | StoreBackend::Filesystem => {}
        }
    }
    Ok(found.into_iter().collect())
}

/// Returns the hint about such stores.
pub(super) fn remote_stores_hint(elsewhere: &[(String, &'static str)]) -> String {
    let names: Vec<String> = elsewhere
        .iter()
        .map(|(name, backend)| format!("`{}` ({backend})", one_line(name)))
        .collect();
    format!(
        "the agent has stores on servers: {}; name its manifest by `--claw FILE` to reach them",
        names.join(", ")
    )
}

/// Returns the state directory of an agent named by its manifest.
pub(super) fn dir_of(blueprint: &ResolvedConfig) -> Result<PathBuf> {
    let dir = blueprint.state_lookup(None).dir()?;
    if !Path::is_dir(&dir) {
        bail!(
            "there is no state directory `{}`: the agent has not run",
            dir.display()
        );
    }
    Ok(dir)
}
