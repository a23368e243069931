//! The tree over a whole journal: RFC 6962's Merkle tree, its leaves the events' hashes in the journal's order. One root commits to
//! every event of every session, so one signed line finds out a removed session or a state directory that was rolled back.

use clawk_proto::Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A tree that grows at its end. Holds one hash per set bit of its size, whatever its size.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    size: u64,
    /// Roots of the full subtrees, the largest first.
    peaks: Vec<Digest>,
}

impl Tree {
    /// A tree of `size` leaves from what [`Self::peaks`] answered; `None`: these can't be the peaks of so many leaves.
    #[must_use]
    pub fn resume(size: u64, peaks: Vec<Digest>) -> Option<Self> {
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
        let mut node = digest(&[&[0], &event.0]);
        let mut merged = self.size;
        while merged & 1 == 1 {
            if let Some(left) = self.peaks.pop() {
                node = digest(&[&[1], &left.0, &node.0]);
            }
            merged >>= 1;
        }
        self.peaks.push(node);
        self.size += 1;
    }

    /// The root; of an empty tree, SHA-256 of nothing.
    #[must_use]
    pub fn root(&self) -> Digest {
        let mut peaks = self.peaks.iter().rev();
        let Some(last) = peaks.next() else {
            return digest(&[]);
        };
        peaks.fold(*last, |right, left| digest(&[&[1], &left.0, &right.0]))
    }
}

fn digest(parts: &[&[u8]]) -> Digest {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update(part);
    }
    Digest(sha.finalize().into())
}

/// "So many events in the journal of this state directory have this root."
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeStatement {
    /// How many events, of all sessions together.
    pub size: u64,
    /// [`Tree::root`] over their hashes, in the journal's order.
    pub root: Digest,
    /// When, RFC 3339.
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
    /// What is stated.
    #[serde(flatten)]
    pub statement: TreeStatement,
    /// [`super::PublicKey::id`] of the key that signed.
    pub key_id: String,
    /// 128 hex digits.
    pub signature: String,
}
