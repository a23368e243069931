//! The listening socket: allowed addresses, the number of connections, and limits for slow clients.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use clawk_kernel::time::Clock;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::ActiveTokens;
use super::connections::{ConnectionSeat, ConnectionTable};
use super::{HttpApp, HttpAppInner, HttpOptions, ListenerTls, Token, TraceReader, router};
use crate::host::AgentHost;
use crate::transport::stalling::StallTimeout;

/// How long the request head may take, milliseconds; also how long a connection may be idle.
const HEAD_MS: u64 = 15_000;
/// The longest request head, bytes.
const HEAD_BYTES: usize = 32 * 1024;
/// How long to wait when no connection can be accepted because file descriptors have run out, milliseconds.
const BREATH_MS: u64 = 100;

/// Why the listener can't start.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address is beyond loopback, and `[http] public` is not set.
    #[error("`{0}` is reachable from other machines; allow it with `[http] public = true` and tokens")]
    Public(
        /// The address.
        SocketAddr,
    ),
    /// The address is beyond loopback, and there are no tokens: every client would have all rights.
    #[error(
        "`{0}` is reachable from other machines and there are no `[http] tokens`: everybody could do everything"
    )]
    NoTokens(
        /// The address.
        SocketAddr,
    ),
    /// A reload would remove all tokens.
    #[error(
        "`[http] tokens` is empty now, so everybody could do everything; restart `clawk serve` if that is wanted"
    )]
    Emptied,
    /// The address can't be bound.
    #[error("can't listen on `{address}`: {cause}")]
    Io {
        /// The address.
        address: SocketAddr,
        /// The error.
        cause: io::Error,
    },
}

/// The API, bound to its address but not serving yet.
#[derive(Debug)]
pub struct HttpListener {
    listener: TcpListener,
    address: SocketAddr,
    app: HttpApp,
}

impl HttpListener {
    /// Binds the address.
    ///
    /// # Errors
    /// The address is not allowed, or can't be bound.
    pub async fn bind(
        address: SocketAddr,
        options: HttpOptions,
        host: AgentHost,
        traces: Arc<dyn TraceReader>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, HttpError> {
        let loopback = address.ip().is_loopback();
        if !loopback && !options.public {
            return Err(HttpError::Public(address));
        }
        if !loopback && options.tokens.is_empty() && options.oauth.is_none() {
            return Err(HttpError::NoTokens(address));
        }
        let failed = |cause| HttpError::Io { address, cause };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        if options.doors.contains(&super::HttpDoor::A2a) {
            host.serve_tasks();
        }
        let access = ActiveTokens::new(options.tokens.clone(), options.requests_per_second);
        let inner = HttpAppInner {
            host,
            traces,
            clock,
            access: RwLock::new(Arc::new(access)),
            streams: super::shares::PlaceShares::new(options.max_streams),
            over: CancellationToken::new(),
            work: TaskTracker::new(),
            claw: super::claw::CkpHttpSessions::new(options.max_sessions),
            loopback,
            options,
        };
        Ok(Self {
            listener,
            address,
            app: HttpApp(Arc::new(inner)),
        })
    }

    /// The address of the listener. If port 0 was requested, this has the assigned port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The scheme of the listener's URLs.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        match self.app.options.tls {
            Some(_) => "https",
            None => "http",
        }
    }

    /// A handle that replaces the tokens while the listener serves.
    #[must_use]
    pub fn keys(&self) -> Keys {
        Keys(self.app.clone())
    }

    /// A warning if the listener has no tokens, so that every client has all rights.
    #[must_use]
    pub fn security_warning(&self) -> Option<String> {
        (!self.app.is_guarded()).then(|| {
            format!(
                "no `[http] tokens`: every process on this machine that reaches {}://{} may talk, call tools, resolve, \
                 execute, read all traces, load Atlases and answer approvals",
                self.scheme(),
                self.address
            )
        })
    }

    /// Serves until `cancel`. Then it accepts nothing new, waits at most `drain_ms` for requests in flight, and cuts the rest.
    pub async fn serve(self, cancel: CancellationToken) {
        let options = &self.app.options;
        let table = ConnectionTable::new(options.max_connections);
        let (stall, drain) = (
            Duration::from_millis(options.stall_ms),
            Duration::from_millis(options.drain_ms),
        );
        let service = TowerToHyperService::new(router(self.app.clone()));
        let tracker = TaskTracker::new();
        let cut = CancellationToken::new();
        if let Some(push) = options
            .push
            .clone()
            .filter(|_| options.doors.contains(&super::HttpDoor::A2a))
        {
            tracker.spawn(push.carry_on(self.app.host.clone(), cancel.clone()));
        }
        loop {
            let accepted = tokio::select! {
                () = cancel.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            let Ok((stream, from)) = accepted else {
                tokio::time::sleep(Duration::from_millis(BREATH_MS)).await;
                continue;
            };
            // Where all are held by somebody known, a connection is closed at once: those that are open go on.
            let Some(seat) = table.take(from.ip()).map(Arc::new) else {
                continue;
            };
            let (ending, cut, tls) = (cancel.clone(), cut.clone(), options.tls.clone());
            let service = SeatedService {
                inner: service.clone(),
                seat: Arc::clone(&seat),
            };
            tracker.spawn(async move {
                // silent-ok: only speed depends on it
                let _fast = stream.set_nodelay(true);
                let served = async {
                    match tls {
                        None => serve_connection(stream, stall, service, ending, cut).await,
                        Some(ListenerTls(config)) => {
                            let handshake = TlsAcceptor::from(config).accept(stream);
                            match tokio::time::timeout(Duration::from_millis(HEAD_MS), handshake).await {
                                Ok(Ok(stream)) => serve_connection(stream, stall, service, ending, cut).await,
                                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                                Err(_) => tracing::debug!("a TLS handshake took too long"), // silent-ok: the cause
                            }
                        }
                    }
                };
                tokio::select! {
                    () = served => {}
                    () = seat.evicted() => tracing::debug!("a connection was closed for another one: the listener is full"),
                }
            });
        }
        drop(self.listener);
        self.app.over.cancel();
        tracker.close();
        self.app.work.close();
        let all = async { tokio::join!(tracker.wait(), self.app.work.wait()) };
        if tokio::time::timeout(drain, all).await.is_err() {
            cut.cancel();
            tracker.wait().await;
        }
    }
}

