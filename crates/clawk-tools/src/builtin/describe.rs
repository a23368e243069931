//! The descriptions of the built-in tools, for the model and for the person who approves a call.

use std::path::Path;

use clawk_kernel::ports::{Executor, ToolDescription};
use clawk_plan::Plan;
use serde_json::{Map, Value, json};

use super::BuiltinTool;
use super::search::{MAX_QUERY_CHARS, MAX_RESULTS};

/// The largest number of files in one message of `channel-send`.
pub const MAX_SENT_FILES: usize = 10;

/// The effects of a tool, as MCP's four annotation hints.
struct ToolEffects {
    read_only: bool,
    destructive: bool,
    idempotent: bool,
    open_world: bool,
}

const READS: ToolEffects = ToolEffects {
    read_only: true,
    destructive: false,
    idempotent: true,
    open_world: false,
};

pub(super) fn builtin_description(builtin: BuiltinTool) -> ToolDescription {
    let (description, category, effects, properties, required) = match builtin {
        BuiltinTool::Echo => (
            "Returns the text it is given.",
            "utility",
            READS,
            json!({"text": {"type": "string", "description": "The text to return"}}),
            json!(["text"]),
        ),
        BuiltinTool::Sleep => (
            "Waits for a number of seconds.",
            "utility",
            READS,
            json!({"seconds": {"type": "number", "minimum": 0, "maximum": 3600}}),
            json!(["seconds"]),
        ),
        BuiltinTool::AskUser => (
            "Asks the person you work for a question and returns the answer.",
            "utility",
            ToolEffects {
                idempotent: false,
                ..READS
            },
            json!({"question": {"type": "string"},
                   "options": {"type": "array", "items": {"type": "string"}, "maxItems": 20, "description": "Answers to choose from"}}),
            json!(["question"]),
        ),
        BuiltinTool::Shell => shell_row(),
        BuiltinTool::FileRead
        | BuiltinTool::FileWrite
        | BuiltinTool::FileEdit
        | BuiltinTool::FileList
        | BuiltinTool::FileSearch => file_row(builtin),
        BuiltinTool::WebFetch | BuiltinTool::HttpRequest | BuiltinTool::WebSearch => web_row(builtin),
        BuiltinTool::Date => (
            "Tells the date, the weekday and the time of day.",
            "utility",
            ToolEffects {
                idempotent: false,
                ..READS
            },
            json!({"timezone": {"type": "string", "description": "IANA name such as `Europe/Berlin`; the agent's own time zone by default"}}),
            json!([]),
        ),
        BuiltinTool::ChannelSend | BuiltinTool::Schedule => channel_row(builtin),
        BuiltinTool::MemoryStore
        | BuiltinTool::MemoryQuery
        | BuiltinTool::MemoryForget
        | BuiltinTool::ContextWrite => memory_row(builtin),
    };
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    if builtin != BuiltinTool::Echo
        && let Value::Object(map) = &mut schema
    {
        map.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    ToolDescription {
        description: description.to_owned(),
        input_schema: schema,
        output_schema: None,
        trusted_annotations: effect_hints(&effects),
        category: Some(category),
        executor: Executor::Builtin,
    }
}

/// What a tool needs before it can work, for people.
pub(super) fn builtin_requirement(builtin: BuiltinTool) -> Option<&'static str> {
    match builtin {
        BuiltinTool::Echo | BuiltinTool::Sleep | BuiltinTool::Date => None,
        BuiltinTool::AskUser => Some("a person: at the terminal, or in a channel of a served agent"),
        BuiltinTool::Shell => Some("`capabilities.shell` in its sandbox"),
        BuiltinTool::FileRead | BuiltinTool::FileList | BuiltinTool::FileSearch => {
            Some("a folder in `capabilities.filesystem.mount_paths` of its sandbox")
        }
        BuiltinTool::FileWrite | BuiltinTool::FileEdit => {
            Some("a folder with `permissions: rw` in `capabilities.filesystem.mount_paths` of its sandbox")
        }
        BuiltinTool::WebFetch | BuiltinTool::HttpRequest => {
            Some("the host in `capabilities.network` of its sandbox")
        }
        BuiltinTool::WebSearch => Some(
            "a provider in `[tools.web-search.search]` of clawk.toml, and its host in `capabilities.network` of its sandbox",
        ),
        BuiltinTool::MemoryStore | BuiltinTool::MemoryQuery | BuiltinTool::MemoryForget => {
            Some("a store in `spec.memory`")
        }
        BuiltinTool::ContextWrite => Some("a file in `context_files` of the identity"),
        BuiltinTool::ChannelSend => Some("a channel, while `clawk serve` runs"),
        BuiltinTool::Schedule => Some("a conversation in a channel, while `clawk serve` runs"),
    }
}

