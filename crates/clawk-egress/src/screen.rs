//! The interface of the screen that checks requests before they are sent. Other crates provide the patterns; this crate has none.

use std::fmt;

/// Finds secrets in outgoing data, by known values and by patterns.
pub trait SecretScreen: Send + Sync + fmt::Debug {
    /// Starts the check of a new stream of bytes.
    fn begin_scan(&self) -> Box<dyn SecretScan>;
}

/// The check of one stream of bytes: a URL, a header value or a body.
pub trait SecretScan: Send {
    /// Takes the next piece. Appends to `out` the bytes that may be sent now. The end of a piece is held back if a secret may begin
    /// there, so that secrets across two pieces are found.
    fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> ScreenVerdict;

    /// Ends the stream: appends the bytes that were held back.
    fn finish(&mut self, out: &mut Vec<u8>) -> ScreenVerdict;
}

/// The result for one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScreenVerdict {
    /// No secret was found.
    Clean,
    /// These kinds of secrets were found (names of patterns, never values). The policy decides whether `out` has them redacted or
    /// as they are.
    Noted(Vec<String>),
    /// This kind of secret was found. Nothing more may be sent.
    Blocked(String),
}
