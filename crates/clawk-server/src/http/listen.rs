//! Listening: where it may, how many, and how slow a client may be.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use clawk_kernel::time::Clock;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::Tokens;
use super::limit::Limiter;
use super::{App, HttpOptions, Inner, Traces, router};
use crate::agent::Current;

/// How long the lines before a body may take, milliseconds; also how long a connection may be idle.
const HEAD_MS: u64 = 15_000;
/// Bytes of the lines before a body.
const HEAD_BYTES: usize = 32 * 1024;
/// How long to wait when no connection can be accepted, milliseconds: no file descriptors are left.
const BREATH_MS: u64 = 100;

/// Why nothing is listened on.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// An address beyond loopback that nobody allowed.
    #[error("`{0}` is reachable from other machines; allow it with `[http] public = true` and tokens")]
    Public(
        /// The address.
        SocketAddr,
    ),
    /// An address beyond loopback, and everybody would be let in.
    #[error(
        "`{0}` is reachable from other machines and there are no `[http] tokens`: everybody could do everything"
    )]
    NoTokens(
        /// The address.
        SocketAddr,
    ),
    /// The address can't be had.
    #[error("can't listen on `{address}`: {cause}")]
    Io {
        /// The address.
        address: SocketAddr,
        /// Why.
        cause: io::Error,
    },
}

/// The API, bound to its address and not yet serving.
#[derive(Debug)]
pub struct Http {
    listener: TcpListener,
    address: SocketAddr,
    app: App,
}

impl Http {
    /// Binds the address.
    ///
    /// # Errors
    /// It may not be, or can't be, listened on.
    pub async fn bind(
        address: SocketAddr,
        options: HttpOptions,
        current: Current,
        traces: Arc<dyn Traces>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, HttpError> {
        let loopback = address.ip().is_loopback();
        if !loopback && !options.public {
            return Err(HttpError::Public(address));
        }
        if !loopback && options.tokens.is_empty() {
            return Err(HttpError::NoTokens(address));
        }
        let failed = |cause| HttpError::Io { address, cause };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let tokens = Tokens::new(options.tokens.clone());
        let inner = Inner {
            current,
            traces,
            clock,
            limiter: Limiter::new(options.requests_per_second, tokens.len()),
            tokens,
            streams: Arc::new(Semaphore::new(options.max_streams)),
            over: CancellationToken::new(),
            loopback,
            options,
        };
        Ok(Self {
            listener,
            address,
            app: App(Arc::new(inner)),
        })
    }

    /// Where it listens; the port is the real one when 0 was asked for.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What is open to whoever reaches the address, if that is everything.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        (self.app.tokens.len() == 0).then(|| {
            format!(
                "no `[http] tokens`: every process on this machine that reaches http://{} may resolve, execute, read all \
                 traces, load Atlases and answer approvals",
                self.address
            )
        })
    }

    /// Serves until `cancel`; then takes nothing new, lets what is under way end for at most `drain_ms`, and cuts the rest.
    pub async fn serve(self, cancel: CancellationToken) {
        let options = &self.app.options;
        let places = Arc::new(Semaphore::new(options.max_connections));
        let (stall, drain) = (
            Duration::from_millis(options.stall_ms),
            Duration::from_millis(options.drain_ms),
        );
        let service = TowerToHyperService::new(router(self.app.clone()));
        let tracker = TaskTracker::new();
        let cut = CancellationToken::new();
        loop {
            let accepted = tokio::select! {
                () = cancel.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(Duration::from_millis(BREATH_MS)).await;
                continue;
            };
            // Beyond the bound a connection is closed at once: those that are open go on.
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                continue;
            };
            let (service, ending, cut) = (service.clone(), cancel.clone(), cut.clone());
            tracker.spawn(async move {
                connection(stream, stall, service, ending, cut).await;
                drop(place);
            });
        }
        drop(self.listener);
        self.app.over.cancel();
        tracker.close();
        if tokio::time::timeout(drain, tracker.wait()).await.is_err() {
            cut.cancel();
            tracker.wait().await;
        }
    }
}

async fn connection(
    stream: TcpStream,
    stall: Duration,
    service: TowerToHyperService<axum::Router>,
    ending: CancellationToken,
    cut: CancellationToken,
) {
    // silent-ok: only a matter of speed
    let _fast = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(HEAD_MS))
        .max_buf_size(HEAD_BYTES);
    let io = TokioIo::new(Stalling {
        inner: stream,
        stall,
        waiting: None,
    });
    let connection = builder.serve_connection(io, service).with_upgrades();
    tokio::pin!(connection);
    let mut ended = false;
    loop {
        tokio::select! {
            // silent-ok: a client that breaks off has nobody to tell
            _end = &mut connection => return,
            () = ending.cancelled(), if !ended => {
                ended = true;
                connection.as_mut().graceful_shutdown();
            }
            () = cut.cancelled() => return,
        }
    }
}

/// A stream whose writes end when the other side takes nothing for too long.
struct Stalling<S> {
    inner: S,
    stall: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalling<S> {
    fn judge<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.waiting = None;
            return outcome;
        }
        let stall = self.stall;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.judge(cx, outcome)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.inner).poll_flush(cx);
        this.judge(cx, outcome)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.inner).poll_shutdown(cx);
        this.judge(cx, outcome)
    }
}
