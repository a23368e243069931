//! The host's interface to its agent's channels: it passes them requests at `/channels/NAME`, and operator orders.

use std::fmt;

use axum::body::Bytes;
use clawk_kernel::ports::{BoxFuture, SocketFrame};
use http::{Request, Response};
use serde_json::Value;
use tokio::sync::mpsc;

/// The body of a response at `/channels/NAME`.
#[derive(Debug)]
pub enum HookBody {
    /// The complete body.
    Whole(Vec<u8>),
    /// A streamed body. It ends when the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
    /// No body: the request asked for a WebSocket, and the channel continues there.
    Socket(HookSocket),
}

/// A channel's end of a WebSocket.
#[derive(Debug)]
pub struct HookSocket {
    /// The agreed subprotocol.
    pub protocol: &'static str,
    /// The longest accepted frame, bytes.
    pub max_frame_bytes: usize,
    /// Frames from the client. This sender is dropped when the client disconnects.
    pub heard: mpsc::Sender<SocketFrame>,
    /// Frames for the client. The socket closes when the channel drops its sender.
    pub said: mpsc::Receiver<SocketFrame>,
}

/// The channels of the host's agent.
pub trait Channels: Send + Sync + fmt::Debug {
    /// Handles a request to `/channels/NAME`. The listener has checked only Host, Origin, rate and size. The channel must check the
    /// platform's signature.
    fn receive_hook<'a>(
        &'a self,
        name: &'a str,
        request: Request<Bytes>,
    ) -> BoxFuture<'a, Response<HookBody>>;

    /// Runs an operator order (`clawk.channels.…`); `by` is the person who gave it. Returns `None` for an unknown order.
    ///
    /// # Errors
    /// Why the order failed, for people.
    fn run_order<'a>(
        &'a self,
        method: &'a str,
        params: &'a Value,
        by: &'a str,
    ) -> BoxFuture<'a, Option<Result<Value, String>>>;
}
