//! Encrypted rows on their way: opened where they are read, sealed again for their new place where they are written. Between the two
//! they are in the memory of the one process that moves them.

use std::collections::{BTreeMap, BTreeSet};

use clawk_proto::Digest;
use clawk_recall::entry::Mark;
use clawk_recall::keys::{Keys, Seals, proof_of};
use clawk_recall::seal::{Bundle, Vault, is_sealed, is_sealed_text};
use serde_json::Value;

use super::{CONTENTS, Cell, MEMORY, Row, Table, VECTORS};

/// Entries that compaction set aside; their first columns are those of [`MEMORY`].
const ASIDE: &str = "memory_aside";
/// Which scope of which store.
const PARTS: &str = "memory_parts";

/// For what a store seals an entry: the number of its part, and its id.
type Place = fn(part: i64, id: &str) -> String;

/// Opens or seals the rows of one side of a move.
#[derive(Debug)]
pub struct Carrier {
    seals: Seals,
    place: Place,
    /// What a column without a mark holds.
    unmarked: Cell,
    /// Parts of encrypted stores.
    parts: BTreeSet<i64>,
    /// The names of the parts' stores.
    stores: BTreeMap<i64, String>,
}

fn failed(error: impl std::fmt::Display) -> String {
    format!("what is encrypted can't be moved: {error}")
}

impl Carrier {
    /// Of a side whose entries are sealed for these places.
    #[must_use]
    pub const fn new(seals: Seals, place: Place, unmarked: Cell) -> Self {
        Self {
            seals,
            place,
            unmarked,
            parts: BTreeSet::new(),
            stores: BTreeMap::new(),
        }
    }

    /// The same of a target, which is encrypted as its source is.
    #[must_use]
    pub fn of_target(keys: Option<Keys>, place: Place, unmarked: Cell) -> Self {
        let seals = keys.map(|keys| Seals::new(keys.vault, keys.stores));
        Self::new(seals.unwrap_or_default(), place, unmarked)
    }

    /// What it opens and seals with.
    #[must_use]
    pub const fn seals(&self) -> &Seals {
        &self.seals
    }

    /// The encrypted stores that have come by, by name.
    #[must_use]
    pub fn carried(&self) -> BTreeSet<&str> {
        let names = self.parts.iter().filter_map(|part| self.stores.get(part));
        names.map(String::as_str).collect()
    }

    /// A proof of the key for each encrypted store, by name.
    ///
    /// # Errors
    /// There are no random bytes.
    pub fn proofs(&self) -> Result<Vec<(String, Vec<u8>)>, String> {
        let Some(vault) = self.seals.vault() else {
            return Ok(Vec::new());
        };
        let proof = |store: &String| {
            let proof = vault.seal(&proof_of(store), clawk_recall::keys::PROOF);
            Ok((store.clone(), proof.map_err(failed)?))
        };
        self.seals.stores().iter().map(proof).collect()
    }

