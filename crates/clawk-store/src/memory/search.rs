//! Searches entries in a time that does not grow with the store.
//!
//! SQLite's own `bm25()` visits every entry with one of the query's words, so a common word makes it slow in a large store. Here
//! each word contributes its newest [`PER_TERM`] entries; so do pairs of the rarest words, and all words together. These few
//! hundred candidates are ranked by the weight of the words that they contain. A word's weight is estimated from the age of its
//! newest entries. Vectors are all scanned: their time grows slowly with the store.

use std::collections::HashMap;

use clawk_kernel::ports::StoreQuery;
use clawk_manifest::model::{Store, StoreType};
use clawk_recall::entry::{
    ConversationFilter, EntryHit, EntrySearchResult, SearchMethod, Vector, conversation_number,
};
use clawk_recall::way::{self, VectorQuery};
use clawk_recall::words::{self, QueryTerm};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::indexed::SqliteWordIndex;
use super::rows::{
    OWNED, SqliteStorePart, hit_columns, hit_from_row, parse_content, part_token, told_columns, whose_token,
};
use super::vectors::Vectors;

/// The number of candidates per word or combination of words.
const PER_TERM: usize = 64;

/// The largest number of candidates whose text is read.
const MAX_RANKED: usize = 256;

/// A part is dense if at least one of this many entries belongs to it.
const DENSE: i64 = 8;

/// How to find the part's entries among all entries with a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartMatchMethod {
    /// All entries belong to the part: no check is needed.
    Own,
    /// Many belong to the part: the word's entries are scanned, and other parts' entries are skipped.
    Many,
    /// Few belong to the part, or only some conversations count: the part's own list in the index is scanned.
    Few,
}

/// A search in one part of a store.
#[derive(Debug)]
pub(super) struct SqlitePartSearch<'a> {
    pub(super) store: &'a Store,
    pub(super) part: SqliteStorePart,
    pub(super) whose: &'a ConversationFilter,
    pub(super) limit: usize,
    pub(super) vectors: &'a Vectors,
    pub(super) words: &'a SqliteWordIndex,
}

