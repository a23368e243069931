//! One connection: made within a deadline, with prepared statements that are reused.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Row, Statement};

use crate::bell::NotifyChannel;
use crate::error::{PgFailure, SetupError, error_text};
use crate::options::{Options, TlsMode};
use crate::servers::{
    self, BestServer, ConnectionTimeline, KnownServerState, PgServer, Role, ServerCondition,
};
use crate::tls::PgTlsConnector;

/// The application name of our sessions in the server's lists.
const APPLICATION: &str = "clawk";
/// The largest number of prepared statements that one connection keeps.
const MAX_PREPARED: usize = 128;

/// The parameters of a statement.
pub(crate) type StatementParams<'a> = &'a [&'a (dyn ToSql + Sync)];

/// If the URL names several servers: how long to wait for the last used server before the others are asked too.
const ALONE: Duration = Duration::from_secs(1);
/// How long to wait for further servers of the URL after the first usable answer, so that the newest primary is found.
const GRACE: Duration = Duration::from_millis(300);

/// The servers and the settings of their connections, from the options.
#[derive(Clone)]
pub(crate) struct ConnectionTarget {
    servers: Arc<[PgServer]>,
    role: Role,
    tls: PgTlsConnector,
    /// `HOST:PORT` of each server, for messages.
    pub(crate) server: String,
    timeout: Duration,
    begin: String,
    known: Arc<watch::Sender<KnownServerState>>,
    pub(crate) bell: Arc<NotifyChannel>,
    /// The runtime of the connections; if empty, that of the caller.
    pub(crate) runtime: Arc<OnceLock<Handle>>,
}

impl fmt::Debug for ConnectionTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.server)
    }
}

impl ConnectionTarget {
    /// Prepares the target without connecting.
    pub(crate) fn new(options: &Options, tls: PgTlsConnector) -> Result<Self, SetupError> {
        let (url, role) = servers::with_role(options.url.expose(), options.url.name())?;
        // The parser's error is not shown: it may quote the URL with its password.
        let parsed = url.parse::<Config>();
        let mut config = parsed.map_err(|_| {
            SetupError(format!(
                "`{}` is not a valid URL of PostgreSQL (example: `postgres://clawk@db.example.com:5432/clawk`)",
                options.url.name()
            ))
        })?;
        check_config(&config, options)?;
        if let Some(password) = &options.password {
            config.password(password.expose());
        }
        let mode = match options.tls {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::VerifyFull | TlsMode::VerifyCa => SslMode::Require,
        };
        config.ssl_mode(mode);
        let mut servers = servers::split_servers(&config);
        for server in &mut servers {
            let config = &mut server.config;
            config.application_name(APPLICATION);
            config.connect_timeout(options.connect_timeout);
            config.keepalives_idle(Duration::from_secs(30));
            config.tcp_user_timeout(options.operation_timeout);
        }
        let role = role.or_else(|| servers::parsed_role(&config));
        // A standby refuses every write, so a writer asks for a primary.
        let usual = if servers.len() > 1 && !options.read_only {
            Role::ReadWrite
        } else {
            Role::Any
        };
        let role = role.unwrap_or(usual);
        if !options.read_only && !role.requires_writes() && role != Role::Any {
            return Err(SetupError(format!(
                "`{}` asks for a server that can't be written (`target_session_attrs`); only a `read_url` may",
                options.url.name()
            )));
        }
        let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        Ok(Self {
            server: names.join(","),
            servers: servers.into(),
            role,
            tls,
            timeout: options.connect_timeout,
            begin: session_settings(options),
            known: Arc::default(),
            bell: Arc::default(),
            runtime: Arc::default(),
        })
    }

    /// Whether the URL names more than one server.
    pub(crate) fn has_several(&self) -> bool {
        self.servers.len() > 1
    }

    /// Whether the last used server waits for a standby at each commit.
    pub(crate) fn waits_for_standby(&self) -> bool {
        self.known.borrow().waits
    }

    /// The last used server, `HOST:PORT`.
    pub(crate) fn last_server(&self) -> Option<String> {
        let at = self.known.borrow().at?;
        self.servers.get(at).map(|server| server.name.clone())
    }

    /// Opens a new connection.
    pub(crate) async fn connect(&self) -> Result<PgConnection, PgFailure> {
        let target = self.clone();
        self.on_runtime(async move { target.connect_here().await }).await
    }

    /// Asks all servers again, so that a failover is noticed even if the old primary keeps its connections open.
    pub(crate) async fn refresh_servers(&self) -> Result<(), PgFailure> {
        let target = self.clone();
        let looking = self.on_runtime(async move { target.connect_best().await });
        looking.await.map(drop)
    }

