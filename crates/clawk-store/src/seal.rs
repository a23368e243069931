//! Encryption of a state directory: the encrypted stores and their key, the SQL functions that open and seal, and the pass that
//! seals everything with a new key.
//!
//! If one store of an agent is encrypted, all journal contents are encrypted, because turns contain memories.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use clawk_kernel::ports::JournalError;
use clawk_recall::keys::{
    self, BEGUN, EncryptedStore, Keys, PROOF, SealKeyLookup, SealKeyReferences, StateKeyError, StateSealer,
    named,
};
use clawk_recall::seal::{SealKeyring, is_sealed, is_sealed_text};
use clawk_trace::chain::digest_of;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, params};

use crate::blobs::BlobStore;
use crate::dir::StateDir;
use crate::error::StateError;
use crate::queue::SqliteWriterWork;
use crate::reader::StateDirReader;

/// The number of rows that one commit of the pass seals.
const AT_ONCE: i64 = 500;

/// A row of `marks`: not everything is sealed with the key named in `seals` yet.
const UNFINISHED: &str = "sealing";

static FIND: OnceLock<SealKeyLookup> = OnceLock::new();

/// Sets how a key is found by its reference, once for the whole program.
pub fn find_keys_by(find: SealKeyLookup) {
    let _ = FIND.set(find); // silent-ok: the first word counts
}

fn known(connection: &Connection) -> rusqlite::Result<Vec<EncryptedStore>> {
    let there: bool = connection
        .prepare("SELECT 1 FROM sqlite_master WHERE name = 'seals'")?
        .exists([])?;
    if !there {
        return Ok(Vec::new()); // of an earlier version
    }
    let mut select = connection.prepare("SELECT store, reference, proof FROM seals ORDER BY store")?;
    let rows = select.query_map([], |row| {
        Ok(EncryptedStore {
            store: row.get(0)?,
            reference: row.get(1)?,
            proof: row.get(2)?,
        })
    })?;
    rows.collect()
}

fn refused(path: &Path, stores: impl IntoIterator<Item = String>, why: &str) -> StateError {
    StateError::Sealed {
        path: path.to_owned(),
        stores: named(stores),
        why: why.to_owned(),
    }
}

fn found(reference: &str) -> Result<SealKeyring, String> {
    keys::found(FIND.get().copied(), reference)
}

/// For a reader: without the key, only unsealed values can be read.
pub(crate) fn look(connection: &Connection, path: &Path) -> Result<Arc<StateSealer>, StateError> {
    let known = known(connection).map_err(StateError::database(path))?;
    let seals = StateSealer::of_reader(&known, FIND.get().copied());
    let seals = Arc::new(seals);
    teach(connection, &seals).map_err(StateError::database(path))?;
    Ok(seals)
}

/// For the owner of a state directory: checks that the key is present and right, and seals what is not sealed with it yet.
pub(crate) fn settle(
    connection: &Connection,
    path: &Path,
    blobs: &BlobStore,
    keys: Option<Keys>,
) -> Result<Arc<StateSealer>, StateError> {
    let database = || StateError::database(path);
    let known = known(connection).map_err(database())?;
    let names = || known.iter().map(|known| known.store.clone());
    let keys = match (keys, known.first()) {
        (Some(keys), _) => keys,
        (None, Some(first)) => Keys {
            vault: found(&first.reference).map_err(|why| refused(path, names(), &why))?,
            reference: first.reference.clone(),
            stores: BTreeSet::new(),
        },
        (None, None) => {
            let none = Arc::new(StateSealer::default());
            teach(connection, &none).map_err(database())?;
            return Ok(none);
        }
    };
    for known in &known {
        known
            .is_proved_by(&keys.vault)
            .map_err(|why| refused(path, [known.store.clone()], &why))?;
    }
    let all: BTreeSet<String> = names().chain(keys.stores.iter().cloned()).collect();
    let seals = Arc::new(StateSealer::new(keys.vault.clone(), all.clone()));
    teach(connection, &seals).map_err(database())?;
    let unfinished: bool = connection
        .prepare("SELECT 1 FROM marks WHERE name = ?1")
        .and_then(|mut select| select.exists([UNFINISHED]))
        .map_err(database())?;
    let whole: BTreeSet<String> = known
        .iter()
        .filter(|known| known.is_whole(&keys.vault))
        .map(|known| known.store.clone())
        .collect();
    let stale = whole.len() < all.len() || known.iter().any(|known| !keys.vault.is_current(&known.proof));
    if unfinished || stale {
        let pass = SqliteResealPass {
            connection,
            blobs: &blobs.clone().sealed_by(Arc::clone(&seals)),
            seals: &seals,
            whole: &whole,
            proved: &names().collect(),
        };
        pass.run(&keys, &all).map_err(|error| match error {
            PassError::Database(error) => StateError::database(path)(error),
            PassError::Blob(error) => StateError::io("can't encrypt a content of", path)(error),
            PassError::Seal(why) => refused(path, all.iter().cloned(), &why),
        })?;
    }
    Ok(seals)
}

