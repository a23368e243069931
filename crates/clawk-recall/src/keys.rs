//! The keys of an encrypted state, on whichever back end: which stores are encrypted, under which key, and the contents of the journal.
//!
//! As soon as one store of an agent is encrypted, every content of its journal is, because turns hold what is remembered.

use std::collections::BTreeSet;

use clawk_proto::Digest;
use sha2::{Digest as _, Sha256};

use crate::seal::{SealError, SealKey, SealKeyring, is_sealed};

/// What the proof of a store says in which every entry is sealed.
pub const PROOF: &[u8] = b"clawk";

/// What the proof of a store says whose entries are being sealed for the first time.
pub const BEGUN: &[u8] = b"clawk: not every entry is sealed";

/// Finds the key that a reference names; for whoever opens a state without its configuration.
pub type SealKeyLookup = fn(reference: &str) -> Result<SealKey, String>;

/// The key of a state, and for what.
#[derive(Debug, Clone)]
pub struct Keys {
    /// Seals and opens.
    pub vault: SealKeyring,
    /// The reference of the key that seals: written down, so that a verb can ask for it.
    pub reference: String,
    /// The encrypted stores, on whichever back end.
    pub stores: BTreeSet<String>,
}

/// The references of a state's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealKeyReferences {
    /// Of the key that seals.
    pub current: String,
    /// Of the key before, until what lies elsewhere is sealed with the current one as well.
    pub previous: Option<String>,
}

/// What a state says of one encrypted store.
#[derive(Debug, Clone)]
pub struct EncryptedStore {
    /// Its name.
    pub store: String,
    /// The reference of its key.
    pub reference: String,
    /// By which a key is seen to be the right one.
    pub proof: Vec<u8>,
}

impl EncryptedStore {
    /// This vault has the key that the store was encrypted with.
    ///
    /// # Errors
    /// It has another one.
    pub fn is_proved_by(&self, vault: &SealKeyring) -> Result<(), String> {
        match vault.open(&proof_of(&self.store), &self.proof) {
            Ok(Some(proof)) if proof == PROOF || proof == BEGUN => Ok(()),
            Ok(_) | Err(_) => Err(format!(
                "the key of `{}` is not the one that it was encrypted with",
                self.reference
            )),
        }
    }

    /// Every entry of the store is sealed: one that is not was put there by somebody without the key, who can't make this proof.
    #[must_use]
    pub fn is_whole(&self, vault: &SealKeyring) -> bool {
        matches!(vault.open(&proof_of(&self.store), &self.proof), Ok(Some(proof)) if proof == PROOF)
    }
}

/// For what a store's proof is sealed.
#[must_use]
pub fn proof_of(store: &str) -> String {
    format!("store/{store}")
}

/// For what a content is sealed.
#[must_use]
pub fn place_of(content: Digest) -> String {
    format!("content/{}", content.to_hex())
}

/// The key of this reference.
///
/// # Errors
/// It is not given, or can't be found.
pub fn found(find: Option<SealKeyLookup>, reference: &str) -> Result<SealKeyring, String> {
    let missing = || format!("its key is not given: `[memory] encryption_key = \"{reference}\"`");
    let find = find.ok_or_else(missing)?;
    find(reference)
        .map(SealKeyring::new)
        .map_err(|error| format!("its key is missing: {error}"))
}

/// Names, for people.
#[must_use]
pub fn named(stores: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = stores.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// Why something can't be opened.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StateKeyError(pub String);

impl From<SealError> for StateKeyError {
    fn from(error: SealError) -> Self {
        Self(error.to_string())
    }
}

/// What opens and seals in an open state.
#[derive(Debug, Clone, Default)]
pub struct StateSealer {
    vault: Option<SealKeyring>,
    /// Why there is no vault though something is sealed.
    why: String,
    stores: BTreeSet<String>,
}

impl StateSealer {
    /// Of whoever has the key.
    #[must_use]
    pub fn new(vault: SealKeyring, stores: BTreeSet<String>) -> Self {
        Self {
            vault: Some(vault),
            why: String::new(),
            stores,
        }
    }

    /// For a reader: without the key, everything that is not sealed can be read.
    #[must_use]
    pub fn of_reader(known: &[EncryptedStore], find: Option<SealKeyLookup>) -> Self {
        let mut seals = Self {
            stores: known.iter().map(|known| known.store.clone()).collect(),
            ..Self::default()
        };
        if let Some(first) = known.first() {
            let vault = found(find, &first.reference).and_then(|vault| {
                known.iter().try_for_each(|known| known.is_proved_by(&vault))?;
                Ok(vault)
            });
            match vault {
                Ok(vault) => seals.vault = Some(vault),
                Err(why) => seals.why = why,
            }
        }
        seals
    }

    /// What seals; `None`: nothing is sealed, or the key is not there.
    #[must_use]
    pub const fn vault(&self) -> Option<&SealKeyring> {
        self.vault.as_ref()
    }

    /// The encrypted stores.
    #[must_use]
    pub const fn stores(&self) -> &BTreeSet<String> {
        &self.stores
    }

    /// Why what is sealed can't be opened.
    #[must_use]
    pub fn lacks(&self) -> Option<&str> {
        (self.vault.is_none() && !self.why.is_empty()).then_some(self.why.as_str())
    }

    /// This store is encrypted.
    #[must_use]
    pub fn holds(&self, store: &str) -> bool {
        self.stores.contains(store)
    }

    /// The vault.
    ///
    /// # Errors
    /// Why there is none.
    pub fn known(&self) -> Result<&SealKeyring, StateKeyError> {
        let missing = || StateKeyError(format!("it is encrypted, and {}", self.why));
        self.vault.as_ref().ok_or_else(missing)
    }

    /// Bytes as they are stored: sealed for this place, where anything is sealed.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn closed_at(&self, place: &str, bytes: &[u8]) -> Result<Option<Vec<u8>>, SealError> {
        let vault = self.vault.as_ref();
        vault.map(|vault| vault.seal(place, bytes)).transpose()
    }

    /// Content as it is stored: sealed, where anything is.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn closed(&self, digest: Digest, bytes: &[u8]) -> Result<Option<Vec<u8>>, SealError> {
        self.closed_at(&place_of(digest), bytes)
    }

    /// Stored content as it was.
    ///
    /// # Errors
    /// There is no key, it is another one, or the bytes were changed or belong to another content.
    pub fn opened(&self, digest: Digest, bytes: Vec<u8>) -> Result<Vec<u8>, StateKeyError> {
        // What somebody said may look sealed.
        if !is_sealed(&bytes) || Sha256::digest(&bytes).as_slice() == digest.0 {
            return Ok(bytes);
        }
        let opened = self.known()?.open(&place_of(digest), &bytes)?;
        Ok(opened.unwrap_or(bytes))
    }
}
