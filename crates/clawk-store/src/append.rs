//! Links batches into their chains and inserts them, inside the writer's transaction.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use clawk_kernel::kind;
use clawk_kernel::ports::{Batch, EffectChange, InboxChange, JournalEntry};
use clawk_kernel::purse::BudgetAmount;
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, SessionId};
use clawk_trace::{Draft, HashBuffer, SessionChain};
use rusqlite::types::Type;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Row, params};
use uuid::Uuid;

use crate::answers::AnswerIndex;
use crate::blobs::{BlobStore, INLINE_BYTES};
use crate::boxes;

/// The number of chain ends kept in memory between transactions.
const TIPS_KEPT: usize = 10_000;

const INSERT: &str = "INSERT INTO events \
    (session, sequence, at, kind, event_id, span, parent, payload, hash, content_digest, content) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

/// The end of a session's chain, as the writer knows it.
#[derive(Debug)]
struct SqliteChainTip {
    id: i64,
    chain: SessionChain,
    started: Timestamp,
    last: Timestamp,
    changed: bool,
    /// The last event ended the session.
    ended: bool,
}

/// The ends of growing chains. INVARIANT: between transactions they equal the database. Call [`Self::forget`] after a rollback.
#[derive(Debug, Default)]
pub(crate) struct SqliteChainTips {
    tips: HashMap<SessionId, SqliteChainTip>,
    changed: Vec<SessionId>,
    /// The group's spending: one row per hour and budget, for any number of calls.
    spent: BTreeMap<(i64, Arc<str>), BudgetAmount>,
    /// Reserved amounts that were not spent, also by hour and budget.
    unspent: BTreeMap<(i64, Arc<str>), BudgetAmount>,
    scratch: HashBuffer,
    time: String,
}

/// The stores for the parts of an event outside its row.
#[derive(Debug)]
pub(crate) struct EventPartStores<'a> {
    pub(crate) blobs: &'a BlobStore,
    pub(crate) answers: &'a AnswerIndex,
    /// Files are synced before the commit.
    pub(crate) durable: bool,
}