    async fn on_runtime(
        &self,
        work: impl Future<Output = Result<PgConnection, PgFailure>> + Send + 'static,
    ) -> Result<PgConnection, PgFailure> {
        let Some(runtime) = self.runtime.get() else {
            return work.await;
        };
        match spawn_on(runtime, work).await {
            Ok(connected) => connected,
            Err(error) => Err(self.unavailable_failure(&self.server, error.to_string())),
        }
    }

    #[expect(clippy::unused_self, reason = "reads as what it is about")]
    fn unavailable_failure(&self, server: &str, why: String) -> PgFailure {
        PgFailure::Away {
            server: server.to_owned(),
            why,
        }
    }

    async fn connect_here(&self) -> Result<PgConnection, PgFailure> {
        let known = self.known.borrow().at;
        let last = known.and_then(|at| self.servers.get(at).map(|server| (at, server)));
        if let (Some((at, server)), true) = (last, self.has_several()) {
            match tokio::time::timeout(ALONE.min(self.timeout), self.connect_server(at, server)).await {
                Ok(Ok(session)) => {
                    self.note_server(&session);
                    return Ok(session);
                }
                Ok(Err(failure)) => tracing::debug!(error = failure.text(), "another server is looked for"),
                Err(_) => tracing::debug!(server = server.name, "it is silent: another server is looked for"),
            }
        }
        self.connect_best().await
    }

    /// Asks all servers at once and takes the best usable one.
    async fn connect_best(&self) -> Result<PgConnection, PgFailure> {
        let mut until = Instant::now() + self.timeout;
        let all = self.servers.iter().enumerate();
        let mut tries: FuturesUnordered<_> =
            all.map(|(at, server)| self.connect_server(at, server)).collect();
        let mut best = BestServer::new(self.role);
        let mut failed: Vec<PgFailure> = Vec::new();
        while let Ok(Some(tried)) = tokio::time::timeout_at(until, tries.next()).await {
            match tried {
                Err(failure) => failed.push(failure),
                Ok(session) => {
                    let seen = session.seen.clone();
                    if best.offer(&seen, session) {
                        break;
                    }
                    until = until.min(Instant::now() + GRACE);
                }
            }
        }
        let Some(session) = best.into_best() else {
            return Err(self.none_of(failed));
        };
        self.note_server(&session);
        Ok(session)
    }

    /// The error when no server is usable.
    fn none_of(&self, mut failed: Vec<PgFailure>) -> PgFailure {
        let late = || format!("no connection in {} ms", self.timeout.as_millis());
        match (self.has_several(), failed.pop()) {
            (false, Some(failure)) => failure,
            (_, None) => self.unavailable_failure(&self.server, late()),
            (true, Some(last)) => {
                failed.push(last);
                let silent = self.servers.len() > failed.len();
                let told = failed.iter().map(|failure| match failure {
                    PgFailure::Away { server, why } => format!("{server}: {why}"),
                    other => other.text(),
                });
                let told: Vec<String> = told.chain(silent.then(late)).collect();
                self.unavailable_failure(&self.server, told.join("; "))
            }
        }
    }

    /// Makes the server of this connection the last used one.
    fn note_server(&self, session: &PgConnection) {
        let before = self.known.borrow().clone();
        let seen = &session.seen;
        if before.at == Some(session.at) && before.timeline >= seen.timeline && before.waits == seen.waits {
            return;
        }
        self.known.send_modify(|known| {
            known.at = Some(session.at);
            known.timeline = known.timeline.max(seen.timeline);
            known.waits = seen.waits;
        });
        let server = self.servers.get(session.at).map_or("", |server| &server.name);
        if self.has_several() && self.role.requires_writes() {
            tracing::info!(
                server,
                timeline = seen.timeline,
                "this PostgreSQL server is written from now on"
            );
            if !seen.waits {
                tracing::warn!(
                    server,
                    "`synchronous_standby_names` is empty there: at a failover, what it acknowledged since may be lost"
                );
            }
        }
    }

