//! The section `[tools.NAME]` of `clawk.toml` (DESIGN §5).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[tools]`: how this machine runs each tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolsConfig {
    /// Settings by tool name.
    pub tools: BTreeMap<String, ToolConfig>,
}

/// `[tools.NAME]`. At most one of `command`, `http`, `wasm` and `a2a`. The other settings also apply to built-ins and MCP tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolConfig {
    /// Program and arguments. The program gets the call's arguments as JSON on standard input; its standard output is the result.
    pub command: Option<Vec<String>>,
    /// The command takes words instead of JSON: the texts of the call's `args` and then its `path` are appended to its arguments,
    /// and the call's `stdin` is its standard input. For scripts of skills.
    pub argv: bool,
    /// The folder in which the command starts instead of the working directory. The command sees it read-only. A relative path is
    /// resolved like that of a relative program.
    pub start_in: Option<PathBuf>,
    /// An HTTP endpoint that gets the call's arguments as a JSON body.
    pub http: Option<HttpTool>,
    /// A WebAssembly file: a component of `wasi:cli/command`, or a module of WASI preview 1. It gets the call's arguments as JSON
    /// on standard input; its standard output is the result.
    pub wasm: Option<PathBuf>,
    /// Another agent, to which the argument `message` is sent.
    pub a2a: Option<A2aTool>,
    /// The search provider of the built-in `web-search`.
    pub search: Option<SearchConfig>,
    /// Whether the annotations of the executor or MCP server are trusted (R13). This has no effect for `command` and `http`, whose
    /// annotations are in the manifest.
    pub trust_annotations: bool,
    /// Environment variables for the command or the MCP server, in addition to `PATH`, `HOME` and `LANG`.
    pub env: BTreeMap<String, String>,
    /// Environment variables with secret values: variable name to secret reference.
    pub secret_env: BTreeMap<String, String>,
    /// Headers with secret values for an MCP server over HTTP: header name to secret reference.
    pub secret_headers: BTreeMap<String, String>,
    /// Host paths that the command or MCP server sees read-only, in addition to the Sandbox's mounts; for example its scripts.
    pub read_paths: Vec<PathBuf>,
    /// Where the call's id is sent, so that the other side runs a repeated request only once: `header:NAME` (for an `http`
    /// executor) or `argument:NAME`. After a crash, the same request is then sent again with the same key.
    pub idempotency_key: Option<String>,
    /// How to find out after a crash whether a call did its work. It is tried before the key.
    pub reconcile: Option<ReconcileConfig>,
    /// Whether the tool's MCP server may ask the agent's models while it serves a call. Absent: refused.
    pub sampling: Option<SamplingConfig>,
}

/// `[tools.web-search.search]`: the provider that `web-search` asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchConfig {
    /// Which provider.
    pub provider: SearchProvider,
    /// The server's address. SearXNG has no usual one; for the others it replaces the usual one, for example by a gateway's.
    #[serde(default)]
    pub url: Option<String>,
    /// The reference of the key. It is sent to the provider only, and never to a tool or a model.
    #[serde(default)]
    pub secret_ref: Option<String>,
}

/// A search provider whose requests and answers `web-search` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SearchProvider {
    /// A SearXNG server of your own. Its settings must list `json` under `search.formats`.
    Searxng,
    /// Brave Search.
    Brave,
    /// Tavily.
    Tavily,
    /// Kagi.
    Kagi,
}

impl SearchProvider {
    /// The name for people, as written in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Searxng => "searxng",
            Self::Brave => "brave",
            Self::Tavily => "tavily",
            Self::Kagi => "kagi",
        }
    }

    /// The vendor's address. `None`: everybody runs their own.
    #[must_use]
    pub const fn usual_url(self) -> Option<&'static str> {
        match self {
            Self::Searxng => None,
            Self::Brave => Some("https://api.search.brave.com"),
            Self::Tavily => Some("https://api.tavily.com"),
            Self::Kagi => Some("https://kagi.com"),
        }
    }

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Searxng | Self::Tavily => "/search",
            Self::Brave => "/res/v1/web/search",
            Self::Kagi => "/api/v0/search",
        }
    }

    pub(crate) const fn needs_key(self) -> bool {
        match self {
            Self::Searxng => false,
            Self::Brave | Self::Tavily | Self::Kagi => true,
        }
    }

    /// The usual name of the key.
    #[must_use]
    pub const fn usual_secret(self) -> &'static str {
        match self {
            Self::Searxng => "SEARXNG_API_KEY",
            Self::Brave => "BRAVE_API_KEY",
            Self::Tavily => "TAVILY_API_KEY",
            Self::Kagi => "KAGI_API_KEY",
        }
    }

    /// The header of the key, in lower case, and the text before the key.
    pub(crate) const fn key_header(self) -> (&'static str, &'static str) {
        match self {
            Self::Searxng | Self::Tavily => ("authorization", "Bearer "),
            Self::Brave => ("x-subscription-token", ""),
            Self::Kagi => ("authorization", "Bot "),
        }
    }
}

/// `[tools.NAME.sampling]`: limits for an MCP server's requests to a model. Tools of one server share those of the first tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingConfig {
    /// The provider that answers. Absent: the manifest's first provider.
    pub provider: Option<String>,
    /// The maximum number of output tokens of one answer.
    pub max_tokens: u32,
    /// The maximum number of requests during one call. Calls that overlap share it.
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

/// `[tools.NAME] reconcile`: exactly one of these. Each gets the call's `request_id`, `tool` and `arguments`, and answers `done`,
/// `not-done`, or anything else for "unknown"; as text, or as `{"outcome": "done"}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReconcileConfig {
    /// Program and arguments. The program gets the facts as JSON on standard input.
    pub command: Option<Vec<String>>,
    /// A URL that is read with GET. `{request_id}` and `{arguments.NAME}` are filled in. The request gets the headers of the tool's
    /// own `http`.
    pub http: Option<String>,
    /// A declared tool without side effects. It is called like any other tool.
    pub tool: Option<String>,
}

/// `[tools.NAME.a2a]`: another agent as a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct A2aTool {
    /// The agent's URL. Its card is at `/.well-known/agent-card.json` below it; its interface must have the same origin.
    pub url: String,
    /// Headers with secret values: header name to secret reference.
    #[serde(default)]
    pub secret_headers: BTreeMap<String, String>,
    /// A prefix for the values of secret headers, for example `Bearer `.
    #[serde(default)]
    pub secret_prefix: String,
}

/// `[tools.NAME.http]`: an HTTP endpoint as a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTool {
    /// The URL to which the arguments are posted.
    pub url: String,
    /// Headers of each request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Headers with secret values: header name to secret reference.
    #[serde(default)]
    pub secret_headers: BTreeMap<String, String>,
    /// A prefix for the values of secret headers, for example `Bearer `.
    #[serde(default)]
    pub secret_prefix: String,
}
