//! Encryption of memory: XChaCha20-Poly1305 with one key. Each value has a random nonce and is bound to its place, so that it can't
//! be decrypted at another place.
//!
//! ```text
//! sealed bytes:  8 magic · 4 key id · 24 nonce · ciphertext · 16 tag
//! sealed text:   `~` and the same in base64
//! ```

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{Key as CipherKey, KeyInit as _, XChaCha20Poly1305, XNonce};
use clawk_proto::method::{MemoryEntry, NewEntry};
use hmac::{Hmac, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::entry::EntryProvenance;

/// The first bytes of every sealed value.
const MAGIC: [u8; 8] = *b"clawk\0s1";
const ID_BYTES: usize = 4;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;

/// The length of magic and key id in base64: 12 bytes are 16 characters.
const FRONT_CHARS: usize = 16;

/// How many bytes sealing adds to a value.
pub const OVERHEAD: usize = MAGIC.len() + ID_BYTES + NONCE_BYTES + TAG_BYTES;

/// The first character of sealed text. No JSON begins with it.
const TEXT_MARK: char = '~';

/// The message for an encrypted store without a key, on every back end.
pub const NO_KEY: &str =
    "`encryption: true` needs a key: `[memory] encryption_key` of clawk.toml names the secret that holds it";

/// The message for an encrypted store whose manifest no longer says `encryption: true`, on every back end.
pub const STAYS: &str = "it is encrypted, and the manifest no longer says so; write `encryption: true`, or export it, forget what it \
                         holds and use a new store";

/// The reason why a value can't be sealed or opened. It never contains a key or a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The secret is not a key.
    #[error(
        "the secret is not an encryption key: write 64 hexadecimal digits, for example those of `openssl rand -hex 32`"
    )]
    NotAKey,
    /// The value was sealed with a key that is not given.
    #[error(
        "it is encrypted with another key; if `clawk memory rekey` was interrupted, run it again with the same keys"
    )]
    OtherKey,
    /// The value was changed, or moved here from another place.
    #[error("the encrypted bytes were changed, or belong to another place")]
    Changed,
    /// The operating system gives no random bytes.
    #[error("no random bytes: {0}")]
    Random(String),
}

/// One encryption key. It can't be printed.
#[derive(Clone)]
pub struct SealKey {
    id: [u8; ID_BYTES],
    cipher: XChaCha20Poly1305,
    names: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", hex::encode(self.id))
    }
}

impl PartialEq for SealKey {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl SealKey {
    /// Parses a key of 64 hexadecimal digits. Blanks around it are ignored.
    ///
    /// # Errors
    /// [`SealError::NotAKey`].
    pub fn from_hex(text: &str) -> Result<Self, SealError> {
        let mut bytes = Zeroizing::new([0_u8; 32]);
        hex::decode_to_slice(text.trim(), &mut *bytes).map_err(|_| SealError::NotAKey)?; // silent-ok: the text is secret
        let part = |purpose: &str| compute_mac(&*bytes, purpose.as_bytes());
        let mut id = [0; ID_BYTES];
        id.iter_mut()
            .zip(part("clawk key id"))
            .for_each(|(to, from)| *to = from);
        let cipher = Zeroizing::new(part("clawk contents"));
        Ok(Self {
            id,
            cipher: XChaCha20Poly1305::new(&CipherKey::from(*cipher)),
            names: Zeroizing::new(part("clawk names")),
        })
    }
}

fn compute_mac(key: &[u8], text: &[u8]) -> [u8; 32] {
    // HMAC accepts keys of any length, so this can't fail.
    let Ok(mut mac) = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(key) else {
        return [0; 32];
    };
    mac.update(text);
    mac.finalize().into_bytes().into()
}

/// The key that seals. During a key change, also the older key, which only opens.
#[derive(Debug, Clone)]
pub struct SealKeyring {
    current: SealKey,
    older: Option<SealKey>,
}

impl SealKeyring {
    /// A keyring that seals and opens with this key.
    #[must_use]
    pub const fn new(key: SealKey) -> Self {
        Self {
            current: key,
            older: None,
        }
    }

    /// Adds an older key. It only opens values.
    #[must_use]
    pub fn with_older(mut self, key: SealKey) -> Self {
        self.older = Some(key);
        self
    }

