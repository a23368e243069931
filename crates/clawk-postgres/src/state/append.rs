//! Links a group of batches into their chains and inserts them, inside the writer's transaction.

use std::collections::BTreeMap;

use clawk_kernel::ports::{ANSWER_KEPT_MS, AnswerKey, Batch, EffectChange, JournalEntry, SpentAmount};
use clawk_kernel::purse::BudgetAmount;
use clawk_proto::{Digest, SessionId};
use clawk_recall::keys::StateSealer;
use clawk_trace::{Draft, HashBuffer, SessionChain};

use super::boxes;
use super::row::{read_digest, read_session, read_unsigned, read_uuid, to_i64};
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// The number of expired stored answers that one group deletes.
const FORGOTTEN_AT_ONCE: i64 = 256;

/// The end of a session's chain in the database.
struct PgChainTip {
    chain: SessionChain,
    started: i64,
    last: i64,
}

/// The columns of a group's events.
#[derive(Default)]
struct PgEventColumns<'a> {
    rows: Vec<i64>,
    sessions: Vec<&'a [u8]>,
    sequences: Vec<i64>,
    times: Vec<i64>,
    kinds: Vec<&'a str>,
    ids: Vec<&'a [u8]>,
    spans: Vec<&'a [u8]>,
    parents: Vec<Option<Vec<u8>>>,
    payloads: Vec<&'a str>,
    hashes: Vec<Vec<u8>>,
    digests: Vec<Option<&'a [u8]>>,
}

/// Links and inserts the batches after `last_row`. Returns the new last row.
pub(super) async fn append_batches(
    session: &PgConnection,
    seals: &StateSealer,
    last_row: i64,
    batches: &[&Batch],
) -> Result<i64, PgFailure> {
    let entries: Vec<&JournalEntry> = batches.iter().flat_map(|batch| &batch.entries).collect();
    let mut row = last_row;
    if !entries.is_empty() {
        let mut tips = lock_tips(session, &entries).await?;
        let (mut columns, mut scratch) = (PgEventColumns::default(), HashBuffer::default());
        let mut answers: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
        for entry in &entries {
            row += 1;
            let Some(tip) = tips.get_mut(&entry.session) else {
                continue; // every session of the group has one
            };
            link_event(tip, entry, row, &mut columns, &mut scratch);
            if let Some(key) = entry.answers {
                answers.insert(answer_key_bytes(key), row);
            }
        }
        insert(session, &columns).await?;
        store_contents(session, seals, &entries).await?;
        save_tips(session, &tips).await?;
        self::store_answers(session, answers).await?;
    }
    for batch in batches {
        for change in &batch.inbox {
            boxes::apply_inbox_change(session, seals, change).await?;
        }
        for change in &batch.outbox {
            boxes::apply_outbox_change(session, seals, change).await?;
        }
        for change in &batch.effects {
            apply_effect_change(session, change).await?;
        }
    }
    let spent = sum_spending(batches.iter().flat_map(|batch| &batch.spent));
    change_sums(session, &spent, ADD_SPENT).await?;
    let unspent = sum_spending(batches.iter().flat_map(|batch| &batch.unspent));
    change_sums(session, &unspent, TAKE_BACK).await?;
    Ok(row)
}

fn link_event<'a>(
    tip: &mut PgChainTip,
    entry: &'a JournalEntry,
    row: i64,
    columns: &mut PgEventColumns<'a>,
    scratch: &mut HashBuffer,
) {
    let time = entry.at.to_string();
    let draft = Draft {
        event_id: entry.event_id,
        span: entry.span,
        parent: entry.parent,
        timestamp: &time,
        event_type: entry.kind,
        payload: entry.payload.get(),
    };
    let link = tip.chain.append(&draft, scratch);
    tip.last = entry.at.0;
    columns.rows.push(row);
    columns.sessions.push(entry.session.0.as_bytes());
    columns.sequences.push(to_i64(link.sequence));
    columns.times.push(entry.at.0);
    columns.kinds.push(entry.kind);
    columns.ids.push(entry.event_id.as_bytes());
    columns.spans.push(entry.span.as_bytes());
    columns
        .parents
        .push(link.parent.map(|parent| parent.as_bytes().to_vec()));
    columns.payloads.push(entry.payload.get());
    columns.hashes.push(link.hash.0.to_vec());
    columns
        .digests
        .push(entry.content.as_ref().map(|content| content.digest.0.as_slice()));
}