    /// Opens a connection to this server, if the server is usable.
    async fn connect_server(&self, at: usize, server: &PgServer) -> Result<PgConnection, PgFailure> {
        let connecting = async {
            let (client, connection) = server.config.connect(self.tls.clone()).await?;
            let line = Arc::new(ConnectionTimeline::new(self.known.subscribe()));
            let warned = Arc::new(AtomicBool::new(false));
            let heard = ServerMessageSink {
                warned: Arc::clone(&warned),
                bell: Arc::clone(&self.bell),
            };
            let task = spawn_task(drive_connection(connection, Arc::clone(&line), heard));
            let mut session = PgConnection {
                client,
                task,
                prepared: Mutex::default(),
                at,
                seen: ServerCondition::default(),
                line,
                warned,
                bell: Arc::clone(&self.bell),
                listens: OnceLock::new(),
            };
            session.client.batch_execute(&self.begin).await?;
            if self.has_several() || self.role != Role::Any {
                let row = session.client.query_one(servers::LOOK, &[]).await?;
                let timeline: i32 = row.try_get(2)?;
                session.seen = ServerCondition {
                    standby: row.try_get(0)?,
                    read_only: row.try_get(1)?,
                    timeline: timeline.cast_unsigned(),
                    waits: row.try_get(3)?,
                };
                session.line.set_timeline(session.seen.timeline);
            }
            Ok::<_, tokio_postgres::Error>(session)
        };
        let session = match tokio::time::timeout(self.timeout, connecting).await {
            Ok(Ok(session)) => session,
            Ok(Err(error)) => {
                return Err(self.unavailable_failure(&server.name, add_hint(&error_text(&error))));
            }
            Err(_) => {
                let why = format!("no connection in {} ms", self.timeout.as_millis());
                return Err(self.unavailable_failure(&server.name, why));
            }
        };
        if let Some(why) = self.role.refusal_reason(&session.seen) {
            return Err(self.unavailable_failure(&server.name, why.to_owned()));
        }
        if session.is_left_behind() {
            let why = "it was left behind by a failover: another server is its successor".to_owned();
            return Err(self.unavailable_failure(&server.name, why));
        }
        Ok(session)
    }
}

/// Checks that the URL and the options do not contradict each other.
fn check_config(config: &Config, options: &Options) -> Result<(), SetupError> {
    let url = options.url.name();
    if config.get_hosts().is_empty() {
        return Err(SetupError(format!("the URL in `{url}` names no host")));
    }
    let (hosts, ports) = (config.get_hosts().len(), config.get_ports().len());
    if ports > 1 && ports != hosts {
        return Err(SetupError(format!(
            "the URL in `{url}` names {hosts} hosts and {ports} ports"
        )));
    }
    if config.get_user().is_none() {
        return Err(SetupError(format!("the URL in `{url}` names no user")));
    }
    if options.password.is_some() && config.get_password().is_some() {
        return Err(SetupError(
            "the URL holds a password and `secret_ref` names another; leave one out".to_owned(),
        ));
    }
    if options.tls == TlsMode::Disable
        && let Some(far) = config.get_hosts().iter().find(|host| !is_near(host))
    {
        return Err(SetupError(format!(
            "`tls = \"disable\"` is for a server on this machine, and `{}` is not: leave `tls` out",
            servers::name(far)
        )));
    }
    Ok(())
}

/// The statements at the start of every connection.
fn session_settings(options: &Options) -> String {
    let limit = options.operation_timeout.as_millis();
    let idle = options.idle_timeout.map(|time| time.as_millis().max(1));
    // A confirmed commit must be on the disk of the primary and of the synchronous standby, whatever the server's default says.
    // `search_path` is set last, so an earlier setting can't name a function of ours.
    format!(
        "SET statement_timeout = {limit}; SET lock_timeout = {limit}; SET idle_in_transaction_session_timeout = {idle}; \
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply'); \
         SET plan_cache_mode = force_custom_plan; SET TimeZone = 'UTC'; SET client_min_messages = warning; \
         SET search_path = \"{schema}\"",
        idle = idle.unwrap_or(limit.saturating_mul(2)),
        schema = options.schema,
    )
}

/// Receives the messages that a server sends without a request.
struct ServerMessageSink {
    warned: Arc<AtomicBool>,
    bell: Arc<NotifyChannel>,
}

/// Drives a connection until it ends, or until a failover leaves its server behind.
async fn drive_connection<S, T>(
    mut connection: Connection<S, T>,
    line: Arc<ConnectionTimeline>,
    heard: ServerMessageSink,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let served = async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            match message {
                Ok(AsyncMessage::Notice(notice)) if notice.severity() == "WARNING" => {
                    tracing::warn!(
                        code = notice.code().code(),
                        "PostgreSQL warns: {}",
                        notice.message()
                    );
                    // This must happen before the answer to the causing statement is passed on.
                    heard.warned.store(true, Ordering::SeqCst);
                }
                Ok(AsyncMessage::Notification(_)) => heard.bell.notify_waiters(),
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(error = %error_text(&error), "a connection to PostgreSQL ended");
                    return;
                }
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = line.left_behind() => {
            tracing::info!("a connection to a PostgreSQL server that a failover left behind is closed");
        }
    }
}

