//! The `Clock` port: time, ids and randomness come through it, so that a simulation can own them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use clawk_proto::RequestId;
use uuid::Uuid;

use crate::ports::BoxFuture;

/// Largest difference of two clocks, in microseconds, before one of them counts as changed.
const JUMP_US: u64 = 1_000_000;

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Parses RFC 3339.
    ///
    /// # Errors
    /// The text is not a valid RFC 3339 time with a zone.
    pub fn parse(text: &str) -> Result<Self, jiff::Error> {
        text.parse::<jiff::Timestamp>().map(|t| Self(t.as_microsecond()))
    }

    /// Returns milliseconds since the epoch, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Returns the start of this UTC day.
    #[must_use]
    pub const fn day_start(self) -> Self {
        Self(self.0 - self.0.rem_euclid(86_400_000_000))
    }

    /// Returns the start of this UTC month and of the next one.
    #[must_use]
    pub fn month_bounds(self) -> (Self, Self) {
        const DAY_US: i64 = 86_400_000_000;
        let days = self.0.div_euclid(DAY_US);
        let (_, month, day) = civil_date(days);
        let from = days - (day - 1);
        // A month has 28 to 31 days, so the first day of the next month is one of these four.
        let next = (28..=31)
            .map(|len| from + len)
            .find(|first| civil_date(*first).1 != month)
            .unwrap_or(from + 31);
        (
            Self(from.saturating_mul(DAY_US)),
            Self(next.saturating_mul(DAY_US)),
        )
    }

    /// Returns the time `ms` milliseconds later; earlier if negative.
    #[must_use]
    pub const fn plus_millis(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1000)))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339, UTC, microseconds, `Z` (R26).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(86_400_000_000);
        let in_day = self.0.rem_euclid(86_400_000_000);
        let (year, month, day) = civil_date(days);
        let (secs, micros) = (in_day / 1_000_000, in_day % 1_000_000);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{micros:06}Z",
            secs / 3600,
            secs / 60 % 60,
            secs % 60
        )
    }
}

/// Returns the proleptic Gregorian date of a day number since the epoch (Howard Hinnant's era arithmetic).
const fn civil_date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (
        year_of_era + era * 400 + if month <= 2 { 1 } else { 0 },
        month,
        day,
    )
}

/// The source of time, ids and randomness.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the wall-clock time.
    fn now(&self) -> Timestamp;

    /// Returns microseconds of a clock that never goes back. Only differences have a meaning.
    fn monotonic_us(&self) -> u64;

    /// Returns a new UUIDv7.
    fn new_uuid(&self) -> Uuid;

    /// Returns uniform random bits, for jitter. Not for keys.
    fn random_u64(&self) -> u64;

    /// Returns how long a wait of `ms` milliseconds really takes. Only a replay changes it.
    fn patience_ms(&self, ms: u64) -> u64 {
        ms
    }

    /// Completes when `question` has waited for `ms` milliseconds from now. A replay completes earlier, if the record has no
    /// answer.
    fn wait_unanswered<'a>(&'a self, question: &'a RequestId, ms: u64) -> BoxFuture<'a, ()> {
        let _ = question;
        Box::pin(tokio::time::sleep(Duration::from_millis(ms)))
    }

    /// Returns whether blocking work may use its own thread. Not in the simulation, because no seed determines the order of
    /// threads.
    fn has_threads(&self) -> bool {
        true
    }
}

/// A clock that ignores jumps of the wall clock: the wall-clock time when it was made, plus the elapsed time.
#[derive(Debug, Clone)]
pub struct SteadyClock {
    clock: Arc<dyn Clock>,
    wall: Timestamp,
    monotonic_us: u64,
}

impl SteadyClock {
    /// Makes a clock that begins at the current wall-clock time.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (wall, monotonic_us) = (clock.now(), clock.monotonic_us());
        Self {
            clock,
            wall,
            monotonic_us,
        }
    }

    /// Returns the microseconds since the beginning.
    #[must_use]
    pub fn passed_us(&self) -> i64 {
        let passed = self.clock.monotonic_us().saturating_sub(self.monotonic_us);
        i64::try_from(passed).unwrap_or(i64::MAX)
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(self.wall.0.saturating_add(self.passed_us()))
    }

    /// Returns the time since another clock showed `at`. If this clock and the wall clock differ, the longer time counts.
    #[must_use]
    pub fn elapsed_since(&self, at: Timestamp) -> Duration {
        let passed = self.now().max(self.clock.now()).0.saturating_sub(at.0);
        Duration::from_micros(u64::try_from(passed).unwrap_or(0)) // silent-ok: the future is no time ago
    }

    /// Returns whether the wall clock was changed by more than a second since the beginning.
    #[must_use]
    pub fn has_jumped(&self) -> bool {
        self.clock.now().0.abs_diff(self.now().0) > JUMP_US
    }
}

/// Runs blocking work outside the async threads.
///
/// # Errors
/// It panicked.
pub async fn run_blocking<T: Send + 'static>(
    clock: &dyn Clock,
    what: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    if clock.has_threads() {
        tokio::task::spawn_blocking(what).await
    } else {
        Ok(what())
    }
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: std::time::Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the Clock port's real side")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn monotonic_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the Clock port's real side")]
    fn new_uuid(&self) -> Uuid {
        Uuid::now_v7()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the Clock port's real side")]
    fn random_u64(&self) -> u64 {
        Uuid::new_v4().as_u64_pair().1
    }
}
