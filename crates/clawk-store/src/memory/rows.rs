//! Rows of memory: entries, words, vectors, and entries that were set aside.

use clawk_kernel::time::Timestamp;
use clawk_manifest::model::Store;
use clawk_proto::Digest;
use clawk_proto::method::MemoryEntry;
use clawk_recall::compact::model_of;
use clawk_recall::entry::{EntryHit, EntryInsertion, EntryProvenance, conversation_number};
use clawk_recall::seal::SealedEntryFields;
use clawk_recall::{packed, table, words};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde_json::Value;

/// The columns that [`hit_from_row`] reads. In an encrypted store an unsealed entry is an error: clawk did not write it.
pub(super) const fn hit_columns(sealed: bool) -> &'static str {
    if sealed {
        "id, key, clawk_sealed(content, part, id), metadata, at, mark"
    } else {
        "id, key, clawk_open(content, part, id), metadata, at, mark"
    }
}

/// The columns that [`parse_content`] reads, by the same rule: an entry's content and key.
pub(super) const fn told_columns(sealed: bool) -> &'static str {
    if sealed {
        "clawk_sealed(content, part, id), key"
    } else {
        ANY
    }
}

/// The columns that [`parse_content`] reads of an entry that is deleted, set aside or restored. Here the entry may be one that clawk did not
/// write.
pub(super) const ANY: &str = "clawk_open(content, part, id), key";

/// The first character of a decrypted entry: a bundle follows.
const BUNDLE: char = '~';

fn unreadable_error(error: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(2, rusqlite::types::Type::Text, Box::new(error))
}

/// Parses the sealed fields of an entry, as `clawk_open` returns them.
pub(crate) fn bundle_of(text: &str) -> rusqlite::Result<SealedEntryFields> {
    serde_json::from_str(text.strip_prefix(BUNDLE).unwrap_or(text)).map_err(unreadable_error)
}

/// The fields to seal for an unsealed entry.
pub(crate) fn bundle_of_plain(
    content: &str,
    key: Option<String>,
    metadata: Option<String>,
    mark: Option<String>,
) -> rusqlite::Result<SealedEntryFields> {
    let metadata = metadata.map(|text| serde_json::from_str(&text)).transpose();
    Ok(SealedEntryFields {
        key,
        content: serde_json::from_str(content).map_err(unreadable_error)?,
        metadata: metadata.map_err(unreadable_error)?,
        mark: mark_of(mark),
    })
}

/// The provenance of an entry. Entries of an earlier version have none and count as of unknown origin.
fn mark_of(mark: Option<String>) -> EntryProvenance {
    let mark = mark.and_then(|mark| serde_json::from_str(&mark).ok()); // silent-ok: untrusted then
    mark.unwrap_or_else(|| EntryProvenance {
        untrusted: true,
        ..EntryProvenance::default()
    })
}

/// An entry's content and key, from the two columns of [`told_columns`].
pub(super) fn parse_content(
    content: String,
    key: Option<String>,
) -> rusqlite::Result<(Value, Option<String>)> {
    if content.starts_with(BUNDLE) {
        let bundle = bundle_of(&content)?;
        return Ok((bundle.content, bundle.key));
    }
    let content = serde_json::from_str(&content).unwrap_or(Value::String(content)); // silent-ok: of an earlier version
    Ok((content, key))
}

/// One store's entries for one scope.
#[derive(Debug, Clone, Copy)]
pub(super) struct SqliteStorePart {
    pub(super) id: i64,
    pub(super) entries: i64,
    /// The store is encrypted, and every entry is sealed.
    pub(super) sealed: bool,
}

pub(super) fn find_part(
    connection: &Connection,
    store: &str,
    scope: &str,
) -> rusqlite::Result<Option<SqliteStorePart>> {
    connection
        .prepare_cached(
            "SELECT id, entries, clawk_holds(?1) FROM memory_parts WHERE store = ?1 AND scope = ?2",
        )?
        .query_row([store, scope], |row| {
            Ok(SqliteStorePart {
                id: row.get(0)?,
                entries: row.get(1)?,
                sealed: row.get(2)?,
            })
        })
        .optional()
}

