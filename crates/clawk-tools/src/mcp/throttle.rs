//! Limits the rate at which a server's output is read. A flood waits in the pipe, not in the agent's memory.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// The length of one counting window.
const WINDOW: Duration = Duration::from_millis(250);
/// The maximum number of bytes per window: 16 MiB per second.
const MAX_BYTES: usize = 4 << 20;
/// The maximum number of messages per window: 2,000 per second.
const MAX_LINES: usize = 500;

/// A reader that returns at most this much per window.
#[derive(Debug)]
pub(super) struct ThrottledReader<R> {
    reader: R,
    bytes: usize,
    lines: usize,
    until: Instant,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<R> ThrottledReader<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            bytes: 0,
            lines: 0,
            until: Instant::now() + WINDOW,
            pause: None,
        }
    }

    fn next_window(&mut self) {
        (self.bytes, self.lines, self.pause) = (0, 0, None);
        self.until = Instant::now() + WINDOW;
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for ThrottledReader<R> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.bytes >= MAX_BYTES || this.lines >= MAX_LINES {
            let until = this.until;
            let pause = this.pause.get_or_insert_with(|| Box::pin(sleep_until(until)));
            ready!(pause.as_mut().poll(cx));
            this.next_window();
        } else if Instant::now() >= this.until {
            this.next_window();
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.reader).poll_read(cx, buf))?;
        let read = buf.filled().get(before..).unwrap_or_default();
        this.bytes += read.len();
        this.lines += read.iter().filter(|byte| **byte == b'\n').count();
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
