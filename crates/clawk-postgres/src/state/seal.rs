//! Encryption of a state on a server: the keys, and the pass that seals everything with a new key.
//!
//! The server never gets the key. Journal contents, orders between hosts, entries and vectors are sealed and opened here. Full-text
//! indexes of encrypted stores are in each host's memory, and their vectors are compared there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::ports::JournalError;
use clawk_manifest::model::Store;
use clawk_recall::keys::{
    EncryptedStore, Keys, PROOF, SealKeyLookup, SealKeyReferences, StateSealer, find_key, join_names,
    place_of, proof_of,
};
use clawk_recall::seal::{SealKeyring, is_sealed};
use clawk_trace::chain::digest_of;
use tokio_util::sync::CancellationToken;

use super::boxes;
use super::lease::{self, LeaseAcquisition};
use super::row::{self, row_limit};
use super::{FencingToken, PgReader, PgState, PgStateError, ServingOptions, StateSharing, check, spawn_task};
use crate::connect::PgConnection;
use crate::error::PgFailure;
use crate::memory::PgMemory;
use crate::pool::{Mode, PgDatabase};

/// The number of contents that one transaction of the pass seals.
const AT_ONCE: usize = 64;
/// A row of `marks`: not everything is sealed with the key named in `seals` yet.
const UNFINISHED: &str = "sealing";
/// How long a crashed host may still hold its lease.
const PATIENCE: Duration = Duration::from_secs(5);
/// Tables whose dead rows may still contain the old values.
const REWRITTEN: [&str; 6] = [
    "contents",
    "inbox",
    "memory",
    "memory_aside",
    "memory_vectors",
    "outbox",
];

pub(super) async fn encrypted_stores(session: &PgConnection) -> Result<Vec<EncryptedStore>, PgFailure> {
    let there: bool = session
        .query_value("SELECT to_regclass('seals') IS NOT NULL", &[])
        .await?;
    if !there {
        return Ok(Vec::new()); // of an earlier version, by whoever only reads
    }
    let rows = session
        .query_rows("SELECT store, reference, proof FROM seals ORDER BY store", &[])
        .await?;
    let one = |row: &tokio_postgres::Row| {
        Ok(EncryptedStore {
            store: row.try_get(0)?,
            reference: row.try_get(1)?,
            proof: row.try_get(2)?,
        })
    };
    rows.iter().map(one).collect()
}

fn refused_error(stores: impl IntoIterator<Item = String>, why: &str) -> PgStateError {
    PgStateError::Sealed {
        stores: join_names(stores),
        why: why.to_owned(),
    }
}

pub(super) fn seal_failure(error: impl std::fmt::Display) -> PgFailure {
    PgFailure::Schema(format!("what is encrypted in the state: {error}"))
}

/// Opens stored content.
pub(super) fn open_content(
    seals: &StateSealer,
    digest: clawk_proto::Digest,
    bytes: Vec<u8>,
) -> Result<Vec<u8>, PgFailure> {
    seals.open_content(digest, bytes).map_err(seal_failure)
}

/// The context string for sealing a secret that all hosts share.
pub(super) const SECRET: &str = "secret";

/// Seals an order between hosts, which may contain a person's text or a shared secret.
pub(super) fn order_closed(
    seals: &StateSealer,
    what: &str,
    id: uuid::Uuid,
    said: Vec<u8>,
) -> Result<Vec<u8>, PgFailure> {
    let sealed = seals
        .closed_at(&format!("{what}/{id}"), &said)
        .map_err(seal_failure)?;
    Ok(sealed.unwrap_or(said))
}

/// Opens an order between hosts.
pub(super) fn order_opened(
    seals: &StateSealer,
    what: &str,
    id: uuid::Uuid,
    said: Vec<u8>,
) -> Result<Vec<u8>, PgFailure> {
    if !is_sealed(&said) {
        return Ok(said); // JSON and hexadecimal digits never begin as what is sealed does
    }
    let vault = seals.require_vault().map_err(seal_failure)?;
    let opened = vault.open(&format!("{what}/{id}"), &said).map_err(seal_failure)?;
    Ok(opened.unwrap_or(said))
}

/// The key state of a host that is about to serve.
pub(super) struct ServingKeyState {
    /// Opens and seals content.
    pub(super) seals: Arc<StateSealer>,
    /// The key; `None`: nothing is encrypted.
    keys: Option<Keys>,
    /// Something is not sealed with the key yet.
    pub(super) due: bool,
}

