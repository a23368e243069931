//! `[http]`: what the listener serves, who may use it, and its limits; the traces that it shows.

mod oauth;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::state::kept::StateDir;
use anyhow::{Context, Result, bail};
use clawk_egress::HostPattern;
use clawk_kernel::ports::BoxFuture;
use clawk_kernel::time::SystemClock;
use clawk_proto::trace::SealedEvent;
use clawk_proto::{Digest, SessionId};
use clawk_secrets::SecretResolver;
use clawk_server::AgentHost;
use clawk_server::http::{HttpDoor, HttpListener, HttpOptions, ListenerTls, Page, Scope, Token, TraceReader};
use clawk_trace::VerificationReport;
use oauth::OAuthConfig;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// The fewest characters of a token: what is shorter can be guessed.
const MIN_TOKEN_CHARS: usize = 16;

/// `[http]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HttpConfig {
    /// What is served, by path (R42): `claw` (`/claw`, `/claw/ws`), `cra` (`/v1/…`), `health` (`/healthz`, `/readyz`), `openai`
    /// (`/openai/v1/…`), `mcp` (`/mcp`), `a2a` (`/a2a` and the
    /// AgentCard).
    pub(crate) doors: Vec<HttpDoor>,
    /// Who may do what. None: everybody on this machine may do everything, and no other address is listened on.
    pub(crate) tokens: Vec<TokenConfig>,
    /// An authorization server whose tokens are taken, too.
    pub(crate) oauth: Option<OAuthConfig>,
    /// Hosts that push notifications of `/a2a` may go to. None: none are sent.
    pub(crate) push_hosts: Vec<HostPattern>,
    /// TLS; without it the listener speaks plain HTTP.
    pub(crate) tls: Option<TlsConfig>,
    /// Addresses beyond loopback may be listened on; tokens are then required.
    pub(crate) public: bool,
    /// Names that a `AgentHost` header may have, besides loopback's.
    pub(crate) hosts: Vec<String>,
    /// Origins of browsers that may call, such as `https://console.example.com`.
    pub(crate) origins: Vec<String>,
    /// Bytes of a request's body.
    pub(crate) max_body_bytes: usize,
    /// Requests per second of one token, sustained; 0: no limit.
    pub(crate) requests_per_second: u32,
    /// Trace streams open at the same time.
    pub(crate) max_streams: usize,
    /// CKP sessions and sockets open at the same time.
    pub(crate) max_sessions: usize,
    /// Connections open at the same time.
    pub(crate) max_connections: usize,
    /// How long a request may take, seconds.
    pub(crate) deadline_seconds: u32,
    /// How long a client may not read before its connection is cut, seconds.
    pub(crate) stall_seconds: u32,
}

/// `[http.tls]`: files in PEM; paths are relative to where clawk is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsConfig {
    /// The certificate, and those that it rests on.
    pub(crate) certificate: PathBuf,
    /// Its private key; nobody but its owner may read the file.
    pub(crate) key: PathBuf,
    /// Authorities of clients' certificates. With it, a client without such a certificate is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_authorities: Option<PathBuf>,
}

impl TlsConfig {
    fn load(&self) -> Result<ListenerTls> {
        let read =
            |path: &Path| fs::read(path).with_context(|| format!("`[http.tls]`: `{}`", path.display()));
        let mode = fs::metadata(&self.key).map(|key| key.permissions().mode());
        if mode.is_ok_and(|mode| mode & 0o077 != 0) {
            let key = self.key.display();
            bail!("`[http.tls]`: other users may read the key `{key}`; remove this right with `chmod 600`");
        }
        let authorities = self.client_authorities.as_deref().map(read).transpose()?;
        ListenerTls::new(
            &read(&self.certificate)?,
            &read(&self.key)?,
            authorities.as_deref(),
        )
        .context("`[http.tls]`")
    }
}

/// An entry of `[http] tokens`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenConfig {
    /// Whose: sessions belong to this name.
    pub(crate) name: String,
    /// A reference to the token's text; only its digest is kept in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret_ref: Option<String>,
    /// Or the token's SHA-256 in hex: then its text is nowhere here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
    /// What it may do.
    pub(crate) scopes: Vec<Scope>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        let limits = HttpOptions::default();
        Self {
            doors: limits.doors,
            tokens: Vec::new(),
            oauth: None,
            push_hosts: Vec::new(),
            tls: None,
            public: false,
            hosts: Vec::new(),
            origins: Vec::new(),
            max_body_bytes: limits.max_body_bytes,
            requests_per_second: limits.requests_per_second,
            max_streams: limits.max_streams,
            max_sessions: limits.max_sessions,
            max_connections: limits.max_connections,
            deadline_seconds: 60,
            stall_seconds: 15,
        }
    }
}

