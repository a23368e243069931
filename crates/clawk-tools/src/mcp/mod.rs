//! Tools that MCP servers serve (CKP §5.4): one server per source, started on first need, shared by its tools.

mod client;
mod http;
mod result;
mod server;
mod taken;
mod throttle;

use std::sync::Arc;

use clawk_kernel::ports::{Description, RunError, RunOutcome};
use clawk_proto::SessionId;
use serde_json::{Map, Value, json};

pub(crate) use client::{Desk, roots};
pub(crate) use server::{Endpoint, Server, Source, admitted};
pub(crate) use taken::names as taken_names;

use crate::call::Call;

/// A declared tool with an `mcp_source`.
#[derive(Debug, Clone)]
pub(crate) struct McpTool {
    pub(crate) server: Arc<Server>,
    /// The manifest's name for it.
    pub(crate) name: String,
    /// `mcp_source.tool_name`.
    pub(crate) served_as: Option<String>,
    /// `trust_annotations` (R13).
    pub(crate) trusted: bool,
}

impl McpTool {
    pub(crate) async fn describe(&self) -> Result<Description, RunError> {
        let link = self.server.link().await?;
        let tool = self.find(&link.tools)?;
        self.server.unchanged(&link, &tool.name).await?;
        Ok(Description {
            description: tool.description.as_deref().unwrap_or_default().to_owned(),
            input_schema: Value::Object(tool.input_schema.as_ref().clone()),
            output_schema: tool
                .output_schema
                .as_ref()
                .map(|schema| Value::Object(schema.as_ref().clone())),
            trusted_annotations: if self.trusted {
                annotations(tool)
            } else {
                Map::new()
            },
            category: None,
        })
    }

    /// All tools of the server, where neither the manifest nor the server means one of them by the declared tool's name.
    pub(crate) async fn takes_over(&self) -> Result<Option<Vec<String>>, RunError> {
        let link = self.server.link().await?;
        let named = link.tools.iter().any(|tool| tool.name == self.name);
        if self.served_as.is_some() || named {
            return Ok(None);
        }
        Ok(Some(
            link.tools.iter().map(|tool| tool.name.to_string()).collect(),
        ))
    }

    pub(crate) async fn run(
        &self,
        call: &Call<'_>,
        session: Option<SessionId>,
    ) -> Result<RunOutcome, RunError> {
        call.plan.available().map_err(RunError::Sandbox)?;
        let link = self.server.link().await?;
        let tool = self.find(&link.tools)?;
        self.server.unchanged(&link, &tool.name).await?;
        let harmless = self.trusted && annotations(tool).get("readOnlyHint") == Some(&json!(true));
        let ran = self
            .server
            .call(&link, tool.name.to_string(), call, session, harmless)
            .await;
        self.server.tell(&call.connections);
        ran
    }

    /// The tool at the server: by the name the manifest gives, by its own, or the only one there is.
    fn find<'t>(&self, tools: &'t [rmcp::model::Tool]) -> Result<&'t rmcp::model::Tool, RunError> {
        let named = |name: &str| tools.iter().find(|tool| tool.name == name);
        if let Some(name) = &self.served_as {
            return named(name).ok_or_else(|| self.absent(name, tools));
        }
        match (named(&self.name), tools) {
            (Some(tool), _) => Ok(tool),
            (None, [only]) => Ok(only),
            (None, _) => Err(self.absent(&self.name, tools)),
        }
    }

    fn absent(&self, name: &str, tools: &[rmcp::model::Tool]) -> RunError {
        let mut known: Vec<&str> = tools.iter().take(30).map(|tool| tool.name.as_ref()).collect();
        known.sort_unstable();
        RunError::Unavailable(format!(
            "the MCP server `{}` has no tool `{name}`; set `mcp_source.tool_name` to one of: {}",
            self.server.name(),
            known.join(", ")
        ))
    }
}

fn annotations(tool: &rmcp::model::Tool) -> Map<String, Value> {
    match tool.annotations.as_ref().map(serde_json::to_value) {
        Some(Ok(Value::Object(map))) => map,
        Some(_) | None => Map::new(),
    }
}

#[cfg(test)]
mod asks;
#[cfg(test)]
mod tests;
