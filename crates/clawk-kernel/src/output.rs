//! The part of a tool's result that a model reads: all of it, or its beginning and end; and `output-read`, which reads the rest.
//!
//! The complete result is stored in the journal once. The same text is produced live, in replay and in recovery.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_manifest::model::Tool;
use clawk_plan::ObtainedEnforcement;
use clawk_proto::content::ContentBlock;
use clawk_proto::method::ToolCallResult;
use clawk_proto::{Digest, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::event::{JournalWriter, canonical, digest};
use crate::pictures::ResultPictures;
use crate::ports::{RunError, RunOutcome};

/// Name of the built-in that reads the omitted part of a shortened result.
pub(crate) const NAME: &str = "output-read";
/// Largest number of results per session that can be read again. Older ones can't.
const MAX_CUTS: usize = 512;
/// Size of the notes around the pieces of a shortened text, in bytes.
const NOTES_BYTES: usize = 640;
/// Smallest result that can be read again if a request omits it, in bytes.
const READABLE_BYTES: usize = 256;
/// Longest reason for a failure, in bytes.
const MAX_REASON_BYTES: usize = 300;

/// The part of one result that a model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResultExcerpt {
    /// The beginning and the end, this many bytes in total.
    Ends(usize),
    /// Only the beginning, this many bytes. Used before `output-read` existed.
    Head(usize),
}

impl Default for ResultExcerpt {
    fn default() -> Self {
        Self::Ends(24 << 10)
    }
}

impl ResultExcerpt {
    /// Smallest value of [`ResultExcerpt::Ends`], in bytes.
    pub const MIN_BYTES: usize = 4 << 10;

    /// Returns the setting for records that have none.
    pub(crate) const fn legacy_default() -> Self {
        Self::Head(128 << 10)
    }

    /// Returns the setting limited to a quarter of a window of this many tokens, at four bytes each.
    pub(crate) fn limited_to_window(self, window_tokens: usize) -> Self {
        let most = window_tokens.max(NOTES_BYTES * 2);
        match self {
            Self::Ends(bytes) => Self::Ends(bytes.min(most)),
            Self::Head(bytes) => Self::Head(bytes.min(most)),
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Self::Ends(bytes) | Self::Head(bytes) => bytes,
        }
    }
}

/// The end of a call in the form that the model reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelToolResult {
    pub(crate) text: String,
    pub(crate) is_error: bool,
    /// Digest of the result, if its text was shortened.
    pub(crate) cut: Option<Digest>,
    /// Its images.
    pub(crate) pictures: Option<ResultPictures>,
    /// Digest of the complete result, if it is long enough to be omitted from a request and read again.
    pub(crate) whole: Option<Digest>,
}

impl ModelToolResult {
    /// Makes the end of a call without a result.
    pub(crate) const fn from_refusal(text: String) -> Self {
        Self {
            text,
            is_error: true,
            cut: None,
            pictures: None,
            whole: None,
        }
    }
}