impl HttpConfig {
    /// The server's options; secrets are looked up now. `private`: places inside the own network that the operator opens. `state`:
    /// where it is kept what push receivers are owed.
    ///
    /// # Errors
    /// A token has no value, two, or a weak one; two tokens have one name.
    pub(crate) fn options(
        &self,
        secrets: &SecretResolver,
        private: &[HostPattern],
        state: &Path,
    ) -> Result<HttpOptions> {
        if self.doors.is_empty() {
            let known: Vec<&str> = HttpDoor::ALL.iter().map(|door| door.name()).collect();
            bail!(
                "`[http] doors` names nothing to serve; known: {}",
                known.join(", ")
            );
        }
        Ok(HttpOptions {
            tokens: self.tokens(secrets)?,
            oauth: (self.oauth.as_ref().map(|oauth| oauth.open(secrets)).transpose())
                .context("`[http.oauth]`")?,
            push: oauth::push(&self.push_hosts, private, secrets, state)?,
            doors: self.doors.clone(),
            tls: self.tls.as_ref().map(TlsConfig::load).transpose()?,
            public: self.public,
            hosts: self.hosts.clone(),
            origins: self.origins.clone(),
            max_body_bytes: self.max_body_bytes,
            requests_per_second: self.requests_per_second,
            max_streams: self.max_streams,
            max_sessions: self.max_sessions,
            max_connections: self.max_connections,
            deadline_ms: u64::from(self.deadline_seconds.max(1)) * 1000,
            stall_ms: u64::from(self.stall_seconds.max(1)) * 1000,
            ..HttpOptions::default()
        })
    }

    /// The tokens; their secrets are looked up now.
    ///
    /// # Errors
    /// A token has no value, two, or a weak one; two tokens have one name.
    pub(crate) fn tokens(&self, secrets: &SecretResolver) -> Result<Vec<Token>> {
        let mut tokens: Vec<Token> = Vec::new();
        for given in &self.tokens {
            let token =
                token(given, secrets).with_context(|| format!("`[http] tokens`: `{}`", given.name))?;
            if tokens.iter().any(|known| known.name() == token.name()) {
                bail!("`[http] tokens`: the name `{}` occurs twice", given.name);
            }
            tokens.push(token);
        }
        Ok(tokens)
    }
}

fn token(given: &TokenConfig, secrets: &SecretResolver) -> Result<Token> {
    if given.name.is_empty() || given.scopes.is_empty() {
        let known: Vec<&str> = Scope::ALL.iter().map(|scope| scope.name()).collect();
        bail!(
            "it needs a `name` and at least one of the scopes {}",
            known.join(", ")
        );
    }
    match (&given.secret_ref, &given.sha256) {
        (Some(reference), None) => {
            let secret = secrets.resolve(reference)?;
            let text = secret.expose().trim();
            if text.len() < MIN_TOKEN_CHARS {
                bail!("a token has at least {MIN_TOKEN_CHARS} characters");
            }
            Ok(Token::of_text(&given.name, text, given.scopes.clone()))
        }
        (None, Some(hex)) => {
            let digest = Digest::from_hex(hex).context("`sha256` is 64 lower-case hex digits")?;
            Ok(Token::new(&given.name, digest.0, given.scopes.clone()))
        }
        _ => bail!("it needs exactly one of `secret_ref` and `sha256`"),
    }
}

/// Binds the API to an address.
///
/// # Errors
/// It may not be, or can't be, listened on.
pub(crate) async fn bind(
    address: SocketAddr,
    (config, private): (&HttpConfig, &[HostPattern]),
    secrets: &SecretResolver,
    host: AgentHost,
    state: &StateDir,
) -> Result<HttpListener> {
    let options = config.options(secrets, private, state.path())?;
    let traces = traces(state);
    let clock = Arc::new(SystemClock::default());
    Ok(HttpListener::bind(address, options, host, traces, clock).await?)
}

/// Reads the traces of this state.
pub(crate) fn traces(state: &StateDir) -> Arc<dyn TraceReader> {
    Arc::new(StateTraces(state.clone()))
}

/// Traces from the agent's own state directory.
#[derive(Debug)]
struct StateTraces(StateDir);

impl TraceReader for StateTraces {
    fn page(&self, page: Page) -> BoxFuture<'_, Result<Vec<SealedEvent>, String>> {
        Box::pin(self.0.chain(page.session, page.since, page.kinds, page.limit))
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.0.watch()
    }

    fn count(&self, session: SessionId, kinds: Vec<String>) -> BoxFuture<'_, Result<u64, String>> {
        Box::pin(self.0.count(session, kinds))
    }

    fn verify(&self, session: SessionId) -> BoxFuture<'_, Result<VerificationReport, String>> {
        Box::pin(self.0.verify(session))
    }
}
