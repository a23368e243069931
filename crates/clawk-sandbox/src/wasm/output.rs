//! A guest's standard output and error. Both are kept up to a common limit; the rest is discarded.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::launch::streams::OutputBudget;

/// How many bytes a guest can write at once.
const AT_ONCE: usize = 64 << 10;

/// One of the two streams.
#[derive(Clone)]
pub(super) struct Output {
    budget: Arc<OutputBudget>,
    kept: Arc<Mutex<(Vec<u8>, bool)>>,
}

impl Output {
    pub(super) fn new(budget: &Arc<OutputBudget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            kept: Arc::default(),
        }
    }

    /// The kept bytes, and whether anything was discarded.
    pub(super) fn take_output(&self) -> (Vec<u8>, bool) {
        std::mem::take(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn push(&self, bytes: &[u8]) {
        let room = self.budget.take_bytes(bytes.len());
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.0.extend_from_slice(bytes.get(..room).unwrap_or_default());
        kept.1 |= room < bytes.len();
    }
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Output {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.push(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(AT_ONCE)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

impl tokio::io::AsyncWrite for Output {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.push(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
