//! Tool calls in the form that the editor shows: kind, files and changes.

use std::path::{Path, PathBuf};

use clawk_kernel::ApprovalQuestion;
use serde_json::{Map, Value, json};

/// The longest title, characters.
const MAX_TITLE: usize = 120;

/// The first update about a call.
pub(super) fn call_started(
    id: &str,
    tool: &str,
    arguments: &Map<String, Value>,
    workdir: &Path,
    status: &str,
) -> Value {
    json!({
        "sessionUpdate": "tool_call",
        "toolCallId": id,
        "title": call_title(tool, arguments),
        "kind": kind(tool),
        "status": status,
        "rawInput": arguments,
        "locations": call_locations(arguments, workdir),
        "content": call_changes(tool, arguments, workdir),
    })
}

/// The content of a question: its full text, and the change as a diff.
pub(super) fn question_tool_call(question: &ApprovalQuestion, workdir: &Path) -> Value {
    let mut content = call_changes(&question.tool, &question.arguments, workdir);
    let text = format!("{}\n\n{}", question.reason, question.sheet.whole());
    content.insert(0, text_content(&text));
    json!({
        "toolCallId": question.request_id,
        "title": call_title(&question.tool, &question.arguments),
        "kind": kind(&question.tool),
        "status": "pending",
        "rawInput": question.arguments,
        "locations": call_locations(&question.arguments, workdir),
        "content": content,
    })
}

/// Wraps text as the content of a call.
pub(super) fn text_content(text: &str) -> Value {
    json!({"type": "content", "content": {"type": "text", "text": text}})
}

fn text_argument<'a>(arguments: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    arguments.get(name).and_then(Value::as_str)
}

fn call_title(tool: &str, arguments: &Map<String, Value>) -> String {
    let about = ["path", "command", "url", "query", "pattern"]
        .iter()
        .find_map(|name| text_argument(arguments, name));
    let whole = about.map_or_else(|| tool.to_owned(), |about| format!("{tool} {about}"));
    let line: String = whole
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_TITLE)
        .collect();
    line
}

fn kind(tool: &str) -> &'static str {
    match tool {
        "file-read" => "read",
        "file-write" | "file-edit" => "edit",
        "file-list" | "file-search" | "web-search" => "search",
        "shell" => "execute",
        "web-fetch" | "http-request" => "fetch",
        _ => "other",
    }
}

fn resolve_path(path: &str, workdir: &Path) -> PathBuf {
    workdir.join(path)
}

fn call_locations(arguments: &Map<String, Value>, workdir: &Path) -> Vec<Value> {
    let path = text_argument(arguments, "path");
    path.map(|path| json!({"path": resolve_path(path, workdir)}))
        .into_iter()
        .collect()
}

/// The changes that the arguments describe. Reads nothing from the disk.
fn call_changes(tool: &str, arguments: &Map<String, Value>, workdir: &Path) -> Vec<Value> {
    let (old, new) = match tool {
        "file-write" => (None, text_argument(arguments, "content")),
        "file-edit" => (
            text_argument(arguments, "old_text"),
            text_argument(arguments, "new_text"),
        ),
        _ => return Vec::new(),
    };
    match (text_argument(arguments, "path"), new) {
        (Some(path), Some(new)) => {
            vec![json!({"type": "diff", "path": resolve_path(path, workdir), "oldText": old, "newText": new})]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::call_started;

    #[test]
    fn a_change_is_shown_as_a_diff_at_its_absolute_place() {
        let arguments = json!({"path": "src/a.rs", "old_text": "1", "new_text": "2"});
        let call = call_started(
            "id",
            "file-edit",
            arguments.as_object().unwrap(),
            Path::new("/work"),
            "pending",
        );
        assert_eq!(
            call["content"][0],
            json!({"type": "diff", "path": "/work/src/a.rs", "oldText": "1", "newText": "2"})
        );
        assert_eq!(call["locations"], json!([{"path": "/work/src/a.rs"}]));
        assert_eq!(
            (&call["kind"], &call["title"]),
            (&json!("edit"), &json!("file-edit src/a.rs"))
        );
        let arguments = json!({"command": "ls\n-l"});
        let call = call_started(
            "id",
            "shell",
            arguments.as_object().unwrap(),
            Path::new("/work"),
            "pending",
        );
        assert_eq!(
            (&call["content"], &call["title"]),
            (&Value::Array(Vec::new()), &json!("shell ls -l"))
        );
    }
}
