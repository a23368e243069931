//! Conversations, the platforms' message ids, and the outbox (C1, C2, C5): projections of the journal, changed in its commits.

use clawk_kernel::ports::{
    ConversationKey, EarlierArrival, InboxArrival, OutboxChange, OutboxRow, OwedAnswer,
};
use clawk_kernel::time::Timestamp;
use clawk_proto::{MessageId, SessionId};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::append::{digest_at, integer, uuid_at};
use crate::error::StateError;
use crate::reader::StateDirReader;

/// The number of expired message ids that each new message deletes.
const FORGOTTEN_AT_ONCE: i64 = 16;

/// A stored reason is sealed where it begins like one: `~` and the base64 of a sealed value's first bytes. Earlier versions stored others'
/// texts as they were. One that can't be opened keeps no answer from being delivered.
const COLUMNS: &str = "message, session, channel, conversation, sender, reply_to, text, at, attempts, next_at, doubt, dead, \
    clawk_reason(reason, 'outbox', message)";

/// The stored form of a reason: a text that looks sealed is marked, so that it is not mistaken for a sealed one.
fn storable_reason(reason: &str) -> std::borrow::Cow<'_, str> {
    match reason.starts_with('~') {
        true => format!(" {reason}").into(),
        false => reason.into(),
    }
}

/// Records an inbound message of a channel. The connection must be in the writer's transaction.
pub(crate) fn record_arrival(
    connection: &Connection,
    session: SessionId,
    message: MessageId,
    arrival: &InboxArrival,
) -> rusqlite::Result<()> {
    let key = &arrival.key;
    connection
        .prepare_cached("INSERT OR REPLACE INTO conversations (channel, conversation, sender, session) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![
            key.channel,
            key.conversation,
            key.sender,
            session.0.as_bytes()
        ])?;
    let forget = "DELETE FROM platform_ids WHERE (channel, id) IN \
        (SELECT channel, id FROM platform_ids WHERE until <= ?1 ORDER BY until LIMIT ?2)";
    connection
        .prepare_cached(forget)?
        .execute(params![arrival.at.0, FORGOTTEN_AT_ONCE])?;
    for id in &arrival.platform_ids {
        connection
            .prepare_cached(
                "INSERT OR REPLACE INTO platform_ids (channel, id, message, session, until) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                key.channel,
                id,
                message.0.as_bytes(),
                session.0.as_bytes(),
                arrival.kept_until.0
            ])?;
    }
    Ok(())
}

/// Adds an answer to the outbox.
pub(crate) fn record_owed_answer(
    connection: &Connection,
    owed: &OwedAnswer,
    at: Timestamp,
    reason: Option<&str>,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO outbox (message, session, channel, conversation, sender, reply_to, text, at, attempts, next_at, doubt, dead, reason) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, ?8, 0, 0, clawk_keep(?9, 'outbox', ?1)) ON CONFLICT (message) DO NOTHING",
        )?
        .execute(params![
            owed.message.0.as_bytes(),
            owed.session.0.as_bytes(),
            owed.channel,
            owed.conversation,
            owed.sender,
            owed.reply_to,
            owed.text.map(|text| text.0),
            at.0,
            reason.map(storable_reason)
        ])?;
    Ok(())
}

/// Changes an entry of the outbox.
pub(crate) fn apply_outbox_change(connection: &Connection, change: &OutboxChange) -> rusqlite::Result<()> {
    match change {
        OutboxChange::Begun { message } => connection
            .prepare_cached("UPDATE outbox SET attempts = attempts + 1, doubt = 1 WHERE message = ?1")?
            .execute([message.0.as_bytes()])?,
        OutboxChange::Delivered { message } => connection
            .prepare_cached("DELETE FROM outbox WHERE message = ?1")?
            .execute([message.0.as_bytes()])?,
        OutboxChange::Again {
            message,
            next_at,
            doubt,
            reason,
        } => connection
            .prepare_cached("UPDATE outbox SET next_at = ?2, doubt = ?3, reason = clawk_keep(?4, 'outbox', ?1) WHERE message = ?1")?
            .execute(params![message.0.as_bytes(), next_at.0, doubt, storable_reason(reason)])?,
        OutboxChange::Dead { message, reason } => connection
            .prepare_cached("UPDATE outbox SET dead = 1, reason = clawk_keep(?2, 'outbox', ?1) WHERE message = ?1")?
            .execute(params![message.0.as_bytes(), storable_reason(reason)])?,
        OutboxChange::Requeued { message, at } => connection
            .prepare_cached("UPDATE outbox SET dead = 0, attempts = 0, next_at = ?2 WHERE message = ?1")?
            .execute(params![message.0.as_bytes(), at.0])?,
    };
    Ok(())
}

