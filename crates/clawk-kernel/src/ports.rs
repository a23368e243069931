//! What the kernel needs from outside, as traits. Those of the ground are in [`clawk_core::ports`]; here are two that need more: the
//! runner of tools, which takes a permit, and the members of a swarm that work elsewhere.

mod elsewhere;

pub use clawk_core::ports::*;
pub use clawk_swarm::coord::RetryReason;
pub use elsewhere::{
    MemberRoute, RemoteResult, RemoteTask, RemoteWorkers, ReportReceiver, ReportedTryState, TokenKey,
};

pub use clawk_govern::call::ToolRunner;
