//! Stores in folders: append-only lines of JSON, Markdown beside them for people, and workspaces whose entries are files.

mod line;
mod part;
mod workspace;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_kernel::ports::{MemoryError, Scope, StoreQuery};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{Isolation, Store, StoreScope, StoreType};
use clawk_recall::compact::Summary;
use clawk_recall::entry::{Found, Hit, New, Vector, Whose};
use clawk_trace::chain::digest_of;

use part::Part;
use workspace::Workspace;

/// Where stores lie that name no folder, and what their paths may speak of.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder of stores without a `path`.
    pub root: PathBuf,
    /// What `~` stands for, if anything.
    pub home: Option<PathBuf>,
    /// What `{tenant_id}` stands for.
    pub tenant: String,
}

/// Stores in folders. One process owns them, as it owns the state directory.
#[derive(Debug, Clone)]
pub struct Files {
    options: Options,
    open: Arc<Mutex<HashMap<PathBuf, Part>>>,
}

type Parts<'a> = MutexGuard<'a, HashMap<PathBuf, Part>>;

impl Files {
    /// Nothing is opened yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            open: Arc::default(),
        }
    }

    /// Refuses what files can't do, and a path that can't be resolved.
    ///
    /// # Errors
    /// What is wrong, and what would mend it.
    pub fn check(&self, store: &Store) -> Result<(), MemoryError> {
        let refuse = |what: &str| Err(MemoryError::Backend(format!("store `{}`: {what}", store.name)));
        if store.encryption {
            return refuse(
                "`encryption: true` is not served on files; nothing is written unencrypted instead",
            );
        }
        if store.kind == StoreType::Workspace
            && store.retention != clawk_manifest::model::Retention::default()
        {
            return refuse(
                "a workspace's files are not removed by age or number; leave `retention` out, `max_size_mb` bounds it",
            );
        }
        self.folder(store, &Scope::default()).map(|_| ())
    }

    /// The folder of a store for one place. Template variables are resolved first, and what they stand for is never a path.
    fn folder(&self, store: &Store, place: &Scope) -> Result<PathBuf, MemoryError> {
        let refuse = |what: String| MemoryError::Backend(format!("store `{}`: {what}", store.name));
        let path = match store.path.as_deref() {
            None => self.options.root.join(part_of_path(&store.name)),
            Some(path) => {
                let text = path
                    .replace("{identity_name}", &part_of_path(&place.identity))
                    .replace("{tenant_id}", &part_of_path(&self.options.tenant));
                if let Some(variable) = text.split_once('{').map(|(_, rest)| rest) {
                    let name = variable.split('}').next().unwrap_or_default();
                    return Err(refuse(format!(
                        "`path` speaks of `{{{name}}}`; known are `{{identity_name}}` and `{{tenant_id}}`"
                    )));
                }
                match (text.strip_prefix("~/"), &self.options.home) {
                    (Some(rest), Some(home)) => home.join(rest),
                    (Some(_), None) => {
                        return Err(refuse(
                            "`path` begins with `~` and there is no home folder".to_owned(),
                        ));
                    }
                    (None, _) => self.options.root.join(text),
                }
            }
        };
        Ok(match scope_of(store) {
            StoreScope::Global => path.join("shared"),
            StoreScope::PerIdentity => path.join(part_of_path(&place.identity)),
            StoreScope::PerChannel => path
                .join(part_of_path(&place.identity))
                .join(part_of_path(&place.channel)),
        })
    }

    /// Runs a job on the store's part, off the async threads.
    async fn on_part<T: Send + 'static>(
        &self,
        store: &Store,
        place: &Scope,
        job: impl FnOnce(&mut Part, &Store) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let (folder, store, open) = (self.folder(store, place)?, store.clone(), Arc::clone(&self.open));
        let run = move || {
            let mut parts: Parts<'_> = open.lock().unwrap_or_else(PoisonError::into_inner);
            if !parts.contains_key(&folder) {
                let part = Part::open(&folder, &store).map_err(|error| backend(&store, &error))?;
                parts.insert(folder.clone(), part);
            }
            let part = parts
                .get_mut(&folder)
                .ok_or_else(|| MemoryError::Backend("the store was closed".to_owned()))?;
            let done = job(part, &store);
            if part.is_broken() {
                parts.remove(&folder); // what is on the disk counts
            }
            done
        };
        off_thread(run).await
    }

    async fn on_workspace<T: Send + 'static>(
        &self,
        store: &Store,
        place: &Scope,
        job: impl FnOnce(&Workspace, &Store) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let (folder, store) = (self.folder(store, place)?, store.clone());
        let name = digest_of(folder.as_os_str().as_encoded_bytes()).to_hex();
        let marks = self.options.root.join(".marks").join(format!("{name}.jsonl"));
        off_thread(move || {
            let workspace = Workspace::open(folder, marks).map_err(|error| backend(&store, &error))?;
            job(&workspace, &store)
        })
        .await
    }

    /// What a question finds; `vector` is the question's, by the store's embedding model.
    ///
    /// # Errors
    /// The folder can't be read.
    pub async fn ask(
        &self,
        store: &Store,
        place: &Scope,
        whose: Whose,
        query: StoreQuery,
        vector: Option<Vector>,
        limit: usize,
    ) -> Result<Found, MemoryError> {
        if store.kind == StoreType::Workspace {
            let ask = move |workspace: &Workspace, store: &Store| {
                let found = workspace.ask(&whose, &query, limit);
                found.map_err(|error| backend(store, &error))
            };
            return self.on_workspace(store, place, ask).await;
        }
        let ask =
            move |part: &mut Part, store: &Store| Ok(part.ask(store, &whose, &query, vector.as_ref(), limit));
        self.on_part(store, place, ask).await
    }

    /// Keeps all entries or none, durably; then retention, and compaction where it is due.
    ///
    /// # Errors
    /// An entry does not fit the store, or the folder can't be written.
    pub async fn keep(
        &self,
        store: &Store,
        place: &Scope,
        entries: Vec<New>,
        at: Timestamp,
    ) -> Result<Vec<String>, MemoryError> {
        if store.kind == StoreType::Workspace {
            let keep = move |workspace: &Workspace, store: &Store| workspace.keep(store, entries);
            return self.on_workspace(store, place, keep).await;
        }
        self.on_part(store, place, move |part, store| part.keep(store, entries, at))
            .await
    }

    /// What compaction would set aside now, the oldest first.
    ///
    /// # Errors
    /// The folder can't be read.
    pub async fn old(&self, store: &Store, place: &Scope) -> Result<Vec<Hit>, MemoryError> {
        if store.kind == StoreType::Workspace {
            return Ok(Vec::new());
        }
        self.on_part(store, place, |part, store| Ok(part.old(store)))
            .await
    }

    /// Retention, then compaction; the counts before and after.
    ///
    /// # Errors
    /// The folder can't be written.
    pub async fn compact_by(
        &self,
        store: &Store,
        place: &Scope,
        at: Timestamp,
        summary: Option<Summary>,
    ) -> Result<(u64, u64), MemoryError> {
        if store.kind == StoreType::Workspace {
            return Ok((0, 0));
        }
        self.on_part(store, place, move |part, store| {
            part.compact(store, at, summary.as_ref())
        })
        .await
    }

    /// Retention of what is open; how many entries went. What nobody has asked since the start is kept to its bounds when it is.
    ///
    /// # Errors
    /// A folder can't be written.
    pub async fn retain(&self, store: &Store, at: Timestamp) -> Result<u64, MemoryError> {
        let (open, store) = (Arc::clone(&self.open), store.clone());
        off_thread(move || {
            let mut parts: Parts<'_> = open.lock().unwrap_or_else(PoisonError::into_inner);
            let mut gone = 0;
            for part in parts.values_mut().filter(|part| part.is_of(&store.name)) {
                gone += part.retain(&store, at)?;
            }
            Ok(gone)
        })
        .await
    }

    /// Removes an entry for good: the files are written anew without it.
    ///
    /// # Errors
    /// The folder can't be written.
    pub async fn remove(
        &self,
        store: &Store,
        place: &Scope,
        whose: Whose,
        id: String,
    ) -> Result<Option<Hit>, MemoryError> {
        if store.kind == StoreType::Workspace {
            let remove = move |workspace: &Workspace, store: &Store| {
                workspace
                    .remove(&whose, &id)
                    .map_err(|error| backend(store, &error))
            };
            return self.on_workspace(store, place, remove).await;
        }
        self.on_part(store, place, move |part, store| part.remove(store, &whose, &id))
            .await
    }

    /// Brings back what compaction set aside: one entry or what a summary stands for, or everything.
    ///
    /// # Errors
    /// The folder can't be written.
    pub async fn restore(
        &self,
        store: &Store,
        place: &Scope,
        id: Option<String>,
    ) -> Result<u64, MemoryError> {
        if store.kind == StoreType::Workspace {
            return Ok(0);
        }
        self.on_part(store, place, move |part, store| {
            part.restore(store, id.as_deref())
        })
        .await
    }
}

async fn off_thread<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, MemoryError> + Send + 'static,
) -> Result<T, MemoryError> {
    let done = tokio::task::spawn_blocking(job).await;
    done.unwrap_or_else(|error| Err(MemoryError::Backend(error.to_string())))
}

fn backend(store: &Store, error: &std::io::Error) -> MemoryError {
    MemoryError::Backend(format!("store `{}`: {error}", store.name))
}

/// Absent means per identity; a workspace's `isolation` says the same of files.
fn scope_of(store: &Store) -> StoreScope {
    match (store.kind, store.isolation) {
        (StoreType::Workspace, Some(Isolation::Shared)) => StoreScope::Global,
        (StoreType::Workspace, Some(Isolation::PerIdentity)) => StoreScope::PerIdentity,
        (StoreType::Workspace, Some(Isolation::PerChannel)) => StoreScope::PerChannel,
        _ => store.scope.unwrap_or(StoreScope::PerIdentity),
    }
}

/// A name as one part of a path: letters, digits, `-`, `_` and `.` stay, everything else is written as its bytes, so that two names
/// never meet and none leads anywhere.
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
