//! Stores in folders: append-only JSON lines, a Markdown copy for people, and workspaces whose files are the entries.

mod line;
mod look;
mod part;
mod places;
mod workspace;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_core::ports::{Batch, BoxFuture, Memory, MemoryError, MemorySearch, Scope, UnembeddedEntry};
use clawk_core::time::Timestamp;
use clawk_manifest::model::{Store, StoreScope, StoreType};
use clawk_recall::compact::CompactionSummary;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryInsertion, EntrySearchResult};
use clawk_recall::seal::{NO_KEY, STAYS, SealKeyring};
use clawk_trace::chain::digest_of;

use line::LineSeal;
pub use look::FolderScopeView;
use part::FolderScopeStore;
use workspace::WorkspaceFolder;

/// The default folder, and the values of template variables in paths.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder for stores without a `path`.
    pub root: PathBuf,
    /// The home folder that replaces `~`; `None`: `~` is not allowed.
    pub home: Option<PathBuf>,
    /// The value of `{tenant_id}`.
    pub tenant: String,
    /// Whether a `path` may lead out of `root`. It must not for a manifest that came over the network.
    pub outside: bool,
    /// The keys of encrypted stores.
    pub vault: Option<Arc<SealKeyring>>,
}

/// The folder stores of an agent. Only one process may use them, like the state directory.
#[derive(Debug, Clone)]
pub struct FolderMemory {
    options: Options,
    open: Arc<Mutex<HashMap<PathBuf, FolderScopeStore>>>,
}

type FolderScopesGuard<'a> = MutexGuard<'a, HashMap<PathBuf, FolderScopeStore>>;

impl FolderMemory {
    /// Creates the stores; opens nothing yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            open: Arc::default(),
        }
    }

    /// The base folder of a store. Template variables are replaced first; their values can't contain path separators.
    ///
    /// # Errors
    /// The path has an unknown variable, contains `..`, or leads out of the root where that is not allowed.
    pub fn base_folder(&self, store: &Store, identity: &str) -> Result<PathBuf, MemoryError> {
        let refuse = |what: &str| Err(MemoryError::Backend(format!("store `{}`: {what}", store.name)));
        let Some(path) = store.path.as_deref() else {
            return Ok(self.options.root.join(part_of_path(&store.name)));
        };
        let text = path
            .replace("{identity_name}", &part_of_path(identity))
            .replace("{tenant_id}", &part_of_path(&self.options.tenant));
        if let Some((_, rest)) = text.split_once('{') {
            let name = rest.split('}').next().unwrap_or_default();
            return refuse(&format!(
                "`path` speaks of `{{{name}}}`; known are `{{identity_name}}` and `{{tenant_id}}`"
            ));
        }
        if path.contains("{tenant_id}") && self.options.tenant.is_empty() {
            return refuse(
                "`path` speaks of `{tenant_id}`; `[memory] tenant_id` of clawk.toml says what it stands for",
            );
        }
        if Path::new(&text)
            .components()
            .any(|part| part == std::path::Component::ParentDir)
        {
            return refuse("`path` climbs by `..`; name the folder itself");
        }
        let leads_out = text.starts_with("~/") || Path::new(&text).is_absolute();
        if leads_out && !self.options.outside {
            return refuse(
                "`path` leads out of the state directory, and this manifest came over the wire; make it relative",
            );
        }
        match (text.strip_prefix("~/"), &self.options.home) {
            (Some(rest), Some(home)) => Ok(home.join(rest)),
            (Some(_), None) => refuse("`path` begins with `~` and there is no home folder"),
            (None, _) => Ok(self.options.root.join(text)),
        }
    }

    /// Checks that the given key opens the store's encrypted files, and that an encrypted store's manifest still says so.
    fn is_the_key(&self, store: &Store) -> Result<(), MemoryError> {
        let known = places::known_scopes(&self.options.root).map_err(|error| backend_error(store, &error))?;
        for place in known
            .into_iter()
            .filter(|place| is_of(place, store, &self.options.root))
        {
            let vault = self.options.vault.clone();
            let closed = vault.map(|vault| LineSeal::new(vault, &store.name, &place.scope));
            let sealed = line::is_sealed(&place.folder.join("entries.jsonl"), closed.as_ref());
            if sealed.map_err(|error| backend_error(store, &error))? && !store.encryption {
                return Err(backend_error(store, &io::Error::other(STAYS)));
            }
        }
        Ok(())
    }

    /// The folder of a store for one scope.
    fn scope_folder(&self, store: &Store, place: &Scope) -> Result<PathBuf, MemoryError> {
        let path = self.base_folder(store, &place.identity)?;
        Ok(match Scope::store_scope(store) {
            StoreScope::Global => path.join("shared"),
            StoreScope::PerIdentity => path.join(part_of_path(&place.identity)),
            StoreScope::PerChannel => path
                .join(part_of_path(&place.identity))
                .join(part_of_path(&place.channel)),
        })
    }

    /// Runs a job on one scope of the store, on a blocking thread.
    async fn on_part<T: Send + 'static>(
        &self,
        store: &Store,
        place: &Scope,
        job: impl FnOnce(&mut FolderScopeStore, &Store) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let (folder, store, open) = (
            self.scope_folder(store, place)?,
            store.clone(),
            Arc::clone(&self.open),
        );
        let (root, name) = (self.options.root.clone(), place.part_name(&store));
        let vault = self.options.vault.clone();
        let base = self.base_folder(&store, &place.identity)?;
        off_thread(move || {
            line::refuse_links(&base, &folder).map_err(|error| backend_error(&store, &error))?;
            let mut parts: FolderScopesGuard<'_> = open.lock().unwrap_or_else(PoisonError::into_inner);
            if !parts.contains_key(&folder) {
                // Recorded, so that it is found later even if the manifest changes.
                places::note_scope(&root, &store.name, &name, &folder)
                    .map_err(|error| backend_error(&store, &error))?;
            }
            with_open_scope(&mut parts, (&folder, &name), (&store, vault.as_ref()), job)
        })
        .await
    }

    /// Runs a job on every scope of the store; the job also gets the folder.
    async fn on_every_part<T: Send + 'static>(
        &self,
        store: &Store,
        mut job: impl FnMut(&Path, &mut FolderScopeStore, &Store) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<Vec<T>, MemoryError> {
        if store.kind == StoreType::Workspace {
            return Ok(Vec::new());
        }
        let (open, store, root) = (Arc::clone(&self.open), store.clone(), self.options.root.clone());
        let vault = self.options.vault.clone();
        off_thread(move || {
            let known = places::known_scopes(&root).map_err(|error| backend_error(&store, &error))?;
            let mut done = Vec::new();
            for place in known.into_iter().filter(|place| is_of(place, &store, &root)) {
                let mut parts: FolderScopesGuard<'_> = open.lock().unwrap_or_else(PoisonError::into_inner);
                let each = with_open_scope(
                    &mut parts,
                    (&place.folder, &place.scope),
                    (&store, vault.as_ref()),
                    |part, store| job(&place.folder, part, store),
                );
                done.push(each?);
            }
            Ok(done)
        })
        .await
    }

    async fn on_workspace<T: Send + 'static>(
        &self,
        store: &Store,
        place: &Scope,
        job: impl FnOnce(&WorkspaceFolder, &Store) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let (folder, store) = (self.scope_folder(store, place)?, store.clone());
        let name = digest_of(folder.as_os_str().as_encoded_bytes()).to_hex();
        let marks = self.options.root.join(".marks").join(format!("{name}.jsonl"));
        off_thread(move || {
            let workspace =
                WorkspaceFolder::open(folder, marks).map_err(|error| backend_error(&store, &error))?;
            job(&workspace, &store)
        })
        .await
    }
}

