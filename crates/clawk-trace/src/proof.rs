//! What one host of a swarm says to another one under its key: a task, or the report of one. Each names its task by an id that occurs
//! once, so a signature is of no use with anything else.

#[cfg(test)]
mod tests;

use clawk_proto::method::{DelegateParams, HostSignature};
use serde::Serialize;
use serde_json::Value;

use crate::chain::digest_of;
use crate::checkpoint::{PublicKey, TraceSigner};

/// What a key in a configuration and on the wire begins with.
const KIND: &str = "ed25519:";
/// How often [`settled`] reads a value again.
const ROUNDS: usize = 16;

const DAY_MS: i64 = 86_400_000;
/// How far the clock of who gives a task may be ahead of ours.
const AHEAD_MS: i64 = 3_600_000;

/// What is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofSubject {
    /// The params of `claw.swarm.delegate`.
    Task,
    /// The params of `claw.swarm.report`.
    Report,
}

impl ProofSubject {
    const fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Report => "report",
        }
    }
}

/// Why a word does not count as that of the host whose key is expected. Keys are told by their fingerprints ([`PublicKey::id`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
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
    /// The right key signed the task too long ago or, by its time, in the future. Hosts forget old tasks, so this one might be done
    /// twice.
    #[error("the key {expected}, which is expected, signed it, but not within the last {days} days")]
    Old {
        /// The key that is bound.
        expected: String,
        /// How old it may be.
        days: i64,
    },
}

impl ProofError {
    /// The fingerprint that was shown; none: nothing was signed.
    #[must_use]
    pub fn shown(&self) -> Option<&str> {
        match self {
            Self::Unsigned { .. } => None,
            Self::OtherKey { shown, .. } => Some(shown),
            Self::Changed { expected } | Self::Old { expected, .. } => Some(expected),
        }
    }
}

/// The bytes that are signed: two lines, each ended by LF. The second is the SHA-256 of the canonical JSON of what is said, without
/// its `proof`.
fn bytes(word: ProofSubject, said: &impl Serialize) -> Option<Vec<u8>> {
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

/// The value after it was written as JSON and read again, until that changes nothing more. A number with many digits may change when
/// it is read; the receiver must compute the same digest as the sender.
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
pub fn sign(word: ProofSubject, said: &impl Serialize, signer: &TraceSigner) -> Option<HostSignature> {
    Some(HostSignature {
        key: written(&signer.public()),
        signature: signer.sign_bytes(&bytes(word, said)?),
        at_ms: None,
    })
}

/// What is signed of a task. The identity keeps it from being put into another queue, and the time keeps it from being given again
/// after hosts have forgotten it.
#[derive(Serialize)]
struct SignedTask<'a> {
    at_ms: i64,
    params: &'a DelegateParams,
    to: &'a str,
}

/// Signs a task for the identity `to`. Its params have no `proof` yet.
#[must_use]
pub fn sign_task(
    params: &DelegateParams,
    to: &str,
    at_ms: i64,
    signer: &TraceSigner,
) -> Option<HostSignature> {
    let proof = sign(ProofSubject::Task, &SignedTask { at_ms, params, to }, signer)?;
    Some(HostSignature {
        at_ms: Some(at_ms),
        ..proof
    })
}

/// Whether the host of the key `bound` has given this task to the identity `to`, not more than `days` ago.
///
/// # Errors
/// It has not, or shows no proof of it.
pub fn check_task(
    params: &DelegateParams,
    to: &str,
    (now_ms, days): (i64, i64),
    bound: &PublicKey,
) -> Result<(), ProofError> {
    let mut params = params.clone();
    let proof = params.context.proof.take();
    let at_ms = proof.as_ref().and_then(|proof| proof.at_ms).unwrap_or_default();
    let given = SignedTask {
        at_ms,
        params: &params,
        to,
    };
    check(ProofSubject::Task, &given, proof.as_ref(), bound)?;
    let oldest = now_ms.saturating_sub(days.saturating_mul(DAY_MS));
    if (oldest..=now_ms.saturating_add(AHEAD_MS)).contains(&at_ms) {
        return Ok(());
    }
    Err(ProofError::Old {
        expected: bound.id(),
        days,
    })
}

/// Whether the host of the key `bound` has said this. `said` is without its `proof`.
///
/// # Errors
/// It has not, or shows no proof of it.
pub fn check(
    word: ProofSubject,
    said: &impl Serialize,
    proof: Option<&HostSignature>,
    bound: &PublicKey,
) -> Result<(), ProofError> {
    let expected = bound.id();
    let Some(proof) = proof else {
        return Err(ProofError::Unsigned { expected });
    };
    match read(&proof.key) {
        Some(shown) if shown == *bound => {}
        shown => {
            let shown = shown.map_or_else(|| "(not a key)".to_owned(), |shown| shown.id());
            return Err(ProofError::OtherKey { expected, shown });
        }
    }
    let holds = bytes(word, said).is_some_and(|bytes| bound.holds(&bytes, &proof.signature));
    if holds {
        Ok(())
    } else {
        Err(ProofError::Changed { expected })
    }
}