#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error("{0}")]
    Database(rusqlite::Error),
    #[error("{0}")]
    Blob(#[from] std::io::Error),
    #[error("{0}")]
    Seal(String),
}

impl From<rusqlite::Error> for PassError {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            rusqlite::Error::UserFunctionError(error) => Self::Seal(error.to_string()),
            other => Self::Database(other),
        }
    }
}

impl StateDirReader {
    /// The references of the directory's keys; `None`: nothing is encrypted.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn key_references(&self) -> Result<Option<SealKeyReferences>, StateError> {
        self.with(|connection| {
            if known(connection)?.is_empty() {
                return Ok(None);
            }
            let sql = "SELECT reference, previous FROM seals ORDER BY store LIMIT 1";
            let found = connection.query_row(sql, [], |row| {
                Ok(SealKeyReferences {
                    current: row.get(0)?,
                    previous: row.get(1)?,
                })
            })?;
            Ok(Some(found))
        })
    }
}

impl StateDir {
    /// Records that the previous key is no longer needed.
    ///
    /// # Errors
    /// The database can't be written.
    pub async fn forget_previous_key(&self) -> Result<(), JournalError> {
        let job = |connection: &Connection| {
            connection.execute("UPDATE seals SET previous = NULL", [])?;
            Ok(true)
        };
        self.inner
            .queue
            .push(SqliteWriterWork::Run(Box::new(job)))?
            .durable()
            .await
    }

    /// The keyring; `None`: nothing is encrypted.
    #[must_use]
    pub fn vault(&self) -> Option<&SealKeyring> {
        self.inner.blobs.seals().vault()
    }
}

/// Seals everything with the current key: unsealed values, and values under an older key. It can be interrupted at any time: each
/// value names the key that sealed it, and the next start continues.
struct SqliteResealPass<'a> {
    connection: &'a Connection,
    blobs: &'a BlobStore,
    seals: &'a Arc<StateSealer>,
    /// Stores in which every entry is already sealed.
    whole: &'a BTreeSet<String>,
    /// Stores with a proof: they are or were being sealed.
    proved: &'a BTreeSet<String>,
}

