//! Opens connections, and holds the schema with its migrations.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::dir::{WriteDurability, make_private_file};
use crate::error::StateError;

/// `clwk`: identifies our databases, also for the tool `file`.
const APPLICATION_ID: i64 = 0x636c_776b;

/// Step N migrates a database from version N to N + 1. Never edit a released step; add a new one.
const MIGRATIONS: [&str; 12] = [
    V1, SIGNED, SPENT, GOVERNED, ATLASES, BY_OR, PEERS, EFFECTS, BOXES, MARKS, SEALS, LEARNT,
];

/// `(kind = 'a' OR kind = 'b' …)`: the condition of a partial index over some event types. A query must repeat it exactly to use
/// the index. It is not `kind IN (…)`, because then SQLite builds a table of the list for each such index at every insertion.
macro_rules! any_of {
    ($first:literal $(, $more:literal)*) => {
        concat!("(kind = '", $first, "'", $(" OR kind = '", $more, "'",)* ")")
    };
}

macro_rules! rare {
    () => {
        any_of!(
            "ckp.lifecycle.transition",
            "ckp.provider.completed",
            "session.started",
            "session.ended"
        )
    };
}

macro_rules! governed {
    () => {
        any_of!(
            "ckp.approval.requested",
            "ckp.approval.granted",
            "ckp.approval.revoked",
            "ckp.stop.engaged",
            "ckp.stop.lifted"
        )
    };
}

macro_rules! atlases {
    () => {
        any_of!("ckp.atlas.loaded", "ckp.atlas.removed")
    };
}

macro_rules! carp {
    () => {
        any_of!(
            "ckp.carp.session",
            "ckp.carp.issued",
            "ckp.carp.charged",
            "ckp.atlas.loaded",
            "ckp.atlas.removed",
            "session.ended"
        )
    };
}

macro_rules! peers {
    () => {
        any_of!("ckp.swarm.delegated", "ckp.swarm.reported", "ckp.swarm.broadcast")
    };
}

macro_rules! learnt {
    () => {
        any_of!("ckp.provider.adapted")
    };
}

/// The event types that have their own index.
const RARE_KINDS: &str = rare!();

/// Decisions of people, which every start reads.
const GOVERNED_KINDS: &str = governed!();

/// Loading and removal of Atlases. These events are few, and every erasure reads them.
pub(crate) const ATLAS_KINDS: &str = atlases!();

/// Events of Atlases and their sessions, which a start folds page by page in row order. The index has the same order.
const CARP_KINDS: &str = carp!();

/// Events about requests to peers and their reports, which every start folds page by page in row order.
const PEER_KINDS: &str = peers!();

/// Learned facts about providers, which every start reads.
const LEARNT_KINDS: &str = learnt!();

/// The condition of the partial index that holds all of these event types, if there is one.
pub(crate) fn partial_index<'a>(kinds: impl IntoIterator<Item = &'a str> + Clone) -> Option<&'static str> {
    [
        RARE_KINDS,
        GOVERNED_KINDS,
        ATLAS_KINDS,
        CARP_KINDS,
        PEER_KINDS,
        LEARNT_KINDS,
    ]
    .into_iter()
    .find(|index| {
        kinds
            .clone()
            .into_iter()
            .all(|kind| index.contains(&format!("'{kind}'")))
    })
}

/// Digests are random, so one index over all of them would rewrite a page per digest. Instead `events_content` has buckets of 4096
/// rows, and a lookup searches each bucket, newest first. Put this before a statement that reads `bucket`; the statement finds a
/// bucket's rows with `row >> 12 = bucket.n AND content_digest = …`.
pub(crate) const BUCKETS: &str = "WITH RECURSIVE bucket(n) AS (SELECT coalesce(max(row), 0) >> 12 FROM events \
     UNION ALL SELECT n - 1 FROM bucket WHERE n > 0)";

/// The first `sessions.verified` events of a chain were verified, and `verified_hash` is the hash of the last of them. A row of
/// `events` never changes, except for `content`, which can be erased.
const V1: &str = "
CREATE TABLE sessions (
  id INTEGER PRIMARY KEY, session BLOB NOT NULL UNIQUE, trace_id BLOB NOT NULL,
  events INTEGER NOT NULL, head BLOB NOT NULL, started INTEGER NOT NULL, last INTEGER NOT NULL,
  verified INTEGER NOT NULL DEFAULT 0, verified_hash BLOB) STRICT;
