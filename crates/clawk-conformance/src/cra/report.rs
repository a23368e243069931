//! The report, in the format of the conformance document.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::case::{CraCase, Level};

/// The result of one case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CraStatus {
    /// The target did what the case wants.
    Passed,
    /// It did something else.
    Failed,
    /// It has no door for the case.
    Skipped,
}

/// Why a case did not pass.
#[derive(Debug)]
pub(super) enum CraShortfall {
    /// The result was different.
    Failed { error: String, details: Value },
    /// The target's interfaces do not support the case.
    Skipped(String),
}

impl CraShortfall {
    /// Makes the failure for an unexpected value.
    pub(super) fn from_mismatch(
        expected: impl std::fmt::Display,
        got: impl std::fmt::Display,
        details: Value,
    ) -> Self {
        Self::Failed {
            error: format!("expected {expected}, got {got}"),
            details,
        }
    }
}

impl From<anyhow::Error> for CraShortfall {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed {
            error: format!("{error:#}"),
            details: Value::Null,
        }
    }
}

/// The result of one case.
#[derive(Debug, Serialize)]
pub struct CraCaseResult {
    /// The case's id.
    pub test_id: String,
    /// How it ended.
    pub status: CraStatus,
    /// How long it took, milliseconds.
    pub duration_ms: u64,
    /// What was expected and what came; or why it could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    /// More about a failure; null where there is none.
    pub details: Value,
    #[serde(skip)]
    level: Level,
}

impl CraCaseResult {
    pub(super) fn new(case: &CraCase, verdict: Result<(), CraShortfall>, took: Duration) -> Self {
        let (status, error, details) = match verdict {
            Ok(()) => (CraStatus::Passed, None, Value::Null),
            Err(CraShortfall::Failed { error, details }) => (CraStatus::Failed, Some(error), details),
            Err(CraShortfall::Skipped(reason)) => (CraStatus::Skipped, Some(reason), Value::Null),
        };
        Self {
            test_id: case.test_id.clone(),
            status,
            duration_ms: to_millis(took),
            error,
            details,
            level: case.level,
        }
    }
}

/// Counts of a run.
#[derive(Debug, Serialize)]
pub struct TestRun {
    timestamp: String,
    duration_ms: u64,
    /// Cases in all.
    pub total: usize,
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many could not be asked.
    pub skipped: usize,
}

/// The complete report.
#[derive(Debug, Serialize)]
pub struct CraReport {
    /// The implementation's name.
    pub implementation: String,
    /// Its version.
    pub version: String,
    /// The highest level all of whose cases passed, none skipped; null where there is none.
    pub conformance_level: Option<&'static str>,
    /// The counts.
    pub test_run: TestRun,
    /// Each case.
    pub results: Vec<CraCaseResult>,
}

impl CraReport {
    pub(super) const fn new(implementation: String, version: String, timestamp: String) -> Self {
        Self {
            implementation,
            version,
            conformance_level: None,
            test_run: TestRun {
                timestamp,
                duration_ms: 0,
                total: 0,
                passed: 0,
                failed: 0,
                skipped: 0,
            },
            results: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, outcome: CraCaseResult) {
        let run = &mut self.test_run;
        run.total += 1;
        match outcome.status {
            CraStatus::Passed => run.passed += 1,
            CraStatus::Failed => run.failed += 1,
            CraStatus::Skipped => run.skipped += 1,
        }
        self.results.push(outcome);
    }

    /// Sets the reached level, among those that were run.
    pub(super) fn finish_run(&mut self, asked: Option<Level>, took: Duration) {
        self.test_run.duration_ms = to_millis(took);
        let Some(asked) = asked else { return };
        let levels = [
            Level::CraFull,
            Level::CraMinimal,
            Level::CarpCore,
            Level::TraceCore,
            Level::AtlasCore,
        ];
        self.conformance_level = levels
            .into_iter()
            .filter(|level| *level == asked || asked.includes(*level))
            .find(|level| self.has_reached(*level))
            .map(Level::name);
    }

    fn has_reached(&self, level: Level) -> bool {
        self.results
            .iter()
            .filter(|outcome| level.includes(outcome.level))
            .all(|outcome| outcome.status == CraStatus::Passed)
    }
}

fn to_millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}
