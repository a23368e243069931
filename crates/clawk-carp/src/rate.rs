//! Sliding windows of calls and costs per agent, as values.
//!
//! The first 512 entries of a window are exact. After that, entries within 1/1024 of the window are merged and count until the
//! later one has left the window. So a window is never too lenient and has at most 1,537 entries.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

const EXACT: usize = 512;
const GRAINS: i64 = 1024;
const MICROS: u64 = 1_000_000;

/// The largest number of windows in one ledger.
pub const MAX_WINDOWS: usize = 100_000;

/// A limit with its window.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RateLimitBucket {
    /// `policy:ATLAS/POLICY` or `action:ACTION`.
    pub key: Arc<str>,
    /// The largest number of calls, or the largest cost in millionths.
    pub limit: u64,
    /// How long a call counts, seconds.
    pub window_seconds: u64,
}

/// The amount that one execution takes from one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSpend {
    /// The limit.
    pub bucket: RateLimitBucket,
    /// The amount: 1 call, or a cost in millionths.
    pub amount: u64,
}

/// Why nothing was charged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpendError {
    /// The amount would exceed a limit.
    #[error("the limit of `{key}` is reached; more in {retry_after_ms} ms")]
    Exceeded {
        /// The bucket.
        key: Arc<str>,
        /// When enough has left the window, milliseconds; `u64::MAX` if that never happens.
        retry_after_ms: u64,
    },
    /// Too many windows are open.
    #[error("more than {MAX_WINDOWS} rate windows are in use")]
    Full,
}

#[derive(Debug, Clone, Default)]
struct Window {
    /// Time and amount of each entry, in ascending order; for merged entries the latest time.
    entries: VecDeque<(i64, u64)>,
    /// The sum of all amounts.
    total: u64,
    length_micros: i64,
}

impl Window {
    fn used_amount(&self, now: i64) -> u64 {
        let gone = self
            .entries
            .iter()
            .take_while(|(at, _)| !self.is_counted(*at, now));
        gone.fold(self.total, |sum, (_, amount)| sum.saturating_sub(*amount))
    }

    fn is_counted(&self, at: i64, now: i64) -> bool {
        now.saturating_sub(at) < self.length_micros
    }

    fn add_amount(&mut self, now: i64, amount: u64) {
        while let Some((_, gone)) = self
            .entries
            .front()
            .copied()
            .filter(|(at, _)| !self.is_counted(*at, now))
        {
            self.total = self.total.saturating_sub(gone);
            self.entries.pop_front();
        }
        self.total = self.total.saturating_add(amount);
        // A clock that was set back frees nothing.
        let now = self.entries.back().map_or(now, |(at, _)| now.max(*at));
        let grain = (self.length_micros / GRAINS).max(1);
        let full = self.entries.len() >= EXACT;
        match self.entries.back_mut() {
            Some((at, sum)) if full && *at / grain == now / grain => {
                *at = now;
                *sum = sum.saturating_add(amount);
            }
            _ => self.entries.push_back((now, amount)),
        }
    }

    /// Microseconds until `amount` fits below `limit`.
    fn wait_micros(&self, now: i64, amount: u64, limit: u64) -> Option<i64> {
        let room = limit.checked_sub(amount)?;
        let mut used = self.used_amount(now);
        for (at, sum) in self.entries.iter().filter(|(at, _)| self.is_counted(*at, now)) {
            if used <= room {
                break;
            }
            used = used.saturating_sub(*sum);
            if used <= room {
                return Some(at.saturating_add(self.length_micros).saturating_sub(now));
            }
        }
        Some(0)
    }
}

/// All windows. The caller owns them. `resolve` only reads them, and an execution charges them (R29).
#[derive(Debug, Clone, Default)]
pub struct RateLedger {
    agents: HashMap<Arc<str>, HashMap<Arc<str>, Window>>,
    windows: usize,
    swept_at: i64,
}

