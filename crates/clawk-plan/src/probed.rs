//! What is known about level `process` on this host. The launcher finds it out once; a plan reads it here.

use std::sync::OnceLock;

use crate::level::{Obtained, Refusal};

/// The mechanisms that hold a box on this host, or the reason why there is no box.
pub type Probed = Result<Obtained, Refusal>;

static FOUND: OnceLock<Probed> = OnceLock::new();

/// The result, if a box was tried.
#[must_use]
pub fn found() -> Option<&'static Probed> {
    FOUND.get()
}

/// Keeps the result of the first try.
pub fn remember(found: Probed) -> &'static Probed {
    FOUND.get_or_init(|| found)
}
