//! Deterministic simulation: real kernels on journals in memory, and one seed for all that goes wrong. The same seed gives the same
//! bytes. Each seed makes two worlds ([`Kind`]): a swarm of hosts with a bus between them, and hosts that share one state.
//!
//! *Owns:* the simulated world and what must hold in it.
//! *Depends on:* the kernel with its testing parts, manifest, proto, trace.
//! *Must not know:* the binary, files, sockets, real clocks.
//! *Start reading at:* [`run`], then [`SwarmWorld`], then [`SimInvariant`].
//!
//! What is not simulated: SQLite and PostgreSQL (the journal is the testing one, and what hosts share is a model of the SQL), brokers
//! (the network behaves as one that delivers at least once and gives a task away after a silence), HTTP and the sandbox. A crash loses
//! a host's tasks and memory at the next step's end, and what a slow disk has not committed; what its journal has committed stays.

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
pub use total::{SeedFault, SeedRunOptions, SeedTotals, play};
pub use world::{Kind, SeedReport, SwarmWorld, run, tell};
