//! The result of the probe of level `process` on this host. The launcher probes once; plans read the result here.

use std::sync::OnceLock;

use crate::level::{ObtainedEnforcement, SandboxRefusal};

/// The mechanisms that enforce level `process` on this host, or the reason why the level is unavailable.
pub type ProbeResult = Result<ObtainedEnforcement, SandboxRefusal>;

static FOUND: OnceLock<ProbeResult> = OnceLock::new();

/// The probe's result; `None` if no probe has run yet.
#[must_use]
pub fn probe_result() -> Option<&'static ProbeResult> {
    FOUND.get()
}

/// Stores the result of the first probe. Later results are ignored.
pub fn remember_result(found: ProbeResult) -> &'static ProbeResult {
    FOUND.get_or_init(|| found)
}
