//! `clawk conformance cra`: runs the tests of the CRA conformance document against any implementation.
//!
//! The cases are data (`vectors/cra`, format in its README). A target is reached by an adapter that answers one JSON line per
//! question, by its HTTP API, or by both; clawk itself is reached by both, like any other target. A test that the target's
//! interfaces do not support is `skipped` with the reason; it never counts as passed.

mod adapter;
mod api;
mod case;
mod compare;
mod complete;
mod event;
mod golden;
mod http;
mod judge;
mod own;
mod report;
mod session;
mod stream;
mod target;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clawk_core::time::{Clock, SystemClock};

pub use case::Level;
pub use own::main as adapter;
pub use report::{CraCaseResult, CraReport, CraStatus};
pub use target::{ADAPTER_VERB, CraTarget};

/// Runs every case of `level` and of the levels it includes. Passes each result to `seen` as it ends. `cases` and `golden` replace
/// the built-in cases; `only` selects cases by the beginning of their ids. With any of these three, no level is reported as
/// reached.
///
/// # Errors
/// The cases cannot be read. Whatever a target does is an outcome.
pub fn run(
    target: &CraTarget,
    level: Level,
    (cases, golden, only): (&[PathBuf], &[PathBuf], &[String]),
    mut seen: impl FnMut(&CraCaseResult),
) -> Result<CraReport> {
    let started = Instant::now();
    let timestamp = SystemClock::default().now().to_string();
    let (implementation, version) = target.name_and_version();
    let mut report = CraReport::new(implementation, version, timestamp);
    let wanted = |case: &case::CraCase| {
        level.includes(case.level)
            && (only.is_empty() || only.iter().any(|start| case.test_id.starts_with(start.as_str())))
    };
    let own = cases.is_empty() && golden.is_empty();
    let played = if own {
        case::load_cases()?
    } else {
        case::load_external_cases(cases, golden)?
    };
    for case in played.into_iter().filter(wanted) {
        let began = Instant::now();
        let verdict = judge::judge(target, &case);
        let outcome = CraCaseResult::new(&case, verdict, began.elapsed());
        seen(&outcome);
        report.add(outcome);
    }
    report.finish_run((own && only.is_empty()).then_some(level), started.elapsed());
    Ok(report)
}
