//! The proxy of the sandbox. A tool runs in an empty network namespace, and the proxy is its only way out (issue C, R37).
//!
//! One port speaks HTTP, `CONNECT` and SOCKS5. The proxy checks the name, resolves it once itself, checks every address, and
//! connects to exactly these addresses. Each connection carries one request, on both sides, so that request smuggling is
//! impossible.

mod body;
mod dial;
mod dress;
mod exchange;
mod head;
mod serve;
mod socks;
mod tunnel;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use clawk_secrets::EnvironmentSource;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::authority::RunAuthority;
use crate::record::ConnectionLedger;
use crate::screen::SecretScreen;
use crate::{EgressError, HostAllowList, HostPattern, NameResolver, PermittedTarget, tls};

pub use dress::EgressSecret;
use dress::PlaceholderSet;
pub use head::REFUSED;

/// Limits of the proxy. Each applies per call or per connection.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The maximum number of connections of one call at a time. More connections wait in the listener's queue.
    pub max_connections: usize,
    /// The maximum size of a request's or an answer's head, in bytes.
    pub max_head_bytes: usize,
    /// The maximum number of header lines of a request.
    pub max_headers: usize,
    /// The time limit for a request's head, a TLS ClientHello or a SOCKS request, in milliseconds.
    pub head_ms: u64,
    /// The time limit for name lookup, TCP and TLS towards the server, in milliseconds.
    pub connect_ms: u64,
    /// The maximum pause between two pieces, in either direction, in milliseconds.
    pub idle_ms: u64,
    /// How many bytes one connection may send.
    pub max_bytes_out: u64,
    /// How many bytes one connection may receive.
    pub max_bytes_in: u64,
    /// Ports that accept only TLS with the right server name.
    pub tls_ports: Vec<u16>,
    /// Ports that accept only plain HTTP.
    pub http_ports: Vec<u16>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 128,
            max_head_bytes: 64 << 10,
            max_headers: 128,
            head_ms: 10_000,
            connect_ms: 10_000,
            idle_ms: 120_000,
            max_bytes_out: 1 << 30,
            max_bytes_in: 8 << 30,
            tls_ports: vec![443],
            http_ports: vec![80],
        }
    }
}

/// The settings and dependencies of a proxy.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The hosts to which connections are allowed.
    pub rules: HostAllowList,
    /// How host names are resolved.
    pub names: NameResolver,
    /// The proxy's limits.
    pub limits: Limits,
    /// Secrets that the proxy inserts into requests.
    pub bindings: Vec<Arc<EgressSecret>>,
    /// Strict mode: terminate TLS for every host, so that the proxy sees every request.
    pub terminate_all: bool,
    /// Checks requests for secrets before they are sent.
    pub screen: Option<Arc<dyn SecretScreen>>,
}

/// The proxy of one agent: rules, secrets and the run's certificate authority. [`Proxy::call`] creates the proxy of one call.
#[derive(Clone)]
pub struct Proxy(Arc<ProxyState>);

struct ProxyState {
    rules: HostAllowList,
    names: NameResolver,
    limits: Limits,
    bindings: Vec<Arc<EgressSecret>>,
    terminate_all: bool,
    screen: Option<Arc<dyn SecretScreen>>,
    /// The certificate authority; only if TLS is terminated for some host.
    authority: Option<RunAuthority>,
    bundle: Option<Arc<str>>,
    /// The TLS connector towards servers. It is created when it is first needed, because reading the roots takes time. Without
    /// termination, only WebAssembly guests need it.
    connector: OnceLock<Result<TlsConnector, String>>,
    env: EnvironmentSource,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({:?})", self.0.rules)
    }
}

impl Proxy {
    /// Creates a proxy; serves nothing yet.
    ///
    /// # Errors
    /// [`EgressError::Setup`] if the root certificates can't be used or the run's authority can't be created.
    pub fn new(options: Options, env: &EnvironmentSource) -> Result<Self, EgressError> {
        let Options {
            rules,
            names,
            limits,
            bindings,
            terminate_all,
            screen,
        } = options;
        let (authority, bundle) = if terminate_all || !bindings.is_empty() {
            let authority = RunAuthority::new(&authority_domains(&bindings, terminate_all))?;
            let bundle = tls::root_certificates_pem(env) + &authority.certificate_pem();
            (Some(authority), Some(Arc::from(bundle)))
        } else {
            (None, None)
        };
        let connector = match authority {
            Some(_) => OnceLock::from(Ok(tls_connector(env)?)),
            None => OnceLock::new(),
        };
        Ok(Self(Arc::new(ProxyState {
            rules,
            names,
            limits,
            bindings,
            terminate_all,
            screen,
            authority,
            bundle,
            connector,
            env: env.clone(),
        })))
    }

    /// Creates a proxy that allows nothing. It refuses and records each request.
    ///
    /// # Errors
    /// The same errors as [`Proxy::new`].
    pub fn deny_all() -> Result<Self, EgressError> {
        Self::new(Options::default(), &EnvironmentSource::Process)
    }

    /// The certificate file (PEM) that a tool needs if TLS is terminated: the platform's roots and the run's own authority. `None`:
    /// no TLS is terminated, so the tool's own roots are enough.
    #[must_use]
    pub fn trust_bundle(&self) -> Option<&Arc<str>> {
        self.0.bundle.as_ref()
    }

