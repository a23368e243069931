//! The conformance suites of both protocols, played against any implementation.
//!
//! *Owns:* how the vectors of `vectors/ckp` and `vectors/cra` are played and judged, targets, reports, clawk's own adapter.
//! *Depends on:* the client, CARP, the trace; `clawk-core` for the clock.
//! *Must not know:* the kernel, the server, stores, the command line's output.
//! *Start reading at:* [`run`], then [`cra::run`].
//!
//! The vectors are data (formats in `vectors/ckp/README.md` and `vectors/cra/README.md`). Against clawk itself each CKP vector gets the
//! set-up that it describes, as a manifest of its own. Against another agent the calls use the names of `examples/conformance/claw.yaml`.
//! Nothing is ever skipped: what cannot be played has failed.

mod connection;
pub mod cra;
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

pub use play::VectorFailure;
pub use report::{CkpReport, VectorResult};
pub use target::CkpTarget;

/// Plays every vector of the levels up to `level` and tells `seen` of each as it ends.
///
/// # Errors
/// The vectors cannot be read. Whatever a target does is an outcome.
pub fn run(target: &CkpTarget, level: u8, mut seen: impl FnMut(&VectorResult)) -> Result<CkpReport> {
    let vectors = vector::load_vectors()?;
    let mut report = CkpReport::new(target.name(), target.version(), level);
    for vector in vectors.iter().filter(|vector| vector.level <= level) {
        let started = Instant::now();
        let mut agent = None;
        let verdict = play::play_vector(vector, target, &mut agent);
        report.name_agent(agent);
        let outcome = VectorResult::new(vector, verdict, started.elapsed());
        seen(&outcome);
        report.add(outcome);
    }
    Ok(report)
}
