//! What the model and the approver are told about each built-in.

use clawk_kernel::ports::Description;
use serde_json::{Map, Value, json};

use super::Builtin;
use crate::call::cut;

/// Longest line and most lines of a preview.
const PREVIEW_LINE_BYTES: usize = 400;
const PREVIEW_LINES: usize = 40;

/// What a tool does to the world, as MCP's four hints.
struct Effects {
    read_only: bool,
    destructive: bool,
    idempotent: bool,
    open_world: bool,
}

const READS: Effects = Effects {
    read_only: true,
    destructive: false,
    idempotent: true,
    open_world: false,
};

pub(super) fn description(builtin: Builtin) -> Description {
    let (description, category, effects, properties, required) = match builtin {
        Builtin::Echo => (
            "Returns the text it is given.",
            "utility",
            READS,
            json!({"text": {"type": "string", "description": "The text to return"}}),
            json!(["text"]),
        ),
        Builtin::Sleep => (
            "Waits for a number of seconds.",
            "utility",
            READS,
            json!({"seconds": {"type": "number", "minimum": 0, "maximum": 3600}}),
            json!(["seconds"]),
        ),
        Builtin::AskUser => (
            "Asks the person you work for a question and returns the answer.",
            "utility",
            Effects {
                idempotent: false,
                ..READS
            },
            json!({"question": {"type": "string"},
                   "options": {"type": "array", "items": {"type": "string"}, "maxItems": 20, "description": "Answers to choose from"}}),
            json!(["question"]),
        ),
        Builtin::Shell => shell(),
        Builtin::FileRead
        | Builtin::FileWrite
        | Builtin::FileEdit
        | Builtin::FileList
        | Builtin::FileSearch => file(builtin),
        Builtin::WebFetch | Builtin::HttpRequest => web(builtin),
    };
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    if builtin != Builtin::Echo
        && let Value::Object(map) = &mut schema
    {
        map.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    Description {
        description: description.to_owned(),
        input_schema: schema,
        trusted_annotations: hints(&effects),
        category: Some(category),
    }
}

type Row = (&'static str, &'static str, Effects, Value, Value);

fn shell() -> Row {
    (
        "Runs a command line with /bin/sh and returns its output. Every process that it starts ends with it.",
        "shell",
        Effects {
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: true,
        },
        json!({"command": {"type": "string", "description": "The command line"},
               "workdir": {"type": "string", "description": "Folder to run in; the agent's own by default"},
               "env": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Further variables"},
               "stdin": {"type": "string", "description": "Standard input"}}),
        json!(["command"]),
    )
}

fn file(builtin: Builtin) -> Row {
    let path = json!({"type": "string", "description": "Relative to the working directory, or absolute"});
    let writes = |destructive, idempotent| Effects {
        read_only: false,
        destructive,
        idempotent,
        open_world: false,
    };
    match builtin {
        Builtin::FileWrite => (
            "Writes a text file, replacing what is there, in one step; makes missing folders.",
            "filesystem",
            writes(true, true),
            json!({"path": path, "content": {"type": "string"}}),
            json!(["path", "content"]),
        ),
        Builtin::FileEdit => (
            "Replaces one exact piece of a text file. The old text must occur exactly once: give enough of its surroundings.",
            "filesystem",
            writes(true, false),
            json!({"path": path, "old_text": {"type": "string", "minLength": 1}, "new_text": {"type": "string"}}),
            json!(["path", "old_text", "new_text"]),
        ),
        Builtin::FileList => (
            "Lists a folder: name, kind and size. Bounded; links are shown and not followed; entries that the policy closes are left out and counted.",
            "filesystem",
            READS,
            json!({"path": path, "recursive": {"type": "boolean"},
                   "glob": {"type": "string", "description": "Only paths that fit, for example `**/*.rs`"}}),
            json!([]),
        ),
        Builtin::FileSearch => (
            "Searches text files below a folder with a regular expression; returns `path:line:text`. Skips binary files and `.git`; what the policy closes is left out and counted.",
            "filesystem",
            READS,
            json!({"pattern": {"type": "string"}, "path": path, "ignore_case": {"type": "boolean"},
                   "glob": {"type": "string", "description": "Only files that fit, for example `*.rs`"},
                   "max_results": {"type": "integer", "minimum": 1, "maximum": 1000}}),
            json!(["pattern"]),
        ),
        _ => (
            "Reads a text file, or a range of its lines.",
            "filesystem",
            READS,
            json!({"path": path, "start_line": {"type": "integer", "minimum": 1}, "end_line": {"type": "integer", "minimum": 1}}),
            json!(["path"]),
        ),
    }
}

fn web(builtin: Builtin) -> Row {
    let url = json!({"type": "string", "description": "An http or https URL"});
    let headers = json!({"type": "object", "additionalProperties": {"type": "string"}});
    if builtin == Builtin::WebFetch {
        return (
            "Fetches a page and returns its readable text.",
            "network",
            Effects {
                open_world: true,
                ..READS
            },
            json!({"url": url, "headers": headers, "raw": {"type": "boolean", "description": "The body as it came"}}),
            json!(["url"]),
        );
    }
    (
        "Sends an HTTP request and returns status, headers and body.",
        "network",
        Effects {
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: true,
        },
        json!({"method": {"type": "string", "enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]},
               "url": url, "headers": headers, "body": {"type": "string"}}),
        json!(["url"]),
    )
}

fn hints(effects: &Effects) -> Map<String, Value> {
    [
        ("readOnlyHint", effects.read_only),
        ("destructiveHint", effects.destructive),
        ("idempotentHint", effects.idempotent),
        ("openWorldHint", effects.open_world),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), Value::Bool(value)))
    .collect()
}

