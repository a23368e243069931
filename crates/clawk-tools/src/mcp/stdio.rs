//! The standard streams of a server: one message per line, with a maximum length. If a line is too long or can't be parsed, its
//! request gets an error at once.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::Mutex;

use super::inbound::PendingRequests;

/// How many bytes are kept of the beginning and of the end of a line that is too long.
const HEAD_BYTES: usize = 64 << 10;
const TAIL_BYTES: usize = 256;

/// The transport of one server's process.
pub(super) struct LineTransport<R, W> {
    reader: BufReader<R>,
    writer: Arc<Mutex<Option<W>>>,
    pending: PendingRequests,
    /// The maximum length of a line, in bytes.
    limit: usize,
    /// The current line so far; only its beginning if the line is too long.
    line: Vec<u8>,
    /// The last bytes of a line that is too long.
    tail: Option<VecDeque<u8>>,
    /// Messages that were parsed but not passed on yet.
    ready: VecDeque<ServerJsonRpcMessage>,
}

impl<R: AsyncRead + Send + Unpin, W: AsyncWrite + Send + Unpin + 'static> LineTransport<R, W> {
    pub(super) fn new(reader: R, writer: W, limit: usize) -> Self {
        Self {
            reader: BufReader::new(reader),
            writer: Arc::new(Mutex::new(Some(writer))),
            pending: PendingRequests::default(),
            limit,
            line: Vec::new(),
            tail: None,
            ready: VecDeque::new(),
        }
    }

    /// Adds a piece of the stream to the current line.
    fn add_piece(&mut self, piece: &[u8]) {
        if let Some(tail) = &mut self.tail {
            let from = piece.len().saturating_sub(TAIL_BYTES);
            tail.extend(piece.get(from..).unwrap_or_default());
            let over = tail.len().saturating_sub(TAIL_BYTES);
            tail.drain(..over);
            return;
        }
        self.line.extend_from_slice(piece);
        if self.line.len() > self.limit {
            let from = self.line.len().saturating_sub(TAIL_BYTES);
            self.tail = Some(
                self.line
                    .get(from..)
                    .unwrap_or_default()
                    .iter()
                    .copied()
                    .collect(),
            );
            self.line.truncate(HEAD_BYTES);
            self.line.shrink_to_fit();
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        match self.tail.take() {
            Some(tail) => {
                let tail: Vec<u8> = tail.into_iter().collect();
                tracing::warn!(limit = self.limit, "a message of an MCP server is too long");
                self.ready
                    .extend(self.pending.read_oversized(&line, &tail, self.limit));
            }
            None if line.trim_ascii().is_empty() => {}
            None => self.ready.extend(self.pending.read(&line)),
        }
    }
}

impl<R, W> Transport<RoleClient> for LineTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.pending.note_sent(&item);
        let writer = Arc::clone(&self.writer);
        async move {
            let mut line = serde_json::to_vec(&item)?;
            line.push(b'\n');
            let mut writer = writer.lock().await;
            let Some(writer) = writer.as_mut() else {
                return Err(io::Error::new(
                    io::ErrorKind::NotConnected,
                    "the session is closed",
                ));
            };
            writer.write_all(&line).await?;
            writer.flush().await
        }
    }

    /// Receives a message. Cancel-safe: bytes read from the stream stay in `self`.
    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let piece = match self.reader.fill_buf().await {
                Ok(piece) => piece,
                Err(error) => {
                    tracing::debug!(%error, "the stream of an MCP server broke");
                    return None;
                }
            };
            let end = piece.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(piece.len(), |at| at + 1);
            let piece = piece.get(..taken).unwrap_or_default().to_vec();
            self.reader.consume(taken);
            let over = piece.is_empty();
            self.add_piece(&piece);
            if end.is_some() || over {
                self.end_line();
            }
            if over && self.ready.is_empty() {
                return None;
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        drop(self.writer.lock().await.take());
        Ok(())
    }
}
