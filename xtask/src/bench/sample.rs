//! A series of measurements of one quantity.

use std::time::{Duration, Instant};

/// Measured values in one unit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    /// Adds a value.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Returns the value below which `share` (0 to 1) of all values are; 0 if there are none.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let wanted = share * last as f64;
        let at = (0..=last)
            .min_by(|a, b| (*a as f64 - wanted).abs().total_cmp(&(*b as f64 - wanted).abs()))
            .unwrap_or(0);
        sorted.get(at).copied().unwrap_or(0.0)
    }

    /// Returns the sum of all values.
    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Returns the first values: this share of all.
    pub(crate) fn beginning(&self, share: f64) -> Self {
        Self(self.0.get(..self.part(share)).unwrap_or_default().to_vec())
    }

    /// Returns the last values: this share of all.
    pub(crate) fn end(&self, share: f64) -> Self {
        let from = self.0.len().saturating_sub(self.part(share));
        Self(self.0.get(from..).unwrap_or_default().to_vec())
    }

    /// Returns how many values a share is; at least one.
    fn part(&self, share: f64) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a length"
        )]
        let part = (self.0.len() as f64 * share) as usize;
        part.clamp(1, self.0.len().max(1))
    }

    /// Returns the median.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Returns the smallest value.
    pub(crate) fn least(&self) -> f64 {
        self.quantile(0.0)
    }

    /// Returns the largest value.
    pub(crate) fn most(&self) -> f64 {
        self.quantile(1.0)
    }
}

/// Runs `work` and returns its duration in milliseconds.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let done = work();
    (ms(start.elapsed()), done)
}

/// Converts a duration to milliseconds.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