/// Why a group can't be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    #[error("{0}")]
    Database(#[from] rusqlite::Error),
    #[error("content file: {0}")]
    Blob(#[from] std::io::Error),
    #[error("content: {0}")]
    Seal(#[from] clawk_recall::seal::SealError),
}

impl SqliteChainTips {
    /// Links and inserts a batch. The connection must be inside a transaction.
    pub(crate) fn append(
        &mut self,
        connection: &Connection,
        places: &EventPartStores<'_>,
        batch: &Batch,
    ) -> Result<(), AppendError> {
        let mut insert = connection.prepare_cached(INSERT)?;
        for entry in &batch.entries {
            let sealed;
            let inline = match &entry.content {
                Some(content) if content.bytes.len() > INLINE_BYTES => {
                    places
                        .blobs
                        .write(content.digest, &content.bytes, places.durable)?;
                    None
                }
                Some(content) => {
                    sealed = places
                        .blobs
                        .state_sealer()
                        .seal_content(content.digest, &content.bytes)?;
                    Some(sealed.as_deref().unwrap_or(&content.bytes))
                }
                None => None,
            };
            self.insert(connection, &mut insert, entry, inline)?;
            if let Some(key) = entry.answers {
                places
                    .answers
                    .add(connection, key, connection.last_insert_rowid(), entry.at)?;
            }
        }
        for change in &batch.inbox {
            apply(connection, change)?;
        }
        for change in &batch.outbox {
            boxes::apply_outbox_change(connection, change)?;
        }
        for spent in &batch.spent {
            let sum = self
                .spent
                .entry((spent.hour, Arc::clone(&spent.purse)))
                .or_default();
            *sum = sum.plus(spent.amount);
        }
        for unspent in &batch.unspent {
            let sum = self
                .unspent
                .entry((unspent.hour, Arc::clone(&unspent.purse)))
                .or_default();
            *sum = sum.plus(unspent.amount);
        }
        for change in &batch.effects {
            apply_effect(connection, change)?;
        }
        Ok(())
    }

    fn insert(
        &mut self,
        connection: &Connection,
        insert: &mut CachedStatement<'_>,
        entry: &JournalEntry,
        inline: Option<&[u8]>,
    ) -> rusqlite::Result<()> {
        let Self {
            tips,
            changed,
            scratch,
            time,
            ..
        } = self;
        let tip = match tips.entry(entry.session) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(load_or_begin(connection, entry.session, entry.at)?)
            }
        };
        if !tip.changed {
            tip.changed = true;
            changed.push(entry.session);
        }
        tip.last = entry.at;
        tip.ended = entry.kind == kind::SESSION_ENDED;
        time.clear();
        let _ = write!(time, "{}", entry.at); // silent-ok: writing to a String
        let draft = Draft {
            event_id: entry.event_id,
            span: entry.span,
            parent: entry.parent,
            timestamp: time,
            event_type: entry.kind,
            payload: entry.payload.get(),
        };
        let link = tip.chain.append(&draft, scratch);
        insert.execute((
            tip.id,
            integer(link.sequence),
            entry.at.0,
            entry.kind,
            entry.event_id.as_bytes(),
            entry.span.as_bytes(),
            link.parent.as_ref().map(Uuid::as_bytes),
            entry.payload.get(),
            link.hash.0,
            entry.content.as_ref().map(|content| content.digest.0),
            inline,
        ))?;
        Ok(())
    }

    /// Writes the changed chain ends and sums; call it last before the commit. The end of an ended session is not kept in memory,
    /// because an agent that delegates has one such session per task.
    pub(crate) fn save(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        for ((hour, purse), amount) in std::mem::take(&mut self.spent) {
            add_spent(connection, hour, &purse, &amount)?;
        }
        for ((hour, purse), amount) in std::mem::take(&mut self.unspent) {
            take_back(connection, hour, &purse, &amount)?;
        }
        let mut update = connection.prepare_cached(
            "UPDATE sessions SET events = ?2, head = ?3, started = ?4, last = ?5 WHERE id = ?1",
        )?;
        for session in self.changed.drain(..) {
            if let Some(tip) = self.tips.get_mut(&session) {
                tip.changed = false;
                let events = integer(tip.chain.next_sequence);
                update.execute(params![
                    tip.id,
                    events,
                    tip.chain.head.0,
                    tip.started.0,
                    tip.last.0
                ])?;
                if tip.ended {
                    self.tips.remove(&session);
                }
            }
        }
        Ok(())
    }

    /// Call it after a commit: limits the memory.
    pub(crate) fn trim(&mut self) {
        if self.tips.len() > TIPS_KEPT {
            self.tips.clear();
        }
    }

    /// Call it after a rollback: drops the chain ends in memory, which may differ from the database.
    pub(crate) fn forget(&mut self) {
        self.tips.clear();
        self.changed.clear();
        self.spent.clear();
        self.unspent.clear();
    }
}

fn load_or_begin(
    connection: &Connection,
    session: SessionId,
    at: Timestamp,
) -> rusqlite::Result<SqliteChainTip> {
    let mut select = connection
        .prepare_cached("SELECT id, trace_id, events, head, started FROM sessions WHERE session = ?1")?;
    let found = select
        .query_row([session.0.as_bytes()], |row| {
            let chain = SessionChain {
                session,
                trace_id: uuid_at(row, 1)?,
                next_sequence: unsigned_at(row, 2)?,
                head: digest_at(row, 3)?,
            };
            Ok(SqliteChainTip {
                id: row.get(0)?,
                chain,
                started: Timestamp(row.get(4)?),
                last: at,
                changed: false,
                ended: false,
            })
        })
        .optional()?;
    if let Some(tip) = found {
        return Ok(tip);
    }
    // There is one trace per session, and its id is the session's. So everybody can derive it.
    let chain = SessionChain::new(session, session.0);
    let mut insert = connection.prepare_cached(
        "INSERT INTO sessions (session, trace_id, events, head, started, last) VALUES (?1, ?2, 0, ?3, ?4, ?4)",
    )?;
    insert.execute(params![
        session.0.as_bytes(),
        chain.trace_id.as_bytes(),
        chain.head.0,
        at.0
    ])?;
    Ok(SqliteChainTip {
        id: connection.last_insert_rowid(),
        chain,
        started: at,
        last: at,
        changed: false,
        ended: false,
    })
}

