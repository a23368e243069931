//! Turns a plan into a running process: starts, isolates and ends it.
//!
//! *Owns*: process spawning (no other crate spawns processes), the isolation of each level, limits, timeouts.
//! *Depends on*: `clawk-plan`, which describes the requested isolation.
//! *Must not know*: tools, policy, kernel.
//! *Start reading at*: [`launch`], then [`child`] (the code that runs in the re-executed program).
//!
//! If this host can't provide a level, the run is refused. clawk never falls back to a weaker level (R32).

pub mod child;
pub mod container;
pub mod launch;
mod passing;
#[cfg(feature = "vm")]
pub mod vm;
#[cfg(feature = "wasm")]
mod wasm;

pub use launch::{
    EgressGate, EgressServerHandle, InMemoryFile, InputDescriptor, LaunchError, LaunchInput, LaunchOutcome,
    Launcher, LevelSettings, LimitHit, MinFree, SandboxListener, SandboxedService, ServiceEnd, Spec,
    VmSettings, WarmPoolLimits,
};
