//! Executors that `clawk.toml` binds: a program, an HTTP endpoint, another agent.

mod a2a;
mod command;
mod http;

pub(crate) use a2a::A2aEndpoint;
pub use a2a::{A2aAgent, A2aEnd, A2aStep};
pub(crate) use command::Command;
pub(crate) use http::{Endpoint, run_error};

use clawk_kernel::ports::RunOutcome;
use clawk_plan::ObtainedEnforcement;
use clawk_proto::content::ContentBlock;
use serde_json::{Map, Value};

/// Parses an executor's output. JSON with `content` is used as it is; everything else is text. `facts` are added to its
/// `structuredContent`, and override members with the same name.
pub(crate) fn parse_reply(
    body: &str,
    facts: Map<String, Value>,
    obtained: ObtainedEnforcement,
) -> RunOutcome {
    let given = serde_json::from_str::<Value>(body)
        .ok()
        .and_then(|value| match value {
            Value::Object(map) if map.get("content").is_some_and(Value::is_array) => Some(map),
            _ => None,
        });
    let Some(mut given) = given else {
        let structured = Some(Value::Object(facts));
        return RunOutcome {
            content: vec![ContentBlock::text(body)],
            is_error: false,
            structured,
            obtained,
        };
    };
    let is_error = given.get("isError").and_then(Value::as_bool).unwrap_or(false);
    let mut structured = match given.remove("structuredContent") {
        Some(Value::Object(map)) => map,
        Some(other) => Map::from_iter([("value".to_owned(), other)]),
        None => Map::new(),
    };
    structured.extend(facts);
    let blocks = given.remove("content").and_then(|content| match content {
        Value::Array(blocks) => Some(blocks),
        _ => None,
    });
    let content = blocks
        .unwrap_or_default()
        .into_iter()
        .map(content_block)
        .collect();
    RunOutcome {
        content,
        is_error,
        structured: Some(Value::Object(structured)),
        obtained,
    }
}

/// A content block. A block of an unknown type becomes JSON text.
pub(crate) fn content_block(value: Value) -> ContentBlock {
    serde_json::from_value(value.clone()).unwrap_or_else(|_unknown| ContentBlock::text(value.to_string()))
}

#[cfg(test)]
mod tests;
