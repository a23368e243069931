//! The judgement of an answer's claims: which of its sentences the record of the turn does not support, and the answer with marks there.

use serde::Serialize;
use serde_json::{Value, json};

use crate::answer_sentence;

/// The mark behind a sentence that the record does not support.
pub const MARK: &str = "(⚠ not in the record of this turn)";

/// The judgement of one answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimsJudgement {
    /// The provider that judged.
    pub by: String,
    /// How many sentences the answer has.
    pub sentences: usize,
    /// The positions of the marks: byte offsets in the answer, ascending.
    pub marks: Vec<usize>,
    /// Why the answer was not judged; `None` if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl ClaimsJudgement {
    /// The judgement in words for the record line; `None` if no sentence is marked.
    pub fn record_line(&self) -> Option<String> {
        if let Some(why) = &self.failed {
            return Some(format!("nothing was judged: {why}."));
        }
        match self.marks.len() {
            0 => None,
            1 => Some("1 sentence is marked: this record does not support it.".to_owned()),
            count => Some(format!(
                "{count} sentences are marked: this record does not support them."
            )),
        }
    }

    /// As programs read it.
    pub fn to_json(&self) -> Value {
        json!({"by": self.by, "sentences": self.sentences, "unsupported": self.marks.len(), "failed": self.failed})
    }

    /// The answer with its marks. A JSON value is for a program and is not changed; the record still lists what was found.
    pub fn mark_answer(&self, answer: &str) -> String {
        if self.marks.is_empty() || is_json(answer) {
            return answer.to_owned();
        }
        let mut text = String::with_capacity(answer.len());
        let mut from = 0;
        for at in &self.marks {
            // Offsets of this very text; another one is not marked at a place that it does not have.
            let Some(part) = answer.get(from..*at) else { break };
            text.push_str(part);
            text.push_str(answer_sentence::before_mark(answer, *at));
            text.push_str(MARK);
            from = *at;
        }
        text.push_str(answer.get(from..).unwrap_or_default());
        text
    }
}

fn is_json(answer: &str) -> bool {
    let text = answer.trim();
    (text.starts_with('{') || text.starts_with('['))
        && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests;
