//! Splits a reader into chunks of whole lines, in bounded memory.

use std::io::{self, BufRead, ErrorKind};

use memchr::memrchr;

use super::{MAX_LINE_BYTES, skip_line};

/// A larger chunk holds one very long line. Only one such chunk is in memory at a time.
const LARGE: usize = 4 * 1024 * 1024;

/// Whole lines. Only the last line of the last chunk may lack its newline.
#[derive(Debug)]
pub(super) struct Chunk {
    buffer: Vec<u8>,
    used: usize,
}

impl Chunk {
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.used).unwrap_or_default()
    }

    pub(super) const fn is_large(&self) -> bool {
        self.used > LARGE
    }
}

#[derive(Debug)]
pub(super) enum ChunkPiece {
    Lines(Chunk),
    /// A line longer than [`MAX_LINE_BYTES`], already skipped.
    TooLong,
    End,
}

pub(super) struct ChunkReader<R> {
    reader: R,
    size: usize,
    /// The beginning of a line whose end has not been read yet.
    rest: Vec<u8>,
    idle: Vec<Vec<u8>>,
    at_end: bool,
}

impl<R: BufRead> ChunkReader<R> {
    pub(super) fn new(reader: R, size: usize) -> Self {
        Self {
            reader,
            size,
            rest: Vec::new(),
            idle: Vec::new(),
            at_end: false,
        }
    }

    pub(super) const fn is_at_end(&self) -> bool {
        self.at_end
    }

    /// Reuses a chunk's memory.
    pub(super) fn recycle(&mut self, chunk: Chunk) {
        if chunk.buffer.len() <= self.size {
            self.idle.push(chunk.buffer);
        }
    }

    pub(super) fn next(&mut self) -> io::Result<ChunkPiece> {
        let mut buffer = self.idle.pop().unwrap_or_default();
        buffer.resize(self.size.max(self.rest.len() + 1), 0);
        let mut filled = self.rest.len();
        if let Some(front) = buffer.get_mut(..filled) {
            front.copy_from_slice(&self.rest);
        }
        self.rest.clear();
        loop {
            filled += self.fill_buffer(buffer.get_mut(filled..).unwrap_or_default())?;
            let read = buffer.get(..filled).unwrap_or_default();
            if self.at_end {
                let chunk = Chunk { buffer, used: filled };
                return Ok(if filled == 0 {
                    ChunkPiece::End
                } else {
                    ChunkPiece::Lines(chunk)
                });
            }
            if let Some(at) = memrchr(b'\n', read) {
                self.rest
                    .extend_from_slice(read.get(at + 1..).unwrap_or_default());
                return Ok(ChunkPiece::Lines(Chunk { buffer, used: at + 1 }));
            }
            if filled > MAX_LINE_BYTES {
                skip_line(&mut self.reader)?;
                return Ok(ChunkPiece::TooLong);
            }
            buffer.resize((filled * 2).clamp(filled + 1, MAX_LINE_BYTES + 1), 0);
        }
    }

    /// Fills `room` unless the input ends.
    fn fill_buffer(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(left) = room.get_mut(filled..).filter(|left| !left.is_empty()) {
            match self.reader.read(left) {
                Ok(0) => {
                    self.at_end = true;
                    break;
                }
                Ok(count) => filled += count,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }
}