fn apply(connection: &Connection, change: &InboxChange) -> rusqlite::Result<()> {
    match change {
        InboxChange::Accepted {
            session,
            message,
            arrival,
        } => {
            let sql = "INSERT INTO inbox (message, session, state) VALUES (?1, ?2, 'open') ON CONFLICT (message) DO NOTHING";
            connection
                .prepare_cached(sql)?
                .execute(params![message.0.as_bytes(), session.0.as_bytes()])?;
            if let Some(arrival) = arrival {
                boxes::record_arrival(connection, *session, *message, arrival)?;
            }
        }
        InboxChange::Closed {
            message,
            how,
            reason,
            owed,
        } => {
            // The reason is in the event's content; no reader needs it here.
            let sql = "UPDATE inbox SET state = ?2 WHERE message = ?1 AND state = 'open'";
            let closed = connection
                .prepare_cached(sql)?
                .execute(params![message.0.as_bytes(), how])?;
            if let Some((owed, at)) = owed.as_ref().filter(|_| closed > 0) {
                boxes::record_owed_answer(connection, owed, *at, reason.as_deref())?;
            }
        }
    }
    Ok(())
}

fn add_spent(connection: &Connection, hour: i64, purse: &str, amount: &BudgetAmount) -> rusqlite::Result<()> {
    let sql = "INSERT INTO spent (hour, purse, tokens, cost_microusd, busy_ms, calls, bytes_out) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
        ON CONFLICT (hour, purse) DO UPDATE SET tokens = tokens + excluded.tokens, cost_microusd = cost_microusd + excluded.cost_microusd, \
        busy_ms = busy_ms + excluded.busy_ms, calls = calls + excluded.calls, bytes_out = bytes_out + excluded.bytes_out";
    connection.prepare_cached(sql)?.execute(params![
        hour,
        purse,
        integer(amount.tokens),
        integer(amount.cost_microusd),
        integer(amount.busy_ms),
        integer(amount.calls),
        integer(amount.bytes_out),
    ])?;
    Ok(())
}

fn take_back(connection: &Connection, hour: i64, purse: &str, amount: &BudgetAmount) -> rusqlite::Result<()> {
    let sql = "UPDATE spent SET tokens = max(tokens - ?3, 0), cost_microusd = max(cost_microusd - ?4, 0), busy_ms = max(busy_ms - ?5, 0), \
        calls = max(calls - ?6, 0), bytes_out = max(bytes_out - ?7, 0) WHERE hour = ?1 AND purse = ?2";
    connection.prepare_cached(sql)?.execute(params![
        hour,
        purse,
        integer(amount.tokens),
        integer(amount.cost_microusd),
        integer(amount.busy_ms),
        integer(amount.calls),
        integer(amount.bytes_out),
    ])?;
    Ok(())
}

fn apply_effect(connection: &Connection, change: &EffectChange) -> rusqlite::Result<()> {
    match change {
        EffectChange::Unknown(effect) => {
            let sql = "INSERT INTO effects_open (request, session, tool, parameters, at) VALUES (?1, ?2, ?3, ?4, ?5) \
                ON CONFLICT (request, session, parameters) DO NOTHING";
            connection.prepare_cached(sql)?.execute(params![
                effect.request_id.as_str(),
                effect.session.0.as_bytes(),
                effect.tool,
                effect.parameters.0,
                effect.at.0,
            ])?;
        }
        EffectChange::Resolved {
            request_id,
            session,
            parameters,
        } => {
            let sql = "DELETE FROM effects_open WHERE request = ?1 AND session = ?2 AND parameters = ?3";
            connection.prepare_cached(sql)?.execute(params![
                request_id.as_str(),
                session.0.as_bytes(),
                parameters.0
            ])?;
        }
    }
    Ok(())
}

/// SQLite's integers are signed; our counts never reach their limit.
pub(crate) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned_at(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(index)?;
    u64::try_from(value).map_err(|e| wrong(index, Type::Integer, e))
}

pub(crate) fn uuid_at(row: &Row<'_>, index: usize) -> rusqlite::Result<Uuid> {
    let bytes = row
        .get_ref(index)?
        .as_blob()
        .map_err(|e| wrong(index, Type::Blob, e))?;
    Uuid::from_slice(bytes).map_err(|e| wrong(index, Type::Blob, e))
}

pub(crate) fn digest_at(row: &Row<'_>, index: usize) -> rusqlite::Result<Digest> {
    let bytes = row
        .get_ref(index)?
        .as_blob()
        .map_err(|e| wrong(index, Type::Blob, e))?;
    <[u8; 32]>::try_from(bytes)
        .map(Digest)
        .map_err(|e| wrong(index, Type::Blob, e))
}

fn wrong(index: usize, kind: Type, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, kind, Box::new(error))
}
