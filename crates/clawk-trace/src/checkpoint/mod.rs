//! Signed checkpoints: "this session's first N events end in this hash", signed with an Ed25519 key.
//!
//! A chain alone can't show that its end is missing, or that all of it was rewritten. A checkpoint stored elsewhere can, because
//! the head of a chain depends on every earlier event. A [`TreeHead`] covers all sessions of a state directory at once.

#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use clawk_proto::{Digest, SessionId};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::chain::digest_of;
use crate::verify::{FaultKind, TraceFault, VerificationReport};

pub use tree::{Tree, TreeHead, TreeStatement};

/// A checkpoint's statement about the chain of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStatement {
    /// The session.
    pub session_id: SessionId,
    /// The number of events.
    pub events: u64,
    /// The hash of the last event.
    pub head: Digest,
    /// The time of the statement, RFC 3339.
    pub timestamp: String,
}

impl CheckpointStatement {
    /// The bytes that are signed: five lines, each ended by LF.
    ///
    /// ```
    /// # use clawk_trace::checkpoint::CheckpointStatement;
    /// # let session_id = "01980000-0000-7000-8000-000000000001".parse().unwrap();
    /// let statement = CheckpointStatement { session_id, events: 2, head: clawk_proto::Digest::ZERO, timestamp: "2026-11-22T00:00:00Z".to_owned() };
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
pub struct SessionCheckpoint {
    /// The statement.
    #[serde(flatten)]
    pub statement: CheckpointStatement,
    /// The id of the signing key: [`PublicKey::id`].
    pub key_id: String,
    /// The signature, 128 hex digits.
    pub signature: String,
}

/// Why a checkpoint can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The text is not a valid key.
    #[error("a public key is 64 hex digits that name a point of Ed25519")]
    Key,
    /// A line of the file can't be read.
    #[error("checkpoint {line}: {source}")]
    Line {
        /// The line number, from 1.
        line: usize,
        /// The error.
        source: serde_json::Error,
    },
    /// The signature does not match the statement and the key.
    #[error("checkpoint {line}: signed by another key, or changed (it names the key `{key_id}`)")]
    Signature {
        /// The line number, from 1.
        line: usize,
        /// The key id in the line, cut to 32 characters.
        key_id: String,
    },
    /// There is no checkpoint, or none for the verified sessions.
    #[error("no checkpoint covers the events of this record")]
    Empty,
    /// The same key signed two contradicting statements.
    #[error("checkpoint {line} contradicts an earlier one of the same key: two histories were signed")]
    Contradiction {
        /// The line number, from 1.
        line: usize,
    },
}

/// The private key. It is never printed.
pub struct TraceSigner(SigningKey);

impl fmt::Debug for TraceSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.public().id())
    }
}

impl TraceSigner {
    /// Makes the key from 32 random bytes.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs a session's statement.
    #[must_use]
    pub fn sign(&self, statement: CheckpointStatement) -> SessionCheckpoint {
        let signature = hex::encode(self.0.sign(&statement.bytes()).to_bytes());
        SessionCheckpoint {
            statement,
            key_id: self.public().id(),
            signature,
        }
    }

    /// Signs other bytes; returns 128 hex digits.
    pub(crate) fn sign_bytes(&self, bytes: &[u8]) -> String {
        hex::encode(self.0.sign(bytes).to_bytes())
    }

    /// Signs a tree head.
    #[must_use]
    pub fn sign_tree(&self, statement: TreeStatement) -> TreeHead {
        let signature = hex::encode(self.0.sign(&statement.bytes()).to_bytes());
        TreeHead {
            statement,
            key_id: self.public().id(),
            signature,
        }
    }
}

