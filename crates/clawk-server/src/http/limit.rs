//! Limits requests per second, with one token bucket per client.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

#[derive(Debug, Clone, Copy)]
struct RequestBucket {
    /// Millionths of a request that are left.
    left: u64,
    at: Instant,
}

const WHOLE: u64 = 1_000_000;

/// The number of buckets that subjects of an authorization server share. A subject always uses the same one.
const SHARED: usize = 64;

/// All buckets: one for each token, then the shared ones, then one for unknown tokens.
#[derive(Debug)]
pub(crate) struct RequestLimiter {
    per_second: u64,
    buckets: Mutex<Vec<RequestBucket>>,
}

impl RequestLimiter {
    /// A limiter for this many tokens. `per_second` 0: no limit.
    pub(crate) fn new(per_second: u32, tokens: usize) -> Self {
        let per_second = u64::from(per_second);
        let full = RequestBucket {
            left: per_second * 2 * WHOLE,
            at: Instant::now(),
        };
        Self {
            per_second,
            buckets: Mutex::new(vec![full; tokens.max(1) + SHARED + 1]),
        }
    }

    /// The bucket of a client whose token is not in the table.
    pub(crate) fn shared(&self, name: &str) -> usize {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner).len();
        let sum = name.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        buckets.saturating_sub(1 + SHARED) + sum % SHARED
    }

    /// Counts one request. The error is the wait in milliseconds. `index` `None`: an unknown token; all of those share one bucket.
    pub(crate) fn take(&self, index: Option<usize>) -> Result<(), u64> {
        if self.per_second == 0 {
            return Ok(());
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let last = buckets.len().saturating_sub(1);
        let Some(bucket) = buckets.get_mut(index.unwrap_or(last).min(last)) else {
            return Ok(());
        };
        let now = Instant::now();
        let micros = u64::try_from(now.duration_since(bucket.at).as_micros()).unwrap_or(u64::MAX);
        let most = self.per_second * 2 * WHOLE;
        bucket.left = bucket
            .left
            .saturating_add(micros.saturating_mul(self.per_second))
            .min(most);
        bucket.at = now;
        match bucket.left.checked_sub(WHOLE) {
            Some(left) => {
                bucket.left = left;
                Ok(())
            }
            None => Err((WHOLE - bucket.left).div_ceil(self.per_second).div_ceil(1000)),
        }
    }
}
