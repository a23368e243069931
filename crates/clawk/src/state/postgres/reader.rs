//! Reads a state without serving it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use clawk_events::payload::ContentRedacted;
use clawk_kernel::ports::{JournalScan, OutboxRow, RecordedEvent, SessionRow, SpentAmount};
use clawk_kernel::projection::ProjectionFold;
use clawk_postgres::{PgEventQuery, PgReader, PgStateError};
use clawk_proto::{Digest, SessionId};
use clawk_recall::seal::SealKeyring;
use clawk_store::{
    ContentInventory, Delivery, Filter, LostContent, MemoryPart, REDACTED, RememberedEntry,
    SealKeyReferences, StateError, StoredEvent, StoredHead, UnreadableRecord,
};
use clawk_trace::chain::digest_of;
use clawk_trace::checkpoint::{CheckpointLine, PublicKey};
use clawk_trace::event::RawEvent;
use clawk_trace::verify::Verifier;
use clawk_trace::{FaultKind, VerificationReport};

use super::dir::ROWS;
use super::{DatabaseAccess, block_on, heads, open_database, server_of_dir};
use crate::state::kept;
use crate::state::server::StateServer;

/// Events read at a time.
const PAGE: usize = 1000;
/// Largest number of lost contents that are listed one by one.
const NAMED: usize = 64;

/// Reads the state that a directory holds or names. Another process may serve it at the same time.
#[derive(Debug)]
pub(crate) enum StateReader {
    /// In the directory.
    Sqlite(clawk_store::StateDirReader),
    /// On a server.
    Postgres {
        /// The directory beside it.
        path: PathBuf,
        /// The reader of the server's state.
        reader: PgReader,
    },
}

fn no_memory<T>() -> Result<T, StateError> {
    Err(StateError::Server(format!(
        "this state lies on PostgreSQL: {ROWS}"
    )))
}

impl StateReader {
    /// Opens the current state.
    pub(crate) fn open(state: impl AsRef<Path>) -> Result<Self, StateError> {
        Self::with_access(state.as_ref(), DatabaseAccess::Read)
    }

    /// Opens the replica's state, if one is named. Use it for display only.
    pub(crate) fn open_replica(state: impl AsRef<Path>) -> Result<Self, StateError> {
        Self::with_access(state.as_ref(), DatabaseAccess::ReadReplica)
    }

    fn with_access(path: &Path, what: DatabaseAccess) -> Result<Self, StateError> {
        match server_of_dir(path)? {
            None => clawk_store::StateDirReader::open(path).map(Self::Sqlite),
            Some(server) => Self::of_server(path, &server, what),
        }
    }

    /// Opens a server's state, with the key of encrypted stores if it is found.
    pub(super) fn of_server(
        path: &Path,
        server: &StateServer,
        what: DatabaseAccess,
    ) -> Result<Self, StateError> {
        let reader = PgReader::new(open_database(server, what)?);
        Ok(Self::Postgres {
            path: path.to_owned(),
            reader: block_on(async move { reader.with_key_lookup(Some(kept::find_key)).await })?,
        })
    }

    /// Returns the keys of encrypted stores.
    pub(crate) fn vault(&self) -> Option<&SealKeyring> {
        match self {
            Self::Sqlite(reader) => reader.vault(),
            Self::Postgres { reader, .. } => reader.state_sealer().vault(),
        }
    }

    /// Returns why encrypted data can't be decrypted; `None`: it can, or nothing is encrypted.
    pub(crate) fn lacks_key(&self) -> Option<&str> {
        match self {
            Self::Sqlite(reader) => reader.lacks_key(),
            Self::Postgres { reader, .. } => reader.state_sealer().missing_key_reason(),
        }
    }

