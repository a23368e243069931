//! Tools of MCP servers (CKP §5.4). Each source has one server, which is started at the first use and shared by its tools.

mod client;
mod http;
mod inbound;
mod listing;
mod offers;
mod reopening;
mod repair;
mod requests;
mod result;
mod server;
mod stdio;
mod taken;
mod throttle;
mod words;

use std::sync::Arc;

use clawk_kernel::ports::{Executor, RunError, RunOutcome, ToolDescription};
use clawk_proto::SessionId;
use serde_json::{Map, json};

pub(crate) use client::{McpClientContext, plan_roots};
pub(crate) use server::{Endpoint, McpServer, McpServerSource, check_admitted};
pub(crate) use taken::tool_names as taken_names;

use crate::call::ExecutorCall;
use listing::{ServedBy, ServedTool};

/// A declared tool with an `mcp_source`.
#[derive(Debug, Clone)]
pub(crate) struct McpTool {
    pub(crate) server: Arc<McpServer>,
    /// The tool's name in the manifest.
    pub(crate) name: String,
    /// The tool's name at the server: `mcp_source.tool_name`; `None`: not given.
    pub(crate) served_as: Option<String>,
    /// Whether the server's annotations are trusted: `trust_annotations` (R13).
    pub(crate) trusted: bool,
}

impl McpTool {
    pub(crate) async fn describe(&self) -> Result<ToolDescription, RunError> {
        let link = self.server.live_session().await?;
        let tool = self.find_tool(&link.tools)?;
        self.server.check_unchanged(&link, &tool.name).await?;
        Ok(ToolDescription {
            description: tool.description.clone(),
            input_schema: tool.input_schema.clone(),
            output_schema: tool.output_schema.clone(),
            trusted_annotations: if self.trusted {
                tool.annotations.clone()
            } else {
                Map::new()
            },
            category: None,
            executor: Executor::Mcp,
        })
    }

    /// The number of tools that the server lists.
    pub(crate) async fn listed_count(&self) -> Result<usize, RunError> {
        Ok(self.server.live_session().await?.tools.len())
    }

    /// The names of all tools of the server, to be taken over. `None` if the manifest or the server has a tool for the declared
    /// name.
    pub(crate) async fn takes_over(&self) -> Result<Option<Vec<String>>, RunError> {
        let link = self.server.live_session().await?;
        let named = link.tools.iter().any(|tool| tool.name == self.name);
        if self.served_as.is_some() || named {
            return Ok(None);
        }
        Ok(Some(link.tools.iter().map(|tool| tool.name.clone()).collect()))
    }

    pub(crate) async fn run(
        &self,
        call: &ExecutorCall<'_>,
        session: Option<SessionId>,
    ) -> Result<RunOutcome, RunError> {
        call.plan.check_available().map_err(RunError::Sandbox)?;
        let link = self.server.live_session().await?;
        let tool = self.find_tool(&link.tools)?;
        self.server.check_unchanged(&link, &tool.name).await?;
        let harmless = self.trusted && tool.annotations.get("readOnlyHint") == Some(&json!(true));
        let ran = self.server.call(&link, tool, call, session, harmless).await;
        self.server.report_connections(&call.connections);
        ran
    }

    /// Finds the tool at the server: by the name in the manifest, by its own name, or the only one.
    fn find_tool<'t>(&self, tools: &'t [ServedTool]) -> Result<&'t ServedTool, RunError> {
        let named = |name: &str| tools.iter().find(|tool| tool.name == name);
        if let Some(name) = &self.served_as {
            return named(name).ok_or_else(|| self.absent_tool_error(name, tools));
        }
        let mut own = tools.iter().filter(|tool| tool.by == ServedBy::Call);
        match (named(&self.name), own.next(), own.next()) {
            (Some(tool), _, _) => Ok(tool),
            (None, Some(only), None) => Ok(only),
            (None, _, _) => Err(self.absent_tool_error(&self.name, tools)),
        }
    }

    fn absent_tool_error(&self, name: &str, tools: &[ServedTool]) -> RunError {
        let mut known: Vec<String> = tools
            .iter()
            .take(30)
            .map(|tool| listing::display_name(&tool.name))
            .collect();
        known.sort_unstable();
        RunError::Unavailable(format!(
            "the MCP server `{}` has no tool `{name}`; set `mcp_source.tool_name` to one of: {}",
            self.server.name(),
            known.join(", ")
        ))
    }
}

#[cfg(test)]
mod asks;
#[cfg(test)]
mod shapes;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod tests;
