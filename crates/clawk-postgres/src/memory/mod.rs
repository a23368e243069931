//! Memory stores on PostgreSQL (CKP §5.6, §9.3.4; R21). They give the same answers as on SQLite and allow several processes at
//! once.
//!
//! A part holds one store's entries for one scope. Every change of a part locks the part's row first. So entries are numbered in
//! commit order, and vectors that were read once need not be read again.

mod indexed;
mod keep;
mod look;
mod parts;
mod retain;
mod rows;
mod seal;
mod search;
mod spec;
mod undo;
mod vectors;

pub(crate) use rows::fold_words;
pub(crate) use spec::place_of;

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use clawk_kernel::ports::{Batch, BoxFuture, Memory, MemoryError, MemorySearch, Scope, UnembeddedEntry};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{Store, StoreBackend};
use clawk_recall::compact::CompactionSummary;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryInsertion, EntrySearchResult};
use clawk_recall::seal::{NO_KEY, STAYS, SealKeyring};
use tokio::sync::Mutex;

use crate::error::PgFailure;
use crate::pool::{Mode, PgDatabase, PgTransaction};
use crate::state::FencingToken;
use indexed::PgWordIndex;
use parts::PgStorePart;
use spec::{PROOF, Spec, proof_of};
use vectors::Vectors;

/// The memory stores of one agent in a database.
#[derive(Debug, Clone)]
pub struct PgMemory {
    database: PgDatabase,
    /// The agent's name. Agents with different names share no store.
    agent: Arc<str>,
    vectors: Arc<Vectors>,
    words: Arc<PgWordIndex>,
    vault: Option<Arc<SealKeyring>>,
    /// Stores whose key was checked against their proof, or that turned out not to be encrypted.
    proved: Arc<Mutex<BTreeSet<String>>>,
    /// Encrypted stores in which every entry is sealed. An unsealed entry there comes from somebody else.
    sealed: Arc<std::sync::Mutex<BTreeSet<String>>>,
    /// Set for the stores inside a state on the server: only the holder of the lease writes them.
    state: Option<FencingToken>,
}

impl PgMemory {
    /// The stores of the agent with this name.
    #[must_use]
    pub fn new(database: PgDatabase, agent: &str) -> Self {
        Self {
            database,
            agent: agent.into(),
            vectors: Arc::default(),
            words: Arc::default(),
            vault: None,
            proved: Arc::default(),
            sealed: Arc::default(),
            state: None,
        }
    }

    /// Makes these the stores of a state that this host serves. Then stores of the back ends `sqlite` and `sqlite-vec` are here
    /// too, and a host that lost its lease can't change them.
    #[must_use]
    pub fn of_state(mut self, license: FencingToken) -> Self {
        self.state = Some(license);
        self
    }

    /// Sets the keyring that opens and seals encrypted stores.
    #[must_use]
    pub fn with_vault(self, vault: Option<Arc<SealKeyring>>) -> Self {
        Self { vault, ..self }
    }

    fn store_spec<'a>(&'a self, store: &'a Store) -> Spec<'a> {
        let sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        Spec {
            store,
            vault: self.vault.as_deref(),
            whole: sealed.contains(&store.name),
        }
    }

    /// Checks that the key is the one that encrypted the store, in any process, or that the store was never encrypted. The first
    /// writer with a key, or with a new key, seals everything in one transaction.
    async fn prove_key(&self, tx: &PgTransaction, store: &Store, mode: Mode) -> Result<(), PgFailure> {
        if self.proved.lock().await.contains(&store.name) {
            return Ok(());
        }
        let refuse = |why: &str| PgFailure::Schema(format!("store `{}`: {why}", store.name));
        let agent: &str = &self.agent;
        let found = seal::key_proof(tx, agent, &store.name).await?;
        if !store.encryption {
            if found.is_some() {
                return Err(refuse(STAYS));
            }
            return Ok(()); // another process may encrypt it, so this is asked again
        }
        let vault = self.vault.as_deref().ok_or_else(|| refuse(NO_KEY))?;
        if found.is_none() && seal::lost_its_proof(tx, agent, &store.name).await? {
            return Err(refuse(
                "it is encrypted, and the proof of its key was taken out of the database",
            ));
        }
        let current = match &found {
            Some(proof) => match vault.open(&proof_of(&store.name), proof) {
                Ok(Some(opened)) if opened == PROOF => vault.is_current(proof),
                Ok(_) | Err(_) => return Err(refuse("the key is not the one that it was encrypted with")),
            },
            None => false,
        };
        if found.is_some() {
            let mut sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
            sealed.insert(store.name.clone());
        }
        if !current && mode == Mode::Write {
            for id in parts::list_parts(tx, agent, &store.name).await? {
                parts::lock_part(tx, id).await?;
                seal::reseal_part(tx, &self.store_spec(store), id).await?;
            }
            let proof = vault.seal(&proof_of(&store.name), PROOF);
            let proof = proof.map_err(|error| refuse(&error.to_string()))?;
            let sql = "INSERT INTO memory_seals (agent, store, proof) VALUES ($1, $2, $3) \
                       ON CONFLICT (agent, store) DO UPDATE SET proof = EXCLUDED.proof";
            tx.run(sql, &[&agent, &store.name, &proof]).await?;
        } else if current {
            self.proved.lock().await.insert(store.name.clone());
        }
        Ok(())
    }