impl SqliteResealPass<'_> {
    fn run(&self, keys: &Keys, stores: &BTreeSet<String>) -> Result<(), PassError> {
        // The proofs come first: from the first sealed byte on, a start needs the key.
        self.commit(|| {
            for store in stores.difference(self.proved) {
                self.is_new(store)?;
            }
            self.connection.execute(
                "INSERT OR REPLACE INTO marks (name, value) VALUES (?1, 1)",
                [UNFINISHED],
            )?;
            for store in stores {
                self.connection.execute(
                    "INSERT OR IGNORE INTO seals (store, reference, proof) VALUES (?1, ?2, clawk_seal(?3, 'store', ?1))",
                    params![store, keys.reference, BEGUN],
                )?;
            }
            Ok(())
        })?;
        self.pages("events", |from, to| {
            let sql = "UPDATE events SET content = clawk_anew(content, 'content', content_digest) \
                       WHERE row > ?1 AND row <= ?2 AND content IS NOT NULL";
            self.connection.prepare_cached(sql)?.execute([from, to]).map(drop)
        })?;
        self.commit(|| {
            let sql = "UPDATE embeddings SET vector = clawk_anew(vector, 'embedding', digest)";
            self.connection.execute(sql, []).map(drop)
        })?;
        self.commit(|| {
            self.connection.execute("UPDATE inbox SET reason = NULL", [])?;
            let sql = "UPDATE outbox SET reason = clawk_seal(CASE WHEN substr(reason, 1, 11) = '~Y2xhd2sAcz' \
                THEN substr(clawk_open(reason, 'outbox', message), 2) ELSE reason END, 'outbox', message)";
            self.connection.execute(sql, []).map(drop)
        })?;
        for table in ["memory", "memory_aside"] {
            self.pages(table, |from, to| self.entries(table, stores, (from, to)))?;
        }
        self.pages("memory_vectors", |from, to| self.vectors(stores, (from, to)))?;
        self.commit(|| crate::memory::drop_dead_words(self.connection))?;
        for digest in self.blobs.all()? {
            self.blobs.seal_anew(digest)?;
        }
        self.commit(|| {
            for store in stores {
                self.connection.execute(
                    "UPDATE seals SET previous = CASE WHEN reference <> ?2 THEN reference ELSE previous END, reference = ?2, \
                     proof = clawk_seal(?3, 'store', ?1) WHERE store = ?1",
                    params![store, keys.reference, PROOF],
                )?;
                self.connection.execute(
                    "UPDATE memory_parts SET bytes = (SELECT coalesce(sum(length(content)), 0) FROM memory \
                     WHERE part = memory_parts.id) WHERE store = ?1",
                    [store],
                )?;
            }
            Ok(())
        })?;
        // Free pages and the write-ahead log may still contain old values.
        self.connection.execute_batch("VACUUM")?;
        self.connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        self.commit(|| {
            let sql = "DELETE FROM marks WHERE name = ?1";
            self.connection.execute(sql, [UNFINISHED]).map(drop)
        })
    }

    /// Refuses unsealed values in a store that was already encrypted: somebody without the key wrote them.
    fn expected(&self, store: &str, is_sealed: bool, what: &str) -> rusqlite::Result<()> {
        if is_sealed || !self.whole.contains(store) {
            return Ok(());
        }
        Err(fault(format!(
            "{what} of store `{store}` in `state.db` is not encrypted, so it was not put there by clawk"
        )))
    }

    /// Checks that a store without a proof has no sealed values, as it is encrypted for the first time.
    fn is_new(&self, store: &str) -> rusqlite::Result<()> {
        for table in ["memory", "memory_aside"] {
            let sql = format!(
                "SELECT 1 FROM {table} WHERE part IN (SELECT id FROM memory_parts WHERE store = ?1) AND substr(content, 1, 1) = '~'"
            );
            if self.connection.prepare(&sql)?.exists([store])? {
                return Err(fault(format!(
                    "store `{store}` is encrypted, and the proof of its key was taken out of `state.db`"
                )));
            }
        }
        Ok(())
    }

    fn commit(&self, job: impl FnOnce() -> rusqlite::Result<()>) -> Result<(), PassError> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        match job() {
            Ok(()) => Ok(self.connection.execute_batch("COMMIT")?),
            Err(error) => {
                self.connection.execute_batch("ROLLBACK")?;
                Err(error.into())
            }
        }
    }

    /// Runs a job for each page of a table's rows, each in its own commit.
    fn pages(&self, table: &str, job: impl Fn(i64, i64) -> rusqlite::Result<()>) -> Result<(), PassError> {
        let sql = format!(
            "SELECT max(rowid) FROM (SELECT rowid FROM {table} WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)"
        );
        let mut after = 0_i64;
        loop {
            let last: Option<i64> = self
                .connection
                .prepare_cached(&sql)?
                .query_row([after, AT_ONCE], |row| row.get(0))?;
            let Some(last) = last else { return Ok(()) };
            self.commit(|| job(after, last))?;
            after = last;
        }
    }

    fn entries(&self, table: &str, stores: &BTreeSet<String>, page: (i64, i64)) -> rusqlite::Result<()> {
        let select = "SELECT m.n, m.part, m.id, p.store, m.content, m.key, m.metadata, m.mark, \
                      clawk_open(m.content, m.part, m.id) FROM ";
        let sql =
            format!("{select}{table} m JOIN memory_parts p ON p.id = m.part WHERE m.n > ?1 AND m.n <= ?2");
        let mut select = self.connection.prepare_cached(&sql)?;
        let mut rows = select.query([page.0, page.1])?;
        let update = format!(
            "UPDATE {table} SET content = clawk_seal(?2, part, id), key = clawk_name(?3), metadata = NULL, mark = NULL WHERE n = ?1"
        );
        let mut update = self.connection.prepare_cached(&update)?;
        let mut words = self
            .connection
            .prepare_cached("DELETE FROM memory_words WHERE rowid = ?1")?;
        while let Some(row) = rows.next()? {
            let (n, store): (i64, String) = (row.get(0)?, row.get(3)?);
            let content: String = row.get(4)?;
            self.expected(&store, is_sealed_text(&content), "an entry")?;
            let current = self
                .seals
                .vault()
                .is_some_and(|vault| vault.is_current_text(&content));
            if !stores.contains(&store) || current {
                continue;
            }
            let bundle = if is_sealed_text(&content) {
                crate::memory::bundle_of(&row.get::<_, String>(8)?)?
            } else {
                crate::memory::bundle_of_plain(&content, row.get(5)?, row.get(6)?, row.get(7)?)?
            };
            update.execute(params![n, bundle.text(), bundle.key])?;
            if table == "memory" {
                words.execute([n])?;
            }
        }
        Ok(())
    }

    fn vectors(&self, stores: &BTreeSet<String>, page: (i64, i64)) -> rusqlite::Result<()> {
        for store in stores {
            let sql = "SELECT vector FROM memory_vectors WHERE v > ?1 AND v <= ?2 AND part IN \
                       (SELECT id FROM memory_parts WHERE store = ?3)";
            let mut select = self.connection.prepare_cached(sql)?;
            let mut rows = select.query(params![page.0, page.1, store])?;
            while let Some(row) = rows.next()? {
                let vector: Vec<u8> = row.get(0)?;
                self.expected(store, is_sealed(&vector), "a vector")?;
            }
            let sql = "UPDATE memory_vectors SET vector = clawk_anew(vector, 'vector', n) \
                       WHERE v > ?1 AND v <= ?2 AND part IN (SELECT id FROM memory_parts WHERE store = ?3)";
            self.connection
                .prepare_cached(sql)?
                .execute(params![page.0, page.1, store])?;
        }
        Ok(())
    }
}

