//! From an MCP result to ours.

use clawk_kernel::ports::RunOutcome;
use clawk_plan::Obtained;
use clawk_proto::content::ContentBlock;
use rmcp::model::CallToolResult;
use serde_json::{Value, json};

use crate::call::cut;

/// Maps the content; what is above `limit` bytes is cut, and the cut makes it an error (R36).
pub(super) fn outcome(result: CallToolResult, limit: u64, obtained: Obtained) -> RunOutcome {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut left = limit;
    let mut truncated = false;
    let mut content = Vec::new();
    for given in result.content {
        let Ok(value) = serde_json::to_value(&given) else {
            continue;
        };
        let mapped = block(value);
        let size = weight(&mapped);
        if size <= left {
            left -= size;
            content.push(mapped);
            continue;
        }
        truncated = true;
        if let ContentBlock::Text { text } = &mapped {
            content.push(ContentBlock::text(cut(text, left).0));
        }
        break;
    }
    let mut structured = result.structured_content;
    if structured
        .as_ref()
        .is_some_and(|value| value.to_string().len() > limit)
    {
        truncated = true;
        structured = Some(json!({"truncated": true}));
    }
    if truncated {
        content.push(ContentBlock::text(format!(
            "[output cut at {limit} bytes (`max_output_bytes`)]"
        )));
    }
    // A server that answers by structure alone still gives the model something to read.
    if content.is_empty()
        && let Some(value) = &structured
    {
        content.push(ContentBlock::text(value.to_string()));
    }
    let is_error = result.is_error.unwrap_or(false) || truncated;
    RunOutcome {
        content,
        is_error,
        structured,
        obtained,
    }
}

fn block(value: Value) -> ContentBlock {
    let text = |name: &str| {
        value
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    match value.get("type").and_then(Value::as_str) {
        Some("text") => ContentBlock::text(text("text")),
        Some("image") => ContentBlock::Image {
            data: text("data"),
            mime_type: text("mimeType"),
        },
        Some("resource") => ContentBlock::Resource {
            resource: value.get("resource").cloned().unwrap_or_default(),
        },
        Some("resource_link") => {
            let mut resource = value.clone();
            if let Value::Object(map) = &mut resource {
                map.remove("type");
            }
            ContentBlock::Resource { resource }
        }
        Some("audio") => ContentBlock::text(format!(
            "[audio {}, {} bytes as base64]",
            text("mimeType"),
            text("data").len()
        )),
        Some(_) | None => ContentBlock::text(value.to_string()),
    }
}

fn weight(block: &ContentBlock) -> usize {
    match block {
        ContentBlock::Text { text } => text.len(),
        ContentBlock::Image { data, .. } => data.len(),
        ContentBlock::Resource { resource } => resource.to_string().len(),
    }
}
