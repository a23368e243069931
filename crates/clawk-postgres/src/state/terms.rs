//! Decides which batches of a group may be written when several hosts write. Each session belongs to one host. Values that must be
//! exact over all hosts are checked here, inside the writer's transaction, which locks the journal, so only one host checks at a
//! time.

use std::collections::{BTreeMap, BTreeSet};

use clawk_kernel::kind;
use clawk_kernel::ports::{
    ANSWER_KEPT_MS, BESIDE, Batch, BatchConditions, BatchReservation, BudgetDemand, JournalEntry,
    JournalError, ProviderRate, UnmetCondition,
};
use clawk_kernel::purse::{BudgetAmount, BudgetUnit};
use clawk_proto::SessionId;
use tokio_postgres::Row;

use super::append;
use super::lease::Lease;
use super::queue::PgWriterWork;
use super::row::to_i64;
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// The number of expired claims and request counts that one group deletes.
const FORGOTTEN_AT_ONCE: i64 = 256;
/// The window of rate limits, milliseconds.
const MINUTE_MS: i64 = 60_000;

/// The part of a group that may be written.
pub(super) struct AdmittedWork {
    /// For each piece of work, why it is left out; `None`: it is written.
    pub(super) out: Vec<Option<JournalError>>,
    /// Sessions that this commit gives to this host.
    pub(super) taken: Vec<(SessionId, i64)>,
}

impl AdmittedWork {
    pub(super) fn all_admitted(works: usize) -> Self {
        Self {
            out: vec![None; works],
            taken: Vec::new(),
        }
    }
}

/// Checks every batch in order. What one batch takes is not available for the next.
pub(super) async fn admit_works(
    session: &PgConnection,
    lease: &Lease,
    run: i64,
    works: &[PgWriterWork],
) -> Result<AdmittedWork, PgFailure> {
    let mut admitted = AdmittedWork::all_admitted(works.len());
    let others = sessions_of_others(session, lease, run, works, &mut admitted.taken).await?;
    for (work, out) in works.iter().zip(&mut admitted.out) {
        let Some(batch) = work.batch() else { continue };
        if work.is_past(run) {
            *out = Some(lease.lost_error());
            continue;
        }
        let moved = batch.entries.iter().filter(|entry| is_own(entry));
        let moved = moved.filter_map(|entry| others.get(&entry.session)).next();
        if let Some(host) = moved {
            *out = Some(JournalError::Fenced { host: host.clone() });
        } else if let Some(terms) = &batch.terms {
            let of = batch.entries.first().map(|entry| entry.session);
            *out = find_unmet(session, run, of, terms)
                .await?
                .map(JournalError::Unmet);
        }
    }
    Ok(admitted)
}

/// Whether only the session's holder may append this entry.
fn is_own(entry: &JournalEntry) -> bool {
    !BESIDE.contains(&entry.kind)
}