/// The ends of the chains that the entries extend. Their rows are locked.
async fn lock_tips(
    session_: &PgConnection,
    entries: &[&JournalEntry],
) -> Result<BTreeMap<SessionId, PgChainTip>, PgFailure> {
    let mut tips: BTreeMap<SessionId, PgChainTip> = BTreeMap::new();
    for entry in entries {
        // There is one trace per session, and its id is the session's. So everybody can derive it.
        tips.entry(entry.session).or_insert_with(|| PgChainTip {
            chain: SessionChain::new(entry.session, entry.session.0),
            started: entry.at.0,
            last: entry.at.0,
        });
    }
    let ids: Vec<&[u8]> = tips
        .keys()
        .map(|session| session.0.as_bytes().as_slice())
        .collect();
    let sql =
        "SELECT session, trace_id, events, head, started FROM sessions WHERE session = ANY ($1) FOR UPDATE";
    for row in session_.query_rows(sql, &[&ids]).await? {
        let of = read_session(&row, 0)?;
        let chain = SessionChain {
            session: of,
            trace_id: read_uuid(&row, 1)?,
            next_sequence: read_unsigned(&row, 2)?,
            head: read_digest(&row, 3)?,
        };
        let started = row.try_get(4)?;
        if let Some(tip) = tips.get_mut(&of) {
            *tip = PgChainTip {
                chain,
                started,
                last: tip.last,
            };
        }
    }
    Ok(tips)
}

async fn insert(session: &PgConnection, columns: &PgEventColumns<'_>) -> Result<(), PgFailure> {
    let sql = "INSERT INTO events (row, session, sequence, at, kind, event_id, span, parent, payload, hash, content_digest) \
        SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::text[], $6::bytea[], $7::bytea[], \
        $8::bytea[], $9::text[], $10::bytea[], $11::bytea[])";
    let PgEventColumns {
        rows,
        sessions,
        sequences,
        times,
        kinds,
        ids,
        spans,
        parents,
        payloads,
        hashes,
        digests,
    } = columns;
    session
        .run(
            sql,
            &[
                rows, sessions, sequences, times, kinds, ids, spans, parents, payloads, hashes, digests,
            ],
        )
        .await?;
    Ok(())
}

/// Stores the content of the events, sealed if the state is encrypted. Equal bytes are stored once.
async fn store_contents(
    session: &PgConnection,
    seals: &StateSealer,
    entries: &[&JournalEntry],
) -> Result<(), PgFailure> {
    let all: BTreeMap<Digest, &[u8]> = entries
        .iter()
        .filter_map(|entry| entry.content.as_ref())
        .map(|content| (content.digest, content.bytes.as_slice()))
        .collect();
    if all.is_empty() {
        return Ok(());
    }
    let digests: Vec<&[u8]> = all.keys().map(|digest| digest.0.as_slice()).collect();
    let sealed = all
        .iter()
        .map(|(digest, bytes)| seals.seal_content(*digest, bytes));
    let sealed = sealed.collect::<Result<Vec<_>, _>>();
    let sealed = sealed.map_err(|error| PgFailure::Schema(error.to_string()))?;
    let stored = all.values().zip(&sealed);
    let bytes: Vec<&[u8]> = stored
        .map(|(bytes, sealed)| sealed.as_deref().unwrap_or(bytes))
        .collect();
    let sql = "INSERT INTO contents (digest, bytes) SELECT * FROM unnest($1::bytea[], $2::bytea[]) ON CONFLICT DO NOTHING";
    session.run(sql, &[&digests, &bytes]).await?;
    Ok(())
}

async fn save_tips(session: &PgConnection, tips: &BTreeMap<SessionId, PgChainTip>) -> Result<(), PgFailure> {
    let ids: Vec<&[u8]> = tips
        .keys()
        .map(|session| session.0.as_bytes().as_slice())
        .collect();
    let column = |of: fn(&PgChainTip) -> i64| tips.values().map(of).collect::<Vec<i64>>();
    let traces: Vec<&[u8]> = tips
        .values()
        .map(|tip| tip.chain.trace_id.as_bytes().as_slice())
        .collect();
    let heads: Vec<&[u8]> = tips.values().map(|tip| tip.chain.head.0.as_slice()).collect();
    let events = column(|tip| to_i64(tip.chain.next_sequence));
    let (started, last) = (column(|tip| tip.started), column(|tip| tip.last));
    let sql = "INSERT INTO sessions (session, trace_id, events, head, started, last) \
        SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bigint[]) \
        ON CONFLICT (session) DO UPDATE SET events = excluded.events, head = excluded.head, last = excluded.last";
    session
        .run(sql, &[&ids, &traces, &events, &heads, &started, &last])
        .await?;
    Ok(())
}

/// The database's time in microseconds since 1970. It decides how long answers are kept, because the hosts' clocks differ.
pub(super) const NOW_US: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

