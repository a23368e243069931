//! HTTP clients of two kinds: for an endpoint that the operator declared, and for addresses that an agent chose.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use clawk_secrets::EnvironmentSource;
use http::header::{self, HeaderMap};
use http::{Method, StatusCode};
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use serde::{Deserialize, Serialize};

use crate::error::{LookupFailed, classify_error};
use crate::record::{ConnectionLedger, ConnectionMethod, OpenConnection};
use crate::response::Clock;
use crate::{DeadlinePhase, EgressError, HostAllowList, PermittedTarget, Response, UrlRefusal, tls};

/// Time limits of a request, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientDeadlines {
    /// Name look-up, TCP and TLS.
    pub connect_ms: u64,
    /// From the request to the response's head; includes connecting.
    pub first_byte_ms: u64,
    /// Between two pieces of the body.
    pub idle_ms: u64,
    /// The whole exchange; includes redirects.
    pub total_ms: u64,
}

impl Default for ClientDeadlines {
    fn default() -> Self {
        Self {
            connect_ms: 10_000,
            first_byte_ms: 30_000,
            idle_ms: 30_000,
            total_ms: 120_000,
        }
    }
}

/// An HTTP request to be sent.
#[derive(Clone)]
pub struct Request {
    /// The HTTP method.
    pub method: Method,
    /// The URL, http or https.
    pub url: Url,
    /// The headers. Mark secret values with `HeaderValue::set_sensitive`: a redirect to another origin then drops them.
    pub headers: HeaderMap,
    /// The body; empty for none.
    pub body: Bytes,
}

impl Request {
    /// A POST request with this body. `content_type` is the value of the header `Content-Type`.
    #[must_use]
    pub fn post(url: Url, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static(content_type),
        );
        Self {
            method: Method::POST,
            url,
            headers,
            body: body.into(),
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.url.host_str().unwrap_or_default();
        write!(f, "Request({} {host}, {} bytes)", self.method, self.body.len())
    }
}

/// Returns the addresses of a host name.
pub type ResolveHook = Arc<dyn Fn(&str) -> Vec<IpAddr> + Send + Sync>;

/// How host names are resolved: by the system, or from a fixed table (tests, simulation).
#[derive(Clone, Default)]
pub enum NameResolver {
    /// The system's resolver.
    #[default]
    System,
    /// This table only; other names have no address.
    Fixed(BTreeMap<String, Vec<IpAddr>>),
    /// This function, called for each lookup.
    Hook(ResolveHook),
}

impl fmt::Debug for NameResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "Names::System",
            Self::Fixed(_) => "Names::Fixed",
            Self::Hook(_) => "Names::Hook",
        })
    }
}

impl NameResolver {
    async fn look_up(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, LookupFailed> {
        let failed = |reason: String| LookupFailed {
            host: host.to_owned(),
            reason,
        };
        let found: Vec<SocketAddr> = match self {
            Self::System => {
                let found = tokio::net::lookup_host((host, port)).await;
                found.map_err(|error| failed(error.to_string()))?.collect()
            }
            Self::Fixed(table) => table
                .get(host)
                .into_iter()
                .flatten()
                .map(|address| SocketAddr::new(*address, port))
                .collect(),
            Self::Hook(hook) => hook(host)
                .into_iter()
                .map(|address| SocketAddr::new(address, port))
                .collect(),
        };
        if found.is_empty() {
            Err(failed("the name is not known".to_owned()))
        } else {
            Ok(found)
        }
    }
}

/// Resolves one name to the addresses that were checked, and no other name. Without a pin it asks the system.
#[derive(Debug)]
struct PinnedResolver(Option<(String, Vec<SocketAddr>)>);

impl Resolve for PinnedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let pinned = self
            .0
            .as_ref()
            .map(|(host, found)| (host == name.as_str(), found.clone()));
        Box::pin(async move {
            let found = match pinned {
                None => NameResolver::System.look_up(name.as_str(), 0).await?,
                Some((true, found)) => found,
                Some((false, _)) => {
                    let reason = "not the host that was judged".to_owned();
                    return Err(LookupFailed {
                        host: name.as_str().to_owned(),
                        reason,
                    }
                    .into());
                }
            };
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// An HTTP client. All outgoing HTTP requests of the process go through it.
#[derive(Clone)]
pub struct EgressClient {
    kind: Kind,
    deadlines: ClientDeadlines,
    max_response_bytes: u64,
    /// Where [`EgressClient::send`] records its connections.
    ledger: Option<Arc<ConnectionLedger>>,
}

#[derive(Clone)]
enum Kind {
    /// For one declared endpoint; connections are reused.
    Declared(reqwest::Client),
    /// For any URL that the rules admit. Each request gets a new connection, to the addresses that were checked for it.
    Guarded {
        rules: Arc<HostAllowList>,
        names: NameResolver,
        tls: Box<rustls::ClientConfig>,
    },
}

impl fmt::Debug for EgressClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Declared(_) => f.write_str("Client(declared endpoint)"),
            Kind::Guarded { rules, .. } => write!(f, "Client(guarded: {rules:?})"),
        }
    }
}