/// The number of the part; creates a missing part.
pub(super) fn ensure_part(connection: &Connection, store: &str, scope: &str) -> rusqlite::Result<i64> {
    if let Some(part) = find_part(connection, store, scope)? {
        return Ok(part.id);
    }
    connection.execute(
        "INSERT INTO memory_parts (store, scope, entries) VALUES (?1, ?2, 0)",
        [store, scope],
    )?;
    Ok(connection.last_insert_rowid())
}

/// The parts of a store in all scopes.
pub(super) fn parts_of(connection: &Connection, store: &str) -> rusqlite::Result<Vec<i64>> {
    let mut select = connection.prepare_cached("SELECT id FROM memory_parts WHERE store = ?1")?;
    select.query_map([store], |row| row.get(0))?.collect()
}

pub(super) fn count_entries(connection: &Connection, part: i64) -> rusqlite::Result<u64> {
    let mut select = connection.prepare_cached("SELECT entries FROM memory_parts WHERE id = ?1")?;
    select.query_row([part], |row| crate::append::unsigned_at(row, 0))
}

/// The size of a store's entries in all scopes, bytes.
pub(super) fn store_bytes(connection: &Connection, store: &str) -> rusqlite::Result<u64> {
    let sql = "SELECT coalesce(sum(bytes), 0) FROM memory_parts WHERE store = ?1";
    let mut select = connection.prepare_cached(sql)?;
    select.query_row([store], |row| crate::append::unsigned_at(row, 0))
}

/// The index word for an entry's part.
pub(super) fn part_token(part: i64) -> String {
    format!("part{part}")
}

/// The index word for an entry's owner.
pub(super) fn whose_token(whose: i64) -> String {
    format!("whose{:016x}", whose.cast_unsigned())
}

/// The index word for entries that are not shared.
pub(super) const OWNED: &str = "owned";

/// An entry ready to be written.
#[derive(Debug)]
pub(super) struct NewRow {
    pub(super) id: String,
    pub(super) key: Option<String>,
    pub(super) content: String,
    pub(super) metadata: Option<String>,
    pub(super) mark: String,
    pub(super) whose: i64,
    bytes: usize,
    words: String,
    vector: Option<Vec<u8>>,
    /// All fields in one text, for an encrypted store.
    bundle: Option<String>,
}

/// Converts entries to rows. The error holds the index of the entry that does not fit the store, and how to fix it.
pub(super) fn rows_of(store: &Store, entries: Vec<EntryInsertion>) -> Result<Vec<NewRow>, (usize, String)> {
    let embeds = model_of(store).as_deref() == Some(table::NAME);
    let row = |(index, new): (usize, EntryInsertion)| {
        let bytes = new.checked_size(store).map_err(|reason| (index, reason))?;
        let EntryInsertion { id, entry, mark } = new;
        let bundle = store
            .encryption
            .then(|| SealedEntryFields::for_entry(&entry, &mark).text());
        let metadata = entry.metadata.as_ref().map(ToString::to_string);
        let content = entry.content.to_string();
        let words = words::text_of(&entry.content, entry.key.as_deref());
        let vector = table::embed_text(&words).filter(|_| embeds);
        Ok(NewRow {
            id,
            key: entry.key,
            content,
            metadata,
            whose: conversation_number(&mark.whose),
            mark: serde_json::to_string(&mark).unwrap_or_default(), // silent-ok: plain members always serialise
            bytes,
            words,
            vector: vector.map(|vector| packed::pack_vector(&vector)),
            bundle,
        })
    };
    entries.into_iter().enumerate().map(row).collect()
}

impl NewRow {
    pub(super) fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }
}

/// Whether an entry with this id exists.
pub(super) fn is_kept(connection: &Connection, part: i64, id: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM memory WHERE part = ?1 AND id = ?2")?
        .exists(params![part, id])
}

