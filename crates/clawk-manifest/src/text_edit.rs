//! Adds an item to a list of a document and keeps every other byte: comments, order, layout.
//!
//! The new text is parsed again. It is returned only if it means exactly the old document with the one item more.

use serde_json::Value;

use crate::tree::{Location, Node, Tree};
use crate::yaml;

/// The member of a Claw's `spec` that may be one item or a list.
const LONE_OR_LIST: &str = "sandbox";

/// The reason why a text can't be edited. It is not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextEditRefusal {
    /// It is not a YAML document, or the map that has the list is missing.
    #[error("the file has no part that can be edited")]
    NoSpec,
    /// The layout is one that this edit does not know, for example a list behind an alias.
    #[error(
        "`{0}` is written in a way that can't be edited without changing its layout; add the item by hand"
    )]
    Layout(String),
}

/// The list to change, and the item.
#[derive(Debug, Clone, Copy)]
pub struct ListInsertion<'a> {
    /// The map that has the list: `spec` of a primitive or a Claw; empty for the document itself.
    pub parent: &'a str,
    /// The list, for example `tools`. A single item, as `sandbox` may be, becomes a list.
    pub section: &'a str,
    /// The item's lines, without the dash and without indentation.
    pub item: &'a str,
    /// Where the item goes: before the item of this index, else at the end.
    pub before: Option<usize>,
}

/// Returns `text` with the item in the list.
///
/// # Errors
/// [`TextEditRefusal`]: the layout is not known. Nothing else is returned than a text with exactly the meaning that was asked for.
pub fn insert_list_item(text: &str, insertion: ListInsertion<'_>) -> Result<String, TextEditRefusal> {
    let refused = || TextEditRefusal::Layout(insertion.section.to_owned());
    let (bom, body) = match text.strip_prefix('\u{feff}') {
        Some(body) => ("\u{feff}", body),
        None => ("", text),
    };
    let root = yaml::parse(body).0.ok_or(TextEditRefusal::NoSpec)?;
    let spec = match insertion.parent {
        "" => &root,
        parent => root.get(parent).ok_or(TextEditRefusal::NoSpec)?,
    };
    let item = yaml::parse(insertion.item).0.ok_or_else(refused)?.to_json();
    let edited = edit_text(body, spec, &insertion).ok_or_else(refused)?;
    let (read_again, findings) = yaml::parse(&edited);
    let wanted = with_item(root.to_json(), &insertion, item).ok_or_else(refused)?;
    match read_again {
        Some(node) if findings.is_empty() && node.to_json() == wanted => Ok(format!("{bom}{edited}")),
        _ => Err(refused()),
    }
}

/// Returns how many items a list of `spec` has, and the `name` of each that has one, plain or below `inline`.
#[must_use]
pub fn list_item_names(text: &str, section: &str) -> Vec<Option<String>> {
    let root = yaml::parse(text.strip_prefix('\u{feff}').unwrap_or(text)).0;
    let items = root
        .as_ref()
        .and_then(|root| root.get("spec")?.get(section)?.items())
        .unwrap_or_default();
    let name = |item: &Node| {
        let inner = item.get("inline").unwrap_or(item);
        let id = inner.get("name").or_else(|| inner.get("id"))?;
        id.text().map(str::to_owned)
    };
    items.iter().map(name).collect()
}

/// The document's value with the item in its place.
fn with_item(mut root: Value, insertion: &ListInsertion<'_>, item: Value) -> Option<Value> {
    let owner = match insertion.parent {
        "" => &mut root,
        parent => root.get_mut(parent)?,
    };
    let list = owner
        .as_object_mut()?
        .entry(insertion.section)
        .or_insert(Value::Null);
    if list.is_null() {
        *list = Value::Array(Vec::new());
    } else if !list.is_array() && insertion.section == LONE_OR_LIST {
        *list = Value::Array(vec![list.take()]);
    }
    let items = list.as_array_mut()?;
    let at = insertion.before.unwrap_or(items.len()).min(items.len());
    items.insert(at, item);
    Some(root)
}