/// The public key of checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Parses 64 hex digits, with optional blanks around them.
    ///
    /// # Errors
    /// The text is not a valid key.
    pub fn parse(text: &str) -> Result<Self, CheckpointError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text.trim(), &mut bytes).map_err(|_| CheckpointError::Key)?; // silent-ok: says no more
        match VerifyingKey::from_bytes(&bytes) {
            Ok(key) if !key.is_weak() => Ok(Self(key)),
            _ => Err(CheckpointError::Key),
        }
    }

    /// The key as 64 hex digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::encode(self.0.to_bytes())
    }

    /// A short name: the first 16 hex digits of the key's SHA-256.
    #[must_use]
    pub fn id(&self) -> String {
        digest_of(&self.0.to_bytes()).to_hex().chars().take(16).collect()
    }

    /// Whether this key signed the checkpoint.
    #[must_use]
    pub fn signed(&self, checkpoint: &SessionCheckpoint) -> bool {
        self.holds(&checkpoint.statement.bytes(), &checkpoint.signature)
    }

    /// Whether this key signed the tree head.
    #[must_use]
    pub fn signed_tree(&self, head: &TreeHead) -> bool {
        self.holds(&head.statement.bytes(), &head.signature)
    }

    pub(crate) fn holds(&self, statement: &[u8], signature: &str) -> bool {
        let mut bytes = [0; 64];
        hex::decode_to_slice(signature, &mut bytes).is_ok()
            && self
                .0
                .verify_strict(statement, &Signature::from_bytes(&bytes))
                .is_ok()
    }
}

/// One line of a checkpoints file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointLine {
    /// A checkpoint of one session.
    Session(SessionCheckpoint),
    /// A tree head over all sessions.
    Tree(TreeHead),
}

impl CheckpointLine {
    /// Parses one line.
    ///
    /// # Errors
    /// The line is neither form.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Kind {
            root: Option<serde::de::IgnoredAny>,
        }
        if serde_json::from_str::<Kind>(text)?.root.is_some() {
            serde_json::from_str(text).map(Self::Tree)
        } else {
            serde_json::from_str(text).map(Self::Session)
        }
    }

    /// Whether this key signed the line.
    #[must_use]
    pub fn signed_by(&self, key: &PublicKey) -> bool {
        match self {
            Self::Session(checkpoint) => key.signed(checkpoint),
            Self::Tree(head) => key.signed_tree(head),
        }
    }

    /// The id of the key that the line names.
    #[must_use]
    pub fn key_id(&self) -> &str {
        match self {
            Self::Session(checkpoint) => &checkpoint.key_id,
            Self::Tree(head) => &head.key_id,
        }
    }
}

/// The part of a trace that signatures cover.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct CheckpointCoverage {
    /// The number of checked statements, of sessions and of the tree.
    pub statements: u64,
    /// The number of events of all sessions up to the largest tree head; 0 without one.
    pub events: u64,
    /// When the last statement was signed.
    pub until: Option<String>,
}

/// Compares a trace with checkpoints: pass it every event, then read the result.
#[derive(Debug)]
pub struct CheckpointVerifier {
    /// By session: the hash that the event with a sequence number must have.
    wanted: HashMap<SessionId, BTreeMap<u64, Digest>>,
    /// By number of events: the root that they must have.
    roots: BTreeMap<u64, Digest>,
    tree: Tree,
    vouched: CheckpointCoverage,
    events: u64,
    fault: Option<TraceFault>,
}

