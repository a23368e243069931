//! What one host of a swarm says to another one under its key: a task, or the report of one. Each names its task by an id that occurs
//! once, so a signature is of no use with anything else.

#[cfg(test)]
mod tests;

use clawk_proto::method::Proof;
use serde::Serialize;
use serde_json::Value;

use crate::chain::digest_of;
use crate::checkpoint::{PublicKey, Signer};

/// What a key in a configuration and on the wire begins with.
const KIND: &str = "ed25519:";
/// How often [`settled`] reads a value again.
const ROUNDS: usize = 16;

/// What is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The params of `claw.swarm.delegate`.
    Task,
    /// The params of `claw.swarm.report`.
    Report,
}

impl Word {
    const fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Report => "report",
        }
    }
}

/// Why a word does not count as that of the host whose key is expected. Keys are told by their fingerprints ([`PublicKey::id`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// Nobody signed it.
    #[error("it is not signed, and the key {expected} is expected")]
    Unsigned {
        /// The key that is bound.
        expected: String,
    },
    /// It names another key.
    #[error("it names the key {shown}, and the key {expected} is expected")]
    OtherKey {
        /// The key that is bound.
        expected: String,
        /// The key that it names.
        shown: String,
    },
    /// It names the right key, and the signature is not of this word.
    #[error(
        "it names the key {expected}, which is expected, and the signature is not that key's signature of these words: they were changed, or the signature belongs to others"
    )]
    Changed {
        /// The key that is bound.
        expected: String,
    },
}

impl Unproven {
    /// The fingerprint that was shown; none: nothing was signed.
    #[must_use]
    pub fn shown(&self) -> Option<&str> {
        match self {
            Self::Unsigned { .. } => None,
            Self::OtherKey { shown, .. } => Some(shown),
            Self::Changed { expected } => Some(expected),
        }
    }
}

/// The bytes that are signed: two lines, each ended by LF. The second is the SHA-256 of the canonical JSON of what is said, without
/// its `proof`.
fn bytes(word: Word, said: &impl Serialize) -> Option<Vec<u8>> {
    let said = serde_json::to_value(said).ok()?; // silent-ok: JSON values always serialise
    let digest = digest_of(said.to_string().as_bytes()).to_hex();
    Some(format!("clawk peer {} v1\n{digest}\n", word.name()).into_bytes())
}

/// A host's public key as configurations and the wire write it.
#[must_use]
pub fn written(key: &PublicKey) -> String {
    format!("{KIND}{}", key.to_hex())
}

/// Reads `ed25519:HEX`; none: it is something else.
#[must_use]
pub fn read(text: &str) -> Option<PublicKey> {
    PublicKey::parse(text.strip_prefix(KIND)?).ok() // silent-ok: the caller says what is wanted
}

/// The value as it is after it was written and read, which others have to find again: a number with many digits may be read as its
/// neighbour.
#[must_use]
pub fn settled(value: Value) -> Value {
    let (mut value, mut text) = (value.clone(), value.to_string());
    for _ in 0..ROUNDS {
        let Ok(again) = serde_json::from_str::<Value>(&text) else {
            break;
        };
        let written = again.to_string();
        value = again;
        if written == text {
            break;
        }
        text = written;
    }
    value
}

/// Signs what is said, which has no `proof` yet and is [`settled`].
#[must_use]
pub fn sign(word: Word, said: &impl Serialize, signer: &Signer) -> Option<Proof> {
    Some(Proof {
        key: written(&signer.public()),
        signature: signer.sign_bytes(&bytes(word, said)?),
    })
}

/// Whether the host of the key `bound` has said this. `said` is without its `proof`.
///
/// # Errors
/// It has not, or shows no proof of it.
pub fn check(
    word: Word,
    said: &impl Serialize,
    proof: Option<&Proof>,
    bound: &PublicKey,
) -> Result<(), Unproven> {
    let expected = bound.id();
    let Some(proof) = proof else {
        return Err(Unproven::Unsigned { expected });
    };
    match read(&proof.key) {
        Some(shown) if shown == *bound => {}
        shown => {
            let shown = shown.map_or_else(|| "(not a key)".to_owned(), |shown| shown.id());
            return Err(Unproven::OtherKey { expected, shown });
        }
    }
    let holds = bytes(word, said).is_some_and(|bytes| bound.holds(&bytes, &proof.signature));
    if holds {
        Ok(())
    } else {
        Err(Unproven::Changed { expected })
    }
}
