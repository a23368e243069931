//! Statements that one host of a swarm signs for another: a task, or the report of a task. Each names its task by a unique id, so
//! its signature can't be used for anything else.

#[cfg(test)]
mod tests;

use clawk_proto::method::{DelegateParams, HostSignature};
use serde::Serialize;
use serde_json::Value;

use crate::chain::digest_of;
use crate::checkpoint::{PublicKey, TraceSigner};

/// The prefix of a key in configurations and on the wire.
const KIND: &str = "ed25519:";
/// The largest number of rounds in [`settled`].
const ROUNDS: usize = 16;

const DAY_MS: i64 = 86_400_000;
/// How far the giver's clock may be ahead of ours, milliseconds.
const AHEAD_MS: i64 = 3_600_000;

/// The kind of signed statement.
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

/// Why a statement does not count as from the host with the expected key. Keys are named by their fingerprints ([`PublicKey::id`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The statement has no signature.
    #[error("it is not signed, and the key {expected} is expected")]
    Unsigned {
        /// The expected key.
        expected: String,
    },
    /// The statement names another key.
    #[error("it names the key {shown}, and the key {expected} is expected")]
    OtherKey {
        /// The expected key.
        expected: String,
        /// The key in the statement.
        shown: String,
    },
    /// The statement names the right key, but its signature does not match.
    #[error(
        "it names the key {expected}, which is expected, and the signature is not that key's signature of these words: they were changed, or the signature belongs to others"
    )]
    Changed {
        /// The expected key.
        expected: String,
    },
    /// The right key signed the task too long ago, or in the future by its time. Hosts forget old tasks, so this one might run
    /// twice.
    #[error("the key {expected}, which is expected, signed it, but not within the last {days} days")]
    Old {
        /// The expected key.
        expected: String,
        /// The largest allowed age, days.
        days: i64,
    },
}

impl ProofError {
    /// The fingerprint in the statement; `None`: it had no signature.
    #[must_use]
    pub fn shown(&self) -> Option<&str> {
        match self {
            Self::Unsigned { .. } => None,
            Self::OtherKey { shown, .. } => Some(shown),
            Self::Changed { expected } | Self::Old { expected, .. } => Some(expected),
        }
    }
}

/// The bytes that are signed: two lines, each ended by LF. The second line is the SHA-256 of the statement's canonical JSON without
/// `proof`.
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

/// Parses `ed25519:HEX`; `None`: the text has another form.
#[must_use]
pub fn read(text: &str) -> Option<PublicKey> {
    PublicKey::parse(text.strip_prefix(KIND)?).ok() // silent-ok: the caller says what is wanted
}

/// Writes the value as JSON and parses it again, until it no longer changes. A number with many digits may change when it is
/// parsed, and the receiver must compute the same digest as the sender.
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

/// Signs a statement, which must be [`settled`] and without `proof`.
#[must_use]
pub fn sign(word: ProofSubject, said: &impl Serialize, signer: &TraceSigner) -> Option<HostSignature> {
    Some(HostSignature {
        key: written(&signer.public()),
        signature: signer.sign_bytes(&bytes(word, said)?),
        at_ms: None,
    })
}

/// The signed part of a task. The identity prevents a copy into another queue. The time prevents a repetition after hosts have
/// forgotten the task.
#[derive(Serialize)]
struct SignedTask<'a> {
    at_ms: i64,
    params: &'a DelegateParams,
    to: &'a str,
}

/// Signs a task for the identity `to`. Its params must have no `proof` yet.
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

/// Checks that the host with the key `bound` gave this task to the identity `to`, at most `days` ago.
///
/// # Errors
/// There is no valid proof of it.
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

/// Checks that the host with the key `bound` signed this statement. `said` is without its `proof`.
///
/// # Errors
/// There is no valid proof of it.
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
