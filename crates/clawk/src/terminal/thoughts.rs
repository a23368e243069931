//! A model's thoughts in a terminal: folded into one dim line with `-v`, whole with `-vv`. They are no part of the answer.

use std::sync::OnceLock;

use crate::out::sanitize_block;

/// How much of a model's thoughts a terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThoughtDetail {
    /// Nothing.
    Hidden,
    /// How many words there were (`-v`).
    Folded,
    /// All of them (`-vv`).
    Whole,
}

static DETAIL: OnceLock<ThoughtDetail> = OnceLock::new();

/// `-v` and `-vv`, for all conversations of this process.
pub(crate) fn set_thought_detail(verbose: u8) {
    let detail = match verbose {
        0 => ThoughtDetail::Hidden,
        1 => ThoughtDetail::Folded,
        2.. => ThoughtDetail::Whole,
    };
    // silent-ok: the first one counts, and there is one command line
    let _ = DETAIL.set(detail);
}

/// A model's thoughts as lines; none where they are hidden.
pub(super) fn thought_lines(thought: &str, detail: ThoughtDetail, width: usize) -> Vec<String> {
    let words = thought.split_whitespace().count();
    match detail {
        ThoughtDetail::Hidden => Vec::new(),
        _ if words == 0 => Vec::new(),
        ThoughtDetail::Folded => {
            let noun = if words == 1 { "word" } else { "words" };
            vec![format!("  ⋯ thought: {words} {noun} (-vv shows them)")]
        }
        ThoughtDetail::Whole => {
            let clean = sanitize_block(thought);
            let lines = clean.lines().filter(|line| !line.trim().is_empty());
            let shown = lines.flat_map(|line| wrapped(line, width.saturating_sub(4)));
            std::iter::once("  ⋯ thought:".to_owned())
                .chain(shown.map(|line| format!("    {line}")))
                .collect()
        }
    }
}

/// A line in pieces of at most so many characters, broken between words where there are any.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(last) if last.is_empty() => last.push_str(word),
            Some(last) if last.chars().count() + 1 + length <= width => {
                last.push(' ');
                last.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// What the command line asked for.
pub(super) fn thought_detail() -> ThoughtDetail {
    DETAIL.get().copied().unwrap_or(ThoughtDetail::Hidden)
}

#[cfg(test)]
mod tests {
    use super::{ThoughtDetail, thought_lines};

    #[test]
    fn thoughts_are_hidden_folded_or_whole() {
        let thought = "First I look.\n\n\u{1b}[2JThen  I say it.";
        let lines = |detail| thought_lines(thought, detail, 14);
        assert_eq!(lines(ThoughtDetail::Hidden), Vec::<String>::new());
        assert_eq!(
            lines(ThoughtDetail::Folded),
            ["  ⋯ thought: 7 words (-vv shows them)"]
        );
        let whole = lines(ThoughtDetail::Whole);
        assert_eq!(whole[..3], ["  ⋯ thought:", "    First I", "    look."]);
        assert!(!whole.join("\n").contains('\u{1b}'), "{whole:?}");
        assert_eq!(
            thought_lines(" \n", ThoughtDetail::Whole, 80),
            Vec::<String>::new()
        );
    }
}
