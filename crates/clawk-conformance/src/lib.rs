//! `clawk conformance ckp`: the vectors of the specification, played against any agent that speaks on standard streams.
//!
//! The vectors are data (`vectors/ckp/*.json`, format in `vectors/ckp/README.md`); this module plays and judges them. Against
//! clawk itself each vector gets the set-up that it describes, as a manifest of its own. Against another agent the calls
//! use the names of `examples/conformance/claw.yaml`. Nothing is ever skipped: what cannot be played has failed.

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

/// Plays every vector of the levels up to `level` and tells `seen` of each as it ends.
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
