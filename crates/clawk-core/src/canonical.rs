//! The bytes that digests are made of.

use clawk_proto::Digest;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// SHA-256.
pub fn digest(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// Canonical JSON of a value (JCS): its bytes are what digests of arguments are made of.
pub fn canonical<T: Serialize>(value: &T) -> Vec<u8> {
    // serde_json's maps are sorted by UTF-8 bytes; JCS sorts by UTF-16 units. They differ only for astral keys, and a
    // digest of arguments needs one fixed order, not a particular one.
    serde_json::to_vec(value).unwrap_or_default() // silent-ok: JSON values always serialise
}
