//! Reads output to its end, but keeps only as much as the limit allows, so that a flood of output uses no memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

/// How many more bytes both streams of a run together may keep.
#[derive(Debug)]
pub(crate) struct OutputBudget {
    limit: u64,
    left: AtomicU64,
}

impl OutputBudget {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            left: AtomicU64::new(limit),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Takes up to `wanted` bytes from the rest. Returns how many.
    pub(crate) fn take_bytes(&self, wanted: usize) -> usize {
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let before = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                Some(left.saturating_sub(wanted))
            })
            .unwrap_or(0);
        usize::try_from(before.min(wanted)).unwrap_or(0)
    }
}

#[derive(Debug, Default)]
pub(super) struct CapturedOutput {
    pub(super) bytes: Vec<u8>,
    pub(super) truncated: bool,
}

/// One of a run's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolOutputStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Receives the kept output while the program runs, for a person who waits. Levels that get their output only at the end of a run
/// do not call it.
#[derive(Clone)]
pub struct OutputTee(Arc<OutputObserver>);

type OutputObserver = dyn Fn(ToolOutputStream, &[u8]) + Send + Sync;

impl std::fmt::Debug for OutputTee {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tee")
    }
}

impl OutputTee {
    /// Creates a tee from a function. If the function blocks, the program waits.
    pub fn new(see: impl Fn(ToolOutputStream, &[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(see))
    }
}

/// Reads a stream to its end and keeps what the budget allows.
pub(super) async fn capture_output(
    stream: Option<impl AsyncRead + Unpin>,
    budget: &OutputBudget,
    tee: (ToolOutputStream, Option<&OutputTee>),
) -> CapturedOutput {
    let mut kept = CapturedOutput::default();
    let Some(mut stream) = stream else { return kept };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        let room = budget.take_bytes(read);
        let within = buffer.get(..room).unwrap_or_default();
        kept.bytes.extend_from_slice(within);
        if let (which, Some(OutputTee(see))) = tee
            && !within.is_empty()
        {
            see(which, within);
        }
        kept.truncated |= room < read;
    }
    kept
}

/// The last bytes of a stream that is read for as long as a service lives.
#[derive(Debug, Clone, Default)]
pub(super) struct OutputTail(Arc<Mutex<VecDeque<u8>>>);

/// How many bytes of a service's standard error are kept.
const TAIL_BYTES: usize = 16 << 10;

impl OutputTail {
    pub(super) async fn drain_stream(self, stream: Option<impl AsyncRead + Unpin>) {
        let Some(mut stream) = stream else { return };
        let mut buffer = vec![0; 8 << 10];
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(buffer.iter().take(read));
            let surplus = kept.len().saturating_sub(TAIL_BYTES);
            kept.drain(..surplus);
        }
    }

    pub(super) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept.iter().copied().collect::<Vec<u8>>()).into_owned()
    }
}
