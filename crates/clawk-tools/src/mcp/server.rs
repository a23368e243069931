//! One MCP server: its process or endpoint, its session, and the limit on restarts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_egress::{EgressClient, Url};
use clawk_kernel::ports::{ConnectionCollector, RunError, RunOutcome, SamplingHandler};
use clawk_plan::{NetworkMode, ObtainedEnforcement, Plan, Request, SandboxRefusal};
use clawk_proto::SessionId;
use clawk_sandbox::{Launcher, SandboxedService, Spec};
use http::HeaderMap;
use rmcp::model::{CallToolRequestParams, CallToolResponse, ClientRequest, PingRequest};
use rmcp::service::{ClientInitializeError, Peer, RoleClient, RunningService, ServiceError, serve_client};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::client::{Handler, McpClientContext};
use super::http::http_transport;
use super::inbound::raw_call;
use super::listing::{ServedBy, ServedTool};
use super::requests::{self, RequestError};
use super::result::outcome_from_result;
use super::stdio::LineTransport;
use super::throttle::ThrottledReader;
use super::words::{absent_program, last_lines, last_words, starter_hint};
use crate::builtin::launch_error;
use crate::call::{ExecutorCall, truncate_text};
use crate::egress::WayOut;
use crate::oauth::Tokens;

/// The time limit for start, handshake and `tools/list` together.
const START: Duration = Duration::from_secs(60);

/// The time limit for the handshake alone. After it, the error includes the process's output.
const HANDSHAKE: Duration = Duration::from_secs(50);

/// The maximum number of restarts within [`RESTART_WINDOW`], after the first start.
const MAX_RESTARTS: usize = 3;
const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// After a call timed out: how long the server may take to answer a ping before it is ended.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// The maximum number of servers that are pinged at the same time.
const MAX_WATCHES: usize = 8;

/// The maximum size of a server's message, in bytes. A longer one is dropped, and its request gets an error.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// How many bytes of a result's text are kept if the sandbox sets no `max_output_bytes`.
const MAX_RESULT_BYTES: usize = 4 << 20;

/// How to reach the server.
pub(crate) enum McpServerSource {
    /// A program that speaks on its standard streams.
    Program { launcher: Launcher, spec: Box<Spec> },
    /// A Streamable HTTP endpoint.
    Endpoint(Box<Endpoint>),
}

/// A Streamable HTTP endpoint and its settings.
pub(crate) struct Endpoint {
    pub(crate) client: EgressClient,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// The plan whose network rules apply.
    pub(crate) plan: Arc<Plan>,
    /// Tokens of `clawk mcp login`.
    pub(crate) tokens: Option<Arc<Tokens>>,
}

/// Checks that the plan's network rules admit the endpoint.
pub(crate) fn check_admitted(url: &Url, plan: &Plan) -> Result<(), SandboxRefusal> {
    plan.preflight(&Request::Url {
        host: url.host_str().unwrap_or_default().trim_matches(['[', ']']),
        port: url.port_or_known_default().unwrap_or(0),
    })
}

/// A server's source, and its live session if there is one.
pub(crate) struct McpServer {
    /// The source as in the manifest, without arguments and queries, because they may contain secrets.
    name: String,
    source: McpServerSource,
    /// The network access of the server's process. Its connections are reported with the call that was running.
    way: WayOut,
    state: Mutex<State>,
    /// The requests that the server may send to the client.
    desk: Arc<McpClientContext>,
    /// Tasks that ping servers after a timeout. They end when this is dropped.
    watch: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct State {
    live: Option<RunningMcpSession>,
    /// The tools as first listed. Calls must match these descriptions.
    pinned: BTreeMap<String, ServedTool>,
    /// The times of starts within the window.
    starts: VecDeque<Instant>,
}

struct RunningMcpSession {
    session: RunningService<RoleClient, Handler>,
    link: Arc<McpClientSession>,
}

/// A session, shared by the calls that use it.
pub(crate) struct McpClientSession {
    pub(super) peer: Peer<RoleClient>,
    pub(super) tools: Vec<ServedTool>,
    /// Tools that differ from their first description.
    changed: Mutex<BTreeSet<String>>,
    service: Option<SandboxedService>,
    obtained: ObtainedEnforcement,
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.name)
    }
}

impl McpServer {
    /// How the server is reached.
    pub(crate) const fn source(&self) -> &McpServerSource {
        &self.source
    }
}

impl McpServer {
    /// Sets how this server's model requests are answered.
    pub(crate) fn set_sampler(&self, sampler: SamplingHandler) {
        self.desk.set_sampler(sampler);
    }

