//! `clawk conformance ckp`: runs the specification's test vectors against any agent on standard streams.
//!
//! The vectors are data (`vectors/ckp/*.json`, format in `vectors/ckp/README.md`); this module runs and judges them. For clawk
//! itself, each vector has its own setup with its own manifest. For another agent, the calls use the names of
//! `examples/conformance/claw.yaml`. No vector is skipped: one that can't be run counts as failed.

mod connection;
pub(crate) mod cra;
mod judge;
mod pattern;
mod play;
mod report;
mod target;
mod vector;

#[cfg(test)]
mod tests;

use std::time::Instant;

use anyhow::Result;

pub(crate) use report::{CkpReport, VectorResult};
pub(crate) use target::CkpTarget;

/// Runs every vector of the levels up to `level`. Passes each result to `seen` as it ends.
pub(crate) fn run(target: &CkpTarget, level: u8, mut seen: impl FnMut(&VectorResult)) -> Result<CkpReport> {
    let vectors = vector::all()?;
    let mut report = CkpReport::new(target.name(), target.version(), level);
    for vector in vectors.iter().filter(|vector| vector.level <= level) {
        let started = Instant::now();
        let mut agent = None;
        let verdict = play::play(vector, target, &mut agent);
        report.name_agent(agent);
        let outcome = VectorResult::new(vector, verdict, started.elapsed());
        seen(&outcome);
        report.add(outcome);
    }
    Ok(report)
}
