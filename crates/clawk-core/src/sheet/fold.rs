//! The short text: long lines and long values folded to head and tail.

use super::{Kind, PreviewLine};

/// Longest line that is shown whole, characters; of a longer one, head and tail.
const LINE_CHARS: usize = 400;
const LINE_HEAD_CHARS: usize = 240;
const LINE_TAIL_CHARS: usize = 120;
/// Most lines of one value that are shown whole.
const VALUE: Limit = Limit {
    most: 40,
    head: 24,
    tail: 12,
};
/// Most lines of everything.
const ALL: Limit = Limit {
    most: 120,
    head: 80,
    tail: 30,
};
/// Unchanged lines that are shown beside a change.
const CONTEXT: usize = 3;

struct Limit {
    most: usize,
    head: usize,
    tail: usize,
}

/// The lines to show, and how much they hide.
pub(super) struct ShortPreview {
    pub(super) lines: Vec<String>,
    pub(super) hidden_bytes: usize,
}

/// A line to show and what it stands for.
struct FoldedLine {
    text: String,
    /// Lines of the whole text.
    lines: usize,
    /// Bytes of them.
    bytes: usize,
    /// Bytes of them that are not in `text`.
    hidden: usize,
}

pub(super) fn fold_preview(all: &[PreviewLine]) -> ShortPreview {
    let mut items = Vec::with_capacity(all.len());
    let in_value = |line: &PreviewLine| line.kind != Kind::Fact;
    for part in all.chunk_by(|a, b| in_value(a) == in_value(b)) {
        if part.first().is_some_and(in_value) {
            items.extend(middle_out(fold_value(part), &VALUE));
        } else {
            items.extend(part.iter().map(fold_line));
        }
    }
    let items = middle_out(items, &ALL);
    ShortPreview {
        hidden_bytes: items.iter().map(|item| item.hidden).sum(),
        lines: items.into_iter().map(|item| item.text).collect(),
    }
}

/// A value's lines without those that stay as they are and have no change beside them.
fn fold_value(part: &[PreviewLine]) -> Vec<FoldedLine> {
    let mut items = Vec::new();
    let runs: Vec<&[PreviewLine]> = part.chunk_by(|a, b| a.kind == b.kind).collect();
    let last = runs.len().saturating_sub(1);
    for (at, run) in runs.into_iter().enumerate() {
        if run.first().is_none_or(|line| line.kind != Kind::Same) {
            items.extend(run.iter().map(fold_line));
            continue;
        }
        let before = if at == 0 { 0 } else { CONTEXT };
        let after = if at == last { 0 } else { CONTEXT };
        let left_out = run.len().saturating_sub(before + after);
        if left_out <= 1 {
            items.extend(run.iter().map(fold_line));
            continue;
        }
        items.extend(run.iter().take(before).map(fold_line));
        items.push(FoldedLine {
            text: format!("⟨{left_out} lines stay as they are⟩"),
            lines: left_out,
            bytes: run.iter().skip(before).take(left_out).map(line_bytes).sum(),
            hidden: 0,
        });
        items.extend(run.iter().skip(before + left_out).map(fold_line));
    }
    items
}

/// One line, its middle folded away where it is long.
fn fold_line(line: &PreviewLine) -> FoldedLine {
    let count = line.text.chars().count();
    let (bytes, lines) = (line_bytes(line), 1);
    if count <= LINE_CHARS {
        return FoldedLine {
            text: line.text.clone(),
            lines,
            bytes,
            hidden: 0,
        };
    }
    let head: String = line.text.chars().take(LINE_HEAD_CHARS).collect();
    let tail: String = line.text.chars().skip(count - LINE_TAIL_CHARS).collect();
    let hidden = line.text.len() - head.len() - tail.len();
    FoldedLine {
        text: format!("{head} ⟨… {hidden} bytes hidden …⟩ {tail}"),
        lines,
        bytes,
        hidden,
    }
}

/// Folds the middle away where there are too many.
fn middle_out(mut items: Vec<FoldedLine>, limit: &Limit) -> Vec<FoldedLine> {
    if items.len() <= limit.most {
        return items;
    }
    let tail = items.split_off(items.len() - limit.tail);
    let middle = items.split_off(limit.head);
    let lines: usize = middle.iter().map(|item| item.lines).sum();
    let bytes: usize = middle.iter().map(|item| item.bytes).sum();
    items.push(FoldedLine {
        text: format!("⟨… {lines} lines, {bytes} bytes hidden …⟩"),
        lines,
        bytes,
        hidden: bytes,
    });
    items.extend(tail);
    items
}

/// With its line end.
fn line_bytes(line: &PreviewLine) -> usize {
    line.text.len() + 1
}