/// Whether this location belongs to the store. A store without a `path` must be below the root: other locations are left over from
/// before a move or a copy of the state.
fn is_of(place: &places::FolderScopeLocation, store: &Store, root: &Path) -> bool {
    place.store == store.name && (store.path.is_some() || place.folder.starts_with(root))
}

/// Runs a job on a scope. Reads the scope from its folder first if it is not loaded or its file has changed.
fn with_open_scope<T>(
    parts: &mut FolderScopesGuard<'_>,
    (folder, scope): (&Path, &str),
    (store, vault): (&Store, Option<&Arc<SealKeyring>>),
    job: impl FnOnce(&mut FolderScopeStore, &Store) -> Result<T, MemoryError>,
) -> Result<T, MemoryError> {
    if parts.get(folder).is_some_and(FolderScopeStore::was_changed) {
        parts.remove(folder); // what is on the disk counts
    }
    if !parts.contains_key(folder) {
        let mut part = FolderScopeStore::open(folder, (store, scope), vault)
            .map_err(|error| backend_error(store, &error))?;
        part.seal_anew()?;
        parts.insert(folder.to_owned(), part);
    }
    let part = parts
        .get_mut(folder)
        .ok_or_else(|| MemoryError::Backend("the store was closed".to_owned()))?;
    let done = job(part, store);
    if part.is_broken() {
        parts.remove(folder); // what is on the disk counts
    }
    done
}

/// Returns why a store in a folder can't be a workspace as it is declared; `None` for stores of other types.
pub(crate) fn declared_workspace_fault(store: &Store) -> Option<&'static str> {
    if store.kind != StoreType::Workspace {
        return None;
    }
    if store.encryption {
        return Some(
            "a workspace in a folder is files that tools and people read, so it is not encrypted; write `backend: sqlite`",
        );
    }
    (store.retention != clawk_manifest::model::Retention::default()).then_some(
        "a workspace's files are not removed by age or number; leave `retention` out, `max_size_mb` bounds it",
    )
}

impl Memory for FolderMemory {
    fn check_store(&self, store: &Store) -> Result<(), MemoryError> {
        let refuse = |what: &str| Err(MemoryError::Backend(format!("store `{}`: {what}", store.name)));
        if let Some(fault) = declared_workspace_fault(store) {
            return refuse(fault);
        }
        if store.encryption && self.options.vault.is_none() {
            return refuse(NO_KEY);
        }
        self.is_the_key(store)?;
        self.scope_folder(store, &Scope::default()).map(|_| ())
    }

