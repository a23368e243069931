//! The inbox, conversations, the platforms' message ids, and the outbox (C1, C2, C5). The journal's commits change them.

use clawk_kernel::ports::{InboxArrival, InboxChange, OutboxChange, OutboxRow, OwedAnswer};
use clawk_kernel::time::Timestamp;
use clawk_proto::{MessageId, SessionId};
use clawk_recall::keys::StateSealer;
use tokio_postgres::Row;

use super::{row, seal};
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// The first character of reasons that could be mistaken for sealed ones.
const MARK: char = '~';
/// The prefix of a sealed reason: the mark, and the base64 of a sealed value's first bytes. Earlier versions stored other texts
/// unchanged.
const SEALED: &str = "~Y2xhd2sAcz";

/// The number of expired message ids that each new message deletes.
const FORGOTTEN_AT_ONCE: i64 = 16;

/// The columns that [`outbox_row`] reads.
pub(super) const COLUMNS: &str = "message, session, channel, conversation, sender, reply_to, text, at, attempts, next_at, doubt, dead, reason";

pub(super) async fn apply_inbox_change(
    session: &PgConnection,
    seals: &StateSealer,
    change: &InboxChange,
) -> Result<(), PgFailure> {
    match change {
        InboxChange::Accepted {
            session: of,
            message,
            arrival,
        } => {
            let sql = "INSERT INTO inbox (message, session, state) VALUES ($1, $2, 'open') ON CONFLICT (message) DO NOTHING";
            let (id, to): (&[u8], &[u8]) = (message.0.as_bytes(), of.0.as_bytes());
            session.run(sql, &[&id, &to]).await?;
            if let Some(arrival) = arrival {
                record_arrival(session, *of, *message, arrival).await?;
            }
        }
        InboxChange::Closed {
            message,
            how,
            reason,
            owed,
        } => {
            // The reason is in the event's content; no reader needs it here.
            let sql = "UPDATE inbox SET state = $2 WHERE message = $1 AND state = 'open'";
            let id: &[u8] = message.0.as_bytes();
            let closed = session.run(sql, &[&id, how]).await?;
            if let Some((owed, at)) = owed.as_ref().filter(|_| closed > 0) {
                let why = reason
                    .as_ref()
                    .map(|reason| stored_reason(seals, *message, reason));
                record_owed_answer(session, owed, *at, why.transpose()?.as_deref()).await?;
            }
        }
    }
    Ok(())
}

async fn record_arrival(
    session: &PgConnection,
    of: SessionId,
    message: MessageId,
    arrival: &InboxArrival,
) -> Result<(), PgFailure> {
    let (channel, conversation) = (
        arrival.key.channel.as_bytes(),
        arrival.key.conversation.as_bytes(),
    );
    let sender = arrival.key.sender.as_bytes();
    let (of, message): (&[u8], &[u8]) = (of.0.as_bytes(), message.0.as_bytes());
    let sql = "INSERT INTO conversations (channel, conversation, sender, session) VALUES ($1, $2, $3, $4) \
        ON CONFLICT (channel, conversation, sender) DO UPDATE SET session = excluded.session";
    session.run(sql, &[&channel, &conversation, &sender, &of]).await?;
    let sql = "DELETE FROM platform_ids WHERE (channel, id) IN \
        (SELECT channel, id FROM platform_ids WHERE until <= $1 ORDER BY until LIMIT $2)";
    session.run(sql, &[&arrival.at.0, &FORGOTTEN_AT_ONCE]).await?;
    let sql = "INSERT INTO platform_ids (channel, id, message, session, until) VALUES ($1, $2, $3, $4, $5) \
        ON CONFLICT (channel, id) DO UPDATE SET message = excluded.message, session = excluded.session, until = excluded.until";
    for id in &arrival.platform_ids {
        let values = (id.as_bytes(), arrival.kept_until.0);
        session
            .run(sql, &[&channel, &values.0, &message, &of, &values.1])
            .await?;
    }
    Ok(())
}

async fn record_owed_answer(
    session: &PgConnection,
    owed: &OwedAnswer,
    at: Timestamp,
    reason: Option<&[u8]>,
) -> Result<(), PgFailure> {
    let sql = "INSERT INTO outbox (message, session, channel, conversation, sender, reply_to, text, at, attempts, next_at, doubt, \
        dead, reason) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0, $8, false, false, $9) ON CONFLICT (message) DO NOTHING";
    let (message, of): (&[u8], &[u8]) = (owed.message.0.as_bytes(), owed.session.0.as_bytes());
    let (channel, conversation) = (owed.channel.as_bytes(), owed.conversation.as_bytes());
    let sender = owed.sender.as_bytes();
    let reply = owed.reply_to.as_ref().map(|reply| reply.as_bytes());
    let text = owed.text.as_ref().map(|text| text.0.as_slice());
    session
        .run(
            sql,
            &[
                &message,
                &of,
                &channel,
                &conversation,
                &sender,
                &reply,
                &text,
                &at.0,
                &reason,
            ],
        )
        .await?;
    Ok(())
}

