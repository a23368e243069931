//! The parts of an agent's memory: in the state's database, in folders, and on servers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_memory::FolderScopeView;
use clawk_recall::entry::EntryHit;
use serde_json::{Value, json};

use super::PartArgs;
use super::server::{OnServer, dir_of, remote_stores, remote_stores_hint};
use crate::compose::ResolvedConfig;
use crate::out::{self, one_line};
use crate::state::kept::{self, MemoryPart, Options, RememberedEntry, StateDir, StateError, StateReader};

/// Entries read at once.
const PAGE: usize = 500;

/// One scope of one store.
#[derive(Debug)]
pub(super) enum ScopedStore {
    Rows(Box<MemoryPart>),
    Folder(Box<FolderScopeView>),
    Server(Box<OnServer>),
}

/// An entry and its location.
#[derive(Debug, Clone)]
pub(super) struct LocatedEntry {
    pub(super) store: String,
    pub(super) scope: String,
    pub(super) hit: EntryHit,
    /// Its row in the database; `None`: it is in a folder or on a server.
    pub(super) row: Option<RememberedEntry>,
}

impl From<RememberedEntry> for LocatedEntry {
    fn from(row: RememberedEntry) -> Self {
        Self {
            store: row.store.clone(),
            scope: row.scope.clone(),
            hit: EntryHit {
                entry: row.entry.clone(),
                mark: row.mark.clone(),
            },
            row: Some(row),
        }
    }
}

impl ScopedStore {
    pub(super) fn store(&self) -> &str {
        match self {
            Self::Rows(part) => &part.store,
            Self::Folder(held) => &held.store,
            Self::Server(one) => one.store(),
        }
    }

    pub(super) fn scope(&self) -> &str {
        match self {
            Self::Rows(part) => &part.scope,
            Self::Folder(held) => &held.scope,
            Self::Server(one) => &one.scope,
        }
    }

    pub(super) fn entry_count(&self) -> u64 {
        match self {
            Self::Rows(part) => part.entries,
            Self::Folder(held) => held.count(),
            Self::Server(one) => one.entries,
        }
    }

    fn locate_hits(&self, hits: Vec<EntryHit>) -> Vec<LocatedEntry> {
        let found = |hit| LocatedEntry {
            store: self.store().to_owned(),
            scope: self.scope().to_owned(),
            hit,
            row: None,
        };
        hits.into_iter().map(found).collect()
    }

    /// Returns entries, newest first.
    pub(super) fn newest_entries(
        &self,
        reader: &StateReader,
        aside: bool,
        limit: usize,
    ) -> Result<Vec<LocatedEntry>> {
        let rows = match self {
            Self::Folder(held) => return Ok(self.locate_hits(held.newest_entries(aside, limit))),
            Self::Server(one) => return Ok(self.locate_hits(one.newest_entries(aside, limit)?)),
            Self::Rows(part) if aside => reader.set_aside(part, limit)?,
            Self::Rows(part) => reader.remembered(part, None, limit)?,
        };
        Ok(rows.into_iter().map(LocatedEntry::from).collect())
    }

    /// Searches entries by words, best match first.
    pub(super) fn search_entries(
        &self,
        reader: &StateReader,
        words: &str,
        limit: usize,
    ) -> Result<Vec<LocatedEntry>> {
        match self {
            Self::Folder(held) => Ok(self.locate_hits(held.search_words(words, limit))),
            Self::Server(one) => Ok(self.locate_hits(one.search_entries(words, limit)?)),
            Self::Rows(part) => {
                let rows = reader.recalled(part, words, limit)?;
                Ok(rows.into_iter().map(LocatedEntry::from).collect())
            }
        }
    }

    /// Returns the entries with this id or key.
    pub(super) fn find_named(&self, reader: &StateReader, name: &str) -> Result<Vec<LocatedEntry>> {
        match self {
            Self::Folder(held) => Ok(self.locate_hits(held.entries_named(name))),
            Self::Server(one) => Ok(self.locate_hits(one.find_named(name)?)),
            Self::Rows(part) => {
                let rows = reader.remembered_as(std::slice::from_ref(part), name)?;
                Ok(rows.into_iter().map(LocatedEntry::from).collect())
            }
        }
    }

    /// Visits each entry, newest first, without those that compaction set aside.
    pub(super) fn for_each_entry(
        &self,
        reader: &StateReader,
        mut take: impl FnMut(LocatedEntry) -> Result<()>,
    ) -> Result<()> {
        let part = match self {
            Self::Folder(held) => {
                let all = self.locate_hits(held.newest_entries(false, usize::MAX));
                return all.into_iter().try_for_each(take);
            }
            Self::Server(one) => {
                return one.each_of(false, usize::MAX, |hit| {
                    self.locate_hits(vec![hit]).into_iter().try_for_each(&mut take)
                });
            }
            Self::Rows(part) => part,
        };
        let mut before = None;
        loop {
            let page = reader.remembered(part, before, PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            before = Some(last.row);
            page.into_iter().map(LocatedEntry::from).try_for_each(&mut take)?;
        }
    }
}

/// An opened state, and the selected parts of its memory.
pub(super) struct OpenedMemory {
    pub(super) dir: PathBuf,
    pub(super) reader: StateReader,
    pub(super) parts: Vec<ScopedStore>,
}

impl PartArgs {
    /// Opens the state and selects the parts: those of the named store and scope, or all.
    pub(super) fn open_memory(&self) -> Result<OpenedMemory> {
        let blueprint = self.claw.resolve_config()?;
        let dir = self.state_dir(blueprint.as_ref())?;
        self.open_parts(dir, blueprint.as_ref(), None)
    }

