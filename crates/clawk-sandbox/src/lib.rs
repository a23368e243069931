//! From a plan to a running process: how it is started, enclosed and ended.
//!
//! *Owns*: process spawning (nobody else spawns), the walls of each level, limits, timeouts.
//! *Depends on*: `clawk-plan` for what is asked.
//! *Must not know*: tools, policy, kernel.
//! *Start reading at*: [`launch`], then [`child`] (the other side of the re-exec).
//!
//! A level that this host can't give is refused, never served weaker (R32).

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