impl EgressClient {
    /// Creates a client for `endpoint`, which the operator declared. Any address is allowed, redirects are not followed, and
    /// `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` apply (but never for loopback).
    ///
    /// # Errors
    /// [`EgressError::Setup`] if a proxy setting or the root certificates can't be used; [`EgressError::Refused`] if the endpoint
    /// is neither http nor https.
    pub fn for_provider(
        endpoint: &Url,
        env: &EnvironmentSource,
        deadlines: ClientDeadlines,
        max_response_bytes: u64,
    ) -> Result<Self, EgressError> {
        if !matches!(endpoint.scheme(), "http" | "https") {
            return Err(UrlRefusal::Scheme(endpoint.scheme().to_owned()).into());
        }
        let proxy = proxy_for(endpoint, env)?;
        let tls = tls::client_config(endpoint.scheme() == "https" || proxy.is_some(), env)?;
        let mut builder =
            client_builder(tls, PinnedResolver(None), deadlines).pool_idle_timeout(Duration::from_secs(60));
        if let Some(proxy) = proxy {
            builder = builder.proxy(proxy);
        }
        Ok(Self {
            kind: Kind::Declared(build_client(builder)?),
            deadlines,
            max_response_bytes,
            ledger: None,
        })
    }

    /// Creates a client for URLs that an agent, a model or a web page chose. Each request and each redirect must pass `rules`. The
    /// client never uses a proxy, because a proxy would resolve names again.
    ///
    /// # Errors
    /// [`EgressError::Setup`] if the root certificates can't be used.
    pub fn with_allow_list(
        rules: HostAllowList,
        env: &EnvironmentSource,
        deadlines: ClientDeadlines,
    ) -> Result<Self, EgressError> {
        Self::guarded_with(rules, env, deadlines, NameResolver::System)
    }

    /// As [`EgressClient::with_allow_list`], with another name resolver.
    ///
    /// # Errors
    /// The same errors as [`EgressClient::with_allow_list`].
    pub fn guarded_with(
        rules: HostAllowList,
        env: &EnvironmentSource,
        deadlines: ClientDeadlines,
        names: NameResolver,
    ) -> Result<Self, EgressError> {
        let max_response_bytes = rules.max_response_bytes;
        let kind = Kind::Guarded {
            rules: Arc::new(rules),
            names,
            tls: Box::new(tls::client_config(true, env)?),
        };
        Ok(Self {
            kind,
            deadlines,
            max_response_bytes,
            ledger: None,
        })
    }

    /// Sends `request` once and returns the response's head. A guarded client follows redirects as part of it.
    ///
    /// # Errors
    /// [`EgressError`]; an HTTP error status is not an error.
    pub async fn send(&self, request: Request) -> Result<Response, EgressError> {
        let ledger = self.ledger.clone().unwrap_or_default();
        self.send_told(request, &ledger).await
    }

