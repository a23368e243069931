//! CARP: Atlases that govern an agent, and the resolutions they give.
//!
//! *Owns:* Atlas manifests (reading, checking, loading), sets of Atlases compiled once, `resolve`, the checks of
//! `execute`, `validate`, rate and budget windows as values.
//! *Depends on:* clawk-proto; `load` alone reads files.
//! *Must not know:* sessions, HTTP, the kernel, clocks: the caller passes in the time, the ids and the windows.
//! *Start reading at:* [`mod@resolve`], then [`set`], then [`atlas`].
//!
//! Decisions where the protocol is silent:
//! * The policies of the whole loaded set apply, whichever Atlases a request selects: an agent can't avoid a deny by
//!   not naming its Atlas. `atlas_ids` narrows only actions and context.
//! * A `scope` policy denies everything outside its `actions`, with the strength and position of a `deny`.
//! * A rate limit or budget decides only when it is used up. Every limit that covers the action is checked, and an execution
//!   is charged to all of them.
//! * With `required_capabilities`, a context pack that belongs to capabilities is included only if one of them is required.

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
pub use resolve::{ExplainedResolution, resolve_request};
pub use set::{AtlasSet, Options};
