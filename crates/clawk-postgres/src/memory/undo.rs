//! Restores entries that compaction set aside. Deleting an entry also deletes everything that was made from it. The caller has
//! locked the part.

use clawk_recall::compact::model_of;
use clawk_recall::entry::{ConversationFilter, EntryHit};
use clawk_recall::{table, words};

use super::parts::{PgStorePart, adjust_counts, came_or_went};
use super::rows::{COLUMNS, delete_entries, fold_words, hit_from_row, is_kept, row_numbers};
use super::spec::Spec;
use super::vectors;
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// Deletes an entry, active or set aside, together with the entries set aside for it and every summary made from it. Other entries
/// behind such a summary are restored.
pub(super) async fn remove(
    session: &PgConnection,
    part: PgStorePart,
    store: &Spec<'_>,
    whose: &ConversationFilter,
    id: &str,
) -> Result<Option<EntryHit>, PgFailure> {
    let sql = format!(
        "SELECT {COLUMNS}, n, '' AS instead FROM memory WHERE part = $1 AND id = $2 UNION ALL \
         SELECT {COLUMNS}, n, instead FROM memory_aside WHERE part = $1 AND id = $2"
    );
    let rows = session.query_rows(&sql, &[&part.id, &id]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let hit = hit_from_row(store, row)?;
    if !whose.includes_owner(&hit.mark.whose) {
        return Ok(None);
    }
    let (n, instead): (i64, String) = (row.try_get(7)?, row.try_get(8)?);
    delete_entries(session, part.id, &[n]).await?;
    came_or_went(session, part.id).await?;
    session
        .run(
            "DELETE FROM memory_aside WHERE part = $1 AND (n = $2 OR instead = $3)",
            &[&part.id, &n, &id],
        )
        .await?;
    let mut summaries: Vec<String> = if instead.is_empty() {
        Vec::new()
    } else {
        vec![instead]
    };
    while let Some(summary) = summaries.pop() {
        // The summary may itself have been summarised.
        let sql = "DELETE FROM memory_aside WHERE part = $1 AND id = $2 RETURNING instead";
        for row in session.query_rows(sql, &[&part.id, &summary]).await? {
            let above: String = row.try_get(0)?;
            summaries.extend(Some(above).filter(|above| !above.is_empty()));
        }
        undo_summary(session, part, store, &summary).await?;
    }
    Ok(Some(hit))
}

/// Deletes a summary and restores the entries behind it. Returns the number of restored entries.
async fn undo_summary(
    session: &PgConnection,
    part: PgStorePart,
    store: &Spec<'_>,
    summary: &str,
) -> Result<u64, PgFailure> {
    let sql = "SELECT n FROM memory WHERE part = $1 AND id = $2";
    let own = row_numbers(&session.query_rows(sql, &[&part.id, &summary]).await?)?;
    delete_entries(session, part.id, &own).await?;
    let sql = "SELECT n FROM memory_aside WHERE part = $1 AND instead = $2 ORDER BY n";
    let old = row_numbers(&session.query_rows(sql, &[&part.id, &summary]).await?)?;
    bring_back(session, part, store, &old).await
}

/// Restores one entry, the entries behind the summary with this id, or all entries.
pub(super) async fn restore_entries(
    session: &PgConnection,
    part: PgStorePart,
    store: &Spec<'_>,
    id: Option<&str>,
) -> Result<u64, PgFailure> {
    let mut back = 0;
    if let Some(id) = id {
        let sql = "SELECT n FROM memory_aside WHERE part = $1 AND id = $2 ORDER BY n";
        let own = row_numbers(&session.query_rows(sql, &[&part.id, &id]).await?)?;
        back += bring_back(session, part, store, &own).await?;
        let sql = "SELECT EXISTS (SELECT 1 FROM memory_aside WHERE part = $1 AND instead = $2)";
        if session.query_value(sql, &[&part.id, &id]).await? {
            back += undo_summary(session, part, store, id).await?;
        }
        return Ok(back);
    }
    loop {
        let sql = "SELECT n, instead FROM memory_aside WHERE part = $1 ORDER BY since DESC, n DESC LIMIT 1";
        let Some(row) = session.query_first(sql, &[&part.id]).await? else {
            return Ok(back);
        };
        let (n, instead): (i64, String) = (row.try_get(0)?, row.try_get(1)?);
        let came = if instead.is_empty() {
            bring_back(session, part, store, &[n]).await?
        } else {
            undo_summary(session, part, store, &instead).await?
        };
        if came == 0 {
            return Ok(back);
        }
        back += came;
    }
}

/// Restores entries unchanged, with their words. Vectors of the built-in model are computed again; those of a provider are
/// requested again.
async fn bring_back(
    session: &PgConnection,
    part: PgStorePart,
    store: &Spec<'_>,
    rows: &[i64],
) -> Result<u64, PgFailure> {
    let embeds = model_of(store).as_deref() == Some(table::NAME);
    let mut count = 0;
    for n in rows {
        let sql = "SELECT id, key, content, whose, (octet_length(content) + coalesce(octet_length(metadata), 0))::bigint \
                   FROM memory_aside WHERE n = $1";
        let Some(row) = session.query_first(sql, &[n]).await? else {
            continue;
        };
        let (id, key, content): (&str, Option<&str>, &str) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let (whose, bytes): (i64, i64) = (row.try_get(3)?, row.try_get(4)?);
        if is_kept(session, part.id, id).await? {
            continue; // a later entry has its id: what is newer stays
        }
        let (content, key) = store.open_content((part.id, id), content, key)?;
        let text = words::text_of(&content, key.as_deref());
        let words = if store.encryption {
            String::new()
        } else {
            fold_words(&text)
        };
        let sql = "INSERT INTO memory (n, part, id, key, content, metadata, at, mark, whose, words) \
                   SELECT n, part, id, key, content, metadata, at, mark, whose, to_tsvector('clawk_words', $2) \
                   FROM memory_aside WHERE n = $1";
        session.run(sql, &[n, &words]).await?;
        session.run("DELETE FROM memory_aside WHERE n = $1", &[n]).await?;
        if let Some(vector) = table::embed_text(&text).filter(|_| embeds) {
            vectors::add_vector(session, store, (*n, part.id, whose), table::NAME, &vector).await?;
        }
        adjust_counts(session, part.id, 1, bytes).await?;
        count += 1;
    }
    came_or_went(session, part.id).await?;
    Ok(count)
}
