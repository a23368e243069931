//! The one listener (R42): CKP over HTTP and WebSocket, the CRA API (sessions, resolutions, executions, traces, Atlases: CRA-Full),
//! and health. The list `doors` enables each part.
//!
//! A request passes `guard` (Host, Origin, token, rate, deadline), then one handler. `error` alone maps kernel errors to status
//! codes. `docs/reference/http-api.md` is for people, `schema/openapi.json` for machines.

mod approvals;
mod atlases;
pub(crate) mod auth;
pub(crate) mod body;
mod carp;
mod claw;
mod connections;
mod doors;
mod error;
mod guard;
mod health;
mod hooks;
mod limit;
mod listen;
mod model;
mod openapi;
mod sessions;
mod shares;
mod stream;
mod tls;
mod traces;
mod unread;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use clawk_kernel::CraHandle;
use clawk_kernel::ports::BoxFuture;
use clawk_kernel::time::Clock;
use clawk_proto::SessionId;
use clawk_proto::trace::SealedEvent;
use clawk_trace::VerificationReport;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use crate::access::{Scope, Token};
pub use doors::HttpDoor;
pub use listen::{HttpError, HttpListener, Keys};
pub use openapi::openapi_document;
pub use tls::{ListenerTls, TlsError};

use crate::a2a::push::PushNotifier;
use crate::host::AgentHost;
use crate::oauth::OAuth;
use auth::ActiveTokens;
pub(crate) use error::ApiError;

/// The query for a session's events.
#[derive(Debug, Clone)]
pub struct Page {
    /// The session whose chain is read.
    pub session: SessionId,
    /// The first sequence number.
    pub since: u64,
    /// The event types to return; empty: all.
    pub kinds: Vec<String>,
    /// The largest number of events.
    pub limit: usize,
}

/// Reads complete events with their hashes while the agent runs.
pub trait TraceReader: Send + Sync + fmt::Debug {
    /// Events in chain order. Empty if there are none, or if the session is unknown.
    fn page(&self, page: Page) -> BoxFuture<'_, Result<Vec<SealedEvent>, String>>;

    /// A counter that changes after each commit with events. It wakes readers.
    fn watch(&self) -> watch::Receiver<u64>;

    /// The number of events of a chain; with `kinds`, only of these types.
    fn count(&self, session: SessionId, kinds: Vec<String>) -> BoxFuture<'_, Result<u64, String>>;

    /// Verifies a session's chain from its first event to the head that was recorded.
    fn verify(&self, session: SessionId) -> BoxFuture<'_, Result<VerificationReport, String>>;
}

/// Limits and tokens of the listener.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// The tokens and their rights. Empty: every client has all rights, on loopback only.
    pub tokens: Vec<Token>,
    /// An authorization server whose tokens are accepted too.
    pub oauth: Option<OAuth>,
    /// Sends push notifications of `/a2a`; `None`: the endpoint has none.
    pub push: Option<PushNotifier>,
    /// The enabled doors.
    pub doors: Vec<HttpDoor>,
    /// TLS settings; `None`: plain HTTP.
    pub tls: Option<ListenerTls>,
    /// Allows addresses beyond loopback.
    pub public: bool,
    /// Accepted names in the `Host` header, besides loopback's and the address's own.
    pub hosts: Vec<String>,
    /// Origins from which browsers may call, such as `https://console.example.com`.
    pub origins: Vec<String>,
    /// The longest request body, bytes.
    pub max_body_bytes: usize,
    /// Sustained requests per second of one token; a burst may have twice as many. 0: no limit.
    pub requests_per_second: u32,
    /// The largest number of open trace streams.
    pub max_streams: usize,
    /// The largest number of open CKP sessions and sockets.
    pub max_sessions: usize,
    /// Connections that are open at the same time; beyond, one that nobody known holds is closed for each new one.
    pub max_connections: usize,
    /// How long a request may take, milliseconds.
    pub deadline_ms: u64,
    /// How long a client may stop reading before its connection is cut, milliseconds.
    pub stall_ms: u64,
    /// How long the shutdown waits for requests in flight, milliseconds.
    pub drain_ms: u64,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            oauth: None,
            push: None,
            tls: None,
            doors: HttpDoor::DEFAULT.to_vec(),
            public: false,
            hosts: Vec::new(),
            origins: Vec::new(),
            max_body_bytes: 4 << 20,
            requests_per_second: 1_000,
            max_streams: 64,
            max_sessions: 1_024,
            max_connections: 1_024,
            deadline_ms: 60_000,
            stall_ms: 15_000,
            drain_ms: 5_000,
        }
    }
}

/// The state that all handlers share.
#[derive(Debug, Clone)]
pub(crate) struct HttpApp(Arc<HttpAppInner>);

#[derive(Debug)]
pub(crate) struct HttpAppInner {
    pub(crate) host: AgentHost,
    pub(crate) traces: Arc<dyn TraceReader>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: HttpOptions,
    access: RwLock<Arc<ActiveTokens>>,
    pub(crate) streams: shares::PlaceShares,
    pub(crate) over: CancellationToken,
    /// Sessions and sockets that continue after the request that began them.
    pub(crate) work: TaskTracker,
    claw: claw::CkpHttpSessions,
    /// The listener accepts only loopback connections.
    pub(crate) loopback: bool,
}

impl std::ops::Deref for HttpApp {
    type Target = HttpAppInner;

    fn deref(&self) -> &HttpAppInner {
        &self.0
    }
}

impl HttpApp {
    /// The current tokens.
    pub(crate) fn access(&self) -> Arc<ActiveTokens> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether clients need a token.
    pub(crate) fn is_guarded(&self) -> bool {
        self.access().tokens.len() > 0 || self.options.oauth.is_some()
    }

    pub(crate) fn cra(&self) -> Result<CraHandle, ApiError> {
        let kernel = self.host.current_kernel().get();
        kernel
            .map(|kernel| kernel.cra_handle())
            .ok_or_else(|| ApiError::unavailable("no agent runs yet"))
    }
}

/// The router of the listener (R42): all enabled doors, behind the guard.
fn router(app: HttpApp) -> Router {
    let doors = app.options.doors.iter();
    let paths = doors.fold(Router::new(), |paths, door| paths.merge(door.routes()));
    paths
        .merge(crate::oauth::routes())
        .route("/channels/{name}", axum::routing::any(hooks::receive_hook))
        .fallback(|| async { ApiError::not_found("no such path") })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .layer(axum::middleware::from_fn_with_state(
            app.clone(),
            guard::guard_request,
        ))
        .with_state(app)
}
