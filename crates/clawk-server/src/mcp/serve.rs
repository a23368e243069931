//! One MCP session: what it offers, and the handler of each request.

use std::borrow::Cow;
use std::sync::Arc;

use clawk_kernel::{EntryPoint, Kernel, SessionHandle};
use clawk_proto::SessionId;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, GetPromptRequestParams,
    GetPromptResponse, Implementation, InitializeResult, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, SubscribeRequestParams, UnsubscribeRequestParams,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::subscribe::McpSubscriptions;
use super::{ask, call, complete, prompts, resources};
use crate::access::{ClientRights, Scope};
use crate::host::AgentHost;
use crate::http::TraceReader;
use crate::http::auth::HttpPrincipal;

/// One client's session. Its rights are looked up with each request.
#[derive(Debug, Clone)]
pub(super) struct McpServerSession(Arc<McpServerSessionInner>);

#[derive(Debug)]
struct McpServerSessionInner {
    host: AgentHost,
    traces: Arc<dyn TraceReader>,
    /// The launcher's rights. `None` at `/mcp`, where each request brings its own rights.
    fixed: Option<ClientRights>,
    /// The sessions and chains that this client has opened.
    opened: Mutex<McpServerSessionState>,
    subscriptions: McpSubscriptions,
}

/// The sessions and chains that this client has opened.
#[derive(Debug, Default)]
struct McpServerSessionState {
    /// The session that records its tool calls.
    calls: Option<SessionHandle>,
    /// The chains that the client may read.
    chains: Vec<SessionId>,
}

/// The context of a request.
#[derive(Debug)]
pub(super) struct McpRequestContext {
    pub(super) kernel: Kernel,
    pub(super) rights: ClientRights,
    /// `clientInfo.name`, for the record.
    pub(super) client: String,
}

impl McpRequestContext {
    /// Checks that the client has a scope.
    ///
    /// # Errors
    /// The client's token lacks this scope.
    pub(super) fn require_scope(&self, scope: Scope) -> Result<(), ErrorData> {
        if self.rights.has_scope(scope) {
            return Ok(());
        }
        let message = format!("this needs the scope `{}`", scope.name());
        Err(ErrorData::invalid_request(
            message,
            Some(json!({"reason": "scope_missing", "scope": scope.name()})),
        ))
    }

    /// The entry point of the client's messages and calls.
    pub(super) fn entry_point(&self) -> EntryPoint {
        EntryPoint::Rpc {
            client: format!("mcp:{}", self.client),
            role: self.rights.role(),
        }
    }
}

/// Parses a protocol value from JSON.
pub(super) fn from_json<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value).map_err(|error| {
        tracing::error!(%error, "an answer does not have MCP's shape");
        ErrorData::internal_error("the answer could not be made", None)
    })
}

impl McpServerSession {
    pub(super) fn new(host: AgentHost, traces: Arc<dyn TraceReader>, fixed: Option<ClientRights>) -> Self {
        Self(Arc::new(McpServerSessionInner {
            host,
            traces,
            fixed,
            opened: Mutex::default(),
            subscriptions: McpSubscriptions::default(),
        }))
    }

    pub(super) fn host(&self) -> &AgentHost {
        &self.0.host
    }

    pub(super) fn traces(&self) -> &dyn TraceReader {
        &*self.0.traces
    }

    pub(super) fn shared_traces(&self) -> Arc<dyn TraceReader> {
        Arc::clone(&self.0.traces)
    }

    /// Builds the context of a request: the client and the agent.
    fn request_context(&self, context: &RequestContext<RoleServer>) -> Result<McpRequestContext, ErrorData> {
        let parts = context.extensions.get::<http::request::Parts>();
        let principal = parts.and_then(|parts| parts.extensions.get::<HttpPrincipal>());
        let rights = match (&self.0.fixed, principal) {
            (Some(fixed), _) => fixed.clone(),
            (None, Some(principal)) => principal.rights(),
            (None, None) => return Err(ErrorData::invalid_request("nobody knows who asks", None)),
        };
        let running = self.0.host.current_kernel().get();
        let kernel = running.ok_or_else(|| ErrorData::internal_error("no agent runs yet", None))?;
        let info = context.peer.peer_info();
        let named = info.map_or_else(|| rights.name().to_owned(), |info| info.client_info.name.clone());
        let client = rights.client_name(&named);
        Ok(McpRequestContext {
            kernel,
            rights,
            client: client.chars().take(64).collect(),
        })
    }

    /// The session of this client's tool calls. The first call opens it.
    pub(super) async fn call_session(&self, asking: &McpRequestContext) -> Result<SessionId, ErrorData> {
        let mut opened = self.0.opened.lock().await;
        if let Some(session) = &opened.calls {
            return Ok(session.id);
        }
        let session = asking
            .kernel
            .open_session(asking.entry_point())
            .await
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let id = session.id;
        opened.calls = Some(session);
        opened.chains.push(id);
        Ok(id)
    }

    /// Adds a conversation of this client to its chains.
    pub(super) async fn note_conversation(&self, session: SessionId) {
        let mut opened = self.0.opened.lock().await;
        if !opened.chains.contains(&session) {
            opened.chains.push(session);
        }
    }

    /// The chains of this client.
    pub(super) async fn client_chains(&self) -> Vec<SessionId> {
        self.0.opened.lock().await.chains.clone()
    }
}

impl Drop for McpServerSessionInner {
    /// The client is gone, so the session of its calls ends too.
    fn drop(&mut self) {
        let opened = std::mem::take(self.opened.get_mut());
        if let (Some(session), Some(kernel)) = (opened.calls, self.host.current_kernel().get()) {
            self.host.spawn_detached(async move {
                kernel.end_session(session.id, "completed").await;
            });
        }
    }
}

impl ServerHandler for McpServerSession {
    fn get_info(&self) -> InitializeResult {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_prompts()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_completions()
            .build();
        let mut info = InitializeResult::new(capabilities);
        if let Some(kernel) = self.0.host.current_kernel().get() {
            let agent = kernel.agent_info();
            info.server_info = Implementation::new(agent.name, agent.version);
        }
        info
    }

    /// Only the protocol revisions that have sessions: in other ones a server can't send requests while a call runs.
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::known_up_to(&ProtocolVersion::V_2025_11_25))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let asking = self.request_context(&context)?;
        let mut tools = Vec::new();
        if asking.rights.has_scope(Scope::Message) {
            tools.push(ask::describe_tool(&asking.kernel));
        }
        tools.extend(call::visible_tools(&asking).await);
        from_json(json!({"tools": tools}))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let asking = self.request_context(&context)?;
        let arguments = request.arguments.unwrap_or_default();
        let result = match &*request.name {
            ask::NAME => ask::ask_agent(self, &asking, arguments, &context).await?,
            name => call::call(self, &asking, name, arguments, &context).await?,
        };
        Ok(result.into())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        prompts::list_prompts(&self.request_context(&context)?)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        prompts::get(&self.request_context(&context)?, request)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list_resources(self, &self.request_context(&context)?).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        resources::list_templates(&self.request_context(&context)?)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(self, &self.request_context(&context)?, &request.uri).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let asking = self.request_context(&context)?;
        let subscriptions = &self.0.subscriptions;
        subscriptions
            .add_subscription(self, &asking, &request.uri, context.peer.clone())
            .await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.0.subscriptions.remove(&request.uri);
        Ok(())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        complete::complete_argument(self, &self.request_context(&context)?, request).await
    }
}
