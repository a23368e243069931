//! A copy of the database's vectors in memory. They are read once; later reads fetch only new ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use clawk_recall::packed::PackedVectors;
use rusqlite::{Connection, params};

/// The largest size of vectors in memory, bytes. Vectors above it are read again for each search.
const MAX_BYTES: usize = 384 * 1024 * 1024;

#[derive(Debug, Default)]
struct SqlitePartVectors {
    matrix: PackedVectors,
    /// The last `v` that was read.
    upto: i64,
    bytes: usize,
}

type SharedPartVectors = Arc<Mutex<SqlitePartVectors>>;

/// The vectors of each part, by model.
#[derive(Debug, Default)]
pub(super) struct Vectors {
    parts: Mutex<HashMap<(i64, String), SharedPartVectors>>,
}

impl Vectors {
    /// The nearest rows, nearest first. The result may contain deleted entries.
    pub(super) fn nearest_rows(
        &self,
        connection: &Connection,
        (part, model): (&super::rows::SqliteStorePart, &str),
        query: &[f32],
        limit: usize,
        keep: impl Fn(i64) -> bool,
    ) -> rusqlite::Result<Vec<(i64, f64)>> {
        let known = {
            let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            let bytes: usize = parts
                .values()
                .filter_map(|part| part.try_lock().ok().map(|part| part.bytes))
                .sum();
            if bytes > MAX_BYTES {
                parts.clear();
            }
            Arc::clone(parts.entry((part.id, model.to_owned())).or_default())
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.catch_up(connection, part, model)?;
        Ok(known.matrix.nearest_rows(query, limit, keep))
    }

    /// Makes the next search read the part again, because too many of its vectors belong to deleted entries.
    pub(super) fn forget_part(&self, part: i64) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|(known, _), _| *known != part);
    }
}

impl SqlitePartVectors {
    fn catch_up(
        &mut self,
        connection: &Connection,
        part: &super::rows::SqliteStorePart,
        model: &str,
    ) -> rusqlite::Result<()> {
        let open = if part.sealed { "clawk_sealed" } else { "clawk_open" };
        let mut select = connection.prepare_cached(&format!(
            "SELECT v, n, whose, {open}(vector, 'vector', n) FROM memory_vectors WHERE part = ?1 AND v > ?2 AND model = ?3 ORDER BY v",
        ))?;
        let mut rows = select.query(params![part.id, self.upto, model])?;
        while let Some(row) = rows.next()? {
            self.upto = row.get(0)?;
            let vector = row.get_ref(3)?.as_blob().unwrap_or_default(); // silent-ok: the table is STRICT
            self.bytes += vector.len();
            self.matrix.add(row.get(1)?, row.get(2)?, vector);
        }
        Ok(())
    }
}
