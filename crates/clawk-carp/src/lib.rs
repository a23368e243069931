//! CARP: Atlases that govern, and what they resolve to.
//!
//! *Owns:* Atlas manifests (reading, checking, loading), sets of Atlases compiled once, `resolve`, the checks of
//! `execute`, `validate`, rate and budget windows as values.
//! *Depends on:* clawk-proto; `load` alone reads files.
//! *Must not know:* sessions, HTTP, the kernel, clocks: the time, the ids and the windows are passed in.
//! *Start reading at:* [`mod@resolve`], then [`set`], then [`atlas`].
//!
//! The readings taken where the protocol is silent:
//! * Policies of the whole loaded set hold, whichever Atlases a request selects: an agent cannot leave a deny behind by
//!   not naming its Atlas. `atlas_ids` narrows actions and context.
//! * A `scope` policy denies what lies outside its `actions`, with the strength and the place of a `deny`.
//! * A rate limit or a budget decides only when it is spent; every one that covers the action is asked, and every one is
//!   charged by an execution.
//! * With `required_capabilities`, a context pack that capabilities list is left out unless one of them is asked for.

pub mod atlas;
pub mod depend;
pub mod execute;
pub mod fault;
mod glob;
mod json;
pub mod load;
pub mod message;
pub mod rate;
pub mod replay;
pub mod resolve;
pub mod set;
pub mod validate;
mod verdict;
pub mod window;

#[cfg(test)]
mod tests;

pub use atlas::Atlas;
pub use fault::InputFaults;
pub use rate::RateLedger;
pub use resolve::{ExplainedResolution, resolve};
pub use set::{AtlasSet, Options};