CREATE INDEX sessions_last ON sessions(last);
CREATE INDEX sessions_unverified ON sessions(id) WHERE verified <> events;

CREATE TABLE events (
  row INTEGER PRIMARY KEY, session INTEGER NOT NULL, sequence INTEGER NOT NULL, at INTEGER NOT NULL, kind TEXT NOT NULL,
  event_id BLOB NOT NULL, span BLOB NOT NULL, parent BLOB, payload TEXT NOT NULL, hash BLOB NOT NULL,
  content_digest BLOB, content BLOB) STRICT;
CREATE UNIQUE INDEX events_chain ON events(session, sequence);
CREATE INDEX events_rare ON events(kind) WHERE kind IN ('ckp.lifecycle.transition','ckp.provider.completed','session.started','session.ended');
CREATE INDEX events_rare_at ON events(kind, at) WHERE kind IN ('ckp.lifecycle.transition','ckp.provider.completed','session.started','session.ended');
CREATE INDEX events_content ON events(row >> 12, content_digest) WHERE content_digest IS NOT NULL;

CREATE TABLE inbox (
  n INTEGER PRIMARY KEY, message BLOB NOT NULL UNIQUE, session BLOB NOT NULL, state TEXT NOT NULL, reason TEXT) STRICT;
CREATE INDEX inbox_open ON inbox(n) WHERE state = 'open';

CREATE TABLE memory_parts (
  id INTEGER PRIMARY KEY, store TEXT NOT NULL, scope TEXT NOT NULL, entries INTEGER NOT NULL, UNIQUE (store, scope)) STRICT;
CREATE TABLE memory (
  n INTEGER PRIMARY KEY AUTOINCREMENT, part INTEGER NOT NULL, id TEXT NOT NULL, key TEXT, content TEXT NOT NULL, metadata TEXT,
  at INTEGER NOT NULL) STRICT;
CREATE UNIQUE INDEX memory_id ON memory(part, id);
CREATE INDEX memory_key ON memory(part, key) WHERE key IS NOT NULL;
CREATE INDEX memory_at ON memory(part, at);
CREATE VIRTUAL TABLE memory_words USING fts5(
  part, text, content='', contentless_delete=1, tokenize='porter unicode61 remove_diacritics 2');

CREATE TABLE answers (bucket INTEGER NOT NULL, key BLOB NOT NULL, row INTEGER NOT NULL, PRIMARY KEY (bucket, key)) STRICT, WITHOUT ROWID;
CREATE TABLE answer_buckets (bucket INTEGER PRIMARY KEY, last INTEGER NOT NULL) STRICT;

CREATE TABLE probe (id INTEGER PRIMARY KEY CHECK (id = 1), n INTEGER NOT NULL) STRICT;
INSERT INTO probe VALUES (1, 0);
";