    pub(crate) fn new(
        name: String,
        source: McpServerSource,
        way: WayOut,
        desk: Arc<McpClientContext>,
    ) -> Self {
        Self {
            name,
            source,
            way,
            desk,
            state: Mutex::default(),
            watch: Mutex::default(),
        }
    }

    /// Reports the connections of the server's process since the last report.
    pub(crate) fn report_connections(&self, connections: &ConnectionCollector) {
        self.way.report_connections(connections);
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The live session. Starts the server if there is none or it has died.
    pub(crate) async fn live_session(&self) -> Result<Arc<McpClientSession>, RunError> {
        let mut state = self.state.lock().await;
        if let Some(live) = &state.live {
            if live.link.is_alive() {
                let link = live.link.clone();
                if self.desk.took_change() {
                    self.look_again(&link, &mut state).await?;
                }
                return Ok(link);
            }
            tracing::warn!(target: clawk_kernel::OPERATOR, server = %self.name, "the MCP server ended; it is started again");
        }
        state.live = None;
        state.admit_start(&self.name)?;
        let live = match tokio::time::timeout(START, self.start_session()).await {
            Ok(started) => started?,
            Err(_elapsed) => {
                let text = format!(
                    "the MCP server `{}` did not answer within {} s",
                    self.name,
                    START.as_secs()
                );
                return Err(RunError::Unavailable(text));
            }
        };
        let link = live.link.clone();
        let _seen = self.desk.took_change();
        state.live = Some(live);
        *link.changed.lock().await = state.compare_tools(&link.tools);
        Ok(link)
    }

    /// Lists the tools again after the server said that they changed, and notes those that differ.
    async fn look_again(&self, link: &McpClientSession, state: &mut State) -> Result<(), RunError> {
        let listed = tokio::time::timeout(START, requests::list_tools(&link.peer)).await;
        let tools = match listed {
            Ok(Ok((tools, _notes))) => tools,
            Ok(Err(reason)) => return Err(self.no_list(&reason.to_string())),
            Err(_elapsed) => return Err(self.no_list("it did not answer in time")),
        };
        let changed = state.compare_tools(&tools);
        if !changed.is_empty() {
            tracing::warn!(target: clawk_kernel::OPERATOR, server = %self.name, tools = ?changed, "the MCP server changed tools; they are not called any more");
        }
        *link.changed.lock().await = changed;
        Ok(())
    }

    fn no_list(&self, reason: &str) -> RunError {
        RunError::Unavailable(format!(
            "the MCP server `{}` gave no list of its tools: {reason}",
            self.name
        ))
    }

    /// Checks that a tool is still as first described.
    pub(crate) async fn check_unchanged(&self, link: &McpClientSession, tool: &str) -> Result<(), RunError> {
        if link.changed.lock().await.contains(tool) {
            return Err(RunError::Unavailable(format!(
                "the MCP server `{}` changed its tool `{tool}` after it was described; nothing was called. Look at the change, then start the agent again",
                self.name
            )));
        }
        Ok(())
    }

    async fn start_session(&self) -> Result<RunningMcpSession, RunError> {
        let info = Handler(Arc::clone(&self.desk));
        let (session, service, obtained) = match &self.source {
            McpServerSource::Program { launcher, spec } => {
                let mut service = launcher.start_service(spec).await.map_err(launch_error)?;
                let (Some(stdout), Some(stdin)) = (service.stdout.take(), service.stdin.take()) else {
                    return Err(RunError::Unavailable(
                        "the MCP server has no standard streams".to_owned(),
                    ));
                };
                let transport = LineTransport::new(ThrottledReader::new(stdout), stdin, MAX_MESSAGE_BYTES);
                let session = match tokio::time::timeout(HANDSHAKE, serve_client(info, transport)).await {
                    Ok(Ok(session)) => session,
                    Ok(Err(error)) => return Err(self.no_session(&error, Some(&service)).await),
                    Err(_elapsed) => return Err(self.too_late(&service)),
                };
                let obtained = service.obtained_enforcement().clone();
                (session, Some(service), obtained)
            }
            McpServerSource::Endpoint(endpoint) => {
                let Endpoint {
                    client,
                    url,
                    headers,
                    plan,
                    tokens,
                } = endpoint.as_ref();
                check_admitted(url, plan).map_err(RunError::Sandbox)?;
                let transport = http_transport(client.clone(), url, headers, tokens.clone());
                let session = match serve_client(info, transport).await {
                    Ok(session) => session,
                    Err(error) => return Err(self.no_session(&error, None).await),
                };
                (session, None, ObtainedEnforcement::for_remote("network-rules"))
            }
        };
        let peer = session.peer().clone();
        let (tools, notes) = match requests::list_all(&peer).await {
            Ok(listed) => listed,
            Err(reason) => {
                let said = last_words(service.as_ref()).await;
                return Err(self.no_list(&format!("{reason}{said}")));
            }
        };
        for note in notes.iter().take(20) {
            tracing::warn!(target: clawk_kernel::OPERATOR, server = %self.name, "the MCP server's list: {note}");
        }
        Ok(RunningMcpSession {
            session,
            link: Arc::new(McpClientSession {
                peer,
                tools,
                changed: Mutex::default(),
                service,
                obtained,
            }),
        })
    }

    /// The reason why the server's program can't start, as far as it can be seen without starting it.
    pub(crate) fn start_fault(&self) -> Option<String> {
        let McpServerSource::Program { spec, .. } = &self.source else {
            return None;
        };
        let why = absent_program(spec).or_else(|| {
            let closed = spec.plan.network().mode == NetworkMode::Deny;
            starter_hint(spec).filter(|_| closed)
        })?;
        Some(format!("the MCP server `{}` can't start{why}", self.name))
    }

    /// The error for a server that runs but does not answer the protocol in time.
    fn too_late(&self, service: &SandboxedService) -> RunError {
        let words = last_lines(&service.stderr_tail());
        let said = if words.is_empty() {
            String::new()
        } else {
            format!("; its last words: {words}")
        };
        RunError::Unavailable(format!(
            "the MCP server `{}` did not answer within {} s{said}{}",
            self.name,
            HANDSHAKE.as_secs(),
            self.start_hint()
        ))
    }

    /// A hint about missing permissions, for a program that downloads its server at start.
    fn start_hint(&self) -> String {
        match &self.source {
            McpServerSource::Program { spec, .. } => starter_hint(spec).unwrap_or_default(),
            McpServerSource::Endpoint(_) => String::new(),
        }
    }

    async fn no_session(
        &self,
        error: &ClientInitializeError,
        service: Option<&SandboxedService>,
    ) -> RunError {
        // The transport's own error text contains type names.
        let words = match error {
            ClientInitializeError::TransportError { error, .. } => error.error.to_string(),
            other => other.to_string(),
        };
        let said = last_words(service).await;
        RunError::Unavailable(format!(
            "no session with the MCP server `{}`: {words}{said}{}",
            self.name,
            self.start_hint()
        ))
    }

    /// Calls a tool once. If this future is dropped, the call is cancelled at the server.
    pub(super) async fn call(
        &self,
        link: &Arc<McpClientSession>,
        tool: &ServedTool,
        call: &ExecutorCall<'_>,
        session: Option<SessionId>,
        harmless: bool,
    ) -> Result<RunOutcome, RunError> {
        let _here = self.desk.enter_call(session);
        let limit = kept_bytes(call.plan);
        let asked = async {
            match tool.by {
                ServedBy::Call => {
                    let params =
                        CallToolRequestParams::new(tool.name.clone()).with_arguments(call.arguments.clone());
                    call_raw(&link.peer, params).await
                }
                ServedBy::Resources => requests::read_resource(&link.peer, call.arguments).await,
                ServedBy::Prompts => requests::get_prompt(&link.peer, call.arguments).await,
            }
        };
        match tokio::time::timeout(call.timeout(), asked).await {
            Err(_elapsed) => {
                self.look_after(Arc::clone(link)).await;
                Err(RunError::Timeout {
                    timeout_ms: call.timeout_ms,
                    obtained: link.obtained.clone(),
                })
            }
            Ok(Ok(result)) => Ok(outcome_from_result(&result, limit, link.obtained.clone())),
            Ok(Err(RequestError::WantsInput)) => Err(RunError::Unknown(format!(
                "the MCP server `{}` asked for more input, which clawk does not give",
                self.name
            ))),
            Ok(Err(RequestError::Service(ServiceError::McpError(error)))) => {
                let said = truncate_text(&error.message, 4 << 10).0;
                // Some libraries put the error code into the text already.
                let text = match said.strip_prefix("MCP error ") {
                    Some(_) => said.to_owned(),
                    None => format!("MCP error {}: {said}", error.code.0),
                };
                Ok(RunOutcome {
                    obtained: link.obtained.clone(),
                    ..crate::call::failure_outcome(text)
                })
            }
            Ok(Err(RequestError::Service(error))) => {
                let words = match &error {
                    ServiceError::TransportSend(error) => error.error.to_string(),
                    other => other.to_string().to_lowercase(),
                };
                let said = last_words(link.service.as_ref()).await;
                let text = format!(
                    "the MCP server `{}` was lost during the call: {words}{said}",
                    self.name
                );
                Err(if harmless {
                    RunError::Unavailable(text)
                } else {
                    RunError::Unknown(text)
                })
            }
        }
    }

    /// Calls a tool once, for no session, within this time. Returns the raw result.
    pub(crate) async fn call_tool(
        &self,
        link: &Arc<McpClientSession>,
        tool: &str,
        arguments: Map<String, Value>,
        limit: Duration,
    ) -> Result<Value, String> {
        let _here = self.desk.enter_call(None);
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let why = match tokio::time::timeout(limit, call_raw(&link.peer, params)).await {
            Err(_elapsed) => {
                self.look_after(Arc::clone(link)).await;
                format!("no answer within {} ms", limit.as_millis())
            }
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(error)) => {
                let said = last_words(link.service.as_ref()).await;
                format!("{}{said}", truncate_text(&error.to_string(), 300).0)
            }
        };
        Err(format!("the MCP server `{}`, `{tool}`: {why}", self.name))
    }