impl SqlitePartSearch<'_> {
    pub(super) fn run(
        &self,
        connection: &Connection,
        query: &StoreQuery,
        vector: Option<&Vector>,
    ) -> rusqlite::Result<EntrySearchResult> {
        // Entries of other owners are skipped while reading.
        let bound = i64::try_from(self.limit).unwrap_or(i64::MAX);
        let (part, columns) = (self.part.id, hit_columns(self.part.sealed));
        let hits = match query {
            StoreQuery::Text(text) => return self.by_text(connection, text, vector),
            StoreQuery::Key(key) if self.store.kind == StoreType::KeyValue => {
                let sql = format!(
                    "SELECT {columns} FROM memory WHERE part = ?1 AND key IN (?2, clawk_name(?2)) ORDER BY n DESC"
                );
                let mut select = connection.prepare_cached(&sql)?;
                let rows = select.query_map(params![part, key], hit_from_row)?;
                self.whose_and_limit(rows)?
            }
            StoreQuery::Key(id) => {
                let sql = format!(
                    "SELECT {columns} FROM memory WHERE n IN (SELECT n FROM memory WHERE part = ?1 AND id = ?2 \
                     UNION SELECT n FROM memory WHERE part = ?1 AND key IN (?2, clawk_name(?2))) ORDER BY n DESC"
                );
                let mut select = connection.prepare_cached(&sql)?;
                let rows = select.query_map(params![part, id], hit_from_row)?;
                self.whose_and_limit(rows)?
            }
            StoreQuery::Between(from, to) => {
                let sql = format!(
                    "SELECT {columns} FROM memory WHERE part = ?1 AND at BETWEEN ?2 AND ?3 ORDER BY at, n LIMIT ?4"
                );
                let mut select = connection.prepare_cached(&sql)?;
                let all = *self.whose == ConversationFilter::All;
                let rows = select.query_map(
                    params![part, from.0, to.0, if all { bound } else { -1 }],
                    hit_from_row,
                )?;
                self.whose_and_limit(rows)?
            }
        };
        Ok(EntrySearchResult {
            hits,
            ..EntrySearchResult::default()
        })
    }

    fn whose_and_limit(
        &self,
        rows: impl Iterator<Item = rusqlite::Result<EntryHit>>,
    ) -> rusqlite::Result<Vec<EntryHit>> {
        let mine = rows.filter(|hit| {
            hit.as_ref()
                .map_or(true, |hit| self.whose.includes_owner(&hit.mark.whose))
        });
        mine.take(self.limit).collect()
    }

    fn by_text(
        &self,
        connection: &Connection,
        text: &str,
        vector: Option<&Vector>,
    ) -> rusqlite::Result<EntrySearchResult> {
        let Some(way) = way::vector_query(self.store, text, vector) else {
            let ranked = self.by_words(connection, text, self.limit)?;
            return Ok(EntrySearchResult {
                hits: self.read(connection, &ranked)?,
                used: Some(SearchMethod::FullText),
                ..EntrySearchResult::default()
            });
        };
        let depth = way::candidate_depth(self.limit);
        let mut near = self.by_vector(connection, &way, depth)?;
        let alive = self.read(connection, &near)?;
        if alive.len() < self.limit && near.len() == depth {
            // Many vectors in memory belong to deleted entries.
            self.vectors.forget_part(self.part.id);
            near = self.by_vector(connection, &way, depth)?;
        }
        let ranked = if way.only {
            near
        } else {
            way.fuse_rankings(&self.by_words(connection, text, depth)?, &near)
        };
        Ok(EntrySearchResult {
            hits: self.read(connection, &ranked)?,
            used: Some(way.used),
            ..EntrySearchResult::default()
        })
    }

    fn by_vector(
        &self,
        connection: &Connection,
        way: &VectorQuery,
        depth: usize,
    ) -> rusqlite::Result<Vec<(i64, f64)>> {
        let keep = self.conversation_filter();
        let near = self
            .vectors
            .nearest_rows(connection, (&self.part, &way.model), &way.query, depth, keep);
        let floor = way.floor;
        near.map(|near| near.into_iter().filter(|(_, score)| *score >= floor).collect())
    }

    /// A test whether the entries of a conversation (by number) count.
    fn conversation_filter(&self) -> impl Fn(i64) -> bool {
        let numbers: Option<Vec<i64>> = match self.whose {
            ConversationFilter::All => None,
            ConversationFilter::Of(known) => Some(known.iter().map(|one| conversation_number(one)).collect()),
        };
        move |whose| whose == 0 || numbers.as_ref().is_none_or(|known| known.contains(&whose))
    }

    /// Loads the entries in these rows that still exist and are allowed, with their scores. A foreign vector or word in this part
    /// can't bring in an entry of another part.
    fn read(&self, connection: &Connection, ranked: &[(i64, f64)]) -> rusqlite::Result<Vec<EntryHit>> {
        let columns = hit_columns(self.part.sealed);
        let sql = format!("SELECT {columns} FROM memory WHERE n = ?1 AND part = ?2");
        let mut select = connection.prepare_cached(&sql)?;
        let mut hits = Vec::new();
        for (n, score) in ranked {
            if hits.len() == self.limit {
                break;
            }
            let Some(mut hit) = select.query_row([*n, self.part.id], hit_from_row).optional()? else {
                continue;
            };
            if self.whose.includes_owner(&hit.mark.whose) {
                hit.entry.score = Some(*score);
                hits.push(hit);
            }
        }
        Ok(hits)
    }

    pub(super) fn by_words(
        &self,
        connection: &Connection,
        query: &str,
        limit: usize,
    ) -> rusqlite::Result<Vec<(i64, f64)>> {
        let mut found: HashMap<i64, f64> = HashMap::new();
        let mut terms = Vec::new();
        let mut select = connection.prepare_cached(
            "SELECT (SELECT min(n) FROM memory), (SELECT max(n) FROM memory), \
             EXISTS (SELECT 1 FROM memory_parts WHERE id <> ?1 AND entries <> 0)",
        )?;
        let (oldest, newest, others): (Option<i64>, Option<i64>, bool) =
            select.query_row([self.part.id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let (Some(oldest), Some(newest)) = (oldest, newest) else {
            return Ok(Vec::new());
        };
        // The database has no words of an encrypted store.
        if self.part.sealed {
            return self.words.find_entries(
                connection,
                self.part.id,
                query,
                limit,
                self.conversation_filter(),
            );
        }
        let dense = self.part.entries.saturating_mul(DENSE) >= newest.saturating_sub(oldest);
        let among = match (self.whose, dense) {
            (ConversationFilter::All, _) if !others => PartMatchMethod::Own,
            (ConversationFilter::All, true) => PartMatchMethod::Many,
            (ConversationFilter::All, false) | (ConversationFilter::Of(_), _) => PartMatchMethod::Few,
        };
        for text in words::query_terms(query) {
            let rows = self.newest_with(connection, among, &[&text])?;
            let weight = estimate_rarity(self.part, &rows, oldest, newest);
            for n in rows {
                *found.entry(n).or_default() += weight;
            }
            terms.push(QueryTerm { text, weight });
        }
        terms.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        for group in term_combinations(&terms) {
            let texts: Vec<&str> = group.iter().map(|term| term.text.as_str()).collect();
            let weight: f64 = group.iter().map(|term| term.weight).sum();
            for n in self.newest_with(connection, among, &texts)? {
                let known = found.entry(n).or_default();
                *known = known.max(weight);
            }
        }
        rank_entries(connection, self.part, &terms, found, limit)
    }

    /// The newest entries that contain all these words. The index has no words of deleted entries.
    fn newest_with(
        &self,
        connection: &Connection,
        among: PartMatchMethod,
        terms: &[&str],
    ) -> rusqlite::Result<Vec<i64>> {
        let sql = match among {
            PartMatchMethod::Own | PartMatchMethod::Few => format!(
                "SELECT rowid FROM memory_words WHERE memory_words MATCH ?1 AND ?2 IS NOT NULL \
                 ORDER BY rowid DESC LIMIT {PER_TERM}"
            ),
            PartMatchMethod::Many => format!(
                "SELECT w.rowid FROM memory_words w CROSS JOIN memory m ON m.n = w.rowid \
                 WHERE w.memory_words MATCH ?1 AND m.part = ?2 ORDER BY w.rowid DESC LIMIT {PER_TERM}"
            ),
        };
        let query = match_expression(
            (among == PartMatchMethod::Few).then_some(self.part.id),
            self.whose,
            terms,
        );
        let mut select = connection.prepare_cached(&sql)?;
        let rows = select.query_map(params![query, self.part.id], |row| row.get(0))?;
        rows.collect()
    }
}

/// FTS5 syntax for entries that contain all terms, in one part if given, of these conversations and of the shared ones. User text
/// can't become query syntax: terms consist of letters and digits, so quoting is enough.
fn match_expression(part: Option<i64>, whose: &ConversationFilter, terms: &[&str]) -> String {
    let text = terms.iter().map(|term| format!("text : \"{term}\""));
    let part = part.map(|part| format!("part : \"{}\"", part_token(part)));
    let all = part.into_iter().chain(text).collect::<Vec<_>>().join(" AND ");
    match whose {
        ConversationFilter::All => all,
        ConversationFilter::Of(known) => {
            let own = known.iter().map(|one| {
                format!(
                    " OR ({all} AND part : \"{}\")",
                    whose_token(conversation_number(one))
                )
            });
            format!("(({all}) NOT part : \"{OWNED}\"){}", own.collect::<String>())
        }
    }
}

/// The BM25 weight of a word, with an estimate of how many entries contain it.
fn estimate_rarity(part: SqliteStorePart, rows: &[i64], oldest: i64, newest: i64) -> f64 {
    let total = to_f64(part.entries.max(1));
    let held = match rows.last() {
        Some(last) if rows.len() == PER_TERM => {
            let reach = to_f64(newest - last + 1) / to_f64(newest - oldest + 1);
            (to_f64(i64::try_from(PER_TERM).unwrap_or(64)) / reach.max(f64::EPSILON)).min(total)
        }
        _ => to_f64(i64::try_from(rows.len()).unwrap_or(i64::MAX)),
    };
    words::word_rarity(total, held)
}

/// All words together, and pairs of the four rarest words.
fn term_combinations(terms: &[QueryTerm]) -> Vec<Vec<&QueryTerm>> {
    if terms.len() < 2 {
        return Vec::new();
    }
    let mut groups = vec![terms.iter().collect::<Vec<_>>()];
    if terms.len() > 2 {
        let rarest: Vec<&QueryTerm> = terms.iter().take(4).collect();
        for (index, first) in rarest.iter().enumerate() {
            groups.extend(rarest.iter().skip(index + 1).map(|second| vec![*first, *second]));
        }
    }
    groups
}

fn rank_entries(
    connection: &Connection,
    part: SqliteStorePart,
    terms: &[QueryTerm],
    found: HashMap<i64, f64>,
    limit: usize,
) -> rusqlite::Result<Vec<(i64, f64)>> {
    let mut likely: Vec<(i64, f64)> = found.into_iter().collect();
    // With equal weights the newer entry is first, so the answer is deterministic.
    likely.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    likely.truncate(MAX_RANKED.max(limit));
    let sql = format!(
        "SELECT {} FROM memory WHERE n = ?1 AND part = ?2",
        told_columns(part.sealed)
    );
    let mut select = connection.prepare_cached(&sql)?;
    let mut ranked = Vec::with_capacity(likely.len());
    for (n, known) in likely {
        let found = select
            .query_row([n, part.id], |row| parse_content(row.get(0)?, row.get(1)?))
            .optional()?;
        let Some((content, key)) = found else { continue };
        let text = words::text_of(&content, key.as_deref());
        ranked.push((n, words::text_score(terms, &text, known)));
    }
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    ranked.truncate(limit);
    Ok(ranked)
}

/// Counts here are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
const fn to_f64(count: i64) -> f64 {
    count as f64
}
