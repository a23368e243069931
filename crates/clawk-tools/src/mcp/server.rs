//! One MCP server: its process or endpoint, its session, and how often it may be restarted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_egress::{Client, Url};
use clawk_kernel::ports::{Connections, RunError, RunOutcome, Sampler};
use clawk_plan::{Obtained, Plan, Refusal, Request};
use clawk_proto::SessionId;
use clawk_sandbox::{Launcher, Service, Spec};
use http::HeaderMap;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientRequest, PaginatedRequestParams,
    PingRequest, Tool,
};
use rmcp::service::{ClientInitializeError, Peer, RoleClient, RunningService, ServiceError, serve_client};
use rmcp::transport::async_rw::AsyncRwTransport;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::client::{Desk, Handler};
use super::http::transport;
use super::result::outcome;
use super::throttle::Throttle;
use crate::builtin::launch_error;
use crate::call::{Call, cut};
use crate::egress::WayOut;
use crate::oauth::Tokens;

/// How long start, handshake and `tools/list` may take together.
const START: Duration = Duration::from_secs(60);

/// Restarts within [`RESTART_WINDOW`], after the first start.
const MAX_RESTARTS: usize = 3;
const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// How long a server has to answer a ping after one of its calls ran out of time, before it is ended.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// Servers looked after at a time.
const MAX_WATCHES: usize = 8;

/// Longest message of a server, bytes; a longer line is dropped.
const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// Bounds of a server's `tools/list`.
const MAX_PAGES: usize = 100;
const MAX_TOOLS: usize = 2_000;
const MAX_LIST_BYTES: usize = 8 << 20;

/// Where the server is.
pub(crate) enum Source {
    /// A program on its standard streams.
    Program { launcher: Launcher, spec: Box<Spec> },
    /// A Streamable HTTP endpoint.
    Endpoint(Box<Endpoint>),
}

/// How an endpoint is reached.
pub(crate) struct Endpoint {
    pub(crate) client: Client,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// Whose network rules hold for it.
    pub(crate) plan: Arc<Plan>,
    /// What somebody agreed to for it.
    pub(crate) tokens: Option<Arc<Tokens>>,
}

/// The plan's network admits the endpoint.
pub(crate) fn admitted(url: &Url, plan: &Plan) -> Result<(), Refusal> {
    plan.preflight(&Request::Url {
        host: url.host_str().unwrap_or_default().trim_matches(['[', ']']),
        port: url.port_or_known_default().unwrap_or(0),
    })
}

/// A source, and its live session if it has one.
pub(crate) struct Server {
    /// The source as the manifest gives it, without arguments and queries: they may hold secrets.
    name: String,
    source: Source,
    /// What a server's process reaches, told with the call during which it did.
    way: WayOut,
    state: Mutex<State>,
    /// What it may ask of us.
    desk: Arc<Desk>,
    /// Looks after servers whose call ran out of time; ended with this.
    watch: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    /// Its tools as they were told first: what was described then is what is called.
    pinned: BTreeMap<String, Tool>,
    /// When it was started, within the window.
    starts: VecDeque<Instant>,
}

struct Live {
    session: RunningService<RoleClient, Handler>,
    link: Arc<Link>,
}

/// A session, shared by the calls that use it.
pub(crate) struct Link {
    peer: Peer<RoleClient>,
    pub(crate) tools: Vec<Tool>,
    /// Tools that are not what they were when they were told first.
    changed: Mutex<BTreeSet<String>>,
    service: Option<Service>,
    obtained: Obtained,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.name)
    }
}

impl Server {
    /// Where it is.
    pub(crate) const fn source(&self) -> &Source {
        &self.source
    }
}

impl Server {
    /// How this server's questions reach a model.
    pub(crate) fn models(&self, sampler: Sampler) {
        self.desk.models(sampler);
    }

    pub(crate) fn new(name: String, source: Source, way: WayOut, desk: Arc<Desk>) -> Self {
        Self {
            name,
            source,
            way,
            desk,
            state: Mutex::default(),
            watch: Mutex::default(),
        }
    }

