//! Deterministic simulation: real kernels on in-memory journals, with one seed for all faults. The same seed gives the same bytes.
//! Each seed is played in two worlds ([`Kind`]): a swarm of hosts that a bus connects, and several hosts that share one state.
//!
//! *Owns:* the simulated world and its invariants.
//! *Depends on:* the kernel with its testing parts, manifest, proto, trace.
//! *Must not know:* the binary, files, sockets, real clocks.
//! *Start reading at:* [`run`], then [`SwarmWorld`], then [`SimInvariant`].
//!
//! Not simulated: SQLite and PostgreSQL (the journal is the testing one, and the shared state is a model of the SQL), brokers (the
//! network delivers at least once, and reassigns a task after a silence), HTTP and the sandbox. At the end of a step, a crash loses
//! a host's tasks, its memory, and what a slow disk has not committed. Committed journal entries stay.

#![expect(
    clippy::expect_used,
    reason = "a simulation that can't go on should fail loudly"
)]

mod board;
mod desk;
mod host;
mod judge;
mod net;
mod rng;
mod state;
mod total;
mod world;

pub use judge::{BrokenInvariant, SimInvariant};
pub use total::{SeedFault, SeedRunOptions, SeedTotals, play_seeds};
pub use world::{Kind, SeedReport, SwarmWorld, play_and_describe, run};
