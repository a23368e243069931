//! All tools behind the kernel's `ToolRunner` port: built-in tools, tools that `clawk.toml` binds, and tools of MCP servers.
//!
//! *Owns*: the built-ins, the executors `command`, `http` and `a2a`, the MCP client and its tokens, the binding of names to
//! executors.
//! *Depends on*: the kernel's ports and permit, `clawk-sandbox` for processes, `clawk-egress` for HTTP.
//! *Must not know*: policy decisions, storage.
//! *Start reading at*: [`bind_tools()`], then [`Runner`], then [`builtin`].

mod bind;
pub mod builtin;
mod call;
pub mod config;
mod egress;
mod executor;
mod keep;
mod mcp;
mod mend;
pub mod oauth;
pub mod origins;
mod program;
mod remember;
mod runner;
mod stands;
pub mod undo;

#[cfg(test)]
mod testing;

pub use bind::{ToolHost, UnboundTool, bind_tools};
pub use builtin::{AskUserHandler, ExternalBuiltin, UserAnswer, UserQuestion, load_file};
pub use config::{A2aTool, HttpTool, ReconcileConfig, SearchConfig, SearchProvider, ToolConfig, ToolsConfig};
pub use egress::EgressSettings;
pub use executor::{A2aAgent, A2aEnd, A2aStep};
pub use program::{OperatorProgram, program_spec};
pub use remember::MemoryServer;
pub use runner::Runner;

/// Whether a built-in tool has this name.
#[must_use]
pub fn is_builtin(name: &str) -> bool {
    builtin::BuiltinTool::from_name(name).is_some()
}
