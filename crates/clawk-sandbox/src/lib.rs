//! From a Sandbox primitive to a running process: what is asked, what may start, how it is enclosed and ended.
//!
//! *Owns*: the capability plan, static checks of a call, process spawning (nobody else spawns), limits, timeouts.
//! *Depends on*: `clawk-manifest` for the Sandbox model.
//! *Must not know*: tools, policy, kernel.
//! *Start reading at*: [`plan`], then [`launch`], then [`child`] (the other side of the re-exec).
//!
//! A level that this host can't give is refused, never served weaker (R32).

pub mod child;
pub mod container;
pub mod launch;
mod level;
mod own;
mod passing;
mod place;
pub mod plan;
pub mod preflight;
pub mod vm;
#[cfg(feature = "wasm")]
mod wasm;

pub use launch::{
    Door, Gate, Given, Input, Keep, LaunchError, Launcher, LevelSettings, LimitHit, MinFree, Outcome, Placed,
    Probed, Service, ServiceEnd, Spec, Warm,
};
pub use level::{Level, Obtained, Place, Refusal};
pub use own::Own;
pub use plan::{Defaults, Filesystem, FsMode, Limits, Mount, Network, NetworkMode, Plan, Shell, ShellMode};
pub use preflight::Request;
