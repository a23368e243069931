//! Reads a state: for the journal itself, and with [`PgReader`] for tools outside the agent.
//!
//! Long because each query of the state is one function with its SQL.

use std::sync::Arc;

use clawk_kernel::ports::{
    AnswerKey, ConversationKey, EarlierArrival, EventContent, JournalScan, OpenEffect, OpenMessage,
    OutboxRow, RecordedEvent, SessionRow, SpentAmount, StoredAnswer,
};
use clawk_kernel::projection::StoredProjections;
use clawk_kernel::purse::BudgetAmount;
use clawk_kernel::time::Timestamp;
use clawk_proto::trace::{SealedEvent, TRACE_VERSION};
use clawk_proto::{Digest, MessageId, RequestId, SessionId};
use clawk_recall::keys::StateSealer;
use clawk_trace::chain::digest_of;
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::row::{self, read_unsigned, row_limit, to_i64};
use super::{PgStateError, append, boxes, check, seal};
use crate::connect::PgConnection;
use crate::error::PgFailure;
use crate::memory::PgMemory;
use crate::pool::PgDatabase;

/// The number of rows in a page if the caller gives no limit.
const PAGE: usize = 1000;
/// How far a clock may have been set back between two events so that both are still found by their time, microseconds: an hour.
const CLOCK_SET_BACK_US: i64 = 3_600_000_000;

/// The columns of a whole event; see [`event_from_row`].
const EVENT: &str = "SELECT e.row, e.session, s.trace_id, e.sequence, e.at, e.kind, e.event_id, e.span, e.parent, e.payload, e.hash, \
    e.content_digest, (SELECT p.hash FROM events p WHERE p.session = e.session AND p.sequence = e.sequence - 1) \
    FROM events e JOIN sessions s ON s.session = e.session";

pub(super) async fn scan_journal(
    session: &PgConnection,
    seals: &StateSealer,
    scan: &JournalScan,
) -> Result<Vec<RecordedEvent>, PgFailure> {
    let after = match scan.since {
        Some(since) if scan.after_row == 0 => row_before(session, since).await?,
        Some(_) | None => to_i64(scan.after_row),
    };
    let limit = row_limit(if scan.limit == 0 { PAGE } else { scan.limit });
    let of = scan.session.map(|session| session.0.as_bytes().to_vec());
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![&after, &limit];
    let bytes = if scan.with_content {
        "c.bytes"
    } else {
        "NULL::bytea"
    };
    let mut sql = format!(
        "SELECT e.row, e.session, e.sequence, e.at, e.kind, e.payload, e.content_digest, {bytes} FROM events e"
    );
    if scan.with_content {
        sql.push_str(" LEFT JOIN contents c ON c.digest = e.content_digest");
    }
    sql.push_str(" WHERE e.row > $1");
    if let Some(of) = &of {
        values.push(of);
        sql.push_str(&format!(" AND e.session = ${}", values.len()));
    }
    if !scan.kinds.is_empty() {
        values.push(&scan.kinds);
        sql.push_str(&format!(" AND e.kind = ANY (${})", values.len()));
    }
    if let Some(since) = &scan.since {
        values.push(&since.0);
        sql.push_str(&format!(" AND e.at >= ${}", values.len()));
    }
    if let Some(says) = &scan.says {
        values.push(says);
        sql.push_str(&format!(" AND position(${} IN e.payload) > 0", values.len()));
    }
    sql.push_str(" ORDER BY e.row LIMIT $2");
    let rows = session.query_rows(&sql, &values).await?;
    rows.iter().map(|found| recorded_from_row(seals, found)).collect()
}

/// The last row before those that may be from `since` or later, by binary search. Rows are ordered by time, except where a clock
/// was set back.
async fn row_before(session: &PgConnection, since: Timestamp) -> Result<i64, PgFailure> {
    let sought = since.0.saturating_sub(CLOCK_SET_BACK_US);
    let (mut before, mut behind) = (0, to_i64(last_row(session).await?) + 1);
    while behind - before > 1 {
        let middle = before + (behind - before) / 2;
        let sql = "SELECT at FROM events WHERE row >= $1 ORDER BY row LIMIT 1";
        if session.query_value::<i64>(sql, &[&middle]).await? < sought {
            before = middle;
        } else {
            behind = middle;
        }
    }
    Ok(before)
}

