//! The host's view of its agent's channels: they get requests at `/channels/NAME`, and orders.

use std::fmt;

use axum::body::Bytes;
use clawk_kernel::ports::{BoxFuture, SocketFrame};
use http::{Request, Response};
use serde_json::Value;
use tokio::sync::mpsc;

/// The body of an answer to a request at `/channels/NAME`.
#[derive(Debug)]
pub enum HookBody {
    /// All of it.
    Whole(Vec<u8>),
    /// Piece by piece, until the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
    /// None: the request asked for a WebSocket, and the channel talks on it.
    Socket(HookSocket),
}

/// A channel's end of a WebSocket.
#[derive(Debug)]
pub struct HookSocket {
    /// The subprotocol that was agreed on.
    pub protocol: &'static str,
    /// The longest frame that is taken, bytes.
    pub max_frame_bytes: usize,
    /// What the client says; dropped when the client is gone.
    pub heard: mpsc::Sender<SocketFrame>,
    /// What it is told, until the channel drops its sender.
    pub said: mpsc::Receiver<SocketFrame>,
}

/// The channels of a host's agent.
pub trait Channels: Send + Sync + fmt::Debug {
    /// A request to `/channels/NAME`. It has passed the listener's Host, Origin, rate and size checks and no other: whether it is
    /// genuine is the channel's to say, by the platform's signature.
    fn receive<'a>(&'a self, name: &'a str, request: Request<Bytes>) -> BoxFuture<'a, Response<HookBody>>;

    /// An order of the state directory's owner, `clawk.channels.…`; `by` is who gave it. `None`: there is no such order.
    ///
    /// # Errors
    /// Why it was not obeyed, for people.
    fn order<'a>(
        &'a self,
        method: &'a str,
        params: &'a Value,
        by: &'a str,
    ) -> BoxFuture<'a, Option<Result<Value, String>>>;
}
