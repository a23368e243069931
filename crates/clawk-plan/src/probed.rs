//! What is known about level `process` on this host. The launcher finds it out once; a plan reads it here.

use std::sync::OnceLock;

use crate::level::{ObtainedEnforcement, SandboxRefusal};

/// The mechanisms that hold a box on this host, or the reason why there is no box.
pub type ProbeResult = Result<ObtainedEnforcement, SandboxRefusal>;

static FOUND: OnceLock<ProbeResult> = OnceLock::new();

/// The result, if a box was tried.
#[must_use]
pub fn found() -> Option<&'static ProbeResult> {
    FOUND.get()
}

/// Keeps the result of the first try.
pub fn remember(found: ProbeResult) -> &'static ProbeResult {
    FOUND.get_or_init(|| found)
}
