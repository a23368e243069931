//! The `Clock` port: time, ids and randomness come through it, so that a simulation can own them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use clawk_proto::RequestId;
use uuid::Uuid;

use crate::ports::BoxFuture;

/// Microseconds by which two clocks may differ before one of them counts as set.
const JUMP_US: u64 = 1_000_000;

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Reads RFC 3339.
    ///
    /// # Errors
    /// The text is no RFC 3339 time with a zone.
    pub fn parse(text: &str) -> Result<Self, jiff::Error> {
        text.parse::<jiff::Timestamp>().map(|t| Self(t.as_microsecond()))
    }

    /// Milliseconds since the epoch, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// The start of this UTC day.
    #[must_use]
    pub const fn day_start(self) -> Self {
        Self(self.0 - self.0.rem_euclid(86_400_000_000))
    }

    /// This UTC month: its start, and the next one's.
    #[must_use]
    pub fn month(self) -> (Self, Self) {
        const DAY_US: i64 = 86_400_000_000;
        let days = self.0.div_euclid(DAY_US);
        let (_, month, day) = civil(days);
        let from = days - (day - 1);
        // A month has 28 days at least and 31 at most: the first of the next one is among these four.
        let next = (28..=31)
            .map(|len| from + len)
            .find(|first| civil(*first).1 != month)
            .unwrap_or(from + 31);
        (
            Self(from.saturating_mul(DAY_US)),
            Self(next.saturating_mul(DAY_US)),
        )
    }

    /// This time, `ms` milliseconds later (earlier when negative).
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
        let (year, month, day) = civil(days);
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

/// Proleptic Gregorian date of a day number since the epoch (Howard Hinnant's era arithmetic).
const fn civil(days: i64) -> (i64, i64, i64) {
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

/// Gives time, ids and randomness.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Wall time.
    fn now(&self) -> Timestamp;

    /// Microseconds of a clock that never goes back; only differences mean anything.
    fn monotonic_us(&self) -> u64;

    /// A fresh UUIDv7.
    fn uuid(&self) -> Uuid;

    /// Uniform bits, for jitter; not for keys.
    fn random(&self) -> u64;

    /// How long a wait of `ms` milliseconds really takes. Only a replay says otherwise.
    fn patience_ms(&self, ms: u64) -> u64 {
        ms
    }

    /// Completes when `question` has waited for `ms` milliseconds from now. A replay completes earlier, if the record has no
    /// answer.
    fn silence<'a>(&'a self, question: &'a RequestId, ms: u64) -> BoxFuture<'a, ()> {
        let _ = question;
        Box::pin(tokio::time::sleep(Duration::from_millis(ms)))
    }

    /// What blocks runs on a thread of its own. The simulation says no: threads have an order that no seed decides.
    fn has_threads(&self) -> bool {
        true
    }
}

/// A time that no jump of the wall clock moves: the wall clock's when this was made, plus what has passed since.
#[derive(Debug, Clone)]
pub struct SteadyClock {
    clock: Arc<dyn Clock>,
    wall: Timestamp,
    monotonic_us: u64,
}

impl SteadyClock {
    /// Begins at the present wall time.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (wall, monotonic_us) = (clock.now(), clock.monotonic_us());
        Self {
            clock,
            wall,
            monotonic_us,
        }
    }

    /// Microseconds since the beginning.
    #[must_use]
    pub fn passed_us(&self) -> i64 {
        let passed = self.clock.monotonic_us().saturating_sub(self.monotonic_us);
        i64::try_from(passed).unwrap_or(i64::MAX)
    }

    /// The present time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(self.wall.0.saturating_add(self.passed_us()))
    }

    /// How long ago the wall clock of somebody said `at`. Where this time and the wall clock disagree, the longer one counts.
    #[must_use]
    pub fn since(&self, at: Timestamp) -> Duration {
        let passed = self.now().max(self.clock.now()).0.saturating_sub(at.0);
        Duration::from_micros(u64::try_from(passed).unwrap_or(0)) // silent-ok: the future is no time ago
    }

    /// The wall clock was set, by more than a second, since the beginning.
    #[must_use]
    pub fn has_jumped(&self) -> bool {
        self.clock.now().0.abs_diff(self.now().0) > JUMP_US
    }
}

/// Runs what blocks, away from the async threads.
///
/// # Errors
/// It panicked.
pub async fn apart<T: Send + 'static>(
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
    fn uuid(&self) -> Uuid {
        Uuid::now_v7()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the Clock port's real side")]
    fn random(&self) -> u64 {
        Uuid::new_v4().as_u64_pair().1
    }
}