    pub(crate) fn key_references(&self) -> Result<Option<SealKeyReferences>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.key_references(),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                block_on(async move { reader.key_references().await })
            }
        }
    }

    pub(crate) fn state(&self) -> &Path {
        match self {
            Self::Sqlite(reader) => reader.state(),
            Self::Postgres { path, .. } => path,
        }
    }

    pub(crate) fn recorded_events(&self, scan: &JournalScan) -> Result<Vec<RecordedEvent>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.recorded_events(scan),
            Self::Postgres { reader, .. } => {
                let (reader, scan) = (reader.clone(), scan.clone());
                block_on(async move { reader.recorded_events(&scan).await })
            }
        }
    }

    pub(crate) fn content(&self, digest: Digest) -> Result<Option<Vec<u8>>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.content(digest),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                block_on(async move { reader.read_content(digest).await })
            }
        }
    }

    pub(crate) fn sessions(&self, limit: usize) -> Result<Vec<SessionRow>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.sessions(limit),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                block_on(async move { reader.list_sessions(limit).await })
            }
        }
    }

    pub(crate) fn last_row(&self) -> Result<u64, StateError> {
        match self {
            Self::Sqlite(reader) => reader.last_row(),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                block_on(async move { reader.last_row().await })
            }
        }
    }

    pub(crate) fn events(&self, filter: Filter) -> Result<Vec<StoredEvent>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.events(filter),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                let which = PgEventQuery {
                    session: filter.session,
                    after_row: filter.after_row,
                    limit: filter.limit,
                };
                let found = block_on(async move { reader.read_events(which).await })?;
                let stored = found.into_iter().map(|found| StoredEvent {
                    row: found.row,
                    event: found.event,
                    content_digest: found.content_digest,
                });
                Ok(stored.collect())
            }
        }
    }

    pub(crate) fn verify(&self, session: Option<SessionId>) -> Result<VerificationReport, StateError> {
        match self {
            Self::Sqlite(reader) => reader.verify(session),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                block_on(async move { verify_chains(&reader, session).await })
            }
        }
    }

    pub(crate) fn outbox(&self, limit: usize) -> Result<Vec<OutboxRow>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.outbox(limit),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                block_on(async move { reader.read_outbox(limit).await })
            }
        }
    }

    pub(crate) fn spent_since(&self, hour: i64) -> Result<Vec<SpentAmount>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.spent_since(hour),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                block_on(async move { reader.spent_since(hour).await })
            }
        }
    }

    /// Returns projections that do not match the events; empty if all match. With `last`, only the newest `last` events are
    /// replayed.
    pub(crate) fn projections(&self, last: Option<u64>) -> Result<Vec<String>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.projections(last),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                block_on(async move { check_projections(&reader, last).await })
            }
        }
    }

    pub(crate) fn refused_at_start(&self, key: Option<&PublicKey>) -> Result<Option<String>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.refused_at_start(key),
            Self::Postgres { path, reader } => {
                let asked = reader.clone();
                if let Some(why) = block_on(async move { asked.find_fault().await })? {
                    return Ok(Some(why));
                }
                match heads::check_last_head(path, reader.clone(), key) {
                    Err(StateError::Unvouched { detail, .. }) => Ok(Some(detail)),
                    other => other.map(|()| None),
                }
            }
        }
    }

    pub(crate) fn contents(&self, session: Option<SessionId>) -> Result<ContentInventory, StateError> {
        match self {
            Self::Sqlite(reader) => reader.contents(session),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                block_on(async move { inventory_contents(&reader, session).await })
            }
        }
    }

    /// Returns the signed heads. On a server: those that this directory's key signed; other hosts use their own keys.
    pub(crate) fn heads(&self) -> Result<String, StateError> {
        match self {
            Self::Sqlite(reader) => reader.heads(),
            Self::Postgres { path, reader } => {
                let Some(key) = clawk_store::public_key(path)? else {
                    return Ok(String::new());
                };
                let reader = reader.clone();
                let all = block_on(async move { reader.heads_after(0, usize::MAX).await })?;
                let mut text = String::new();
                for line in all.iter().flat_map(|head| head.lines.lines()) {
                    if CheckpointLine::parse(line).is_ok_and(|line| line.key_id() == key.id()) {
                        text.push_str(line);
                        text.push('\n');
                    }
                }
                Ok(text)
            }
        }
    }

    pub(crate) fn heads_after(&self, size: u64, limit: usize) -> Result<Vec<StoredHead>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.heads_after(size, limit),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                let found = block_on(async move { reader.heads_after(size, limit).await })?;
                Ok(found.into_iter().map(heads::to_stored_head).collect())
            }
        }
    }

    pub(crate) fn head_of(&self, size: u64) -> Result<Option<StoredHead>, StateError> {
        let found = self.heads_after(size.saturating_sub(1), 1)?;
        Ok(found.into_iter().find(|head| head.size == size))
    }

    pub(crate) fn deliveries(&self) -> Result<Vec<(String, Delivery)>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.deliveries(),
            Self::Postgres { reader, .. } => {
                let reader = reader.clone();
                let found = block_on(async move { reader.deliveries().await })?;
                let one = |(place, sent): (String, clawk_postgres::HeadDelivery)| {
                    let delivery = Delivery {
                        size: sent.size,
                        failures: sent.failures,
                        error: sent.error,
                    };
                    (place, delivery)
                };
                Ok(found.into_iter().map(one).collect())
            }
        }
    }

    pub(crate) fn memory_parts(&self, store: Option<&str>) -> Result<Vec<MemoryPart>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.memory_parts(store),
            Self::Postgres { .. } => no_memory(),
        }
    }

    pub(crate) fn remembered(
        &self,
        part: &MemoryPart,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RememberedEntry>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.remembered(part, before, limit),
            Self::Postgres { .. } => no_memory(),
        }
    }

    pub(crate) fn recalled(
        &self,
        part: &MemoryPart,
        words: &str,
        limit: usize,
    ) -> Result<Vec<RememberedEntry>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.recalled(part, words, limit),
            Self::Postgres { .. } => no_memory(),
        }
    }

    pub(crate) fn remembered_as(
        &self,
        parts: &[MemoryPart],
        name: &str,
    ) -> Result<Vec<RememberedEntry>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.remembered_as(parts, name),
            Self::Postgres { .. } => no_memory(),
        }
    }

    pub(crate) fn set_aside(
        &self,
        part: &MemoryPart,
        limit: usize,
    ) -> Result<Vec<RememberedEntry>, StateError> {
        match self {
            Self::Sqlite(reader) => reader.set_aside(part, limit),
            Self::Postgres { .. } => no_memory(),
        }
    }
}

