//! Text for the full-text index, and queries as terms. No user text ever becomes query syntax.

use serde_json::Value;

/// So much text of an entry is indexed.
const MAX_INDEXED_BYTES: usize = 256 * 1024;

/// So many terms of a query count.
pub(super) const MAX_TERMS: usize = 16;

/// The word that marks an entry's part in the index.
pub(super) fn part_token(part: i64) -> String {
    format!("part{part}")
}

/// All text in an entry: strings and numbers at any depth, and the key.
pub(super) fn text_of(content: &Value, key: Option<&str>) -> String {
    fn collect(value: &Value, out: &mut String) {
        if out.len() > MAX_INDEXED_BYTES {
            return;
        }
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(number) => out.extend([number.to_string().as_str(), " "]),
            Value::String(text) => {
                let room = MAX_INDEXED_BYTES.saturating_sub(out.len());
                out.extend([
                    text.get(..text.floor_char_boundary(room)).unwrap_or_default(),
                    " ",
                ]);
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, out)),
            Value::Object(members) => members.values().for_each(|member| collect(member, out)),
        }
    }
    let mut out = String::new();
    if let Some(key) = key {
        out.extend([key, " "]);
    }
    collect(content, &mut out);
    out
}

/// The distinct words of a query, lower case, in order, at most [`MAX_TERMS`].
pub(super) fn terms(query: &str) -> Vec<String> {
    let mut terms: Vec<String> = Vec::new();
    for word in words(query) {
        if terms.len() == MAX_TERMS {
            break;
        }
        if !terms.contains(&word) {
            terms.push(word);
        }
    }
    terms
}

/// Words of a text, lower case.
pub(super) fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

/// FTS5 syntax that matches entries whose text holds all terms, in one part if it is given.
pub(super) fn matching(part: Option<i64>, terms: &[&str]) -> String {
    // Words hold letters and digits only, so that quoting is enough.
    let text = terms.iter().map(|term| format!("text : \"{term}\""));
    let part = part.map(|part| format!("part : \"{}\"", part_token(part)));
    part.into_iter().chain(text).collect::<Vec<_>>().join(" AND ")
}

/// Whether two words are forms of one: equal, or the same but for a short ending (as the index's stemmer sees them).
pub(super) fn same_word(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    let common = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    common >= 4 && a.len().max(b.len()) - common <= 3
}
