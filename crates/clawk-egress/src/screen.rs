//! What looks at requests before they leave. Patterns are given from above; this crate knows none.

use std::fmt;

/// Finds secrets in what leaves, by known values and by shape.
pub trait SecretScreen: Send + Sync + fmt::Debug {
    /// A new stream of bytes to look at.
    fn begin(&self) -> Box<dyn SecretScan>;
}

/// One stream of bytes: a URL, a header's value, a body.
pub trait SecretScan: Send {
    /// Takes the next piece; appends to `out` what may leave by now. A secret cut in two by a piece's edge is found all the
    /// same: what may be the beginning of one is kept back.
    fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> ScreenVerdict;

    /// The stream's end: appends what was kept back.
    fn finish(&mut self, out: &mut Vec<u8>) -> ScreenVerdict;
}

/// What a piece held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScreenVerdict {
    /// Nothing.
    Clean,
    /// These kinds of secrets (names of patterns, never values); redacted in `out`, or left and told, as the policy says.
    Noted(Vec<String>),
    /// This kind of secret; nothing more may leave.
    Blocked(String),
}