/// Signed heads and the progress of their delivery; erasures whose files may still exist; the position of retention.
const SIGNED: &str = "
CREATE TABLE heads (size INTEGER PRIMARY KEY, root BLOB NOT NULL, peaks BLOB NOT NULL, at INTEGER NOT NULL, lines TEXT NOT NULL) STRICT;
CREATE TABLE deliveries (place TEXT PRIMARY KEY, size INTEGER NOT NULL, failures INTEGER NOT NULL, error TEXT) STRICT, WITHOUT ROWID;
CREATE TABLE erasing (digest BLOB PRIMARY KEY, session BLOB, before INTEGER, upto INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
";

/// `spent`: sums of spending by hour since the epoch and by budget. Spending on models that earlier versions recorded is converted.
/// `effects_open`: the index of effects with unknown outcome.
const SPENT: &str = "
CREATE TABLE spent (
  hour INTEGER NOT NULL, purse TEXT NOT NULL, tokens INTEGER NOT NULL, cost_microusd INTEGER NOT NULL,
  busy_ms INTEGER NOT NULL, calls INTEGER NOT NULL, bytes_out INTEGER NOT NULL, PRIMARY KEY (hour, purse)) STRICT, WITHOUT ROWID;
INSERT INTO spent SELECT at / 3600000000, 'agent',
  sum(coalesce(payload ->> '$.input_tokens', 0) + coalesce(payload ->> '$.output_tokens', 0)), 0, 0, 0, 0
  FROM events WHERE kind IN ('ckp.provider.completed','ckp.provider.failed') GROUP BY 1;
INSERT INTO spent SELECT at / 3600000000, 'provider:' || (payload ->> '$.provider'),
  sum(coalesce(payload ->> '$.input_tokens', 0) + coalesce(payload ->> '$.output_tokens', 0)), 0, 0, 0, 0
  FROM events WHERE kind IN ('ckp.provider.completed','ckp.provider.failed') AND payload ->> '$.provider' IS NOT NULL GROUP BY 1, 2;
CREATE TABLE effects_open (
  n INTEGER PRIMARY KEY, request TEXT NOT NULL UNIQUE, session BLOB NOT NULL, tool TEXT NOT NULL, parameters BLOB NOT NULL,
  at INTEGER NOT NULL) STRICT;
";

const GOVERNED: &str = "
CREATE INDEX events_governed ON events(kind) WHERE kind IN ('ckp.approval.requested','ckp.approval.granted','ckp.approval.revoked',\
     'ckp.stop.engaged','ckp.stop.lifted');
";

const ATLASES: &str =
    "CREATE INDEX events_atlas ON events(kind) WHERE kind IN ('ckp.atlas.loaded','ckp.atlas.removed');";

/// Partial indexes with `OR` instead of `IN`: `IN` took more than half of the time of an insertion. Also an index for the Atlas
/// events that a start folds. It only grows at its end, and its columns are enough to select the needed rows.
const BY_OR: &str = concat!(
    "DROP INDEX events_rare; DROP INDEX events_rare_at; DROP INDEX events_governed; DROP INDEX events_atlas;",
    "CREATE INDEX events_rare ON events(kind) WHERE ",
    rare!(),
    "; CREATE INDEX events_rare_at ON events(kind, at) WHERE ",
    rare!(),
    "; CREATE INDEX events_governed ON events(kind) WHERE ",
    governed!(),
    "; CREATE INDEX events_atlas ON events(kind) WHERE ",
    atlases!(),
    "; CREATE INDEX events_carp ON events(row, kind, at) WHERE ",
    carp!(),
    ";"
);

const PEERS: &str = concat!("CREATE INDEX events_peers ON events(row, kind) WHERE ", peers!());

/// A request id may be reused, so an effect with unknown outcome is also identified by its session and arguments.
const EFFECTS: &str = "
CREATE TABLE effects_unknown (
  n INTEGER PRIMARY KEY, request TEXT NOT NULL, session BLOB NOT NULL, tool TEXT NOT NULL, parameters BLOB NOT NULL,
  at INTEGER NOT NULL, UNIQUE (request, session, parameters)) STRICT;
INSERT INTO effects_unknown SELECT n, request, session, tool, parameters, at FROM effects_open;
DROP TABLE effects_open;
ALTER TABLE effects_unknown RENAME TO effects_open;
";

/// Conversations of channels, the platforms' message ids, and pending answers.
const BOXES: &str = "
CREATE TABLE conversations (
  channel TEXT NOT NULL, conversation TEXT NOT NULL, sender TEXT NOT NULL, session BLOB NOT NULL,
  PRIMARY KEY (channel, conversation, sender)) STRICT, WITHOUT ROWID;
CREATE TABLE platform_ids (
  channel TEXT NOT NULL, id TEXT NOT NULL, message BLOB NOT NULL, session BLOB NOT NULL, until INTEGER NOT NULL,
  PRIMARY KEY (channel, id)) STRICT, WITHOUT ROWID;
CREATE INDEX platform_ids_until ON platform_ids(until);
CREATE TABLE outbox (
  n INTEGER PRIMARY KEY, message BLOB NOT NULL UNIQUE, session BLOB NOT NULL, channel TEXT NOT NULL, conversation TEXT NOT NULL,
  sender TEXT NOT NULL, reply_to TEXT, text BLOB, at INTEGER NOT NULL, attempts INTEGER NOT NULL, next_at INTEGER NOT NULL,
  doubt INTEGER NOT NULL, dead INTEGER NOT NULL, reason TEXT) STRICT;
CREATE INDEX outbox_owed ON outbox(channel, conversation, n) WHERE dead = 0;
";

/// Provenance and owners of entries; their vectors; entries that compaction set aside; cached embeddings.
const MARKS: &str = "
ALTER TABLE memory_parts ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE memory_parts SET bytes = (SELECT coalesce(sum(length(content) + coalesce(length(metadata), 0)), 0) FROM memory WHERE part = memory_parts.id);
ALTER TABLE memory ADD COLUMN mark TEXT;
ALTER TABLE memory ADD COLUMN whose INTEGER NOT NULL DEFAULT 0;
CREATE TABLE memory_vectors (
  v INTEGER PRIMARY KEY, n INTEGER NOT NULL, part INTEGER NOT NULL, whose INTEGER NOT NULL, model TEXT NOT NULL, vector BLOB NOT NULL) STRICT;
CREATE INDEX memory_vectors_n ON memory_vectors(n);
CREATE INDEX memory_vectors_part ON memory_vectors(part, v);
CREATE TABLE memory_aside (
  n INTEGER PRIMARY KEY, part INTEGER NOT NULL, id TEXT NOT NULL, key TEXT, content TEXT NOT NULL, metadata TEXT, at INTEGER NOT NULL,
  mark TEXT, whose INTEGER NOT NULL, instead TEXT NOT NULL, since INTEGER NOT NULL) STRICT;
CREATE INDEX memory_aside_id ON memory_aside(part, id);
CREATE TABLE embeddings (model TEXT NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (model, digest)) STRICT, WITHOUT ROWID;
";

/// Encrypted stores: the reference of their key, a value that only that key opens, and the reference of the previous key.
const SEALS: &str = "
CREATE TABLE seals (store TEXT PRIMARY KEY, reference TEXT NOT NULL, proof BLOB NOT NULL, previous TEXT) STRICT, WITHOUT ROWID;
";

const LEARNT: &str = concat!(
    "CREATE INDEX events_learnt ON events(row, kind) WHERE ",
    learnt!()
);

/// Opens the write connection and migrates the schema.
pub(crate) fn open_writer(path: &Path, durability: WriteDurability) -> Result<Connection, StateError> {
    let error = || StateError::database_error(path);
    make_private_file(path)?;
    let connection = Connection::open(path).map_err(error())?;
    let configure = || -> rusqlite::Result<()> {
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", durability.synchronous_pragma())?;
        connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
        connection.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
        // All pages of a group fit, so no page is written twice.
        connection.pragma_update(None, "cache_size", -8000)?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(())
    };
    // Check the database before anything changes.
    check_identity(&connection, path)?;
    configure().map_err(error())?;
    migrate_schema(&connection, path)?;
    Ok(connection)
}

/// Opens a read-only connection. Works while another process owns the directory.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, StateError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(StateError::database_error(path))?;
    connection
        .busy_timeout(std::time::Duration::from_secs(5))
        .map_err(StateError::database_error(path))?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// The schema version of a state directory.
///
/// # Errors
/// There is no database, or it can't be read.
pub fn schema_version(state: &Path) -> Result<i64, StateError> {
    let database = state.join("state.db");
    std::fs::metadata(&database).map_err(StateError::io_error("there is no state in", state))?;
    let connection = open_reader(&database)?;
    let (version, _) = read_versions(&connection).map_err(StateError::database_error(&database))?;
    Ok(version)
}

/// Refuses a database of a later version or of another program.
pub(crate) fn check_identity(connection: &Connection, path: &Path) -> Result<(), StateError> {
    let (found, application) = read_versions(connection).map_err(StateError::database_error(path))?;
    let known = known_version();
    if found > known {
        return Err(StateError::Newer {
            path: path.to_owned(),
            found,
            known,
        });
    }
    // A new database has no version and no tables.
    let ours = match found {
        1.. => application == APPLICATION_ID,
        0 => application == 0 && count_objects(connection).map_err(StateError::database_error(path))? == 0,
        _ => false,
    };
    if ours {
        return Ok(());
    }
    Err(StateError::Foreign {
        path: path.to_owned(),
    })
}

fn count_objects(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
}

fn known_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

fn read_versions(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let application = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    Ok((version, application))
}

fn migrate_schema(connection: &Connection, path: &Path) -> Result<(), StateError> {
    let step = || -> rusqlite::Result<()> {
        let (found, _) = read_versions(connection)?;
        for (version, sql) in (0..).zip(MIGRATIONS).skip_while(|(version, _)| *version < found) {
            let next: i64 = version + 1;
            connection.execute_batch(&format!(
                "BEGIN IMMEDIATE; {sql}; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {next}; COMMIT;"
            ))?;
        }
        Ok(())
    };
    step().map_err(StateError::database_error(path))
}
