//! Rows of memory: writing and reading them.

use clawk_kernel::time::Timestamp;
use clawk_recall::compact::model_of;
use clawk_recall::entry::{EntryHit, EntryInsertion, conversation_number};
use clawk_recall::seal::SealedEntryFields;
use clawk_recall::{table, words};
use icu_normalizer::DecomposingNormalizerBorrowed;
use serde_json::Value;
use tokio_postgres::Row;

use super::parts::adjust_counts;
use super::spec::{PgEntryColumns, Spec};
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// The longest key or id that an index accepts, bytes.
const MAX_NAME_BYTES: usize = 1024;

/// The columns that [`hit_from_row`] reads.
pub(super) const COLUMNS: &str = "id, key, content, metadata, at, mark, part";

/// An entry ready to be written.
#[derive(Debug)]
pub(super) struct NewRow {
    pub(super) id: String,
    pub(super) key: Option<String>,
    pub(super) content: String,
    pub(super) metadata: Option<String>,
    bytes: usize,
    pub(super) mark: String,
    pub(super) whose: i64,
    /// Folded words; the server turns them into lexemes.
    pub(super) words: String,
    pub(super) vector: Option<Vec<f32>>,
    /// All fields in one text, for an encrypted store.
    bundle: Option<String>,
}

impl NewRow {
    pub(super) fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }
}

/// Converts entries to rows. The error names the entry that does not fit the store, and how to fix it.
pub(super) fn rows_of(store: &Spec<'_>, entries: Vec<EntryInsertion>) -> Result<Vec<NewRow>, PgFailure> {
    let embeds = model_of(store).as_deref() == Some(table::NAME);
    let row = |(index, new): (usize, EntryInsertion)| {
        let refuse = |reason| PgFailure::Entry { index, reason };
        let bytes = new.checked_size(store).map_err(refuse)?;
        let EntryInsertion { id, entry, mark } = new;
        if let Some(reason) = index_fault(&id, entry.key.as_deref()) {
            return Err(refuse(reason));
        }
        let bundle = store
            .encryption
            .then(|| SealedEntryFields::for_entry(&entry, &mark).text());
        // JSON text contains no NUL character, which PostgreSQL rejects: JSON writes it as an escape.
        let metadata = entry.metadata.as_ref().map(ToString::to_string);
        let content = entry.content.to_string();
        let text = words::text_of(&entry.content, entry.key.as_deref());
        Ok(NewRow {
            id,
            key: entry.key,
            content,
            metadata,
            bytes,
            whose: conversation_number(&mark.whose),
            mark: serde_json::to_string(&mark).unwrap_or_default(), // silent-ok: plain members always serialise
            words: fold_words(&text),
            vector: table::embed_text(&text).filter(|_| embeds),
            bundle,
        })
    };
    entries.into_iter().enumerate().map(row).collect()
}

/// Rejects names that an index of the server can't hold.
fn index_fault(id: &str, key: Option<&str>) -> Option<String> {
    for (what, name) in [("id", Some(id)), ("key", key)] {
        let Some(name) = name else { continue };
        if name.contains('\0') {
            return Some(format!(
                "its {what} holds a character 0, which PostgreSQL does not keep"
            ));
        }
        if name.len() > MAX_NAME_BYTES {
            return Some(format!(
                "its {what} has {} bytes; at most {MAX_NAME_BYTES}",
                name.len()
            ));
        }
    }
    None
}

/// A text's words in lower case and without accents, separated by blanks. The result contains no search syntax.
pub(crate) fn fold_words(text: &str) -> String {
    let plain: String = DecomposingNormalizerBorrowed::new_nfd()
        .normalize(text)
        .chars()
        .filter(|c| !('\u{300}'..='\u{36f}').contains(c))
        .collect();
    words::folded_words(&plain).collect::<Vec<_>>().join(" ")
}

