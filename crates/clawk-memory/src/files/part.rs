//! One scope of a store in a folder: the lines of `entries.jsonl` folded into memory, and `entries.md` for people.
//!
//! Long because reading, writing and replacing a file of a store must agree about one format.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clawk_kernel::ports::{MemoryError, StoreQuery};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{CompactionStrategy, SearchFusion, SearchStrategy, Store, StoreType};
use clawk_proto::method::MemoryEntry;
use clawk_recall::compact::{self, Summary, by_key, model_of, replaces};
use clawk_recall::entry::{Found, Hit, New, Used, Vector, Whose, number};
use clawk_recall::fuse::{self, Leg};
use clawk_recall::index::Index;
use clawk_recall::packed::{Matrix, pack};
use clawk_recall::{table, words};

use super::line::{self, Kept, Line};

/// The largest content of one entry, bytes of JSON.
const MAX_ENTRY_BYTES: usize = 1024 * 1024;

/// Candidates that each ranking brings into the fusion, at least.
const PER_LEG: usize = 50;

/// Lines that say what is no more, before the file is written anew.
const MAX_DEAD: usize = 256;

#[derive(Debug)]
struct Row {
    kept: Kept,
    at: Timestamp,
}

impl Row {
    fn hit(&self) -> Hit {
        let Kept {
            id,
            key,
            content,
            metadata,
            mark,
            ..
        } = self.kept.clone();
        Hit {
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
pub(super) struct Part {
    store: String,
    folder: PathBuf,
    log: File,
    rows: BTreeMap<i64, Row>,
    aside: BTreeMap<i64, (Row, String)>,
    ids: HashMap<String, i64>,
    next: i64,
    bytes: usize,
    dead: usize,
    index: Index,
    embeds: bool,
    vectors: HashMap<String, Matrix>,
    /// By model and entry; what is written again when the file is.
    packed: BTreeMap<(String, i64), Vec<u8>>,
    broken: bool,
}

impl Part {
    pub(super) fn open(folder: &Path, store: &Store) -> io::Result<Self> {
        line::make_folder(folder)?;
        let (log, lines) = line::open(&folder.join("entries.jsonl"))?;
        let mut part = Self {
            store: store.name.clone(),
            folder: folder.to_owned(),
            log,
            rows: BTreeMap::new(),
            aside: BTreeMap::new(),
            ids: HashMap::new(),
            next: 1,
            bytes: 0,
            dead: 0,
            index: Index::default(),
            embeds: model_of(store).as_deref() == Some(table::NAME),
            vectors: HashMap::new(),
            packed: BTreeMap::new(),
            broken: false,
        };
        for line in lines {
            part.apply(line);
        }
        Ok(part)
    }

    pub(super) fn is_of(&self, store: &str) -> bool {
        self.store == store
    }

    /// A write failed: what memory holds may not be what the disk holds.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken
    }

    fn count(&self) -> u64 {
        u64::try_from(self.rows.len()).unwrap_or(u64::MAX)
    }

    /// A change, on the disk and then in memory.
    fn commit(&mut self, line: Line) -> Result<(), MemoryError> {
        if line.is_empty() {
            return Ok(());
        }
        let told = self.markdown(&line.keep);
        if let Err(error) = line::add(&mut self.log, &line) {
            self.broken = true;
            return Err(self.failed(&error));
        }
        // For people alone: what counts is written.
        if let Err(error) = self.tell(&told) {
            tracing::warn!(%error, store = self.store, "`entries.md` could not be written");
        }
        self.dead += line.gone.len() + line.aside.len() + line.back.len();
        self.apply(line);
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> MemoryError {
        MemoryError::Backend(format!(
            "store `{}` in `{}`: {error}",
            self.store,
            self.folder.display()
        ))
    }

    fn apply(&mut self, line: Line) {
        for id in line.gone {
            self.take(&id);
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
            if let Some((n, row)) = self.take(&id) {
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
                self.put(n, row);
            }
        }
        for kept in line.keep {
            let at = Timestamp::parse(&kept.at).unwrap_or(Timestamp(0)); // silent-ok: written by us
            let n = self.next;
            self.next += 1;
            self.put(n, Row { kept, at });
        }
        for (id, model, vector) in line.vectors {
            let (Some(n), Ok(bytes)) = (self.ids.get(&id).copied(), hex::decode(vector)) else {
                continue;
            };
            self.add_vector(n, model, bytes);
        }
    }

    fn put(&mut self, n: i64, row: Row) {
        let text = row.text();
        if let Some(vector) = table::embed(&text).filter(|_| self.embeds) {
            let whose = number(&row.kept.mark.whose);
            let matrix = self.vectors.entry(table::NAME.to_owned()).or_default();
            matrix.add(n, whose, &pack(&vector));
        }
        self.index.add(n, text);
        self.bytes += row.bytes();
        self.ids.insert(row.kept.id.clone(), n);
        self.rows.insert(n, row);
    }

    fn take(&mut self, id: &str) -> Option<(i64, Row)> {
        let n = self.ids.remove(id)?;
        self.index.remove(n);
        let row = self.rows.remove(&n)?;
        self.bytes = self.bytes.saturating_sub(row.bytes());
        Some((n, row))
    }

    fn add_vector(&mut self, n: i64, model: String, bytes: Vec<u8>) {
        let whose = self.rows.get(&n).map_or(0, |row| number(&row.kept.mark.whose));
        let matrix = self.vectors.entry(model.clone()).or_default();
        matrix.add(n, whose, &bytes);
        self.packed.insert((model, n), bytes);
    }

    pub(super) fn keep(
        &mut self,
        store: &Store,
        entries: Vec<New>,
        at: Timestamp,
    ) -> Result<Vec<String>, MemoryError> {
        let ids: Vec<String> = entries.iter().map(|new| new.id.clone()).collect();
        let (mut line, mut more) = (Line::default(), 0);
        for (index, New { id, entry, mark }) in entries.into_iter().enumerate() {
            let refuse = |reason: String| MemoryError::Entry { index, reason };
            if by_key(store.kind) && entry.key.is_none() {
                let kind = store.kind.as_str();
                return Err(refuse(format!(
                    "store `{}` is {kind}: the entry needs a `key`",
                    store.name
                )));
            }
            let bytes =
                entry.content.to_string().len() + entry.metadata.as_ref().map_or(0, |m| m.to_string().len());
            if bytes > MAX_ENTRY_BYTES {
                return Err(refuse(format!(
                    "{bytes} bytes; at most {MAX_ENTRY_BYTES}, split it"
                )));
            }
            if self.ids.contains_key(&id) {
                continue;
            }
            more += bytes;
            if replaces(store.kind) {
                let same = |row: &&Row| row.kept.key == entry.key;
                line.gone
                    .extend(self.rows.values().filter(same).map(|row| row.kept.id.clone()));
            }
            line.keep.push(Kept {
                id,
                at: at.to_string(),
                key: entry.key,
                content: entry.content,
                metadata: entry.metadata,
                mark,
            });
        }
        let limit = store.max_size_mb.map_or(usize::MAX, |mb| {
            usize::try_from(mb.saturating_mul(1 << 20)).unwrap_or(usize::MAX)
        });
        if self.bytes.saturating_add(more) > limit {
            let reason = format!(
                "store `{}` holds {} bytes and its `max_size_mb` is reached; forget or compact something",
                store.name, self.bytes
            );
            return Err(MemoryError::Entry { index: 0, reason });
        }
        self.commit(line)?;
        self.retain(store, at)?;
        Ok(ids)
    }

    /// Retention by age, number, snapshots; compaction first where it is due.
    pub(super) fn retain(&mut self, store: &Store, at: Timestamp) -> Result<u64, MemoryError> {
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
        self.commit(Line {
            gone,
            ..Line::default()
        })?;
        if compact::is_due(store, self.count()) {
            self.compact_now(store, at, None)?;
        }
        if let Some(max) = store.retention.max_entries {
            let excess = self.count().saturating_sub(max);
            let gone = self.oldest(excess);
            self.commit(Line {
                gone,
                ..Line::default()
            })?;
        }
        if self.dead > MAX_DEAD.max(self.rows.len()) {
            self.rewrite()?;
        }
        Ok(before.saturating_sub(self.count()))
    }

    fn oldest(&self, how_many: u64) -> Vec<String> {
        let mut rows: Vec<(&i64, &Row)> = self.rows.iter().collect();
        rows.sort_by_key(|(n, row)| (row.at, **n));
        let how_many = usize::try_from(how_many).unwrap_or(usize::MAX);
        rows.into_iter()
            .take(how_many)
            .map(|(_, row)| row.kept.id.clone())
            .collect()
    }

    pub(super) fn old(&self, store: &Store) -> Vec<Hit> {
        let ids = self.oldest(compact::goes(store, self.count()));
        ids.iter().filter_map(|id| self.row(id)).map(Row::hit).collect()
    }

    fn row(&self, id: &str) -> Option<&Row> {
        self.rows.get(self.ids.get(id)?)
    }

    pub(super) fn compact(
        &mut self,
        store: &Store,
        at: Timestamp,
        summary: Option<&Summary>,
    ) -> Result<(u64, u64), MemoryError> {
        let before = self.count();
        self.retain(store, at)?;
        self.compact_now(store, at, summary)?;
        self.rewrite()?;
        Ok((before, self.count()))
    }

    fn compact_now(
        &mut self,
        store: &Store,
        at: Timestamp,
        summary: Option<&Summary>,
    ) -> Result<(), MemoryError> {
        let old = self.old(store);
        let aside: Vec<String> = old.iter().map(|hit| hit.entry.id.clone()).collect();
        let Some(last) = old.last() else { return Ok(()) };
        if compact::strategy(store) != Some(CompactionStrategy::Summarize) {
            return self.commit(Line {
                aside,
                ..Line::default()
            });
        }
        let mut new = compact::summary(&old, summary, &at.to_string());
        while self.ids.contains_key(&new.id) {
            new.id.push('+');
        }
        let kept = Kept {
            id: new.id.clone(),
            at: last.entry.timestamp.clone().unwrap_or_default(),
            key: None,
            content: new.entry.content,
            metadata: new.entry.metadata,
            mark: new.mark,
        };
        self.commit(Line {
            keep: vec![kept],
            aside,
            instead: new.id,
            ..Line::default()
        })
    }

    /// The summary goes, what it stood for comes back.
    fn undo(&mut self, summary: &str) -> Result<u64, MemoryError> {
        let stood: Vec<String> = self
            .aside
            .values()
            .filter(|(_, instead)| instead == summary)
            .map(|(row, _)| row.kept.id.clone())
            .collect();
        let count = u64::try_from(stood.len()).unwrap_or(u64::MAX);
        self.commit(Line {
            gone: vec![summary.to_owned()],
            back: stood,
            ..Line::default()
        })?;
        Ok(count)
    }

    pub(super) fn restore(&mut self, _store: &Store, id: Option<&str>) -> Result<u64, MemoryError> {
        let mut back = 0;
        match id {
            Some(id) => {
                if self.aside.values().any(|(row, _)| row.kept.id == id) {
                    self.commit(Line {
                        back: vec![id.to_owned()],
                        ..Line::default()
                    })?;
                    back += 1;
                }
                if self.aside.values().any(|(_, instead)| instead == id) {
                    back += self.undo(id)?;
                }
            }
            None => {
                while let Some((row, instead)) = self.aside.values().next_back() {
                    let (id, instead) = (row.kept.id.clone(), instead.clone());
                    if instead.is_empty() {
                        self.commit(Line {
                            back: vec![id],
                            ..Line::default()
                        })?;
                        back += 1;
                    } else {
                        back += self.undo(&instead)?;
                    }
                }
            }
        }
        Ok(back)
    }

    pub(super) fn remove(
        &mut self,
        _store: &Store,
        whose: &Whose,
        id: &str,
    ) -> Result<Option<Hit>, MemoryError> {
        let aside = self
            .aside
            .values()
            .find(|(row, _)| row.kept.id == id)
            .map(|(row, instead)| (row.hit(), instead.clone()));
        let found = self.row(id).map(|row| (row.hit(), String::new())).or(aside);
        let Some((hit, instead)) = found.filter(|(hit, _)| whose.holds(&hit.mark.whose)) else {
            return Ok(None);
        };
        let mut gone = vec![id.to_owned()];
        gone.extend(
            self.aside
                .values()
                .filter(|(_, instead)| instead == id)
                .map(|(row, _)| row.kept.id.clone()),
        );
        self.commit(Line {
            gone,
            ..Line::default()
        })?;
        if !instead.is_empty() {
            self.undo(&instead)?;
        }
        self.rewrite()?;
        Ok(Some(hit))
    }

    /// Both files anew, without what is gone.
    fn rewrite(&mut self) -> Result<(), MemoryError> {
        let (jsonl, text) = self.written();
        let path = self.folder.join("entries.jsonl");
        let done = line::replace(&path, &jsonl)
            .and_then(|()| line::replace(&self.folder.join("entries.md"), text.as_bytes()))
            .and_then(|()| OpenOptions::new().append(true).open(&path));
        match done {
            Ok(log) => {
                (self.log, self.dead) = (log, 0);
                let live: Vec<i64> = self.rows.keys().copied().collect();
                self.packed.retain(|(_, n), _| live.binary_search(n).is_ok());
                Ok(())
            }
            Err(error) => {
                self.broken = true;
                Err(self.failed(&error))
            }
        }
    }

    fn written(&self) -> (Vec<u8>, String) {
        let mut all: BTreeMap<i64, (&Row, Option<&String>)> = BTreeMap::new();
        all.extend(self.rows.iter().map(|(n, row)| (*n, (row, None))));
        all.extend(
            self.aside
                .iter()
                .map(|(n, (row, instead))| (*n, (row, Some(instead)))),
        );
        let mut jsonl = Vec::new();
        let mut add = |line: &Line| {
            jsonl.extend(serde_json::to_vec(line).unwrap_or_default()); // silent-ok: JSON values always serialise
            jsonl.push(b'\n');
        };
        for (row, instead) in all.values() {
            add(&Line {
                keep: vec![row.kept.clone()],
                ..Line::default()
            });
            if let Some(instead) = instead {
                add(&Line {
                    aside: vec![row.kept.id.clone()],
                    instead: (*instead).clone(),
                    ..Line::default()
                });
            }
        }
        let vectors = self.packed.iter().filter_map(|((model, n), bytes)| {
            let row = self.rows.get(n)?;
            Some((row.kept.id.clone(), model.clone(), hex::encode(bytes)))
        });
        let line = Line {
            vectors: vectors.collect(),
            ..Line::default()
        };
        if !line.is_empty() {
            add(&line);
        }
        let live: Vec<Kept> = self.rows.values().map(|row| row.kept.clone()).collect();
        (jsonl, self.markdown(&live))
    }

    fn markdown(&self, kept: &[Kept]) -> String {
        let mut text = String::new();
        for one in kept {
            let key = one
                .key
                .as_ref()
                .map_or_else(String::new, |key| format!(" · `{key}`"));
            let origin = if one.mark.origin.is_empty() {
                "unknown"
            } else {
                &one.mark.origin
            };
            let trust = if one.mark.untrusted { ", untrusted" } else { "" };
            let body = match &one.content {
                serde_json::Value::String(text) => text.clone(),
                other => format!("```json\n{other}\n```"),
            };
            let _ = write!(
                text,
                "## {}{key}\n\n*{} — {origin}{trust}*\n\n{body}\n\n",
                one.at, one.id
            ); // silent-ok: writing to a String
        }
        text
    }

    fn tell(&self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(self.folder.join("entries.md"))?;
        file.write_all(text.as_bytes())
    }

    pub(super) fn ask(
        &self,
        store: &Store,
        whose: &Whose,
        query: &StoreQuery,
        vector: Option<&Vector>,
        limit: usize,
    ) -> Found {
        let mine = |row: &&Row| whose.holds(&row.kept.mark.whose);
        let hits = match query {
            StoreQuery::Text(text) => return self.by_text(store, whose, text, vector, limit),
            StoreQuery::Key(key) => {
                let named = |row: &&Row| {
                    row.kept.key.as_ref() == Some(key)
                        || (row.kept.id == *key && store.kind != StoreType::KeyValue)
                };
                self.rows
                    .values()
                    .rev()
                    .filter(named)
                    .filter(mine)
                    .take(limit)
                    .map(Row::hit)
                    .collect()
            }
            StoreQuery::Between(from, to) => {
                let mut rows: Vec<(&i64, &Row)> = self
                    .rows
                    .iter()
                    .filter(|(_, row)| (*from..=*to).contains(&row.at))
                    .collect();
                rows.sort_by_key(|(n, row)| (row.at, **n));
                rows.into_iter()
                    .map(|(_, row)| row)
                    .filter(mine)
                    .take(limit)
                    .map(Row::hit)
                    .collect()
            }
        };
        Found { hits, used: None }
    }

    fn by_text(
        &self,
        store: &Store,
        whose: &Whose,
        text: &str,
        vector: Option<&Vector>,
        limit: usize,
    ) -> Found {
        let depth = PER_LEG.max(limit.saturating_mul(2));
        let mine = |n: i64| {
            self.rows
                .get(&n)
                .is_some_and(|row| whose.holds(&row.kept.mark.whose))
        };
        let model = model_of(store);
        let built_in = model.as_deref() == Some(table::NAME);
        let query = match vector {
            Some(vector) if Some(&vector.model) == model.as_ref() => Some(vector.values.clone()),
            Some(_) => None,
            None => table::embed(text).filter(|_| built_in),
        };
        let Some((model, query)) = model.zip(query) else {
            return self.found(&self.index.find(text, limit, mine), Used::FullText, limit);
        };
        let floor = if built_in { table::FLOOR } else { 0.0 };
        let numbers: Option<Vec<i64>> = match whose {
            Whose::All => None,
            Whose::Of(known) => Some(known.iter().map(|one| number(one)).collect()),
        };
        let keep = |whose: i64| whose == 0 || numbers.as_ref().is_none_or(|known| known.contains(&whose));
        let near = self
            .vectors
            .get(&model)
            .map(|matrix| matrix.nearest(&query, depth.saturating_mul(2), keep));
        let near: Vec<(i64, f64)> = near
            .unwrap_or_default()
            .into_iter()
            .filter(|(n, score)| *score >= floor && mine(*n))
            .take(depth)
            .collect();
        let only = store.search.strategy == SearchStrategy::VectorOnly;
        let used = match (built_in, only) {
            (true, _) => Used::Static,
            (false, true) => Used::Vector,
            (false, false) => Used::Hybrid,
        };
        if only {
            return self.found(&near, used, limit);
        }
        let by_words = self.index.find(text, depth, mine);
        let weight = if built_in { table::WEIGHT } else { 1.0 };
        let legs = [
            Leg {
                ranked: &by_words,
                weight: 1.0,
            },
            Leg {
                ranked: &near,
                weight,
            },
        ];
        let fused = match store.search.fusion {
            SearchFusion::ReciprocalRank => fuse::by_rank(&legs),
            SearchFusion::LinearCombination => fuse::by_score(&legs),
        };
        self.found(&fused, used, limit)
    }

    fn found(&self, ranked: &[(i64, f64)], used: Used, limit: usize) -> Found {
        let hits = ranked.iter().filter_map(|(n, score)| {
            let mut hit = self.rows.get(n)?.hit();
            hit.entry.score = Some(*score);
            Some(hit)
        });
        Found {
            hits: hits.take(limit).collect(),
            used: Some(used),
        }
    }
}
