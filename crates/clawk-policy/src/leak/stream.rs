//! Scans a text that arrives in pieces. A secret across two pieces is found, and no part of it gets out.

use super::{LOOK_BEHIND, LeakTally, MAX_SECRET_BYTES, Scanner, SecretLeak, joined};

/// Redacts a stream of bytes. It holds back about 500 bytes, or the longest known value plus a little. While the buffer may contain
/// the beginning of a long secret (a key block, a token of three parts), it holds back up to [`MAX_SECRET_BYTES`].
///
/// To block instead of redacting, check [`leaks_found`](Self::leaks_found) after each piece: no part of a secret has been released by then.
#[derive(Debug)]
pub struct LeakRedactingStream {
    scanner: Scanner,
    /// The number of bytes held back: enough that a secret is complete in the buffer, with the byte that ends it. Long secrets are
    /// handled separately.
    hold: usize,
    /// Released context, followed by the bytes held back.
    buffer: Vec<u8>,
    /// The number of released bytes in `buffer`.
    left: usize,
    /// The end of a secret whose mark was already released, if the buffer begins inside it or directly after it.
    open: Option<usize>,
    tally: LeakTally,
}

impl LeakRedactingStream {
    pub(super) fn new(scanner: Scanner) -> Self {
        Self {
            hold: scanner.longest() + 1,
            scanner,
            buffer: Vec::new(),
            left: 0,
            open: None,
            tally: empty_tally(),
        }
    }

    /// Adds a piece. Returns the bytes that may be released.
    #[must_use]
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.buffer.extend_from_slice(piece);
        let mut until = self.buffer.len().saturating_sub(self.hold);
        let held = self.buffer.get(self.left..).unwrap_or_default();
        if let Some(at) = self.scanner.vast(held) {
            let decided = self.buffer.len().saturating_sub(MAX_SECRET_BYTES + 1);
            until = until.min(decided.max(self.left + at));
        }
        if until <= self.left {
            return Vec::new();
        }
        self.emit_until(until)
    }

    /// Ends the stream. Returns the remaining bytes.
    #[must_use]
    pub fn finish(&mut self) -> Vec<u8> {
        self.emit_until(self.buffer.len())
    }

    /// The secrets found so far in the stream.
    #[must_use]
    pub const fn leaks_found(&self) -> &LeakTally {
        &self.tally
    }

    fn emit_until(&mut self, until: usize) -> Vec<u8> {
        let mut candidates = self.scanner.candidates(&self.buffer);
        candidates.retain(|leak| leak.start >= self.left && leak.start < until);
        let mut out = Vec::with_capacity(until - self.left);
        let mut open = self.open;
        let mut at = open.map_or(self.left, |end| end.max(self.left));
        for SecretLeak { kind, start, end } in joined(candidates) {
            match open {
                Some(last) if start <= last => at = last.max(end),
                _ => {
                    out.extend_from_slice(self.buffer.get(at..start).unwrap_or_default());
                    out.extend_from_slice(kind.mark().as_bytes());
                    self.tally.add(&kind);
                    at = end;
                }
            }
            open = Some(at);
        }
        out.extend_from_slice(self.buffer.get(at..until).unwrap_or_default());
        let keep_from = until.saturating_sub(LOOK_BEHIND);
        self.buffer.drain(..keep_from);
        self.left = until - keep_from;
        // A secret that ends at a cut is merged with one that begins there, as in the whole text.
        self.open = open.filter(|end| *end >= until).map(|end| end - keep_from);
        out
    }
}

const fn empty_tally() -> LeakTally {
    LeakTally(std::collections::BTreeMap::new())
}
