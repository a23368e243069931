//! The tree over a whole journal: RFC 6962's Merkle tree, with the events' hashes as leaves in journal order. One root depends on
//! every event of every session. So a single signed line reveals a removed session or a state directory that was rolled back.

use clawk_proto::Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// An append-only tree. It holds one hash per set bit of its size.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    size: u64,
    /// The roots of the full subtrees, largest first.
    peaks: Vec<Digest>,
}

impl Tree {
    /// A tree of `size` leaves from the result of [`Self::peaks`]. `None`: the peaks don't match this size.
    #[must_use]
    pub fn from_peaks(size: u64, peaks: Vec<Digest>) -> Option<Self> {
        let wanted = usize::try_from(size.count_ones()).ok()?; // silent-ok: at most 64
        (peaks.len() == wanted).then_some(Self { size, peaks })
    }

    /// The number of events that the tree covers.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The peaks of the tree, at most 64 hashes. They are enough to continue the tree later.
    #[must_use]
    pub fn peaks(&self) -> &[Digest] {
        &self.peaks
    }

    /// Adds the hash of the next event.
    pub fn push(&mut self, event: &Digest) {
        let mut node = digest_parts(&[&[0], &event.0]);
        let mut merged = self.size;
        while merged & 1 == 1 {
            if let Some(left) = self.peaks.pop() {
                node = digest_parts(&[&[1], &left.0, &node.0]);
            }
            merged >>= 1;
        }
        self.peaks.push(node);
        self.size += 1;
    }

    /// The root. For an empty tree: the SHA-256 of no bytes.
    #[must_use]
    pub fn root(&self) -> Digest {
        let mut peaks = self.peaks.iter().rev();
        let Some(last) = peaks.next() else {
            return digest_parts(&[]);
        };
        peaks.fold(*last, |right, left| digest_parts(&[&[1], &left.0, &right.0]))
    }
}

fn digest_parts(parts: &[&[u8]]) -> Digest {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update(part);
    }
    Digest(sha.finalize().into())
}

/// The statement "the first N events in this state directory's journal have this root".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeStatement {
    /// The number of events of all sessions.
    pub size: u64,
    /// The [`Tree::root`] of their hashes, in journal order.
    pub root: Digest,
    /// The time of the statement, RFC 3339.
    pub timestamp: String,
}

impl TreeStatement {
    /// The bytes that are signed: four lines, each ended by LF.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let Self {
            size,
            root,
            timestamp,
        } = self;
        format!(
            "clawk trace tree head v1\n{size}\n{}\n{timestamp}\n",
            root.to_hex()
        )
        .into_bytes()
    }
}

/// A signed tree head: one line of a checkpoints file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeHead {
    /// The statement.
    #[serde(flatten)]
    pub statement: TreeStatement,
    /// The id of the signing key: [`super::PublicKey::id`].
    pub key_id: String,
    /// The signature, 128 hex digits.
    pub signature: String,
}