pub(super) fn insert(
    connection: &Connection,
    part: i64,
    row: &NewRow,
    at: Timestamp,
) -> rusqlite::Result<()> {
    if let Some(bundle) = &row.bundle {
        connection
            .prepare_cached(
                "INSERT INTO memory (part, id, key, content, metadata, at, mark, whose) \
                 VALUES (?1, ?2, clawk_name(?3), clawk_seal(?4, ?1, ?2), NULL, ?5, NULL, ?6)",
            )?
            .execute(params![part, row.id, row.key, bundle, at.0, row.whose])?;
    } else {
        connection
            .prepare_cached(
                "INSERT INTO memory (part, id, key, content, metadata, at, mark, whose) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                part, row.id, row.key, row.content, row.metadata, at.0, row.mark, row.whose
            ])?;
    }
    let n = connection.last_insert_rowid();
    if row.bundle.is_none() {
        index(connection, n, part, row.whose, &row.words)?;
    }
    if let Some(vector) = &row.vector {
        add_vector(connection, n, part, row.whose, table::NAME, vector)?;
    }
    let bytes = connection
        .prepare_cached(SIZE)?
        .query_row([n], |row| row.get::<_, i64>(0))?;
    adjust_counts(connection, part, 1, bytes)
}

pub(super) fn index(
    connection: &Connection,
    n: i64,
    part: i64,
    whose: i64,
    text: &str,
) -> rusqlite::Result<()> {
    let marks = if whose == 0 {
        part_token(part)
    } else {
        format!("{} {OWNED} {}", part_token(part), whose_token(whose))
    };
    connection
        .prepare_cached("INSERT INTO memory_words (rowid, part, text) VALUES (?1, ?2, ?3)")?
        .execute(params![n, marks, text])?;
    Ok(())
}

pub(super) fn add_vector(
    connection: &Connection,
    n: i64,
    part: i64,
    whose: i64,
    model: &str,
    vector: &[u8],
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO memory_vectors (n, part, whose, model, vector) VALUES (?1, ?2, ?3, ?4, \
             CASE WHEN (SELECT substr(content, 1, 1) = '~' FROM memory WHERE n = ?1) THEN clawk_seal(?5, 'vector', ?1) ELSE ?5 END)",
        )?
        .execute(params![n, part, whose, model, vector])?;
    Ok(())
}

/// The size of an entry for the store's limits, bytes.
const SIZE: &str = "SELECT length(content) + coalesce(length(metadata), 0) FROM memory WHERE n = ?1";

fn adjust_counts(connection: &Connection, part: i64, entries: i64, bytes: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE memory_parts SET entries = entries + ?2, bytes = max(0, bytes + ?3) WHERE id = ?1",
        )?
        .execute(params![part, entries, bytes])?;
    Ok(())
}

/// Deletes entries with their words and vectors.
pub(super) fn delete_entries(connection: &Connection, part: i64, rows: &[i64]) -> rusqlite::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut size = connection.prepare_cached(SIZE)?;
    let mut words = connection.prepare_cached("DELETE FROM memory_words WHERE rowid = ?1")?;
    let mut vectors = connection.prepare_cached("DELETE FROM memory_vectors WHERE n = ?1")?;
    let mut entries = connection.prepare_cached("DELETE FROM memory WHERE n = ?1")?;
    let (mut removed, mut bytes) = (0, 0);
    for n in rows {
        let Some(size) = size.query_row([n], |row| row.get::<_, i64>(0)).optional()? else {
            continue;
        };
        words.execute([n])?;
        vectors.execute([n])?;
        entries.execute([n])?;
        removed += 1;
        bytes += size;
    }
    adjust_counts(connection, part, -removed, -bytes)
}

/// Deletes the cached embedding of this text. Another entry with the same text needs a new one.
pub(super) fn forget_embedded(
    connection: &Connection,
    content: &Value,
    key: Option<&str>,
) -> rusqlite::Result<()> {
    let digest = clawk_trace::chain::digest_of(words::text_of(content, key).as_bytes());
    forget_digest(connection, digest)
}

/// As [`forget_embedded`], by the text's digest.
pub(super) fn forget_digest(connection: &Connection, digest: Digest) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM embeddings WHERE digest = ?1")?
        .execute([digest.0])?;
    Ok(())
}

