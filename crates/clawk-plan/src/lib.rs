//! Compiles a Sandbox primitive into a plan: isolation level, capabilities, static checks, the agent's own files, real paths of
//! mounts.
//!
//! *Owns*: the capability plan, its form on this host, the static checks of a call, refusals.
//! *Depends on*: `clawk-manifest` for the Sandbox model, `clawk-proto` for network addresses.
//! *Must not know*: how a level is enforced. This crate reads file names and metadata, and starts no process.
//! *Start reading at*: [`plan`], then [`preflight`], then [`own`].
//!
//! If this host can't provide a level, the call is refused. clawk never falls back to a weaker level (R32).

pub mod level;
pub mod machine;
pub mod own;
pub mod place;
pub mod plan;
pub mod preflight;
pub mod probed;

pub use level::{CodeOrigin, Level, ObtainedEnforcement, SandboxRefusal};
pub use own::{RuntimeFileGuard, RuntimeFiles};
pub use plan::{
    Filesystem, FsMode, Limits, Mount, Network, NetworkMode, Plan, PlanDefaults, Shell, ShellMode,
};
pub use preflight::Request;
pub use probed::ProbeResult;
