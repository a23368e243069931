//! Reads HTTP bodies by their framing: piece by piece, counted, and never past the end.

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::ProxyFault;
use super::head::BodyFraming;

/// The maximum number of bytes that one read returns.
const PIECE_BYTES: usize = 16 << 10;

/// The maximum length of a chunk size line, in bytes.
const MAX_SIZE_LINE: usize = 256;

/// The maximum size of trailers, in bytes. Trailers are discarded.
const MAX_TRAILERS: usize = 8 << 10;

/// A body that is being read.
pub(super) struct Body<'a> {
    stream: &'a mut (dyn AsyncRead + Send + Unpin),
    buffer: &'a mut BytesMut,
    state: State,
}

enum State {
    Length(u64),
    /// Before a chunk's size line.
    Size,
    /// Inside a chunk, with the number of bytes left.
    Chunk(u64),
    Close,
    End,
}

impl<'a> Body<'a> {
    pub(super) fn new(
        stream: &'a mut (dyn AsyncRead + Send + Unpin),
        buffer: &'a mut BytesMut,
        framing: BodyFraming,
    ) -> Self {
        let state = match framing {
            BodyFraming::None | BodyFraming::Length(0) => State::End,
            BodyFraming::Length(length) => State::Length(length),
            BodyFraming::Chunked => State::Size,
            BodyFraming::Close => State::Close,
        };
        Self {
            stream,
            buffer,
            state,
        }
    }

    /// Reads the next piece; `None` at the regular end. If the body is cut off, the error is [`ProxyFault::Gone`].
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ProxyFault> {
        loop {
            match self.state {
                State::End => return Ok(None),
                State::Close => {
                    if self.buffer.is_empty() && self.fill_buffer().await? == 0 {
                        self.state = State::End;
                        return Ok(None);
                    }
                    return Ok(Some(self.buffer.split().freeze()));
                }
                State::Length(left) => {
                    let piece = self.read_some(left).await?;
                    let left = left.saturating_sub(length_of(&piece));
                    self.state = if left == 0 {
                        State::End
                    } else {
                        State::Length(left)
                    };
                    return Ok(Some(piece));
                }
                State::Size => match self.read_chunk_size().await? {
                    0 => {
                        self.skip_trailers().await?;
                        self.state = State::End;
                    }
                    size => self.state = State::Chunk(size),
                },
                State::Chunk(left) => {
                    let piece = self.read_some(left).await?;
                    let left = left.saturating_sub(length_of(&piece));
                    if left == 0 {
                        self.line_end().await?;
                        self.state = State::Size;
                    } else {
                        self.state = State::Chunk(left);
                    }
                    return Ok(Some(piece));
                }
            }
        }
    }

    async fn fill_buffer(&mut self) -> Result<usize, ProxyFault> {
        self.buffer.reserve(PIECE_BYTES);
        self.stream
            .read_buf(self.buffer)
            .await
            .map_err(ProxyFault::connection_gone)
    }

    async fn read_more(&mut self) -> Result<(), ProxyFault> {
        match self.fill_buffer().await? {
            0 => Err(ProxyFault::Gone),
            _ => Ok(()),
        }
    }

    /// Reads at least one byte and at most `left` bytes.
    async fn read_some(&mut self, left: u64) -> Result<Bytes, ProxyFault> {
        if self.buffer.is_empty() {
            self.read_more().await?;
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
        Ok(self.buffer.split_to(most).freeze())
    }

    /// Reads a chunk's size: hexadecimal digits, then perhaps an extension, which is ignored.
    async fn read_chunk_size(&mut self) -> Result<u64, ProxyFault> {
        let bad = || ProxyFault::bad_request("smuggling", "a chunk's size can't be read");
        let line = self.read_line(MAX_SIZE_LINE).await?;
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
        if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(bad());
        }
        let text = std::str::from_utf8(digits).map_err(|_text| bad())?;
        u64::from_str_radix(text, 16).map_err(|_number| bad())
    }

    async fn line_end(&mut self) -> Result<(), ProxyFault> {
        while self.buffer.len() < 2 {
            self.read_more().await?;
        }
        if !self.buffer.starts_with(b"\r\n") {
            return Err(ProxyFault::bad_request(
                "smuggling",
                "a chunk is longer than it says",
            ));
        }
        self.buffer.advance(2);
        Ok(())
    }

    async fn skip_trailers(&mut self) -> Result<(), ProxyFault> {
        let mut total = 0;
        loop {
            let line = self.read_line(MAX_TRAILERS).await?;
            if line.is_empty() {
                return Ok(());
            }
            total += line.len();
            if total > MAX_TRAILERS {
                return Err(ProxyFault::bad_request("too-large", "the trailers are too large"));
            }
        }
    }

    /// Reads one line, and returns it without CR LF.
    async fn read_line(&mut self, max_bytes: usize) -> Result<Bytes, ProxyFault> {
        let mut looked = 0;
        loop {
            let rest = self.buffer.get(looked..).unwrap_or_default();
            if let Some(at) = rest.iter().position(|byte| *byte == b'\n').map(|at| at + looked) {
                let mut line = self.buffer.split_to(at + 1);
                line.truncate(at);
                if line.last() != Some(&b'\r') {
                    return Err(ProxyFault::bad_request(
                        "smuggling",
                        "a line feed without a carriage return",
                    ));
                }
                line.truncate(at - 1);
                if line.contains(&b'\r') {
                    return Err(ProxyFault::bad_request(
                        "smuggling",
                        "a carriage return inside a line",
                    ));
                }
                return Ok(line.freeze());
            }
            looked = self.buffer.len();
            if looked > max_bytes {
                return Err(ProxyFault::bad_request(
                    "too-large",
                    "a line of the body's framing is too long",
                ));
            }
            self.read_more().await?;
        }
    }
}

/// Writes one piece, as a chunk if `chunked`. Writes nothing for an empty piece.
pub(super) async fn write(
    stream: &mut (dyn AsyncWrite + Send + Unpin),
    piece: &[u8],
    chunked: bool,
) -> Result<(), ProxyFault> {
    if piece.is_empty() {
        return Ok(());
    }
    if !chunked {
        return stream.write_all(piece).await.map_err(ProxyFault::connection_gone);
    }
    let mut framed = Vec::with_capacity(piece.len() + 16);
    framed.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
    framed.extend_from_slice(piece);
    framed.extend_from_slice(b"\r\n");
    stream
        .write_all(&framed)
        .await
        .map_err(ProxyFault::connection_gone)
}

pub(super) fn length_of(piece: &[u8]) -> u64 {
    u64::try_from(piece.len()).unwrap_or(u64::MAX)
}