pub(super) async fn apply_outbox_change(
    session: &PgConnection,
    seals: &StateSealer,
    change: &OutboxChange,
) -> Result<(), PgFailure> {
    match change {
        OutboxChange::Begun { message } => {
            let sql = "UPDATE outbox SET attempts = attempts + 1, doubt = true WHERE message = $1";
            session.run(sql, &[&message.0.as_bytes().as_slice()]).await?
        }
        OutboxChange::Delivered { message } => {
            let sql = "DELETE FROM outbox WHERE message = $1";
            session.run(sql, &[&message.0.as_bytes().as_slice()]).await?
        }
        OutboxChange::Again {
            message,
            next_at,
            doubt,
            reason,
        } => {
            let sql = "UPDATE outbox SET next_at = $2, doubt = $3, reason = $4 WHERE message = $1";
            let id: &[u8] = message.0.as_bytes();
            session
                .run(
                    sql,
                    &[&id, &next_at.0, doubt, &stored_reason(seals, *message, reason)?],
                )
                .await?
        }
        OutboxChange::Dead { message, reason } => {
            let sql = "UPDATE outbox SET dead = true, reason = $2 WHERE message = $1";
            let id: &[u8] = message.0.as_bytes();
            let reason = stored_reason(seals, *message, reason)?;
            session.run(sql, &[&id, &reason]).await?
        }
        OutboxChange::Requeued { message, at } => {
            let sql = "UPDATE outbox SET dead = false, attempts = 0, next_at = $2 WHERE message = $1";
            let id: &[u8] = message.0.as_bytes();
            session.run(sql, &[&id, &at.0]).await?
        }
    };
    Ok(())
}

/// The context string for sealing a reason; the same as in an SQLite state.
fn place_of_reason(message: MessageId) -> String {
    format!("outbox/{}", message.0.simple())
}

fn stored_reason(seals: &StateSealer, message: MessageId, reason: &str) -> Result<Vec<u8>, PgFailure> {
    // Texts that look sealed are marked, so that they are not mistaken for sealed ones.
    let reason = match reason.starts_with(MARK) {
        true => format!(" {reason}"),
        false => reason.to_owned(),
    };
    let stored = match seals.vault() {
        Some(vault) => vault
            .seal_text(&place_of_reason(message), &reason)
            .map_err(seal::seal_failure)?,
        None => reason,
    };
    Ok(stored.into_bytes())
}

/// Decodes a stored reason. Reasons of an earlier version are not sealed.
fn read_reason(seals: &StateSealer, message: MessageId, stored: String) -> Result<String, PgFailure> {
    if !stored.starts_with(SEALED) {
        return Ok(stored);
    }
    let vault = seals.require_vault().map_err(seal::seal_failure)?;
    let opened = vault.open_text(&place_of_reason(message), &stored);
    Ok(opened.map_err(seal::seal_failure)?.unwrap_or(stored))
}

/// Seals every reason with the current key. Deletes the reasons of closed messages, which have no reader.
pub(super) async fn seal_reasons(session: &PgConnection, seals: &StateSealer) -> Result<(), PgFailure> {
    let dropped = "UPDATE inbox SET reason = NULL WHERE reason IS NOT NULL";
    session.run(dropped, &[]).await?;
    let sql = "SELECT message, reason FROM outbox WHERE reason IS NOT NULL";
    for found in &session.query_rows(sql, &[]).await? {
        let message = row::read_message(found, 0)?;
        let Some(stored) = row::maybe_text(found, 1)? else {
            continue;
        };
        let reason = read_reason(seals, message, stored)?;
        let id: &[u8] = message.0.as_bytes();
        let sql = "UPDATE outbox SET reason = $2 WHERE message = $1";
        let sealed = stored_reason(seals, message, &reason)?;
        session.run(sql, &[&id, &sealed]).await?;
    }
    Ok(())
}

/// Reads an entry of the outbox with the columns [`COLUMNS`].
pub(super) fn outbox_row(seals: &StateSealer, found: &Row) -> Result<OutboxRow, PgFailure> {
    let attempts: i64 = found.try_get(8)?;
    let message = row::read_message(found, 0)?;
    let reason = row::maybe_text(found, 12)?.map(|reason| read_reason(seals, message, reason));
    Ok(OutboxRow {
        owed: OwedAnswer {
            message,
            session: row::read_session(found, 1)?,
            channel: row::read_text(found, 2)?,
            conversation: row::read_text(found, 3)?,
            sender: row::read_text(found, 4)?,
            reply_to: row::maybe_text(found, 5)?,
            text: row::maybe_digest(found, 6)?,
        },
        at: Timestamp(found.try_get(7)?),
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        next_at: Timestamp(found.try_get(9)?),
        doubt: found.try_get(10)?,
        dead: found.try_get(11)?,
        reason: reason.transpose()?,
    })
}