fn outbox_row(row: &Row<'_>) -> rusqlite::Result<OutboxRow> {
    let text = match row.get_ref(6)? {
        rusqlite::types::ValueRef::Null => None,
        _ => Some(digest_at(row, 6)?),
    };
    Ok(OutboxRow {
        owed: OwedAnswer {
            message: MessageId(uuid_at(row, 0)?),
            session: SessionId(uuid_at(row, 1)?),
            channel: row.get(2)?,
            conversation: row.get(3)?,
            sender: row.get(4)?,
            reply_to: row.get(5)?,
            text,
        },
        at: Timestamp(row.get(7)?),
        attempts: row.get(8)?,
        next_at: Timestamp(row.get(9)?),
        doubt: row.get(10)?,
        dead: row.get(11)?,
        reason: row.get(12)?,
    })
}

fn row_limit(limit: usize) -> i64 {
    integer(u64::try_from(limit).unwrap_or(u64::MAX))
}

impl StateDirReader {
    pub(crate) fn arrived(
        &self,
        channel: &str,
        id: &str,
        now: Timestamp,
    ) -> Result<Option<EarlierArrival>, StateError> {
        let sql = "SELECT message, session FROM platform_ids WHERE channel = ?1 AND id = ?2 AND until > ?3";
        self.with(|connection| {
            connection
                .prepare_cached(sql)?
                .query_row(params![channel, id, now.0], |row| {
                    Ok(EarlierArrival {
                        message: MessageId(uuid_at(row, 0)?),
                        session: SessionId(uuid_at(row, 1)?),
                    })
                })
                .optional()
        })
    }

    pub(crate) fn conversation(&self, key: &ConversationKey) -> Result<Option<SessionId>, StateError> {
        let sql =
            "SELECT session FROM conversations WHERE channel = ?1 AND conversation = ?2 AND sender = ?3";
        self.with(|connection| {
            connection
                .prepare_cached(sql)?
                .query_row(params![key.channel, key.conversation, key.sender], |row| {
                    Ok(SessionId(uuid_at(row, 0)?))
                })
                .optional()
        })
    }

    pub(crate) fn owed(&self, channel: &str, limit: usize) -> Result<Vec<OutboxRow>, StateError> {
        // The first entry of each conversation; the index `outbox_owed` has this order.
        let sql = format!(
            "SELECT {COLUMNS} FROM outbox o WHERE dead = 0 AND channel = ?1 AND n = (SELECT min(n) FROM outbox p \
             WHERE p.dead = 0 AND p.channel = o.channel AND p.conversation = o.conversation) ORDER BY next_at, n LIMIT ?2"
        );
        self.with(|connection| {
            let mut select = connection.prepare_cached(&sql)?;
            let rows = select.query_map(params![channel, row_limit(limit)], outbox_row)?;
            rows.collect()
        })
    }

    /// The outbox: pending and failed deliveries, oldest first, at most `limit`.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn outbox(&self, limit: usize) -> Result<Vec<OutboxRow>, StateError> {
        let sql = format!("SELECT {COLUMNS} FROM outbox ORDER BY n LIMIT ?1");
        self.with(|connection| {
            let mut select = connection.prepare_cached(&sql)?;
            let rows = select.query_map([row_limit(limit)], outbox_row)?;
            rows.collect()
        })
    }
}
