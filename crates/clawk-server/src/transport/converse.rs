//! One client's connection on any transport. A single task reads its messages, writes its answers, and sends heartbeats and
//! questions.

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::FutureExt;
use futures::future::FusedFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::rpc::{RpcConnection, ServedRun, heartbeat, questions, reports};

/// How long a client may take to read the last answers.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long a connection that does not own the agent may stay silent before it initializes.
pub(crate) const IDLE: Duration = Duration::from_secs(30);

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEndCause {
    /// The input ended, or the client was silent for too long.
    Input,
    /// The cancellation token fired.
    Cancelled,
    /// Reading from the client or writing to it failed.
    PeerGone,
}

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionEnd {
    /// The cause.
    pub by: ConnectionEndCause,
    /// All work in flight ended before the drain's timeout.
    pub drained: bool,
}

/// The source of a client's messages.
pub(crate) trait MessageSource: Send {
    /// Passes messages to the connection until none are left.
    fn read(&mut self, connection: &mut RpcConnection) -> impl Future<Output = ConnectionEndCause> + Send;
}

/// Serves one client until its messages end, `writing` ends, or `cancel` fires. Then work in flight is drained, and `writing` gets
/// a moment for the last answers.
pub(crate) async fn serve_client<S: MessageSource>(
    (mut connection, follow): (RpcConnection, watch::Receiver<Option<ServedRun>>),
    mut source: S,
    writing: impl Future<Output = io::Result<()>> + Send,
    cancel: CancellationToken,
) -> ConnectionEnd {
    let (outbox, lanes, clock) = (connection.outbox(), connection.lanes(), connection.clock());
    let mut writing = pin!(writing.fuse());
    let mut beating = pin!(heartbeat::send_heartbeats(follow.clone(), &outbox, &*clock).fuse());
    let mut following = pin!(questions::follow_questions(follow.clone(), &lanes, &outbox).fuse());
    let mut reporting = pin!(reports::follow_reports(follow, &outbox).fuse());
    let mut reading = Box::pin(source.read(&mut connection));
    // A single task reads, answers and writes, so nothing is passed between threads.
    let by = loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => break ConnectionEndCause::Cancelled,
            end = &mut reading => break end,
            _ = &mut writing => break ConnectionEndCause::PeerGone,
            () = &mut beating => {}
            () = &mut following => {}
            () = &mut reporting => {}
        }
    };
    drop(reading);
    let finish = async {
        let drained = connection
            .end_connection(by.reason(), by != ConnectionEndCause::PeerGone)
            .await;
        outbox.finish();
        drained
    };
    let mut finish = pin!(finish.fuse());
    let drained = loop {
        tokio::select! {
            biased;
            drained = &mut finish => break drained,
            _ = &mut writing => {}
            () = &mut following => {}
        }
    };
    if !writing.is_terminated() && tokio::time::timeout(LAST_WORDS, writing).await.is_err() {
        tracing::warn!("the peer does not read; the last answers are lost");
    }
    ConnectionEnd { by, drained }
}

impl ConnectionEndCause {
    const fn reason(self) -> &'static str {
        match self {
            Self::Input => "the input ended",
            Self::Cancelled => "terminated",
            Self::PeerGone => "the client is gone",
        }
    }
}
