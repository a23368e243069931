//! `clawk state move`: moves a whole state between places, each SQLite or PostgreSQL (R48).
//!
//! The order makes an interrupted move harmless: the source is first marked as moved, and the target is written by one commit at
//! the end. A move that was interrupted in between can be run again and reads the unchanged source.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clawk_events::payload::LifecycleChanged;
use clawk_kernel::moved::{MovedRow, StateTotals, TABLES, Table};
use serde::Serialize;

use super::kept::{Keys, StateReader, holds_state, public_key, sqlite};
use super::server::{StateServer, url_of};

/// The result of a move.
#[derive(Debug, Serialize)]
pub(crate) struct StateMoveReport {
    /// Rows of each table, and number of files beside the journal.
    pub(crate) moved: BTreeMap<&'static str, u64>,
    /// Number of chains with the same head on both sides.
    pub(crate) heads: u64,
    /// Every chain of the target was verified from its first event.
    pub(crate) valid: bool,
}

/// One side of a move.
#[derive(Debug)]
enum StateMoveEndpoint {
    /// A directory that holds the state.
    Dir(PathBuf),
    /// A server, and the host's directory beside it, if one was named.
    Server {
        server: Box<StateServer>,
        dir: Option<PathBuf>,
    },
}

impl StateMoveEndpoint {
    fn from_flag(flag: &Path) -> Result<Self> {
        if let Some(url) = url_of(flag) {
            let server = StateServer::of_url(url, &super::server::StateTable::default())?;
            return Ok(Self::Server {
                server: Box::new(server),
                dir: None,
            });
        }
        let dir = std::path::absolute(flag).with_context(|| format!("can't resolve `{}`", flag.display()))?;
        Ok(match StateServer::from_dir(&dir)? {
            Some(server) => Self::Server {
                server: Box::new(server),
                dir: Some(dir),
            },
            None => Self::Dir(dir),
        })
    }

    /// Returns a description without a password, which is also stored in the source.
    fn display_location(&self) -> String {
        match self {
            Self::Dir(dir) => dir.display().to_string(),
            Self::Server { server, .. } => server.display_location(),
        }
    }

    /// Returns the directory with the host's keys and other files.
    fn files_dir(&self) -> Option<&Path> {
        match self {
            Self::Dir(dir) => Some(dir),
            Self::Server { dir, .. } => dir.as_deref(),
        }
    }
}

/// The side that is read.
enum StateMoveSource {
    Sqlite(Box<sqlite::SqliteStateExport>),
    #[cfg(feature = "postgres")]
    Postgres(Box<super::postgres::moving::PgMoveSource>),
}

impl StateMoveSource {
    fn open(place: &StateMoveEndpoint, target: &str) -> Result<Self> {
        match place {
            StateMoveEndpoint::Dir(dir) => {
                if !holds_state(dir) {
                    bail!(
                        "there is no state in `{}`: no agent has run with it",
                        dir.display()
                    );
                }
                Ok(Self::Sqlite(Box::new(sqlite::SqliteStateExport::open(
                    dir, target,
                )?)))
            }
            #[cfg(feature = "postgres")]
            StateMoveEndpoint::Server { server, .. } => Ok(Self::Postgres(Box::new(
                super::postgres::moving::PgMoveSource::open(server, target)?,
            ))),
            #[cfg(not(feature = "postgres"))]
            StateMoveEndpoint::Server { .. } => left_out(),
        }
    }

    fn next_page(&mut self, table: &'static Table) -> Result<Vec<MovedRow>> {
        match self {
            Self::Sqlite(source) => Ok(source.next_page(table)?),
            #[cfg(feature = "postgres")]
            Self::Postgres(source) => Ok(source.next_page(table)?),
        }
    }

    fn state_totals(&mut self) -> StateTotals {
        match self {
            Self::Sqlite(source) => source.crossed_totals(),
            #[cfg(feature = "postgres")]
            Self::Postgres(source) => source.state_totals(),
        }
    }

    /// Returns the agent's name. It is needed because a schema holds exactly one agent.
    fn agent_name(&self, place: &StateMoveEndpoint) -> Result<String> {
        match self {
            Self::Sqlite(_) => agent_of(place.files_dir().unwrap_or(Path::new("."))),
            #[cfg(feature = "postgres")]
            Self::Postgres(source) => Ok(source.agent.clone()),
        }
    }

