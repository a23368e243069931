//! Encryption of a state directory: which stores are encrypted and under which key, and the pass that seals everything anew.
//!
//! If one store of an agent is encrypted, all journal contents are encrypted, because turns contain memories.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError};

use clawk_kernel::ports::JournalError;
use clawk_recall::keys::{
    self, BEGUN, EncryptedStore, Keys, PROOF, SealKeyLookup, SealKeyReferences, StateKeyError, StateSealer,
    join_names,
};
use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::{SealKeyring, SealedEntryFields, is_sealed, is_sealed_text};
use rusqlite::{Connection, params};

use crate::blobs::BlobStore;
use crate::dir::StateDir;
use crate::error::StateError;
use crate::queue::SqliteWriterWork;
use crate::reader::StateDirReader;

mod functions;

pub(crate) use functions::{ResealError, teach};
use functions::{ResealFaults, shown, teach_resealing};

/// Rows that one commit of the pass seals anew.
const AT_ONCE: i64 = 500;

/// A row of `marks`: not everything is sealed with the key named in `seals` yet.
const UNFINISHED: &str = "sealing";

static FIND: OnceLock<SealKeyLookup> = OnceLock::new();

/// Sets how a key is found by its reference, once for the whole program.
pub fn find_keys_by(find: SealKeyLookup) {
    let _ = FIND.set(find); // silent-ok: the first word counts
}