    /// Seals an encrypted store with the current key of its keyring.
    ///
    /// # Errors
    /// The server is unreachable or refuses, or neither key opens a value. Nothing was changed.
    pub async fn seal_anew(&self, store: &Store) -> Result<(), MemoryError> {
        self.sealed_anew(store)
            .await
            .map_err(|failure| failure.of_memory(true))
    }

    /// Each statement has its deadline, but the whole operation has none: a large store takes long.
    pub(crate) async fn sealed_anew(&self, store: &Store) -> Result<(), PgFailure> {
        let tx = self.begin_transaction(store, Mode::Write).await?;
        tx.commit_or_rollback(Ok(())).await
    }

    /// Restores entries that compaction set aside in a scope: one entry, the entries behind a summary, or all. Returns the number
    /// of restored entries.
    ///
    /// # Errors
    /// The server is unreachable or refuses; nothing was restored.
    pub async fn restore_entries(
        &self,
        store: &Store,
        place: &Scope,
        id: Option<&str>,
    ) -> Result<u64, MemoryError> {
        let work = async {
            let tx = self.begin_transaction(store, Mode::Write).await?;
            let done = async {
                let Some(part) = self.lock_part(&tx, store, place).await? else {
                    return Ok(0);
                };
                undo::restore_entries(&tx, part, &self.store_spec(store), id).await
            }
            .await;
            tx.commit_or_rollback(done).await
        };
        self.database
            .run_within_deadline(work)
            .await
            .map_err(|failure| failure.of_memory(true))
    }

    async fn begin_transaction(&self, store: &Store, mode: Mode) -> Result<PgTransaction, PgFailure> {
        let tx = self.database.begin_transaction(mode).await?;
        if let (Some(license), Mode::Write) = (&self.state, mode)
            && !license.is_held(&tx).await?
        {
            let lost = PgFailure::Schema("another host has taken the agent; nothing was changed".to_owned());
            return tx.commit_or_rollback(Err(lost)).await;
        }
        if store.backend == Some(StoreBackend::Pgvector) && tx.vector_schema().is_none() {
            let missing = PgFailure::Schema(format!(
                "store `{}` is on `pgvector`, and the database lacks the extension `vector`: its owner runs `CREATE EXTENSION vector`, \
                 or the store says `backend: postgresql`",
                store.name
            ));
            return tx.commit_or_rollback(Err(missing)).await;
        }
        match self.prove_key(&tx, store, mode).await {
            Ok(()) => Ok(tx),
            Err(failure) => tx.commit_or_rollback(Err(failure)).await,
        }
    }

    /// The part, if it exists, locked until the end of the transaction.
    async fn lock_part(
        &self,
        tx: &PgTransaction,
        store: &Store,
        place: &Scope,
    ) -> Result<Option<PgStorePart>, PgFailure> {
        match parts::find_part(tx, &self.agent, &store.name, &place.part_name(store)).await? {
            Some(part) => parts::lock_part(tx, part.id).await.map(Some),
            None => Ok(None),
        }
    }

    async fn search_entries(
        &self,
        store: &Store,
        place: &Scope,
        ask: MemorySearch,
    ) -> Result<EntrySearchResult, PgFailure> {
        let tx = self.begin_transaction(store, Mode::Read).await?;
        let done = async {
            let scope = place.part_name(store);
            match parts::find_part(&tx, &self.agent, &store.name, &scope).await? {
                None => Ok(EntrySearchResult::default()),
                Some(part) => {
                    let search = search::PgPartSearch {
                        tx: &tx,
                        store: &self.store_spec(store),
                        part,
                        whose: &ask.whose,
                        limit: ask.limit,
                        vectors: &self.vectors,
                        words: &self.words,
                    };
                    search.run(&ask.query, ask.vector.as_ref()).await
                }
            }
        }
        .await;
        tx.commit_or_rollback(done).await
    }

