//! The binary from outside: arguments, files, pipes, a terminal, signals.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::too_many_lines,
    clippy::disallowed_methods,
    reason = "tests: a panic is how they fail, and they start the program under test"
)]

mod agent;
mod api;
mod atlas;
mod attack;
mod backup;
mod between;
mod canaries;
mod channels;
mod checkpoints;
mod closed;
#[cfg(feature = "conformance")]
mod conformance;
mod counter;
#[cfg(feature = "conformance")]
mod cra;
mod crash;
mod crowd;
mod doors;
mod dry;
#[cfg(feature = "postgres")]
mod dry_pg;
mod editing;
#[cfg(feature = "conformance")]
mod faults;
mod forged;
mod governed;
#[cfg(feature = "wasm")]
mod guest_http;
mod guide;
mod hostile;
#[cfg(all(feature = "nats", feature = "redis"))]
mod hostile_bus;
mod hostile_peer;
#[cfg(feature = "nats")]
mod hosts;
mod https;
mod identity;
mod imports;
mod kept;
mod killed;
mod laundered;
mod leaves;
mod ledger;

mod levels;
mod logs;
mod mcp_missing;
mod memory;
mod own_files;
#[path = "../real/parts.rs"]
#[expect(dead_code, reason = "shared with the tests against real parts")]
mod parts;
mod peers;
mod pipes;
#[path = "../../src/state/places.rs"]
#[expect(
    dead_code,
    reason = "the program's inventory; the tests ask it for a file's place only"
)]
mod places;
mod plan;
mod planted;
mod policy;
mod postgres;
mod private;
mod proven;
#[path = "../common/terminal.rs"]
mod pty;
mod purse;
mod qdrant;
mod questions;
#[cfg(all(feature = "conformance", feature = "nats", feature = "redis"))]
mod queues;
mod recalled;
mod refusals;
mod remember;
mod replay;
mod retrieval;
mod sampling;
mod screens;
mod sealed;
#[cfg(feature = "postgres")]
mod sealed_pg;
mod serve;
mod served;
mod shell_habits;
mod silences;
mod skills;
#[cfg(feature = "postgres")]
mod state_move;
#[cfg(feature = "postgres")]
mod state_pg;
mod stop;
mod swarm;
mod swarm_limits;
mod telemetry;
mod terminal;
mod tools;
mod trace;
#[cfg(feature = "conformance")]
mod transports;
mod trust;
mod tunnel;
mod undo;
mod undone;
mod upgrade;
mod verbs;
mod waiting;
mod what_if;
mod without;
mod world_models;
