//! Newline-delimited JSON-RPC over any pair of streams: standard input and output, and the control socket (CKP §9.2, R24,
//! R25). Here alone bytes become messages; a connection knows nothing of lines.

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::FutureExt;
use futures::future::FusedFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::frames::{Frames, Line};
use crate::access::Rights;
use crate::host::Host;
use crate::rpc::{Connection, heartbeat, questions};

/// What the reading loop gathers before it hands over.
const GATHER: usize = 64 * 1024;
/// How long a peer has to read the last answers.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long a connection that does not own the agent may say nothing before it has initialized.
const IDLE: Duration = Duration::from_secs(30);

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The input ended, or nothing came for too long.
    Input,
    /// The token was cancelled.
    Cancelled,
    /// The peer can't be read from or written to any more.
    PeerGone,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Why.
    pub by: End,
    /// What was in flight ended before the drain's timeout.
    pub drained: bool,
}

/// Serves one client until its input ends, it goes away, or `cancel` fires. The launcher's connection then drains and shuts
/// the agent down; any other ends by itself, and what it began goes on (R38).
///
/// Nothing but protocol is written to `writer`. A peer that doesn't read stops our reading, not the work in flight.
pub async fn serve<R, W>(reader: R, writer: W, host: Host, rights: Rights, cancel: CancellationToken) -> Ended
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let max_message_bytes = host.options().max_message_bytes;
    let clock = host.options().clock.clone();
    let (mut connection, follow) = Connection::new(host, rights);
    let (outbox, lanes) = (connection.outbox(), connection.lanes());
    let mut frames = Frames::new(reader, max_message_bytes);
    let mut writing = pin!(outbox.write_to(writer).fuse());
    let mut beating = pin!(heartbeat::beat(follow.clone(), &outbox, &*clock).fuse());
    let mut following = pin!(questions::follow(follow, &lanes, &outbox).fuse());
    let mut reading = Box::pin(read(&mut frames, &mut connection, max_message_bytes));
    // One task: what is read, answered and written meets without a hand-over between threads.
    let by = loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => break End::Cancelled,
            end = &mut reading => break end,
            _ = &mut writing => break End::PeerGone,
            () = &mut beating => {}
            () = &mut following => {}
        }
    };
    drop(reading);
    let finish = async {
        let drained = connection.finish(by.reason(), by != End::PeerGone).await;
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
    Ended { by, drained }
}

impl End {
    const fn reason(self) -> &'static str {
        match self {
            Self::Input => "the input ended",
            Self::Cancelled => "terminated",
            Self::PeerGone => "the client is gone",
        }
    }
}

async fn read<R: AsyncRead + Unpin>(
    frames: &mut Frames<R>,
    connection: &mut Connection,
    max_message_bytes: usize,
) -> End {
    loop {
        while let Some(line) = frames.next_buffered() {
            match line {
                Line::Whole(message) => connection.take(message).await,
                Line::TooLong => connection.too_long(max_message_bytes),
            }
            if connection.gathered() >= GATHER {
                connection.flush();
                connection.room().await;
            }
        }
        connection.flush();
        connection.room().await;
        let more = if connection.may_idle() {
            frames.fill().await
        } else {
            match tokio::time::timeout(IDLE, frames.fill()).await {
                Ok(more) => more,
                Err(_) if connection.is_busy() => continue, // silent-ok: its answers are under way
                Err(_) => return End::Input, // silent-ok: who says nothing for so long wants nothing
            }
        };
        match more {
            Ok(()) if frames.is_spent() => return End::Input,
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                tracing::debug!(error = %e, "the input broke");
                return End::PeerGone;
            }
        }
    }
}