    async fn insert_entries(
        &self,
        store: &Store,
        place: &Scope,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
    ) -> Result<Vec<String>, PgFailure> {
        let rows = rows::rows_of(&self.store_spec(store), entries)?;
        let tx = self.begin_transaction(store, Mode::Write).await?;
        let done = async {
            let id = parts::ensure_part(&tx, &self.agent, &store.name, &place.part_name(store)).await?;
            keep::insert_entries(&tx, id, &self.store_spec(store), rows, at).await
        }
        .await;
        tx.commit_or_rollback(done).await
    }

    async fn compact_entries(
        &self,
        store: &Store,
        place: &Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> Result<(u64, u64), PgFailure> {
        let tx = self.begin_transaction(store, Mode::Write).await?;
        let done = async {
            let Some(part) = self.lock_part(&tx, store, place).await? else {
                return Ok((0, 0));
            };
            retain::apply_retention(&tx, part.id, &self.store_spec(store), at).await?;
            retain::compact_entries(&tx, part.id, &self.store_spec(store), at, summary.as_ref()).await?;
            let after = parts::count_entries(&tx, part.id).await?;
            Ok((part.count(), after))
        }
        .await;
        tx.commit_or_rollback(done).await
    }

    /// Each part has its own transaction, so two parts are never locked together.
    async fn apply_retention(&self, store: &Store, at: Timestamp) -> Result<u64, PgFailure> {
        let tx = self.begin_transaction(store, Mode::Read).await?;
        let all = parts::list_parts(&tx, &self.agent, &store.name).await;
        let all = tx.commit_or_rollback(all).await?;
        let mut gone = 0;
        for id in all {
            let tx = self.begin_transaction(store, Mode::Write).await?;
            let done = async {
                let before = parts::lock_part(&tx, id).await?;
                retain::apply_retention(&tx, id, &self.store_spec(store), at).await?;
                let left = parts::count_entries(&tx, id).await?;
                retain::merge_duplicates(&tx, id, &self.store_spec(store), at).await?;
                Ok(before.count().saturating_sub(left))
            }
            .await;
            gone += tx.commit_or_rollback(done).await?;
        }
        Ok(gone)
    }

    async fn remove_entry(
        &self,
        store: &Store,
        place: &Scope,
        whose: ConversationFilter,
        id: String,
    ) -> Result<Option<EntryHit>, PgFailure> {
        if id.contains('\0') {
            return Ok(None); // no id that was kept has one
        }
        let tx = self.begin_transaction(store, Mode::Write).await?;
        let done = async {
            let Some(part) = self.lock_part(&tx, store, place).await? else {
                return Ok(None);
            };
            undo::remove(&tx, part, &self.store_spec(store), &whose, &id).await
        }
        .await;
        let hit = tx.commit_or_rollback(done).await?;
        Ok(hit)
    }

    async fn unembedded_entries(
        &self,
        store: &Store,
        model: &str,
        limit: usize,
    ) -> Result<Vec<UnembeddedEntry>, PgFailure> {
        let tx = self.begin_transaction(store, Mode::Read).await?;
        let lacking =
            vectors::unembedded_entries(&tx, &self.store_spec(store), &self.agent, model, limit).await;
        tx.commit_or_rollback(lacking).await
    }

    async fn store_vectors(
        &self,
        store: &Store,
        model: &str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> Result<(), PgFailure> {
        let tx = self.begin_transaction(store, Mode::Read).await?;
        let all = parts::list_parts(&tx, &self.agent, &store.name).await;
        for id in tx.commit_or_rollback(all).await? {
            let tx = self.begin_transaction(store, Mode::Write).await?;
            let done = async {
                parts::lock_part(&tx, id).await?;
                vectors::add_all(&tx, &self.store_spec(store), id, model, &vectors).await
            }
            .await;
            tx.commit_or_rollback(done).await?;
        }
        Ok(())
    }
}

/// Rejects settings that this back end does not support, at the start instead of during the work.
fn check_store(store: &Store, vault: Option<&SealKeyring>, of_state: bool) -> Result<(), MemoryError> {
    let refuse = |what: String| Err(MemoryError::Backend(format!("store `{}`: {what}", store.name)));
    match store.backend {
        None | Some(StoreBackend::Postgresql | StoreBackend::Pgvector) => {}
        Some(StoreBackend::Sqlite | StoreBackend::SqliteVec) if of_state => {}
        Some(
            other @ (StoreBackend::Sqlite
            | StoreBackend::SqliteVec
            | StoreBackend::Filesystem
            | StoreBackend::Qdrant
            | StoreBackend::Custom),
        ) => return refuse(format!("backend `{}` is not kept in PostgreSQL", other.as_str())),
    }
    match (store.encryption, vault) {
        (true, None) => refuse(NO_KEY.to_owned()),
        (true, Some(_)) | (false, _) => Ok(()),
    }
}

impl Memory for PgMemory {
    fn check_store(&self, store: &Store) -> Result<(), MemoryError> {
        check_store(store, self.vault.as_deref(), self.state.is_some())
    }

    fn search_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>> {
        Box::pin(async move {
            check_store(store, self.vault.as_deref(), self.state.is_some())?;
            let found = self
                .database
                .run_within_deadline(self.search_entries(store, place, ask))
                .await;
            found.map_err(|failure| failure.of_memory(false))
        })
    }

    fn store_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
        record: Batch,
    ) -> BoxFuture<'a, Result<Vec<String>, MemoryError>> {
        Box::pin(async move {
            check_store(store, self.vault.as_deref(), self.state.is_some())?;
            if !record.entries.is_empty() {
                return Err(MemoryError::Backend("PostgreSQL keeps no journal".to_owned()));
            }
            let kept = self
                .database
                .run_within_deadline(self.insert_entries(store, place, entries, at))
                .await;
            kept.map_err(|failure| failure.of_memory(true))
        })
    }