/// Checks that the key is present and right. Changes nothing.
pub(super) async fn check_key(
    database: &PgDatabase,
    serving: &ServingOptions,
) -> Result<ServingKeyState, PgStateError> {
    let (known, unfinished) = database
        .read(async |session| {
            let sql = "SELECT EXISTS (SELECT 1 FROM marks WHERE name = $1)";
            let unfinished: bool = session.query_value(sql, &[&UNFINISHED]).await?;
            Ok((encrypted_stores(session).await?, unfinished))
        })
        .await?;
    let names = || known.iter().map(|known| known.store.clone());
    let keys = match (serving.keys.clone(), known.first()) {
        (Some(keys), _) => keys,
        (None, Some(first)) => Keys {
            vault: find_key(serving.find, &first.reference).map_err(|why| refused_error(names(), &why))?,
            reference: first.reference.clone(),
            stores: BTreeSet::new(),
        },
        (None, None) => {
            return Ok(ServingKeyState {
                seals: Arc::default(),
                keys: None,
                due: false,
            });
        }
    };
    for known in &known {
        known
            .is_proved_by(&keys.vault)
            .map_err(|why| refused_error([known.store.clone()], &why))?;
    }
    let all: BTreeSet<String> = names().chain(keys.stores.iter().cloned()).collect();
    let stale = known.len() < all.len() || known.iter().any(|known| !keys.vault.is_current(&known.proof));
    Ok(ServingKeyState {
        seals: Arc::new(StateSealer::new(keys.vault.clone(), all)),
        keys: Some(keys),
        due: unfinished || stale,
    })
}

/// The same check by a host that has the lease.
///
/// # Errors
/// The key has changed meanwhile, or another host has begun to encrypt a part that is not encrypted everywhere.
pub(super) async fn settle_key(
    database: &PgDatabase,
    serving: &ServingOptions,
) -> Result<Arc<StateSealer>, PgStateError> {
    let now = check_key(database, serving).await?;
    if now.due {
        let why = "another host changed the key at the same time: start again";
        return Err(refused_error(now.seals.stores().iter().cloned(), why));
    }
    Ok(now.seals)
}

/// The check when a host rejoins the others: the key must be the one that the host has.
///
/// # Errors
/// The key has changed meanwhile, or something is newly encrypted.
pub(super) async fn check_key_unchanged(
    database: &PgDatabase,
    seals: &StateSealer,
) -> Result<(), PgStateError> {
    let known = database.read(encrypted_stores).await?;
    let is_same = |known: &EncryptedStore| {
        let vault = seals.vault().ok_or("another host encrypted it")?;
        known.is_proved_by(vault)
    };
    match known
        .iter()
        .find_map(|known| Some((known, is_same(known).err()?)))
    {
        Some((known, why)) => Err(refused_error([known.store.clone()], &why)),
        None => Ok(()),
    }
}

/// Seals everything with the current key. Waits until no other host serves the state, because such a host could write unsealed
/// content.
pub(super) async fn reseal_everything(
    database: &PgDatabase,
    serving: &ServingOptions,
    first: &ServingKeyState,
    patience: Option<Duration>,
) -> Result<(), PgStateError> {
    let Some(keys) = &first.keys else { return Ok(()) };
    let alone = ServingOptions {
        sharing: StateSharing::Alone,
        ..serving.clone()
    };
    let patience = match (serving.sharing, patience) {
        (StateSharing::Alone, patience) => patience,
        // Serving hosts do not encrypt, or use another key. Only a crashed host is waited for.
        (StateSharing::Shared, _) => Some(PATIENCE.max(serving.lease * 2)),
    };
    let until = patience.map(|patience| tokio::time::Instant::now() + patience);
    let lease = loop {
        match lease::acquire_lease(database, &alone).await? {
            LeaseAcquisition::Ours(lease) => break lease,
            // Another host that started at the same time has done it.
            LeaseAcquisition::Theirs(_) if !check_key(database, serving).await?.due => return Ok(()),
            LeaseAcquisition::Theirs(host)
                if until.is_some_and(|until| tokio::time::Instant::now() >= until) =>
            {
                return Err(PgStateError::Served { host });
            }
            LeaseAcquisition::Theirs(_) => tokio::time::sleep(super::LOOK).await,
        }
    };
    let over = CancellationToken::new();
    let renewing = spawn_task(Arc::clone(&lease).renew_until_end(database.clone(), over.clone()));
    let pass = PgResealPass {
        database,
        license: FencingToken(Arc::clone(&lease)),
        agent: &serving.agent,
        seals: &first.seals,
        keys,
    };
    let done = async {
        if !check_key(database, serving).await?.due {
            return Ok(()); // done meanwhile
        }
        check::verify_chains(database).await?;
        let sealed = pass.run().await;
        sealed.map_err(|failure| refused_error(first.seals.stores().iter().cloned(), &failure.text()))
    };
    let done = done.await;
    over.cancel();
    renewing.abort();
    lease.release(database).await;
    done
}