    /// After a timeout: pings the server. If it does not answer, it is ended with all its processes, so that the abandoned call
    /// can't go on unseen. If it answers, its other calls continue. The next call starts an ended server again.
    async fn look_after(&self, link: Arc<McpClientSession>) {
        let mut watch = self.watch.lock().await;
        while watch.try_join_next().is_some() {}
        if watch.len() >= MAX_WATCHES {
            return;
        }
        let name = self.name.clone();
        watch.spawn(async move {
            let ping = ClientRequest::PingRequest(PingRequest::default());
            let answered = tokio::time::timeout(SIGN_OF_LIFE, link.peer.send_request(ping)).await;
            if answered.is_err()
                && let Some(service) = &link.service
            {
                tracing::warn!(target: clawk_kernel::OPERATOR, server = %name, "the MCP server gives no sign of life after a timeout; it is ended");
                service.stop().await;
            }
        });
    }

    /// Ends the session and its process.
    pub(crate) async fn close(&self) {
        let Some(live) = self.state.lock().await.live.take() else {
            return;
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), live.session.cancel()).await; // silent-ok: it is ended below
        if let Some(service) = &live.link.service {
            service.stop().await;
        }
    }
}

impl State {
    /// The tools that are gone or differ from their first description. New tools are recorded as first described now.
    fn compare_tools(&mut self, tools: &[ServedTool]) -> BTreeSet<String> {
        let now = |name: &str| tools.iter().find(|tool| tool.name == name);
        let changed = self
            .pinned
            .iter()
            .filter(|(name, tool)| now(name) != Some(*tool))
            .map(|(name, _)| name.clone())
            .collect();
        // Lists of resources and prompts may change at any time.
        for tool in tools.iter().filter(|tool| tool.by == ServedBy::Call) {
            self.pinned
                .entry(tool.name.clone())
                .or_insert_with(|| tool.clone());
        }
        changed
    }

