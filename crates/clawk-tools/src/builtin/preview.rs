//! What a person sees before saying yes to a built-in, beside its arguments: the command, the difference that a write makes
//! and what it replaces, where a request goes.

use std::time::Duration;

use clawk_kernel::ports::Look;
use clawk_kernel::sheet::{Line, Preview};
use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};

use super::Builtin;
use super::file::{self, Before};

/// Time to look for the smallest difference; afterwards a longer one is taken.
const DIFF_TIME: Duration = Duration::from_millis(500);

/// What will happen. Blocking for the tools that write files: what is there is read.
pub(crate) fn preview(builtin: Builtin, look: &Look<'_>) -> Preview {
    let text = |name: &str| text(look.arguments, name);
    match builtin {
        Builtin::Shell => Preview {
            lines: text("command").map_or_else(Vec::new, |command| Line::all("$ ", command)),
            covers: &["command"],
        },
        Builtin::FileWrite => match text("path").zip(text("content")) {
            Some((path, content)) => Preview {
                lines: write(&file::before(look, path), path, content),
                covers: &["path", "content"],
            },
            None => Preview::default(),
        },
        Builtin::FileEdit => edit(look).unwrap_or_default(),
        Builtin::HttpRequest => request(text("url"), text("method")),
        Builtin::WebFetch => request(text("url"), None),
        Builtin::Echo
        | Builtin::FileRead
        | Builtin::FileList
        | Builtin::FileSearch
        | Builtin::Sleep
        | Builtin::AskUser
        | Builtin::MemoryStore
        | Builtin::MemoryQuery
        | Builtin::MemoryForget
        | Builtin::ContextWrite => Preview::default(),
    }
}

fn text<'a>(arguments: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    arguments.get(name).and_then(Value::as_str)
}

fn write(before: &Before, path: &str, content: &str) -> Vec<Line> {
    let bytes = content.len();
    let (what, before) = match before {
        Before::Absent => (format!("a new file, {bytes} bytes"), None),
        Before::Text(text) => (format!("{} bytes become {bytes}", text.len()), Some(text)),
        Before::Other(what) => (format!("{bytes} bytes replace {what}"), None),
        Before::Unclear(why) => (format!("{bytes} bytes; {why}"), None),
    };
    let mut lines = vec![Line::fact(&format!("write {path}: {what}"))];
    match before {
        Some(before) => lines.extend(difference(before, content)),
        None => lines.extend(Line::all("+ ", content)),
    }
    lines
}

fn edit(look: &Look<'_>) -> Option<Preview> {
    let text = |name: &str| text(look.arguments, name);
    let (path, old, new) = (text("path")?, text("old_text")?, text("new_text")?);
    let (what, change) = match &file::before(look, path) {
        Before::Text(before) if !old.is_empty() && before.matches(old).count() == 1 => {
            let after = before.replacen(old, new, 1);
            let what = format!("{} bytes become {}", before.len(), after.len());
            (what, difference(before, &after))
        }
        other => {
            let why = match other {
                Before::Text(_) => "the old text does not stand there exactly once".to_owned(),
                Before::Absent => "there is no such file".to_owned(),
                Before::Other(what) => format!("it is {what}"),
                Before::Unclear(why) => why.clone(),
            };
            let mut lines = Line::all("- ", old);
            lines.extend(Line::all("+ ", new));
            (why, lines)
        }
    };
    let mut lines = vec![Line::fact(&format!("edit {path}: {what}"))];
    lines.extend(change);
    Some(Preview {
        lines,
        covers: &["path", "old_text", "new_text"],
    })
}

/// Every line of both texts, those that stay marked as such.
fn difference(before: &str, after: &str) -> Vec<Line> {
    let [old, new] = [before, after].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let diff = TextDiff::configure().timeout(DIFF_TIME).diff_slices(&old, &new);
    let mut lines = Vec::new();
    if before == after {
        lines.push(Line::fact("  (no change)"));
    }
    for change in diff.iter_all_changes() {
        let whole = change.value();
        let line = whole.strip_suffix('\n').unwrap_or(whole);
        lines.push(match change.tag() {
            ChangeTag::Equal => Line::same("  ", line),
            ChangeTag::Delete => Line::value("- ", line),
            ChangeTag::Insert => Line::value("+ ", line),
        });
        if line.len() == whole.len() {
            lines.push(Line::value("\\ ", "no line end at the end of the file"));
        }
    }
    lines
}

fn request(url: Option<&str>, method: Option<&str>) -> Preview {
    let Some(url) = url else {
        return Preview::default();
    };
    let mut lines = vec![Line::fact(&format!("{} {url}", method.unwrap_or("GET")))];
    if let Ok(parsed) = clawk_egress::Url::parse(url) {
        let host = parsed.host_str().unwrap_or_default();
        let port = parsed.port_or_known_default().unwrap_or_default();
        lines.push(Line::fact(&format!(
            "  to {host} port {port} ({})",
            parsed.scheme()
        )));
    }
    Preview {
        lines,
        covers: &["url", "method"],
    }
}
