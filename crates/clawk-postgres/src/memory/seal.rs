//! Seals existing entries of a part: unsealed ones, and those under another key. The caller has locked the part.

use clawk_recall::packed::pack_vector;

use super::rows::{COLUMNS, hit_from_row};
use super::spec::Spec;
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// Seals every entry and vector of the part with the current key.
pub(super) async fn reseal_part(
    session: &PgConnection,
    store: &Spec<'_>,
    part: i64,
) -> Result<(), PgFailure> {
    for table in ["memory", "memory_aside"] {
        let sql = format!("SELECT {COLUMNS}, n FROM {table} WHERE part = $1");
        let words = if table == "memory" { ", words = ''" } else { "" };
        let update = format!(
            "UPDATE {table} SET content = $2, key = $3, metadata = NULL, mark = ''{words} WHERE n = $1"
        );
        for row in &session.query_rows(&sql, &[&part]).await? {
            let (hit, n): (_, i64) = (hit_from_row(store, row)?, row.try_get(7)?);
            let name = hit
                .entry
                .key
                .as_deref()
                .map(|key| store.name_of(key))
                .transpose()?;
            let id = hit.entry.id.clone();
            let sealed = store.seal_bundle(part, &id, &Spec::bundle_of(hit).text())?;
            session.run(&update, &[&n, &sealed, &name]).await?;
        }
    }
    let sql = "SELECT v, n, vector, sealed FROM memory_vectors WHERE part = $1";
    for row in &session.query_rows(sql, &[&part]).await? {
        let (v, n): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let packed = match row.try_get::<_, Option<Vec<f32>>>(2)? {
            Some(values) => pack_vector(&values),
            None => store.opened_vector(n, row.try_get(3)?)?,
        };
        let sealed = store.sealed_vector(n, &packed)?;
        let sql = "UPDATE memory_vectors SET vector = NULL, sealed = $2 WHERE v = $1";
        session.run(sql, &[&v, &sealed]).await?;
    }
    Ok(())
}

/// The stored value that proves the store's key; `None`: the store was never encrypted.
pub(super) async fn key_proof(
    session: &PgConnection,
    agent: &str,
    store: &str,
) -> Result<Option<Vec<u8>>, PgFailure> {
    let sql = "SELECT proof FROM memory_seals WHERE agent = $1 AND store = $2";
    let found = session.query_first(sql, &[&agent, &store]).await?;
    found.map(|row| Ok(row.try_get(0)?)).transpose()
}

/// Whether the store has no proof although some of its content is sealed. One statement reads both, because another process may be
/// encrypting the store.
pub(super) async fn lost_its_proof(
    session: &PgConnection,
    agent: &str,
    store: &str,
) -> Result<bool, PgFailure> {
    let sealed = |table: &str| {
        format!(
            "EXISTS (SELECT 1 FROM {table} m JOIN memory_parts p ON p.id = m.part \
             WHERE p.agent = $1 AND p.store = $2 AND left(m.content, 1) = '~')"
        )
    };
    let sql = format!(
        "SELECT NOT EXISTS (SELECT 1 FROM memory_seals WHERE agent = $1 AND store = $2) AND ({} OR {})",
        sealed("memory"),
        sealed("memory_aside")
    );
    session.query_value(&sql, &[&agent, &store]).await
}