    /// Limits restarts: a server that dies at once is not restarted forever.
    fn admit_start(&mut self, name: &str) -> Result<(), RunError> {
        let now = Instant::now();
        while self
            .starts
            .front()
            .is_some_and(|start| now.duration_since(*start) > RESTART_WINDOW)
        {
            self.starts.pop_front();
        }
        if self.starts.len() > MAX_RESTARTS {
            return Err(RunError::Unavailable(format!(
                "the MCP server `{name}` was started {} times within a minute and is left alone for the rest of it; run it by hand to see why it ends",
                self.starts.len()
            )));
        }
        self.starts.push_back(now);
        Ok(())
    }
}

impl McpClientSession {
    /// Whether the server has a tool with this name.
    pub(crate) fn has_tool(&self, tool: &str) -> bool {
        self.tools.iter().any(|one| one.name == tool)
    }

    fn is_alive(&self) -> bool {
        !self.peer.is_transport_closed()
            && self
                .service
                .as_ref()
                .is_none_or(|service| service.service_end().is_none())
    }
}

/// Calls a tool once, raw. If this future is dropped, the call is cancelled at the server.
async fn call_raw(peer: &Peer<RoleClient>, params: CallToolRequestParams) -> Result<Value, RequestError> {
    let raw = match peer.call_tool_once(params).await? {
        CallToolResponse::Complete(result) => raw_call(result),
        _ => return Err(RequestError::WantsInput),
    };
    if raw.get("resultType") == Some(&json!("input_required")) {
        return Err(RequestError::WantsInput);
    }
    Ok(raw)
}

/// How many bytes of a result's text are kept: `max_output_bytes` if the sandbox sets it, else [`MAX_RESULT_BYTES`]. The default
/// for the output of processes is smaller, because exceeding it ends the process; a result only has to be stored.
fn kept_bytes(plan: &Plan) -> usize {
    let set = plan.limits().max_output_bytes;
    if set == clawk_plan::Limits::default().max_output_bytes {
        return MAX_RESULT_BYTES;
    }
    usize::try_from(set)
        .unwrap_or(MAX_MESSAGE_BYTES)
        .min(MAX_MESSAGE_BYTES)
}