/// An SQL error that says what is wrong with a sealed value.
fn fault(why: String) -> rusqlite::Error {
    rusqlite::Error::UserFunctionError(Box::new(StateKeyError(why)))
}

/// Registers the SQL functions that open and seal values:
///
/// * `clawk_open(value, a, b)`: decrypts; returns an unsealed value unchanged.
/// * `clawk_sealed(value, a, b)`: decrypts; fails for an unsealed value.
/// * `clawk_kept(value, a, b)`: decrypts; fails for an unsealed value if there is a key.
/// * `clawk_holds(store)`: whether this store is encrypted.
/// * `clawk_seal(value, a, b)`: seals for the context `a/b`; fails without a key.
/// * `clawk_keep(value, a, b)`: seals if there is a key.
/// * `clawk_anew(value, a, b)`: seals with the current key; the value may be unsealed or sealed with another key.
/// * `clawk_name(text)`: the keyed digest that replaces a key in an index; NULL without a key.
pub(crate) fn teach(connection: &Connection, seals: &Arc<StateSealer>) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
    for (name, act) in [
        (
            "clawk_open",
            open as fn(&StateSealer, &Context<'_>) -> Result<Value, StateKeyError>,
        ),
        ("clawk_sealed", sealed),
        ("clawk_kept", kept),
        ("clawk_seal", close),
        ("clawk_keep", keep),
        ("clawk_anew", anew),
    ] {
        let seals = Arc::clone(seals);
        connection.create_scalar_function(name, 3, flags, move |context| {
            act(&seals, context).map_err(|fault| rusqlite::Error::UserFunctionError(Box::new(fault)))
        })?;
    }
    let flags = flags | FunctionFlags::SQLITE_DETERMINISTIC;
    let held = Arc::clone(seals);
    connection.create_scalar_function("clawk_holds", 1, flags, move |context| {
        let store: String = context.get(0)?;
        Ok(held.holds(&store))
    })?;
    let seals = Arc::clone(seals);
    connection.create_scalar_function("clawk_name", 1, flags, move |context| {
        let key: Option<String> = context.get(0)?;
        Ok(key.and_then(|key| Some(seals.vault()?.name(&key))))
    })
}