    /// Returns this client with a ledger: [`EgressClient::send`] then records its connections in `ledger`.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Arc<ConnectionLedger>) -> Self {
        self.ledger = Some(ledger);
        self
    }

    /// As [`EgressClient::send`], but records each connection (one per redirect) in `ledger`. Refused connections are recorded at
    /// once, the answering one when its response is dropped. Byte counts include heads and bodies, but not TLS overhead.
    ///
    /// # Errors
    /// The same errors as [`EgressClient::send`].
    pub async fn send_told(
        &self,
        request: Request,
        ledger: &Arc<ConnectionLedger>,
    ) -> Result<Response, EgressError> {
        let clock = Clock::start(self.deadlines);
        let (response, open) = match &self.kind {
            Kind::Declared(client) => {
                let mut open = open_record(ledger, ConnectionMethod::Declared, &request);
                open.connection.rule = Some("declared".to_owned());
                let answer = execute_request(client, request, &clock).await;
                (record_answer(&mut open, answer)?, open)
            }
            Kind::Guarded { rules, names, tls } => {
                follow_redirects(rules, names, tls, request, &clock, ledger).await?
            }
        };
        Response::new(response, clock, self.max_response_bytes, open)
    }
}

async fn follow_redirects(
    rules: &HostAllowList,
    names: &NameResolver,
    tls: &rustls::ClientConfig,
    mut request: Request,
    clock: &Clock,
    ledger: &Arc<ConnectionLedger>,
) -> Result<(reqwest::Response, OpenConnection), EgressError> {
    let onward = |error: EgressError| EgressError::Onward(Box::new(error));
    let mut left = rules.max_redirects;
    let (mut response, mut open) = send_hop(rules, names, tls, &request, clock, ledger).await?;
    while let Some(next) = redirect_target(&response) {
        left = left
            .checked_sub(1)
            .ok_or_else(|| onward(UrlRefusal::Redirects(rules.max_redirects).into()))?;
        request = redirected_request(request, response.status(), next).map_err(onward)?;
        (response, open) = send_hop(rules, names, tls, &request, clock, ledger)
            .await
            .map_err(onward)?;
    }
    Ok((response, open))
}

/// Checks and sends one request. Redirects are not followed here.
async fn send_hop(
    rules: &HostAllowList,
    names: &NameResolver,
    tls: &rustls::ClientConfig,
    request: &Request,
    clock: &Clock,
    ledger: &Arc<ConnectionLedger>,
) -> Result<(reqwest::Response, OpenConnection), EgressError> {
    let mut open = open_record(ledger, ConnectionMethod::Guarded, request);
    let target = record_answer(
        &mut open,
        rules.judge_url(&request.url).map_err(EgressError::from),
    )?;
    open.connection.rule = Some(target.rule.clone());
    open.connection.private = target.private;
    let found = clock
        .run_limited(DeadlinePhase::Connect, judged_addresses(names, &target))
        .await;
    let addresses = record_answer(&mut open, found.and_then(|found| found))?;
    let pins = PinnedResolver(Some((target.host, addresses)));
    let client = build_client(client_builder(tls.clone(), pins, clock.deadlines))?;
    let answer = execute_request(&client, request.clone(), clock).await;
    let response = record_answer(&mut open, answer)?;
    Ok((response, open))
}

/// Starts the record of a request that is about to be sent.
fn open_record(ledger: &Arc<ConnectionLedger>, via: ConnectionMethod, request: &Request) -> OpenConnection {
    let mut open = OpenConnection::new(Arc::clone(ledger), via);
    let host = request.url.host_str().unwrap_or_default();
    let host = clawk_proto::place::normalize_host(host);
    open.set_requested(&host, request.url.port_or_known_default().unwrap_or(0));
    let headers = request.headers.iter();
    let head: usize = headers
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    let all = head + request.url.path().len() + request.body.len();
    open.sent = u64::try_from(all).unwrap_or(u64::MAX);
    open
}

/// Notes the result in the record.
fn record_answer<T: Peer>(
    open: &mut OpenConnection,
    answer: Result<T, EgressError>,
) -> Result<T, EgressError> {
    match &answer {
        Ok(answer) => answer.note_peer(open),
        Err(EgressError::Refused(refusal)) => open.record_refusal(refusal.code(), refusal.to_string()),
        Err(error) => open.record_refusal(error.code(), error.to_string()),
    }
    answer
}

/// What a step of the request knows about the peer.
trait Peer {
    fn note_peer(&self, _open: &mut OpenConnection) {}
}

impl Peer for PermittedTarget {}
impl Peer for Vec<SocketAddr> {}
impl Peer for reqwest::Response {
    fn note_peer(&self, open: &mut OpenConnection) {
        open.connection.address = self.remote_addr().map(|address| address.ip());
        open.counts.bytes_out.store(open.sent, Ordering::Relaxed);
    }
}

