//! Finds the stored answer to a request (R19): exact, durable, and cheap for the usual case of a new request.
//!
//! Request ids are random, so one index over all of them would rewrite a page per call. Instead, keys are put into buckets of
//! [`BUCKET`], which are filled one after the other. A lookup searches each live bucket, newest first. A filter of fixed size in
//! memory detects almost every new request without a search.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::append::unsigned_at;
use clawk_kernel::ports::{ANSWER_KEPT_MS, AnswerKey};
use clawk_kernel::time::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

/// The number of keys in one bucket. A bucket spans about 40 pages, which stay in SQLite's cache while it fills.
const BUCKET: u32 = 4096;

/// The number of bits in one filter, a power of two: 4 MiB. Only touched pages take memory.
const FILTER_BITS: u64 = 1 << 25;

/// The number of bits set per key.
const PROBES: u64 = 6;

#[derive(Debug, Clone, Copy)]
struct AnswerBucket {
    number: i64,
    /// The time of the bucket's newest answer.
    last: Timestamp,
}

#[derive(Debug)]
struct State {
    /// Oldest first; the last bucket is being filled.
    buckets: Vec<AnswerBucket>,
    in_last: u32,
    /// The filter of this generation. `older` is the previous generation's.
    filter: Vec<u64>,
    older: Vec<u64>,
    since: Timestamp,
}

/// The index of stored answers, shared by the writer and the readers.
#[derive(Debug)]
pub(crate) struct AnswerIndex(Mutex<State>);