fn edit_text(text: &str, spec: &Node, insertion: &ListInsertion<'_>) -> Option<String> {
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let Some(entry) = spec.entry(insertion.section) else {
        let first = spec.entries()?.first()?.key_place?;
        let column = indentation_at(text, first)?;
        let last = spec.entries()?.last()?;
        let at = end_of_content(text, &last.value)?;
        let block = render_section(insertion, column);
        return Some(splice(text, at, &block, newline));
    };
    let key = entry.key_place?;
    let column = indentation_at(text, key)?;
    match &entry.value.value {
        Tree::List(items) if !items.is_empty() => insert_into_list(text, &entry.value, insertion, newline),
        Tree::List(_) => {
            let place = entry.value.place?;
            let open = text.get(place.start..)?.strip_prefix('[')?;
            let close = place.start + 1 + open.find(']')?;
            let mut without = text.get(..place.start)?.trim_end_matches(' ').to_owned();
            without.push_str(text.get(close + 1..)?);
            let at = line_end(&without, key.end);
            Some(splice(
                &without,
                at,
                &render_item(insertion.item, column + 2),
                newline,
            ))
        }
        Tree::Null => {
            let at = line_end(text, key.end);
            Some(splice(
                text,
                at,
                &render_item(insertion.item, column + 2),
                newline,
            ))
        }
        Tree::Text(_) | Tree::Map(_) if insertion.section == LONE_OR_LIST => {
            list_of_lone_item(text, &entry.value, insertion, newline)
        }
        Tree::Bool(_) | Tree::Number(_) | Tree::Text(_) | Tree::Map(_) => None,
    }
}

/// Makes a list of a single item and adds the new one.
fn list_of_lone_item(
    text: &str,
    lone: &Node,
    insertion: &ListInsertion<'_>,
    newline: &str,
) -> Option<String> {
    let place = lone.place?;
    let (head, from) = text.split_at_checked(place.start)?;
    let is_flow = from.starts_with('{');
    if is_flow || lone.text().is_some() {
        let end = if is_flow { place.end + 1 } else { place.end };
        let json = yaml::parse(insertion.item).0?.to_json().to_string();
        let (item, tail) = (text.get(place.start..end)?, text.get(end..)?);
        return Some(format!("{head}[{item}, {json}]{tail}"));
    }
    let start = line_start(text, place.start);
    let column = indentation_at(text, place)?;
    let end = end_of_content(text, lone)?;
    let mut edited = text.get(..start)?.to_owned();
    for (n, line) in text.get(start..end)?.split_inclusive('\n').enumerate() {
        match n {
            0 => edited.push_str(&format!("{}- {}", line.get(..column)?, line.get(column..)?)),
            _ if line.trim().is_empty() => edited.push_str(line),
            _ => edited.push_str(&format!("  {line}")),
        }
    }
    let at = edited.len();
    edited.push_str(text.get(end..)?);
    Some(splice(&edited, at, &render_item(insertion.item, column), newline))
}

fn insert_into_list(text: &str, list: &Node, insertion: &ListInsertion<'_>, newline: &str) -> Option<String> {
    let items = list.items()?;
    let before = insertion.before.filter(|before| *before < items.len());
    let place = list.place?;
    if text.get(place.start..)?.starts_with('[') {
        let json = yaml::parse(insertion.item).0?.to_json().to_string();
        let (at, piece) = match before {
            Some(before) => (items.get(before)?.place?.start, format!("{json}, ")),
            None => {
                let inside = text.get(..place.end)?.trim_end();
                let comma = if inside.ends_with(',') { " " } else { ", " };
                (inside.len(), format!("{comma}{json}"))
            }
        };
        return Some(format!("{}{piece}{}", text.get(..at)?, text.get(at..)?));
    }
    let dash = dash_before(text, items.first()?.place?.start)?;
    let column = dash - line_start(text, dash);
    let block = render_item(insertion.item, column);
    match before {
        Some(before) => {
            let start = items.get(before)?.place?.start;
            let mut at = line_start(text, dash_before(text, start)?);
            // Comment lines directly above an item belong to it.
            while let Some(above) = comment_line_above(text, at, column) {
                at = above;
            }
            let block = format!("{}{newline}", block.replace('\n', newline));
            Some(format!("{}{block}{}", text.get(..at)?, text.get(at..)?))
        }
        None => {
            let at = end_of_content(text, items.last()?)?;
            Some(splice(text, at, &block, newline))
        }
    }
}

