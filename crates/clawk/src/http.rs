//! `[http]`: the listener's entry points, tokens and limits; and the traces that it shows.

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

/// Shortest token, in characters. A shorter one could be guessed.
const MIN_TOKEN_CHARS: usize = 16;

/// `[http]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HttpConfig {
    /// The entry points, by path (R42): `claw` (`/claw`, `/claw/ws`), `cra` (`/v1/…`), `health` (`/healthz`, `/readyz`), `openai`
    /// (`/openai/v1/…`), `mcp` (`/mcp`), `a2a` (`/a2a` and the AgentCard).
    pub(crate) doors: Vec<HttpDoor>,
    /// Access tokens. Without any, every local user may do everything, and only loopback addresses are allowed.
    pub(crate) tokens: Vec<TokenConfig>,
    /// An authorization server whose tokens are accepted, too.
    pub(crate) oauth: Option<OAuthConfig>,
    /// Hosts that may receive push notifications of `/a2a`. Empty: none are sent.
    pub(crate) push_hosts: Vec<HostPattern>,
    /// TLS settings. Without them the listener uses plain HTTP.
    pub(crate) tls: Option<TlsConfig>,
    /// The listener may use addresses other than loopback. Tokens are then required.
    pub(crate) public: bool,
    /// Allowed names in the `Host` header, besides those of loopback.
    pub(crate) hosts: Vec<String>,
    /// Allowed browser origins, such as `https://console.example.com`.
    pub(crate) origins: Vec<String>,
    /// Largest request body, in bytes.
    pub(crate) max_body_bytes: usize,
    /// Sustained requests per second of one token; 0: no limit.
    pub(crate) requests_per_second: u32,
    /// Largest number of open trace streams.
    pub(crate) max_streams: usize,
    /// Largest number of open CKP sessions and WebSockets.
    pub(crate) max_sessions: usize,
    /// Largest number of open connections.
    pub(crate) max_connections: usize,
    /// Time limit for a request, in seconds.
    pub(crate) deadline_seconds: u32,
    /// Time after which a client that does not read is disconnected, in seconds.
    pub(crate) stall_seconds: u32,
}

/// `[http.tls]`: PEM files. Paths are relative to the directory in which clawk is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsConfig {
    /// The certificate, followed by its intermediate certificates.
    pub(crate) certificate: PathBuf,
    /// The private key. Only its owner may read the file.
    pub(crate) key: PathBuf,
    /// Certificate authorities for client certificates. If set, a client without such a certificate is refused.
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
    /// Name of the token's owner. Sessions belong to this name.
    pub(crate) name: String,
    /// Reference to the token's text. Only its digest is kept in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret_ref: Option<String>,
    /// The token's SHA-256 in hex, as an alternative: then its text is not stored here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
    /// The token's permissions.
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
    /// Builds the server's options and resolves the secrets. `private`: addresses in the private network that the operator allows.
    /// `state`: where undelivered push notifications are stored.
    ///
    /// # Errors
    /// A token has no value, two values, or a weak one; or two tokens have the same name.
    pub(crate) fn server_options(
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
            tokens: self.resolve_tokens(secrets)?,
            oauth: (self
                .oauth
                .as_ref()
                .map(|oauth| oauth.build_verifier(secrets))
                .transpose())
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

    /// Returns the tokens and resolves their secrets.
    ///
    /// # Errors
    /// A token has no value, two values, or a weak one; or two tokens have the same name.
    pub(crate) fn resolve_tokens(&self, secrets: &SecretResolver) -> Result<Vec<Token>> {
        let mut tokens: Vec<Token> = Vec::new();
        for given in &self.tokens {
            let token = resolve_token(given, secrets)
                .with_context(|| format!("`[http] tokens`: `{}`", given.name))?;
            if tokens.iter().any(|known| known.name() == token.name()) {
                bail!("`[http] tokens`: the name `{}` occurs twice", given.name);
            }
            tokens.push(token);
        }
        Ok(tokens)
    }
}

fn resolve_token(given: &TokenConfig, secrets: &SecretResolver) -> Result<Token> {
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
/// The address is not allowed, or can't be bound.
pub(crate) async fn bind_listener(
    address: SocketAddr,
    (config, private): (&HttpConfig, &[HostPattern]),
    secrets: &SecretResolver,
    host: AgentHost,
    state: &StateDir,
) -> Result<HttpListener> {
    let options = config.server_options(secrets, private, state.path())?;
    let traces = trace_reader(state);
    let clock = Arc::new(SystemClock::default());
    Ok(HttpListener::bind(address, options, host, traces, clock).await?)
}

/// Returns a reader for the traces of this state.
pub(crate) fn trace_reader(state: &StateDir) -> Arc<dyn TraceReader> {
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
