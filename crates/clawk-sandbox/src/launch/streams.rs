//! Reading output to its end while keeping only what the cap allows, so that a flood costs time and no memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes that both streams of a run may keep together.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    left: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            left: AtomicU64::new(limit),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Takes up to `wanted` bytes from what is left.
    pub(crate) fn take(&self, wanted: usize) -> usize {
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
pub(super) struct Kept {
    pub(super) bytes: Vec<u8>,
    pub(super) truncated: bool,
}

/// Reads to the end; keeps what the budget allows.
pub(super) async fn keep(stream: Option<impl AsyncRead + Unpin>, budget: &Budget) -> Kept {
    let mut kept = Kept::default();
    let Some(mut stream) = stream else { return kept };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        let room = budget.take(read);
        kept.bytes
            .extend_from_slice(buffer.get(..room).unwrap_or_default());
        kept.truncated |= room < read;
    }
    kept
}

/// The last bytes of a stream that is drained for as long as a service lives.
#[derive(Debug, Clone, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<u8>>>);

/// Kept of a service's standard error, bytes.
const TAIL_BYTES: usize = 16 << 10;

impl Tail {
    pub(super) async fn drain(self, stream: Option<impl AsyncRead + Unpin>) {
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