    /// Returns the key of its encrypted stores.
    fn sealed_by(&self) -> Option<Keys> {
        match self {
            Self::Sqlite(source) => source.keys(),
            #[cfg(feature = "postgres")]
            Self::Postgres(source) => source.sealed_by(),
        }
    }

    /// Returns the public keys that signed its heads.
    fn signing_keys(&self, place: &StateMoveEndpoint) -> Result<Vec<String>> {
        match self {
            Self::Sqlite(_) => {
                let key = place.files_dir().map(public_key).transpose()?.flatten();
                Ok(key.map(|key| key.to_hex()).into_iter().collect())
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(source) => Ok(source.keys.clone()),
        }
    }

    fn mark_moved(&mut self, target: &str) -> Result<()> {
        match self {
            Self::Sqlite(source) => Ok(source.mark_moved(target)?),
            #[cfg(feature = "postgres")]
            Self::Postgres(source) => Ok(source.mark_moved(target)?),
        }
    }
}

/// The side that is written.
enum StateMoveTarget {
    Sqlite(Box<sqlite::SqliteStateImport>),
    #[cfg(feature = "postgres")]
    Postgres(Box<super::postgres::moving::PgMoveTarget>),
}

impl StateMoveTarget {
    fn begin_move(place: &StateMoveEndpoint, agent: &str, keys: Option<Keys>) -> Result<Self> {
        match place {
            StateMoveEndpoint::Dir(dir) => Ok(Self::Sqlite(Box::new(sqlite::SqliteStateImport::begin(
                dir, keys,
            )?))),
            #[cfg(feature = "postgres")]
            StateMoveEndpoint::Server { server, .. } => Ok(Self::Postgres(Box::new(
                super::postgres::moving::PgMoveTarget::begin_move(server, agent, keys)?,
            ))),
            #[cfg(not(feature = "postgres"))]
            StateMoveEndpoint::Server { .. } => {
                let _unused = agent;
                left_out()
            }
        }
    }

    fn add_rows(&mut self, table: &'static Table, rows: Vec<MovedRow>) -> Result<()> {
        match self {
            Self::Sqlite(target) => Ok(target.add_rows(table, rows)?),
            #[cfg(feature = "postgres")]
            Self::Postgres(target) => Ok(target.add_rows(table, rows)?),
        }
    }

    fn stored_totals(&mut self) -> Result<StateTotals> {
        match self {
            Self::Sqlite(target) => Ok(target.stored_totals()?),
            #[cfg(feature = "postgres")]
            Self::Postgres(target) => Ok(target.stored_totals()?),
        }
    }

    /// Copies the files beside the journal to a directory target.
    fn copy_files(&self, from: Option<&Path>) -> Result<u64> {
        match (self, from) {
            (Self::Sqlite(target), Some(from)) => Ok(sqlite::copy_files(from, target.folder())?),
            (_, _) => Ok(0),
        }
    }