/// Inserts lines after the line that ends at `at`.
fn splice(text: &str, at: usize, lines: &str, newline: &str) -> String {
    let (head, tail) = text.split_at(at);
    let lines = lines.replace('\n', newline);
    if tail.is_empty() {
        return format!("{head}{newline}{lines}{newline}");
    }
    format!("{head}{newline}{lines}{tail}")
}

fn render_section(insertion: &ListInsertion<'_>, column: usize) -> String {
    let indentation = " ".repeat(column);
    let item = render_item(insertion.item, column + 2);
    format!("{indentation}{}:\n{item}", insertion.section)
}

/// The item with its dash, each line indented; without a line end.
fn render_item(item: &str, column: usize) -> String {
    let indentation = " ".repeat(column);
    let mut lines = Vec::new();
    for (n, line) in item.trim_end().lines().enumerate() {
        lines.push(match (n, line.is_empty()) {
            (0, _) => format!("{indentation}- {line}"),
            (_, true) => String::new(),
            (_, false) => format!("{indentation}  {line}"),
        });
    }
    lines.join("\n")
}

/// The end of the last line that belongs to the node: without the blank lines and comments that follow it.
fn end_of_content(text: &str, node: &Node) -> Option<usize> {
    let place = deepest_end(node)?;
    let mut end = place.min(text.len());
    let block_text = text.get(..end)?.ends_with('\n');
    if block_text {
        end = text.get(..end)?.trim_end_matches(['\n', '\r', ' ']).len();
    }
    Some(line_end(text, end))
}

/// The end of the last scalar in the node. A collection's own end lies behind the comments that follow it.
fn deepest_end(node: &Node) -> Option<usize> {
    let own = node.place?;
    let inner = match &node.value {
        Tree::List(items) => items.iter().filter_map(deepest_end).max(),
        Tree::Map(entries) => entries
            .iter()
            .filter_map(|entry| deepest_end(&entry.value).max(entry.key_place.map(|place| place.end)))
            .max(),
        Tree::Null | Tree::Bool(_) | Tree::Number(_) | Tree::Text(_) => Some(own.end),
    };
    Some(inner.unwrap_or(own.end).max(own.start))
}

fn line_start(text: &str, at: usize) -> usize {
    text.get(..at)
        .and_then(|head| head.rfind('\n'))
        .map_or(0, |newline| newline + 1)
}

/// The end of the line, without its line break.
fn line_end(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let end = rest.find('\n').map_or(text.len(), |newline| at + newline);
    text.get(..end)
        .map_or(end, |head| head.strip_suffix('\r').map_or(end, str::len))
}

/// The column in bytes of a key that begins its line.
fn indentation_at(text: &str, place: Location) -> Option<usize> {
    let start = line_start(text, place.start);
    let before = text.get(start..place.start)?;
    before.bytes().all(|byte| byte == b' ').then_some(before.len())
}

/// The byte offset of the dash before an item.
fn dash_before(text: &str, item: usize) -> Option<usize> {
    let head = text.get(..item)?;
    let dash = head.rfind('-')?;
    let between = text.get(dash + 1..item)?;
    let blank = between.chars().all(|c| matches!(c, ' ' | '\n' | '\r'));
    let before = text.get(line_start(text, dash)..dash)?;
    (blank && before.bytes().all(|byte| byte == b' ')).then_some(dash)
}

/// The start of the line above `at`, if it is a comment in this column.
fn comment_line_above(text: &str, at: usize, column: usize) -> Option<usize> {
    let start = line_start(text, at.checked_sub(1)?);
    let line = text.get(start..at)?;
    let comment = line.trim_start_matches(' ');
    (comment.starts_with('#') && line.len() - comment.len() == column).then_some(start)
}

#[cfg(test)]
mod tests;
