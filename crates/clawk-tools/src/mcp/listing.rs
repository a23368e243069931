//! Parses a server's lists item by item from raw JSON. An unusable item is skipped; the others remain.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use clawk_kernel::sheet::visible_text;

use crate::call::truncate_text;

/// The maximum number of pages of one list.
pub(super) const MAX_PAGES: usize = 100;
/// The maximum number of items of one list.
pub(super) const MAX_ITEMS: usize = 2_000;
/// The maximum size of one list, in bytes.
pub(super) const MAX_LIST_BYTES: usize = 8 << 20;
/// The maximum length of an item's name, in bytes. The name is sent back to the server unchanged.
const MAX_NAME_BYTES: usize = 1_024;
/// The maximum length of a description, in bytes.
pub(super) const MAX_DESCRIPTION_BYTES: usize = 4 << 10;
/// The maximum size of a schema, in bytes.
pub(super) const MAX_SCHEMA_BYTES: usize = 64 << 10;

/// A tool as its server describes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ServedTool {
    pub(super) name: String,
    /// The description: at most [`MAX_DESCRIPTION_BYTES`], with hidden characters made visible.
    pub(super) description: String,
    /// The schema as received, up to [`MAX_SCHEMA_BYTES`]; `null` if it is larger.
    pub(super) input_schema: Value,
    pub(super) output_schema: Option<Value>,
    pub(super) annotations: Map<String, Value>,
    pub(super) by: ServedBy,
}

/// The request that serves a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServedBy {
    /// `tools/call`: a normal tool of the server.
    Call,
    /// `resources/read` and the lists of resources.
    Resources,
    /// `prompts/get` and the list of prompts.
    Prompts,
}

/// One page of a list.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Page {
    pub(super) items: Vec<Value>,
    /// The cursor of the next page; `None`: this is the last page.
    pub(super) next: Option<String>,
}

impl Page {
    /// Parses a page. `member` contains the items: an array, or an object whose values are the items.
    pub(super) fn read(result: Value, member: &str) -> Self {
        let mut members = match result {
            Value::Object(members) => members,
            // A server without paging may answer with the list itself.
            Value::Array(items) => return Self { items, next: None },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return Self::default(),
        };
        let items = match members.remove(member) {
            Some(Value::Array(items)) => items,
            Some(Value::Object(named)) => named
                .into_iter()
                .map(|(name, item)| with_name(name, item))
                .collect(),
            Some(_) | None => Vec::new(),
        };
        let next = match members.remove("nextCursor") {
            Some(Value::String(next)) if !next.is_empty() => Some(next),
            Some(Value::Number(next)) => Some(next.to_string()),
            Some(_) | None => None,
        };
        Self { items, next }
    }
}

fn with_name(name: String, item: Value) -> Value {
    match item {
        Value::Object(mut members) => {
            members.entry("name").or_insert(Value::String(name));
            Value::Object(members)
        }
        other => other,
    }
}

/// The tools of a list, and notes about tools that were skipped or repaired.
pub(super) fn read_tools(items: Vec<Value>) -> (Vec<ServedTool>, Vec<String>) {
    let (mut tools, mut notes) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for (at, item) in items.into_iter().enumerate() {
        match read_tool(item, &mut notes) {
            Ok(tool) if seen.insert(tool.name.clone()) => tools.push(tool),
            Ok(tool) => notes.push(format!(
                "`{}` is listed twice; the first one counts",
                display_name(&tool.name)
            )),
            Err(why) => notes.push(format!("entry {at} is left out: {why}")),
        }
    }
    (tools, notes)
}