    /// Rows as they were before they were sealed.
    ///
    /// # Errors
    /// The key is not there, or a value was changed or lies at another place than its own.
    pub fn open(&self, table: &Table, rows: &mut [Row]) -> Result<(), String> {
        for row in rows {
            match table.name {
                MEMORY | ASIDE => self.open_entry(row)?,
                VECTORS => self.open_vector(row)?,
                CONTENTS => self.open_content(row)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn open_entry(&self, row: &mut Row) -> Result<(), String> {
        let [
            _,
            Cell::Int(part),
            Cell::Text(id),
            key,
            content,
            metadata,
            _,
            mark,
            ..,
        ] = row.as_mut_slice()
        else {
            return Ok(());
        };
        let Cell::Text(sealed) = &*content else {
            return Ok(());
        };
        if !is_sealed_text(sealed) {
            return Ok(());
        }
        let vault = self.seals.known().map_err(failed)?;
        let opened = vault
            .open_text(&(self.place)(*part, id), sealed)
            .map_err(failed)?;
        let bundle: Bundle = serde_json::from_str(&opened.unwrap_or_default()).map_err(failed)?;
        *key = bundle.key.map_or(Cell::Null, Cell::Text);
        *content = Cell::Text(bundle.content.to_string());
        *metadata = bundle
            .metadata
            .map_or(Cell::Null, |about| Cell::Text(about.to_string()));
        *mark = Cell::Text(serde_json::to_string(&bundle.mark).map_err(failed)?);
        Ok(())
    }

    fn open_vector(&self, row: &mut Row) -> Result<(), String> {
        if let [Cell::Int(n), .., Cell::Bytes(bytes)] = row.as_mut_slice()
            && is_sealed(bytes)
        {
            let vault = self.seals.known().map_err(failed)?;
            let opened = vault.open(&format!("vector/{n}"), bytes).map_err(failed)?;
            *bytes = opened.unwrap_or_default();
        }
        Ok(())
    }

    fn open_content(&self, row: &mut Row) -> Result<(), String> {
        if let [Cell::Bytes(digest), Cell::Bytes(bytes)] = row.as_mut_slice()
            && let Ok(digest) = <[u8; 32]>::try_from(digest.as_slice()).map(Digest)
        {
            let opened = self.seals.opened(digest, std::mem::take(bytes));
            *bytes = opened.map_err(failed)?;
        }
        Ok(())
    }

    /// Rows as they are written: sealed, where their store is encrypted. Parts have to come before what belongs to them.
    ///
    /// # Errors
    /// There are no random bytes, or an entry is not what it should be.
    pub fn close(&mut self, table: &Table, rows: &mut [Row]) -> Result<(), String> {
        let Some(vault) = self.seals.vault().cloned() else {
            return Ok(());
        };
        for row in rows {
            match table.name {
                PARTS => self.part(row),
                MEMORY | ASIDE => self.close_entry(&vault, row)?,
                VECTORS => self.close_vector(&vault, row)?,
                CONTENTS => self.close_content(row)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn part(&mut self, row: &Row) {
        if let [Cell::Int(part), Cell::Text(store), ..] = row.as_slice()
            && self.seals.holds(store)
        {
            self.parts.insert(*part);
            self.stores.insert(*part, store.clone());
        }
    }

    fn close_entry(&self, vault: &Vault, row: &mut Row) -> Result<(), String> {
        let [
            _,
            Cell::Int(part),
            Cell::Text(id),
            key,
            content,
            metadata,
            _,
            mark,
            ..,
        ] = row.as_mut_slice()
        else {
            return Ok(());
        };
        if !self.parts.contains(part) {
            return Ok(());
        }
        let text = |cell: &Cell| match cell {
            Cell::Text(text) => Some(text.clone()),
            Cell::Null | Cell::Int(_) | Cell::Bytes(_) => None,
        };
        let said = text(content).unwrap_or_default();
        let about = text(metadata).map(|about| serde_json::from_str(&about));
        let bundle = Bundle {
            key: text(key),
            // silent-ok: of an earlier version, which kept plain text
            content: serde_json::from_str(&said).unwrap_or(Value::String(said)),
            metadata: about.transpose().map_err(failed)?,
            // A mark that can't be read says nothing good of the entry.
            mark: text(mark)
                .and_then(|mark| serde_json::from_str(&mark).ok()) // silent-ok: untrusted then
                .unwrap_or_else(|| Mark {
                    untrusted: true,
                    ..Mark::default()
                }),
        };
        let sealed = vault.seal_text(&(self.place)(*part, id), &bundle.text());
        *content = Cell::Text(sealed.map_err(failed)?);
        *key = bundle.key.map_or(Cell::Null, |key| Cell::Text(vault.name(&key)));
        *metadata = Cell::Null;
        *mark = self.unmarked.clone();
        Ok(())
    }

    fn close_vector(&self, vault: &Vault, row: &mut Row) -> Result<(), String> {
        if let [Cell::Int(n), Cell::Int(part), .., Cell::Bytes(bytes)] = row.as_mut_slice()
            && self.parts.contains(part)
        {
            *bytes = vault.seal(&format!("vector/{n}"), bytes).map_err(failed)?;
        }
        Ok(())
    }

    fn close_content(&self, row: &mut Row) -> Result<(), String> {
        if let [Cell::Bytes(digest), Cell::Bytes(bytes)] = row.as_mut_slice()
            && let Ok(digest) = <[u8; 32]>::try_from(digest.as_slice()).map(Digest)
            && let Some(sealed) = self.seals.closed(digest, bytes).map_err(failed)?
        {
            *bytes = sealed;
        }
        Ok(())
    }
}