impl AnswerIndex {
    /// Loads the index of an earlier run.
    pub(crate) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let words = usize::try_from(FILTER_BITS / 64).unwrap_or(0);
        let mut state = State {
            buckets: Vec::new(),
            in_last: BUCKET,
            filter: vec![0; words],
            older: vec![0; words],
            since: Timestamp(i64::MIN),
        };
        let mut select = connection.prepare("SELECT bucket FROM answer_buckets ORDER BY bucket")?;
        let rows = select.query_map([], |row| {
            // The age of the answers is unknown: the machine may have been off, or its clock was set.
            Ok(AnswerBucket {
                number: row.get(0)?,
                last: Timestamp(i64::MAX),
            })
        })?;
        for bucket in rows {
            state.buckets.push(bucket?);
        }
        let mut select = connection.prepare("SELECT key FROM answers")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            if let Ok(key) = <[u8; 17]>::try_from(row.get_ref(0)?.as_blob()?) {
                set_bits(&mut state.filter, &key);
            }
        }
        Ok(Self(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that `row` answers `key`. The connection must be in the writer's transaction.
    pub(crate) fn add(
        &self,
        connection: &Connection,
        key: AnswerKey,
        row: i64,
        at: Timestamp,
    ) -> rusqlite::Result<()> {
        let key = answer_key_bytes(key);
        let mut state = self.lock();
        if at >= state.since.plus_millis(ANSWER_KEPT_MS) {
            // Every key of the older generation has expired.
            let State { filter, older, .. } = &mut *state;
            std::mem::swap(filter, older);
            if state.since != Timestamp(i64::MIN) {
                state.filter.fill(0);
            }
            state.since = at;
        }
        set_bits(&mut state.filter, &key);
        if state.in_last >= BUCKET {
            let number = state.buckets.last().map_or(0, |bucket| bucket.number + 1);
            state.buckets.push(AnswerBucket { number, last: at });
            state.in_last = 0;
            forget_old(connection, &mut state.buckets, at)?;
            let sql = "INSERT OR REPLACE INTO answer_buckets (bucket, last) VALUES (?1, ?2)";
            connection
                .prepare_cached(sql)?
                .execute(params![number, i64::MAX])?;
        }
        state.in_last += 1;
        let Some(bucket) = state.buckets.last_mut() else {
            return Ok(());
        };
        bucket.last = bucket.last.max(at);
        let sql = "INSERT OR REPLACE INTO answers (bucket, key, row) VALUES (?1, ?2, ?3)";
        connection
            .prepare_cached(sql)?
            .execute(params![bucket.number, key, row])?;
        Ok(())
    }

    /// Whether an answer may exist; `false` is certain. Reads only memory.
    pub(crate) fn may_have(&self, key: AnswerKey) -> bool {
        let key = answer_key_bytes(key);
        let state = self.lock();
        has_bits(&state.filter, &key) || has_bits(&state.older, &key)
    }

    /// The row of the newest answer to this key.
    pub(crate) fn find_row(&self, connection: &Connection, key: AnswerKey) -> rusqlite::Result<Option<u64>> {
        let key = answer_key_bytes(key);
        let buckets: Vec<i64> = self
            .lock()
            .buckets
            .iter()
            .rev()
            .map(|bucket| bucket.number)
            .collect();
        let mut select =
            connection.prepare_cached("SELECT row FROM answers WHERE bucket = ?1 AND key = ?2")?;
        for bucket in buckets {
            if let Some(row) = select
                .query_row(params![bucket, key], |row| unsigned_at(row, 0))
                .optional()?
            {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// Call it after a rollback: the bucket in use may not exist, so a new one begins.
    pub(crate) fn forget_fill(&self) {
        self.lock().in_last = BUCKET;
    }
}

/// Deletes buckets whose newest answer has expired. For a bucket of an earlier run, the time counts from now.
fn forget_old(
    connection: &Connection,
    buckets: &mut Vec<AnswerBucket>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let oldest = now.plus_millis(-ANSWER_KEPT_MS);
    let (old, kept): (Vec<AnswerBucket>, Vec<AnswerBucket>) =
        buckets.iter().partition(|bucket| bucket.last < oldest);
    for bucket in &old {
        connection
            .prepare_cached("DELETE FROM answers WHERE bucket = ?1")?
            .execute([bucket.number])?;
        connection
            .prepare_cached("DELETE FROM answer_buckets WHERE bucket = ?1")?
            .execute([bucket.number])?;
    }
    let mut save =
        connection.prepare_cached("UPDATE answer_buckets SET last = ?2 WHERE bucket = ?1 AND last <> ?2")?;
    *buckets = kept;
    for bucket in buckets.iter_mut() {
        if bucket.last == Timestamp(i64::MAX) {
            bucket.last = now;
        }
        save.execute(params![bucket.number, bucket.last.0])?;
    }
    Ok(())
}

fn answer_key_bytes(key: AnswerKey) -> [u8; 17] {
    let mut out = [key.method; 17];
    if let Some((_, id)) = out.split_first_mut() {
        id.copy_from_slice(&key.request_id);
    }
    out
}

/// The filter bits of a key, by double hashing. A collision only costs a search in the buckets.
fn filter_bits(key: &[u8; 17]) -> impl Iterator<Item = (usize, u64)> {
    let mut halves = [0xcbf2_9ce4_8422_2325, 0x9e37_79b9_7f4a_7c15];
    for (at, byte) in key.iter().enumerate() {
        for half in &mut halves {
            *half = (*half ^ u64::from(*byte))
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(5 + u32::from(at % 2 == 0));
        }
    }
    let [first, second] = halves.map(|half| (half ^ (half >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9));
    (0..PROBES).map(move |n| {
        let bit = first.wrapping_add(n.wrapping_mul(second | 1)) >> 20 & (FILTER_BITS - 1);
        (usize::try_from(bit / 64).unwrap_or(0), 1 << (bit % 64))
    })
}

fn set_bits(filter: &mut [u64], key: &[u8; 17]) {
    for (word, bit) in filter_bits(key) {
        if let Some(word) = filter.get_mut(word) {
            *word |= bit;
        }
    }
}

fn has_bits(filter: &[u64], key: &[u8; 17]) -> bool {
    filter_bits(key).all(|(word, bit)| filter.get(word).is_some_and(|word| word & bit != 0))
}