    /// Commits the target. `keys`: for a schema, the public keys of its hosts. A directory already has its key.
    fn commit(self, keys: &[String]) -> Result<()> {
        match self {
            Self::Sqlite(target) => {
                tracing::debug!(keys = keys.len(), "the directory takes its place");
                Ok(target.commit()?)
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(target) => Ok(target.commit(keys)?),
        }
    }
}

#[cfg(not(feature = "postgres"))]
fn left_out<T>() -> Result<T> {
    bail!(
        "this build of clawk leaves PostgreSQL out: build with `cargo build --release --features postgres`, or use a shipped build \
         (`cargo xtask dist`)"
    )
}

/// Returns the name of the agent whose journal is in the directory.
fn agent_of(dir: &Path) -> Result<String> {
    let reader = StateReader::open(dir)?;
    let scan = clawk_kernel::ports::JournalScan {
        kinds: &[clawk_kernel::kind::LIFECYCLE],
        limit: 1,
        ..clawk_kernel::ports::JournalScan::default()
    };
    let first = reader.recorded_events(&scan)?.into_iter().next();
    let first = first.with_context(|| {
        format!(
            "the journal in `{}` names no agent: none has run with it",
            dir.display()
        )
    })?;
    let changed = LifecycleChanged::read(&first.kind, &first.payload);
    let changed = changed.with_context(|| {
        format!(
            "the journal in `{}` does not say which agent ran with it",
            dir.display()
        )
    })?;
    Ok(changed.agent)
}

/// Moves a state. `tell` receives the progress of each page: the table, and the number of copied rows.
///
/// # Errors
/// The source is being served or holds no state, the target is not empty, the copy differs from the source, or a side can't be
/// reached.
pub(crate) fn run(from: &Path, to: &Path, tell: &mut dyn FnMut(&str, u64)) -> Result<StateMoveReport> {
    let (from, to) = (
        StateMoveEndpoint::from_flag(from)?,
        StateMoveEndpoint::from_flag(to)?,
    );
    let target = to.display_location();
    if from.display_location() == target {
        bail!("both sides are `{target}`");
    }
    let mut source = StateMoveSource::open(&from, &target)?;
    let agent = source.agent_name(&from)?;
    let keys = source.signing_keys(&from)?;
    let mut place = StateMoveTarget::begin_move(&to, &agent, source.sealed_by())?;
    let (mut moved, heads) = copy_tables(&mut source, &mut place, tell)?;
    let signs = moved.get("heads").is_some_and(|heads| *heads > 0);
    if signs && matches!(to, StateMoveEndpoint::Dir(_)) && from.files_dir().is_none() {
        bail!(
            "the state has signed heads, and the key that signs them lies in the directory of the host that served it: name that \
             directory with `--from` instead of the URL"
        );
    }
    moved.insert("files", place.copy_files(from.files_dir())?);
    source.mark_moved(&target)?;
    place.commit(&keys)?;
    let valid = match &to {
        StateMoveEndpoint::Dir(dir) => StateReader::open(dir)?.verify(None)?.valid,
        #[cfg(feature = "postgres")]
        StateMoveEndpoint::Server { server, .. } => super::postgres::moving::verify_chains(server)?,
        #[cfg(not(feature = "postgres"))]
        StateMoveEndpoint::Server { .. } => false,
    };
    Ok(StateMoveReport { moved, heads, valid })
}

/// Copies every row of every table. Returns the number of rows and of chains.
fn copy_tables(
    source: &mut StateMoveSource,
    place: &mut StateMoveTarget,
    tell: &mut dyn FnMut(&str, u64),
) -> Result<(BTreeMap<&'static str, u64>, u64)> {
    for table in &TABLES {
        let mut crossed = 0;
        loop {
            let rows = source.next_page(table)?;
            if rows.is_empty() {
                break;
            }
            crossed += u64::try_from(rows.len()).unwrap_or(u64::MAX);
            place.add_rows(table, rows)?;
            tell(table.name, crossed);
        }
    }
    let (went, came) = (source.state_totals(), place.stored_totals()?);
    Ok((compare_totals(&went, &came)?, came.chains))
}

/// Copies a server's current state to a directory, while hosts may serve it. Used for tests without effects on the state. Creates
/// nothing if the server holds no state yet.
///
/// # Errors
/// The state is larger than `most` bytes, the server can't be reached, or the key of encrypted stores is missing or wrong.
#[cfg(feature = "postgres")]
pub(crate) fn copy_of_server(server: &StateServer, to: &Path, most: u64) -> Result<()> {
    let Some(source) = super::postgres::moving::PgMoveSource::as_of_now(server, most)? else {
        return Ok(());
    };
    let mut source = StateMoveSource::Postgres(Box::new(source));
    let mut place =
        StateMoveTarget::begin_move(&StateMoveEndpoint::Dir(to.to_owned()), "", source.sealed_by())?;
    copy_tables(&mut source, &mut place, &mut |_, _| {})?;
    place.commit(&[])
}

/// Checks that both sides have the same totals.
fn compare_totals(went: &StateTotals, came: &StateTotals) -> Result<BTreeMap<&'static str, u64>> {
    for table in &TABLES {
        let of = |sum: &StateTotals| sum.rows.get(table.name).copied().unwrap_or(0);
        if of(went) != of(came) {
            bail!(
                "{} rows of `{}` were read and {} are in the target: nothing was moved",
                of(went),
                table.name,
                of(came)
            );
        }
    }
    if (went.chains, &went.heads) != (came.chains, &came.heads) {
        bail!("the heads of the chains differ in the target: nothing was moved");
    }
    Ok(came.rows.clone())
}
