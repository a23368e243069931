//! A database: a bounded pool of connections. One operation at a time uses a connection.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_secrets::EnvironmentSource;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::connect::{ConnectionTarget, PgConnection};
use crate::error::{PgFailure, SetupError};
use crate::migrate::{self, PgExtensions};
use crate::options::Options;
use crate::tls::{self, PgTlsConnector};

/// How long an idle connection may take to answer before a new one replaces it.
const WAKE: Duration = Duration::from_secs(2);

/// A PostgreSQL database with our schema. Clones share its connections.
#[derive(Debug, Clone)]
pub struct PgDatabase {
    shared: Arc<PgPool>,
}

#[derive(Debug)]
struct PgPool {
    target: ConnectionTarget,
    options: Options,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<PgConnection>>,
    /// Set once the schema version is checked; holds the server's extensions.
    ready: OnceCell<PgExtensions>,
}

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All its statements see the same snapshot.
    Read,
    /// Each statement sees earlier commits. A writer locks the parts that it changes.
    Write,
}

impl Mode {
    const fn begin_statement(self) -> &'static str {
        match self {
            Self::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Self::Write => "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
        }
    }
}

impl PgDatabase {
    /// Checks the options. The first operation connects, so an unreachable server does not prevent the agent's start.
    ///
    /// # Errors
    /// The options contradict each other, the URL is not valid, or a certificate file can't be used.
    pub fn new(options: Options, env: &EnvironmentSource) -> Result<Self, SetupError> {
        if let Some(fault) = options.find_fault() {
            return Err(SetupError(fault));
        }
        let tls = PgTlsConnector(tls::client_config(options.tls, options.ca_file.as_deref(), env)?);
        let target = ConnectionTarget::new(&options, tls)?;
        Ok(Self {
            shared: Arc::new(PgPool {
                target,
                places: Arc::new(Semaphore::new(options.connections)),
                idle: Mutex::default(),
                ready: OnceCell::new(),
                options,
            }),
        })
    }

    /// Runs one operation within its deadline. At the deadline the operation is dropped and the server rolls it back.
    pub(crate) async fn run_within_deadline<T>(
        &self,
        operation: impl Future<Output = Result<T, PgFailure>>,
    ) -> Result<T, PgFailure> {
        let limit = self.shared.options.operation_timeout;
        match timeout(limit, operation).await {
            Ok(done) => done,
            Err(_) => Err(PgFailure::Late {
                milliseconds: limit.as_millis(),
            }),
        }
    }

    /// Begins a transaction on its own connection.
    pub(crate) async fn begin_transaction(&self, mode: Mode) -> Result<PgTransaction, PgFailure> {
        let shared = &self.shared;
        let waiting = timeout(
            shared.options.connect_timeout,
            Arc::clone(&shared.places).acquire_owned(),
        );
        let Ok(Ok(place)) = waiting.await else {
            return Err(PgFailure::Busy {
                connections: shared.options.connections,
            });
        };
        while let Some(session) = self.take_idle() {
            if !session.is_open() || session.is_left_behind() {
                continue;
            }
            if let Ok(Ok(())) = timeout(WAKE, session.run_statements(mode.begin_statement())).await {
                return Ok(self.transaction(session, place));
            }
            // If one idle connection is dead, the older ones are dead too.
            self.lock_idle().clear();
        }
        let session = shared.target.connect().await?;
        let prepare = || async {
            let schema = &shared.options.schema;
            if shared.options.read_only {
                return migrate::check_schema(&session, schema)
                    .await
                    .map(|()| PgExtensions::default());
            }
            migrate::prepare_schema(&session, schema, shared.options.pgvector).await
        };
        shared.ready.get_or_try_init(prepare).await?;
        session.run_statements(mode.begin_statement()).await?;
        Ok(self.transaction(session, place))
    }

