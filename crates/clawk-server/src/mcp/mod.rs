//! The agent as an MCP server, on standard input (`clawk serve --mcp`) and at `/mcp`. Its tools are `ask` and the declared tools;
//! its skills are prompts; its traces and memory are resources; its open questions are elicitations. Every tool call takes the one
//! call path.

mod ask;
mod call;
mod complete;
mod owners;
mod prompts;
mod questions;
mod resources;
mod serve;
mod subscribe;

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::{Method, StatusCode};
use rmcp::ServiceExt as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::access::ClientRights;
use crate::host::AgentHost;
use crate::http::auth::{HttpPrincipal, StreamEndSignal};
use crate::http::{HttpApp, TraceReader};
use owners::McpSessionOwners;
use serve::McpServerSession;

/// The path of the endpoint.
pub(crate) const PATH: &str = "/mcp";
/// Paths whose handlers may wait for a whole turn.
pub(crate) const PATIENT: &[&str] = &[PATH];

/// The route of the endpoint. A session ends when the tokens in force at its start are replaced.
pub(crate) fn routes() -> Router<HttpApp> {
    // The door is created with the first request, which brings the app.
    let kept = Arc::new(Mutex::new(None::<Arc<McpDoor>>));
    Router::new().route(
        PATH,
        axum::routing::any(move |State(app): State<HttpApp>, request: Request| {
            let door = {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let fits = kept.take().filter(|door| !door.over.is_cancelled());
                Arc::clone(kept.insert(fits.unwrap_or_else(|| McpDoor::new(&app))))
            };
            async move { door.handle_request(request).await }
        }),
    )
}

type McpHttpService = StreamableHttpService<McpServerSession, LocalSessionManager>;

/// The `/mcp` endpoint with its sessions.
struct McpDoor {
    service: McpHttpService,
    owners: McpSessionOwners,
    /// Ends all sessions: the server is stopping, or the tokens were replaced.
    over: CancellationToken,
}

impl McpDoor {
    fn new(app: &HttpApp) -> Arc<Self> {
        let sessions = Arc::new(LocalSessionManager::default());
        let mut config = StreamableHttpServerConfig::default();
        // The listener's guard has already checked Host and Origin against the configuration.
        config = config.disable_allowed_hosts().disable_allowed_origins();
        config = config.with_max_request_body_bytes(app.options.max_body_bytes);
        let over = CancellationToken::new();
        config = config.with_cancellation_token(over.clone());
        let (ending, ended) = (StreamEndSignal::for_app(app), over.clone());
        app.host.spawn_detached(async move {
            ending.wait_end().await;
            ended.cancel();
        });
        let (host, traces) = (app.host.clone(), Arc::clone(&app.traces));
        let make = move || Ok(McpServerSession::new(host.clone(), Arc::clone(&traces), None));
        Arc::new(Self {
            service: StreamableHttpService::new(make, Arc::clone(&sessions), config),
            owners: McpSessionOwners::new(sessions),
            over,
        })
    }

    async fn handle_request(&self, request: Request) -> Response {
        let principal = request.extensions().get::<HttpPrincipal>().cloned();
        match self
            .owners
            .admit_request(principal.as_ref(), request.headers())
            .await
        {
            Err(refusal) => refusal.into_response(),
            Ok(claim) => {
                let ends = (request.method() == Method::DELETE).then(|| request.headers().clone());
                let response = self.service.handle(request).await;
                if let Some(headers) = ends.filter(|_| response.status().is_success()) {
                    self.owners.forget_session(&headers);
                    // Clients accept 204 as the end of a session; some of them treat 202 as a failure.
                    return StatusCode::NO_CONTENT.into_response();
                }
                self.owners.claim_session(claim, response.headers());
                response.map(axum::body::Body::new)
            }
        }
    }
}

/// Serves MCP to the launcher until its input ends or `cancel` fires.
pub async fn serve_mcp<R, W>(
    input: R,
    output: W,
    host: AgentHost,
    traces: Arc<dyn TraceReader>,
    rights: ClientRights,
    cancel: CancellationToken,
) where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let served = McpServerSession::new(host, traces, Some(rights));
    let running = match served.serve_with_ct((input, output), cancel).await {
        Ok(running) => running,
        Err(error) => {
            tracing::warn!(%error, "the MCP client went before it was initialized");
            return;
        }
    };
    match running.waiting().await {
        Ok(reason) => tracing::info!(?reason, "the MCP client's connection has ended"),
        Err(error) => tracing::error!(%error, "the MCP client's connection broke"),
    }
}