/// The connection's own task. It ends with its [`PgConnection`].
#[expect(
    clippy::disallowed_methods,
    reason = "the session aborts its task when it is dropped, and the pool bounds how many there are"
)]
fn spawn_task(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(task)
}

/// Starts opening a connection. The task ends by its deadline.
fn spawn_on<T: Send + 'static>(
    runtime: &Handle,
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn(task)
}

/// Adds a hint how to fix the error, if one is known.
fn add_hint(why: &str) -> String {
    if why.contains("does not support TLS") {
        return format!("{why}; for a server on this machine write `[postgres] tls = \"disable\"`");
    }
    // Another authority with the same name: its key did not sign this certificate.
    if why.contains("UnknownIssuer") || why.contains("BadSignature") {
        return format!("{why}; name its authority's certificate in `[postgres] ca_file`");
    }
    why.to_owned()
}

fn is_near(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    }
}

/// An open connection.
pub(crate) struct PgConnection {
    client: Client,
    task: JoinHandle<()>,
    prepared: Mutex<HashMap<String, Statement>>,
    /// The index of the server in the URL.
    at: usize,
    seen: ServerCondition,
    line: Arc<ConnectionTimeline>,
    /// The server sent a warning.
    warned: Arc<AtomicBool>,
    bell: Arc<NotifyChannel>,
    /// Set if this is the connection of its pool that listens.
    listens: OnceLock<Arc<()>>,
}

impl fmt::Debug for PgConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

impl Drop for PgConnection {
    fn drop(&mut self) {
        // A running statement is not awaited: when the connection ends, the server stops it and rolls back.
        self.task.abort();
    }
}

impl PgConnection {
    pub(crate) fn is_open(&self) -> bool {
        !self.client.is_closed()
    }

    /// The channel that notifications of the server wake.
    pub(crate) fn notify_channel(&self) -> &NotifyChannel {
        &self.bell
    }

    /// Makes this connection the listening one until it ends.
    pub(crate) fn keep_listener(&self, place: Arc<()>) {
        let _kept = self.listens.set(place); // silent-ok: it listens already
    }

    /// The server's timeline; 0: unknown.
    pub(crate) fn timeline(&self) -> u32 {
        self.seen.timeline
    }

    /// Whether a failover has replaced this connection's server.
    pub(crate) fn is_left_behind(&self) -> bool {
        self.line.is_left_behind()
    }

    /// Commits. If the server answers with a warning, the commit is in doubt: the server gave up waiting for its synchronous
    /// standby, and a failover may lose the commit.
    pub(crate) async fn commit(&self) -> Result<(), PgFailure> {
        self.warned.store(false, Ordering::SeqCst);
        match self.client.batch_execute("COMMIT").await {
            Ok(()) if self.is_left_behind() => {
                let why = "another server has become the primary meanwhile".to_owned();
                Err(PgFailure::Unknown(why))
            }
            Ok(()) if self.warned.load(Ordering::SeqCst) => {
                let why = "the server committed without its synchronous standby".to_owned();
                Err(PgFailure::Unknown(why))
            }
            Ok(()) => Ok(()),
            Err(error) if error.as_db_error().is_some() => Err(error.into()),
            Err(error) => Err(PgFailure::Unknown(error_text(&error))),
        }
    }

    /// Runs statements without parameters. The SQL must be our own text.
    pub(crate) async fn run_statements(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(sql).await
    }

    /// The prepared statement; the first use prepares it.
    async fn prepared_statement(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        let known = {
            let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
            prepared.get(sql).cloned()
        };
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if prepared.len() >= MAX_PREPARED {
            prepared.clear();
        }
        prepared.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub(crate) async fn query_rows(
        &self,
        sql: &str,
        params: StatementParams<'_>,
    ) -> Result<Vec<Row>, PgFailure> {
        let statement = self.prepared_statement(sql).await?;
        Ok(self.client.query(&statement, params).await?)
    }

    pub(crate) async fn query_first(
        &self,
        sql: &str,
        params: StatementParams<'_>,
    ) -> Result<Option<Row>, PgFailure> {
        Ok(self.query_rows(sql, params).await?.into_iter().next())
    }

    pub(crate) async fn run(&self, sql: &str, params: StatementParams<'_>) -> Result<u64, PgFailure> {
        let statement = self.prepared_statement(sql).await?;
        Ok(self.client.execute(&statement, params).await?)
    }

    /// Runs a query and returns the only column of its only row.
    pub(crate) async fn query_value<T>(&self, sql: &str, params: StatementParams<'_>) -> Result<T, PgFailure>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let statement = self.prepared_statement(sql).await?;
        let row = self.client.query_one(&statement, params).await?;
        Ok(row.try_get(0)?)
    }
}