fn recorded_from_row(seals: &StateSealer, found: &Row) -> Result<RecordedEvent, PgFailure> {
    let bytes: Option<Vec<u8>> = found.try_get(7)?;
    let content = match (row::maybe_digest(found, 6)?, bytes) {
        (Some(digest), Some(bytes)) => Some(EventContent {
            digest,
            bytes: verify_bytes(digest, seal::open_content(seals, digest, bytes)?)?,
        }),
        _ => None,
    };
    Ok(RecordedEvent {
        row: read_unsigned(found, 0)?,
        session: row::read_session(found, 1)?,
        sequence: read_unsigned(found, 2)?,
        at: Timestamp(found.try_get(3)?),
        kind: found.try_get(4)?,
        payload: found.try_get(5)?,
        content,
    })
}

/// Returns the bytes only if they have this digest; other bytes are never used.
fn verify_bytes(digest: Digest, bytes: Vec<u8>) -> Result<Vec<u8>, PgFailure> {
    if digest_of(&bytes) == digest {
        return Ok(bytes);
    }
    Err(PgFailure::Schema(format!(
        "the content `{digest}` was changed; look with `clawk trace verify`"
    )))
}

pub(super) async fn last_row(session: &PgConnection) -> Result<u64, PgFailure> {
    let sql = "SELECT coalesce(max(row), 0) FROM events";
    let last: i64 = session.query_value(sql, &[]).await?;
    Ok(u64::try_from(last).unwrap_or(0))
}

pub(super) async fn last_row_of(session: &PgConnection, kind: &str) -> Result<Option<u64>, PgFailure> {
    let sql = "SELECT row FROM events WHERE kind = $1 ORDER BY row DESC LIMIT 1";
    let found = session.query_first(sql, &[&kind]).await?;
    found.map(|row| read_unsigned(&row, 0)).transpose()
}

pub(super) async fn answer_to(
    session: &PgConnection,
    seals: &StateSealer,
    key: AnswerKey,
) -> Result<Option<StoredAnswer>, PgFailure> {
    let now = append::NOW_US;
    let sql = format!(
        "SELECT e.row, e.session, e.sequence, e.at, e.kind, e.payload, e.content_digest, c.bytes, {now} - a.at FROM answers a \
         JOIN events e ON e.row = a.row LEFT JOIN contents c ON c.digest = e.content_digest WHERE a.key = $1"
    );
    let found = session
        .query_first(&sql, &[&append::answer_key_bytes(key)])
        .await?;
    let answer = |found: &Row| {
        Ok(StoredAnswer {
            event: recorded_from_row(seals, found)?,
            age_us: Some(found.try_get(8)?),
        })
    };
    found.as_ref().map(answer).transpose()
}

pub(super) async fn read_content(
    session: &PgConnection,
    seals: &StateSealer,
    digest: Digest,
) -> Result<Option<Vec<u8>>, PgFailure> {
    let found = stored_content(session, seals, digest).await?;
    found.map(|bytes| verify_bytes(digest, bytes)).transpose()
}

/// The stored bytes, without a check of their digest.
async fn stored_content(
    session: &PgConnection,
    seals: &StateSealer,
    digest: Digest,
) -> Result<Option<Vec<u8>>, PgFailure> {
    let sql = "SELECT bytes FROM contents WHERE digest = $1";
    let found = session.query_first(sql, &[&digest.0.as_slice()]).await?;
    let bytes: Option<Vec<u8>> = found.map(|row| row.try_get(0)).transpose()?;
    bytes
        .map(|bytes| seal::open_content(seals, digest, bytes))
        .transpose()
}

