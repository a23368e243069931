//! Searches entries: by words with the server's full-text index, by meaning, or both (same terms, weights and fusion as on SQLite).
//!
//! Each word contributes its newest [`PER_TERM`] entries; so do pairs of the rarest words, and all words together. These few
//! hundred candidates are ranked by the weight of the words that they contain. All queries are sent to the server at once.

use std::collections::HashMap;

use clawk_kernel::ports::StoreQuery;
use clawk_manifest::model::{StoreBackend, StoreType};
use clawk_recall::entry::{
    ConversationFilter, EntryHit, EntrySearchResult, SearchMethod, Vector, conversation_number,
};
use clawk_recall::way;
use clawk_recall::words::{self, QueryTerm};
use futures::future::try_join_all;

use super::indexed::PgWordIndex;
use super::parts::PgStorePart;
use super::rows::{COLUMNS, fold_words, hit_from_row, parse_content, row_numbers};
use super::spec::Spec;
use super::vectors::{PgVectorSearch, Vectors};
use crate::error::PgFailure;
use crate::pool::PgTransaction;

/// The number of candidates per word or combination of words.
const PER_TERM: usize = 64;

/// The largest number of candidates whose text is read.
const MAX_RANKED: usize = 256;

/// A search in one part of a store.
#[derive(Debug)]
pub(super) struct PgPartSearch<'a> {
    pub(super) tx: &'a PgTransaction,
    pub(super) store: &'a Spec<'a>,
    pub(super) part: PgStorePart,
    pub(super) whose: &'a ConversationFilter,
    pub(super) limit: usize,
    pub(super) vectors: &'a Vectors,
    pub(super) words: &'a PgWordIndex,
}

