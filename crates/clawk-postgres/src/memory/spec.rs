//! A store and the keyring of its entries. The server can't read anything of an encrypted store, neither words nor vectors.

use std::ops::Deref;

use clawk_manifest::model::Store;
use clawk_proto::method::MemoryEntry;
use clawk_recall::entry::{EntryHit, EntryProvenance};
use clawk_recall::seal::{SealKeyring, SealedEntryFields, is_sealed_text};
use serde_json::Value;

use crate::error::PgFailure;

/// The store's declaration in the manifest, with the keyring if there is one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spec<'a> {
    pub(super) store: &'a Store,
    pub(super) vault: Option<&'a SealKeyring>,
    /// Everything in the store is already sealed.
    pub(super) whole: bool,
}

impl Deref for Spec<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        self.store
    }
}

/// An entry's columns as read from the database.
#[derive(Debug)]
pub(super) struct PgEntryColumns<'a> {
    pub(super) part: i64,
    pub(super) id: &'a str,
    pub(super) key: Option<&'a str>,
    pub(super) content: &'a str,
    pub(super) metadata: Option<&'a str>,
    /// The time, RFC 3339.
    pub(super) at: String,
    pub(super) mark: &'a str,
}

fn seal_failure(error: impl std::fmt::Display) -> PgFailure {
    PgFailure::Schema(format!("an encrypted entry in PostgreSQL: {error}"))
}

impl Spec<'_> {
    fn require_vault(&self) -> Result<&SealKeyring, PgFailure> {
        self.vault.ok_or_else(|| seal_failure(clawk_recall::seal::NO_KEY))
    }

    /// The keyed digest that replaces a key in the server's index.
    pub(super) fn name_of(&self, key: &str) -> Result<String, PgFailure> {
        if self.encryption {
            return Ok(self.require_vault()?.name(key));
        }
        Ok(key.to_owned())
    }

    /// Seals the bundle of an entry.
    pub(super) fn seal_bundle(&self, part: i64, id: &str, bundle: &str) -> Result<String, PgFailure> {
        self.require_vault()?
            .seal_text(&place_of(part, id), bundle)
            .map_err(seal_failure)
    }

    pub(super) fn sealed_vector(&self, n: i64, packed: &[u8]) -> Result<Vec<u8>, PgFailure> {
        self.require_vault()?
            .seal(&format!("vector/{n}"), packed)
            .map_err(seal_failure)
    }

    pub(super) fn opened_vector(&self, n: i64, sealed: &[u8]) -> Result<Vec<u8>, PgFailure> {
        let opened = self
            .require_vault()?
            .open(&format!("vector/{n}"), sealed)
            .map_err(seal_failure)?;
        opened.ok_or_else(|| seal_failure("a vector is not sealed"))
    }

    /// The fields of an entry that are sealed.
    pub(super) fn bundle_of(hit: EntryHit) -> SealedEntryFields {
        SealedEntryFields {
            key: hit.entry.key,
            content: hit.entry.content,
            metadata: hit.entry.metadata,
            mark: hit.mark,
        }
    }

    fn open_bundle(
        &self,
        part: i64,
        id: &str,
        content: &str,
    ) -> Result<Option<SealedEntryFields>, PgFailure> {
        if !is_sealed_text(content) {
            if self.whole {
                return Err(seal_failure("it can be read, so it was not put there by clawk"));
            }
            return Ok(None);
        }
        let opened = self
            .require_vault()?
            .open_text(&place_of(part, id), content)
            .map_err(seal_failure)?;
        serde_json::from_str(&opened.unwrap_or_default())
            .map(Some)
            .map_err(seal_failure)
    }

    /// Decodes an entry's content and key.
    pub(super) fn open_content(
        &self,
        (part, id): (i64, &str),
        content: &str,
        key: Option<&str>,
    ) -> Result<(Value, Option<String>), PgFailure> {
        Ok(match self.open_bundle(part, id, content)? {
            Some(bundle) => (bundle.content, bundle.key),
            None => (super::rows::parse_content(content)?, key.map(str::to_owned)),
        })
    }

    /// Decodes a whole entry.
    pub(super) fn entry_hit(&self, columns: PgEntryColumns<'_>) -> Result<EntryHit, PgFailure> {
        let PgEntryColumns {
            part,
            id,
            key,
            content,
            metadata,
            at,
            mark,
        } = columns;
        if let Some(bundle) = self.open_bundle(part, id, content)? {
            return Ok(bundle.into_hit(id.to_owned(), at));
        }
        Ok(EntryHit {
            entry: MemoryEntry {
                id: id.to_owned(),
                key: key.map(str::to_owned),
                content: super::rows::parse_content(content)?,
                metadata: metadata.map(super::rows::parse_content).transpose()?,
                timestamp: Some(at),
                score: None,
            },
            // An unreadable provenance mark counts as untrusted.
            mark: serde_json::from_str(mark).unwrap_or_else(|_| EntryProvenance {
                untrusted: true,
                ..EntryProvenance::default()
            }),
        })
    }
}

/// The context string for sealing an entry.
pub(crate) fn place_of(part: i64, id: &str) -> String {
    format!("row/{part}/{id}")
}

/// The plaintext of the proof that a store's key is right.
pub(super) const PROOF: &[u8] = b"clawk";

/// The context string for sealing a store's proof.
pub(super) fn proof_of(store: &str) -> String {
    format!("store/{store}")
}