pub(super) async fn open_messages(session: &PgConnection) -> Result<Vec<OpenMessage>, PgFailure> {
    let sql = "SELECT session, message FROM inbox WHERE state = 'open' ORDER BY n";
    let rows = session.query_rows(sql, &[]).await?;
    let one = |found: &Row| {
        Ok(OpenMessage {
            session: row::read_session(found, 0)?,
            message: row::read_message(found, 1)?,
        })
    };
    rows.iter().map(one).collect()
}

pub(super) async fn message_session(
    session: &PgConnection,
    id: MessageId,
) -> Result<Option<SessionId>, PgFailure> {
    let sql = "SELECT session FROM inbox WHERE message = $1";
    let found = session.query_first(sql, &[&id.0.as_bytes().as_slice()]).await?;
    found.map(|found| row::read_session(&found, 0)).transpose()
}

pub(super) async fn find_arrival(
    session: &PgConnection,
    channel: &str,
    id: &str,
    now: Timestamp,
) -> Result<Option<EarlierArrival>, PgFailure> {
    let sql = "SELECT message, session FROM platform_ids WHERE channel = $1 AND id = $2 AND until > $3";
    let found = session
        .query_first(sql, &[&channel.as_bytes(), &id.as_bytes(), &now.0])
        .await?;
    let one = |found: Row| {
        Ok(EarlierArrival {
            message: row::read_message(&found, 0)?,
            session: row::read_session(&found, 1)?,
        })
    };
    found.map(one).transpose()
}

pub(super) async fn conversation_session(
    session: &PgConnection,
    key: &ConversationKey,
) -> Result<Option<SessionId>, PgFailure> {
    let sql = "SELECT session FROM conversations WHERE channel = $1 AND conversation = $2 AND sender = $3";
    let (channel, conversation) = (key.channel.as_bytes(), key.conversation.as_bytes());
    let found = session
        .query_first(sql, &[&channel, &conversation, &key.sender.as_bytes()])
        .await?;
    found.map(|found| row::read_session(&found, 0)).transpose()
}

pub(super) async fn owed_answers(
    session: &PgConnection,
    seals: &StateSealer,
    channel: &str,
    limit: usize,
) -> Result<Vec<OutboxRow>, PgFailure> {
    // The first entry of each conversation; the index `outbox_owed` has this order.
    let sql = format!(
        "SELECT {} FROM (SELECT DISTINCT ON (conversation) n, {} FROM outbox WHERE NOT dead AND channel = $1 \
         ORDER BY conversation, n) o ORDER BY next_at, n LIMIT $2",
        boxes::COLUMNS,
        boxes::COLUMNS
    );
    let rows = session
        .query_rows(&sql, &[&channel.as_bytes(), &row_limit(limit)])
        .await?;
    rows.iter().map(|found| boxes::outbox_row(seals, found)).collect()
}

pub(super) async fn read_outbox(
    session: &PgConnection,
    seals: &StateSealer,
    most: usize,
) -> Result<Vec<OutboxRow>, PgFailure> {
    let sql = format!("SELECT {} FROM outbox ORDER BY n LIMIT $1", boxes::COLUMNS);
    let rows = session.query_rows(&sql, &[&row_limit(most)]).await?;
    rows.iter().map(|found| boxes::outbox_row(seals, found)).collect()
}

pub(super) async fn list_sessions(
    session: &PgConnection,
    limit: usize,
) -> Result<Vec<SessionRow>, PgFailure> {
    let sql = "SELECT session, events, started, last FROM sessions ORDER BY last DESC, session DESC LIMIT $1";
    let rows = session.query_rows(sql, &[&row_limit(limit)]).await?;
    let one = |found: &Row| {
        Ok(SessionRow {
            session: row::read_session(found, 0)?,
            events: read_unsigned(found, 1)?,
            started: Timestamp(found.try_get(2)?),
            last: Timestamp(found.try_get(3)?),
        })
    };
    rows.iter().map(one).collect()
}

