//! Messages between a channel and a program over a WebSocket that the listener carries.

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketFrame {
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// The end: a close code (RFC 6455 §7.4.1) and the reason for people. Only a channel sends it; nothing follows.
    Close(u16, &'static str),
}