/// Returns the complete text of a result.
fn full_text(result: &ToolCallResult) -> String {
    let texts = result.content.iter().map(ContentBlock::as_model_text);
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns a result in the form that the model reads.
pub(crate) fn excerpt_result(result: &ToolCallResult, shown: ResultExcerpt) -> ModelToolResult {
    let text = full_text(result);
    let digest = (text.len() >= READABLE_BYTES).then(|| digest(&canonical(result)));
    let (text, cut) = match (shown, digest) {
        _ if text.len() <= shown.bytes() => (text, None),
        (ResultExcerpt::Head(bytes), _) => (head_excerpt(&text, bytes), None),
        (ResultExcerpt::Ends(bytes), Some(digest)) => {
            (head_tail_excerpt(&text, bytes, result, digest), Some(digest))
        }
        (ResultExcerpt::Ends(_), None) => (text, None),
    };
    ModelToolResult {
        pictures: ResultPictures::from_result(result, &text),
        text,
        is_error: result.is_error,
        cut,
        whole: digest,
    }
}

fn head_excerpt(text: &str, bytes: usize) -> String {
    let (kept, total) = (prefix_within(text, bytes), text.len());
    format!("{kept}\n[cut: {} of {total} bytes shown]", kept.len())
}

/// Returns the reason of a failure, then how to read the rest, then the beginning and the end.
fn head_tail_excerpt(text: &str, bytes: usize, result: &ToolCallResult, digest: Digest) -> String {
    let half = bytes.saturating_sub(NOTES_BYTES) / 2;
    let (first, last, total) = (prefix_within(text, half), suffix_within(text, half), text.len());
    let reason = failure_reason(result)
        .map(|reason| format!("[it failed: {reason}]\n"))
        .unwrap_or_default();
    let left_out = total - first.len() - last.len();
    format!(
        "{reason}[cut: the output has {total} bytes; its first {} and its last {} are shown. Read the rest with {NAME} \
         {{\"digest\": \"{digest}\", \"offset\": {}}}]\n{first}\n[… {left_out} bytes are left out here …]\n{last}",
        first.len(),
        last.len(),
        first.len(),
    )
}

/// Returns why a tool failed, from the structured part of its result (R20a).
fn failure_reason(result: &ToolCallResult) -> Option<String> {
    if !result.is_error {
        return None;
    }
    let fact = |name: &str| {
        result
            .structured_content
            .as_ref()
            .and_then(|facts| facts.get(name))
    };
    let limit = fact("limit").and_then(Value::as_str).map(str::to_owned);
    let signal = fact("signal")
        .and_then(Value::as_i64)
        .map(|signal| format!("ended by signal {signal}"));
    let code = fact("exit_code")
        .and_then(Value::as_i64)
        .filter(|code| *code != 0)
        .map(|code| format!("exit code {code}"));
    let why: Vec<String> = [code, signal, limit].into_iter().flatten().collect();
    if why.is_empty() {
        return Some("the tool says so; the reason may stand at the end".to_owned());
    }
    Some(prefix_within(&why.join(", "), MAX_REASON_BYTES).to_owned())
}

fn prefix_within(text: &str, bytes: usize) -> &str {
    let end = text.floor_char_boundary(bytes.min(text.len()));
    text.get(..end).unwrap_or_default()
}

fn suffix_within(text: &str, bytes: usize) -> &str {
    let start = text.ceil_char_boundary(text.len().saturating_sub(bytes));
    text.get(start..).unwrap_or_default()
}

/// Shortened results by session: which may be read, and whether reading is offered.
#[derive(Debug, Default)]
pub(crate) struct TruncatedOutputs {
    cut: Mutex<HashMap<SessionId, VecDeque<Digest>>>,
    /// Complete results by call id, newest last.
    whole: Mutex<HashMap<SessionId, VecDeque<(String, Digest)>>>,
}

impl TruncatedOutputs {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, VecDeque<Digest>>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the complete result of a call, which a later request may omit.
    pub(crate) fn note_whole(&self, session: SessionId, call_id: &str, whole: Option<Digest>) {
        let Some(digest) = whole else { return };
        let mut all = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(session).or_default();
        if known.len() >= MAX_CUTS {
            known.pop_front();
        }
        known.push_back((call_id.to_owned(), digest));
    }

    /// Returns the complete result of the latest call with this id.
    pub(crate) fn whole_of(&self, session: SessionId, call_id: &str) -> Option<Digest> {
        let all = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(&session)?.iter().rev();
        known
            .clone()
            .find(|(id, _)| id == call_id)
            .map(|(_, digest)| *digest)
    }

    /// Records shortened results. The same one counts once.
    pub(crate) fn add(&self, session: SessionId, cut: impl IntoIterator<Item = Digest>) {
        for digest in cut {
            let mut all = self.lock();
            let known = all.entry(session).or_default();
            if known.contains(&digest) {
                continue;
            }
            if known.len() >= MAX_CUTS {
                known.pop_front();
            }
            known.push_back(digest);
        }
    }

    /// Returns whether a result was shortened in this session.
    pub(crate) fn has_cuts(&self, session: SessionId) -> bool {
        self.lock().contains_key(&session)
    }

    fn contains(&self, session: SessionId, digest: Digest) -> bool {
        self.lock()
            .get(&session)
            .is_some_and(|known| known.contains(&digest))
    }

    pub(crate) fn forget_session(&self, session: SessionId) {
        self.lock().remove(&session);
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        whole.remove(&session);
    }
}

/// Returns the tool for the catalogue.
pub(crate) fn tool_declaration() -> Tool {
    let hints = json!({"readOnlyHint": true, "idempotentHint": true, "destructiveHint": false, "openWorldHint": false});
    let schema = json!({
        "type": "object",
        "properties": {
            "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "The digest that stands where the output was cut."},
            "offset": {"type": "integer", "minimum": 0, "description": "The first byte to read; 0 by default."},
            "limit": {"type": "integer", "minimum": 1, "description": "Bytes to read at most."},
        },
        "required": ["digest"],
        "additionalProperties": false,
    });
    let about =
        "Reads what was left out of a tool's output that was cut in this conversation. Changes nothing.";
    Tool {
        name: NAME.to_owned(),
        version: None,
        labels: Default::default(),
        description: Some(about.to_owned()),
        input_schema: Some(schema),
        output_schema: None,
        sandbox_ref: None,
        policy_ref: None,
        mcp_source: None,
        annotations: hints.as_object().cloned().unwrap_or_default(),
        composite: false,
        skill_ref: None,
        timeout_ms: None,
        retry: None,
    }
}

/// Runs `output-read`: returns a piece of a shortened result of this session.
pub(crate) async fn read(
    scribe: &JournalWriter,
    (cuts, shown): (&TruncatedOutputs, ResultExcerpt),
    session: SessionId,
    arguments: &Map<String, Value>,
) -> Result<RunOutcome, RunError> {
    #[derive(Deserialize)]
    struct Args {
        digest: Digest,
        #[serde(default)]
        offset: usize,
        #[serde(default)]
        limit: Option<usize>,
    }
    let Args {
        digest,
        offset,
        limit,
    } = match serde_json::from_value(Value::Object(arguments.clone())) {
        Ok(args) => args,
        Err(error) => return Ok(text_outcome(format!("bad arguments: {error}"), true)),
    };
    if !cuts.contains(session, digest) {
        let text = "no output with this digest was cut in this session; take the digest from where the output was cut";
        return Ok(text_outcome(text.to_owned(), true));
    }
    let kept = scribe.journal().read_content(digest).await;
    let kept = kept.map_err(|error| RunError::Unavailable(error.to_string()))?;
    let result = kept.and_then(|bytes| serde_json::from_slice::<ToolCallResult>(&bytes).ok()); // silent-ok: erased content is an ordinary state
    let Some(result) = result else {
        return Ok(text_outcome("this output has been erased".to_owned(), true));
    };
    let text = full_text(&result);
    // A piece is never shortened itself.
    let most = shown.bytes().saturating_sub(NOTES_BYTES);
    let start = text.floor_char_boundary(offset.min(text.len()));
    let rest = text.get(start..).unwrap_or_default();
    let piece = prefix_within(rest, limit.unwrap_or(most).clamp(4, most));
    let (end, total) = (start + piece.len(), text.len());
    let on = if end < total {
        format!("; read on with \"offset\": {end}")
    } else {
        String::new()
    };
    Ok(text_outcome(
        format!("[bytes {start} to {end} of {total}{on}]\n{piece}"),
        false,
    ))
}

fn text_outcome(text: String, is_error: bool) -> RunOutcome {
    RunOutcome {
        content: vec![ContentBlock::text(text)],
        is_error,
        structured: None,
        obtained: ObtainedEnforcement::in_process("no-host-access"),
    }
}

#[cfg(test)]
mod tests;
