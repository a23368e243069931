//! Splits Rust source into tokens, without comments and literals, so that a check reads code only.

/// A word (keyword, identifier, number) or one character of punctuation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SourceToken<'text> {
    pub(super) text: &'text str,
    /// Line number, from 1.
    pub(super) line: usize,
}

/// Returns the tokens of a source file in order.
pub(super) fn split_tokens(text: &str) -> Vec<SourceToken<'_>> {
    let mut cursor = TextCursor { rest: text, line: 1 };
    let mut tokens = Vec::new();
    while let Some(first) = cursor.rest.chars().next() {
        let line = cursor.line;
        if cursor.rest.starts_with("//") {
            cursor.skip_past("\n");
        } else if cursor.rest.starts_with("/*") {
            cursor.skip_block_comment();
        } else if first == '"' {
            cursor.skip_string();
        } else if first == '\'' {
            cursor.skip_character();
        } else if is_word(first) {
            let end = cursor.rest.find(|c| !is_word(c)).unwrap_or(cursor.rest.len());
            let text = cursor.advance(end);
            if !(["r", "br", "cr"].contains(&text) && cursor.skip_raw_string()) {
                tokens.push(SourceToken { text, line });
            }
        } else {
            let text = cursor.advance(first.len_utf8());
            if !first.is_whitespace() {
                tokens.push(SourceToken { text, line });
            }
        }
    }
    tokens
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The unread rest of the text, and the line on which it starts.
struct TextCursor<'text> {
    rest: &'text str,
    line: usize,
}

impl<'text> TextCursor<'text> {
    /// Reads `bytes` bytes, or the rest if it is shorter.
    fn advance(&mut self, bytes: usize) -> &'text str {
        let (read, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.line += read.matches('\n').count();
        self.rest = rest;
        read
    }

    /// Skips to the end of the next `mark`, or to the end of the text.
    fn skip_past(&mut self, mark: &str) {
        let end = self.rest.find(mark).map(|at| at + mark.len());
        self.advance(end.unwrap_or(self.rest.len()));
    }

    /// Skips a block comment with nested comments.
    fn skip_block_comment(&mut self) {
        let mut depth = 0_usize;
        while let Some(first) = self.rest.chars().next() {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.advance(2);
            } else if self.rest.starts_with("*/") {
                depth = depth.saturating_sub(1);
                self.advance(2);
                if depth == 0 {
                    return;
                }
            } else {
                self.advance(first.len_utf8());
            }
        }
    }

    fn skip_string(&mut self) {
        self.advance(1);
        while let Some(first) = self.rest.chars().next() {
            self.advance(first.len_utf8());
            match first {
                '"' => return,
                '\\' => self.skip_one(),
                _ => {}
            }
        }
    }

    fn skip_one(&mut self) {
        let length = self.rest.chars().next().map_or(0, char::len_utf8);
        self.advance(length);
    }

    /// Skips a complete character literal. For a lifetime, skips only the quote.
    fn skip_character(&mut self) {
        let mut next = self.rest.chars().skip(1);
        let (first, second) = (next.next(), next.next());
        self.advance(1);
        if first == Some('\\') {
            self.advance(1);
            self.skip_one();
            self.skip_past("'");
        } else if second == Some('\'') {
            self.skip_one();
            self.advance(1);
        }
    }

    /// Skips a raw string after its `r`. Returns `false` and reads nothing if there is no raw string.
    fn skip_raw_string(&mut self) -> bool {
        let quoted = self.rest.trim_start_matches('#');
        let hashes = self.rest.len() - quoted.len();
        if !quoted.starts_with('"') {
            return false;
        }
        self.advance(hashes + 1);
        self.skip_past(&format!("\"{}", "#".repeat(hashes)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::split_tokens;

    #[test]
    fn comments_and_literals_are_left_out() {
        let text = r##"
// struct Line
/* struct /* struct Inner */ Outer */
let a = "struct \" Text
over two lines"; let b = r#"struct " Raw"#;
let c = ('"', '\'', '\u{7b}', b'{'); fn f<'a>(x: &'a str) {}
"##;
        let tokens = split_tokens(text);
        let words: Vec<&str> = tokens.iter().map(|token| token.text).collect();
        assert_eq!(
            words.join(" "),
            "let a = ; let b = ; let c = ( , , , b ) ; fn f < a > ( x : & a str ) { }"
        );
        let function = tokens.iter().find(|token| token.text == "fn");
        assert_eq!(function.map(|token| token.line), Some(6));
    }
}