/// Resolves the host and checks every address. If one address is not public, all are refused.
pub(crate) async fn judged_addresses(
    names: &NameResolver,
    target: &PermittedTarget,
) -> Result<Vec<SocketAddr>, EgressError> {
    let found = match target.literal {
        Some(address) => vec![SocketAddr::new(address, target.port)],
        None => names
            .look_up(&target.host, target.port)
            .await
            .map_err(|LookupFailed { host, reason }| EgressError::Dns { host, reason })?,
    };
    for address in &found {
        target.admit_address(address.ip())?;
    }
    Ok(found)
}

async fn execute_request(
    client: &reqwest::Client,
    request: Request,
    clock: &Clock,
) -> Result<reqwest::Response, EgressError> {
    let Request {
        method,
        url,
        headers,
        body,
    } = request;
    let mut request = client.request(method, url).headers(headers);
    if !body.is_empty() {
        request = request.body(body);
    }
    let answer = clock
        .run_limited(DeadlinePhase::FirstByte, request.send())
        .await?;
    answer.map_err(|error| classify_error(error, clock.deadlines.connect_ms))
}

fn redirect_target(response: &reqwest::Response) -> Option<Url> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(header::LOCATION)?.to_str().ok()?; // silent-ok: then it is the answer
    response.url().join(location).ok() // silent-ok: as above
}

/// Builds the request that a redirect asks for. Secrets are dropped if the origin changes.
fn redirected_request(mut request: Request, status: StatusCode, next: Url) -> Result<Request, EgressError> {
    if request.url.scheme() == "https" && next.scheme() == "http" {
        return Err(UrlRefusal::Downgrade.into());
    }
    let kept = matches!(status.as_u16(), 307 | 308) || matches!(request.method, Method::GET | Method::HEAD);
    if !kept {
        request.method = Method::GET;
        request.body = Bytes::new();
        request.headers.remove(header::CONTENT_TYPE);
        request.headers.remove(header::CONTENT_LENGTH);
    }
    if request.url.origin() != next.origin() {
        let named = [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION];
        let secret = |(name, value): (&header::HeaderName, &header::HeaderValue)| {
            (value.is_sensitive() || named.contains(name)).then(|| name.clone())
        };
        let dropped: Vec<_> = request.headers.iter().filter_map(secret).collect();
        for name in dropped {
            request.headers.remove(name);
        }
    }
    request.url = next;
    Ok(request)
}

fn client_builder(
    tls: rustls::ClientConfig,
    pins: PinnedResolver,
    deadlines: ClientDeadlines,
) -> reqwest::ClientBuilder {
    #[expect(
        clippy::disallowed_methods,
        reason = "this crate is the constructor of HTTP clients"
    )]
    let builder = reqwest::Client::builder();
    builder
        .tls_backend_preconfigured(tls)
        .dns_resolver(Arc::new(pins))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        // One call is one attempt. Callers retry themselves, because retries must be counted and recorded.
        .retry(reqwest::retry::never())
        .referer(false)
        .user_agent(concat!("clawk/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_millis(deadlines.connect_ms))
}

fn build_client(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, EgressError> {
    builder
        .build()
        .map_err(|error| EgressError::Setup(error.without_url().to_string()))
}

fn proxy_for(endpoint: &Url, env: &EnvironmentSource) -> Result<Option<reqwest::Proxy>, EgressError> {
    let host = endpoint.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    // Other programs ignore upper-case `HTTP_PROXY`, because under CGI a request header could set it. clawk does not run under CGI.
    let names: &[&str] = match endpoint.scheme() {
        "https" => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        _ => &["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"],
    };
    let Some((name, value)) = names.iter().find_map(|name| Some((name, env.non_empty(name)?))) else {
        return Ok(None);
    };
    if loopback {
        return Ok(None);
    }
    // The value may contain a password, so the message does not show it.
    let proxy = reqwest::Proxy::all(&value)
        .map_err(|_| EgressError::Setup(format!("`{name}` is not a proxy URL")))?;
    let except = env.non_empty("no_proxy").or_else(|| env.non_empty("NO_PROXY"));
    Ok(Some(proxy.no_proxy(
        except.as_deref().and_then(reqwest::NoProxy::from_string),
    )))
}