fn encrypted_stores(connection: &Connection) -> rusqlite::Result<Vec<EncryptedStore>> {
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

fn refused_error(path: &Path, stores: impl IntoIterator<Item = String>, why: &str) -> StateError {
    StateError::Sealed {
        path: path.to_owned(),
        stores: join_names(stores),
        why: why.to_owned(),
    }
}

fn find_key(reference: &str) -> Result<SealKeyring, String> {
    keys::find_key(FIND.get().copied(), reference)
}

/// For a reader: without the key, only unsealed values can be read.
pub(crate) fn reader_sealer(connection: &Connection, path: &Path) -> Result<Arc<StateSealer>, StateError> {
    let known = encrypted_stores(connection).map_err(StateError::database_error(path))?;
    let seals = StateSealer::of_reader(&known, FIND.get().copied());
    let seals = Arc::new(seals);
    teach(connection, &seals).map_err(StateError::database_error(path))?;
    Ok(seals)
}

/// For the owner of a state directory: checks that the key is present and right, and seals what is not sealed with it yet.
pub(crate) fn settle_keys(
    connection: &Connection,
    path: &Path,
    blobs: &BlobStore,
    keys: Option<Keys>,
) -> Result<SettledSeals, StateError> {
    let database = || StateError::database_error(path);
    let known = encrypted_stores(connection).map_err(database())?;
    let names = || known.iter().map(|known| known.store.clone());
    let keys = match (keys, known.first()) {
        (Some(keys), _) => keys,
        (None, Some(first)) => Keys {
            vault: find_key(&first.reference).map_err(|why| refused_error(path, names(), &why))?,
            reference: first.reference.clone(),
            stores: BTreeSet::new(),
        },
        (None, None) => {
            let seals = Arc::new(StateSealer::default());
            teach(connection, &seals).map_err(database())?;
            return Ok(SettledSeals {
                seals,
                report: ResealReport::default(),
            });
        }
    };
    for known in &known {
        known
            .is_proved_by(&keys.vault)
            .map_err(|why| refused_error(path, [known.store.clone()], &why))?;
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
    let mut report = ResealReport::default();
    // Whoever brings an older key changes the key, or goes on where values could not be sealed.
    if unfinished || stale || keys.vault.has_older() {
        let faults = Arc::default();
        teach_resealing(connection, &seals, &faults).map_err(database())?;
        let pass = SqliteResealPass {
            connection,
            blobs: &blobs.clone().sealed_by(Arc::clone(&seals)),
            seals: &seals,
            whole: &whole,
            proved: &names().collect(),
            faults: &faults,
        };
        pass.run(&keys, &all).map_err(|error| match error {
            PassError::Database(error) => StateError::database_error(path)(error),
            PassError::Blob(error) => StateError::io_error("can't encrypt a content of", path)(error),
            PassError::Seal(why) => refused_error(path, all.iter().cloned(), &why),
        })?;
        report = std::mem::take(&mut *faults.lock().unwrap_or_else(PoisonError::into_inner));
        for fault in report.faults() {
            tracing::error!(
                value = fault.value,
                why = fault.why,
                "a value of the state can't be sealed"
            );
        }
    }
    Ok(SettledSeals { seals, report })
}

/// What opens and seals in an open state, and what its last pass could not seal.
#[derive(Debug)]
pub(crate) struct SettledSeals {
    pub(crate) seals: Arc<StateSealer>,
    pub(crate) report: ResealReport,
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
            if encrypted_stores(connection)?.is_empty() {
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
            .wait_until_durable()
            .await
    }

    /// What this opening of the directory could not seal with the current key, because it opens with none. Where it did not seal anything,
    /// there is nothing.
    #[must_use]
    pub fn reseal_report(&self) -> ResealReport {
        self.inner.reseal_report.clone()
    }

    /// What opens and seals; `None`: nothing is encrypted.
    #[must_use]
    pub fn vault(&self) -> Option<&SealKeyring> {
        self.inner.blobs.state_sealer().vault()
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
    /// Values that stay as they were: one that can't be opened stops no other.
    faults: &'a ResealFaults,
}

impl SqliteResealPass<'_> {
    fn run(&self, keys: &Keys, stores: &BTreeSet<String>) -> Result<(), PassError> {
        // The proofs come first: from the first sealed byte on, a start needs the key.
        self.commit_job(|| {
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
        self.commit_pages("events", |from, to| {
            let sql = "UPDATE events SET content = clawk_reseal(content, 'content', content_digest) \
                       WHERE row > ?1 AND row <= ?2 AND content IS NOT NULL";
            self.connection.prepare_cached(sql)?.execute([from, to]).map(drop)
        })?;
        self.commit_job(|| {
            let sql = "UPDATE embeddings SET vector = clawk_reseal(vector, 'embedding', digest)";
            self.connection.execute(sql, []).map(drop)
        })?;
        self.commit_job(|| {
            self.connection.execute("UPDATE inbox SET reason = NULL", [])?;
            let sql = "UPDATE outbox SET reason = clawk_reseal(reason, 'outbox', message)";
            self.connection.execute(sql, []).map(drop)
        })?;
        for table in ["memory", "memory_aside"] {
            self.commit_pages(table, |from, to| self.reseal_entries(table, stores, (from, to)))?;
        }
        self.commit_pages("memory_vectors", |from, to| {
            self.reseal_vectors(stores, (from, to))
        })?;
        self.commit_job(|| crate::memory::drop_dead_words(self.connection))?;
        for digest in self.blobs.all_digests()? {
            if let Err(error) = self.blobs.seal_anew(digest) {
                self.check(&error)?;
                self.add_fault(&format!("the file of the content {}", digest.to_hex()), &error);
            }
        }
        self.commit_job(|| {
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
        self.commit_job(|| {
            let sql = "DELETE FROM marks WHERE name = ?1";
            self.connection.execute(sql, [UNFINISHED]).map(drop)
        })
    }

    /// # Errors
    /// The value is of another key, and no other key was given: the change of the key was interrupted, and this key alone must not go on.
    fn check(&self, error: &ResealError) -> Result<(), PassError> {
        let has_older = self.seals.vault().is_some_and(SealKeyring::has_older);
        if error.is_of_another_key() && !has_older {
            return Err(PassError::Seal(error.to_string()));
        }
        Ok(())
    }

    fn add_fault(&self, value: &str, why: &dyn std::fmt::Display) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.add_fault(value, why);
    }

    /// What somebody without the key put into an encrypted store is not sealed for them.
    fn check_sealed(&self, store: &str, is_sealed: bool, what: &str) -> rusqlite::Result<()> {
        if is_sealed || !self.whole.contains(store) {
            return Ok(());
        }
        Err(seal_fault(format!(
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
                return Err(seal_fault(format!(
                    "store `{store}` is encrypted, and the proof of its key was taken out of `state.db`"
                )));
            }
        }
        Ok(())
    }

    fn commit_job(&self, job: impl FnOnce() -> rusqlite::Result<()>) -> Result<(), PassError> {
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
    fn commit_pages(
        &self,
        table: &str,
        job: impl Fn(i64, i64) -> rusqlite::Result<()>,
    ) -> Result<(), PassError> {
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
            self.commit_job(|| job(after, last))?;
            after = last;
        }
    }

    fn reseal_entries(
        &self,
        table: &str,
        stores: &BTreeSet<String>,
        page: (i64, i64),
    ) -> rusqlite::Result<()> {
        let select = "SELECT m.n, m.part, m.id, p.store, m.content, m.key, m.metadata, m.mark FROM ";
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
            self.check_sealed(&store, is_sealed_text(&content), "an entry")?;
            let current = self
                .seals
                .vault()
                .is_some_and(|vault| vault.is_current_text(&content));
            if !stores.contains(&store) || current {
                continue;
            }
            let bundle = if is_sealed_text(&content) {
                let place = format!("{}/{}", row.get::<_, i64>(1)?, row.get::<_, String>(2)?);
                match self.opened_entry(&place, &content) {
                    Ok(bundle) => bundle,
                    Err(error) => {
                        self.check(&error)
                            .map_err(|error| seal_fault(error.to_string()))?;
                        self.add_fault(&format!("the entry {} of `state.db`", shown(&place)), &error);
                        continue;
                    }
                }
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

    /// What a sealed entry of this place says.
    fn opened_entry(&self, place: &str, content: &str) -> Result<SealedEntryFields, ResealError> {
        let opened = self.seals.require_vault()?.open_text(place, content)?;
        let bundle = crate::memory::bundle_of(&opened.unwrap_or_default());
        Ok(bundle.map_err(|error| StateKeyError(error.to_string()))?)
    }

    fn reseal_vectors(&self, stores: &BTreeSet<String>, page: (i64, i64)) -> rusqlite::Result<()> {
        for store in stores {
            let sql = "SELECT vector FROM memory_vectors WHERE v > ?1 AND v <= ?2 AND part IN \
                       (SELECT id FROM memory_parts WHERE store = ?3)";
            let mut select = self.connection.prepare_cached(sql)?;
            let mut rows = select.query(params![page.0, page.1, store])?;
            while let Some(row) = rows.next()? {
                let vector: Vec<u8> = row.get(0)?;
                self.check_sealed(store, is_sealed(&vector), "a vector")?;
            }
            let sql = "UPDATE memory_vectors SET vector = clawk_reseal(vector, 'vector', n) \
                       WHERE v > ?1 AND v <= ?2 AND part IN (SELECT id FROM memory_parts WHERE store = ?3)";
            self.connection
                .prepare_cached(sql)?
                .execute(params![page.0, page.1, store])?;
        }
        Ok(())
    }
}

/// An SQL error that says what is wrong with a sealed value.
fn seal_fault(why: String) -> rusqlite::Error {
    rusqlite::Error::UserFunctionError(Box::new(StateKeyError(why)))
}
