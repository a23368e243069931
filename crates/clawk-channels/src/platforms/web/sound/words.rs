//! What of an answer is spoken, and in which pieces. Pure.

use clawk_kernel::ports::SPEECH_MAX_CHARS;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Said in the place of what can't be heard.
const CODE: &str = "The code is in the text.";
const TABLE: &str = "The table is in the text.";
const LINK: &str = "a link";

/// An answer as it is spoken: no code, no tables, no addresses.
pub(super) fn spoken_text(markdown: &str) -> String {
    let (mut text, mut silent) = (String::new(), 0_u32);
    let mut say = |piece: &str, silent: u32| {
        if silent == 0 {
            text.push_str(piece);
        }
    };
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => {
                say(CODE, silent);
                silent += 1;
            }
            Event::Start(Tag::Table(_)) => {
                say(TABLE, silent);
                silent += 1;
            }
            Event::End(TagEnd::CodeBlock | TagEnd::Table) => {
                silent = silent.saturating_sub(1);
                say("\n", silent);
            }
            Event::Text(piece) => say(&without_addresses(&piece), silent),
            Event::Code(piece) => say(&piece, silent),
            Event::SoftBreak | Event::HardBreak => say(" ", silent),
            Event::End(TagEnd::Paragraph | TagEnd::Heading(_) | TagEnd::Item) => say("\n", silent),
            _ => {}
        }
    }
    text.trim().to_owned()
}

fn without_addresses(text: &str) -> String {
    let address = |word: &str| {
        let word = word.trim_start_matches(['(', '<', '"', '\'']);
        ["https://", "http://", "www.", "mailto:"]
            .iter()
            .any(|head| word.starts_with(head))
    };
    let words = text
        .split(' ')
        .map(|word| if address(word) { LINK } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Pieces that a speech model takes, whole sentences where they fit.
pub(super) fn speech_pieces(text: &str) -> Vec<String> {
    let (mut pieces, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let Some((most, _)) = rest.char_indices().nth(SPEECH_MAX_CHARS) else {
            pieces.push(rest.to_owned());
            break;
        };
        let (head, _) = rest.split_at(most);
        let after = |at: Option<usize>, len: usize| at.map(|at| at + len);
        let sentence = [". ", "! ", "? ", "\n", "。"]
            .iter()
            .filter_map(|end| after(head.rfind(end), end.len()))
            .max();
        let at = sentence.or_else(|| after(head.rfind(' '), 1)).unwrap_or(most);
        let (piece, more) = rest.split_at(at);
        pieces.push(piece.trim_end().to_owned());
        rest = more.trim_start();
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

#[cfg(test)]
mod tests {
    use super::{speech_pieces, spoken_text};

    #[test]
    fn code_tables_and_addresses_are_not_spoken() {
        let text = "# Result\n\nSee **the** [manual](https://a.example/x) or https://b.example/y now.\n\n```rust\nlet x = 1;\n```\n\n\
            | a | b |\n|---|---|\n| 1 | 2 |\n\n* Run `make`.\n";
        assert_eq!(
            spoken_text(text),
            "Result\nSee the manual or a link now.\nThe code is in the text.\nThe table is in the text.\nRun make."
        );
        assert_eq!(spoken_text("```\nx\n```"), "The code is in the text.");
        assert_eq!(spoken_text("<script>x</script>"), "");
    }

    #[test]
    fn a_long_text_is_split_after_sentences_and_nothing_is_lost() {
        let sentence = "This is one sentence of the text. ";
        let text = sentence.repeat(400);
        let all = speech_pieces(&text);
        assert!(all.len() > 2);
        assert!(
            all.iter()
                .all(|piece| piece.chars().count() <= 4096 && piece.ends_with('.'))
        );
        assert_eq!(all.join(" "), text.trim());
        let endless = "x".repeat(10_000);
        let all = speech_pieces(&endless);
        assert_eq!((all.len(), all.concat()), (3, endless));
        assert_eq!(speech_pieces("  "), Vec::<String>::new());
    }
}