impl PgPartSearch<'_> {
    pub(super) async fn run(
        &self,
        query: &StoreQuery,
        vector: Option<&Vector>,
    ) -> Result<EntrySearchResult, PgFailure> {
        let part = self.part.id;
        let whose = self.owner_numbers();
        let bound = to_i64(self.limit);
        let mine = "($2::bigint[] IS NULL OR whose = 0 OR whose = ANY ($2))";
        let rows = match query {
            StoreQuery::Text(text) => return self.by_text(text, vector).await,
            StoreQuery::Key(key) if key.contains('\0') => Vec::new(), // no key that was kept has one
            StoreQuery::Key(key) => {
                let named = if self.store.kind == StoreType::KeyValue {
                    "(key = $3 AND $5::text IS NOT NULL)"
                } else {
                    "(key = $3 OR id = $5::text)"
                };
                let sql = format!(
                    "SELECT {COLUMNS} FROM memory WHERE part = $1 AND {mine} AND {named} ORDER BY n DESC LIMIT $4"
                );
                let name = self.store.name_of(key)?;
                self.tx
                    .query_rows(&sql, &[&part, &whose, &name, &bound, key])
                    .await?
            }
            StoreQuery::Between(from, to) => {
                let sql = format!(
                    "SELECT {COLUMNS} FROM memory WHERE part = $1 AND {mine} AND at BETWEEN $3 AND $4 ORDER BY at, n LIMIT $5"
                );
                self.tx
                    .query_rows(&sql, &[&part, &whose, &from.0, &to.0, &bound])
                    .await?
            }
        };
        let hits = rows
            .iter()
            .map(|row| hit_from_row(self.store, row))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(EntrySearchResult {
            hits: hits
                .into_iter()
                .filter(|hit| self.includes_hit(hit) && self.is_named(query, hit))
                .collect(),
            ..EntrySearchResult::default()
        })
    }

    /// Whether the entry has the key of the query. The server finds an encrypted entry by a keyed digest; the decrypted key
    /// decides.
    fn is_named(&self, query: &StoreQuery, hit: &EntryHit) -> bool {
        let StoreQuery::Key(key) = query else { return true };
        !self.store.encryption || hit.entry.key.as_ref() == Some(key) || hit.entry.id == *key
    }

    /// Whether the entry belongs to an allowed conversation. Two conversations may share a number, so the name decides.
    fn includes_hit(&self, hit: &EntryHit) -> bool {
        self.whose.includes_owner(&hit.mark.whose)
    }

    fn owner_numbers(&self) -> Option<Vec<i64>> {
        match self.whose {
            ConversationFilter::All => None,
            ConversationFilter::Of(known) => Some(known.iter().map(|one| conversation_number(one)).collect()),
        }
    }

    async fn by_text(&self, text: &str, vector: Option<&Vector>) -> Result<EntrySearchResult, PgFailure> {
        let Some(way) = way::vector_query(self.store, text, vector) else {
            let ranked = self.by_words(text, self.limit).await?;
            return self.load_results(&ranked, SearchMethod::FullText).await;
        };
        let depth = way::candidate_depth(self.limit);
        let near = self.by_vector(&way, depth).await?;
        let ranked = if way.only {
            near
        } else {
            way.fuse_rankings(&self.by_words(text, depth).await?, &near)
        };
        self.load_results(&ranked, way.used).await
    }

    async fn by_vector(&self, way: &way::VectorQuery, depth: usize) -> Result<Vec<(i64, f64)>, PgFailure> {
        let whose = self.owner_numbers();
        let near = PgVectorSearch {
            store: self.store,
            part: self.part.id,
            model: &way.model,
            query: &way.query,
            whose: whose.as_deref(),
            limit: depth,
        };
        let extension = self.vector_extension();
        let mut ranked = self.vectors.nearest_entries(self.tx, extension, near).await?;
        if extension.is_none() && ranked.len() == depth && self.count_present(&ranked).await? < self.limit {
            // Many vectors in memory belong to deleted entries.
            self.vectors.forget_part(self.part.id).await;
            ranked = self.vectors.nearest_entries(self.tx, extension, near).await?;
        }
        ranked.retain(|(_, score)| *score >= way.floor);
        Ok(ranked)
    }

    /// The schema of the extension that compares vectors on the server, if the store asks for it. A scan in this process is a
    /// hundred times as fast.
    fn vector_extension(&self) -> Option<&str> {
        let asked = self.store.backend == Some(StoreBackend::Pgvector) && !self.store.encryption;
        self.tx.vector_schema().filter(|_| asked)
    }

    async fn count_present(&self, ranked: &[(i64, f64)]) -> Result<usize, PgFailure> {
        let all: Vec<i64> = ranked.iter().map(|(n, _)| *n).collect();
        let sql = "SELECT count(*) FROM memory WHERE part = $1 AND n = ANY ($2)";
        let there: i64 = self.tx.query_value(sql, &[&self.part.id, &all]).await?;
        Ok(usize::try_from(there).unwrap_or_default()) // silent-ok: a count is never below 0
    }

    async fn by_words(&self, question: &str, limit: usize) -> Result<Vec<(i64, f64)>, PgFailure> {
        if self.store.encryption {
            let numbers = self.owner_numbers();
            let counts =
                |whose: i64| whose == 0 || numbers.as_ref().is_none_or(|known| known.contains(&whose));
            return self
                .words
                .find_entries((self.tx, self.store, self.part.id), question, limit, counts)
                .await;
        }
        let sql = "SELECT min(n), max(n) FROM memory WHERE part = $1";
        let Some(row) = self.tx.query_first(sql, &[&self.part.id]).await? else {
            return Ok(Vec::new());
        };
        let (Some(oldest), Some(newest)) = (row.try_get(0)?, row.try_get(1)?) else {
            return Ok(Vec::new());
        };
        let asked = words::query_terms(question);
        let singles = try_join_all(asked.iter().map(|text| self.newest_with(fold_words(text)))).await?;
        let mut found: HashMap<i64, f64> = HashMap::new();
        let mut terms = Vec::new();
        for (text, rows) in asked.into_iter().zip(singles) {
            let weight = estimate_rarity(self.part.entries, &rows, (oldest, newest));
            for n in rows {
                *found.entry(n).or_default() += weight;
            }
            terms.push(QueryTerm { text, weight });
        }
        terms.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let groups = term_combinations(&terms);
        let joined = groups.iter().map(|group| {
            let texts: Vec<&str> = group.iter().map(|term| term.text.as_str()).collect();
            self.newest_with(fold_words(&texts.join(" ")))
        });
        for (rows, group) in try_join_all(joined).await?.into_iter().zip(&groups) {
            let weight: f64 = group.iter().map(|term| term.weight).sum();
            for n in rows {
                let known = found.entry(n).or_default();
                *known = known.max(weight);
            }
        }
        self.rank_entries(&terms, found, limit).await
    }

    /// The newest entries that contain all these words.
    async fn newest_with(&self, words: String) -> Result<Vec<i64>, PgFailure> {
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT n FROM memory WHERE part = $1 AND ($2::bigint[] IS NULL OR whose = 0 OR whose = ANY ($2)) \
                   AND words @@ plainto_tsquery('clawk_words', $3) ORDER BY n DESC LIMIT $4";
        let rows = self
            .tx
            .query_rows(
                sql,
                &[&self.part.id, &self.owner_numbers(), &words, &to_i64(PER_TERM)],
            )
            .await?;
        row_numbers(&rows)
    }

    async fn rank_entries(
        &self,
        terms: &[QueryTerm],
        found: HashMap<i64, f64>,
        limit: usize,
    ) -> Result<Vec<(i64, f64)>, PgFailure> {
        let mut likely: Vec<(i64, f64)> = found.into_iter().collect();
        // With equal weights the newer entry is first, so the answer is deterministic.
        likely.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
        likely.truncate(MAX_RANKED.max(limit));
        let all: Vec<i64> = likely.iter().map(|(n, _)| *n).collect();
        let sql = "SELECT n, key, content FROM memory WHERE n = ANY ($1)";
        let rows = self.tx.query_rows(sql, &[&all]).await?;
        let known: HashMap<i64, f64> = likely.into_iter().collect();
        let mut ranked = Vec::with_capacity(rows.len());
        for row in &rows {
            let n: i64 = row.try_get(0)?;
            let text = words::text_of(&parse_content(row.try_get(2)?)?, row.try_get(1)?);
            let weight = known.get(&n).copied().unwrap_or_default(); // silent-ok: every number was asked for
            ranked.push((n, words::text_score(terms, &text, weight)));
        }
        ranked.sort_by(|a: &(i64, f64), b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
        ranked.truncate(limit);
        Ok(ranked)
    }

    /// Loads the entries with these numbers that still exist and are allowed, with their scores, up to the limit.
    async fn load_results(
        &self,
        ranked: &[(i64, f64)],
        used: SearchMethod,
    ) -> Result<EntrySearchResult, PgFailure> {
        let all: Vec<i64> = ranked.iter().map(|(n, _)| *n).collect();
        let sql = format!("SELECT {COLUMNS}, n FROM memory WHERE part = $1 AND n = ANY ($2)");
        let mut there = HashMap::new();
        for row in &self.tx.query_rows(&sql, &[&self.part.id, &all]).await? {
            let n: i64 = row.try_get(7)?;
            there.insert(n, hit_from_row(self.store, row)?);
        }
        let hits = ranked.iter().filter_map(|(n, score)| {
            let mut hit = there.remove(n).filter(|hit| self.includes_hit(hit))?;
            hit.entry.score = Some(*score);
            Some(hit)
        });
        Ok(EntrySearchResult {
            hits: hits.take(self.limit).collect(),
            used: Some(used),
            compared_here: used != SearchMethod::FullText && self.vector_extension().is_none(),
        })
    }
}

fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The BM25 weight of a word. It estimates how many entries contain the word from the age of the word's newest entries.
fn estimate_rarity(entries: i64, rows: &[i64], (oldest, newest): (i64, i64)) -> f64 {
    let total = to_f64(entries.max(1));
    let held = match rows.last() {
        Some(last) if rows.len() == PER_TERM => {
            let reach = to_f64(newest - last + 1) / to_f64(newest - oldest + 1);
            (to_f64(to_i64(PER_TERM)) / reach.max(f64::EPSILON)).min(total)
        }
        _ => to_f64(to_i64(rows.len())),
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

/// Counts here are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
const fn to_f64(count: i64) -> f64 {
    count as f64
}
