//! The keys of an encrypted state, for every back end: which stores are encrypted, with which key, and how the journal's contents
//! are encrypted.
//!
//! As soon as one store of an agent is encrypted, all contents of its journal are encrypted, because turns contain memory entries.

use std::collections::BTreeSet;

use clawk_proto::Digest;
use sha2::{Digest as _, Sha256};

use crate::seal::{SealError, SealKey, SealKeyring, is_sealed};

/// The plaintext of a store's [proof](EncryptedStore::proof) if every entry of the store is encrypted.
pub const PROOF: &[u8] = b"clawk";

/// The plaintext of a store's [proof](EncryptedStore::proof) while its entries are being encrypted for the first time.
pub const BEGUN: &[u8] = b"clawk: not every entry is sealed";

/// Finds the key for a reference. For programs that open a state without its configuration.
pub type SealKeyLookup = fn(reference: &str) -> Result<SealKey, String>;

/// The keys of a state, and what they encrypt.
#[derive(Debug, Clone)]
pub struct Keys {
    /// Encrypts and decrypts.
    pub vault: SealKeyring,
    /// The reference of the encrypting key. It is stored, so that a command can ask for the key.
    pub reference: String,
    /// Names of the encrypted stores, on any back end.
    pub stores: BTreeSet<String>,
}

/// References of a state's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealKeyReferences {
    /// The reference of the key that encrypts.
    pub current: String,
    /// The reference of the previous key. It is kept until all back ends are encrypted with the current key.
    pub previous: Option<String>,
}

/// The state's record of one encrypted store.
#[derive(Debug, Clone)]
pub struct EncryptedStore {
    /// The store's name.
    pub store: String,
    /// The reference of the store's key.
    pub reference: String,
    /// A known text encrypted with the store's key; it shows whether a given key is the right one.
    pub proof: Vec<u8>,
}

impl EncryptedStore {
    /// Checks that `vault` has the key that encrypted the store.
    ///
    /// # Errors
    /// `vault` has another key.
    pub fn is_proved_by(&self, vault: &SealKeyring) -> Result<(), String> {
        match vault.open(&proof_of(&self.store), &self.proof) {
            Ok(Some(proof)) if proof == PROOF || proof == BEGUN => Ok(()),
            Ok(_) | Err(_) => Err(format!(
                "the key of `{}` is not the one that it was encrypted with",
                self.reference
            )),
        }
    }

    /// Whether every entry of the store is encrypted. If so, a plain entry must come from somebody without the key, who could not
    /// have made this proof.
    #[must_use]
    pub fn is_whole(&self, vault: &SealKeyring) -> bool {
        matches!(vault.open(&proof_of(&self.store), &self.proof), Ok(Some(proof)) if proof == PROOF)
    }
}

/// The place that a store's proof is bound to when it is sealed.
#[must_use]
pub fn proof_of(store: &str) -> String {
    format!("store/{store}")
}

/// The place that a journal content is bound to when it is sealed.
#[must_use]
pub fn place_of(content: Digest) -> String {
    format!("content/{}", content.to_hex())
}

/// Finds the key of this reference.
///
/// # Errors
/// The key is not given, or can't be found.
pub fn find_key(find: Option<SealKeyLookup>, reference: &str) -> Result<SealKeyring, String> {
    let missing = || format!("its key is not given: `[memory] encryption_key = \"{reference}\"`");
    let find = find.ok_or_else(missing)?;
    find(reference)
        .map(SealKeyring::new)
        .map_err(|error| format!("its key is missing: {error}"))
}

/// Joins store names for a message.
#[must_use]
pub fn join_names(stores: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = stores.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// The reason why a value can't be decrypted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StateKeyError(pub String);

impl From<SealError> for StateKeyError {
    fn from(error: SealError) -> Self {
        Self(error.to_string())
    }
}

/// Encrypts and decrypts the values of an open state.
#[derive(Debug, Clone, Default)]
pub struct StateSealer {
    vault: Option<SealKeyring>,
    /// The reason why there is no key although the state has encrypted values.
    why: String,
    stores: BTreeSet<String>,
}

impl StateSealer {
    /// For a process that has the key.
    #[must_use]
    pub fn new(vault: SealKeyring, stores: BTreeSet<String>) -> Self {
        Self {
            vault: Some(vault),
            why: String::new(),
            stores,
        }
    }

    /// For a read-only process. Without the key it can read only values that are not encrypted.
    #[must_use]
    pub fn of_reader(known: &[EncryptedStore], find: Option<SealKeyLookup>) -> Self {
        let mut seals = Self {
            stores: known.iter().map(|known| known.store.clone()).collect(),
            ..Self::default()
        };
        if let Some(first) = known.first() {
            let vault = find_key(find, &first.reference).and_then(|vault| {
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

    /// The keys; `None` if nothing is encrypted or the key is missing.
    #[must_use]
    pub const fn vault(&self) -> Option<&SealKeyring> {
        self.vault.as_ref()
    }

    /// Names of the encrypted stores.
    #[must_use]
    pub const fn stores(&self) -> &BTreeSet<String> {
        &self.stores
    }

    /// The reason why encrypted values can't be decrypted; `None` if they can.
    #[must_use]
    pub fn missing_key_reason(&self) -> Option<&str> {
        (self.vault.is_none() && !self.why.is_empty()).then_some(self.why.as_str())
    }

    /// Whether this store is encrypted.
    #[must_use]
    pub fn is_encrypted(&self, store: &str) -> bool {
        self.stores.contains(store)
    }

    /// The keys.
    ///
    /// # Errors
    /// The reason why there are no keys.
    pub fn require_vault(&self) -> Result<&SealKeyring, StateKeyError> {
        let missing = || StateKeyError(format!("it is encrypted, and {}", self.why));
        self.vault.as_ref().ok_or_else(missing)
    }

    /// Encrypts bytes and binds them to `place`. `None` if the state is not encrypted.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn closed_at(&self, place: &str, bytes: &[u8]) -> Result<Option<Vec<u8>>, SealError> {
        let vault = self.vault.as_ref();
        vault.map(|vault| vault.seal(place, bytes)).transpose()
    }

    /// Encrypts a journal content. `None` if the state is not encrypted.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn seal_content(&self, digest: Digest, bytes: &[u8]) -> Result<Option<Vec<u8>>, SealError> {
        self.closed_at(&place_of(digest), bytes)
    }

    /// Decrypts a journal content.
    ///
    /// # Errors
    /// There is no key, it is the wrong key, or the bytes were changed or belong to another content.
    pub fn open_content(&self, digest: Digest, bytes: Vec<u8>) -> Result<Vec<u8>, StateKeyError> {
        // Plain text may look encrypted: if the digest fits, it is plain.
        if !is_sealed(&bytes) || Sha256::digest(&bytes).as_slice() == digest.0 {
            return Ok(bytes);
        }
        let opened = self.require_vault()?.open(&place_of(digest), &bytes)?;
        Ok(opened.unwrap_or(bytes))
    }
}
