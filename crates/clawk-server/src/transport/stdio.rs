//! Newline-delimited JSON-RPC over any pair of streams; standard input and output in the first place (CKP §9.2, R24, R25).

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::time::{Clock, SystemClock};
use futures::FutureExt;
use futures::future::FusedFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::frames::{Frames, Line};
use super::outbox::Outbox;
use crate::agent::{AgentFactory, Current};
use crate::rpc::lane::Lanes;
use crate::rpc::{Peer, Phase, heartbeat, questions};

/// What the reading loop gathers before it hands over.
const GATHER: usize = 64 * 1024;
/// How long a peer has to read the last answers.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How a connection is served.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest line, bytes, without its newline (R24).
    pub max_message_bytes: usize,
    /// How long work in flight may take when the input ends, the process is told to end, or `claw.shutdown` says nothing.
    pub drain_timeout_ms: u64,
    /// For the timestamps of heartbeats.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    /// 8 MiB, 30 s, the machine's clock.
    fn default() -> Self {
        Self {
            max_message_bytes: 8 * 1024 * 1024,
            drain_timeout_ms: 30_000,
            clock: Arc::new(SystemClock::default()),
        }
    }
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The input ended.
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

/// Serves one client until its input ends, it goes away, or `cancel` fires (the binary's termination signals); then drains
/// and shuts the agent down.
///
/// Nothing but protocol is written to `writer`. A peer that doesn't read stops our reading, not the work in flight.
pub async fn serve<R, W>(
    reader: R,
    writer: W,
    factory: Arc<dyn AgentFactory>,
    current: Current,
    options: Options,
    cancel: CancellationToken,
) -> Ended
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let outbox = Arc::new(Outbox::default());
    let lanes = Lanes::new();
    let (pulse, follow) = watch::channel(None);
    let mut peer = Peer {
        factory,
        current,
        outbox: Arc::clone(&outbox),
        lanes: Arc::clone(&lanes),
        tasks: TaskTracker::new(),
        pulse,
        phase: Phase::Fresh,
        drain_timeout_ms: options.drain_timeout_ms,
        out: Vec::new(),
    };
    let mut frames = Frames::new(reader, options.max_message_bytes);
    let mut writing = pin!(outbox.write_to(writer).fuse());
    let mut beating = pin!(heartbeat::beat(follow.clone(), &outbox, &*options.clock).fuse());
    let mut following = pin!(questions::follow(follow, &lanes, &outbox).fuse());
    let mut reading = Box::pin(read(&mut frames, &mut peer, options.max_message_bytes));
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
        let drained = peer.finish(by.reason()).await;
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
    peer: &mut Peer,
    max_message_bytes: usize,
) -> End {
    loop {
        while let Some(line) = frames.next_buffered() {
            match line {
                Line::Whole(line) => peer.line(line).await,
                Line::TooLong => peer.too_long(max_message_bytes),
            }
            if peer.out.len() >= GATHER {
                peer.flush();
                peer.outbox.room().await;
            }
        }
        peer.flush();
        peer.outbox.room().await;
        match frames.fill().await {
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
