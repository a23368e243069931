//! Vectors: compared by the extension `vector` if the database has it, otherwise exactly in this process.

use std::collections::HashMap;
use std::sync::Arc;

use clawk_kernel::ports::UnembeddedEntry;
use clawk_recall::packed::{PackedVectors, pack_vector};
use clawk_recall::words;
use tokio::sync::Mutex;

use super::spec::Spec;
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// The largest size of vectors in memory, bytes. Vectors above it are read again for each search.
const MAX_BYTES: usize = 384 * 1024 * 1024;

/// The number of vectors read at once.
const PAGE: i64 = 4096;

/// A vector search: the candidates and the query.
#[derive(Debug, Clone, Copy)]
pub(super) struct PgVectorSearch<'a> {
    pub(super) store: &'a Spec<'a>,
    pub(super) part: i64,
    pub(super) model: &'a str,
    pub(super) query: &'a [f32],
    /// The numbers of the allowed conversations, besides shared entries; `None`: all conversations.
    pub(super) whose: Option<&'a [i64]>,
    pub(super) limit: usize,
}

#[derive(Debug, Default)]
struct PgPartVectors {
    matrix: PackedVectors,
    /// The last `v` that was read.
    upto: i64,
    bytes: usize,
}

/// A part's row, and the model that made its vectors.
type PartOfModel = (i64, String);

/// The vectors of each part by model, as far as they were read.
#[derive(Debug, Default)]
pub(super) struct Vectors {
    parts: Mutex<HashMap<PartOfModel, Arc<Mutex<PgPartVectors>>>>,
}

impl Vectors {
    /// The nearest entries, nearest first, with their cosine mapped to 0..1. Every vector of the part is compared. The result may
    /// contain deleted entries.
    pub(super) async fn nearest_entries(
        &self,
        session: &PgConnection,
        extension: Option<&str>,
        near: PgVectorSearch<'_>,
    ) -> Result<Vec<(i64, f64)>, PgFailure> {
        match extension {
            Some(schema) => by_extension(session, schema, near).await,
            None => self.nearest_locally(session, near).await,
        }
    }

    async fn nearest_locally(
        &self,
        session: &PgConnection,
        near: PgVectorSearch<'_>,
    ) -> Result<Vec<(i64, f64)>, PgFailure> {
        let known = {
            let mut parts = self.parts.lock().await;
            let held = parts
                .values()
                .filter_map(|known| known.try_lock().ok().map(|known| known.bytes));
            if held.sum::<usize>() > MAX_BYTES {
                parts.clear();
            }
            let key = (near.part, near.model.to_owned());
            Arc::clone(parts.entry(key).or_default())
        };
        let mut known = known.lock().await;
        known.catch_up(session, near).await?;
        let keep = |whose: i64| whose == 0 || near.whose.is_none_or(|known| known.contains(&whose));
        Ok(known.matrix.nearest_rows(near.query, near.limit, keep))
    }

    /// Makes the next search read the part again, because too many of its vectors belong to deleted entries.
    pub(super) async fn forget_part(&self, part: i64) {
        self.parts.lock().await.retain(|(known, _), _| *known != part);
    }
}

impl PgPartVectors {
    async fn catch_up(&mut self, session: &PgConnection, near: PgVectorSearch<'_>) -> Result<(), PgFailure> {
        let PgVectorSearch {
            store, part, model, ..
        } = near;
        let sql = "SELECT v, n, whose, vector, sealed FROM memory_vectors WHERE part = $1 AND model = $2 AND v > $3 ORDER BY v LIMIT $4";
        loop {
            let rows = session
                .query_rows(sql, &[&part, &model, &self.upto, &PAGE])
                .await?;
            for row in &rows {
                let (n, whose): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
                let packed = match row.try_get::<_, Option<Vec<f32>>>(3)? {
                    Some(values) => pack_vector(&values),
                    None => store.opened_vector(n, row.try_get(4)?)?,
                };
                self.bytes += packed.len();
                self.matrix.add(n, whose, &packed);
                self.upto = row.try_get(0)?;
            }
            if rows.len() < usize::try_from(PAGE).unwrap_or(usize::MAX) {
                return Ok(());
            }
        }
    }
}