/// Verifies every chain from its first event, and that no chain has lost its end.
pub(super) async fn verify_chains(
    reader: &PgReader,
    session: Option<SessionId>,
) -> Result<VerificationReport, PgStateError> {
    // Read this first: another process may append, so there may be more events later, but never fewer.
    let recorded = reader.chain_ends(session).await?;
    let mut verifier = Verifier::default();
    let mut which = PgEventQuery {
        session,
        after_row: 0,
        limit: PAGE,
    };
    loop {
        let page = reader.read_events(which).await?;
        let Some(last) = page.last() else { break };
        which.after_row = last.row;
        for stored in &page {
            verifier.push(&RawEvent::of_sealed(&stored.event), stored.row);
        }
    }
    let mut report = verifier.finish();
    if report.valid {
        check_ends(&recorded, &mut report);
    }
    Ok(report)
}

fn check_ends(recorded: &[(SessionId, u64, Digest)], report: &mut VerificationReport) {
    let found: HashMap<_, _> = report
        .sessions
        .iter()
        .map(|s| (s.session_id, (s.events, s.head)))
        .collect();
    for (session, events, head) in recorded {
        let (have, end) = found.get(session).copied().unwrap_or((0, Digest::ZERO));
        if have < *events {
            let detail = format!("the chain ends after {have} events; {events} were recorded");
            return report.refuse_end(FaultKind::Gap, detail, *session, have);
        }
        if have == *events && end != *head {
            let detail = "the chain's last event is not the head that was recorded".to_owned();
            return report.refuse_end(FaultKind::BrokenLink, detail, *session, have);
        }
    }
}

async fn check_projections(reader: &PgReader, last: Option<u64>) -> Result<Vec<String>, PgStateError> {
    // All stored data is read at one moment; later events are ignored.
    let (kept, upto) = reader.stored_projections().await?;
    let mut after_row = last.map_or(0, |last| upto.saturating_sub(last));
    let mut fold = ProjectionFold::new(&kept, after_row == 0);
    while after_row < upto {
        let page = reader
            .recorded_events(&JournalScan {
                after_row,
                limit: PAGE,
                ..JournalScan::default()
            })
            .await?;
        let Some(end) = page.last() else { break };
        after_row = end.row;
        page.iter()
            .filter(|event| event.row <= upto)
            .for_each(|event| fold.apply_event(event));
    }
    Ok(fold.find_differences(&kept))
}

async fn inventory_contents(
    reader: &PgReader,
    session: Option<SessionId>,
) -> Result<ContentInventory, PgStateError> {
    let mut found = ContentInventory::default();
    let mut erased: HashSet<Digest> = HashSet::new();
    let mut after_row = 0;
    loop {
        let page = reader
            .recorded_events(&JournalScan {
                after_row,
                kinds: &[REDACTED],
                limit: PAGE,
                ..JournalScan::default()
            })
            .await?;
        let Some(last) = page.last() else { break };
        after_row = last.row;
        for event in &page {
            match ContentRedacted::read(&event.kind, &event.payload) {
                Ok(redacted) => erased.extend(redacted.contents),
                Err(error) => found.unreadable.push(UnreadableRecord {
                    session_id: event.session,
                    sequence: event.sequence,
                    why: error.to_string(),
                }),
            }
        }
    }
    for (digest, session_id, sequence) in reader.referred_digests(session).await? {
        let how = match reader.stored_content(digest).await? {
            Some(bytes) if digest_of(&bytes) == digest => {
                found.present += 1;
                continue;
            }
            None if erased.contains(&digest) => {
                found.erased += 1;
                continue;
            }
            Some(_) => {
                found.corrupt += 1;
                "corrupt"
            }
            None => {
                found.missing += 1;
                "missing"
            }
        };
        if found.lost.len() < NAMED {
            found.lost.push(LostContent {
                digest,
                how,
                session_id,
                sequence,
            });
        }
    }
    Ok(found)
}