pub(super) async fn spent_since(session: &PgConnection, hour: i64) -> Result<Vec<SpentAmount>, PgFailure> {
    let sql = "SELECT hour, purse, tokens, cost_microusd, busy_ms, calls, bytes_out FROM spent WHERE hour >= $1 ORDER BY hour, purse";
    let rows = session.query_rows(sql, &[&hour]).await?;
    let one = |found: &Row| {
        Ok(SpentAmount {
            hour: found.try_get(0)?,
            purse: row::read_text(found, 1)?.into(),
            amount: BudgetAmount {
                tokens: read_unsigned(found, 2)?,
                cost_microusd: read_unsigned(found, 3)?,
                busy_ms: read_unsigned(found, 4)?,
                calls: read_unsigned(found, 5)?,
                bytes_out: read_unsigned(found, 6)?,
            },
        })
    };
    rows.iter().map(one).collect()
}

pub(super) async fn open_effects(session: &PgConnection) -> Result<Vec<OpenEffect>, PgFailure> {
    let sql = "SELECT request, session, tool, parameters, at FROM effects_open ORDER BY n";
    let rows = session.query_rows(sql, &[]).await?;
    let one = |found: &Row| {
        let request: &str = found.try_get(0)?;
        let request_id = RequestId::parse(request)
            .map_err(|_| PgFailure::Schema(format!("`{request}` is not a valid request id")))?; // silent-ok: named
        Ok(OpenEffect {
            request_id,
            session: row::read_session(found, 1)?,
            tool: row::read_text(found, 2)?,
            parameters: row::read_digest(found, 3)?,
            at: Timestamp(found.try_get(4)?),
        })
    };
    rows.iter().map(one).collect()
}

/// A whole event and its position.
#[derive(Debug)]
pub struct Event {
    /// Its row in the journal.
    pub row: u64,
    /// The event in its export form.
    pub event: SealedEvent,
    /// The digest of its content.
    pub content_digest: Option<Digest>,
}

fn event_from_row(found: &Row) -> Result<Event, PgFailure> {
    let payload = RawValue::from_string(found.try_get(9)?)
        .map_err(|_| PgFailure::Schema("a payload is not JSON".to_owned()))?; // silent-ok: says no more
    let event = SealedEvent {
        trace_version: TRACE_VERSION,
        session_id: row::read_session(found, 1)?,
        trace_id: row::read_uuid(found, 2)?,
        sequence: read_unsigned(found, 3)?,
        timestamp: Timestamp(found.try_get(4)?).to_string(),
        event_type: found.try_get(5)?,
        event_id: row::read_uuid(found, 6)?,
        span_id: row::read_uuid(found, 7)?,
        parent_span_id: row::maybe_uuid(found, 8)?,
        payload,
        event_hash: row::read_digest(found, 10)?,
        previous_event_hash: row::maybe_digest(found, 12)?.unwrap_or(Digest::ZERO),
    };
    Ok(Event {
        row: read_unsigned(found, 0)?,
        event,
        content_digest: row::maybe_digest(found, 11)?,
    })
}

/// The query of [`PgReader::read_events`]: one page in row order.
#[derive(Debug, Clone, Copy, Default)]
pub struct PgEventQuery {
    /// Only this chain.
    pub session: Option<SessionId>,
    /// Only rows after this one.
    pub after_row: u64,
    /// The largest number of events; 0: a page of 1000.
    pub limit: usize,
}

/// Reads a state without serving it.
#[derive(Debug, Clone)]
pub struct PgReader {
    pub(super) database: PgDatabase,
    /// Opens encrypted content.
    pub(super) seals: Arc<StateSealer>,
}

impl PgReader {
    /// A reader of this database.
    #[must_use]
    pub fn new(database: PgDatabase) -> Self {
        Self {
            database,
            seals: Arc::default(),
        }
    }

    /// The memory stores of this agent inside the state.
    #[must_use]
    pub fn memory(&self, agent: &str) -> PgMemory {
        let vault = self.seals.vault().cloned().map(Arc::new);
        PgMemory::new(self.database.clone(), agent).with_vault(vault)
    }