/// Sessions of other hosts or without a holder, with their hosts. New sessions are taken for this host.
async fn sessions_of_others(
    session: &PgConnection,
    lease: &Lease,
    run: i64,
    works: &[PgWriterWork],
    taken: &mut Vec<(SessionId, i64)>,
) -> Result<BTreeMap<SessionId, String>, PgFailure> {
    let entries = works
        .iter()
        .filter(|work| !work.is_past(run))
        .filter_map(PgWriterWork::batch)
        .flat_map(|batch| &batch.entries);
    let unknown: BTreeSet<SessionId> = entries
        .filter(|entry| is_own(entry) && !lease.holds_session(entry.session))
        .map(|entry| entry.session)
        .collect();
    let mut others = BTreeMap::new();
    if unknown.is_empty() {
        return Ok(others);
    }
    let names: Vec<String> = unknown.iter().map(SessionId::to_string).collect();
    let sql = "INSERT INTO leases (session, host, epoch, expires, run) SELECT name, $2, 1, 'infinity', $3 FROM unnest($1::text[]) AS name \
        ON CONFLICT (session) DO NOTHING";
    session.run(sql, &[&names, &lease.host(), &run]).await?;
    let sql = "SELECT session, host, epoch, run FROM leases WHERE session = ANY ($1) FOR SHARE";
    for row in session.query_rows(sql, &[&names]).await? {
        let (name, host, epoch): (String, String, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let of: Option<i64> = row.try_get(3)?;
        let Some(id) = unknown.iter().find(|id| id.to_string() == name) else {
            continue; // only these were asked for
        };
        if of == Some(run) {
            taken.push((*id, epoch));
        } else {
            others.insert(*id, host);
        }
    }
    Ok(others)
}

/// The first condition that fails. If all hold, the resources that they name are taken.
async fn find_unmet(
    session: &PgConnection,
    run: i64,
    of: Option<SessionId>,
    terms: &BatchConditions,
) -> Result<Option<UnmetCondition>, PgFailure> {
    let of = of.map(|of| of.0.into_bytes()).unwrap_or_default();
    let of: &[u8] = &of;
    if let Some(key) = terms.claim {
        let key = append::answer_key_bytes(key);
        let sql = "SELECT session = $2 FROM claims WHERE key = $1";
        if let Some(row) = session.query_first(sql, &[&key, &of]).await?
            && !row.try_get::<_, bool>(0)?
        {
            return Ok(Some(UnmetCondition::Claimed));
        }
    }
    if let Some(known) = terms.stops {
        let sql = "SELECT EXISTS (SELECT 1 FROM events WHERE row > $1 AND kind = $2)";
        let known = i64::try_from(known).unwrap_or(i64::MAX);
        if session.query_value(sql, &[&known, &kind::STOP_ENGAGED]).await? {
            return Ok(Some(UnmetCondition::Stopped));
        }
    }
    if let Some(bound) = terms.per_minute
        && let Some(unmet) = check_rate(session, bound).await?
    {
        return Ok(Some(unmet));
    }
    if let Some(request) = &terms.request
        && let Some(unmet) = check_request_rate(session, request).await?
    {
        return Ok(Some(unmet));
    }
    for (at, room) in terms.room.iter().enumerate() {
        let used = used_budget(session, room).await?;
        if used.saturating_add(room.wanted) > room.bound {
            return Ok(Some(UnmetCondition::Room { at, used }));
        }
    }
    if let Some(key) = terms.claim {
        claim_key(session, &append::answer_key_bytes(key), of).await?;
    }
    if let Some(key) = terms.disclaim {
        let sql = "DELETE FROM claims WHERE key = $1 AND session = $2";
        session.run(sql, &[&append::answer_key_bytes(key), &of]).await?;
    }
    if terms.per_minute.is_some() {
        session.run("INSERT INTO rated DEFAULT VALUES", &[]).await?;
    }
    if let Some(request) = &terms.request {
        let sql = "INSERT INTO asked (provider) VALUES ($1)";
        session.run(sql, &[&request.provider.as_bytes()]).await?;
    }
    if let Some(aside) = &terms.aside {
        set_aside(session, run, of, aside).await?;
    }
    Ok(None)
}

async fn claim_key(session: &PgConnection, key: &[u8], of: &[u8]) -> Result<(), PgFailure> {
    let sql = "INSERT INTO claims (key, session, at) VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) \
        ON CONFLICT (key) DO UPDATE SET at = excluded.at RETURNING at";
    let now: i64 = session.query_value(sql, &[&key, &of]).await?;
    // Kept at least as long as the answer can be found.
    let sql = "DELETE FROM claims WHERE key IN (SELECT key FROM claims WHERE at < $1 ORDER BY at LIMIT $2)";
    let oldest = now.saturating_sub(ANSWER_KEPT_MS);
    session.run(sql, &[&oldest, &FORGOTTEN_AT_ONCE]).await?;
    Ok(())
}

async fn check_rate(session: &PgConnection, bound: u64) -> Result<Option<UnmetCondition>, PgFailure> {
    let sql = "DELETE FROM rated WHERE n IN (SELECT n FROM rated WHERE at <= clock_timestamp() - $1::bigint * interval '1 millisecond' \
        ORDER BY at LIMIT $2)";
    session.run(sql, &[&MINUTE_MS, &FORGOTTEN_AT_ONCE]).await?;
    let sql = "SELECT count(*), coalesce(ceil(extract(epoch FROM min(at) - clock_timestamp()) * 1000)::bigint, 0) + $1 FROM rated \
        WHERE at > clock_timestamp() - $1::bigint * interval '1 millisecond'";
    check_count(session.query_first(sql, &[&MINUTE_MS]).await?, bound)
}

/// The same check for the requests to one provider.
async fn check_request_rate(
    session: &PgConnection,
    request: &ProviderRate,
) -> Result<Option<UnmetCondition>, PgFailure> {
    let provider = request.provider.as_bytes();
    let sql = "DELETE FROM asked WHERE n IN (SELECT n FROM asked WHERE provider = $3 \
        AND at <= clock_timestamp() - $1::bigint * interval '1 millisecond' ORDER BY at LIMIT $2)";
    session
        .run(sql, &[&MINUTE_MS, &FORGOTTEN_AT_ONCE, &provider])
        .await?;
    let sql = "SELECT count(*), coalesce(ceil(extract(epoch FROM min(at) - clock_timestamp()) * 1000)::bigint, 0) + $1 FROM asked \
        WHERE provider = $2 AND at > clock_timestamp() - $1::bigint * interval '1 millisecond'";
    check_count(
        session.query_first(sql, &[&MINUTE_MS, &provider]).await?,
        request.per_minute,
    )
}

/// Compares a count of the last minute with its limit. A reached limit gives the wait for the next free place, milliseconds.
fn check_count(counted: Option<Row>, bound: u64) -> Result<Option<UnmetCondition>, PgFailure> {
    let Some(row) = counted else {
        return Ok(None);
    };
    let (count, wait): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let full = u64::try_from(count).unwrap_or(0) >= bound;
    Ok(full.then(|| UnmetCondition::Rate {
        wait_ms: u64::try_from(wait).unwrap_or(0).max(1),
    }))
}

/// The amount that all hosts have spent in the window and have reserved now.
async fn used_budget(session: &PgConnection, room: &BudgetDemand) -> Result<u64, PgFailure> {
    let column = match room.unit {
        BudgetUnit::Tokens => "tokens",
        BudgetUnit::CostMicrousd => "cost_microusd",
        BudgetUnit::BusyMs => "busy_ms",
        BudgetUnit::Calls => "calls",
        BudgetUnit::BytesOut => "bytes_out",
    };
    let sql = format!(
        "SELECT (SELECT coalesce(sum({column}), 0) FROM spent WHERE purse = $1 AND hour >= $2)::bigint \
         + (SELECT coalesce(sum({column}), 0) FROM reserved WHERE purse = $1)::bigint"
    );
    let used: i64 = session
        .query_value(&sql, &[&room.purse.as_bytes(), &room.since_hour])
        .await?;
    Ok(u64::try_from(used).unwrap_or(0))
}

async fn set_aside(
    session: &PgConnection,
    run: i64,
    of: &[u8],
    aside: &BatchReservation,
) -> Result<(), PgFailure> {
    let id: &[u8] = aside.id.as_bytes();
    let purses: Vec<&[u8]> = aside.purses.iter().map(|purse| purse.as_bytes()).collect();
    let BudgetAmount {
        tokens,
        cost_microusd,
        busy_ms,
        calls,
        bytes_out,
    } = aside.amount;
    let [tokens, cost, busy, calls, out] = [tokens, cost_microusd, busy_ms, calls, bytes_out].map(to_i64);
    let sql = "INSERT INTO reserved (id, purse, run, session, tokens, cost_microusd, busy_ms, calls, bytes_out) \
        SELECT $1, purse, $3, $4, $5, $6, $7, $8, $9 FROM unnest($2::bytea[]) AS purse ON CONFLICT DO NOTHING";
    session
        .run(
            sql,
            &[&id, &purses, &run, &of, &tokens, &cost, &busy, &calls, &out],
        )
        .await?;
    Ok(())
}

/// Releases the reservations of the batches' spending.
pub(super) async fn settle_reservations(session: &PgConnection, batches: &[&Batch]) -> Result<(), PgFailure> {
    let ids: Vec<Vec<u8>> = batches
        .iter()
        .filter_map(|batch| batch.terms.as_ref()?.settles)
        .map(|id| id.as_bytes().to_vec())
        .collect();
    if !ids.is_empty() {
        session
            .run("DELETE FROM reserved WHERE id = ANY ($1)", &[&ids])
            .await?;
    }
    Ok(())
}

/// Releases a session, unless it was taken again since.
pub(super) async fn release_session(
    session: &PgConnection,
    run: i64,
    of: SessionId,
    epoch: i64,
) -> Result<(), PgFailure> {
    let sql =
        "UPDATE leases SET run = NULL, expires = '-infinity' WHERE session = $1 AND run = $2 AND epoch = $3";
    session.run(sql, &[&of.to_string(), &run, &epoch]).await?;
    Ok(())
}