/// The handlers, told on which connection a request came.
#[derive(Debug, Clone)]
struct SeatedService {
    inner: TowerToHyperService<axum::Router>,
    seat: Arc<ConnectionSeat>,
}

impl hyper::service::Service<http::Request<Incoming>> for SeatedService {
    type Response =
        <TowerToHyperService<axum::Router> as hyper::service::Service<http::Request<Incoming>>>::Response;
    type Error =
        <TowerToHyperService<axum::Router> as hyper::service::Service<http::Request<Incoming>>>::Error;
    type Future =
        <TowerToHyperService<axum::Router> as hyper::service::Service<http::Request<Incoming>>>::Future;

    fn call(&self, mut request: http::Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(Arc::clone(&self.seat));
        self.inner.call(request)
    }
}

/// Replaces the tokens of a listener that serves.
#[derive(Debug, Clone)]
pub struct Keys(HttpApp);

impl Keys {
    /// Puts these tokens in force instead of the old ones. Open streams end, so that nobody continues to read with a revoked token.
    ///
    /// # Errors
    /// There were tokens and there would be none: every client would have all rights. Nothing changes.
    pub fn replace_tokens(&self, tokens: Vec<Token>) -> Result<(), HttpError> {
        let mut access = self.0.access.write().unwrap_or_else(PoisonError::into_inner);
        if tokens.is_empty() && access.tokens.len() > 0 && self.0.options.oauth.is_none() {
            return Err(HttpError::Emptied);
        }
        let fresh = Arc::new(ActiveTokens::new(tokens, self.0.options.requests_per_second));
        std::mem::replace(&mut *access, fresh).retire();
        Ok(())
    }
}

async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    stall: Duration,
    service: SeatedService,
    ending: CancellationToken,
    cut: CancellationToken,
) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(HEAD_MS))
        .max_buf_size(HEAD_BYTES);
    let io = TokioIo::new(StallTimeout::new(stream, stall));
    let connection = builder.serve_connection(io, service).with_upgrades();
    tokio::pin!(connection);
    let mut ended = false;
    loop {
        tokio::select! {
            // silent-ok: the client disconnected
            _end = &mut connection => return,
            () = ending.cancelled(), if !ended => {
                ended = true;
                connection.as_mut().graceful_shutdown();
            }
            () = cut.cancelled() => return,
        }
    }
}
