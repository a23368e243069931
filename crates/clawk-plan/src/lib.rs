//! From a Sandbox primitive to what a tool may do: capabilities, levels, static checks, the agent's own files, judged places.
//!
//! *Owns*: the capability plan, what it resolves to on this host, static checks of a call, refusals.
//! *Depends on*: `clawk-manifest` for the Sandbox model, `clawk-proto` for places in the network.
//! *Must not know*: how a level is made; it reads names and metadata, and starts nothing.
//! *Start reading at*: [`plan`], then [`preflight`], then [`own`].
//!
//! A level that this host can't give is refused, never served weaker (R32).

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
