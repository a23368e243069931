//! The preview of a built-in's call for approval, in addition to its arguments: the command, the diff of a write and the replaced
//! content, the target of a request.

use std::time::Duration;

use clawk_kernel::ports::InspectedCall;
use clawk_kernel::sheet::{ExecutorPreview, PreviewLine};
use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};

use super::BuiltinTool;
use super::file::{self, PriorContent};

/// The time limit for finding the smallest diff. After it, a longer diff is used.
const DIFF_TIME: Duration = Duration::from_millis(500);

/// Builds the preview. For tools that write files it reads the present content, so it blocks.
pub(crate) fn preview_call(builtin: BuiltinTool, look: &InspectedCall<'_>) -> ExecutorPreview {
    let text = |name: &str| text_argument(look.arguments, name);
    match builtin {
        BuiltinTool::Shell => ExecutorPreview {
            lines: text("command").map_or_else(Vec::new, |command| PreviewLine::all("$ ", command)),
            covers: &["command"],
        },
        BuiltinTool::FileWrite => match text("path").zip(text("content")) {
            Some((path, content)) => ExecutorPreview {
                lines: write(&file::prior_content(look, path), path, content),
                covers: &["path", "content"],
            },
            None => ExecutorPreview::default(),
        },
        BuiltinTool::FileEdit => preview_edit(look).unwrap_or_default(),
        BuiltinTool::HttpRequest => preview_request(text("url"), text("method")),
        BuiltinTool::WebFetch => preview_request(text("url"), None),
        BuiltinTool::Echo
        | BuiltinTool::FileRead
        | BuiltinTool::FileList
        | BuiltinTool::FileSearch
        | BuiltinTool::Sleep
        | BuiltinTool::AskUser
        | BuiltinTool::MemoryStore
        | BuiltinTool::MemoryQuery
        | BuiltinTool::MemoryForget
        | BuiltinTool::ContextWrite
        | BuiltinTool::Date
        | BuiltinTool::WebSearch
        | BuiltinTool::ChannelSend
        | BuiltinTool::Schedule => ExecutorPreview::default(),
    }
}

fn text_argument<'a>(arguments: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    arguments.get(name).and_then(Value::as_str)
}

fn write(before: &PriorContent, path: &str, content: &str) -> Vec<PreviewLine> {
    let bytes = content.len();
    let (what, before) = match before {
        PriorContent::Absent => (format!("a new file, {bytes} bytes"), None),
        PriorContent::Text(text) => (format!("{} bytes become {bytes}", text.len()), Some(text)),
        PriorContent::Other(what) => (format!("{bytes} bytes replace {what}"), None),
        PriorContent::Unclear(why) => (format!("{bytes} bytes; {why}"), None),
    };
    let mut lines = vec![PreviewLine::fact(&format!("write {path}: {what}"))];
    match before {
        Some(before) => lines.extend(diff_lines(before, content)),
        None => lines.extend(PreviewLine::all("+ ", content)),
    }
    lines
}

fn preview_edit(look: &InspectedCall<'_>) -> Option<ExecutorPreview> {
    let text = |name: &str| text_argument(look.arguments, name);
    let (path, old, new) = (text("path")?, text("old_text")?, text("new_text")?);
    let (what, change) = match &file::prior_content(look, path) {
        PriorContent::Text(before) if !old.is_empty() && before.matches(old).count() == 1 => {
            let after = before.replacen(old, new, 1);
            let what = format!("{} bytes become {}", before.len(), after.len());
            (what, diff_lines(before, &after))
        }
        other => {
            let why = match other {
                PriorContent::Text(_) => "the old text does not stand there exactly once".to_owned(),
                PriorContent::Absent => "there is no such file".to_owned(),
                PriorContent::Other(what) => format!("it is {what}"),
                PriorContent::Unclear(why) => why.clone(),
            };
            let mut lines = PreviewLine::all("- ", old);
            lines.extend(PreviewLine::all("+ ", new));
            (why, lines)
        }
    };
    let mut lines = vec![PreviewLine::fact(&format!("edit {path}: {what}"))];
    lines.extend(change);
    Some(ExecutorPreview {
        lines,
        covers: &["path", "old_text", "new_text"],
    })
}

/// The diff: every line of both texts, with unchanged lines marked as such.
fn diff_lines(before: &str, after: &str) -> Vec<PreviewLine> {
    let [old, new] = [before, after].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let diff = TextDiff::configure().timeout(DIFF_TIME).diff_slices(&old, &new);
    let mut lines = Vec::new();
    if before == after {
        lines.push(PreviewLine::fact("  (no change)"));
    }
    for change in diff.iter_all_changes() {
        let whole = change.value();
        let line = whole.strip_suffix('\n').unwrap_or(whole);
        lines.push(match change.tag() {
            ChangeTag::Equal => PreviewLine::same("  ", line),
            ChangeTag::Delete => PreviewLine::value("- ", line),
            ChangeTag::Insert => PreviewLine::value("+ ", line),
        });
        if line.len() == whole.len() {
            lines.push(PreviewLine::value("\\ ", "no line end at the end of the file"));
        }
    }
    lines
}

fn preview_request(url: Option<&str>, method: Option<&str>) -> ExecutorPreview {
    let Some(url) = url else {
        return ExecutorPreview::default();
    };
    let mut lines = vec![PreviewLine::fact(&format!("{} {url}", method.unwrap_or("GET")))];
    if let Ok(parsed) = clawk_egress::Url::parse(url) {
        let host = parsed.host_str().unwrap_or_default();
        let port = parsed.port_or_known_default().unwrap_or_default();
        lines.push(PreviewLine::fact(&format!(
            "  to {host} port {port} ({})",
            parsed.scheme()
        )));
    }
    ExecutorPreview {
        lines,
        covers: &["url", "method"],
    }
}
