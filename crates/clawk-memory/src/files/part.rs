//! One scope of a folder store: the lines of `entries.jsonl` are folded into memory, and `entries.md` is written for people.
//!
//! Long because each operation on the lines also keeps the folded state.

mod search;
mod written;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_core::ports::{MemoryError, UnembeddedEntry};
use clawk_core::time::Timestamp;
use clawk_manifest::model::{CompactionStrategy, Store, StoreType};
use clawk_proto::method::MemoryEntry;
use clawk_recall::compact::{self, CompactionSummary, has_unique_keys, model_of};
use clawk_recall::entry::{
    ConversationFilter, EntryHit, EntryInsertion, check_free_size, conversation_number,
};
use clawk_recall::index::Index;
use clawk_recall::packed::{PackedVectors, pack_vector};
use clawk_recall::seal::SealKeyring;
use clawk_recall::{table, words};

use super::line::{self, EntryFileStamp, LineSeal, StoreChange, StoredLineEntry};

/// The Markdown file for people. An encrypted store has none.
const MARKDOWN: &str = "entries.md";

/// How many removals the file may contain before it is rewritten.
const MAX_DEAD: usize = 256;

#[derive(Debug)]
struct FolderEntryRow {
    kept: StoredLineEntry,
    at: Timestamp,
}

impl FolderEntryRow {
    fn entry_hit(&self) -> EntryHit {
        let StoredLineEntry {
            id,
            key,
            content,
            metadata,
            mark,
            ..
        } = self.kept.clone();
        EntryHit {
            entry: MemoryEntry {
                id,
                content,
                score: None,
                timestamp: Some(self.at.to_string()),
                key,
                metadata,
            },
            mark,
        }
    }

    fn text(&self) -> String {
        words::text_of(&self.kept.content, self.kept.key.as_deref())
    }

    fn bytes(&self) -> usize {
        self.kept.content.to_string().len() + self.kept.metadata.as_ref().map_or(0, |m| m.to_string().len())
    }
}

/// One scope of one store.
#[derive(Debug)]
pub(super) struct FolderScopeStore {
    store: String,
    folder: PathBuf,
    log: File,
    rows: BTreeMap<i64, FolderEntryRow>,
    aside: BTreeMap<i64, (FolderEntryRow, String)>,
    ids: HashMap<String, i64>,
    next: i64,
    bytes: usize,
    dead: usize,
    /// The number of lines in the file.
    lines: usize,
    /// The file's stamp after this process's last write. `None`: another process wrote at the same time.
    seen: Option<EntryFileStamp>,
    index: Index,
    embeds: bool,
    vectors: HashMap<String, PackedVectors>,
    /// Packed vectors by model and entry; needed when the file is rewritten.
    packed: BTreeMap<(String, i64), Vec<u8>>,
    broken: bool,
    /// Opens the lines, if a key is given, and seals new ones if the store is encrypted.
    closed: Option<LineSeal>,
    sealed: bool,
    stale: bool,
    /// The number of rows and the next row number at the last merge.
    merged: (usize, i64),
}

impl FolderScopeStore {
    /// Reads a scope. `vault` opens sealed lines. New lines are sealed if the manifest asks for encryption or the file was sealed.
    pub(super) fn open(
        folder: &Path,
        (store, scope): (&Store, &str),
        vault: Option<&Arc<SealKeyring>>,
    ) -> io::Result<Self> {
        line::make_folder(folder)?;
        let closed = vault.map(|vault| LineSeal::new(Arc::clone(vault), &store.name, scope));
        let opened = line::open_file(&folder.join("entries.jsonl"), closed.as_ref())?;
        let mut part = Self {
            store: store.name.clone(),
            folder: folder.to_owned(),
            seen: EntryFileStamp::of_file(&opened.file).ok(), // silent-ok: it is read again then
            log: opened.file,
            rows: BTreeMap::new(),
            aside: BTreeMap::new(),
            ids: HashMap::new(),
            next: 1,
            bytes: 0,
            dead: 0,
            lines: opened.lines.len(),
            index: Index::default(),
            embeds: model_of(store).as_deref() == Some(table::NAME),
            vectors: HashMap::new(),
            packed: BTreeMap::new(),
            broken: false,
            closed,
            sealed: store.encryption || opened.sealed,
            stale: opened.stale,
            merged: (0, 0),
        };
        for line in opened.lines {
            part.apply_change(line);
        }
        Ok(part)
    }

