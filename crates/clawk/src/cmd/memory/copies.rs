//! Finds copies of a text in the journal: in messages, requests, answers and recalled entries.

use std::collections::BTreeSet;

use anyhow::Result;
use clawk_kernel::kind;
use clawk_kernel::ports::{JournalScan, RecordedEvent};
use clawk_proto::{Digest, SessionId};
use clawk_trace::chain::digest_of;
use serde_json::Value;

use crate::state::kept::StateReader;

/// Shorter texts match only a whole content, because they occur in too many others.
const MIN_BYTES: usize = 8;

/// Events read at once.
const PAGE: usize = 200;

/// Event types whose content describes the agent. A replay needs them, and they never hold a copy of an entry.
const NOT: [&str; 3] = [kind::AGENT_DESCRIBED, kind::TOOL_DESCRIBED, kind::ATLAS_LOADED];

/// A text in the forms in which a content may hold it.
#[derive(Debug)]
pub(super) struct ContentNeedle {
    whole: Digest,
    forms: BTreeSet<Vec<u8>>,
}

impl ContentNeedle {
    fn from_text(text: &str) -> Self {
        let marked = text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;");
        let forms = [
            text.to_owned(),
            escape_json(text),
            escape_json(&marked),
            escape_json(&escape_json(text)),
        ];
        let long = forms.into_iter().filter(|form| form.len() >= MIN_BYTES);
        Self {
            whole: digest_of(text.as_bytes()),
            forms: long.map(String::into_bytes).collect(),
        }
    }

    fn is_in(&self, digest: Digest, bytes: &[u8]) -> bool {
        digest == self.whole
            || self
                .forms
                .iter()
                .any(|form| bytes.windows(form.len()).any(|part| part == form.as_slice()))
    }
}

/// Returns the text as in a JSON string, without the quotation marks.
fn escape_json(text: &str) -> String {
    let quoted = Value::String(text.to_owned()).to_string();
    quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned()
}

/// Returns the texts of an entry's content: each string in it at any depth, and the whole content if it is not one string.
pub(super) fn content_texts(content: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if !content.is_string() {
        found.push(content.to_string());
    }
    collect_strings(content, &mut found);
    found
}

fn collect_strings(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect_strings(item, found)),
        Value::Object(members) => members.values().for_each(|member| collect_strings(member, found)),
    }
}

/// A content, and the first session that refers to it.
type ContentCopy = (SessionId, Digest);

/// Finds every content of the journal that holds one of these texts, and every conversation summary that was made from one. Each
/// has the first session that refers to it.
///
/// Also returns all texts that were searched for.
pub(super) fn find_copies(reader: &StateReader, texts: &[String]) -> Result<(Vec<ContentCopy>, Vec<String>)> {
    let mut wanted: Vec<String> = texts
        .iter()
        .filter(|text| !text.trim().is_empty())
        .cloned()
        .collect();
    let mut found: Vec<ContentCopy> = Vec::new();
    let mut done = 0;
    // The text of a found summary is searched for, too, and so on.
    while done < wanted.len() {
        let needles: Vec<ContentNeedle> = wanted
            .iter()
            .skip(done)
            .map(|text| ContentNeedle::from_text(text))
            .collect();
        done = wanted.len();
        for_each_event(reader, |event| {
            let Some(content) = &event.content else { return };
            let summary = summary_of(event);
            let from = summary
                .as_ref()
                .is_some_and(|(of, _)| needles.iter().any(|needle| of.contains(&needle.whole)));
            if !from
                && !needles
                    .iter()
                    .any(|needle| needle.is_in(content.digest, &content.bytes))
            {
                return;
            }
            if !found.iter().any(|(_, known)| *known == content.digest) {
                found.push((event.session, content.digest));
            }
            if let Some((_, text)) =
                summary.filter(|(_, text)| from && !wanted.contains(text) && !text.is_empty())
            {
                wanted.push(text);
            }
        })?;
    }
    Ok((found, wanted))
}

/// Returns whether one of these texts is in the bytes. A short text must be equal to them.
pub(super) fn are_in(texts: &[String], bytes: &[u8]) -> bool {
    let digest = digest_of(bytes);
    texts
        .iter()
        .any(|text| ContentNeedle::from_text(text).is_in(digest, bytes))
}

/// Returns what a conversation summary replaced, and its text.
fn summary_of(event: &RecordedEvent) -> Option<(Vec<Digest>, String)> {
    if event.kind != kind::CONTEXT_COMPACTED {
        return None;
    }
    let said: Value = serde_json::from_slice(&event.content.as_ref()?.bytes).ok()?; // silent-ok: a content of ours always reads
    let of = said.get("replaces")?.as_array()?.iter().filter_map(Value::as_str);
    let text = said.get("text")?.as_str()?.to_owned();
    Some((of.filter_map(Digest::from_hex).collect(), text))
}

fn for_each_event(reader: &StateReader, mut take: impl FnMut(&RecordedEvent)) -> Result<()> {
    let mut scan = JournalScan {
        limit: PAGE,
        with_content: true,
        ..JournalScan::default()
    };
    loop {
        let page = reader.recorded_events(&scan)?;
        let Some(last) = page.last() else { return Ok(()) };
        scan.after_row = last.row;
        page.iter()
            .filter(|event| !NOT.contains(&event.kind.as_str()))
            .for_each(&mut take);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_is_found_however_a_content_holds_it() {
        let needle = ContentNeedle::from_text("say \"yes\" <now>");
        let within = |bytes: &str| needle.is_in(digest_of(bytes.as_bytes()), bytes.as_bytes());
        assert!(within("say \"yes\" <now>"));
        assert!(within(
            &json!({"content": "we say \"yes\" <now> all"}).to_string()
        ));
        assert!(within(
            &json!([{"text": "<entry>say &quot;yes&quot; &lt;now&gt;</entry>"}]).to_string()
        ));
        assert!(within(
            &json!({"raw": json!({"x": "say \"yes\" <now>"}).to_string()}).to_string()
        ));
        assert!(!within("say yes now"));
        // A short text occurs in too many contents.
        let short = ContentNeedle::from_text("tea");
        assert!(short.is_in(digest_of(b"tea"), b"tea") && !short.is_in(digest_of(b"steam"), b"steam"));
    }

    #[test]
    fn every_string_of_an_entry_counts() {
        assert_eq!(content_texts(&json!("one")), ["one"]);
        assert_eq!(content_texts(&json!({"a": ["x", 1]})), [r#"{"a":["x",1]}"#, "x"]);
    }
}
