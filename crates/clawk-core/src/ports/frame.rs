//! What a channel and a program say to each other over a WebSocket that the listener carries.

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketFrame {
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// The end: a close code (RFC 6455 §7.4.1) and why, for people. Only a channel says it; nothing follows.
    Close(u16, &'static str),
}
