//! An MCP server that holds a memory store (`backend: custom`). It runs in the agent's sandbox and under its network rules, like
//! the server of a tool.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::ports::ConnectionCollector;
use clawk_manifest::model::{Manifest, McpUri, Tool};
use serde_json::{Map, Value, json};

use crate::bind::{ToolBinder, ToolHost};
use crate::call::truncate_text;
use crate::config::{ToolConfig, ToolsConfig};
use crate::egress::EgressProxies;
use crate::mcp::McpServer;

/// How many bytes of an error are passed on.
const MAX_ERROR_BYTES: usize = 300;

/// A server with the tools `store`, `query` and `forget`. It is started at the first call.
pub struct MemoryServer {
    server: Arc<McpServer>,
    /// The time limit for one call of its tools.
    limit: Duration,
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryServer({})", self.server.name())
    }
}

impl MemoryServer {
    /// The server of a store. `config`: its settings in `clawk.toml`. `limit`: the time limit for one call.
    ///
    /// # Errors
    /// The reason why it can't be started or reached here.
    pub fn new(
        manifest: &Manifest,
        store: &str,
        uri: &McpUri,
        config: ToolConfig,
        host: &ToolHost,
        limit: Duration,
    ) -> Result<Self, String> {
        let name = format!("memory.{store}");
        let declared = json!({"name": name, "mcp_source": {"uri": uri}});
        let tool: Tool = serde_json::from_value(declared).map_err(|error| error.to_string())?;
        let mut manifest = manifest.clone();
        manifest.tools = vec![tool.clone()];
        let config = ToolsConfig {
            tools: BTreeMap::from([(name, config)]),
        };
        let mut binder = ToolBinder {
            exits: Arc::new(EgressProxies::new(
                host.egress.clone(),
                host.secrets.env().clone(),
            )),
            manifest: &manifest,
            config: &config,
            host,
            servers: BTreeMap::new(),
        };
        binder.mcp_server(uri, &tool).map(|server| Self { server, limit })
    }

    /// Calls one of its tools. Returns the result object.
    ///
    /// # Errors
    /// The server can't be started or reached, lacks the tool, refuses, or exceeds the time limit.
    pub async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<Value, String> {
        let server = &self.server;
        let link = server.live_session().await.map_err(|error| error.to_string())?;
        if !link.has_tool(tool) {
            return Err(format!(
                "the MCP server `{}` offers no tool `{tool}`; the server of a store offers `store`, `query` and `forget`",
                server.name()
            ));
        }
        server
            .check_unchanged(&link, tool)
            .await
            .map_err(|error| error.to_string())?;
        let result = server.call_tool(&link, tool, arguments, self.limit).await;
        // Its connections belong to no tool call.
        server.report_connections(&ConnectionCollector::default());
        let result = result?;
        let text = || {
            let text = result.pointer("/content/0/text").and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        if result.get("isError") == Some(&Value::Bool(true)) {
            let said = text();
            let (said, _) = truncate_text(&said, MAX_ERROR_BYTES);
            return Err(format!("the MCP server `{}`, `{tool}`: {said}", server.name()));
        }
        let answer = match result.get("structuredContent") {
            Some(structured) if !structured.is_null() => structured.clone(),
            Some(_) | None => serde_json::from_str(&text()).unwrap_or_default(), // silent-ok: refused below
        };
        if answer.is_object() {
            return Ok(answer);
        }
        Err(format!(
            "the MCP server `{}`, `{tool}`: its answer is no JSON object",
            server.name()
        ))
    }

    /// Ends the server.
    pub async fn close(&self) {
        self.server.close().await;
    }
}
