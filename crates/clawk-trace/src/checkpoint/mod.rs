//! Signed checkpoints: "so many events of this session ended in this hash", under an Ed25519 key.
//!
//! A chain alone does not show that its end is missing, or that all of it was written anew. A checkpoint kept elsewhere does: the
//! head of a chain commits to every event before it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use clawk_proto::{Digest, SessionId};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::chain::digest_of;
use crate::verify::{Fault, FaultKind, Report};

/// What a checkpoint states about one session's chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// The chain.
    pub session_id: SessionId,
    /// How many events it had.
    pub events: u64,
    /// The hash of the last of them.
    pub head: Digest,
    /// When that was, RFC 3339.
    pub timestamp: String,
}

impl Statement {
    /// The bytes that are signed: five lines, each ended by LF.
    ///
    /// ```
    /// # use clawk_trace::checkpoint::Statement;
    /// # let session_id = "01980000-0000-7000-8000-000000000001".parse().unwrap();
    /// let statement = Statement { session_id, events: 2, head: clawk_proto::Digest::ZERO, timestamp: "2026-11-22T00:00:00Z".to_owned() };
    /// let zeros = "0".repeat(64);
    /// let text = format!("clawk trace checkpoint v1\n01980000-0000-7000-8000-000000000001\n2\n{zeros}\n2026-11-22T00:00:00Z\n");
    /// assert_eq!(statement.bytes(), text.into_bytes());
    /// ```
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let Self {
            session_id,
            events,
            head,
            timestamp,
        } = self;
        let head = head.to_hex();
        format!("clawk trace checkpoint v1\n{session_id}\n{events}\n{head}\n{timestamp}\n").into_bytes()
    }
}

/// A statement and its signature; one line of a checkpoints file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// What is stated.
    #[serde(flatten)]
    pub statement: Statement,
    /// Which key signed: [`PublicKey::id`].
    pub key_id: String,
    /// 128 hex digits.
    pub signature: String,
}

/// Why a checkpoint can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The key's text is no key.
    #[error("a public key is 64 hex digits that name a point of Ed25519")]
    Key,
    /// A line of the file can't be read.
    #[error("checkpoint {line}: {source}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// The signature does not fit the statement and the key.
    #[error("checkpoint {line}: signed by another key, or changed (it names the key `{key_id}`)")]
    Signature {
        /// Counted from 1.
        line: usize,
        /// What it names, cut to 32 characters.
        key_id: String,
    },
    /// There is no checkpoint at all.
    #[error("there is no checkpoint in the file")]
    Empty,
}

/// The private half. Never printed.
pub struct Signer(SigningKey);

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.public().id())
    }
}

impl Signer {
    /// The key that 32 random bytes make.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs.
    #[must_use]
    pub fn sign(&self, statement: Statement) -> Checkpoint {
        let signature = hex::encode(self.0.sign(&statement.bytes()).to_bytes());
        Checkpoint {
            statement,
            key_id: self.public().id(),
            signature,
        }
    }
}

/// The public half of a key that signs checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Reads 64 hex digits; blanks around them are allowed.
    ///
    /// # Errors
    /// Something else.
    pub fn parse(text: &str) -> Result<Self, CheckpointError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text.trim(), &mut bytes).map_err(|_| CheckpointError::Key)?; // silent-ok: says no more
        match VerifyingKey::from_bytes(&bytes) {
            Ok(key) if !key.is_weak() => Ok(Self(key)),
            _ => Err(CheckpointError::Key),
        }
    }

    /// 64 hex digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::encode(self.0.to_bytes())
    }

    /// A short name: the first 16 hex digits of the key's SHA-256.
    #[must_use]
    pub fn id(&self) -> String {
        digest_of(&self.0.to_bytes()).to_hex().chars().take(16).collect()
    }

    /// Whether the checkpoint's signature is this key's.
    #[must_use]
    pub fn signed(&self, checkpoint: &Checkpoint) -> bool {
        let mut bytes = [0; 64];
        hex::decode_to_slice(&checkpoint.signature, &mut bytes).is_ok()
            && self
                .0
                .verify_strict(&checkpoint.statement.bytes(), &Signature::from_bytes(&bytes))
                .is_ok()
    }
}

/// Holds a trace against checkpoints: show it every event, then ask.
#[derive(Debug)]
pub struct Witness {
    /// Per session, the hash that an event of this sequence must have.
    wanted: HashMap<SessionId, BTreeMap<u64, Digest>>,
    events: u64,
    fault: Option<Fault>,
}

impl Witness {
    /// Reads checkpoints (JSON Lines; empty lines are skipped), all of which must be signed by `key`. `takes` says which
    /// sessions are looked at.
    ///
    /// # Errors
    /// A line can't be read or is not signed by `key`; there is none.
    pub fn new(
        text: &str,
        key: &PublicKey,
        takes: impl Fn(SessionId) -> bool,
    ) -> Result<Self, CheckpointError> {
        let mut wanted: HashMap<SessionId, BTreeMap<u64, Digest>> = HashMap::new();
        for (line, text) in (1..)
            .zip(text.lines())
            .filter(|(_, text)| !text.trim().is_empty())
        {
            let checkpoint: Checkpoint =
                serde_json::from_str(text).map_err(|source| CheckpointError::Line { line, source })?;
            if !key.signed(&checkpoint) {
                let key_id = checkpoint.key_id.chars().take(32).collect();
                return Err(CheckpointError::Signature { line, key_id });
            }
            let Statement {
                session_id,
                events,
                head,
                ..
            } = checkpoint.statement;
            if let Some(sequence) = events.checked_sub(1).filter(|_| takes(session_id)) {
                wanted.entry(session_id).or_default().insert(sequence, head);
            }
        }
        if wanted.is_empty() {
            return Err(CheckpointError::Empty);
        }
        Ok(Self {
            wanted,
            events: 0,
            fault: None,
        })
    }

    /// Looks at the next event.
    pub fn see(&mut self, session: SessionId, sequence: u64, hash: Digest) {
        let index = self.events;
        self.events += 1;
        let Some(of_session) = self.wanted.get_mut(&session) else {
            return;
        };
        if of_session.remove(&sequence).is_some_and(|head| head != hash) && self.fault.is_none() {
            let detail = "the chain does not pass through the hash that was signed; it was written anew";
            self.fault = Some(fault(
                FaultKind::BrokenLink,
                detail.to_owned(),
                (session, sequence),
                index,
            ));
        }
    }

    /// Adds what was found to the report of the same trace.
    pub fn judge(self, report: &mut Report) {
        let missing = self
            .wanted
            .iter()
            .filter_map(|(session, left)| left.keys().next_back().map(|last| (*session, *last)))
            .min();
        if let Some(fault) = self.fault {
            report.refuse(fault);
        } else if let Some((session, last)) = missing {
            let detail = format!(
                "session {session} had {} events when it was signed; its end is missing",
                last + 1
            );
            report.refuse(fault(FaultKind::Gap, detail, (session, last), self.events));
        }
    }
}

fn fault(kind: FaultKind, detail: String, (session, sequence): (SessionId, u64), index: u64) -> Fault {
    Fault {
        kind,
        detail,
        index,
        line: index + 1,
        session: Some(session),
        sequence: Some(sequence),
    }
}