    /// Whether it opens what an older key sealed, because everything is being sealed anew.
    #[must_use]
    pub const fn has_older(&self) -> bool {
        self.older.is_some()
    }

    /// The bytes, sealed for this place and for no other.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn seal(&self, place: &str, bytes: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|error| SealError::Random(error.to_string()))?;
        let payload = Payload {
            msg: bytes,
            aad: place.as_bytes(),
        };
        let sealed = self.current.cipher.encrypt(&XNonce::from(nonce), payload);
        let sealed = sealed.map_err(|_| SealError::Changed)?; // silent-ok: beyond 256 GiB, which no value here is
        let mut all = Vec::with_capacity(OVERHEAD + bytes.len());
        all.extend(MAGIC);
        all.extend(self.current.id);
        all.extend(nonce);
        all.extend(sealed);
        Ok(all)
    }

    /// Opens bytes that were sealed for `place`. `None`: the bytes are not sealed.
    ///
    /// # Errors
    /// They were sealed with another key or for another place, or were changed.
    pub fn open(&self, place: &str, bytes: &[u8]) -> Result<Option<Vec<u8>>, SealError> {
        let Some((id, rest)) = split_sealed(bytes) else {
            return Ok(None);
        };
        let known = std::iter::once(&self.current).chain(&self.older);
        let key = known
            .into_iter()
            .find(|key| key.id == id)
            .ok_or(SealError::OtherKey)?;
        let (nonce, text) = rest
            .split_first_chunk::<NONCE_BYTES>()
            .ok_or(SealError::Changed)?;
        let payload = Payload {
            msg: text,
            aad: place.as_bytes(),
        };
        let opened = key.cipher.decrypt(&XNonce::from(*nonce), payload);
        opened.map(Some).map_err(|_| SealError::Changed) // silent-ok: the cipher says no more
    }

    /// Seals text and binds it to `place`.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn seal_text(&self, place: &str, text: &str) -> Result<String, SealError> {
        let sealed = self.seal(place, text.as_bytes())?;
        let mut all = String::with_capacity(1 + sealed.len().div_ceil(3) * 4);
        all.push(TEXT_MARK);
        BASE64.encode_string(sealed, &mut all);
        Ok(all)
    }

    /// Opens text that was sealed for `place`. `None`: the text is not sealed.
    ///
    /// # Errors
    /// It was sealed with another key or for another place, or was changed.
    pub fn open_text(&self, place: &str, text: &str) -> Result<Option<String>, SealError> {
        let Some(rest) = text.strip_prefix(TEXT_MARK) else {
            return Ok(None);
        };
        let bytes = BASE64.decode(rest).map_err(|_| SealError::Changed)?; // silent-ok: says no more
        let opened = self.open(place, &bytes)?.ok_or(SealError::Changed)?;
        String::from_utf8(opened)
            .map(Some)
            .map_err(|_| SealError::Changed) // silent-ok: we sealed text
    }

    /// Whether these bytes were sealed with the current key.
    #[must_use]
    pub fn is_current(&self, bytes: &[u8]) -> bool {
        split_sealed(bytes).is_some_and(|(id, _)| id == self.current.id)
    }

    /// Whether this text was sealed with the current key.
    #[must_use]
    pub fn is_current_text(&self, text: &str) -> bool {
        let front = text
            .strip_prefix(TEXT_MARK)
            .and_then(|rest| rest.get(..FRONT_CHARS));
        let bytes = front.and_then(|front| BASE64.decode(front).ok()); // silent-ok: then it is not sealed
        bytes.is_some_and(|bytes| self.is_current(&bytes))
    }

    /// A keyed hash that replaces an entry's key in an index. It is the same each time, and can't be reversed without the
    /// encryption key.
    #[must_use]
    pub fn name(&self, key: &str) -> String {
        let bytes = compute_mac(&*self.current.names, key.as_bytes());
        hex::encode(bytes.get(..16).unwrap_or_default())
    }
}

/// Splits sealed bytes into the key id and the rest. `None`: the bytes are not sealed.
fn split_sealed(bytes: &[u8]) -> Option<([u8; ID_BYTES], &[u8])> {
    let (id, rest) = bytes.strip_prefix(&MAGIC)?.split_first_chunk::<ID_BYTES>()?;
    Some((*id, rest))
}