impl RateLedger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The amount of a limit that an agent has used in the window that ends now.
    #[must_use]
    pub fn used_amount(&self, agent: &str, bucket: &RateLimitBucket, now: Timestamp) -> u64 {
        self.windows_for_agent(agent).used_amount(bucket, now)
    }

    /// The windows of one agent.
    pub(crate) fn windows_for_agent(&self, agent: &str) -> AgentWindows<'_> {
        AgentWindows(self.agents.get(agent))
    }

    /// Charges all amounts or none.
    ///
    /// # Errors
    /// An amount would exceed a limit, or no window is free. Nothing was charged.
    pub fn spend(&mut self, agent: &str, spends: &[BucketSpend], now: Timestamp) -> Result<(), SpendError> {
        let view = self.windows_for_agent(agent);
        let fresh = spends
            .iter()
            .filter(|spend| !view.has_window(&spend.bucket))
            .count();
        for spend in spends {
            if let Some(retry_after_ms) = view.exceeded_wait_ms(&spend.bucket, spend.amount, now) {
                let key = Arc::clone(&spend.bucket.key);
                return Err(SpendError::Exceeded { key, retry_after_ms });
            }
        }
        let at = now.as_microsecond();
        if self.windows + fresh > MAX_WINDOWS {
            self.drop_expired(at);
            if self.windows + fresh > MAX_WINDOWS {
                return Err(SpendError::Full);
            }
        }
        if spends.is_empty() {
            return Ok(());
        }
        let windows = self.agents.entry(agent.into()).or_default();
        for spend in spends {
            let window = windows.entry(Arc::clone(&spend.bucket.key)).or_insert_with(|| {
                self.windows += 1;
                Window::default()
            });
            window.length_micros = window_length(&spend.bucket);
            window.add_amount(at, spend.amount);
        }
        Ok(())
    }

    /// The number of windows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.windows
    }

    /// Whether there are no windows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.windows == 0
    }

    /// Drops expired entries, at most once a second, so that a full ledger stays fast.
    fn drop_expired(&mut self, now: i64) {
        if now.saturating_sub(self.swept_at) < 1_000_000 && self.swept_at != 0 {
            return;
        }
        self.swept_at = now;
        self.agents.retain(|_, windows| {
            windows.retain(|_, window| {
                window
                    .entries
                    .back()
                    .is_some_and(|(at, _)| window.is_counted(*at, now))
            });
            !windows.is_empty()
        });
        self.windows = self.agents.values().map(HashMap::len).sum();
    }
}

fn window_length(bucket: &RateLimitBucket) -> i64 {
    i64::try_from(bucket.window_seconds.saturating_mul(MICROS)).unwrap_or(i64::MAX)
}

/// Read access to one agent's windows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AgentWindows<'l>(Option<&'l HashMap<Arc<str>, Window>>);

impl AgentWindows<'_> {
    fn window(&self, bucket: &RateLimitBucket) -> Option<&Window> {
        self.0.and_then(|windows| windows.get(&bucket.key))
    }

    fn has_window(&self, bucket: &RateLimitBucket) -> bool {
        self.window(bucket).is_some()
    }

    pub(crate) fn used_amount(&self, bucket: &RateLimitBucket, now: Timestamp) -> u64 {
        self.window(bucket)
            .map_or(0, |window| window.used_amount(now.as_microsecond()))
    }

    /// The wait in milliseconds if `amount` does not fit now.
    pub(crate) fn exceeded_wait_ms(
        &self,
        bucket: &RateLimitBucket,
        amount: u64,
        now: Timestamp,
    ) -> Option<u64> {
        if self.used_amount(bucket, now).saturating_add(amount) <= bucket.limit {
            return None;
        }
        let Some(window) = self.window(bucket) else {
            return Some(u64::MAX);
        };
        let wait = window.wait_micros(now.as_microsecond(), amount, bucket.limit);
        Some(wait.map_or(u64::MAX, |micros| {
            u64::try_from(micros).unwrap_or(0).div_ceil(1000)
        }))
    }
}