/// Sets entries aside. `instead` is the id of the summary that replaces them, or empty.
pub(super) fn set_aside(
    connection: &Connection,
    part: i64,
    rows: &[i64],
    instead: &str,
    at: Timestamp,
) -> rusqlite::Result<()> {
    let mut copy = connection.prepare_cached(
        "INSERT OR REPLACE INTO memory_aside (n, part, id, key, content, metadata, at, mark, whose, instead, since) \
         SELECT n, part, id, key, content, metadata, at, mark, whose, ?2, ?3 FROM memory WHERE n = ?1",
    )?;
    for n in rows {
        copy.execute(params![n, instead, at.0])?;
    }
    delete_entries(connection, part, rows)
}

/// Whether entries of this part have vectors of the built-in model.
pub(super) fn has_vectors(connection: &Connection, part: i64) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM memory_vectors WHERE part = ?1 AND model = ?2")?
        .exists(params![part, table::NAME])
}

/// Restores entries unchanged, with their words. Vectors of the built-in model are computed again.
pub(super) fn bring_back(
    connection: &Connection,
    part: i64,
    rows: &[i64],
    embeds: bool,
) -> rusqlite::Result<u64> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT {ANY}, whose, length(content) + coalesce(length(metadata), 0), id, substr(content, 1, 1) = '~' \
         FROM memory_aside WHERE n = ?1"
    ))?;
    let mut back = connection.prepare_cached(
        "INSERT INTO memory (n, part, id, key, content, metadata, at, mark, whose) \
         SELECT n, part, id, key, content, metadata, at, mark, whose FROM memory_aside WHERE n = ?1",
    )?;
    let mut gone = connection.prepare_cached("DELETE FROM memory_aside WHERE n = ?1")?;
    let mut count = 0;
    for n in rows {
        let ((content, key), whose, bytes, id, sealed) = select.query_row([n], |row| {
            let told = parse_content(row.get(0)?, row.get(1)?)?;
            Ok((
                told,
                row.get(2)?,
                row.get(3)?,
                row.get::<_, String>(4)?,
                row.get::<_, bool>(5)?,
            ))
        })?;
        if is_kept(connection, part, &id)? {
            continue; // a later entry has its id: what is newer stays
        }
        back.execute([n])?;
        gone.execute([n])?;
        let text = words::text_of(&content, key.as_deref());
        if !sealed {
            index(connection, *n, part, whose, &text)?;
        }
        if let Some(vector) = table::embed_text(&text).filter(|_| embeds) {
            add_vector(
                connection,
                *n,
                part,
                whose,
                table::NAME,
                &packed::pack_vector(&vector),
            )?;
        }
        adjust_counts(connection, part, 1, bytes)?;
        count += 1;
    }
    came_or_went(connection)?;
    Ok(count)
}

/// Counts that entries were restored or deleted. Indexes in memory check this before they answer.
pub(super) fn came_or_went(connection: &Connection) -> rusqlite::Result<()> {
    let sql =
        "INSERT INTO marks (name, value) VALUES (?1, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1";
    connection.prepare_cached(sql)?.execute([CAME_OR_WENT]).map(drop)
}

/// Merges all segments of the word index, because it keeps the words of deleted entries until then. Takes as long as reading and
/// writing the index.
pub(crate) fn drop_dead_words(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "INSERT INTO memory_words (memory_words) VALUES ('optimize')";
    connection.execute(sql, []).map(drop)
}

/// The name of the counter of restored and deleted entries.
pub(super) const CAME_OR_WENT: &str = "memory_came_or_went";

/// Reads an entry with the columns of [`hit_columns`].
pub(super) fn hit_from_row(row: &Row<'_>) -> rusqlite::Result<EntryHit> {
    let json = |index: usize, text: String| {
        serde_json::from_str::<Value>(&text).map_err(|e| {
            rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Text, Box::new(e))
        })
    };
    let (id, content): (String, String) = (row.get(0)?, row.get(2)?);
    let time = Timestamp(row.get(4)?).to_string();
    if content.starts_with(BUNDLE) {
        return Ok(bundle_of(&content)?.into_hit(id, time));
    }
    let metadata: Option<String> = row.get(3)?;
    Ok(EntryHit {
        entry: MemoryEntry {
            id,
            key: row.get(1)?,
            content: json(2, content)?,
            metadata: metadata.map(|text| json(3, text)).transpose()?,
            timestamp: Some(time),
            score: None,
        },
        mark: mark_of(row.get(5)?),
    })
}
