//! The proxy of the sandbox: a tool's only way out of an empty network namespace (issue C, R37).
//!
//! One port speaks HTTP, `CONNECT` and SOCKS5. The name is judged first, looked up once by us, every address judged, and the
//! connection goes to that very address. One request per connection, on either side: there is nothing to desynchronise.

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

/// Bounds of the proxy; each holds per call or per connection.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time; more wait in the listener's queue.
    pub max_connections: usize,
    /// Largest head of a request or an answer, bytes.
    pub max_head_bytes: usize,
    /// Most header lines of a request.
    pub max_headers: usize,
    /// How long a request's head, a TLS greeting or a SOCKS request may take, milliseconds.
    pub head_ms: u64,
    /// Name look-up, TCP and TLS towards the server, milliseconds.
    pub connect_ms: u64,
    /// Between two pieces, in either direction, milliseconds.
    pub idle_ms: u64,
    /// Most bytes that one connection may send out.
    pub max_bytes_out: u64,
    /// Most bytes that one connection may bring in.
    pub max_bytes_in: u64,
    /// Ports on which only TLS with the right server name passes.
    pub tls_ports: Vec<u16>,
    /// Ports on which only plain HTTP passes.
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

/// What a proxy is made of.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where connections may go.
    pub rules: HostAllowList,
    /// Who answers for names.
    pub names: NameResolver,
    /// Its bounds.
    pub limits: Limits,
    /// Secrets that are put in at the boundary.
    pub bindings: Vec<Arc<EgressSecret>>,
    /// End TLS to every host here, so that every request is seen: strict.
    pub terminate_all: bool,
    /// What looks at requests before they leave.
    pub screen: Option<Arc<dyn SecretScreen>>,
}

/// A proxy of one agent: rules, secrets and the run's certificate authority. [`Proxy::call`] makes one for a call.
#[derive(Clone)]
pub struct Proxy(Arc<ProxyState>);

struct ProxyState {
    rules: HostAllowList,
    names: NameResolver,
    limits: Limits,
    bindings: Vec<Arc<EgressSecret>>,
    terminate_all: bool,
    screen: Option<Arc<dyn SecretScreen>>,
    /// There when something is terminated.
    authority: Option<RunAuthority>,
    bundle: Option<Arc<str>>,
    /// TLS of ours. Without a termination only a guest needs it: its roots are read then.
    connector: OnceLock<Result<TlsConnector, String>>,
    env: EnvironmentSource,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({:?})", self.0.rules)
    }
}

impl Proxy {
    /// A proxy; nothing is served yet.
    ///
    /// # Errors
    /// [`EgressError::Setup`]: root certificates are not usable, or the run's authority can't be made.
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
            let authority = RunAuthority::new(&domains(&bindings, terminate_all))?;
            let bundle = tls::bundle(env) + &authority.pem();
            (Some(authority), Some(Arc::from(bundle)))
        } else {
            (None, None)
        };
        let connector = match authority {
            Some(_) => OnceLock::from(Ok(connector(env)?)),
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

    /// A proxy that allows nothing. It answers each request with a refusal and records it.
    ///
    /// # Errors
    /// The same errors as [`Proxy::new`].
    pub fn closed() -> Result<Self, EgressError> {
        Self::new(Options::default(), &EnvironmentSource::Process)
    }

    /// The trust file that a tool needs where TLS ends here: the platform's roots and the run's own, PEM. `None`: nothing is
    /// terminated, and the tool's own trust is fine.
    #[must_use]
    pub fn bundle(&self) -> Option<&Arc<str>> {
        self.0.bundle.as_ref()
    }

    /// A proxy for one call of any of `tools`: placeholders of its own, a ledger of its own.
    ///
    /// # Errors
    /// [`EgressError::Setup`] when the system gives no randomness.
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

/// The names that the authority is good for; none where that can't be said in names.
fn domains(bindings: &[Arc<EgressSecret>], terminate_all: bool) -> Vec<String> {
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
    /// Variables of the tool's environment that hold a placeholder.
    #[must_use]
    pub fn placeholders(&self) -> Vec<(String, String)> {
        self.0.wardrobe.variables()
    }

    /// What became of its connections.
    #[must_use]
    pub fn ledger(&self) -> &Arc<ConnectionLedger> {
        &self.0.ledger
    }

    /// Serves until `stop`; then every connection is cut, and all of them stand in the ledger when this returns.
    pub async fn serve(&self, listener: tokio::net::TcpListener, stop: impl Future<Output = ()>) {
        serve::serve(&self.0, listener, stop).await;
    }

    /// Serves one request of a guest in this process, in absolute form, `http` or `https`, to its end or until `stop`. It stands
    /// in the ledger when this returns. A refusal is an answer with the header [`REFUSED`].
    pub async fn guest(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        stop: impl Future<Output = ()>,
    ) {
        tokio::select! {
            () = stop => {}
            () = serve::guest(&self.0, Box::new(stream)) => {}
        }
    }
}

fn connector(env: &EnvironmentSource) -> Result<TlsConnector, EgressError> {
    let mut config = tls::config(true, env)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The variables that send a tool's programs through the proxy at `address`, and make them trust `bundle`, a path within the
/// sandbox.
#[must_use]
pub fn variables(address: SocketAddr, bundle: Option<&str>) -> Vec<(String, String)> {
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
    // Names on an exception list would be tried without the proxy, and find no network.
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
    /// TLS of ours towards a server.
    fn connector(&self) -> Result<&TlsConnector, &str> {
        let make = || connector(&self.shared.env).map_err(|error| error.to_string());
        self.shared
            .connector
            .get_or_init(make)
            .as_ref()
            .map_err(String::as_str)
    }

    /// Whether requests to `target` are to be seen.
    fn terminates(&self, target: &PermittedTarget) -> bool {
        self.shared.terminate_all || self.wardrobe.is_bound(&target.host, target.port)
    }
}

/// A stream in both directions.
pub(super) trait DuplexIo: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> DuplexIo for T {}

/// Why a connection is not served any further.
#[derive(Debug)]
pub(super) enum ProxyFault {
    /// To be said to the tool, and in the trace.
    Say {
        status: u16,
        code: &'static str,
        reason: String,
    },
    /// One side is gone, or silent for too long, so no answer can be sent.
    Gone,
}

impl ProxyFault {
    fn status(status: u16, code: &'static str, reason: &str) -> Self {
        let reason = reason.to_owned();
        Self::Say { status, code, reason }
    }

    fn bad(code: &'static str, reason: &str) -> Self {
        Self::status(400, code, reason)
    }

    fn forbidden(code: &'static str, reason: &str) -> Self {
        Self::status(403, code, reason)
    }

    fn gone(_error: io::Error) -> Self {
        Self::Gone
    }
}

/// Waits at most `ms`; silence is the end of the connection.
async fn within<T>(ms: u64, work: impl Future<Output = Result<T, ProxyFault>>) -> Result<T, ProxyFault> {
    tokio::time::timeout(std::time::Duration::from_millis(ms), work)
        .await
        .unwrap_or(Err(ProxyFault::Gone))
}