pub(super) fn preview(builtin: Builtin, arguments: &Map<String, Value>) -> Vec<String> {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
    match builtin {
        Builtin::Shell => {
            let place = (!text("workdir").is_empty()).then(|| format!("in {}", text("workdir")));
            bounded(
                PREVIEW_LINES,
                text("command")
                    .lines()
                    .map(|line| format!("$ {line}"))
                    .chain(place),
            )
        }
        Builtin::FileWrite => {
            let head = format!("write {} ({} bytes)", text("path"), text("content").len());
            bounded(
                PREVIEW_LINES,
                std::iter::once(head).chain(text("content").lines().map(|line| format!("+ {line}"))),
            )
        }
        Builtin::FileEdit => {
            let old = text("old_text").lines().map(|line| format!("- {line}"));
            let new = text("new_text").lines().map(|line| format!("+ {line}"));
            bounded(
                PREVIEW_LINES,
                std::iter::once(format!("edit {}", text("path")))
                    .chain(old)
                    .chain(new),
            )
        }
        Builtin::HttpRequest => {
            let method = arguments.get("method").and_then(Value::as_str).unwrap_or("GET");
            let head = format!("{method} {}", text("url"));
            bounded(
                PREVIEW_LINES,
                std::iter::once(head).chain(text("body").lines().map(|line| format!("  {line}"))),
            )
        }
        Builtin::WebFetch => bounded(PREVIEW_LINES, std::iter::once(format!("GET {}", text("url")))),
        Builtin::Echo
        | Builtin::Sleep
        | Builtin::AskUser
        | Builtin::FileRead
        | Builtin::FileList
        | Builtin::FileSearch => generic(arguments),
    }
}

/// The arguments as indented JSON, for tools that have no better preview.
pub(crate) fn generic(arguments: &Map<String, Value>) -> Vec<String> {
    let text = serde_json::to_string_pretty(arguments).unwrap_or_default();
    bounded(PREVIEW_LINES, text.lines().map(str::to_owned))
}

/// Cuts lines and their number; control characters cannot play tricks on a terminal.
pub(super) fn bounded(most: usize, lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut out = Vec::new();
    let mut more = 0_u64;
    for line in lines {
        if out.len() == most {
            more += 1;
            continue;
        }
        let clean: String = line
            .chars()
            .map(|c| {
                if c.is_control() && c != '\t' {
                    '\u{fffd}'
                } else {
                    c
                }
            })
            .collect();
        let (shown, cut) = cut(&clean, PREVIEW_LINE_BYTES);
        out.push(if cut {
            format!("{shown}…")
        } else {
            shown.to_owned()
        });
    }
    if more > 0 {
        out.push(format!("… and {more} more lines"));
    }
    out
}