async fn by_extension(
    session: &PgConnection,
    schema: &str,
    near: PgVectorSearch<'_>,
) -> Result<Vec<(i64, f64)>, PgFailure> {
    let schema = schema.replace('"', "\"\"");
    let vector = format!("\"{schema}\".vector");
    // Vectors of another length come from an earlier configuration and are no candidates. The scan uses no index, so it misses
    // nothing.
    let sql = format!(
        "SELECT n, 1 - far AS near FROM (SELECT n, vector::{vector} OPERATOR(\"{schema}\".<=>) $3::real[]::{vector} AS far \
         FROM (SELECT n, vector FROM memory_vectors WHERE part = $1 AND model = $2 AND cardinality(vector) = cardinality($3::real[]) \
         AND ($4::bigint[] IS NULL OR whose = 0 OR whose = ANY ($4)) OFFSET 0) AS same) AS compared \
         ORDER BY far, n DESC LIMIT $5"
    );
    let limit = i64::try_from(near.limit).unwrap_or(i64::MAX);
    let rows = session
        .query_rows(&sql, &[&near.part, &near.model, &near.query, &near.whose, &limit])
        .await?;
    let scored = rows.iter().map(|row| {
        let score: f64 = row.try_get(1)?;
        Ok((
            row.try_get(0)?,
            if score.is_nan() {
                0.0
            } else {
                score.clamp(0.0, 1.0)
            },
        ))
    });
    scored.collect()
}

/// Stores the vector of an entry (its number, part and owner). Replaces an earlier one of the same model.
pub(super) async fn add_vector(
    session: &PgConnection,
    store: &Spec<'_>,
    (n, part, whose): (i64, i64, i64),
    model: &str,
    vector: &[f32],
) -> Result<(), PgFailure> {
    if store.encryption {
        let sql = "INSERT INTO memory_vectors (n, part, whose, model, sealed) VALUES ($1, $2, $3, $4, $5) \
                   ON CONFLICT (n, model) DO NOTHING";
        let sealed = store.sealed_vector(n, &pack_vector(vector))?;
        session.run(sql, &[&n, &part, &whose, &model, &sealed]).await?;
        return Ok(());
    }
    let sql = "INSERT INTO memory_vectors (n, part, whose, model, vector) VALUES ($1, $2, $3, $4, $5) \
               ON CONFLICT (n, model) DO NOTHING";
    session.run(sql, &[&n, &part, &whose, &model, &vector]).await?;
    Ok(())
}

/// Stores vectors for those entries of this part that still exist.
pub(super) async fn add_all(
    session: &PgConnection,
    store: &Spec<'_>,
    part: i64,
    model: &str,
    vectors: &[(String, Vec<f32>)],
) -> Result<(), PgFailure> {
    for (handle, vector) in vectors {
        let Ok(n) = handle.parse::<i64>() else { continue };
        let sql = "SELECT whose FROM memory WHERE part = $1 AND n = $2";
        if let Some(row) = session.query_first(sql, &[&part, &n]).await? {
            add_vector(session, store, (n, part, row.try_get(0)?), model, vector).await?;
        }
    }
    Ok(())
}

/// Entries of every scope without a vector of this model, newest first.
pub(super) async fn unembedded_entries(
    session: &PgConnection,
    store: &Spec<'_>,
    agent: &str,
    model: &str,
    limit: usize,
) -> Result<Vec<UnembeddedEntry>, PgFailure> {
    let sql = "SELECT m.n, m.key, m.content, m.part, m.id FROM memory m JOIN memory_parts p ON p.id = m.part \
               WHERE p.agent = $1 AND p.store = $2 AND NOT EXISTS \
               (SELECT 1 FROM memory_vectors v WHERE v.n = m.n AND v.model = $3) ORDER BY m.n DESC LIMIT $4";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = session
        .query_rows(sql, &[&agent, &store.name, &model, &limit])
        .await?;
    let lacking = rows.iter().map(|row| {
        let n: i64 = row.try_get(0)?;
        Ok(UnembeddedEntry {
            handle: n.to_string(),
            text: {
                let place = (row.try_get(3)?, row.try_get(4)?);
                let (content, key) = store.open_content(place, row.try_get(2)?, row.try_get(1)?)?;
                words::text_of(&content, key.as_deref())
            },
        })
    });
    lacking.collect()
}
