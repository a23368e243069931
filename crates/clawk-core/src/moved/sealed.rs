//! Encrypted rows on their way: opened where they are read, sealed again for their new place where they are written. Between the two
//! they are in the memory of the one process that moves them.

use std::collections::{BTreeMap, BTreeSet};

use clawk_proto::Digest;
use clawk_recall::entry::EntryProvenance;
use clawk_recall::keys::{Keys, StateSealer, proof_of};
use clawk_recall::seal::{SealKeyring, SealedEntryFields, is_sealed, is_sealed_text};

use super::{CONTENTS, MEMORY, MovedCell, MovedRow, Table, VECTORS};

/// What a sealed reason of the outbox begins with: `~` and the base64 of a sealed value's first bytes.
const SEALED_REASON: &str = "~Y2xhd2sAcz";

/// Entries that compaction set aside; their first columns are those of [`MEMORY`].
const ASIDE: &str = "memory_aside";
/// Which scope of which store.
const PARTS: &str = "memory_parts";
const OUTBOX: &str = "outbox";

/// For what a store seals an entry: the number of its part, and its id.
type SealContextFn = fn(part: i64, id: &str) -> String;

/// Opens or seals the rows of one side of a move.
#[derive(Debug)]
pub struct RowSealer {
    seals: StateSealer,
    place: SealContextFn,
    /// What a column without a mark holds.
    unmarked: MovedCell,
    /// Parts of encrypted stores.
    parts: BTreeSet<i64>,
    /// The names of the parts' stores.
    stores: BTreeMap<i64, String>,
}

fn failed(error: impl std::fmt::Display) -> String {
    format!("what is encrypted can't be moved: {error}")
}

fn misshapen(what: &str) -> String {
    failed(format!("{what} has other columns than it should"))
}

/// The cells of an entry, in the columns of [`MEMORY`].
struct EntryCells<'a> {
    part: i64,
    id: &'a str,
    key: &'a mut MovedCell,
    content: &'a mut String,
    metadata: &'a mut MovedCell,
    mark: &'a mut MovedCell,
}

impl<'a> EntryCells<'a> {
    /// Of this row. A row that is something else must not go on its way unsealed.
    fn of(row: &'a mut MovedRow) -> Result<Self, String> {
        match row.as_mut_slice() {
            [
                _,
                MovedCell::Int(part),
                MovedCell::Text(id),
                key,
                MovedCell::Text(content),
                metadata,
                _,
                mark,
                ..,
            ] => Ok(Self {
                part: *part,
                id,
                key,
                content,
                metadata,
                mark,
            }),
            _ => Err(misshapen("an entry")),
        }
    }
}

/// The number of a vector's entry, its part, and its bytes.
fn vector(row: &mut MovedRow) -> Result<(i64, i64, &mut Vec<u8>), String> {
    match row.as_mut_slice() {
        [
            MovedCell::Int(n),
            MovedCell::Int(part),
            ..,
            MovedCell::Bytes(bytes),
        ] => Ok((*n, *part, bytes)),
        _ => Err(misshapen("a vector")),
    }
}

/// The reason of an entry of the outbox, and for what it is sealed.
fn reason(row: &mut MovedRow) -> Option<(String, &mut String)> {
    let [MovedCell::Bytes(message), .., MovedCell::Text(reason)] = row.as_mut_slice() else {
        return None;
    };
    let message = uuid::Uuid::from_slice(message).ok()?; // silent-ok: no id of ours is sealed
    Some((format!("{OUTBOX}/{}", message.simple()), reason))
}

fn close_reason(vault: &SealKeyring, row: &mut MovedRow) -> Result<(), String> {
    if let Some((place, reason)) = reason(row) {
        *reason = vault.seal_text(&place, reason).map_err(failed)?;
    }
    Ok(())
}

/// A content and its digest.
fn content(row: &mut MovedRow) -> Result<(Digest, &mut Vec<u8>), String> {
    let [MovedCell::Bytes(digest), MovedCell::Bytes(bytes)] = row.as_mut_slice() else {
        return Err(misshapen("a content"));
    };
    let digest = <[u8; 32]>::try_from(digest.as_slice());
    let digest = digest.map_err(|_| failed("a content has no valid digest"))?; // silent-ok: its length is the whole cause
    Ok((Digest(digest), bytes))
}

