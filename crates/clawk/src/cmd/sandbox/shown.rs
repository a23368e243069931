//! The display of a command's output: unchanged for a file or a pipe, without terminal control sequences for a terminal.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Mutex, PoisonError};

use clawk_sandbox::LaunchOutcome;
use clawk_sandbox::launch::ToolOutputStream;

/// The output that was passed on as it arrived.
#[derive(Debug)]
pub(super) struct ForwardedOutput {
    out: Mutex<ForwardedStream>,
    err: Mutex<ForwardedStream>,
}

#[derive(Debug)]
struct ForwardedStream {
    passed: usize,
    /// The filter, if the output goes to a terminal.
    quiet: Option<TerminalFilter>,
}

impl ForwardedOutput {
    /// Checks where the output goes.
    pub(super) fn new() -> Self {
        let side = |terminal: bool| {
            Mutex::new(ForwardedStream {
                passed: 0,
                quiet: terminal.then(TerminalFilter::default),
            })
        };
        Self {
            out: side(io::stdout().is_terminal()),
            err: side(io::stderr().is_terminal()),
        }
    }

    /// Passes a piece of output on.
    pub(super) fn forward_bytes(&self, stream: ToolOutputStream, bytes: &[u8]) {
        // silent-ok: the reader is gone; the run still goes to its end
        let _ = self.write(stream, bytes);
    }

    /// Prints the output of a level that returns it only at the end.
    pub(super) fn forward_rest(&self, outcome: &LaunchOutcome) -> io::Result<()> {
        for (stream, all) in [
            (ToolOutputStream::Out, &outcome.stdout),
            (ToolOutputStream::Err, &outcome.stderr),
        ] {
            let passed = self.lock_stream(stream).passed;
            self.write(stream, all.get(passed..).unwrap_or_default())?;
        }
        Ok(())
    }

    fn lock_stream(&self, stream: ToolOutputStream) -> std::sync::MutexGuard<'_, ForwardedStream> {
        let side = match stream {
            ToolOutputStream::Out => &self.out,
            ToolOutputStream::Err => &self.err,
        };
        side.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, stream: ToolOutputStream, bytes: &[u8]) -> io::Result<()> {
        let mut side = self.lock_stream(stream);
        side.passed += bytes.len();
        let quiet = side.quiet.as_mut().map(|quiet| quiet.filter_bytes(bytes));
        let bytes = quiet.as_deref().unwrap_or(bytes);
        match stream {
            ToolOutputStream::Out => {
                let mut to = io::stdout().lock();
                to.write_all(bytes)?;
                to.flush()
            }
            ToolOutputStream::Err => io::stderr().lock().write_all(bytes),
        }
    }
}

/// Longest control sequence that is examined, in bytes.
const MAX_SEQUENCE: usize = 32;
/// Replaces a byte that could control the terminal.
const MARK: &[u8] = "·".as_bytes();

/// A filter for terminals. It passes text, line ends, backspaces, colours and the erasure of a line. It replaces every other
/// control sequence by a mark: titles, clipboard access, queries that the terminal would answer by typing, cursor moves.
#[derive(Debug, Default)]
struct TerminalFilter {
    /// An incomplete control sequence with its escape, or the first byte of a two-byte character that may be a control character.
    held: Vec<u8>,
}

impl TerminalFilter {
    fn filter_bytes(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.filter_byte(*byte, &mut out);
        }
        out
    }

    fn filter_byte(&mut self, byte: u8, out: &mut Vec<u8>) {
        match (self.held.as_slice(), byte) {
            ([], 0x1b | 0xc2) => self.held.push(byte),
            ([], b'\n' | b'\r' | b'\t' | 0x08) => out.push(byte),
            ([], 0..0x20 | 0x7f) => out.extend_from_slice(MARK),
            ([], _) => out.push(byte),
            // A C1 control character in UTF-8.
            ([0xc2], 0x80..=0x9f) => self.mark_held(out),
            ([0xc2], _) => {
                out.append(&mut self.held);
                self.filter_byte(byte, out);
            }
            ([0x1b], b'[') => self.held.push(byte),
            ([0x1b, b'[', ..], b'0'..=b'9' | b';') if self.held.len() < MAX_SEQUENCE => self.held.push(byte),
            ([0x1b, b'[', ..], b'm' | b'K') => {
                out.append(&mut self.held);
                out.push(byte);
            }
            (_, _) => {
                let rest = self.held.split_off(1);
                self.mark_held(out);
                out.extend(rest);
                self.filter_byte(byte, out);
            }
        }
    }

    fn mark_held(&mut self, out: &mut Vec<u8>) {
        self.held.clear();
        out.extend_from_slice(MARK);
    }
}

#[cfg(test)]
mod tests {
    use super::TerminalFilter;

    fn passed(pieces: &[&[u8]]) -> String {
        let mut quiet = TerminalFilter::default();
        let all: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| quiet.filter_bytes(piece))
            .collect();
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn a_terminal_is_not_steered() {
        for (said, seen) in [
            (&b"plain\r\n\ttext\x08 \xc3\xbc"[..], "plain\r\n\ttext\x08 ü"),
            (b"\x1b[1;31mred\x1b[0m\x1b[K", "\x1b[1;31mred\x1b[0m\x1b[K"),
            (b"\x1b]0;title\x07a", "·]0;title·a"),
            (b"\x1b]52;c;ZWNobw==\x07", "·]52;c;ZWNobw==·"),
            (b"\x1b[2J\x1b[6n\x1b[?25l\x1bc", "·[2J·[6n·[?25l·c"),
            (b"\x1bP$qm\x1b\\", "·P$qm·\\"),
            (b"\xc2\x9b2J \xc2\xa9", "·2J ©"),
            (b"\x1b\x1b[2J", "··[2J"),
        ] {
            assert_eq!(passed(&[said]), seen);
            let bytes: Vec<&[u8]> = said.chunks(1).collect();
            assert_eq!(passed(&bytes), seen);
        }
        let long = [b"\x1b[", &b"1;"[..].repeat(40)[..], b"m"].concat();
        assert!(passed(&[&long]).starts_with("·[1;"));
    }
}
