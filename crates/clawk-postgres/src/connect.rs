//! One connection: made within its deadline, with its statements prepared once.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row, Statement};

use crate::error::{Failure, SetupError, told};
use crate::options::{Options, TlsMode};
use crate::tls::Tls;

/// How our sessions are named in the server's lists.
const APPLICATION: &str = "clawk";
/// Statements that one connection keeps prepared.
const MAX_PREPARED: usize = 128;

/// Parameters of a statement.
pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Where the server is and what is said to it, from the options.
#[derive(Clone)]
pub(crate) struct Target {
    config: Config,
    tls: Tls,
    /// `HOST:PORT`, for messages.
    pub(crate) server: String,
    timeout: Duration,
    begin: String,
    /// Where connections live; empty: where they are asked for.
    pub(crate) runtime: Arc<OnceLock<Handle>>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.server)
    }
}

impl Target {
    /// Nothing is connected.
    pub(crate) fn new(options: &Options, tls: Tls) -> Result<Self, SetupError> {
        // The parser's error may quote the URL, which may hold a password.
        let parsed = options.url.expose().parse::<Config>();
        let mut config = parsed.map_err(|_| {
            SetupError(format!(
                "`{}` is not a valid URL of PostgreSQL (example: `postgres://clawk@db.example.com:5432/clawk`)",
                options.url.name()
            ))
        })?;
        if config.get_hosts().is_empty() {
            return Err(SetupError(format!(
                "the URL in `{}` names no host",
                options.url.name()
            )));
        }
        if config.get_user().is_none() {
            return Err(SetupError(format!(
                "the URL in `{}` names no user",
                options.url.name()
            )));
        }
        if let Some(password) = &options.password {
            if config.get_password().is_some() {
                return Err(SetupError(
                    "the URL holds a password and `secret_ref` names another; leave one out".to_owned(),
                ));
            }
            config.password(password.expose());
        }
        if options.tls == TlsMode::Disable {
            if let Some(far) = config.get_hosts().iter().find(|host| !is_near(host)) {
                return Err(SetupError(format!(
                    "`tls = \"disable\"` is for a server on this machine, and `{}` is not: leave `tls` out",
                    name(far)
                )));
            }
            config.ssl_mode(SslMode::Disable);
        } else {
            config.ssl_mode(SslMode::Require);
        }
        config.application_name(APPLICATION);
        config.connect_timeout(options.connect_timeout);
        config.keepalives_idle(Duration::from_secs(30));
        config.tcp_user_timeout(options.operation_timeout);
        let server = servers(&config);
        let limit = options.operation_timeout.as_millis();
        // `search_path` is set last so that an earlier setting can't name a function of ours.
        let begin = format!(
            "SET statement_timeout = {limit}; SET lock_timeout = {limit}; SET idle_in_transaction_session_timeout = {idle}; \
             SET plan_cache_mode = force_custom_plan; SET TimeZone = 'UTC'; SET client_min_messages = warning; \
             SET search_path = \"{schema}\"",
            idle = limit.saturating_mul(2),
            schema = options.schema,
        );
        Ok(Self {
            config,
            tls,
            server,
            timeout: options.connect_timeout,
            begin,
            runtime: Arc::default(),
        })
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> Result<Session, Failure> {
        let Some(runtime) = self.runtime.get() else {
            return self.connect_here().await;
        };
        let target = self.clone();
        match spawn_on(runtime, async move { target.connect_here().await }).await {
            Ok(connected) => connected,
            Err(error) => Err(Failure::Away {
                server: self.server.clone(),
                why: error.to_string(),
            }),
        }
    }

    async fn connect_here(&self) -> Result<Session, Failure> {
        let away = |why: String| Failure::Away {
            server: self.server.clone(),
            why,
        };
        let connecting = async {
            let (client, connection) = self.config.connect(self.tls.clone()).await?;
            let task = spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(error = %told(&error), "a connection to PostgreSQL ended");
                }
            });
            let session = Session {
                client,
                task,
                prepared: Mutex::default(),
            };
            session.client.batch_execute(&self.begin).await?;
            Ok::<_, tokio_postgres::Error>(session)
        };
        match tokio::time::timeout(self.timeout, connecting).await {
            Ok(Ok(session)) => Ok(session),
            Ok(Err(error)) => Err(away(cure(&told(&error)))),
            Err(_) => Err(away(format!("no connection in {} ms", self.timeout.as_millis()))),
        }
    }
}

/// The connection's own task; it ends with its [`Session`].
#[expect(
    clippy::disallowed_methods,
    reason = "the session aborts its task when it is dropped, and the pool bounds how many there are"
)]
fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(task)
}

/// A connection in the making; it ends by its deadline.
fn spawn_on<T: Send + 'static>(
    runtime: &Handle,
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn(task)
}

/// With what would mend it, where that is known.
fn cure(why: &str) -> String {
    if why.contains("does not support TLS") {
        return format!("{why}; for a server on this machine write `[postgres] tls = \"disable\"`");
    }
    // Another authority of the same name: its key did not sign this certificate.
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

fn name(host: &Host) -> String {
    match host {
        Host::Unix(path) => path.display().to_string(),
        Host::Tcp(name) => name.clone(),
    }
}

fn servers(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or_else(|| ports.first()).copied().unwrap_or(5432);
    let all = config.get_hosts().iter().enumerate();
    all.map(|(at, host)| format!("{}:{}", name(host), port(at)))
        .collect::<Vec<_>>()
        .join(",")
}

/// An open connection.
pub(crate) struct Session {
    client: Client,
    task: JoinHandle<()>,
    prepared: Mutex<HashMap<String, Statement>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A statement that still runs is not waited for: the server ends it with the connection, and rolls back.
        self.task.abort();
    }
}

impl Session {
    pub(crate) fn is_open(&self) -> bool {
        !self.client.is_closed()
    }

    /// Statements without parameters, of our own words only.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(sql).await
    }

    /// The statement, prepared at its first use.
    async fn statement(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
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

    pub(crate) async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Failure> {
        let statement = self.statement(sql).await?;
        Ok(self.client.query(&statement, params).await?)
    }

    pub(crate) async fn first(&self, sql: &str, params: Params<'_>) -> Result<Option<Row>, Failure> {
        Ok(self.rows(sql, params).await?.into_iter().next())
    }

    pub(crate) async fn run(&self, sql: &str, params: Params<'_>) -> Result<u64, Failure> {
        let statement = self.statement(sql).await?;
        Ok(self.client.execute(&statement, params).await?)
    }

    /// The only column of the only row.
    pub(crate) async fn value<T>(&self, sql: &str, params: Params<'_>) -> Result<T, Failure>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let statement = self.statement(sql).await?;
        let row = self.client.query_one(&statement, params).await?;
        Ok(row.try_get(0)?)
    }
}