    fn compaction_candidates<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        Box::pin(async move {
            check_store(store, self.vault.as_deref(), self.state.is_some())?;
            let work = async {
                let tx = self.begin_transaction(store, Mode::Read).await?;
                let scope = place.part_name(store);
                let done = async {
                    match parts::find_part(&tx, &self.agent, &store.name, &scope).await? {
                        Some(part) => retain::entries_to_compact(&tx, part.id, &self.store_spec(store)).await,
                        None => Ok(Vec::new()),
                    }
                }
                .await;
                tx.commit_or_rollback(done).await
            };
            let old = self.database.run_within_deadline(work).await;
            let old = old.map_err(|failure| failure.of_memory(false))?;
            Ok(old.into_iter().map(|(_, hit)| hit).collect())
        })
    }

    fn compact_store<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>> {
        Box::pin(async move {
            check_store(store, self.vault.as_deref(), self.state.is_some())?;
            let done = self
                .database
                .run_within_deadline(self.compact_entries(store, place, at, summary))
                .await;
            done.map_err(|failure| failure.of_memory(true))
        })
    }

    fn apply_retention<'a>(
        &'a self,
        store: &'a Store,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(async move {
            check_store(store, self.vault.as_deref(), self.state.is_some())?;
            let done = self
                .database
                .run_within_deadline(self.apply_retention(store, at))
                .await;
            done.map_err(|failure| failure.of_memory(true))
        })
    }

    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>> {
        Box::pin(async move {
            check_store(store, self.vault.as_deref(), self.state.is_some())?;
            let done = self
                .database
                .run_within_deadline(self.remove_entry(store, place, whose, id))
                .await;
            done.map_err(|failure| failure.of_memory(true))
        })
    }

    fn count_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(async move {
            check_store(store, self.vault.as_deref(), self.state.is_some())?;
            let work = async {
                let tx = self.begin_transaction(store, Mode::Read).await?;
                let scope = place.part_name(store);
                let part = parts::find_part(&tx, &self.agent, &store.name, &scope).await;
                tx.commit_or_rollback(part).await
            };
            let part = self.database.run_within_deadline(work).await;
            let part = part.map_err(|failure| failure.of_memory(false))?;
            Ok(part.map_or(0, |part| part.count()))
        })
    }

    fn unembedded_entries<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>> {
        Box::pin(async move {
            let done = self
                .database
                .run_within_deadline(self.unembedded_entries(store, model, limit))
                .await;
            done.map_err(|failure| failure.of_memory(false))
        })
    }

    fn add_vectors<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(async move {
            let done = self
                .database
                .run_within_deadline(self.store_vectors(store, model, vectors))
                .await;
            done.map_err(|failure| failure.of_memory(true))
        })
    }
}
