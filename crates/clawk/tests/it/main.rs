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
mod between;
mod closed;
mod conformance;
mod counter;
mod cra;
mod crash;
mod crowd;
mod doors;
mod forged;
mod governed;
#[cfg(feature = "wasm")]
mod guest_http;
mod hostile;
mod https;
mod kept;
mod ledger;
mod levels;
mod memory;
mod own_files;
mod plan;
mod policy;
mod private;
#[path = "../common/terminal.rs"]
mod pty;
mod purse;
mod questions;
mod refusals;
mod replay;
mod serve;
mod served;
mod stop;
mod terminal;
mod trace;
mod tunnel;
mod verbs;
mod waiting;
mod what_if;
mod without;
