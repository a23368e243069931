//! Encrypted rows in a move: decrypted where they are read, encrypted again for their new place where they are written. In between
//! they are only in the memory of the moving process.

use std::collections::{BTreeMap, BTreeSet};

use clawk_proto::Digest;
use clawk_recall::entry::EntryProvenance;
use clawk_recall::keys::{Keys, StateSealer, proof_of};
use clawk_recall::seal::{SealKeyring, SealedEntryFields, is_sealed, is_sealed_text};

use super::{CONTENTS, MEMORY, MovedCell, MovedRow, Table, VECTORS};

/// Prefix of an encrypted reason in the outbox: `~` and the base64 of an encrypted value's first bytes.
const SEALED_REASON: &str = "~Y2xhd2sAcz";

/// Entries that compaction set aside; their first columns equal those of [`MEMORY`].
const ASIDE: &str = "memory_aside";
/// The scopes of each store.
const PARTS: &str = "memory_parts";
const OUTBOX: &str = "outbox";

/// Returns the context for which a store encrypts an entry: the number of its part, and its id.
type SealContextFn = fn(part: i64, id: &str) -> String;

/// Decrypts or encrypts the rows of one side of a move.
#[derive(Debug)]
pub struct RowSealer {
    seals: StateSealer,
    place: SealContextFn,
    /// The value of a column without a mark.
    unmarked: MovedCell,
    /// Parts of encrypted stores.
    parts: BTreeSet<i64>,
    /// Store name of each part.
    stores: BTreeMap<i64, String>,
}

fn seal_error(error: impl std::fmt::Display) -> String {
    format!("what is encrypted can't be moved: {error}")
}

fn shape_error(what: &str) -> String {
    seal_error(format!("{what} has other columns than it should"))
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
    /// Returns the cells of this row. An error for any other row keeps it from being moved unencrypted.
    fn from_row(row: &'a mut MovedRow) -> Result<Self, String> {
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
            _ => Err(shape_error("an entry")),
        }
    }
}

/// Returns the number of a vector's entry, its part, and its bytes.
fn vector_cells(row: &mut MovedRow) -> Result<(i64, i64, &mut Vec<u8>), String> {
    match row.as_mut_slice() {
        [
            MovedCell::Int(n),
            MovedCell::Int(part),
            ..,
            MovedCell::Bytes(bytes),
        ] => Ok((*n, *part, bytes)),
        _ => Err(shape_error("a vector")),
    }
}

/// Returns the reason of an outbox entry, and the context for which it is encrypted.
fn reason_cells(row: &mut MovedRow) -> Option<(String, &mut String)> {
    let [MovedCell::Bytes(message), .., MovedCell::Text(reason)] = row.as_mut_slice() else {
        return None;
    };
    let message = uuid::Uuid::from_slice(message).ok()?; // silent-ok: no id of ours is sealed
    Some((format!("{OUTBOX}/{}", message.simple()), reason))
}

fn close_reason(vault: &SealKeyring, row: &mut MovedRow) -> Result<(), String> {
    if let Some((place, reason)) = reason_cells(row) {
        *reason = vault.seal_text(&place, reason).map_err(seal_error)?;
    }
    Ok(())
}

/// Returns a content and its digest.
fn content_cells(row: &mut MovedRow) -> Result<(Digest, &mut Vec<u8>), String> {
    let [MovedCell::Bytes(digest), MovedCell::Bytes(bytes)] = row.as_mut_slice() else {
        return Err(shape_error("a content"));
    };
    let digest = <[u8; 32]>::try_from(digest.as_slice());
    let digest = digest.map_err(|_| seal_error("a content has no valid digest"))?; // silent-ok: its length is the whole cause
    Ok((Digest(digest), bytes))
}

impl RowSealer {
    /// Makes the sealer of a side with this encryption context.
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

    /// Makes the sealer of a target, which is encrypted like its source.
    #[must_use]
    pub fn of_target(keys: Option<Keys>, place: SealContextFn, unmarked: MovedCell) -> Self {
        let seals = keys.map(|keys| StateSealer::new(keys.vault, keys.stores));
        Self::new(seals.unwrap_or_default(), place, unmarked)
    }

    /// Returns the key used for decryption and encryption.
    #[must_use]
    pub const fn state_sealer(&self) -> &StateSealer {
        &self.seals
    }