    /// Runs one read transaction within its deadline.
    pub(crate) async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&PgConnection) -> Result<T, PgFailure>,
    ) -> Result<T, PgFailure> {
        let operation = async {
            let tx = self.begin_transaction(Mode::Read).await?;
            let done = work(&tx).await;
            tx.commit_or_rollback(done).await
        };
        self.run_within_deadline(operation).await
    }

    /// Runs one write transaction within its deadline.
    pub(crate) async fn write<T>(
        &self,
        work: impl AsyncFnOnce(&PgConnection) -> Result<T, PgFailure>,
    ) -> Result<T, PgFailure> {
        let operation = async {
            let tx = self.begin_transaction(Mode::Write).await?;
            let done = work(&tx).await;
            tx.commit_or_rollback(done).await
        };
        self.run_within_deadline(operation).await
    }

    /// As [`Self::new`], but the connections live on this runtime, whatever the caller's runtime is. So a caller that blocks its
    /// thread still gets its answer.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_runtime(
        mut options: Options,
        env: &EnvironmentSource,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, SetupError> {
        options.pgvector &= !options.read_only;
        let made = Self::new(options, env)?;
        let _first = made.shared.target.runtime.set(runtime);
        Ok(made)
    }

    /// Completes when the server has notified since the last call. [`crate::bell::listen`] makes a connection listen.
    pub(crate) async fn wait_for_notification(&self) {
        self.shared.target.bell.wait_for_notification().await;
    }

    /// The schema of our tables.
    pub(crate) fn schema(&self) -> &str {
        &self.shared.options.schema
    }

    /// Whether the URL names more than one server.
    pub(crate) fn has_several(&self) -> bool {
        self.shared.target.has_several()
    }

    /// Asks all servers of the URL again, to detect that a failover has made another one the primary.
    pub(crate) async fn refresh_servers(&self) {
        if let Err(failure) = self.shared.target.refresh_servers().await {
            tracing::debug!(error = failure.text(), "no server of the URL can be written");
        }
    }

    /// Why a failover may lose acknowledged commits or leave two servers that accept writes. `None`: it can't, or there is only one
    /// server. Call it after the first operation.
    #[must_use]
    pub fn failover_risk(&self) -> Option<String> {
        let target = &self.shared.target;
        (target.has_several() && !target.waits_for_standby()).then(|| {
            format!(
                "the URL names several servers, and {} commits without waiting for a standby (`synchronous_standby_names` is empty there), \
                 so a failover may lose what was acknowledged",
                target.last_server().unwrap_or_else(|| target.server.clone())
            )
        })
    }

    /// The last used server, `HOST:PORT`.
    #[must_use]
    pub fn last_server(&self) -> Option<String> {
        self.shared.target.last_server()
    }

    fn transaction(&self, session: PgConnection, place: OwnedSemaphorePermit) -> PgTransaction {
        PgTransaction {
            database: self.clone(),
            session,
            _place: place,
        }
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<PgConnection>> {
        self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<PgConnection> {
        self.lock_idle().pop()
    }
}

/// A transaction. If it is dropped without [`PgTransaction::commit_or_rollback`], its connection closes and the server rolls back.
#[derive(Debug)]
pub(crate) struct PgTransaction {
    database: PgDatabase,
    session: PgConnection,
    _place: OwnedSemaphorePermit,
}

impl Deref for PgTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.session
    }
}

impl PgTransaction {
    /// The schema of the extension `vector`, if it may be used.
    pub(crate) fn vector_schema(&self) -> Option<&str> {
        let ready = self.database.shared.ready.get()?;
        ready.vector.as_deref()
    }

    /// Commits after `Ok`, rolls back after `Err`.
    pub(crate) async fn commit_or_rollback<T>(self, done: Result<T, PgFailure>) -> Result<T, PgFailure> {
        match done {
            Ok(done) => self.session.commit().await.map(|()| {
                self.database.lock_idle().push(self.session);
                done
            }),
            Err(failure) => {
                // silent-ok: a connection that can't roll back is closed, which rolls back too
                if self.session.run_statements("ROLLBACK").await.is_ok() {
                    self.database.lock_idle().push(self.session);
                }
                Err(failure)
            }
        }
    }
}
