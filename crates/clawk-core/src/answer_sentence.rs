//! An answer's sentences, by its punctuation and lines: no language is known here.

/// The longest sentence, bytes; a longer one is cut at a blank.
const MAX_BYTES: usize = 2_000;

/// A piece of an answer that is judged as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerSentence {
    /// Bytes from the answer's beginning.
    pub start: usize,
    /// Where it ends, and where its mark stands.
    pub end: usize,
}

/// Everything that an answer says is in one of its sentences; a fenced block is one, and so is a row of a table.
pub fn split(text: &str) -> Vec<AnswerSentence> {
    let mut found = Vec::new();
    let mut at = 0;
    let mut fence: Option<(usize, &str)> = None;
    for line in text.split_inclusive('\n') {
        let (start, bare) = (at, line.trim_end());
        at += line.len();
        let end = start + bare.len();
        match (fence_of(bare), fence) {
            (None, Some(_)) => {}
            (Some(mark), None) => fence = Some((start, mark)),
            (Some(mark), Some((begin, open))) => {
                if mark == open {
                    found.push(AnswerSentence { start: begin, end });
                    fence = None;
                }
            }
            (None, None) if bare.trim_start().starts_with('|') => {
                push(&mut found, text, start, row_end(bare, end))
            }
            (None, None) => line_of(&mut found, text, start, end),
        }
    }
    // A block that nobody closed is a block to its end.
    if let Some((start, _)) = fence {
        found.push(AnswerSentence {
            start,
            end: text.trim_end().len(),
        });
    }
    found.into_iter().flat_map(|one| shortened(text, one)).collect()
}

/// The mark of a fence that this line opens or closes.
fn fence_of(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark))
}

/// A mark stands inside a table's last cell.
fn row_end(row: &str, end: usize) -> usize {
    match row.strip_suffix('|') {
        Some(rest) if rest.trim_start().len() > 1 => end - (row.len() - rest.trim_end().len()),
        Some(_) | None => end,
    }
}

fn line_of(found: &mut Vec<AnswerSentence>, text: &str, start: usize, end: usize) {
    let line = text.get(start..end).unwrap_or_default();
    let mut begin = start;
    let mut chars = line.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !ends_sentence(c) {
            continue;
        }
        let mut behind = at + c.len_utf8();
        // Further ends, and what closes: quotes, brackets, emphasis.
        while let Some((_, next)) = chars.peek().copied().filter(|(_, next)| closes(*next)) {
            behind += next.len_utf8();
            chars.next();
        }
        let wide = !c.is_ascii() && c != '…' && c != '؟';
        let ends = wide || chars.peek().is_none_or(|(_, next)| next.is_whitespace());
        if ends {
            push(found, text, begin, start + behind);
            begin = start + behind;
        }
    }
    push(found, text, begin, end);
}

const fn ends_sentence(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…' | '。' | '！' | '？' | '｡' | '؟' | '।')
}

const fn closes(c: char) -> bool {
    ends_sentence(c)
        || matches!(
            c,
            '"' | '\'' | '”' | '’' | '»' | '«' | ')' | ']' | '}' | '*' | '_' | '`' | '」' | '』' | '）'
        )
}

/// Keeps it, unless it is markup alone.
fn push(found: &mut Vec<AnswerSentence>, text: &str, start: usize, end: usize) {
    let piece = text.get(start..end).unwrap_or_default();
    if piece
        .chars()
        .all(|c| c.is_whitespace() || c.is_ascii_punctuation())
    {
        return;
    }
    let lead = piece.len() - piece.trim_start().len();
    let end = start + piece.trim_end().len();
    found.push(AnswerSentence {
        start: start + lead,
        end,
    });
}

/// The sentence in pieces of at most [`MAX_BYTES`].
fn shortened(text: &str, sentence: AnswerSentence) -> Vec<AnswerSentence> {
    let mut pieces = Vec::new();
    let mut start = sentence.start;
    // A fenced block stays whole: a mark inside it would be code.
    let block = text
        .get(sentence.start..sentence.end)
        .is_some_and(|piece| fence_of(piece).is_some());
    while !block && sentence.end - start > MAX_BYTES {
        let most = text.floor_char_boundary(start + MAX_BYTES);
        let piece = text.get(start..most).unwrap_or_default();
        let cut = piece.rfind(char::is_whitespace).filter(|at| *at > 0);
        let end = cut.map_or(most, |at| start + at);
        pieces.push(AnswerSentence { start, end });
        start = end;
    }
    pieces.push(AnswerSentence {
        start,
        end: sentence.end,
    });
    pieces
}

/// What stands between a sentence and its mark: a mark behind a fenced block has a line of its own.
pub(crate) fn before_mark(text: &str, at: usize) -> &'static str {
    let before = text.get(..at).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    match fence_of(line) {
        Some(_) => "\n",
        None => " ",
    }
}
