//! What was found out about level `process` on this host. Whoever starts boxes finds it out, once; a plan asks here.

use std::sync::OnceLock;

use crate::level::{Obtained, Refusal};

/// What a box on this host is held by, or why there is none.
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