    pub(super) async fn run_with_connection<T>(
        &self,
        work: impl AsyncFnOnce(&PgConnection) -> Result<T, PgFailure>,
    ) -> Result<T, PgStateError> {
        Ok(self.database.read(work).await?)
    }

    /// One page of events in the kernel's form.
    ///
    /// # Errors
    /// The database can't be read. The other functions fail in the same case.
    pub async fn recorded_events(&self, asked: &JournalScan) -> Result<Vec<RecordedEvent>, PgStateError> {
        self.run_with_connection(async |session| scan_journal(session, &self.seals, asked).await)
            .await
    }

    /// Whole events in row order.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn read_events(&self, which: PgEventQuery) -> Result<Vec<Event>, PgStateError> {
        let limit = row_limit(if which.limit == 0 { PAGE } else { which.limit });
        let of = which.session.map(|session| session.0.as_bytes().to_vec());
        let sql = format!(
            "{EVENT} WHERE e.row > $1 AND ($2::bytea IS NULL OR e.session = $2) ORDER BY e.row LIMIT $3"
        );
        self.run_with_connection(async |session| {
            let rows = session
                .query_rows(&sql, &[&to_i64(which.after_row), &of, &limit])
                .await?;
            rows.iter().map(event_from_row).collect()
        })
        .await
    }

    /// Events of a chain from sequence number `since` on, in order, at most `limit`. If `kinds` is not empty, only these types.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn read_chain(
        &self,
        of: SessionId,
        since: u64,
        kinds: &[String],
        limit: usize,
    ) -> Result<Vec<SealedEvent>, PgStateError> {
        let sql = format!(
            "{EVENT} WHERE e.session = $1 AND e.sequence >= $2 AND (cardinality($3::text[]) = 0 OR e.kind = ANY ($3)) \
             ORDER BY e.sequence LIMIT $4"
        );
        let of: &[u8] = of.0.as_bytes();
        self.run_with_connection(async |session| {
            let rows = session
                .query_rows(&sql, &[&of, &to_i64(since), &kinds, &row_limit(limit)])
                .await?;
            rows.iter()
                .map(|found| Ok(event_from_row(found)?.event))
                .collect()
        })
        .await
    }

    /// The number of events of a chain. If `kinds` is not empty, only these types.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn count_events(&self, of: SessionId, kinds: &[String]) -> Result<u64, PgStateError> {
        let sql = "SELECT count(*) FROM events WHERE session = $1 AND (cardinality($2::text[]) = 0 OR kind = ANY ($2))";
        let of: &[u8] = of.0.as_bytes();
        self.run_with_connection(async |session| {
            let rows = session.query_rows(sql, &[&of, &kinds]).await?;
            rows.first().map_or(Ok(0), |row| read_unsigned(row, 0))
        })
        .await
    }

    /// Content by its digest; `None` if it was erased or is unknown.
    ///
    /// # Errors
    /// The database can't be read, or the bytes do not have this digest.
    pub async fn read_content(&self, digest: Digest) -> Result<Option<Vec<u8>>, PgStateError> {
        self.run_with_connection(async |session| read_content(session, &self.seals, digest).await)
            .await
    }

    /// The stored bytes, without a check of their digest.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn stored_content(&self, digest: Digest) -> Result<Option<Vec<u8>>, PgStateError> {
        self.run_with_connection(async |session| stored_content(session, &self.seals, digest).await)
            .await
    }

    /// Every digest that events refer to, with the first such event.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn referred_digests(
        &self,
        only: Option<SessionId>,
    ) -> Result<Vec<(Digest, SessionId, u64)>, PgStateError> {
        let only = only.map(|session| session.0.as_bytes().to_vec());
        let sql = "SELECT DISTINCT ON (content_digest) content_digest, session, sequence FROM events \
            WHERE content_digest IS NOT NULL AND ($1::bytea IS NULL OR session = $1) ORDER BY content_digest, row";
        self.run_with_connection(async |session| {
            let rows = session.query_rows(sql, &[&only]).await?;
            let one = |found: &Row| {
                Ok((
                    row::read_digest(found, 0)?,
                    row::read_session(found, 1)?,
                    read_unsigned(found, 2)?,
                ))
            };
            rows.iter().map(one).collect()
        })
        .await
    }

    /// The end of each chain according to the table of sessions.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn chain_ends(
        &self,
        only: Option<SessionId>,
    ) -> Result<Vec<(SessionId, u64, Digest)>, PgStateError> {
        let only = only.map(|session| session.0.as_bytes().to_vec());
        let sql = "SELECT session, events, head FROM sessions WHERE $1::bytea IS NULL OR session = $1";
        self.run_with_connection(async |session| {
            let rows = session.query_rows(sql, &[&only]).await?;
            let one = |found: &Row| {
                Ok((
                    row::read_session(found, 0)?,
                    read_unsigned(found, 1)?,
                    row::read_digest(found, 2)?,
                ))
            };
            rows.iter().map(one).collect()
        })
        .await
    }

    /// Sessions, latest first.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn list_sessions(&self, limit: usize) -> Result<Vec<SessionRow>, PgStateError> {
        self.run_with_connection(async |session| list_sessions(session, limit).await)
            .await
    }

    /// The row of the newest event; 0 if there is none.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn last_row(&self) -> Result<u64, PgStateError> {
        self.run_with_connection(async |session| last_row(session).await)
            .await
    }

    /// The outbox: pending and failed deliveries, oldest first.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn read_outbox(&self, limit: usize) -> Result<Vec<OutboxRow>, PgStateError> {
        self.run_with_connection(async |s| read_outbox(s, &self.seals, limit).await)
            .await
    }

    /// The spending from this hour on (hours since the epoch), by hour and budget.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn spent_since(&self, hour: i64) -> Result<Vec<SpentAmount>, PgStateError> {
        self.run_with_connection(async |session| spent_since(session, hour).await)
            .await
    }

    /// Effects whose outcome is unknown, oldest first.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn open_effects(&self) -> Result<Vec<OpenEffect>, PgStateError> {
        self.run_with_connection(async |session| open_effects(session).await)
            .await
    }

    /// The stored projections beside the events, and the row of the newest event, in one snapshot.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn stored_projections(&self) -> Result<(StoredProjections, u64), PgStateError> {
        self.run_with_connection(async |session| {
            let rows = session
                .query_rows("SELECT message, state FROM inbox ORDER BY n", &[])
                .await?;
            let one = |found: &Row| Ok((row::read_message(found, 0)?, found.try_get(1)?));
            let inbox = rows.iter().map(one).collect::<Result<Vec<_>, PgFailure>>()?;
            let rows = session
                .query_rows("SELECT key, row FROM answers ORDER BY row", &[])
                .await?;
            let one = |found: &Row| Ok((answer_key(found)?, read_unsigned(found, 1)?));
            let answers = rows.iter().map(one).collect::<Result<Vec<_>, PgFailure>>()?;
            let kept = StoredProjections {
                inbox,
                // Answers expire in the order of their rows.
                answers_since: answers.first().map_or(0, |(_, row)| *row),
                answers,
                spent: spent_since(session, i64::MIN).await?,
                effects: open_effects(session).await?,
            };
            Ok((kept, last_row(session).await?))
        })
        .await
    }

    /// Why a start would refuse this state because of its chains or rows; `None`: it would not.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn find_fault(&self) -> Result<Option<String>, PgStateError> {
        check::find_fault(&self.database).await
    }
}

fn answer_key(found: &Row) -> Result<AnswerKey, PgFailure> {
    let bytes: &[u8] = found.try_get(0)?;
    let wrong = || PgFailure::Schema(format!("a key of an answer has {} bytes", bytes.len()));
    let (method, id) = bytes.split_first().ok_or_else(wrong)?;
    Ok(AnswerKey {
        method: *method,
        request_id: id.try_into().map_err(|_| wrong())?, // silent-ok: the length is told
    })
}