async fn store_answers(session: &PgConnection, answers: BTreeMap<Vec<u8>, i64>) -> Result<(), PgFailure> {
    if answers.is_empty() {
        return Ok(());
    }
    let keys: Vec<&[u8]> = answers.keys().map(Vec::as_slice).collect();
    let rows: Vec<i64> = answers.values().copied().collect();
    let sql = format!(
        "INSERT INTO answers (key, row, at) SELECT key, row, {NOW_US} FROM unnest($1::bytea[], $2::bigint[]) AS n (key, row) \
         ON CONFLICT (key) DO UPDATE SET row = excluded.row, at = excluded.at"
    );
    session.run(&sql, &[&keys, &rows]).await?;
    let sql = format!(
        "DELETE FROM answers WHERE key IN (SELECT key FROM answers WHERE at < {NOW_US} - $1 ORDER BY at LIMIT $2)"
    );
    let kept_us = ANSWER_KEPT_MS.saturating_mul(1000);
    session.run(&sql, &[&kept_us, &FORGOTTEN_AT_ONCE]).await?;
    Ok(())
}

/// The method, then the request's id, as bytes.
pub(super) fn answer_key_bytes(key: AnswerKey) -> Vec<u8> {
    let mut bytes = vec![key.method];
    bytes.extend(key.request_id);
    bytes
}

type PgSpendingSums<'a> = BTreeMap<(i64, &'a [u8]), BudgetAmount>;

/// The sums by hour and budget.
fn sum_spending<'a>(rows: impl Iterator<Item = &'a SpentAmount>) -> PgSpendingSums<'a> {
    let mut sums = PgSpendingSums::new();
    for row in rows {
        let sum = sums.entry((row.hour, row.purse.as_bytes())).or_default();
        *sum = sum.plus(row.amount);
    }
    sums
}

const ADD_SPENT: &str = "INSERT INTO spent AS s (hour, purse, tokens, cost_microusd, busy_ms, calls, bytes_out) \
    SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[]) \
    ON CONFLICT (hour, purse) DO UPDATE SET tokens = s.tokens + excluded.tokens, \
    cost_microusd = s.cost_microusd + excluded.cost_microusd, busy_ms = s.busy_ms + excluded.busy_ms, \
    calls = s.calls + excluded.calls, bytes_out = s.bytes_out + excluded.bytes_out";

const TAKE_BACK: &str = "UPDATE spent AS s SET tokens = greatest(s.tokens - n.tokens, 0), \
    cost_microusd = greatest(s.cost_microusd - n.cost_microusd, 0), busy_ms = greatest(s.busy_ms - n.busy_ms, 0), \
    calls = greatest(s.calls - n.calls, 0), bytes_out = greatest(s.bytes_out - n.bytes_out, 0) \
    FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[]) \
    AS n (hour, purse, tokens, cost_microusd, busy_ms, calls, bytes_out) WHERE s.hour = n.hour AND s.purse = n.purse";

/// Changes the stored sums, by one of the two statements above.
async fn change_sums(session: &PgConnection, sums: &PgSpendingSums<'_>, sql: &str) -> Result<(), PgFailure> {
    if sums.is_empty() {
        return Ok(());
    }
    let hours: Vec<i64> = sums.keys().map(|(hour, _)| *hour).collect();
    let purses: Vec<&[u8]> = sums.keys().map(|(_, purse)| *purse).collect();
    let column =
        |of: fn(&BudgetAmount) -> u64| sums.values().map(|sum| to_i64(of(sum))).collect::<Vec<i64>>();
    let tokens = column(|sum| sum.tokens);
    let costs = column(|sum| sum.cost_microusd);
    let busy = column(|sum| sum.busy_ms);
    let calls = column(|sum| sum.calls);
    let out = column(|sum| sum.bytes_out);
    session
        .run(sql, &[&hours, &purses, &tokens, &costs, &busy, &calls, &out])
        .await?;
    Ok(())
}

async fn apply_effect_change(session: &PgConnection, change: &EffectChange) -> Result<(), PgFailure> {
    match change {
        EffectChange::Unknown(effect) => {
            let sql = "INSERT INTO effects_open (request, session, tool, parameters, at) VALUES ($1, $2, $3, $4, $5) \
                ON CONFLICT (request, session, parameters) DO NOTHING";
            let request = effect.request_id.as_str();
            let of: &[u8] = effect.session.0.as_bytes();
            let parameters: &[u8] = &effect.parameters.0;
            session
                .run(
                    sql,
                    &[&request, &of, &effect.tool.as_bytes(), &parameters, &effect.at.0],
                )
                .await?;
        }
        EffectChange::Resolved {
            request_id,
            session: of,
            parameters,
        } => {
            let sql = "DELETE FROM effects_open WHERE request = $1 AND session = $2 AND parameters = $3";
            let of: &[u8] = of.0.as_bytes();
            let parameters: &[u8] = &parameters.0;
            session
                .run(sql, &[&request_id.as_str(), &of, &parameters])
                .await?;
        }
    }
    Ok(())
}