    /// Opens the state and holds its lock, so that no other process writes.
    pub(super) fn open_exclusive(&self, why: &'static str) -> Result<(StateDir, OpenedMemory)> {
        let blueprint = self.claw.resolve_config()?;
        let dir = self.state_dir(blueprint.as_ref())?;
        let state = match StateDir::open(&dir, Options::default()) {
            Err(error @ StateError::Locked { .. }) => return Err(error).context(why),
            other => other?,
        };
        let opened = self.open_parts(dir, blueprint.as_ref(), Some(&state))?;
        Ok((state, opened))
    }

    fn state_dir(&self, blueprint: Option<&ResolvedConfig>) -> Result<PathBuf> {
        match blueprint {
            Some(blueprint) if self.which.state.is_none() && self.which.agent.is_none() => dir_of(blueprint),
            Some(_) | None => self.which.find_dir(),
        }
    }

    fn open_parts(
        &self,
        dir: PathBuf,
        blueprint: Option<&ResolvedConfig>,
        state: Option<&StateDir>,
    ) -> Result<OpenedMemory> {
        let reader = match state {
            Some(_) => StateReader::open(&dir)?,
            None => kept::read_only(&dir)?,
        };
        let mut all = all_parts(&dir, &reader, state)?;
        let mut unseen = Vec::new();
        match blueprint {
            Some(blueprint) => {
                let on_servers = blueprint.on_servers(&dir)?;
                // A state on the same server lists these parts, too.
                let named =
                    |part: &ScopedStore| on_servers.iter().any(|(store, _)| store.name == part.store());
                all.retain(|part| !(matches!(part, ScopedStore::Server(_)) && named(part)));
                let asked = self.scope.clone();
                let known = |store: &_| {
                    blueprint
                        .scopes_of(store)
                        .into_iter()
                        .chain(asked.clone())
                        .collect()
                };
                let found = OnServer::from_stores(on_servers, self.store.as_deref(), known)?;
                all.extend(found.into_iter().map(|one| ScopedStore::Server(Box::new(one))));
            }
            None => unseen = remote_stores(&reader)?,
        }
        let known: Vec<String> = all.iter().map(format_part).collect();
        let fits = |part: &ScopedStore| {
            self.store.as_ref().is_none_or(|store| store == part.store())
                && self.scope.as_ref().is_none_or(|scope| scope == part.scope())
        };
        let parts: Vec<ScopedStore> = all.into_iter().filter(fits).collect();
        unseen.retain(|(store, _)| self.store.as_ref().is_none_or(|meant| meant == store));
        if parts.is_empty() && (self.store.is_some() || self.scope.is_some()) {
            if !unseen.is_empty() {
                bail!("nothing is remembered there; {}", remote_stores_hint(&unseen));
            }
            bail!(
                "nothing is remembered there; there is: {}",
                if known.is_empty() {
                    "nothing at all".to_owned()
                } else {
                    known.join(", ")
                }
            );
        }
        if !unseen.is_empty() {
            out::print_note(remote_stores_hint(&unseen));
        }
        Ok(OpenedMemory { dir, reader, parts })
    }
}

/// Returns every part of the state, those in the database first. Parts on a server can be changed only with the open `state`.
pub(super) fn all_parts(
    dir: &Path,
    reader: &StateReader,
    state: Option<&StateDir>,
) -> Result<Vec<ScopedStore>> {
    let mut parts: Vec<ScopedStore> = match kept::on_server(reader, state)? {
        Some(stores) => {
            let found = OnServer::from_stores(stores, None, |_| Vec::new())?;
            found
                .into_iter()
                .map(|one| ScopedStore::Server(Box::new(one)))
                .collect()
        }
        None => {
            let rows = reader.memory_parts(None)?;
            rows.into_iter()
                .map(|part| ScopedStore::Rows(Box::new(part)))
                .collect()
        }
    };
    let vault = reader.vault().cloned().map(Arc::new);
    let held =
        FolderScopeView::all_scopes(&dir.join("memory"), vault.as_ref()).with_context(|| {
            match reader.lacks_key() {
                Some(why) => {
                    format!("the stores in folders can't be read: something is encrypted, and {why}")
                }
                None => "the stores in folders can't be read".to_owned(),
            }
        })?;
    parts.extend(held.into_iter().map(|held| ScopedStore::Folder(Box::new(held))));
    Ok(parts)
}

fn format_part(part: &ScopedStore) -> String {
    format_location(part.store(), part.scope())
}

pub(super) fn format_location(store: &str, scope: &str) -> String {
    let scope = if scope.is_empty() { "everybody" } else { scope };
    format!("`{}` of {}", one_line(store), one_line(scope))
}

/// Returns an entry as JSON.
pub(super) fn entry_json(found: &LocatedEntry) -> Value {
    let EntryHit { entry, mark } = &found.hit;
    let mut all = json!({
        "store": found.store, "scope": found.scope, "id": entry.id, "key": entry.key,
        "timestamp": entry.timestamp, "content": entry.content, "metadata": entry.metadata,
        "origin": mark.origin, "untrusted": mark.untrusted, "session": mark.session, "made_from": mark.made_from,
        "author": Some(&mark.author).filter(|author| !author.is_empty()),
    });
    if let (Some(score), Value::Object(members)) = (entry.score, &mut all) {
        members.insert("score".to_owned(), json!(score));
    }
    all
}

pub(super) fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