    /// Returns the names of the encrypted stores that were moved.
    #[must_use]
    pub fn encrypted_stores(&self) -> BTreeSet<&str> {
        let names = self.parts.iter().filter_map(|part| self.stores.get(part));
        names.map(String::as_str).collect()
    }

    /// Returns a proof of the key for each encrypted store, by name.
    ///
    /// # Errors
    /// The system returns no random bytes.
    pub fn key_proofs(&self) -> Result<Vec<(String, Vec<u8>)>, String> {
        let Some(vault) = self.seals.vault() else {
            return Ok(Vec::new());
        };
        let proof = |store: &String| {
            let proof = vault.seal(&proof_of(store), clawk_recall::keys::PROOF);
            Ok((store.clone(), proof.map_err(seal_error)?))
        };
        self.seals.stores().iter().map(proof).collect()
    }

    /// Decrypts rows. Parts must come before the rows that belong to them.
    ///
    /// # Errors
    /// The key is missing, a value was changed or is in the wrong place, or a value of an encrypted store is not encrypted, so that
    /// it was written without the key.
    pub fn unseal_rows(&mut self, table: &Table, rows: &mut [MovedRow]) -> Result<(), String> {
        for row in rows {
            match table.name {
                PARTS => self.add_part(row)?,
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
        let entry = EntryCells::from_row(row)?;
        if !is_sealed_text(entry.content) {
            return self.may_be_plain(entry.part, "an entry");
        }
        let vault = self.seals.require_vault().map_err(seal_error)?;
        let opened = vault
            .open_text(&(self.place)(entry.part, entry.id), entry.content)
            .map_err(seal_error)?
            .ok_or_else(|| seal_error("an entry can't be opened"))?;
        let bundle: SealedEntryFields = serde_json::from_str(&opened).map_err(seal_error)?;
        *entry.key = bundle.key.map_or(MovedCell::Null, MovedCell::Text);
        *entry.content = bundle.content.to_string();
        *entry.metadata = bundle
            .metadata
            .map_or(MovedCell::Null, |about| MovedCell::Text(about.to_string()));
        *entry.mark = MovedCell::Text(serde_json::to_string(&bundle.mark).map_err(seal_error)?);
        Ok(())
    }

    fn open_vector(&self, row: &mut MovedRow) -> Result<(), String> {
        let (n, part, bytes) = vector_cells(row)?;
        if !is_sealed(bytes) {
            return self.may_be_plain(part, "a vector");
        }
        let vault = self.seals.require_vault().map_err(seal_error)?;
        let opened = vault.open(&format!("vector/{n}"), bytes).map_err(seal_error)?;
        *bytes = opened.ok_or_else(|| seal_error("a vector can't be opened"))?;
        Ok(())
    }

    /// Checks that every value of an encrypted store is encrypted before any of it is moved.
    fn may_be_plain(&self, part: i64, what: &str) -> Result<(), String> {
        if !self.parts.contains(&part) {
            return Ok(());
        }
        let store = self.stores.get(&part).map_or("", String::as_str);
        Err(seal_error(format!(
            "{what} of store `{store}` is not encrypted, so it was not put there by clawk"
        )))
    }

    /// Decrypts the reason of an outbox entry; one of an earlier version is not encrypted.
    fn open_reason(&self, row: &mut MovedRow) -> Result<(), String> {
        let Some((place, reason)) = reason_cells(row) else {
            return Ok(());
        };
        // Earlier versions stored text unencrypted, even if it begins with `~`.
        if reason.starts_with(SEALED_REASON) {
            let vault = self.seals.require_vault().map_err(seal_error)?;
            let opened = vault.open_text(&place, reason).map_err(seal_error)?;
            *reason = opened.ok_or_else(|| seal_error("a reason can't be opened"))?;
        }
        Ok(())
    }

    fn open_content(&self, row: &mut MovedRow) -> Result<(), String> {
        let (digest, bytes) = content_cells(row)?;
        let opened = self.seals.open_content(digest, std::mem::take(bytes));
        *bytes = opened.map_err(seal_error)?;
        Ok(())
    }

    /// Encrypts rows of encrypted stores before they are written. Parts must come before the rows that belong to them.
    ///
    /// # Errors
    /// The system returns no random bytes, or a row has unexpected columns.
    pub fn seal_rows(&mut self, table: &Table, rows: &mut [MovedRow]) -> Result<(), String> {
        let Some(vault) = self.seals.vault().cloned() else {
            return Ok(());
        };
        for row in rows {
            match table.name {
                PARTS => self.add_part(row)?,
                MEMORY | ASIDE => self.close_entry(&vault, row)?,
                VECTORS => self.close_vector(&vault, row)?,
                CONTENTS => self.close_content(row)?,
                OUTBOX => close_reason(&vault, row)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add_part(&mut self, row: &MovedRow) -> Result<(), String> {
        let [MovedCell::Int(part), MovedCell::Text(store), ..] = row.as_slice() else {
            return Err(shape_error("a scope"));
        };
        if self.seals.is_encrypted(store) {
            self.parts.insert(*part);
            self.stores.insert(*part, store.clone());
        }
        Ok(())
    }

    fn close_entry(&self, vault: &SealKeyring, row: &mut MovedRow) -> Result<(), String> {
        let entry = EntryCells::from_row(row)?;
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
            // silent-ok: an earlier version stored plain text
            content: serde_json::from_str(entry.content).unwrap_or_else(|_| entry.content.as_str().into()),
            metadata: about.transpose().map_err(seal_error)?,
            // An unreadable mark means that the entry is not trusted.
            mark: text(entry.mark)
                .and_then(|mark| serde_json::from_str(&mark).ok()) // silent-ok: untrusted then
                .unwrap_or_else(|| EntryProvenance {
                    untrusted: true,
                    ..EntryProvenance::default()
                }),
        };
        let sealed = vault.seal_text(&(self.place)(entry.part, entry.id), &bundle.text());
        *entry.content = sealed.map_err(seal_error)?;
        *entry.key = bundle
            .key
            .map_or(MovedCell::Null, |key| MovedCell::Text(vault.name(&key)));
        *entry.metadata = MovedCell::Null;
        *entry.mark = self.unmarked.clone();
        Ok(())
    }

    fn close_vector(&self, vault: &SealKeyring, row: &mut MovedRow) -> Result<(), String> {
        let (n, part, bytes) = vector_cells(row)?;
        if self.parts.contains(&part) {
            *bytes = vault.seal(&format!("vector/{n}"), bytes).map_err(seal_error)?;
        }
        Ok(())
    }

    fn close_content(&self, row: &mut MovedRow) -> Result<(), String> {
        let (digest, bytes) = content_cells(row)?;
        if let Some(sealed) = self.seals.seal_content(digest, bytes).map_err(seal_error)? {
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
        carrier.unseal_rows(table(PARTS), &mut parts).unwrap();
        let error = carrier
            .unseal_rows(table(MEMORY), &mut [whole.clone()])
            .unwrap_err();
        assert!(
            error.contains("`secret`") && !error.contains("planted"),
            "{error}"
        );
        carrier
            .unseal_rows(table(ASIDE), &mut [whole.clone()])
            .unwrap_err();
        let vector = |part| vec![MovedCell::Int(1), MovedCell::Int(part), MovedCell::Bytes(vec![1])];
        let error = carrier.unseal_rows(table(VECTORS), &mut [vector(1)]).unwrap_err();
        assert!(error.contains("`secret`"), "{error}");
        // What was sealed crosses, and so does what lies in a store that is not encrypted.
        let mut sealed = [whole.clone()];
        carrier.seal_rows(table(MEMORY), &mut sealed).unwrap();
        carrier.unseal_rows(table(MEMORY), &mut sealed).unwrap();
        assert!(format!("{sealed:?}").contains("planted"));
        let mut other = whole;
        other[1] = MovedCell::Int(2);
        carrier.unseal_rows(table(MEMORY), &mut [other]).unwrap();
        carrier.unseal_rows(table(VECTORS), &mut [vector(2)]).unwrap();
    }

    #[test]
    fn what_is_not_shaped_as_it_should_be_does_not_cross_in_plain_text() {
        let (mut carrier, whole) = carrier();
        carrier.seal_rows(table(PARTS), &mut [part(1, "secret")]).unwrap();
        let mut rows = [whole.clone()];
        carrier.seal_rows(table(MEMORY), &mut rows).unwrap();
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
            carrier.seal_rows(table(name), &mut [row]).unwrap_err();
        }
    }
}
