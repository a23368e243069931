//! Limits how often a server's own event stream is reopened. If the server ends it at once, clawk pauses before the next attempt.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A stream that lasted this long counts as successful.
const LASTED: Duration = Duration::from_secs(60);
/// How many short streams are reopened without a pause.
const FREE: u32 = 3;
/// The longest pause, in seconds.
const MAX_PAUSE_S: u64 = 300;

/// The number of consecutive short streams, and when the last one was opened.
#[derive(Debug, Default)]
pub(super) struct ReopenBackoff(Mutex<(u32, Option<Instant>)>);

impl ReopenBackoff {
    /// Waits before the next stream; longer after more short streams.
    pub(super) async fn wait(&self) {
        let pause = self.pause_duration(Instant::now());
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }

    fn pause_duration(&self, now: Instant) -> Duration {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (short, last) = &mut *known;
        let was_short = last.is_some_and(|last| now.duration_since(last) < LASTED);
        *short = if was_short { short.saturating_add(1) } else { 0 };
        let over = short.saturating_sub(FREE);
        let pause = match over {
            0 => Duration::ZERO,
            over => Duration::from_secs((1_u64 << over.min(9)).min(MAX_PAUSE_S)),
        };
        *last = Some(now + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_its_stream_at_once_is_asked_ever_less() {
        let (reopening, now) = (ReopenBackoff::default(), Instant::now());
        let pauses: Vec<u64> = (0..14).map(|_| reopening.pause_duration(now).as_secs()).collect();
        assert_eq!(pauses, [0, 0, 0, 0, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert!(
            reopening
                .pause_duration(now + Duration::from_secs(4_000))
                .is_zero()
        );
    }
}
