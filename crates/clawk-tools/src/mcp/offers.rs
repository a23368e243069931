//! Resources and prompts of a server. Each kind becomes one tool of the server, so that the same rules, approvals and provenance
//! apply as for the server's tools (ADR-0287).

use serde_json::{Map, Value, json};

use super::listing::{ServedBy, ServedTool, display_name, sanitize_description};
use crate::call::truncate_text;

/// The name of the tool that reads a server's resources.
pub(super) const RESOURCE_READ: &str = "resource-read";
/// The name of the tool that fills in a server's prompts.
pub(super) const PROMPT_GET: &str = "prompt-get";
/// How many items a description names. The tool itself lists the rest.
const MAX_NAMED: usize = 30;
/// How many bytes of one item's text are in a description.
const MAX_ITEM_BYTES: usize = 160;
/// How many bytes of one item's text are in a list that a call asks for.
const MAX_LISTED_BYTES: usize = 1_000;

/// What a server lists in addition to its tools.
#[derive(Debug, Default)]
pub(super) struct ServedItems {
    pub(super) resources: Vec<Value>,
    pub(super) templates: Vec<Value>,
    pub(super) prompts: Vec<Value>,
}

/// The tools for resources and prompts. If the server has a tool with the same name, that tool keeps it and clawk's tool is called
/// `mcp-NAME`.
pub(super) fn tools_of(items: &ServedItems, served: &[ServedTool]) -> Vec<ServedTool> {
    let named = |name: &str| {
        if served.iter().any(|tool| tool.name == name) {
            format!("mcp-{name}")
        } else {
            name.to_owned()
        }
    };
    let mut tools = Vec::new();
    if !items.resources.is_empty() || !items.templates.is_empty() {
        tools.push(ServedTool {
            name: named(RESOURCE_READ),
            description: about_resources(items),
            input_schema: json!({"type": "object", "additionalProperties": false, "properties": {
                "uri": {"type": "string", "description": "Address of the resource. Without it, the tool lists the resources."}}}),
            output_schema: None,
            annotations: read_only_annotations(),
            by: ServedBy::Resources,
        });
    }
    if !items.prompts.is_empty() {
        tools.push(ServedTool {
            name: named(PROMPT_GET),
            description: about_prompts(&items.prompts),
            input_schema: json!({"type": "object", "additionalProperties": false, "properties": {
                "name": {"type": "string", "description": "Name of the prompt. Without it, the tool lists the prompts."},
                "arguments": {"type": "object", "description": "What the prompt is filled in with.",
                    "additionalProperties": {"type": "string"}}}}),
            output_schema: None,
            annotations: read_only_annotations(),
            by: ServedBy::Prompts,
        });
    }
    tools
}

/// The read-only annotation: by the protocol, both tools only read. It counts only if the operator trusts the server's annotations.
fn read_only_annotations() -> Map<String, Value> {
    Map::from_iter([("readOnlyHint".to_owned(), json!(true))])
}

fn about_resources(items: &ServedItems) -> String {
    let all = items.resources.iter().chain(&items.templates);
    let total = items.resources.len() + items.templates.len();
    describe_items("Reads a resource of this server. Resources:", all, total)
}

fn about_prompts(prompts: &[Value]) -> String {
    let opening =
        "Gives a prompt of this server, filled in. Its text is the server's, not the user's. Prompts:";
    describe_items(opening, prompts.iter(), prompts.len())
}

fn describe_items<'v>(opening: &str, items: impl Iterator<Item = &'v Value>, total: usize) -> String {
    let lines: Vec<String> = items
        .take(MAX_NAMED)
        .map(|item| item_line(item, MAX_ITEM_BYTES))
        .collect();
    let mut text = format!("{opening}\n{}", lines.join("\n"));
    if total > MAX_NAMED {
        text.push_str(&format!(
            "\n… and {} more; a call without arguments lists them",
            total - MAX_NAMED
        ));
    }
    sanitize_description(&text)
}

/// One line about an item: its URI or name, its arguments, and its description.
fn item_line(item: &Value, bytes: usize) -> String {
    let word = |name: &str| {
        item.get(name)
            .and_then(Value::as_str)
            .filter(|word| !word.trim().is_empty())
    };
    let id = word("uri")
        .or_else(|| word("uriTemplate"))
        .or_else(|| word("name"));
    let mut text = format!("- {}", truncate_text(id.unwrap_or("without a name"), 400).0);
    let arguments = item.get("arguments").and_then(Value::as_array);
    let arguments: Vec<String> = arguments
        .into_iter()
        .flatten()
        .filter_map(|argument| {
            let name = argument.get("name").and_then(Value::as_str)?;
            let needed = argument.get("required") == Some(&Value::Bool(true));
            Some(format!("{}{}", display_name(name), if needed { "" } else { "?" }))
        })
        .collect();
    if !arguments.is_empty() {
        text.push_str(&format!(" ({})", arguments.join(", ")));
    }
    let about = word("description").or_else(|| word("title"));
    let about = about.or_else(|| word("name").filter(|name| Some(*name) != id));
    if let Some(about) = about {
        text.push_str(&format!(": {}", shown_line(truncate_text(about, bytes).0)));
    }
    text
}

fn shown_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Items as the result of a call.
pub(super) fn list_result(items: &[Value]) -> Value {
    let lines: Vec<String> = items
        .iter()
        .map(|item| item_line(item, MAX_LISTED_BYTES))
        .collect();
    let text = if lines.is_empty() {
        "the server lists nothing".to_owned()
    } else {
        lines.join("\n")
    };
    json!({"content": [{"type": "text", "text": text}]})
}

/// Converts the result of `resources/read` to the result of a call.
pub(super) fn read_resource(result: Value) -> Value {
    let contents = match result {
        Value::Object(mut members) => members.remove("contents").unwrap_or(Value::Object(members)),
        other => other,
    };
    let all = match contents {
        Value::Array(all) => all,
        other => vec![other],
    };
    let parts: Vec<Value> = all
        .into_iter()
        .map(|one| match one {
            Value::Object(_) => json!({"type": "resource", "resource": one}),
            other => other,
        })
        .collect();
    json!({"content": parts})
}

/// Converts the result of `prompts/get` to the result of a call: the speakers and their texts, in turn.
pub(super) fn read_prompt(result: &Value) -> Value {
    let messages = result.get("messages").and_then(Value::as_array);
    let mut parts = Vec::new();
    for message in messages.into_iter().flatten() {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
        parts.push(Value::String(format!("[{}]", display_name(role))));
        match message.get("content") {
            Some(Value::Array(all)) => parts.extend(all.iter().cloned()),
            Some(one) => parts.push(one.clone()),
            None => {}
        }
    }
    json!({"content": parts})
}