    /// Creates the proxy for one call of any of `tools`, with its own placeholders and its own ledger.
    ///
    /// # Errors
    /// [`EgressError::Setup`] if the system gives no random bytes.
    pub fn call(&self, tools: &[&str]) -> Result<ProxyCall, EgressError> {
        let is_for = |binding: &&Arc<EgressSecret>| tools.iter().any(|tool| binding.is_for(tool));
        let granted = self.0.bindings.iter().filter(is_for);
        Ok(ProxyCall(Arc::new(ProxyCallState {
            wardrobe: PlaceholderSet::new(granted.cloned())?,
            shared: Arc::clone(&self.0),
            ledger: Arc::default(),
        })))
    }
}

/// The domains that the authority is limited to. Empty: not limited, because some host can't be expressed as a domain.
fn authority_domains(bindings: &[Arc<EgressSecret>], terminate_all: bool) -> Vec<String> {
    let hosts = || bindings.iter().flat_map(|binding| &binding.hosts);
    if terminate_all || hosts().any(|host| host.domain().is_none()) {
        return Vec::new();
    }
    hosts()
        .filter_map(HostPattern::domain)
        .map(str::to_owned)
        .collect()
}

/// The proxy of one call.
#[derive(Clone)]
pub struct ProxyCall(Arc<ProxyCallState>);

pub(super) struct ProxyCallState {
    shared: Arc<ProxyState>,
    wardrobe: PlaceholderSet,
    ledger: Arc<ConnectionLedger>,
}

impl fmt::Debug for ProxyCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProxyCall")
    }
}

impl ProxyCall {
    /// The environment variables of the tool that hold a placeholder.
    #[must_use]
    pub fn placeholders(&self) -> Vec<(String, String)> {
        self.0.wardrobe.variables()
    }

    /// The ledger of this call's connections.
    #[must_use]
    pub fn ledger(&self) -> &Arc<ConnectionLedger> {
        &self.0.ledger
    }

    /// Serves until `stop`. Then every connection is cut. All of them are in the ledger when this returns.
    pub async fn serve_listener(&self, listener: tokio::net::TcpListener, stop: impl Future<Output = ()>) {
        serve::serve_listener(&self.0, listener, stop).await;
    }

    /// Serves one request of a WebAssembly guest in this process, in absolute form, `http` or `https`, until it ends or `stop`. It
    /// is in the ledger when this returns. A refusal is an answer with the header [`REFUSED`].
    pub async fn serve_guest(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        stop: impl Future<Output = ()>,
    ) {
        tokio::select! {
            () = stop => {}
            () = serve::serve_guest(&self.0, Box::new(stream)) => {}
        }
    }
}

fn tls_connector(env: &EnvironmentSource) -> Result<TlsConnector, EgressError> {
    let mut config = tls::client_config(true, env)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The environment variables that make a tool's programs use the proxy at `address` and trust `bundle`, a path inside the sandbox.
#[must_use]
pub fn proxy_variables(address: SocketAddr, bundle: Option<&str>) -> Vec<(String, String)> {
    let http = format!("http://{address}");
    let socks = format!("socks5h://{address}");
    let mut all = Vec::new();
    for (name, value) in [
        ("http_proxy", &http),
        ("https_proxy", &http),
        ("all_proxy", &socks),
        ("HTTP_PROXY", &http),
        ("HTTPS_PROXY", &http),
        ("ALL_PROXY", &socks),
    ] {
        all.push((name.to_owned(), value.clone()));
    }
    // Programs would connect to names in `no_proxy` without the proxy, and find no network. So the list is empty.
    all.push(("no_proxy".to_owned(), String::new()));
    all.push(("NO_PROXY".to_owned(), String::new()));
    all.push(("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned()));
    for name in [
        "SSL_CERT_FILE",
        "CURL_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "GIT_SSL_CAINFO",
    ] {
        if let Some(bundle) = bundle {
            all.push((name.to_owned(), bundle.to_owned()));
        }
    }
    all
}

impl ProxyCallState {
    /// The TLS connector towards servers.
    fn tls_connector(&self) -> Result<&TlsConnector, &str> {
        let make = || tls_connector(&self.shared.env).map_err(|error| error.to_string());
        self.shared
            .connector
            .get_or_init(make)
            .as_ref()
            .map_err(String::as_str)
    }

    /// Whether TLS to `target` is terminated, so that the proxy sees the requests.
    fn is_terminated(&self, target: &PermittedTarget) -> bool {
        self.shared.terminate_all || self.wardrobe.is_bound(&target.host, target.port)
    }
}

/// A stream that can be read and written.
pub(super) trait DuplexIo: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> DuplexIo for T {}

/// The reason why a connection is not served any further.
#[derive(Debug)]
pub(super) enum ProxyFault {
    /// A reason that is reported to the tool and recorded in the trace.
    Say {
        status: u16,
        code: &'static str,
        reason: String,
    },
    /// One side closed the connection or was silent for too long. No answer can be sent.
    Gone,
}

impl ProxyFault {
    fn with_status(status: u16, code: &'static str, reason: &str) -> Self {
        let reason = reason.to_owned();
        Self::Say { status, code, reason }
    }

    fn bad_request(code: &'static str, reason: &str) -> Self {
        Self::with_status(400, code, reason)
    }

    fn forbidden(code: &'static str, reason: &str) -> Self {
        Self::with_status(403, code, reason)
    }

    fn connection_gone(_error: io::Error) -> Self {
        Self::Gone
    }
}

/// Runs `work` for at most `ms`. After that, the fault is [`ProxyFault::Gone`].
async fn run_within<T>(ms: u64, work: impl Future<Output = Result<T, ProxyFault>>) -> Result<T, ProxyFault> {
    tokio::time::timeout(std::time::Duration::from_millis(ms), work)
        .await
        .unwrap_or(Err(ProxyFault::Gone))
}
