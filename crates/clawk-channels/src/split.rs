//! Long answers in pieces (C6): never inside a character or a grapheme; a code fence that is cut is closed and opened again.

use unicode_segmentation::UnicodeSegmentation as _;

use crate::message::LengthUnit;

/// The length of a text as a platform counts it.
pub(crate) fn text_length(text: &str, unit: LengthUnit) -> usize {
    match unit {
        LengthUnit::Chars => text.chars().count(),
        LengthUnit::Utf16 => text.encode_utf16().count(),
        LengthUnit::Bytes => text.len(),
    }
}

/// Room for the lines that close and open a fence.
const FENCE_ROOM: usize = 2;

/// Cuts Markdown into pieces that each `fit`. A single grapheme that does not fit stands alone.
///
/// Cuts lie at line ends where possible, else at spaces, else between graphemes.
pub(crate) fn split_markdown(text: &str, fits: &dyn Fn(&str) -> bool) -> Vec<String> {
    if fits(text) {
        return vec![text.to_owned()];
    }
    let mut pieces = Vec::new();
    let mut piece = String::new();
    let mut fence: Option<String> = None;
    for line in text.split_inclusive('\n') {
        let opens = fence_of(line);
        let after = match (&fence, opens) {
            (Some(open), Some(mark)) if closes_fence(open, mark) => None,
            (None, Some(mark)) => Some(mark.to_owned()),
            (open, _) => open.clone(),
        };
        let closed = |piece: &str| close_fence(piece, after.as_deref());
        let mut rest = line.to_owned();
        while !fits(&closed(&format!("{piece}{rest}"))) {
            let fresh = fence.as_ref().map_or(String::new(), |open| format!("{open}\n"));
            if piece.len() > fresh.len() {
                // The line begins the next piece.
                pieces.push(close_fence(&piece, fence.as_deref()));
                piece = fresh;
                continue;
            }
            let cut = longest_fitting_head(&rest, &|head| {
                fits(&close_fence(&format!("{piece}{head}"), fence.as_deref()))
            });
            let tail = rest.split_off(cut);
            pieces.push(close_fence(&format!("{piece}{rest}"), fence.as_deref()));
            piece = fresh;
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        piece.push_str(&rest);
        fence = after;
    }
    if !piece.trim().is_empty() {
        pieces.push(piece);
    }
    for piece in &mut pieces {
        piece.truncate(piece.trim_end().len());
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// A line that opens or closes a fence: its mark with what follows.
fn fence_of(line: &str) -> Option<&str> {
    let line = line.trim_end();
    let bare = line.trim_start_matches(' ');
    let fence = bare.starts_with("```") || bare.starts_with("~~~");
    (fence && line.len() - bare.len() <= 3).then_some(bare)
}

/// Whether a line's mark closes the fence that `open` opened.
fn closes_fence(open: &str, mark: &str) -> bool {
    let run = |text: &str| {
        let first = text.chars().next();
        text.chars().take_while(|c| Some(*c) == first).count()
    };
    open.chars().next() == mark.chars().next() && run(mark) >= run(open) && mark.chars().count() == run(mark)
}

fn close_fence(piece: &str, fence: Option<&str>) -> String {
    let Some(open) = fence else {
        return piece.to_owned();
    };
    let first = open.chars().next().unwrap_or('`');
    let mark: String = open.chars().take_while(|c| *c == first).collect();
    let mut closed = String::with_capacity(piece.len() + mark.len() + FENCE_ROOM);
    closed.push_str(piece);
    if !closed.ends_with('\n') {
        closed.push('\n');
    }
    closed.push_str(&mark);
    closed
}

/// The longest head of a text that fits: up to a space in its last quarter, else between graphemes; at least one grapheme.
fn longest_fitting_head(text: &str, fits: &dyn Fn(&str) -> bool) -> usize {
    let mut ends: Vec<usize> = text
        .grapheme_indices(true)
        .map(|(at, part)| at + part.len())
        .collect();
    ends.dedup();
    let fitting = ends.partition_point(|end| text.get(..*end).is_some_and(fits));
    let first = ends.first().copied().unwrap_or(text.len());
    let cut = fitting
        .checked_sub(1)
        .and_then(|at| ends.get(at))
        .copied()
        .unwrap_or(first);
    if cut == text.len() {
        return cut;
    }
    let head = text.get(..cut).unwrap_or_default(); // silent-ok: `cut` is an end of a grapheme
    match head.rfind(char::is_whitespace) {
        Some(space) if space > cut - cut / 4 => {
            let width = head
                .get(space..)
                .and_then(|rest| rest.chars().next())
                .map_or(1, char::len_utf8);
            // A space that something joins is no place to cut.
            if ends.binary_search(&(space + width)).is_ok() {
                space + width
            } else {
                cut
            }
        }
        Some(_) | None => cut,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_segmentation::UnicodeSegmentation as _;

    use super::{LengthUnit, split_markdown, text_length};

    fn by(max: usize) -> impl Fn(&str) -> bool {
        move |text| text_length(text, LengthUnit::Utf16) <= max
    }

    #[test]
    fn a_fence_that_is_cut_is_closed_and_opened_again() {
        let text = format!("Look:\n```rust\n{}```\nDone.", "let x = 1;\n".repeat(20));
        let pieces = split_markdown(&text, &by(100));
        assert!(pieces.len() > 2);
        for piece in &pieces {
            assert!(text_length(piece, LengthUnit::Utf16) <= 100, "{piece}");
            assert_eq!(piece.matches("```").count() % 2, 0, "{piece}");
        }
        let lines: usize = pieces
            .iter()
            .map(|piece| piece.matches("let x = 1;").count())
            .sum();
        assert_eq!(lines, 20);
    }

    #[test]
    fn words_are_kept_whole_where_they_can_be() {
        let text = "word ".repeat(100);
        for piece in split_markdown(&text, &by(64)) {
            assert!(piece.split(' ').all(|word| word == "word"), "{piece}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Nothing is lost but white space at cuts, nothing is too long, and no grapheme is cut.
        #[test]
        fn pieces_hold_all_of_a_text(text in "[a-z \\n👨‍👩‍👧é🇩🇪]{0,400}", max in 12_usize..60) {
            let pieces = split_markdown(&text, &by(max));
            let bare = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(bare(&pieces.concat()), bare(&text));
            let whole: Vec<&str> = text.graphemes(true).filter(|g| !g.trim().is_empty()).collect();
            for piece in &pieces {
                let alone = piece.graphemes(true).count() == 1;
                prop_assert!(alone || text_length(piece, LengthUnit::Utf16) <= max, "{:?}", piece);
                for grapheme in piece.graphemes(true).filter(|g| !g.trim().is_empty()) {
                    prop_assert!(whole.contains(&grapheme), "{:?}", grapheme);
                }
            }
        }
    }
}
