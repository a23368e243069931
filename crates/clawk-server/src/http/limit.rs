//! Requests per second, per token: a bucket each. Whoever shows no token that is known has the bucket of the address.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::connections::ClientAddress;

#[derive(Debug, Clone, Copy)]
struct RequestBucket {
    /// Millionths of a request that are left.
    left: u64,
    at: Instant,
}

const WHOLE: u64 = 1_000_000;

/// Buckets that subjects of an authorization server share, each subject always the same one. Admins share buckets with admins alone.
const SHARED: usize = 64;
const SHARED_BY_ADMINS: usize = 16;
/// Buckets of addresses from which no known token came. Nobody can tell which addresses share one.
const ADDRESSES: usize = 1_024;

/// All buckets: one for each token, then those that subjects share, then those of addresses.
#[derive(Debug)]
pub(crate) struct RequestLimiter {
    per_second: u64,
    tokens: usize,
    spread: RandomState,
    buckets: Mutex<Vec<RequestBucket>>,
}

/// Who makes a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RequestSource {
    /// The holder of a known token, by its bucket.
    Known(usize),
    /// Somebody at this address. `None`: there is no connection.
    Stranger(Option<ClientAddress>),
}

impl RequestLimiter {
    /// A limiter for this many tokens. `per_second` 0: no limit.
    pub(crate) fn new(per_second: u32, tokens: usize) -> Self {
        let per_second = u64::from(per_second);
        let full = RequestBucket {
            left: per_second * 2 * WHOLE,
            at: Instant::now(),
        };
        let tokens = tokens.max(1);
        Self {
            per_second,
            tokens,
            spread: RandomState::new(),
            buckets: Mutex::new(vec![full; tokens + SHARED + SHARED_BY_ADMINS + ADDRESSES]),
        }
    }

    fn spread(&self, key: impl Hash, buckets: usize) -> usize {
        let buckets = u64::try_from(buckets).unwrap_or(1);
        usize::try_from(self.spread.hash_one(key) % buckets).unwrap_or(0)
    }

    /// The bucket of a subject of the authorization server.
    pub(crate) fn shared_bucket(&self, name: &str, is_admin: bool) -> usize {
        match is_admin {
            true => self.tokens + SHARED + self.spread(name, SHARED_BY_ADMINS),
            false => self.tokens + self.spread(name, SHARED),
        }
    }

    /// Takes one request; else milliseconds to wait.
    pub(crate) fn take_request(&self, source: RequestSource) -> Result<(), u64> {
        if self.per_second == 0 {
            return Ok(());
        }
        let index = match source {
            RequestSource::Known(index) => index,
            RequestSource::Stranger(address) => {
                self.tokens + SHARED + SHARED_BY_ADMINS + self.spread(address, ADDRESSES)
            }
        };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let last = buckets.len().saturating_sub(1);
        let Some(bucket) = buckets.get_mut(index.min(last)) else {
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{RequestLimiter, RequestSource, SHARED};

    #[test]
    fn a_strangers_guesses_take_from_no_token_and_an_admin_shares_with_admins() {
        let limiter = RequestLimiter::new(1, 2);
        let stranger = |last| RequestSource::Stranger(Some(IpAddr::from([192, 0, 2, last]).into()));
        while limiter.take_request(stranger(1)).is_ok() {}
        for known in [
            0,
            1,
            limiter.shared_bucket("eve", false),
            limiter.shared_bucket("ann", true),
        ] {
            assert!(
                limiter.take_request(RequestSource::Known(known)).is_ok(),
                "{known}"
            );
        }
        // Most other addresses have another bucket.
        let free = (2..=101).filter(|last| limiter.take_request(stranger(*last)).is_ok());
        assert!(free.count() > 80);
        for n in 0..1_000 {
            let (user, admin) = (format!("u{n}"), format!("a{n}"));
            assert!((2..2 + SHARED).contains(&limiter.shared_bucket(&user, false)));
            assert!(limiter.shared_bucket(&admin, true) >= 2 + SHARED);
        }
    }
}
