//! Newline-delimited JSON-RPC over any pair of streams: standard input and output, and the control socket (CKP §9.2, R24,
//! R25). Here alone bytes become lines; a connection knows nothing of them.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::converse::{End, Ended, IDLE, Source, converse};
use super::frames::{Frames, Line};
use crate::access::Rights;
use crate::host::Host;
use crate::rpc::Connection;

/// What the reading loop gathers before it hands over.
const GATHER: usize = 64 * 1024;

/// Serves one client until its input ends, it goes away, or `cancel` fires. The launcher's connection then drains and shuts
/// the agent down; any other ends by itself, and what it began goes on (R38).
///
/// Nothing but protocol is written to `writer`. A peer that doesn't read stops our reading, not the work in flight.
pub async fn serve<R, W>(reader: R, writer: W, host: Host, rights: Rights, cancel: CancellationToken) -> Ended
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let lines = Lines {
        frames: Frames::new(reader, host.options().max_message_bytes),
        max_message_bytes: host.options().max_message_bytes,
    };
    let connection = Connection::new(host, rights);
    let outbox = connection.0.outbox();
    converse(connection, lines, outbox.write_to(writer), cancel).await
}

struct Lines<R> {
    frames: Frames<R>,
    max_message_bytes: usize,
}

impl<R: AsyncRead + Unpin + Send> Source for Lines<R> {
    async fn read(&mut self, connection: &mut Connection) -> End {
        let Self {
            frames,
            max_message_bytes,
        } = self;
        read(frames, connection, *max_message_bytes).await
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
