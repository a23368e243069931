//! The limits of a swarm as values: parallelism, repetitions, time.

use clawk_manifest::model::{MessagePassing, Swarm};
use serde::{Deserialize, Serialize};

/// The default time limit of a try, milliseconds.
pub const TRY_MS: u64 = 600_000;
/// The longest wait before a try is repeated, milliseconds.
pub const MAX_DELAY_MS: u64 = 30_000;

/// The settings `[swarm]` in `clawk.toml`, which the manifest can't express.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocalLimits {
    /// The wait before the first repetition of a try, milliseconds; doubled for each further one.
    pub retry_delay_ms: u64,
    /// The deepest nesting of `delegate` and `ask-peer`.
    pub max_depth: u32,
    /// The largest number of tasks that wait for a free seat.
    pub max_waiting: usize,
}

impl Default for LocalLimits {
    fn default() -> Self {
        Self {
            retry_delay_ms: 1000,
            max_depth: 4,
            max_waiting: 10_000,
        }
    }
}

/// The circuit breaker: `failure.circuit_breaker`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerLimits {
    /// The number of consecutive failed tries of one seat that opens it.
    pub threshold: u32,
    /// How long it stays open, milliseconds.
    pub reset_ms: u64,
}

/// All limits of a swarm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The largest number of running tries in the whole swarm.
    pub max_parallel: usize,
    /// Whether a seat works on one task at a time.
    pub sequential: bool,
    /// The kind of message passing.
    pub passing: MessagePassing,
    /// The number of repetitions of a try on the same seat.
    pub retries: u32,
    /// The total number of repetitions before the dead-letter queue, if there is one.
    pub dead_letter: Option<u32>,
    /// When a seat gets no tasks for a while.
    pub breaker: Option<BreakerLimits>,
    /// `aggregation.timeout_ms`: the time limit of a run.
    pub timeout_ms: Option<u64>,
    /// `resource_limits.max_duration_ms`: the time limit of a run.
    pub max_duration_ms: Option<u64>,
    /// Whether the cheapest member is preferred.
    pub cost_aware: bool,
    /// The settings of `clawk.toml`.
    pub local: LocalLimits,
}

impl Limits {
    /// The limits of a manifest's swarm with this many seats.
    #[must_use]
    pub fn from_manifest(swarm: &Swarm, seats: usize, local: LocalLimits) -> Self {
        let concurrency = &swarm.coordination.concurrency;
        let bound = concurrency
            .max_parallel
            .and_then(|bound| usize::try_from(bound).ok()); // silent-ok: more than the address space bounds nothing
        let failure = &swarm.failure;
        Self {
            max_parallel: bound.unwrap_or(seats).max(1),
            sequential: concurrency.sequential_within_agent,
            passing: swarm.coordination.message_passing,
            retries: failure.retry_per_agent,
            dead_letter: failure
                .dead_letter
                .as_ref()
                .filter(|letters| letters.enabled)
                .map(|letters| letters.max_retries),
            breaker: failure.circuit_breaker.as_ref().map(|breaker| BreakerLimits {
                threshold: breaker.failure_threshold.max(1),
                reset_ms: breaker.reset_timeout_ms,
            }),
            timeout_ms: swarm.aggregation.timeout_ms,
            max_duration_ms: swarm.resource_limits.max_duration_ms,
            cost_aware: swarm.aggregation.cost_aware,
            local,
        }
    }

    /// The largest number of tries of one task.
    #[must_use]
    pub fn max_tries(&self) -> u32 {
        self.dead_letter.unwrap_or(self.retries).saturating_add(1)
    }

    /// The time limit of one try, milliseconds.
    #[must_use]
    pub fn try_ms(&self) -> u64 {
        let share = self.timeout_ms.map(|all| all / u64::from(self.max_tries()));
        share.map_or(TRY_MS, |share| share.max(1))
    }

    /// The wait after the `failed`-th failed try of a task on a seat (from 1), milliseconds.
    #[must_use]
    pub fn delay_ms(&self, failed: u32) -> u64 {
        let times = 1_u64.checked_shl(failed.saturating_sub(1)).unwrap_or(u64::MAX);
        self.local.retry_delay_ms.saturating_mul(times).min(MAX_DELAY_MS)
    }

    /// The deadline of a run that began at `began_ms`, and the limit that sets it; the earlier limit counts.
    #[must_use]
    pub fn deadline(&self, began_ms: u64) -> Option<(u64, &'static str)> {
        let of = |limit: Option<u64>, why| limit.map(|limit| (began_ms.saturating_add(limit), why));
        let answer = of(self.timeout_ms, "timeout");
        let whole = of(self.max_duration_ms, "swarm_duration");
        answer.into_iter().chain(whole).min_by_key(|(at, _)| *at)
    }

    /// Whether a task without a free seat is refused instead of waiting.
    #[must_use]
    pub fn refuses_to_wait(&self) -> bool {
        self.passing == MessagePassing::Direct
    }
}

#[cfg(test)]
mod tests {
    use super::{BreakerLimits, Limits, LocalLimits, TRY_MS};
    use clawk_manifest::model::MessagePassing;

    fn limits() -> Limits {
        Limits {
            max_parallel: 2,
            sequential: true,
            passing: MessagePassing::Queue,
            retries: 2,
            dead_letter: None,
            breaker: Some(BreakerLimits {
                threshold: 3,
                reset_ms: 10,
            }),
            timeout_ms: None,
            max_duration_ms: None,
            cost_aware: false,
            local: LocalLimits::default(),
        }
    }

    #[test]
    fn tries_and_delays_are_exact() {
        let mut limits = limits();
        assert_eq!((limits.max_tries(), limits.try_ms()), (3, TRY_MS));
        limits.dead_letter = Some(5);
        limits.timeout_ms = Some(12_000);
        assert_eq!((limits.max_tries(), limits.try_ms()), (6, 2000));
        let delays: Vec<u64> = (1..8).map(|n| limits.delay_ms(n)).collect();
        assert_eq!(delays, [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(limits.delay_ms(200), 30_000);
    }

    #[test]
    fn the_earlier_deadline_counts() {
        let mut limits = limits();
        assert_eq!(limits.deadline(5), None);
        limits.timeout_ms = Some(10);
        limits.max_duration_ms = Some(7);
        assert_eq!(limits.deadline(5), Some((12, "swarm_duration")));
        limits.max_duration_ms = Some(10);
        assert_eq!(limits.deadline(5), Some((15, "timeout")));
    }
}
