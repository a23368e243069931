//! Standard input and output as streams. Pipes are reopened through `/proc`. So they can be polled without a thread, and the
//! descriptors stay blocking for other processes that share them. Everything else uses threads.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, Stdin, Stdout};
use tokio::net::unix::pipe;

/// Standard input.
#[derive(Debug)]
pub enum StdinStream {
    /// A pipe, polled for readiness.
    Pipe(pipe::Receiver),
    /// A file, terminal or socket, read by a thread. A read in progress can't be cancelled: shut the runtime down in the
    /// background.
    Thread(Stdin),
}

/// Standard output.
#[derive(Debug)]
pub enum Output {
    /// A pipe, polled for readiness.
    Pipe(pipe::Sender),
    /// A file, terminal or socket, written by a thread.
    Thread(Stdout),
}

/// Standard input and output of this process, for [`crate::serve`]. Call it inside a runtime.
#[must_use]
pub fn standard_streams() -> (StdinStream, Output) {
    let input = pipe::OpenOptions::new().open_receiver("/proc/self/fd/0");
    let output = pipe::OpenOptions::new().open_sender("/proc/self/fd/1");
    (
        input.map_or_else(|_| StdinStream::Thread(tokio::io::stdin()), StdinStream::Pipe), // silent-ok: no pipe is no error
        output.map_or_else(|_| Output::Thread(tokio::io::stdout()), Output::Pipe), // silent-ok: as above
    )
}

impl AsyncRead for StdinStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Pipe(pipe) => Pin::new(pipe).poll_read(cx, buf),
            Self::Thread(stdin) => Pin::new(stdin).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Output {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Pipe(pipe) => Pin::new(pipe).poll_write(cx, bytes),
            Self::Thread(stdout) => Pin::new(stdout).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Pipe(pipe) => Pin::new(pipe).poll_flush(cx),
            Self::Thread(stdout) => Pin::new(stdout).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Pipe(pipe) => Pin::new(pipe).poll_shutdown(cx),
            Self::Thread(stdout) => Pin::new(stdout).poll_shutdown(cx),
        }
    }
}