    /// Rewrites the file if lines should be sealed with the current key and are not.
    pub(super) fn seal_anew(&mut self) -> Result<(), MemoryError> {
        let markdown = self.folder.join(MARKDOWN).exists();
        if self.sealed && (self.stale || markdown) {
            self.rewrite_files()?;
            self.stale = false;
        }
        Ok(())
    }

    fn line_seal(&self) -> Option<&LineSeal> {
        self.closed.as_ref().filter(|_| self.sealed)
    }

    /// Whether a write failed. Memory and disk may then differ.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken
    }

    pub(super) fn count(&self) -> u64 {
        u64::try_from(self.rows.len()).unwrap_or(u64::MAX)
    }

    /// Applies a change: first on disk, then in memory.
    fn commit_change(&mut self, line: StoreChange) -> Result<(), MemoryError> {
        if line.is_empty() {
            return Ok(());
        }
        let told = self.render_markdown(&line.keep);
        let closed = self.closed.as_ref().filter(|_| self.sealed);
        let added = match line::append_line(&mut self.log, &line, closed, self.lines + 1) {
            Ok(added) => added,
            Err(error) => {
                self.broken = true;
                return Err(self.write_error(&error));
            }
        };
        self.lines += 1;
        self.refresh_stamp(added);
        // `entries.md` is only for people: the change itself is durable already.
        if let Err(error) = self.append_markdown(&told) {
            tracing::warn!(%error, store = self.store, "`entries.md` could not be written");
        }
        self.dead += line.gone.len() + line.aside.len() + line.back.len();
        self.apply_change(line);
        Ok(())
    }

    fn write_error(&self, error: &io::Error) -> MemoryError {
        MemoryError::Backend(format!(
            "store `{}` in `{}`: {error}",
            self.store,
            self.folder.display()
        ))
    }

    fn apply_change(&mut self, line: StoreChange) {
        for id in line.gone {
            self.remove_row(&id);
            let aside: Vec<i64> = self
                .aside
                .iter()
                .filter(|(_, (row, _))| row.kept.id == id)
                .map(|(n, _)| *n)
                .collect();
            for n in aside {
                self.aside.remove(&n);
            }
        }
        for id in line.aside {
            if let Some((n, row)) = self.remove_row(&id) {
                self.aside.insert(n, (row, line.instead.clone()));
            }
        }
        for id in line.back {
            let found = self
                .aside
                .iter()
                .find(|(_, (row, _))| row.kept.id == id)
                .map(|(n, _)| *n);
            if let Some((n, (row, _))) = found.and_then(|n| self.aside.remove_entry(&n)) {
                self.insert_row(n, row);
            }
        }
        for kept in line.keep {
            // An edited file may contain an entry twice: the later one counts, and the earlier one is removed.
            self.remove_row(&kept.id);
            let at = Timestamp::parse(&kept.at).unwrap_or(Timestamp(0)); // silent-ok: written by us
            let n = self.next;
            self.next += 1;
            self.insert_row(n, FolderEntryRow { kept, at });
        }
        for (id, model, vector) in line.vectors {
            let (Some(n), Ok(bytes)) = (self.ids.get(&id).copied(), hex::decode(vector)) else {
                continue;
            };
            self.add_vector(n, model, bytes);
        }
    }

    fn insert_row(&mut self, n: i64, row: FolderEntryRow) {
        let text = row.text();
        if let Some(vector) = table::embed_text(&text).filter(|_| self.embeds) {
            let whose = conversation_number(&row.kept.mark.whose);
            let matrix = self.vectors.entry(table::NAME.to_owned()).or_default();
            matrix.add(n, whose, &pack_vector(&vector));
        }
        self.index.add(n, text);
        self.bytes += row.bytes();
        self.ids.insert(row.kept.id.clone(), n);
        self.rows.insert(n, row);
    }

    fn remove_row(&mut self, id: &str) -> Option<(i64, FolderEntryRow)> {
        let n = self.ids.remove(id)?;
        self.index.remove(n);
        let row = self.rows.remove(&n)?;
        self.bytes = self.bytes.saturating_sub(row.bytes());
        Some((n, row))
    }

    fn add_vector(&mut self, n: i64, model: String, bytes: Vec<u8>) {
        let whose = self
            .rows
            .get(&n)
            .map_or(0, |row| conversation_number(&row.kept.mark.whose));
        let matrix = self.vectors.entry(model.clone()).or_default();
        matrix.add(n, whose, &bytes);
        self.packed.insert((model, n), bytes);
    }

    /// Entries without a vector of this model, newest first. Each handle also names this scope.
    pub(super) fn unembedded_entries(&self, model: &str, limit: usize) -> Vec<UnembeddedEntry> {
        let lacks = self
            .rows
            .iter()
            .rev()
            .filter(|(n, _)| !self.packed.contains_key(&(model.to_owned(), **n)));
        lacks
            .take(limit)
            .map(|(_, row)| UnembeddedEntry {
                handle: row.kept.id.clone(),
                text: row.text(),
            })
            .collect()
    }

    /// Stores vectors of entries by id. Entries that are gone are ignored.
    pub(super) fn add_vectors(
        &mut self,
        model: &str,
        vectors: &[(String, Vec<f32>)],
    ) -> Result<(), MemoryError> {
        let known = vectors.iter().filter(|(id, _)| {
            self.ids
                .get(id)
                .is_some_and(|n| !self.packed.contains_key(&(model.to_owned(), *n)))
        });
        let line = |(id, vector): &(String, Vec<f32>)| {
            (id.clone(), model.to_owned(), hex::encode(pack_vector(vector)))
        };
        self.commit_change(StoreChange {
            vectors: known.map(line).collect(),
            ..StoreChange::default()
        })
    }

    pub(super) fn insert_entries(
        &mut self,
        store: &Store,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
    ) -> Result<Vec<String>, MemoryError> {
        let ids: Vec<String> = entries.iter().map(|new| new.id.clone()).collect();
        let (mut line, mut more) = (StoreChange::default(), 0);
        for (index, new) in entries.into_iter().enumerate() {
            let bytes = new
                .checked_size(store)
                .map_err(|reason| MemoryError::Entry { index, reason })?;
            let EntryInsertion { id, entry, mark } = new;
            if self.ids.contains_key(&id) {
                continue;
            }
            more += bytes;
            if has_unique_keys(store.kind) {
                let same = |row: &&FolderEntryRow| row.kept.key == entry.key;
                line.gone
                    .extend(self.rows.values().filter(same).map(|row| row.kept.id.clone()));
            }
            line.keep.push(StoredLineEntry {
                id,
                at: at.to_string(),
                key: entry.key,
                content: entry.content,
                metadata: entry.metadata,
                mark,
            });
        }
        let size = |bytes| u64::try_from(bytes).unwrap_or(u64::MAX);
        check_free_size(store, size(self.bytes), size(more))
            .map_err(|reason| MemoryError::Entry { index: 0, reason })?;
        self.commit_change(line)?;
        self.apply_retention(store, at)?;
        Ok(ids)
    }

    /// Applies retention. Removed entries are also removed from the files.
    pub(super) fn expire_entries(&mut self, store: &Store, at: Timestamp) -> Result<u64, MemoryError> {
        let gone = self.apply_retention(store, at)?;
        self.merge_duplicates(store)?;
        // Rewriting is delayed until here: `keep` would otherwise rewrite the files each time.
        if self.dead > 0 {
            self.rewrite_files()?;
        }
        Ok(gone)
    }

    /// Sets aside entries that a later entry repeats.
    fn merge_duplicates(&mut self, store: &Store) -> Result<(), MemoryError> {
        let now = (self.rows.len(), self.next);
        if !compact::merges_duplicates(store) || self.merged == now {
            return Ok(());
        }
        self.merged = now;
        let mut rows: Vec<(i64, EntryHit)> = self.rows.iter().map(|(n, row)| (*n, row.entry_hit())).collect();
        rows.sort_by_key(|(n, _)| (self.rows.get(n).map(|row| row.at), *n));
        let again = compact::said_again(rows.iter().map(|(n, hit)| (*n, hit)));
        let id = |n: &i64| self.rows.get(n).map(|row| row.kept.id.clone());
        let aside = again.iter().filter_map(id).collect();
        self.commit_change(StoreChange {
            aside,
            ..StoreChange::default()
        })
    }

    /// Applies retention by age, number and snapshots. If compaction is due, it runs first.
    pub(super) fn apply_retention(&mut self, store: &Store, at: Timestamp) -> Result<u64, MemoryError> {
        let before = self.count();
        let mut gone: Vec<String> = Vec::new();
        let snapshots = store.checkpoint.clone().unwrap_or_default();
        let ttl = snapshots.ttl.filter(|_| store.kind == StoreType::Checkpoint);
        for age in [store.retention.max_age, ttl].into_iter().flatten() {
            let ms = i64::try_from(age.as_secs())
                .unwrap_or(i64::MAX)
                .saturating_mul(1000);
            let oldest = at.plus_millis(ms.saturating_neg());
            let all = self.rows.values().chain(self.aside.values().map(|(row, _)| row));
            gone.extend(all.filter(|row| row.at < oldest).map(|row| row.kept.id.clone()));
        }
        if let Some(max) = snapshots
            .max_snapshots
            .filter(|_| store.kind == StoreType::Checkpoint)
        {
            let mut seen: HashMap<Option<&str>, u64> = HashMap::new();
            for row in self.rows.values().rev() {
                let count = seen.entry(row.kept.key.as_deref()).or_default();
                *count += 1;
                if *count > max {
                    gone.push(row.kept.id.clone());
                }
            }
        }
        self.commit_change(StoreChange {
            gone,
            ..StoreChange::default()
        })?;
        if compact::is_due(store, self.count()) {
            self.compact_now(store, at, None)?;
        }
        if let Some(max) = store.retention.max_entries {
            let excess = self.count().saturating_sub(max);
            let gone = self.oldest_ids(excess);
            self.commit_change(StoreChange {
                gone,
                ..StoreChange::default()
            })?;
        }
        if self.dead > MAX_DEAD.max(self.rows.len()) {
            self.rewrite_files()?;
        }
        Ok(before.saturating_sub(self.count()))
    }

    fn oldest_ids(&self, how_many: u64) -> Vec<String> {
        let mut rows: Vec<(&i64, &FolderEntryRow)> = self.rows.iter().collect();
        rows.sort_by_key(|(n, row)| (row.at, **n));
        let how_many = usize::try_from(how_many).unwrap_or(usize::MAX);
        rows.into_iter()
            .take(how_many)
            .map(|(_, row)| row.kept.id.clone())
            .collect()
    }

    pub(super) fn entries_to_compact(&self, store: &Store) -> Vec<EntryHit> {
        let ids = self.oldest_ids(compact::compaction_count(store, self.count()));
        ids.iter()
            .filter_map(|id| self.row(id))
            .map(FolderEntryRow::entry_hit)
            .collect()
    }

    fn row(&self, id: &str) -> Option<&FolderEntryRow> {
        self.rows.get(self.ids.get(id)?)
    }

    pub(super) fn compact_entries(
        &mut self,
        store: &Store,
        at: Timestamp,
        summary: Option<&CompactionSummary>,
    ) -> Result<(u64, u64), MemoryError> {
        let before = self.count();
        self.apply_retention(store, at)?;
        self.compact_now(store, at, summary)?;
        self.rewrite_files()?;
        Ok((before, self.count()))
    }

    fn compact_now(
        &mut self,
        store: &Store,
        at: Timestamp,
        summary: Option<&CompactionSummary>,
    ) -> Result<(), MemoryError> {
        let old = self.entries_to_compact(store);
        let aside: Vec<String> = old.iter().map(|hit| hit.entry.id.clone()).collect();
        let Some(last) = old.last() else { return Ok(()) };
        if compact::compaction_strategy(store) != Some(CompactionStrategy::Summarize) {
            return self.commit_change(StoreChange {
                aside,
                ..StoreChange::default()
            });
        }
        let mut new = compact::summary_entry(&old, summary, &at.to_string());
        while self.ids.contains_key(&new.id) {
            new.id.push('+');
        }
        let kept = StoredLineEntry {
            id: new.id.clone(),
            at: last.entry.timestamp.clone().unwrap_or_default(),
            key: None,
            content: new.entry.content,
            metadata: new.entry.metadata,
            mark: new.mark,
        };
        self.commit_change(StoreChange {
            keep: vec![kept],
            aside,
            instead: new.id,
            ..StoreChange::default()
        })
    }

    /// Removes a summary and restores the entries that it replaced.
    fn undo_summary(&mut self, summary: &str) -> Result<u64, MemoryError> {
        let stood: Vec<String> = self
            .aside
            .values()
            .filter(|(_, instead)| instead == summary)
            .map(|(row, _)| row.kept.id.clone())
            .collect();
        let count = u64::try_from(stood.len()).unwrap_or(u64::MAX);
        self.commit_change(StoreChange {
            gone: vec![summary.to_owned()],
            back: stood,
            ..StoreChange::default()
        })?;
        Ok(count)
    }

    pub(super) fn newest_entries(&self, aside: bool, limit: usize) -> Vec<EntryHit> {
        if aside {
            let rows = self.aside.values().rev().map(|(row, _)| row.entry_hit());
            return rows.take(limit).collect();
        }
        self.rows
            .values()
            .rev()
            .take(limit)
            .map(FolderEntryRow::entry_hit)
            .collect()
    }

    pub(super) fn entries_named(&self, name: &str) -> Vec<EntryHit> {
        let here = |row: &&FolderEntryRow| row.kept.id == name || row.kept.key.as_deref() == Some(name);
        let aside = self
            .aside
            .values()
            .map(|(row, _)| row)
            .filter(|row| row.kept.id == name);
        self.rows
            .values()
            .filter(here)
            .chain(aside)
            .map(FolderEntryRow::entry_hit)
            .collect()
    }

    pub(super) fn restore_entries(&mut self, id: Option<&str>) -> Result<u64, MemoryError> {
        let mut back = 0;
        match id {
            Some(id) => {
                if self.aside.values().any(|(row, _)| row.kept.id == id) {
                    self.commit_change(StoreChange {
                        back: vec![id.to_owned()],
                        ..StoreChange::default()
                    })?;
                    back += 1;
                }
                if self.aside.values().any(|(_, instead)| instead == id) {
                    back += self.undo_summary(id)?;
                }
            }
            None => {
                while let Some((row, instead)) = self.aside.values().next_back() {
                    let (id, instead) = (row.kept.id.clone(), instead.clone());
                    if instead.is_empty() {
                        self.commit_change(StoreChange {
                            back: vec![id],
                            ..StoreChange::default()
                        })?;
                        back += 1;
                    } else {
                        back += self.undo_summary(&instead)?;
                    }
                }
            }
        }
        Ok(back)
    }

    pub(super) fn remove(
        &mut self,
        whose: &ConversationFilter,
        id: &str,
    ) -> Result<Option<EntryHit>, MemoryError> {
        let aside = self
            .aside
            .values()
            .find(|(row, _)| row.kept.id == id)
            .map(|(row, instead)| (row.entry_hit(), instead.clone()));
        let found = self.row(id).map(|row| (row.entry_hit(), String::new())).or(aside);
        let Some((hit, instead)) = found.filter(|(hit, _)| whose.includes_owner(&hit.mark.whose)) else {
            return Ok(None);
        };
        let mut gone = vec![id.to_owned()];
        gone.extend(
            self.aside
                .values()
                .filter(|(_, instead)| instead == id)
                .map(|(row, _)| row.kept.id.clone()),
        );
        self.commit_change(StoreChange {
            gone,
            ..StoreChange::default()
        })?;
        if !instead.is_empty() {
            self.undo_summary(&instead)?;
        }
        self.rewrite_files()?;
        Ok(Some(hit))
    }
}
