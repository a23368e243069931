//! What a person sees before saying yes to a built-in: the program and the folder of a command, the difference that a
//! write makes, where a request goes and what it carries.

use clawk_kernel::ports::Look;
use serde_json::Value;
use similar::TextDiff;

use super::{Builtin, describe, file};

/// Lines of a difference; what is cut is counted.
const DIFF_LINES: usize = 400;
/// Lines around a change.
const CONTEXT: usize = 3;

/// Lines of plain text, bounded.
pub(crate) fn preview(builtin: Builtin, look: &Look<'_>) -> Vec<String> {
    let text = |name: &str| look.arguments.get(name).and_then(Value::as_str);
    let lines = match builtin {
        Builtin::FileWrite => text("path").zip(text("content")).map(|(path, content)| {
            let before = file::before(look, path);
            difference("write", path, before.as_deref(), content)
        }),
        Builtin::FileEdit => edit(look),
        Builtin::HttpRequest => text("url").map(|url| request(look, url)),
        Builtin::Echo
        | Builtin::Shell
        | Builtin::FileRead
        | Builtin::FileList
        | Builtin::FileSearch
        | Builtin::WebFetch
        | Builtin::Sleep
        | Builtin::AskUser => None,
    };
    match lines {
        Some(lines) => describe::bounded(DIFF_LINES, lines.into_iter()),
        None => describe::preview(builtin, look.arguments),
    }
}

fn edit(look: &Look<'_>) -> Option<Vec<String>> {
    let text = |name: &str| look.arguments.get(name).and_then(Value::as_str);
    let (path, old, new) = (text("path")?, text("old_text")?, text("new_text")?);
    let before = file::before(look, path)?;
    if old.is_empty() || before.matches(old).count() != 1 {
        return None;
    }
    let after = before.replacen(old, new, 1);
    Some(difference("edit", path, Some(&before), &after))
}

fn difference(verb: &str, path: &str, before: Option<&str>, after: &str) -> Vec<String> {
    let Some(before) = before else {
        let head = format!("{verb} {path}: a new file, {} bytes", after.len());
        return std::iter::once(head)
            .chain(after.lines().map(|line| format!("+ {line}")))
            .collect();
    };
    let diff = TextDiff::from_lines(before, after);
    let mut unified = diff.unified_diff();
    let text = unified.context_radius(CONTEXT).to_string();
    let head = format!("{verb} {path}: {} bytes become {}", before.len(), after.len());
    let same = text.is_empty().then(|| "  (no change)".to_owned());
    std::iter::once(head)
        .chain(same)
        .chain(text.lines().map(str::to_owned))
        .collect()
}

fn request(look: &Look<'_>, url: &str) -> Vec<String> {
    let text = |name: &str| look.arguments.get(name).and_then(Value::as_str);
    let mut lines = vec![format!("{} {url}", text("method").unwrap_or("GET"))];
    if let Ok(parsed) = clawk_egress::Url::parse(url) {
        let host = parsed.host_str().unwrap_or_default();
        let port = parsed.port_or_known_default().unwrap_or_default();
        lines.push(format!("  to {host} port {port} ({})", parsed.scheme()));
    }
    if let Some(headers) = look.arguments.get("headers").and_then(Value::as_object) {
        // Names only: a value may be a secret.
        let names: Vec<&str> = headers.keys().map(String::as_str).collect();
        lines.push(format!("  headers: {}", names.join(", ")));
    }
    match text("body") {
        Some(body) => {
            lines.push(format!("  body, {} bytes:", body.len()));
            lines.extend(body.lines().map(|line| format!("  {line}")));
        }
        None => lines.push("  without a body".to_owned()),
    }
    lines
}
