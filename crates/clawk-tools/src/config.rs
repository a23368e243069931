//! `[tools.NAME]` of `clawk.toml` (DESIGN §5).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[tools]`: what this machine binds to tool names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolsConfig {
    /// By tool name.
    pub tools: BTreeMap<String, ToolConfig>,
}

/// `[tools.NAME]`. At most one of `command`, `http`, `wasm` and `a2a`; the rest also goes with built-ins and MCP tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolConfig {
    /// Program and arguments. It gets the call's arguments as JSON on standard input; its standard output is the result.
    pub command: Option<Vec<String>>,
    /// The command takes words, not JSON: the texts of the call's `args`, then its `path`, follow its own arguments, and the
    /// call's `stdin` is its standard input. For scripts of skills.
    pub argv: bool,
    /// The folder where the command starts instead of the working directory; it sees it read-only. Relative ones start where
    /// relative programs do.
    pub start_in: Option<PathBuf>,
    /// An endpoint that gets the call's arguments as a JSON body.
    pub http: Option<HttpTool>,
    /// A WebAssembly file: a component of `wasi:cli/command`, or a module of WASI preview 1. It gets the call's arguments as
    /// JSON on standard input; its standard output is the result.
    pub wasm: Option<PathBuf>,
    /// Another agent, which is sent the argument `message`.
    pub a2a: Option<A2aTool>,
    /// What the executor or MCP server says of its own effects counts (R13). For `command` and `http`, whose
    /// annotations are the manifest's, it changes nothing.
    pub trust_annotations: bool,
    /// Variables for the command or the MCP server, besides `PATH`, `HOME` and `LANG`.
    pub env: BTreeMap<String, String>,
    /// Variables whose values are secrets: variable name to secret reference.
    pub secret_env: BTreeMap<String, String>,
    /// Headers for an MCP server over HTTP, whose values are secrets: header name to secret reference.
    pub secret_headers: BTreeMap<String, String>,
    /// Host paths that the command or MCP server sees read-only beside the Sandbox's mounts: its scripts, its caches.
    pub read_paths: Vec<PathBuf>,
    /// Where the call's id goes, so that the other side does a repeated request once: `header:NAME` (of an `http` executor) or
    /// `argument:NAME`. After a crash the same request is then sent again under the same key.
    pub idempotency_key: Option<String>,
    /// What answers, after a crash, whether a call did its work. Comes before the key.
    pub reconcile: Option<ReconcileConfig>,
    /// Lets the MCP server of the tool ask the agent's models questions of its own while it serves a call. Absent: refused.
    pub sampling: Option<SamplingConfig>,
}

/// `[tools.NAME.sampling]`: what an MCP server's questions to a model may take. Tools of one server share the first one's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingConfig {
    /// The manifest's provider that answers; the first, if absent.
    pub provider: Option<String>,
    /// Output tokens of one answer at most.
    pub max_tokens: u32,
    /// Questions during one call at most; calls that overlap share them.
    pub per_call: u32,
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self {
            provider: None,
            max_tokens: 1024,
            per_call: 4,
        }
    }
}

/// `[tools.NAME] reconcile`: exactly one of these. Each is given the call's `request_id`, `tool` and `arguments`, and answers
/// `done`, `not-done`, or anything else for "don't know": as text, or as `{"outcome": "done"}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReconcileConfig {
    /// Program and arguments; it gets the facts as JSON on standard input.
    pub command: Option<Vec<String>>,
    /// An address that is read with GET; `{request_id}` and `{arguments.NAME}` in it are filled in. It gets the headers of
    /// the tool's own `http`.
    pub http: Option<String>,
    /// A declared tool without side effects; it is called like any other.
    pub tool: Option<String>,
}

/// `[tools.NAME.a2a]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct A2aTool {
    /// The agent's address; its card is at `/.well-known/agent-card.json` below it, its interface at the same origin.
    pub url: String,
    /// Headers whose values are secrets: header name to secret reference.
    #[serde(default)]
    pub secret_headers: BTreeMap<String, String>,
    /// Put before a secret header's value, for example `Bearer `.
    #[serde(default)]
    pub secret_prefix: String,
}

/// `[tools.NAME.http]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTool {
    /// Where the arguments are posted.
    pub url: String,
    /// Headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are secrets: header name to secret reference.
    #[serde(default)]
    pub secret_headers: BTreeMap<String, String>,
    /// Put before a secret header's value, for example `Bearer `.
    #[serde(default)]
    pub secret_prefix: String,
}