impl CheckpointVerifier {
    /// Reads checkpoints (JSON Lines; empty lines are skipped), all of which `key` must have signed. `takes` selects the sessions
    /// to check. Tree heads count only if `whole`: the trace is a complete journal.
    ///
    /// # Errors
    /// A line can't be read or is not signed by `key`; there is no checkpoint; or two heads contradict each other.
    pub fn new(
        text: &str,
        key: &PublicKey,
        whole: bool,
        takes: impl Fn(SessionId) -> bool,
    ) -> Result<Self, CheckpointError> {
        let mut witness = Self {
            wanted: HashMap::new(),
            roots: BTreeMap::new(),
            tree: Tree::default(),
            vouched: CheckpointCoverage::default(),
            events: 0,
            fault: None,
        };
        for (line, text) in (1..)
            .zip(text.lines())
            .filter(|(_, text)| !text.trim().is_empty())
        {
            let read =
                CheckpointLine::parse(text).map_err(|source| CheckpointError::Line { line, source })?;
            if !read.signed_by(key) {
                let key_id = read.key_id().chars().take(32).collect();
                return Err(CheckpointError::Signature { line, key_id });
            }
            let other = match read {
                CheckpointLine::Session(SessionCheckpoint { statement, .. })
                    if takes(statement.session_id) =>
                {
                    let Some(sequence) = statement.events.checked_sub(1) else {
                        continue;
                    };
                    witness.vouch(statement.timestamp);
                    let of_session = witness.wanted.entry(statement.session_id).or_default();
                    of_session
                        .insert(sequence, statement.head)
                        .filter(|known| *known != statement.head)
                }
                CheckpointLine::Tree(TreeHead { statement, .. }) if whole && statement.size > 0 => {
                    witness.vouched.events = witness.vouched.events.max(statement.size);
                    witness.vouch(statement.timestamp);
                    let known = witness.roots.insert(statement.size, statement.root);
                    known.filter(|known| *known != statement.root)
                }
                CheckpointLine::Session(_) | CheckpointLine::Tree(_) => None,
            };
            if other.is_some() {
                return Err(CheckpointError::Contradiction { line });
            }
        }
        if witness.vouched.statements == 0 {
            return Err(CheckpointError::Empty);
        }
        Ok(witness)
    }

    fn vouch(&mut self, timestamp: String) {
        self.vouched.statements += 1;
        self.vouched.until = self.vouched.until.take().max(Some(timestamp));
    }

    /// The part of the trace that signatures cover.
    #[must_use]
    pub fn vouched(&self) -> &CheckpointCoverage {
        &self.vouched
    }

    /// Adds the next event.
    pub fn see(&mut self, session: SessionId, sequence: u64, hash: Digest) {
        let index = self.events;
        self.events += 1;
        let of_session = self
            .wanted
            .get_mut(&session)
            .and_then(|left| left.remove(&sequence));
        let of_tree = if self.roots.is_empty() {
            None
        } else {
            self.tree.push(&hash);
            self.roots.remove(&self.tree.size())
        };
        if self.fault.is_some() {
            return;
        }
        let detail = if of_session.is_some_and(|head| head != hash) {
            "the chain does not pass through the hash that was signed; it was written anew"
        } else if of_tree.is_some_and(|root| root != self.tree.root()) {
            "the events up to here are not those that the signed tree head commits to; some were written anew, removed or moved"
        } else {
            return;
        };
        self.fault = Some(fault(
            FaultKind::BrokenLink,
            detail.to_owned(),
            (session, sequence),
            index,
        ));
    }

    /// Adds the result to the report of the same trace.
    pub fn judge(self, report: &mut VerificationReport) {
        let missing = self
            .wanted
            .iter()
            .filter_map(|(session, left)| left.keys().next_back().map(|last| (*session, *last)))
            .min();
        if let Some(fault) = self.fault {
            report.add_fault(fault);
        } else if let Some((session, last)) = missing {
            let detail = format!(
                "session {session} had {} events when it was signed; its end is missing",
                last + 1
            );
            report.add_fault(fault(FaultKind::Gap, detail, (session, last), self.events));
        } else if let Some(size) = self.roots.keys().next_back() {
            let detail = format!(
                "there were {size} events when the tree was signed, there are {}: sessions or their ends are missing, or an                  older state was put back",
                self.events
            );
            report.add_fault(TraceFault {
                kind: FaultKind::Gap,
                detail,
                index: self.events,
                line: self.events + 1,
                session: None,
                sequence: None,
            });
        }
    }
}

fn fault(kind: FaultKind, detail: String, (session, sequence): (SessionId, u64), index: u64) -> TraceFault {
    TraceFault {
        kind,
        detail,
        index,
        line: index + 1,
        session: Some(session),
        sequence: Some(sequence),
    }
}