impl RowSealer {
    /// Of a side whose entries are sealed for these places.
    #[must_use]
    pub const fn new(seals: StateSealer, place: SealContextFn, unmarked: MovedCell) -> Self {
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
    pub fn of_target(keys: Option<Keys>, place: SealContextFn, unmarked: MovedCell) -> Self {
        let seals = keys.map(|keys| StateSealer::new(keys.vault, keys.stores));
        Self::new(seals.unwrap_or_default(), place, unmarked)
    }

    /// What it opens and seals with.
    #[must_use]
    pub const fn seals(&self) -> &StateSealer {
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
    /// The system gives no random bytes.
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

    /// Rows as they were before they were sealed. Parts have to come before what belongs to them.
    ///
    /// # Errors
    /// The key is not there, a value was changed or lies at another place than its own, or one of an encrypted store is not sealed:
    /// whoever has no key put it there.
    pub fn open(&mut self, table: &Table, rows: &mut [MovedRow]) -> Result<(), String> {
        for row in rows {
            match table.name {
                PARTS => self.part(row)?,
                MEMORY | ASIDE => self.open_entry(row)?,
                VECTORS => self.open_vector(row)?,
                CONTENTS => self.open_content(row)?,
                OUTBOX => self.open_reason(row)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn open_entry(&self, row: &mut MovedRow) -> Result<(), String> {
        let entry = EntryCells::of(row)?;
        if !is_sealed_text(entry.content) {
            return self.may_be_plain(entry.part, "an entry");
        }
        let vault = self.seals.known().map_err(failed)?;
        let opened = vault
            .open_text(&(self.place)(entry.part, entry.id), entry.content)
            .map_err(failed)?
            .ok_or_else(|| failed("an entry can't be opened"))?;
        let bundle: SealedEntryFields = serde_json::from_str(&opened).map_err(failed)?;
        *entry.key = bundle.key.map_or(MovedCell::Null, MovedCell::Text);
        *entry.content = bundle.content.to_string();
        *entry.metadata = bundle
            .metadata
            .map_or(MovedCell::Null, |about| MovedCell::Text(about.to_string()));
        *entry.mark = MovedCell::Text(serde_json::to_string(&bundle.mark).map_err(failed)?);
        Ok(())
    }

    fn open_vector(&self, row: &mut MovedRow) -> Result<(), String> {
        let (n, part, bytes) = vector(row)?;
        if !is_sealed(bytes) {
            return self.may_be_plain(part, "a vector");
        }
        let vault = self.seals.known().map_err(failed)?;
        let opened = vault.open(&format!("vector/{n}"), bytes).map_err(failed)?;
        *bytes = opened.ok_or_else(|| failed("a vector can't be opened"))?;
        Ok(())
    }

    /// Every value of an encrypted store is sealed before anything of it is moved.
    fn may_be_plain(&self, part: i64, what: &str) -> Result<(), String> {
        if !self.parts.contains(&part) {
            return Ok(());
        }
        let store = self.stores.get(&part).map_or("", String::as_str);
        Err(failed(format!(
            "{what} of store `{store}` is not encrypted, so it was not put there by clawk"
        )))
    }

    /// Why an answer is owed; one of an earlier version is not sealed.
    fn open_reason(&self, row: &mut MovedRow) -> Result<(), String> {
        let Some((place, reason)) = reason(row) else {
            return Ok(());
        };
        // Earlier versions stored others' texts as they were, also those that begin with `~`.
        if reason.starts_with(SEALED_REASON) {
            let vault = self.seals.known().map_err(failed)?;
            let opened = vault.open_text(&place, reason).map_err(failed)?;
            *reason = opened.ok_or_else(|| failed("a reason can't be opened"))?;
        }
        Ok(())
    }

    fn open_content(&self, row: &mut MovedRow) -> Result<(), String> {
        let (digest, bytes) = content(row)?;
        let opened = self.seals.opened(digest, std::mem::take(bytes));
        *bytes = opened.map_err(failed)?;
        Ok(())
    }

    /// Rows as they are written: sealed, where their store is encrypted. Parts have to come before what belongs to them.
    ///
    /// # Errors
    /// The system gives no random bytes, or a row has other columns than it should.
    pub fn close(&mut self, table: &Table, rows: &mut [MovedRow]) -> Result<(), String> {
        let Some(vault) = self.seals.vault().cloned() else {
            return Ok(());
        };
        for row in rows {
            match table.name {
                PARTS => self.part(row)?,
                MEMORY | ASIDE => self.close_entry(&vault, row)?,
                VECTORS => self.close_vector(&vault, row)?,
                CONTENTS => self.close_content(row)?,
                OUTBOX => close_reason(&vault, row)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn part(&mut self, row: &MovedRow) -> Result<(), String> {
        let [MovedCell::Int(part), MovedCell::Text(store), ..] = row.as_slice() else {
            return Err(misshapen("a scope"));
        };
        if self.seals.holds(store) {
            self.parts.insert(*part);
            self.stores.insert(*part, store.clone());
        }
        Ok(())
    }

    fn close_entry(&self, vault: &SealKeyring, row: &mut MovedRow) -> Result<(), String> {
        let entry = EntryCells::of(row)?;
        if !self.parts.contains(&entry.part) {
            return Ok(());
        }
        let text = |cell: &MovedCell| match cell {
            MovedCell::Text(text) => Some(text.clone()),
            MovedCell::Null | MovedCell::Int(_) | MovedCell::Bytes(_) => None,
        };
        let about = text(entry.metadata).map(|about| serde_json::from_str(&about));
        let bundle = SealedEntryFields {
            key: text(entry.key),
            // silent-ok: of an earlier version, which kept plain text
            content: serde_json::from_str(entry.content).unwrap_or_else(|_| entry.content.as_str().into()),
            metadata: about.transpose().map_err(failed)?,
            // A mark that can't be read says nothing good of the entry.
            mark: text(entry.mark)
                .and_then(|mark| serde_json::from_str(&mark).ok()) // silent-ok: untrusted then
                .unwrap_or_else(|| EntryProvenance {
                    untrusted: true,
                    ..EntryProvenance::default()
                }),
        };
        let sealed = vault.seal_text(&(self.place)(entry.part, entry.id), &bundle.text());
        *entry.content = sealed.map_err(failed)?;
        *entry.key = bundle
            .key
            .map_or(MovedCell::Null, |key| MovedCell::Text(vault.name(&key)));
        *entry.metadata = MovedCell::Null;
        *entry.mark = self.unmarked.clone();
        Ok(())
    }

    fn close_vector(&self, vault: &SealKeyring, row: &mut MovedRow) -> Result<(), String> {
        let (n, part, bytes) = vector(row)?;
        if self.parts.contains(&part) {
            *bytes = vault.seal(&format!("vector/{n}"), bytes).map_err(failed)?;
        }
        Ok(())
    }

    fn close_content(&self, row: &mut MovedRow) -> Result<(), String> {
        let (digest, bytes) = content(row)?;
        if let Some(sealed) = self.seals.closed(digest, bytes).map_err(failed)? {
            *bytes = sealed;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clawk_recall::seal::SealKey;

    use super::*;
    use crate::moved::TABLES;

    fn table(name: &str) -> &'static Table {
        TABLES.iter().find(|table| table.name == name).unwrap()
    }

    /// A carrier with one encrypted store (part 1), and one of its entries in plain text.
    fn carrier() -> (RowSealer, MovedRow) {
        let vault = SealKeyring::new(SealKey::from_hex(&"a".repeat(64)).unwrap());
        let seals = StateSealer::new(vault, BTreeSet::from(["secret".to_owned()]));
        let carrier = RowSealer::new(seals, |part, id| format!("{part}/{id}"), MovedCell::Null);
        let text = |text: &str| MovedCell::Text(text.to_owned());
        let whole = vec![
            MovedCell::Int(1),
            MovedCell::Int(1),
            text("id"),
            MovedCell::Null,
            text("\"planted\""),
            MovedCell::Null,
            MovedCell::Int(0),
            text("{}"),
            MovedCell::Int(0),
        ];
        (carrier, whole)
    }

    fn part(number: i64, store: &str) -> MovedRow {
        let text = |text: &str| MovedCell::Text(text.to_owned());
        vec![MovedCell::Int(number), text(store), text(""), MovedCell::Int(1)]
    }

    #[test]
    fn what_is_plain_in_an_encrypted_store_does_not_cross() {
        let (mut carrier, whole) = carrier();
        let mut parts = [part(1, "secret"), part(2, "open")];
        carrier.open(table(PARTS), &mut parts).unwrap();
        let error = carrier.open(table(MEMORY), &mut [whole.clone()]).unwrap_err();
        assert!(
            error.contains("`secret`") && !error.contains("planted"),
            "{error}"
        );
        carrier.open(table(ASIDE), &mut [whole.clone()]).unwrap_err();
        let vector = |part| vec![MovedCell::Int(1), MovedCell::Int(part), MovedCell::Bytes(vec![1])];
        let error = carrier.open(table(VECTORS), &mut [vector(1)]).unwrap_err();
        assert!(error.contains("`secret`"), "{error}");
        // What was sealed crosses, and so does what lies in a store that is not encrypted.
        let mut sealed = [whole.clone()];
        carrier.close(table(MEMORY), &mut sealed).unwrap();
        carrier.open(table(MEMORY), &mut sealed).unwrap();
        assert!(format!("{sealed:?}").contains("planted"));
        let mut other = whole;
        other[1] = MovedCell::Int(2);
        carrier.open(table(MEMORY), &mut [other]).unwrap();
        carrier.open(table(VECTORS), &mut [vector(2)]).unwrap();
    }

    #[test]
    fn what_is_not_shaped_as_it_should_be_does_not_cross_in_plain_text() {
        let (mut carrier, whole) = carrier();
        carrier.close(table(PARTS), &mut [part(1, "secret")]).unwrap();
        let mut rows = [whole.clone()];
        carrier.close(table(MEMORY), &mut rows).unwrap();
        assert!(!format!("{rows:?}").contains("planted"), "{rows:?}");
        let mut moved = whole;
        moved.remove(3);
        for (name, row) in [
            (MEMORY, moved),
            (
                VECTORS,
                vec![MovedCell::Int(1), MovedCell::Null, MovedCell::Bytes(vec![1])],
            ),
            (
                CONTENTS,
                vec![MovedCell::Bytes(vec![1]), MovedCell::Bytes(b"planted".to_vec())],
            ),
            (PARTS, vec![MovedCell::Int(2), MovedCell::Null]),
        ] {
            carrier.close(table(name), &mut [row]).unwrap_err();
        }
    }
}