/// Whether an entry with this id exists.
pub(super) async fn is_kept(session: &PgConnection, part: i64, id: &str) -> Result<bool, PgFailure> {
    session
        .query_value(
            "SELECT EXISTS (SELECT 1 FROM memory WHERE part = $1 AND id = $2)",
            &[&part, &id],
        )
        .await
}

/// Inserts an entry with its words and the built-in model's vector. Returns the change of the part's counts.
pub(super) async fn insert(
    session: &PgConnection,
    store: &Spec<'_>,
    part: i64,
    row: &NewRow,
    at: Timestamp,
) -> Result<(), PgFailure> {
    let key = row.key.as_deref().map(|key| store.name_of(key)).transpose()?;
    let sealed = row
        .bundle
        .as_ref()
        .map(|bundle| store.seal_bundle(part, &row.id, bundle));
    let sealed = sealed.transpose()?;
    let (content, metadata, mark, words) = match &sealed {
        Some(sealed) => (sealed.as_str(), None, "", ""),
        None => (
            row.content.as_str(),
            row.metadata.as_deref(),
            row.mark.as_str(),
            row.words.as_str(),
        ),
    };
    let sql = "INSERT INTO memory (part, id, key, content, metadata, at, mark, whose, words) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, to_tsvector('clawk_words', $9)) RETURNING n";
    let n: i64 = session
        .query_value(
            sql,
            &[
                &part, &row.id, &key, &content, &metadata, &at.0, &mark, &row.whose, &words,
            ],
        )
        .await?;
    if let Some(vector) = &row.vector {
        super::vectors::add_vector(session, store, (n, part, row.whose), table::NAME, vector).await?;
    }
    let bytes = content.len() + metadata.map_or(0, str::len);
    adjust_counts(session, part, 1, i64::try_from(bytes).unwrap_or(i64::MAX)).await
}

/// Deletes entries with their words and vectors.
pub(super) async fn delete_entries(session: &PgConnection, part: i64, rows: &[i64]) -> Result<(), PgFailure> {
    if rows.is_empty() {
        return Ok(());
    }
    let sql = "WITH gone AS (DELETE FROM memory WHERE part = $1 AND n = ANY ($2) \
               RETURNING octet_length(content) + coalesce(octet_length(metadata), 0) AS size) \
               SELECT count(*), coalesce(sum(size), 0)::bigint FROM gone";
    let Some(row) = session.query_first(sql, &[&part, &rows]).await? else {
        return Ok(());
    };
    let (count, bytes): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    adjust_counts(session, part, -count, -bytes).await
}

/// Sets entries aside. `instead` is the id of the summary that replaces them, or empty.
pub(super) async fn set_aside(
    session: &PgConnection,
    part: i64,
    rows: &[i64],
    instead: &str,
    at: Timestamp,
) -> Result<(), PgFailure> {
    let sql = "INSERT INTO memory_aside (n, part, id, key, content, metadata, at, mark, whose, instead, since) \
               SELECT n, part, id, key, content, metadata, at, mark, whose, $3, $4 FROM memory WHERE part = $1 AND n = ANY ($2)";
    session.run(sql, &[&part, &rows, &instead, &at.0]).await?;
    delete_entries(session, part, rows).await
}

/// The numbers in the first column.
pub(super) fn row_numbers(rows: &[Row]) -> Result<Vec<i64>, PgFailure> {
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Parses stored content.
pub(super) fn parse_content(text: &str) -> Result<Value, PgFailure> {
    serde_json::from_str(text)
        .map_err(|error| PgFailure::Schema(format!("an entry in PostgreSQL is not valid JSON: {error}")))
}

/// Reads an entry with the columns [`COLUMNS`].
pub(super) fn hit_from_row(store: &Spec<'_>, row: &Row) -> Result<EntryHit, PgFailure> {
    store.entry_hit(PgEntryColumns {
        part: row.try_get(6)?,
        id: row.try_get(0)?,
        key: row.try_get(1)?,
        content: row.try_get(2)?,
        metadata: row.try_get(3)?,
        at: Timestamp(row.try_get(4)?).to_string(),
        mark: row.try_get(5)?,
    })
}