fn read_tool(item: Value, notes: &mut Vec<String>) -> Result<ServedTool, &'static str> {
    let Value::Object(mut members) = item else {
        return Err("it is not an object");
    };
    let name = match members.remove("name") {
        Some(Value::String(name)) => name,
        Some(Value::Number(number)) => number.to_string(),
        Some(_) | None => return Err("it has no name"),
    };
    if name.trim().is_empty() {
        return Err("its name is empty");
    }
    if name.len() > MAX_NAME_BYTES {
        return Err("its name is too long");
    }
    let mut bounded = |what: &str, mut schema: Value| {
        if schema.to_string().len() <= MAX_SCHEMA_BYTES {
            visible_schema(&mut schema);
            return schema;
        }
        notes.push(format!(
            "the {what} of `{}` has more than {MAX_SCHEMA_BYTES} bytes: it is not shown, and nothing is checked by it",
            display_name(&name)
        ));
        Value::Null
    };
    let schema = ["inputSchema", "input_schema", "parameters"];
    let schema = schema.iter().find_map(|known| members.remove(*known));
    let input_schema = bounded("input schema", schema.unwrap_or_default());
    let output_schema = members.remove("outputSchema").filter(Value::is_object);
    let output_schema = output_schema
        .map(|schema| bounded("output schema", schema))
        .filter(Value::is_object);
    let annotations = match members.remove("annotations") {
        Some(Value::Object(given)) => given
            .into_iter()
            .filter(|(name, hint)| is_hint(name, hint))
            .collect(),
        Some(_) | None => Map::new(),
    };
    let described = ["description", "title"]
        .iter()
        .find_map(|known| text_of(members.get(*known)));
    Ok(ServedTool {
        description: described
            .map(|text| sanitize_description(&text))
            .unwrap_or_default(),
        name,
        input_schema,
        output_schema,
        annotations,
        by: ServedBy::Call,
    })
}

/// Whether a hint has the type that the protocol requires. Other hints are dropped.
fn is_hint(name: &str, hint: &Value) -> bool {
    match name {
        "title" => hint.is_string(),
        "readOnlyHint" | "destructiveHint" | "idempotentHint" | "openWorldHint" => hint.is_boolean(),
        _ => false,
    }
}

fn text_of(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) if text.trim().is_empty() => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => {
            let lines: Vec<&str> = lines.iter().filter_map(Value::as_str).collect();
            (!lines.is_empty()).then(|| lines.join("\n"))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// A server's description text: at most [`MAX_DESCRIPTION_BYTES`], with invisible characters made visible in each line.
pub(super) fn sanitize_description(text: &str) -> String {
    let (text, was_cut) = truncate_text(text.trim(), MAX_DESCRIPTION_BYTES);
    let lines: Vec<String> = text.lines().map(|line| visible_line(line.trim_end())).collect();
    let all = lines.join("\n");
    let (all, grew) = truncate_text(&all, MAX_DESCRIPTION_BYTES);
    if was_cut || grew {
        format!("{all} [cut at {MAX_DESCRIPTION_BYTES} bytes]")
    } else {
        all.to_owned()
    }
}

/// Makes invisible characters of a line visible. Indentation stays, and so do the variation selector and the joiner inside an
/// emoji.
fn visible_line(line: &str) -> String {
    let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
    let (indent, words) = line.split_at_checked(indent).unwrap_or(("", line));
    let mut out = indent.get(..indent.len().min(16)).unwrap_or_default().to_owned();
    let (mut from, mut before) = (0, None);
    for (at, c) in words.char_indices() {
        let behind = words
            .get(at + c.len_utf8()..)
            .and_then(|rest| rest.chars().next());
        let of_emoji = match c {
            '\u{fe0f}' => before.is_some_and(is_picture),
            '\u{200d}' => {
                before.is_some_and(|c| is_picture(c) || c == '\u{fe0f}') && behind.is_some_and(is_picture)
            }
            _ => false,
        };
        if of_emoji {
            out.push_str(&visible_text(words.get(from..at).unwrap_or_default()));
            out.push(c);
            from = at + c.len_utf8();
        }
        // A selector that was made visible does not start an emoji.
        before = (of_emoji || is_picture(c)).then_some(c);
    }
    out.push_str(&visible_text(words.get(from..).unwrap_or_default()));
    out
}

/// Whether this character can be part of an emoji.
const fn is_picture(c: char) -> bool {
    matches!(c, '\u{203c}' | '\u{2049}' | '\u{2122}' | '\u{2139}' | '\u{2190}'..='\u{27bf}' | '\u{2934}'..='\u{2b55}'
        | '\u{1f000}'..='\u{1faff}')
}

/// Makes invisible characters in the texts of a schema visible. Member names stay unchanged.
fn visible_schema(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (name, value) in members.iter_mut() {
                match value {
                    Value::String(text) if name == "description" || name == "title" => {
                        *text = sanitize_description(text)
                    }
                    other => visible_schema(other),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(visible_schema),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A name for a message.
pub(super) fn display_name(name: &str) -> String {
    visible_text(truncate_text(name, 80).0)
}