    /// Tells what the server's process reached since it was asked last.
    pub(crate) fn tell(&self, connections: &Connections) {
        self.way.tell(connections);
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The live session; starts the server when there is none, or it died.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, RunError> {
        let mut state = self.state.lock().await;
        if let Some(live) = &state.live {
            if live.link.lives() {
                let link = live.link.clone();
                if self.desk.took_change() {
                    self.look_again(&link, &mut state).await?;
                }
                return Ok(link);
            }
            tracing::warn!(server = %self.name, "the MCP server ended; it is started again");
        }
        state.live = None;
        state.admit_start(&self.name)?;
        let live = match tokio::time::timeout(START, self.start()).await {
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
        *link.changed.lock().await = state.compare(&link.tools);
        Ok(link)
    }

    /// The server said that its tools changed: which of them are not what they were.
    async fn look_again(&self, link: &Link, state: &mut State) -> Result<(), RunError> {
        let listed = tokio::time::timeout(START, list(&link.peer)).await;
        let tools = match listed {
            Ok(Ok(tools)) => tools,
            Ok(Err(reason)) => return Err(self.no_list(&reason)),
            Err(_elapsed) => return Err(self.no_list("it did not answer in time")),
        };
        let changed = state.compare(&tools);
        if !changed.is_empty() {
            tracing::warn!(server = %self.name, tools = ?changed, "the MCP server changed tools; they are not called any more");
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

    /// Nothing was changed behind what was described.
    pub(crate) async fn unchanged(&self, link: &Link, tool: &str) -> Result<(), RunError> {
        if link.changed.lock().await.contains(tool) {
            return Err(RunError::Unavailable(format!(
                "the MCP server `{}` changed its tool `{tool}` after it was described; nothing was called. Look at the change, then start the agent again",
                self.name
            )));
        }
        Ok(())
    }

    async fn start(&self) -> Result<Live, RunError> {
        let info = Handler(Arc::clone(&self.desk));
        let (session, service, obtained) = match &self.source {
            Source::Program { launcher, spec } => {
                let mut service = launcher.serve(spec).await.map_err(launch_error)?;
                let (Some(stdout), Some(stdin)) = (service.stdout.take(), service.stdin.take()) else {
                    return Err(RunError::Unavailable(
                        "the MCP server has no standard streams".to_owned(),
                    ));
                };
                let transport = AsyncRwTransport::new_client(Throttle::new(stdout), stdin)
                    .with_max_line_length(MAX_MESSAGE_BYTES);
                let session = match serve_client(info, transport).await {
                    Ok(session) => session,
                    Err(error) => return Err(self.no_session(&error, Some(&service)).await),
                };
                let obtained = service.obtained().clone();
                (session, Some(service), obtained)
            }
            Source::Endpoint(endpoint) => {
                let Endpoint {
                    client,
                    url,
                    headers,
                    plan,
                    tokens,
                } = endpoint.as_ref();
                admitted(url, plan).map_err(RunError::Sandbox)?;
                let transport = transport(client.clone(), url, headers, tokens.clone());
                let session = match serve_client(info, transport).await {
                    Ok(session) => session,
                    Err(error) => return Err(self.no_session(&error, None).await),
                };
                (session, None, Obtained::remote("network-rules"))
            }
        };
        let peer = session.peer().clone();
        let tools = list(&peer).await.map_err(|reason| self.no_list(&reason))?;
        Ok(Live {
            session,
            link: Arc::new(Link {
                peer,
                tools,
                changed: Mutex::default(),
                service,
                obtained,
            }),
        })
    }

    async fn no_session(&self, error: &ClientInitializeError, service: Option<&Service>) -> RunError {
        // The transport's own words carry type names.
        let words = match error {
            ClientInitializeError::TransportError { error, .. } => error.error.to_string(),
            other => other.to_string(),
        };
        let said = last_words(service).await;
        RunError::Unavailable(format!(
            "no session with the MCP server `{}`: {words}{said}",
            self.name
        ))
    }

    /// One `tools/call`. When this future is dropped, the server is told that the call is cancelled.
    pub(crate) async fn call(
        &self,
        link: &Arc<Link>,
        tool: String,
        call: &Call<'_>,
        session: Option<SessionId>,
        harmless: bool,
    ) -> Result<RunOutcome, RunError> {
        let _here = self.desk.enter(session);
        let params = CallToolRequestParams::new(tool).with_arguments(call.arguments.clone());
        let limit = call.plan.limits().max_output_bytes;
        match tokio::time::timeout(call.timeout(), link.peer.call_tool_once(params)).await {
            Err(_elapsed) => {
                self.look_after(Arc::clone(link)).await;
                Err(RunError::Timeout {
                    timeout_ms: call.timeout_ms,
                    obtained: link.obtained.clone(),
                })
            }
            Ok(Ok(CallToolResponse::Complete(result))) => Ok(outcome(result, limit, link.obtained.clone())),
            Ok(Ok(_)) => Err(RunError::Unknown(format!(
                "the MCP server `{}` asked for more input, which clawk does not give",
                self.name
            ))),
            Ok(Err(ServiceError::McpError(error))) => {
                let text = format!("MCP error {}: {}", error.code.0, cut(&error.message, 4 << 10).0);
                Ok(RunOutcome {
                    obtained: link.obtained.clone(),
                    ..crate::call::failed(text)
                })
            }
            Ok(Err(error)) => {
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

    /// One `tools/call` for nobody's session, within this time.
    pub(crate) async fn asked(
        &self,
        link: &Arc<Link>,
        tool: &str,
        arguments: Map<String, Value>,
        limit: Duration,
    ) -> Result<CallToolResult, String> {
        let _here = self.desk.enter(None);
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let why = match tokio::time::timeout(limit, link.peer.call_tool_once(params)).await {
            Err(_elapsed) => {
                self.look_after(Arc::clone(link)).await;
                format!("no answer within {} ms", limit.as_millis())
            }
            Ok(Ok(CallToolResponse::Complete(result))) => return Ok(result),
            Ok(Ok(_)) => "it asked for more input, which clawk does not give".to_owned(),
            Ok(Err(error)) => {
                let said = last_words(link.service.as_ref()).await;
                format!("{}{said}", cut(&error.to_string(), 300).0)
            }
        };
        Err(format!("the MCP server `{}`, `{tool}`: {why}", self.name))
    }

    /// After a timeout: a server that doesn't even answer a ping is ended with all its processes, so that what it began
    /// doesn't go on behind our back. One that answers serves its other calls on. The next call starts it again.
    async fn look_after(&self, link: Arc<Link>) {
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
                tracing::warn!(server = %name, "the MCP server gives no sign of life after a timeout; it is ended");
                service.stop().await;
            }
        });
    }

    /// Ends the session, and the process with it.
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
    /// The tools that are gone or not as they were told first; what is new is pinned from here on.
    fn compare(&mut self, tools: &[Tool]) -> BTreeSet<String> {
        let now = |name: &str| tools.iter().find(|tool| tool.name == name);
        let changed = self
            .pinned
            .iter()
            .filter(|(name, tool)| now(name) != Some(*tool))
            .map(|(name, _)| name.clone())
            .collect();
        for tool in tools {
            self.pinned
                .entry(tool.name.to_string())
                .or_insert_with(|| tool.clone());
        }
        changed
    }

    /// Bounded restarts: a server that dies at once is not started for ever.
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

impl Link {
    fn lives(&self) -> bool {
        !self.peer.is_transport_closed()
            && self
                .service
                .as_ref()
                .is_none_or(|service| service.ended().is_none())
    }
}

/// How a process ended and the last line it wrote to standard error, for an error's text.
async fn last_words(service: Option<&Service>) -> String {
    let Some(service) = service else {
        return String::new();
    };
    // The end arrives a moment after the closed stream that made it known.
    let end = tokio::time::timeout(Duration::from_millis(500), service.wait()).await;
    // silent-ok: it lives on, then
    let mut text = match end.ok().flatten() {
        Some(end) => match (end.limit, end.exit_code, end.signal) {
            (Some(limit), _, _) => format!("; it was {limit}"),
            (None, Some(code), _) => format!("; it ended with exit code {code}"),
            (None, None, signal) => format!("; it was ended by signal {}", signal.unwrap_or_default()),
        },
        None => String::new(),
    };
    let tail = service.stderr_tail();
    if let Some(line) = tail.lines().rev().find(|line| !line.trim().is_empty()) {
        text.push_str(&format!("; its last words: {}", cut(line.trim(), 300).0));
    }
    text
}

async fn list(peer: &Peer<RoleClient>) -> Result<Vec<Tool>, String> {
    let mut tools = Vec::new();
    let mut cursor = None;
    let mut bytes = 0;
    for _ in 0..MAX_PAGES {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = peer
            .list_tools(Some(params))
            .await
            .map_err(|error| error.to_string())?;
        for tool in page.tools {
            bytes += serde_json::to_vec(&tool).map_or(0, |text| text.len());
            tools.push(tool);
        }
        if tools.len() > MAX_TOOLS || bytes > MAX_LIST_BYTES {
            return Err(format!(
                "it is too long (over {MAX_TOOLS} tools or {MAX_LIST_BYTES} bytes)"
            ));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(tools);
        }
    }
    Err(format!("it has more than {MAX_PAGES} pages"))
}
