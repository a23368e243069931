//! Answers, and the reasons why an answer is missing.

use clawk_proto::ErrorCode;
use clawk_proto::method::TaskStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The longest result that a report may hold, bytes.
pub const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The result of a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskAnswer {
    /// The text.
    pub text: String,
    /// The JSON object in the text: the whole text, or its only fenced block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl TaskAnswer {
    /// The answer in a text.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self {
            data: parse_object(text).or_else(|| parse_object(fenced_block(text)?)),
            text: text.to_owned(),
        }
    }

    /// The answer in a report's `result`: a text, an object with `text`, or any other JSON, which becomes the data.
    #[must_use]
    pub fn from_report(result: &Value) -> Self {
        match result {
            Value::String(text) => Self::from_text(text),
            Value::Object(object) => match object.get("text").and_then(Value::as_str) {
                Some(text) => Self {
                    text: text.to_owned(),
                    data: object
                        .get("data")
                        .filter(|data| data.is_object())
                        .cloned()
                        .or_else(|| Self::from_text(text).data),
                },
                None => Self::from_data(result.clone()),
            },
            other => Self {
                text: canonical_json(other),
                data: None,
            },
        }
    }

    /// The answer in an object.
    #[must_use]
    pub fn from_data(data: Value) -> Self {
        Self {
            text: canonical_json(&data),
            data: Some(data),
        }
    }
}

/// Canonical JSON (JCS); plain JSON if a number has no canonical text.
pub(crate) fn canonical_json(value: &Value) -> String {
    clawk_trace::canonical::text_of(value).unwrap_or_else(|_| value.to_string()) // silent-ok: still the same value
}

fn parse_object(text: &str) -> Option<Value> {
    let parsed: Map<String, Value> = serde_json::from_str(text.trim()).ok()?; // silent-ok: prose is an ordinary answer
    Some(Value::Object(parsed))
}

/// The content of the only fenced block in a text; `None` if there are several.
pub(crate) fn fenced_block(text: &str) -> Option<&str> {
    let (_before, rest) = text.split_once("```")?;
    let (_language, rest) = rest.split_once('\n')?;
    let (block, after) = rest.split_once("```")?;
    (!after.contains("```")).then_some(block)
}

/// Why a task or run has no complete answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwarmFault {
    /// The error code on the wire: -32040 (not reached), -32041 (failed) or -32021 (a limit of the swarm).
    pub code: i64,
    /// A stable identifier, such as `timeout`, `no_majority`, `dead_lettered`.
    pub reason: String,
    /// The message, for people.
    pub message: String,
}

impl SwarmFault {
    /// The task failed (-32041).
    #[must_use]
    pub fn task_failed(reason: &str, message: impl Into<String>) -> Self {
        Self::with_code(ErrorCode::PeerFailed, reason, message)
    }

    /// No member was reached (-32040).
    #[must_use]
    pub fn member_unreached(reason: &str, message: impl Into<String>) -> Self {
        Self::with_code(ErrorCode::PeerUnreachable, reason, message)
    }

    /// A limit of the swarm is used up (-32021).
    #[must_use]
    pub fn limit_spent(reason: &str, message: impl Into<String>) -> Self {
        Self::with_code(ErrorCode::QuotaExceeded, reason, message)
    }

    fn with_code(code: ErrorCode, reason: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.code(),
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// A member's answer, as input of an aggregation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberAnswer {
    /// The member's name.
    pub member: String,
    /// How its task ended.
    pub status: TaskStatus,
    /// The answer.
    pub answer: TaskAnswer,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::TaskAnswer;

    #[test]
    fn data_is_a_whole_object_or_one_fenced_one() {
        assert_eq!(TaskAnswer::from_text(r#" {"a": 1} "#).data, Some(json!({"a": 1})));
        let fenced = "Here:\n```json\n{\"a\": 2}\n```\nDone.";
        assert_eq!(TaskAnswer::from_text(fenced).data, Some(json!({"a": 2})));
        for none in [
            "prose",
            "[1]",
            "```\n{}\n```\n```\n{}\n```",
            "```json\n[1]\n```",
            "1",
        ] {
            assert_eq!(TaskAnswer::from_text(none).data, None, "{none}");
        }
    }

    #[test]
    fn a_report_is_a_text_or_an_object() {
        assert_eq!(TaskAnswer::from_report(&json!("x")).text, "x");
        let both = TaskAnswer::from_report(&json!({"text": "x", "data": {"v": 1}}));
        assert_eq!((both.text.as_str(), both.data), ("x", Some(json!({"v": 1}))));
        let data = TaskAnswer::from_report(&json!({"b": 1, "a": 2}));
        assert_eq!(data.text, r#"{"a":2,"b":1}"#);
        assert_eq!(TaskAnswer::from_report(&json!([1])).data, None);
    }
}