/// The shell tool's description under this plan.
pub(crate) fn about_shell(plan: &Plan, workdir: &Path) -> String {
    let program = plan.shell_program(workdir);
    let mut text = format!(
        "Runs a command line with {program} and returns its output. Every process that it starts ends with it."
    );
    if let Some(folders) = plan.visible_folders() {
        let folders = match folders.as_slice() {
            [] => "no folder of the user".to_owned(),
            all => format!("only these folders of the user: {}", all.join(", ")),
        };
        text.push_str(&format!(
            " It finds the system's programs and {folders}; nothing else of this machine exists for it."
        ));
    }
    if let Some(home) = plan.private_home() {
        text.push_str(&format!(
            " $HOME ({home}) is writable and empty at the start of each call."
        ));
    }
    text
}

type BuiltinRow = (&'static str, &'static str, ToolEffects, Value, Value);

fn shell_row() -> BuiltinRow {
    (
        "Runs a command line with bash, or /bin/sh where there is no bash, and returns its output. Every process that it starts ends with it.",
        "shell",
        ToolEffects {
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

fn memory_row(builtin: BuiltinTool) -> BuiltinRow {
    let store = json!({"type": "string", "description": "The store's name in the manifest"});
    let writes = ToolEffects {
        read_only: false,
        destructive: false,
        idempotent: true,
        open_world: false,
    };
    match builtin {
        BuiltinTool::MemoryStore => (
            "Remembers something: keeps it in a store of memory, to be found in later conversations.",
            "memory",
            writes,
            json!({"store": store, "content": {"type": ["string", "object"], "description": "What to remember"},
                   "key": {"type": "string", "description": "Its key, where the store has keys; a later entry with the same key replaces it"},
                   "version": {"type": "integer", "minimum": 0, "description": "In the store that a swarm shares: the version that you have read, 0 for a new key"}}),
            json!(["store", "content"]),
        ),
        BuiltinTool::MemoryForget => (
            "Forgets one entry of a store of memory, for good.",
            "memory",
            ToolEffects {
                destructive: true,
                ..writes
            },
            json!({"store": store, "id": {"type": "string", "description": "The entry's id, as memory-query tells it"}}),
            json!(["store", "id"]),
        ),
        BuiltinTool::ContextWrite => (
            "Writes one of your context files, which stand in your instructions from the next turn on. Earlier versions are kept.",
            "memory",
            writes,
            json!({"file": {"type": "string", "description": "The context file, as the manifest names it"},
                   "content": {"type": "string", "description": "Its whole new text"}}),
            json!(["file", "content"]),
        ),
        _ => (
            "Looks up what is remembered in a store of memory. Each entry says where it came from.",
            "memory",
            READS,
            json!({"store": store, "text": {"type": "string", "description": "What to look for, or a key"},
                   "top_k": {"type": "integer", "minimum": 1, "maximum": 50, "description": "At most so many entries"}}),
            json!(["store", "text"]),
        ),
    }
}

fn file_row(builtin: BuiltinTool) -> BuiltinRow {
    let path = json!({"type": "string", "description": "Relative to the working directory, or absolute"});
    let writes = |destructive, idempotent| ToolEffects {
        read_only: false,
        destructive,
        idempotent,
        open_world: false,
    };
    match builtin {
        BuiltinTool::FileWrite => (
            "Writes a text file, replacing what is there, in one step; makes missing folders.",
            "filesystem",
            writes(true, true),
            json!({"path": path, "content": {"type": "string"}}),
            json!(["path", "content"]),
        ),
        BuiltinTool::FileEdit => (
            "Replaces one exact piece of a text file. The old text must occur exactly once: give enough of its surroundings.",
            "filesystem",
            writes(true, false),
            json!({"path": path, "old_text": {"type": "string", "minLength": 1}, "new_text": {"type": "string"}}),
            json!(["path", "old_text", "new_text"]),
        ),
        BuiltinTool::FileList => (
            "Lists a folder: name, kind and size. Bounded; links are shown and not followed; entries that the policy closes are left out and counted.",
            "filesystem",
            READS,
            json!({"path": path, "recursive": {"type": "boolean"},
                   "glob": {"type": "string", "description": "Only paths that fit, for example `**/*.rs`"}}),
            json!([]),
        ),
        BuiltinTool::FileSearch => (
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

fn web_row(builtin: BuiltinTool) -> BuiltinRow {
    let url = json!({"type": "string", "description": "An http or https URL"});
    let headers = json!({"type": "object", "additionalProperties": {"type": "string"}});
    if builtin == BuiltinTool::WebSearch {
        return (
            "Searches the web and returns titles, addresses and snippets of pages. Fetch a page to read it.",
            "network",
            ToolEffects {
                open_world: true,
                ..READS
            },
            json!({"query": {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_CHARS, "description": "What to search for"},
                   "max_results": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS, "description": "At most so many results; 8 by default"}}),
            json!(["query"]),
        );
    }
    if builtin == BuiltinTool::WebFetch {
        return (
            "Fetches a page and returns its readable text.",
            "network",
            ToolEffects {
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
        ToolEffects {
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

fn channel_row(builtin: BuiltinTool) -> BuiltinRow {
    let text = |what: &str| json!({"type": "string", "description": what});
    if builtin == BuiltinTool::ChannelSend {
        return (
            "Sends a message, with files where the platform takes them, to a conversation of a channel of this \
                agent. Without `channel` and `conversation`: to the person you are talking with.",
            "network",
            ToolEffects {
                read_only: false,
                destructive: false,
                idempotent: false,
                open_world: true,
            },
            json!({
                "channel": text("the channel's name"),
                "conversation": text("the platform's id of the conversation"),
                "text": text("Markdown"),
                "file": {"type": "string", "format": "path", "description": "a file that goes with it"},
                "files": {"type": "array", "maxItems": MAX_SENT_FILES, "items": {"type": "string", "format": "path"},
                    "description": "several files that go with it"},
            }),
            json!(["text"]),
        );
    }
    (
        "Makes, lists or cancels schedules of this conversation. When one is due, you are told its prompt here.",
        "schedule",
        ToolEffects {
            read_only: false,
            destructive: false,
            idempotent: false,
            open_world: false,
        },
        json!({
            "action": {"type": "string", "enum": ["create", "list", "cancel"]},
            "cron": text("create: five fields, such as `0 9 * * 1`; either this or `at`"),
            "at": text("create: one time, RFC 3339"),
            "timezone": text("create: IANA name for `cron`; UTC when absent"),
            "prompt": text("create: what you are told when it is due"),
            "until": text("create: the end, RFC 3339; needed with `cron`"),
            "max_runs": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "create: needed with `cron`"},
            "id": text("cancel: which"),
        }),
        json!(["action"]),
    )
}

fn effect_hints(effects: &ToolEffects) -> Map<String, Value> {
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