/// The context string `a/b`; bytes are written in hex.
fn place_of(context: &Context<'_>) -> String {
    let part = |index| match context.get_raw(index) {
        ValueRef::Null => String::new(),
        ValueRef::Integer(n) => n.to_string(),
        ValueRef::Real(x) => x.to_string(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(bytes) => hex::encode(bytes),
    };
    format!("{}/{}", part(1), part(2))
}

fn open(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    let value = context.get_raw(0);
    match value {
        ValueRef::Text(text) => {
            let text = String::from_utf8_lossy(text);
            if !is_sealed_text(&text) {
                return Ok(Value::Text(text.into_owned()));
            }
            let opened = seals.known()?.open_text(&place_of(context), &text)?;
            // The mark stays at the beginning: a bundle follows.
            Ok(Value::Text(format!("~{}", opened.unwrap_or_default())))
        }
        ValueRef::Blob(bytes) if is_sealed(bytes) => {
            let opened = seals.known()?.open(&place_of(context), bytes)?;
            Ok(opened.map_or(Value::Null, Value::Blob))
        }
        _ => same(context),
    }
}

fn sealed(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    let is_sealed = match context.get_raw(0) {
        ValueRef::Text(text) => text.starts_with(b"~"),
        ValueRef::Blob(bytes) => is_sealed(bytes),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => false,
    };
    if !is_sealed {
        return Err(StateKeyError(format!(
            "a value of an encrypted store in `state.db` is not encrypted (`{}`), so it was not put there by clawk",
            shown(&place_of(context))
        )));
    }
    open(seals, context)
}

fn kept(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    match seals.vault() {
        Some(_) => sealed(seals, context),
        None => open(seals, context),
    }
}

/// The context string in a form that is safe to show: the author of the database chose its ids.
fn shown(place: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || "/-_.:".contains(*c);
    place.chars().filter(plain).take(80).collect()
}

fn same(context: &Context<'_>) -> Result<Value, StateKeyError> {
    context.get(0).map_err(|error| StateKeyError(error.to_string()))
}

fn close(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    let vault = seals.known()?;
    match context.get_raw(0) {
        ValueRef::Text(text) => {
            let text = String::from_utf8_lossy(text);
            Ok(Value::Text(vault.seal_text(&place_of(context), &text)?))
        }
        ValueRef::Blob(bytes) => Ok(Value::Blob(vault.seal(&place_of(context), bytes)?)),
        ValueRef::Null => Ok(Value::Null),
        ValueRef::Integer(_) | ValueRef::Real(_) => Err(StateKeyError("numbers are not sealed".to_owned())),
    }
}

fn keep(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    match seals.vault() {
        Some(_) => close(seals, context),
        None => same(context),
    }
}

fn anew(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    let (vault, place) = (seals.known()?, place_of(context));
    let ValueRef::Blob(bytes) = context.get_raw(0) else {
        return Err(StateKeyError("only bytes are sealed anew".to_owned()));
    };
    let digest = match context.get_raw(2) {
        ValueRef::Blob(digest) => <[u8; 32]>::try_from(digest).ok(), // silent-ok: then it is not a content
        _ => None,
    };
    // A person's text may look sealed, so the digest decides.
    let plain = digest.is_some_and(|digest| digest_of(bytes).0 == digest);
    if !plain && vault.is_current(bytes) {
        return Ok(Value::Blob(bytes.to_vec()));
    }
    let opened = if plain { None } else { vault.open(&place, bytes)? };
    let opened = opened.as_deref().unwrap_or(bytes);
    Ok(Value::Blob(vault.seal(&place, opened)?))
}
