//! The binary among real parts: a small language model behind llama.cpp's server, MCP servers from npm and PyPI, a terminal,
//! full disks, killed processes. `tests/parts/install.sh` installs what is needed; a missing part fails and says so.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "what is not as expected ends the test"
)]

mod agent;
mod model;
mod parts;
mod process;
#[path = "../common/terminal.rs"]
mod tty;
mod wire;

mod approval;
mod atlas;
mod bad_input;
mod bad_provider;
mod bad_tool;
mod boxed;
mod clients;
mod doors;
mod engine;
#[cfg(feature = "vm")]
mod kernel;
#[cfg(feature = "vm")]
mod machine;
mod official;
mod protocols;
mod pushes;
mod remembering;
mod skills;
mod state;
mod terminal;
mod turn;
