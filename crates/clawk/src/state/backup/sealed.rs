//! A stream that is sealed in pieces. Each piece is bound to the backup, its number, and whether it is the last one, so pieces can
//! be neither moved, left out nor cut off.

use std::io::{self, BufRead as _, BufReader, Read, Write};

use clawk_recall::seal::SealKeyring;
use uuid::Uuid;

/// First bytes of a sealed backup.
pub(super) const MAGIC: &[u8] = b"clawk-sealed-backup 1 ";
/// Plain bytes of one piece.
const PIECE_BYTES: usize = 256 * 1024;
/// Largest sealed piece, bytes.
const MAX_PIECE_BYTES: usize = PIECE_BYTES + 1024;

fn place_of(backup: Uuid, number: u64, last: bool) -> String {
    let end = if last { " last" } else { "" };
    format!("clawk backup {backup} {number}{end}")
}

/// Writes a sealed stream. [`SealedWriter::finish`] must be called.
pub(super) struct SealedWriter<W> {
    out: W,
    vault: SealKeyring,
    backup: Uuid,
    number: u64,
    piece: Vec<u8>,
}

impl<W: Write> SealedWriter<W> {
    pub(super) fn begin(mut out: W, vault: SealKeyring, backup: Uuid) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        writeln!(out, "{backup}")?;
        Ok(Self {
            out,
            vault,
            backup,
            number: 0,
            piece: Vec::with_capacity(PIECE_BYTES),
        })
    }

    fn write_piece(&mut self, last: bool) -> io::Result<()> {
        let place = place_of(self.backup, self.number, last);
        let sealed = self.vault.seal(&place, &self.piece).map_err(io::Error::other)?;
        let length = u32::try_from(sealed.len()).map_err(io::Error::other)?;
        self.out.write_all(&length.to_be_bytes())?;
        self.out.write_all(&sealed)?;
        self.number += 1;
        self.piece.clear();
        Ok(())
    }

    /// Writes the last piece.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.write_piece(true)?;
        Ok(self.out)
    }
}

impl<W: Write> Write for SealedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() == PIECE_BYTES {
            self.write_piece(false)?;
        }
        let (now, _) = bytes.split_at(bytes.len().min(PIECE_BYTES - self.piece.len()));
        self.piece.extend_from_slice(now);
        Ok(now.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a sealed stream.
pub(super) struct SealedReader<R> {
    from: BufReader<R>,
    vault: SealKeyring,
    backup: Uuid,
    number: u64,
    piece: Vec<u8>,
    at: usize,
    ended: bool,
}

impl<R: Read> SealedReader<R> {
    /// Reads the rest of the first line, behind [`MAGIC`].
    pub(super) fn begin(from: R, vault: SealKeyring) -> io::Result<Self> {
        let mut from = BufReader::with_capacity(MAX_PIECE_BYTES, from);
        let mut line = String::new();
        (&mut from).take(64).read_line(&mut line)?;
        let backup = line.trim().parse().map_err(io::Error::other)?;
        Ok(Self {
            from,
            vault,
            backup,
            number: 0,
            piece: Vec::new(),
            at: 0,
            ended: false,
        })
    }

    fn read_piece(&mut self) -> io::Result<()> {
        let mut length = [0; 4];
        self.from.read_exact(&mut length).map_err(cut_off)?;
        let length = usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?;
        if length > MAX_PIECE_BYTES {
            return Err(io::Error::other(
                "the backup is damaged: a piece of it is too large",
            ));
        }
        let mut sealed = vec![0; length];
        self.from.read_exact(&mut sealed).map_err(cut_off)?;
        let last = self.from.fill_buf()?.is_empty();
        let opened = self
            .vault
            .open(&place_of(self.backup, self.number, last), &sealed);
        self.piece = opened
            .map_err(|error| {
                io::Error::other(format!("the backup can't be opened, or was cut off: {error}"))
            })?
            .ok_or_else(|| io::Error::other("the backup is damaged: a piece of it is not sealed"))?;
        self.number += 1;
        self.at = 0;
        self.ended = last;
        Ok(())
    }
}

fn cut_off(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("the backup was cut off"),
        _ => error,
    }
}

impl<R: Read> Read for SealedReader<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            if self.ended {
                return Ok(0);
            }
            self.read_piece()?;
        }
        let rest = self.piece.get(self.at..).unwrap_or_default();
        let count = rest.len().min(to.len());
        let (now, _) = rest.split_at(count);
        if let Some(room) = to.get_mut(..count) {
            room.copy_from_slice(now);
        }
        self.at += count;
        Ok(count)
    }
}