    fn search_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>> {
        if store.kind == StoreType::Workspace {
            return Box::pin(self.on_workspace(store, place, move |workspace, store| {
                let found = workspace.search_entries(&ask.whose, &ask.query, ask.limit);
                found.map_err(|error| backend_error(store, &error))
            }));
        }
        Box::pin(self.on_part(store, place, move |part, store| {
            Ok(part.search_entries(store, &ask))
        }))
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
                return Err(MemoryError::Backend("files keep no journal".to_owned()));
            }
            if store.kind == StoreType::Workspace {
                let keep = move |workspace: &WorkspaceFolder, store: &Store| {
                    workspace.insert_entries(store, entries)
                };
                return self.on_workspace(store, place, keep).await;
            }
            self.on_part(store, place, move |part, store| {
                part.insert_entries(store, entries, at)
            })
            .await
        })
    }

    fn compaction_candidates<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        if store.kind == StoreType::Workspace {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        Box::pin(self.on_part(store, place, |part, store| Ok(part.entries_to_compact(store))))
    }

    fn compact_store<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>> {
        if store.kind == StoreType::Workspace {
            return Box::pin(std::future::ready(Ok((0, 0))));
        }
        Box::pin(self.on_part(store, place, move |part, store| {
            part.compact_entries(store, at, summary.as_ref())
        }))
    }

    fn apply_retention<'a>(
        &'a self,
        store: &'a Store,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(async move {
            let gone = self
                .on_every_part(store, move |_, part, store| part.expire_entries(store, at))
                .await?;
            Ok(gone.into_iter().sum())
        })
    }

    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>> {
        if store.kind == StoreType::Workspace {
            return Box::pin(self.on_workspace(store, place, move |workspace, store| {
                let removed = workspace.remove(&whose, &id);
                removed.map_err(|error| backend_error(store, &error))
            }));
        }
        Box::pin(self.on_part(store, place, move |part, _| part.remove(&whose, &id)))
    }

    fn count_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        if store.kind == StoreType::Workspace {
            return Box::pin(self.on_workspace(store, place, |workspace, store| {
                workspace.count().map_err(|error| backend_error(store, &error))
            }));
        }
        Box::pin(self.on_part(store, place, |part, _| Ok(part.count())))
    }

    fn unembedded_entries<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>> {
        let model = model.to_owned();
        Box::pin(async move {
            let lacking = self
                .on_every_part(store, move |folder, part, _| {
                    let mut lacking = part.unembedded_entries(&model, limit);
                    for one in &mut lacking {
                        one.handle = format!("{}\n{}", folder.display(), one.handle);
                    }
                    Ok(lacking)
                })
                .await?;
            Ok(lacking.into_iter().flatten().take(limit).collect())
        })
    }

    fn add_vectors<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        let model = model.to_owned();
        let mut of: BTreeMap<String, Vec<(String, Vec<f32>)>> = BTreeMap::new();
        for (handle, vector) in vectors {
            if let Some((folder, id)) = handle.split_once('\n') {
                of.entry(folder.to_owned())
                    .or_default()
                    .push((id.to_owned(), vector));
            }
        }
        Box::pin(async move {
            let add = move |folder: &Path, part: &mut FolderScopeStore, _: &Store| match of
                .remove(&folder.display().to_string())
            {
                Some(vectors) => part.add_vectors(&model, &vectors),
                None => Ok(()),
            };
            self.on_every_part(store, add).await.map(|_| ())
        })
    }
}

async fn off_thread<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, MemoryError> + Send + 'static,
) -> Result<T, MemoryError> {
    let done = tokio::task::spawn_blocking(job).await;
    done.unwrap_or_else(|error| Err(MemoryError::Backend(error.to_string())))
}

fn backend_error(store: &Store, error: &std::io::Error) -> MemoryError {
    MemoryError::Backend(format!("store `{}`: {error}", store.name))
}

/// Encodes a name as one path component. Letters, digits, `-`, `_` and `.` stay; every other character is written as its bytes. Two
/// names never collide, and no name leaves the folder.
fn part_of_path(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') || (c == '.' && !text.is_empty()) {
            text.push(c);
        } else {
            let mut bytes = [0; 4];
            text.push('%');
            text.push_str(&hex::encode(c.encode_utf8(&mut bytes)));
            text.push('%');
        }
    }
    if text.is_empty() { "%".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::part_of_path;

    #[test]
    fn a_name_is_one_part_of_a_path() {
        assert_eq!(part_of_path("hello-1.2"), "hello-1.2");
        for name in ["", ".", "..", "a/b", "../x", "a\0b", "ä", "%", "%2f%"] {
            let part = part_of_path(name);
            assert!(
                !part.contains('/') && part != "." && part != ".." && !part.is_empty(),
                "{part}"
            );
            assert_ne!(part, part_of_path("a"));
        }
        assert_ne!(part_of_path("a/b"), part_of_path("a%2f%b"));
    }
}
