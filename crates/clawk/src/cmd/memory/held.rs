//! Where an agent's memory lies: in the state's database, and in folders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_memory::Held;
use clawk_recall::entry::Hit;
use serde_json::{Value, json};

use super::PartArgs;
use crate::out::harmless;
use crate::state::kept::{MemoryPart, Options, Reader, Remembered, StateDir, StateError};

/// Entries read at once.
const PAGE: usize = 500;

/// One scope of one store.
#[derive(Debug)]
pub(super) enum Part {
    Rows(Box<MemoryPart>),
    Folder(Box<Held>),
}

/// An entry, and where it lies.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) store: String,
    pub(super) scope: String,
    pub(super) hit: Hit,
    /// Where it lies in the database; none: in a folder.
    pub(super) row: Option<Remembered>,
}

impl From<Remembered> for Found {
    fn from(row: Remembered) -> Self {
        Self {
            store: row.store.clone(),
            scope: row.scope.clone(),
            hit: Hit {
                entry: row.entry.clone(),
                mark: row.mark.clone(),
            },
            row: Some(row),
        }
    }
}

impl Part {
    pub(super) fn store(&self) -> &str {
        match self {
            Self::Rows(part) => &part.store,
            Self::Folder(held) => &held.store,
        }
    }

    pub(super) fn scope(&self) -> &str {
        match self {
            Self::Rows(part) => &part.scope,
            Self::Folder(held) => &held.scope,
        }
    }

    pub(super) fn entries(&self) -> u64 {
        match self {
            Self::Rows(part) => part.entries,
            Self::Folder(held) => held.count(),
        }
    }

    fn found(&self, hits: Vec<Hit>) -> Vec<Found> {
        let found = |hit| Found {
            store: self.store().to_owned(),
            scope: self.scope().to_owned(),
            hit,
            row: None,
        };
        hits.into_iter().map(found).collect()
    }

    /// The newest first.
    pub(super) fn newest(&self, reader: &Reader, aside: bool, limit: usize) -> Result<Vec<Found>> {
        let rows = match self {
            Self::Folder(held) => return Ok(self.found(held.newest(aside, limit))),
            Self::Rows(part) if aside => reader.set_aside(part, limit)?,
            Self::Rows(part) => reader.remembered(part, None, limit)?,
        };
        Ok(rows.into_iter().map(Found::from).collect())
    }

    /// By their words, the best first.
    pub(super) fn search(&self, reader: &Reader, words: &str, limit: usize) -> Result<Vec<Found>> {
        match self {
            Self::Folder(held) => Ok(self.found(held.search(words, limit))),
            Self::Rows(part) => {
                let rows = reader.recalled(part, words, limit)?;
                Ok(rows.into_iter().map(Found::from).collect())
            }
        }
    }

    /// Those with this id or key.
    pub(super) fn named(&self, reader: &Reader, name: &str) -> Result<Vec<Found>> {
        match self {
            Self::Folder(held) => Ok(self.found(held.named(name))),
            Self::Rows(part) => {
                let rows = reader.remembered_as(std::slice::from_ref(part), name)?;
                Ok(rows.into_iter().map(Found::from).collect())
            }
        }
    }

    /// Each entry, the newest first; those that compaction set aside are not among them.
    pub(super) fn each(&self, reader: &Reader, mut take: impl FnMut(Found) -> Result<()>) -> Result<()> {
        let part = match self {
            Self::Folder(held) => {
                let all = self.found(held.newest(false, usize::MAX));
                return all.into_iter().try_for_each(take);
            }
            Self::Rows(part) => part,
        };
        let mut before = None;
        loop {
            let page = reader.remembered(part, before, PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            before = Some(last.row);
            page.into_iter().map(Found::from).try_for_each(&mut take)?;
        }
    }
}

impl PartArgs {
    /// The state, and the parts that are meant: some, if a store or a scope is named.
    pub(super) fn open(&self) -> Result<(PathBuf, Reader, Vec<Part>)> {
        let dir = self.which.dir()?;
        let reader = Reader::open(&dir)?;
        let all = all(&dir, &reader)?;
        let known: Vec<String> = all.iter().map(place).collect();
        let fits = |part: &Part| {
            self.store.as_ref().is_none_or(|store| store == part.store())
                && self.scope.as_ref().is_none_or(|scope| scope == part.scope())
        };
        let parts: Vec<Part> = all.into_iter().filter(fits).collect();
        if parts.is_empty() && (self.store.is_some() || self.scope.is_some()) {
            bail!(
                "nothing is remembered there; there is: {}",
                if known.is_empty() {
                    "nothing at all".to_owned()
                } else {
                    known.join(", ")
                }
            );
        }
        Ok((dir, reader, parts))
    }

    /// The same with the state's lock: nobody else writes meanwhile.
    pub(super) fn own(&self, why: &'static str) -> Result<(StateDir, Reader, Vec<Part>)> {
        let dir = self.which.dir()?;
        let state = match StateDir::open(&dir, Options::default()) {
            Err(error @ StateError::Locked { .. }) => return Err(error).context(why),
            other => other?,
        };
        let (_, reader, parts) = self.open()?;
        Ok((state, reader, parts))
    }
}

/// Every part, the database's first.
pub(super) fn all(dir: &Path, reader: &Reader) -> Result<Vec<Part>> {
    let rows = reader.memory_parts(None)?;
    let vault = reader.vault().cloned().map(Arc::new);
    let held = Held::all(&dir.join("memory"), vault.as_ref()).with_context(|| match reader.lacks_key() {
        Some(why) => format!("the stores in folders can't be read: something is encrypted, and {why}"),
        None => "the stores in folders can't be read".to_owned(),
    })?;
    Ok(rows
        .into_iter()
        .map(|part| Part::Rows(Box::new(part)))
        .chain(held.into_iter().map(|held| Part::Folder(Box::new(held))))
        .collect())
}

fn place(part: &Part) -> String {
    at(part.store(), part.scope())
}

pub(super) fn at(store: &str, scope: &str) -> String {
    let scope = if scope.is_empty() { "everybody" } else { scope };
    format!("`{}` of {}", harmless(store), harmless(scope))
}

/// An entry as JSON.
pub(super) fn one(found: &Found) -> Value {
    let Hit { entry, mark } = &found.hit;
    let mut all = json!({
        "store": found.store, "scope": found.scope, "id": entry.id, "key": entry.key,
        "timestamp": entry.timestamp, "content": entry.content, "metadata": entry.metadata,
        "origin": mark.origin, "untrusted": mark.untrusted, "session": mark.session, "made_from": mark.made_from,
    });
    if let (Some(score), Value::Object(members)) = (entry.score, &mut all) {
        members.insert("score".to_owned(), json!(score));
    }
    all
}

pub(super) fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