/// The pass that seals everything again. It can be interrupted at any time: each value names the key that sealed it, and the next
/// start continues.
struct PgResealPass<'a> {
    database: &'a PgDatabase,
    license: FencingToken,
    agent: &'a str,
    seals: &'a Arc<StateSealer>,
    keys: &'a Keys,
}

impl PgResealPass<'_> {
    async fn run(&self) -> Result<(), PgFailure> {
        let vault = self.seals.require_vault().map_err(seal_failure)?;
        // The proofs come first: from the first sealed byte on, a start needs the key.
        self.commit_job(async |session| {
            let sql = "INSERT INTO marks (name, value) VALUES ($1, 1) ON CONFLICT DO NOTHING";
            session.run(sql, &[&UNFINISHED]).await?;
            let sql =
                "INSERT INTO seals (store, reference, proof) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
            self.prove_key(session, vault, sql).await
        })
        .await?;
        self.reseal_contents(vault).await?;
        self.reseal_orders().await?;
        self.reseal_stores().await?;
        self.commit_job(async |session| {
            let sql = "UPDATE seals SET previous = CASE WHEN reference <> $2 THEN reference ELSE previous END, reference = $2, \
                proof = $3 WHERE store = $1";
            self.prove_key(session, vault, sql).await
        })
        .await?;
        self.rewrite_tables().await;
        self.commit_job(async |session| {
            session
                .run("DELETE FROM marks WHERE name = $1", &[&UNFINISHED])
                .await
                .map(drop)
        })
        .await
    }

    async fn prove_key(
        &self,
        session: &PgConnection,
        vault: &SealKeyring,
        sql: &str,
    ) -> Result<(), PgFailure> {
        for store in self.seals.stores() {
            let proof = vault.seal(&proof_of(store), PROOF).map_err(seal_failure)?;
            session.run(sql, &[store, &self.keys.reference, &proof]).await?;
        }
        Ok(())
    }

    /// Runs a transaction while this host holds the lease.
    async fn commit_job<T>(
        &self,
        job: impl AsyncFnOnce(&PgConnection) -> Result<T, PgFailure>,
    ) -> Result<T, PgFailure> {
        self.database
            .write(async |session| {
                if !self.license.is_held(session).await? {
                    return Err(PgFailure::Schema("another host has taken the agent".to_owned()));
                }
                job(session).await
            })
            .await
    }

    /// Seals contents in digest order, some at a time.
    async fn reseal_contents(&self, vault: &SealKeyring) -> Result<(), PgFailure> {
        let mut after: Vec<u8> = Vec::new();
        loop {
            let last = self
                .commit_job(async |session| {
                    let sql = "SELECT digest, bytes FROM contents WHERE digest > $1 ORDER BY digest LIMIT $2 FOR UPDATE";
                    let rows = session.query_rows(sql, &[&after, &row_limit(AT_ONCE)]).await?;
                    let (mut digests, mut sealed) = (Vec::new(), Vec::new());
                    for found in &rows {
                        let (digest, bytes): (_, Vec<u8>) = (row::read_digest(found, 0)?, found.try_get(1)?);
                        // A person's text may look sealed, so the digest decides.
                        if digest_of(&bytes) != digest && vault.is_current(&bytes) {
                            continue;
                        }
                        let plain = open_content(self.seals, digest, bytes)?;
                        sealed.push(vault.seal(&place_of(digest), &plain).map_err(seal_failure)?);
                        digests.push(digest.0.to_vec());
                    }
                    let sql = "UPDATE contents c SET bytes = n.bytes FROM unnest($1::bytea[], $2::bytea[]) AS n (digest, bytes) \
                        WHERE c.digest = n.digest";
                    session.run(sql, &[&digests, &sealed]).await?;
                    rows.last().map(|row| Ok(row.try_get(0)?)).transpose()
                })
                .await?;
            match last {
                Some(last) => after = last,
                None => return Ok(()),
            }
        }
    }

    /// Seals orders, the secrets of all hosts, and the reasons of pending answers. Orders expire within an hour, so few of them
    /// have an old key.
    async fn reseal_orders(&self) -> Result<(), PgFailure> {
        self.commit_job(async |session| {
            boxes::seal_reasons(session, self.seals).await?;
            for found in &session.query_rows("SELECT id, secret FROM secrets", &[]).await? {
                let id = row::read_uuid(found, 0)?;
                let secret = order_opened(self.seals, SECRET, id, found.try_get(1)?)?;
                let secret = order_closed(self.seals, SECRET, id, secret)?;
                let key: &[u8] = id.as_bytes();
                let sql = "UPDATE secrets SET secret = $2 WHERE id = $1";
                session.run(sql, &[&key, &secret]).await?;
            }
            for found in &session
                .query_rows("SELECT id, wish, outcome FROM orders", &[])
                .await?
            {
                let id = row::read_uuid(found, 0)?;
                let anew = |what, said| {
                    let said = order_opened(self.seals, what, id, said)?;
                    order_closed(self.seals, what, id, said)
                };
                let wish = anew("wish", found.try_get(1)?)?;
                let outcome: Option<Vec<u8>> = found.try_get(2)?;
                let outcome = outcome.map(|said| anew("outcome", said)).transpose()?;
                let key: &[u8] = id.as_bytes();
                let sql = "UPDATE orders SET wish = $2, outcome = $3 WHERE id = $1";
                session.run(sql, &[&key, &wish, &outcome]).await?;
            }
            Ok(())
        })
        .await
    }

    /// Seals the encrypted stores inside the state.
    async fn reseal_stores(&self) -> Result<(), PgFailure> {
        let here = self
            .database
            .read(async |session| {
                let sql = "SELECT DISTINCT store FROM memory_parts WHERE agent = $1 UNION \
                    SELECT store FROM memory_seals WHERE agent = $1";
                let rows = session.query_rows(sql, &[&self.agent]).await?;
                rows.iter()
                    .map(|row| Ok(row.try_get(0)?))
                    .collect::<Result<Vec<String>, PgFailure>>()
            })
            .await?;
        let vault = self.seals.vault().cloned().map(Arc::new);
        let memory = PgMemory::new(self.database.clone(), self.agent)
            .with_vault(vault)
            .of_state(self.license.clone());
        for name in here.into_iter().filter(|name| self.seals.is_encrypted(name)) {
            let store = Store {
                encryption: true,
                ..Store::with_name(&name)
            };
            memory.sealed_anew(&store).await?;
        }
        Ok(())
    }

    /// Rewrites the tables, because replaced rows are still in the server's files. The server's own log and backups are up to its
    /// owner.
    async fn rewrite_tables(&self) {
        for table in REWRITTEN {
            let done = async {
                // A table can't be rewritten inside a transaction; the connection is closed afterwards.
                let tx = self.database.begin_transaction(Mode::Write).await?;
                tx.run_statements("COMMIT").await?;
                tx.run_statements("SET statement_timeout = 0").await?;
                Ok::<_, PgFailure>(tx.run_statements(&format!("VACUUM FULL {table}")).await?)
            };
            if let Err(failure) = done.await {
                tracing::warn!(
                    table,
                    error = failure.text(),
                    "the server's files may hold what was there before it was encrypted, until its owner runs `VACUUM FULL`"
                );
            }
        }
    }
}

