//! The retry policy of one provider: a number of attempts after a fault, a time span after a rate limit. Pure.

#[cfg(test)]
mod tests;

use clawk_manifest::model::{BackoffStrategy, ProviderRetry};
use serde::{Deserialize, Serialize};

use crate::ports::{FaultKind, ProviderError, ReasoningEffort, RequestAdaptation};

/// Longest delay between two attempts, in milliseconds (runtime profile §5).
const MAX_DELAY_MS: u64 = 30_000;
/// Longest delay that a server may request while another provider is available, in milliseconds.
const MAX_IMPOSED_MS: u64 = 60_000;
/// Shortest delay after a rate limit that does not count as an attempt, in milliseconds. It limits the number of requests.
const MIN_WAIT_MS: u64 = 1_000;

/// Settings of one provider from `[providers.NAME]` of `clawk.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelOptions {
    /// Output tokens to request; `None`: the model's maximum if known, else 4,096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// Longest total delay between attempts, in milliseconds. Within it a rate limit does not count as one of `max_attempts`. 0:
    /// every rate limit counts.
    pub retry_time_ms: u64,
    /// Reasoning effort if a request does not set one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<ReasoningEffort>,
    /// Levels of effort that its model has, as the catalogue says; absent: not known. Not in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efforts: Option<Vec<ReasoningEffort>>,
    /// How requests to it are written, beside what refusals teach.
    #[serde(default, skip_serializing_if = "RequestAdaptation::is_empty")]
    pub adaptation: RequestAdaptation,
    /// The operator's value of its window, in tokens; the manifest's `max_context_window` takes precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// The catalogue's value of its window, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalogue_tokens: Option<u64>,
    /// The current turn is fitted to the window, and refusals shorten requests. Off in records of earlier versions.
    #[serde(default)]
    pub fits_turns: bool,
    /// Arguments of a wrong type are converted if the schema allows only one reading. Off in records of earlier versions.
    #[serde(default)]
    pub converts_arguments: bool,
}

impl ModelOptions {
    /// Default of [`Self::retry_time_ms`]. A rate limit lasts a minute.
    pub const RETRY_TIME_MS: u64 = 120_000;

    /// Whether its model has this level, as far as is known.
    pub fn takes_effort(&self, effort: ReasoningEffort) -> bool {
        self.efforts.as_ref().is_none_or(|known| known.contains(&effort))
    }
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            max_output_tokens: None,
            retry_time_ms: Self::RETRY_TIME_MS,
            effort: None,
            efforts: None,
            adaptation: RequestAdaptation::default(),
            context_tokens: None,
            catalogue_tokens: None,
            fits_turns: true,
            converts_arguments: true,
        }
    }
}

/// The wait before attempt `attempt + 1`, milliseconds; jittered by up to a quarter.
pub fn backoff_ms(backoff: BackoffStrategy, initial_ms: u64, attempt: u32, random: u64) -> u64 {
    let attempt = attempt.max(1);
    let base = match backoff {
        BackoffStrategy::Exponential => initial_ms.saturating_mul(1u64 << (attempt - 1).min(20)),
        BackoffStrategy::Linear => initial_ms.saturating_mul(u64::from(attempt)),
        BackoffStrategy::Constant => initial_ms,
    };
    let base = base.min(MAX_DELAY_MS);
    base - random % (base / 4 + 1)
}

/// The remaining attempts and time for one provider in one request.
#[derive(Debug)]
pub struct RetryPolicy {
    retry: ProviderRetry,
    time_ms: u64,
    /// The chain has no further provider.
    last: bool,
    asked: u32,
    counted: u32,
    waited_ms: u64,
}

impl RetryPolicy {
    /// Nothing is asked yet. `time_ms`: [`ModelOptions::retry_time_ms`]; `last`: no other provider follows.
    pub const fn new(retry: ProviderRetry, time_ms: u64, last: bool) -> Self {
        Self {
            retry,
            time_ms,
            last,
            asked: 0,
            counted: 0,
            waited_ms: 0,
        }
    }

    /// Returns the delay in milliseconds before the next attempt after this failure; `None`: no further attempt.
    ///
    /// A rate limit says that the provider will answer, only later: it counts as an attempt only where another provider could
    /// answer now, or where no time is given.
    pub fn after(&mut self, error: &ProviderError, random: u64) -> Option<u64> {
        if !error.kind.is_retryable() {
            return None;
        }
        self.asked = self.asked.saturating_add(1);
        let imposed = error.retry_after_ms.unwrap_or(0);
        let timed = self.time_ms > 0;
        let free = error.kind == FaultKind::RateLimited && self.last && timed;
        if !free {
            self.counted = self.counted.saturating_add(1);
            if self.counted >= self.retry.max_attempts.max(1) {
                return None;
            }
        }
        if imposed > MAX_IMPOSED_MS && !(self.last && timed) {
            return None;
        }
        let least = if free { MIN_WAIT_MS } else { 0 };
        let wait_ms = |random| {
            let delay_ms = backoff_ms(
                self.retry.backoff,
                self.retry.initial_delay_ms,
                self.asked,
                random,
            );
            delay_ms.max(imposed).max(least)
        };
        // Counted without the jitter, so that a replay makes the same number of attempts.
        let waited_ms = self.waited_ms.saturating_add(wait_ms(0));
        let wait_ms = wait_ms(random);
        if timed && waited_ms > self.time_ms {
            return None;
        }
        self.waited_ms = waited_ms;
        Some(wait_ms)
    }

    /// What is added to the reason of a provider that is given up.
    pub fn tried(&self) -> String {
        if self.asked < 2 {
            return String::new();
        }
        format!(
            " (asked {} times, with {} s between)",
            self.asked,
            self.waited_ms / 1000
        )
    }
}
