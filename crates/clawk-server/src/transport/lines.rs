//! Newline-delimited JSON-RPC over any pair of streams: standard input and output, and the control socket (CKP §9.2, R24, R25).
//! Only this module turns bytes into lines; a connection gets whole messages.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::converse::{ConnectionEnd, ConnectionEndCause, IDLE, MessageSource, serve_client};
use super::frames::{InputLine, LineSplitter};
use crate::access::ClientRights;
use crate::host::AgentHost;
use crate::rpc::RpcConnection;

/// Bytes of answers that the reading loop collects before it moves them to the outbox.
const GATHER: usize = 64 * 1024;

/// Serves one client until its input ends, it disconnects, or `cancel` fires. Then the launcher's connection drains and shuts the
/// agent down; other connections just end, and their work continues (R38).
///
/// Only protocol messages are written to `writer`. If the client does not read, reading pauses; work in flight continues.
pub async fn serve<R, W>(
    reader: R,
    writer: W,
    host: AgentHost,
    rights: ClientRights,
    cancel: CancellationToken,
) -> ConnectionEnd
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let lines = RpcLineSource {
        frames: LineSplitter::new(reader, host.options().max_message_bytes),
        max_message_bytes: host.options().max_message_bytes,
    };
    let connection = RpcConnection::new(host, rights);
    let outbox = connection.0.outbox();
    serve_client(connection, lines, outbox.write_to(writer), cancel).await
}

struct RpcLineSource<R> {
    frames: LineSplitter<R>,
    max_message_bytes: usize,
}

impl<R: AsyncRead + Unpin + Send> MessageSource for RpcLineSource<R> {
    async fn read(&mut self, connection: &mut RpcConnection) -> ConnectionEndCause {
        let Self {
            frames,
            max_message_bytes,
        } = self;
        read(frames, connection, *max_message_bytes).await
    }
}

async fn read<R: AsyncRead + Unpin>(
    frames: &mut LineSplitter<R>,
    connection: &mut RpcConnection,
    max_message_bytes: usize,
) -> ConnectionEndCause {
    loop {
        while let Some(line) = frames.next_buffered() {
            match line {
                InputLine::Whole(message) => connection.handle_line(message).await,
                InputLine::TooLong => connection.too_long(max_message_bytes),
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
                Err(_) => return ConnectionEndCause::Input, // silent-ok: who says nothing for so long wants nothing
            }
        };
        match more {
            Ok(()) if frames.is_spent() => return ConnectionEndCause::Input,
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                tracing::debug!(error = %e, "the input broke");
                return ConnectionEndCause::PeerGone;
            }
        }
    }
}
