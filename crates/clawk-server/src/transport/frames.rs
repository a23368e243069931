//! Splits bytes into lines, in bounded memory (R24).

#[cfg(test)]
mod tests;

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The size of one read, bytes. The buffer shrinks back to this size.
const CHUNK: usize = 64 * 1024;

/// One line, without its newline.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputLine<'a> {
    /// A line of at most `max_message_bytes`.
    Whole(&'a [u8]),
    /// A longer line. The bytes up to the next newline are skipped.
    TooLong,
}

/// Splits the output of a reader into lines.
#[derive(Debug)]
pub(crate) struct LineSplitter<R> {
    reader: R,
    max: usize,
    buffer: Vec<u8>,
    /// The position of the first unconsumed byte.
    start: usize,
    /// The position up to which no newline was found.
    scanned: usize,
    /// The reader is inside a line that was too long.
    skipping: bool,
    ended: bool,
}

impl<R: AsyncRead + Unpin> LineSplitter<R> {
    pub(crate) fn new(reader: R, max_message_bytes: usize) -> Self {
        Self {
            reader,
            max: max_message_bytes,
            buffer: Vec::with_capacity(CHUNK),
            start: 0,
            scanned: 0,
            skipping: false,
            ended: false,
        }
    }

    /// The next line in the buffer. The last line of the input may lack its newline.
    pub(crate) fn next_buffered(&mut self) -> Option<InputLine<'_>> {
        loop {
            let unseen = self.buffer.get(self.scanned..).unwrap_or_default();
            let (from, end) = match memchr::memchr(b'\n', unseen) {
                Some(at) => {
                    let (from, end) = (self.start, self.scanned + at);
                    self.start = end + 1;
                    self.scanned = self.start;
                    (from, end)
                }
                None if self.skipping => {
                    self.start = self.buffer.len();
                    self.scanned = self.start;
                    return None;
                }
                None if self.buffer.len() - self.start > self.max => {
                    self.start = self.buffer.len();
                    self.scanned = self.start;
                    self.skipping = true;
                    return Some(InputLine::TooLong);
                }
                None if self.ended && self.start < self.buffer.len() => {
                    let (from, end) = (self.start, self.buffer.len());
                    self.start = end;
                    self.scanned = end;
                    (from, end)
                }
                None => {
                    self.scanned = self.buffer.len();
                    return None;
                }
            };
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if end - from > self.max {
                return Some(InputLine::TooLong);
            }
            return self.buffer.get(from..end).map(InputLine::Whole);
        }
    }

    /// Whether the input has ended and all its lines were taken.
    pub(crate) fn is_spent(&self) -> bool {
        self.ended && self.start == self.buffer.len()
    }

    /// Reads more input, if there is any. Cancelling loses nothing.
    ///
    /// # Errors
    /// The reader failed.
    pub(crate) async fn fill(&mut self) -> io::Result<()> {
        if self.ended {
            return Ok(());
        }
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
            if self.buffer.len() < CHUNK && self.buffer.capacity() > 4 * CHUNK {
                self.buffer.shrink_to(CHUNK);
            }
        }
        self.buffer.reserve(CHUNK);
        if self.reader.read_buf(&mut self.buffer).await? == 0 {
            self.ended = true;
        }
        Ok(())
    }
}