impl PgReader {
    /// Adds the key that opens the state. Without a key, only unencrypted content can be read.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn with_key_lookup(self, find: Option<SealKeyLookup>) -> Result<Self, PgStateError> {
        let known = self.database.read(encrypted_stores).await?;
        Ok(Self {
            seals: Arc::new(StateSealer::of_reader(&known, find)),
            ..self
        })
    }

    /// The sealer of the state.
    #[must_use]
    pub fn state_sealer(&self) -> &StateSealer {
        &self.seals
    }

    /// The references of the state's keys; `None`: nothing is encrypted.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn key_references(&self) -> Result<Option<SealKeyReferences>, PgStateError> {
        self.run_with_connection(async |session| {
            if encrypted_stores(session).await?.is_empty() {
                return Ok(None);
            }
            let sql = "SELECT reference, previous FROM seals ORDER BY store LIMIT 1";
            let Some(row) = session.query_first(sql, &[]).await? else {
                return Ok(None);
            };
            Ok(Some(SealKeyReferences {
                current: row.try_get(0)?,
                previous: row.try_get(1)?,
            }))
        })
        .await
    }
}

impl PgState {
    /// The keyring; `None`: nothing is encrypted.
    #[must_use]
    pub fn vault(&self) -> Option<&SealKeyring> {
        self.inner.seals.vault()
    }

    /// Records that the previous key is no longer needed.
    ///
    /// # Errors
    /// The server is unreachable, or another host has taken the agent.
    pub async fn forget_previous_key(&self) -> Result<(), JournalError> {
        let license = self.fencing_token();
        let written = self.inner.database.write(async |session| {
            if !license.is_held(session).await? {
                return Err(PgFailure::Schema("another host has taken the agent".to_owned()));
            }
            session
                .run("UPDATE seals SET previous = NULL", &[])
                .await
                .map(drop)
        });
        written
            .await
            .map_err(|failure| JournalError::Unwritable(failure.text()))
    }
}