/// Whether these bytes are sealed, with any key.
#[must_use]
pub fn is_sealed(bytes: &[u8]) -> bool {
    split_sealed(bytes).is_some()
}

/// Whether this text is sealed, with any key.
#[must_use]
pub fn is_sealed_text(text: &str) -> bool {
    text.starts_with(TEXT_MARK)
}

/// The sealed fields of an entry: all texts, and who said them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SealedEntryFields {
    /// [`NewEntry::key`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// [`NewEntry::content`].
    pub content: Value,
    /// [`NewEntry::metadata`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// The entry's provenance.
    pub mark: EntryProvenance,
}

impl SealedEntryFields {
    /// The fields of an entry that is to be stored.
    #[must_use]
    pub fn for_entry(entry: &NewEntry, mark: &EntryProvenance) -> Self {
        Self {
            key: entry.key.clone(),
            content: entry.content.clone(),
            metadata: entry.metadata.clone(),
            mark: mark.clone(),
        }
    }

    /// The fields as JSON text, ready to be sealed.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // silent-ok: JSON values always serialise
    }

    /// Builds the entry with this id and time.
    #[must_use]
    pub fn into_hit(self, id: String, timestamp: String) -> crate::entry::EntryHit {
        crate::entry::EntryHit {
            entry: MemoryEntry {
                id,
                key: self.key,
                content: self.content,
                metadata: self.metadata,
                timestamp: Some(timestamp),
                score: None,
            },
            mark: self.mark,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(digit: &str) -> SealKey {
        SealKey::from_hex(&digit.repeat(64)).unwrap()
    }

    #[test]
    fn what_is_sealed_opens_with_its_key_at_its_place_alone() {
        let vault = SealKeyring::new(key("a"));
        let sealed = vault.seal("entry 1/x", b"a secret plan").unwrap();
        assert_eq!(sealed.len(), 13 + OVERHEAD);
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_ne!(sealed, vault.seal("entry 1/x", b"a secret plan").unwrap());
        assert_eq!(
            vault.open("entry 1/x", &sealed).unwrap().unwrap(),
            b"a secret plan"
        );
        assert_eq!(vault.open("entry 2/x", &sealed), Err(SealError::Changed));
        assert_eq!(
            SealKeyring::new(key("b")).open("entry 1/x", &sealed),
            Err(SealError::OtherKey)
        );
        let mut changed = sealed.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert_eq!(vault.open("entry 1/x", &changed), Err(SealError::Changed));
        assert_eq!(vault.open("entry 1/x", &sealed[..20]), Err(SealError::Changed));
        assert_eq!(vault.open("entry 1/x", b"plain").unwrap(), None);
        let both = SealKeyring::new(key("b")).with_older(key("a"));
        assert_eq!(
            both.open("entry 1/x", &sealed).unwrap().unwrap(),
            b"a secret plan"
        );
        assert!(!both.is_current(&sealed) && vault.is_current(&sealed));
    }

    #[test]
    fn text_and_names() {
        let vault = SealKeyring::new(key("a"));
        let sealed = vault.seal_text("p", "grüße").unwrap();
        assert!(is_sealed_text(&sealed) && sealed.is_ascii());
        assert_eq!(vault.open_text("p", &sealed).unwrap().unwrap(), "grüße");
        assert!(vault.is_current_text(&sealed) && !SealKeyring::new(key("b")).is_current_text(&sealed));
        assert_eq!(vault.open_text("p", "\"plain\"").unwrap(), None);
        assert_eq!(vault.open_text("p", "~nothing"), Err(SealError::Changed));
        assert_eq!(vault.name("lamp"), vault.name("lamp"));
        assert_ne!(vault.name("lamp"), SealKeyring::new(key("b")).name("lamp"));
        assert_eq!(format!("{:?}", key("a")).len(), "Key(00000000)".len());
        for wrong in ["", "abc", &"g".repeat(64), &"a".repeat(63), &"a".repeat(66)] {
            assert_eq!(SealKey::from_hex(wrong), Err(SealError::NotAKey));
        }
    }
}
