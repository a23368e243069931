//! Renders streamed Markdown in a terminal: a block when it is complete, a code block line by line.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use unicode_width::UnicodeWidthStr;

use crate::out::{TerminalStyle, sanitize_block};

/// Takes pieces of text and returns what can be shown.
#[derive(Debug)]
pub(crate) struct MarkdownStream {
    paint: TerminalStyle,
    width: usize,
    /// Text that is not shown yet.
    pending: String,
    /// The fence that ends the current code block.
    fence: Option<String>,
}

impl MarkdownStream {
    /// Makes a stream. `width`: columns at which lines are wrapped.
    pub(crate) const fn new(paint: TerminalStyle, width: usize) -> Self {
        Self {
            paint,
            width,
            pending: String::new(),
            fence: None,
        }
    }

    /// Adds a piece. Returns the complete parts.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        self.pending.push_str(&sanitize_block(piece));
        let mut shown = String::new();
        while let Some(end) = self.complete_length() {
            let rest = self.pending.split_off(end);
            let block = std::mem::replace(&mut self.pending, rest);
            shown.push_str(&self.render_block(&block));
        }
        shown
    }

    /// Returns the rest, complete or not.
    pub(crate) fn finish(&mut self) -> String {
        let block = std::mem::take(&mut self.pending);
        let shown = if block.trim().is_empty() {
            String::new()
        } else {
            self.render_block(&block)
        };
        self.fence = None;
        shown
    }

    /// Returns the length of the first complete part: a line inside a code block, the opening line of a fence, else text up to a
    /// blank line.
    fn complete_length(&self) -> Option<usize> {
        let first = self.pending.find('\n')? + 1;
        if self.fence.is_some() {
            return Some(first);
        }
        let mut end = 0;
        for line in self
            .pending
            .split_inclusive('\n')
            .take_while(|line| line.ends_with('\n'))
        {
            if opening_fence(line).is_some() {
                // The text before the fence is complete, too.
                return Some(if end == 0 { line.len() } else { end });
            }
            end += line.len();
            if line.trim().is_empty() {
                return Some(end);
            }
        }
        None
    }

    fn render_block(&mut self, block: &str) -> String {
        if let Some(fence) = &self.fence {
            let line = block.trim_end_matches('\n');
            if line.trim_start().starts_with(fence.as_str())
                && line.trim().chars().all(|c| fence.starts_with(c))
            {
                self.fence = None;
                return "\n".to_owned();
            }
            return format!("    {}\n", self.paint.cyan(line));
        }
        if let Some(fence) = opening_fence(block) {
            self.fence = Some(fence);
            return String::new();
        }
        if block.trim().is_empty() {
            return String::new();
        }
        // Tables are unchanged, because they are already aligned.
        if block.trim_start().starts_with('|') {
            return format!("{}\n\n", block.trim_end());
        }
        MarkdownLayout::new(self.paint, self.width).render(block)
    }
}

/// Returns the fence that a line opens, if any.
fn opening_fence(line: &str) -> Option<String> {
    let line = line.trim_start();
    ["`", "~"].iter().find_map(|mark| {
        let count = line.chars().take_while(|c| mark.starts_with(*c)).count();
        (count >= 3).then(|| mark.repeat(count))
    })
}

/// The layout of one block: words in wrapped lines, with the prefixes of lists and quotes.
struct MarkdownLayout {
    paint: TerminalStyle,
    width: usize,
    out: String,
    words: Vec<MarkdownWord>,
    /// The next text starts a new word.
    apart: bool,
    /// Prefix of the next line in place of the innermost indent: a list item's mark.
    mark: Option<String>,
    indents: Vec<String>,
    /// Numbers of open lists; `None` for bullets.
    lists: Vec<Option<u64>>,
    style: MarkdownStyle,
    links: Vec<String>,
}

/// Text that is never broken, and its width without colours.
struct MarkdownWord {
    text: String,
    width: usize,
}

#[derive(Default, Clone, Copy)]
struct MarkdownStyle {
    strong: bool,
    emphasis: bool,
    code: bool,
    code_block: bool,
}

impl MarkdownLayout {
    fn new(paint: TerminalStyle, width: usize) -> Self {
        Self {
            paint,
            width,
            out: String::new(),
            words: Vec::new(),
            apart: true,
            mark: None,
            indents: Vec::new(),
            lists: Vec::new(),
            style: MarkdownStyle::default(),
            links: Vec::new(),
        }
    }

    fn render(mut self, block: &str) -> String {
        for event in Parser::new_ext(block, Options::empty()) {
            self.handle_event(event);
        }
        self.flush();
        self.out.push('\n');
        self.out
    }

    fn handle_event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start_tag(tag),
            Event::End(tag) => self.end_tag(tag),
            Event::Text(text) if self.style.code_block => self.write_verbatim(&text),
            Event::Code(code) => {
                self.style.code = true;
                self.write_text(&code);
                self.style.code = false;
            }
            Event::Text(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::Html(text)
            | Event::InlineHtml(text)
            | Event::FootnoteReference(text) => self.write_text(&text),
            Event::SoftBreak => self.apart = true,
            Event::HardBreak => self.flush(),
            Event::Rule => {
                let rule = self.paint.dim(&"─".repeat(self.width.min(40)));
                self.out.push_str(&rule);
                self.out.push('\n');
            }
            Event::TaskListMarker(_) => {}
        }
    }

    fn start_tag(&mut self, tag: Tag<'_>) {
        self.flush_before(&tag);
        match tag {
            Tag::Heading { .. } | Tag::Strong => self.style.strong = true,
            Tag::Emphasis => self.style.emphasis = true,
            Tag::BlockQuote(_) => self.indents.push(self.paint.dim("│ ")),
            Tag::CodeBlock(_) => self.style.code_block = true,
            Tag::List(first) => self.lists.push(first),
            Tag::Item => {
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{:>2}. ", number.saturating_sub(1))
                    }
                    _ => " • ".to_owned(),
                };
                self.indents.push(" ".repeat(mark.width()));
                self.mark = Some(mark);
            }
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push(dest_url.into_string())
            }
            _ => {}
        }
    }

    /// Starts a block on its own line.
    fn flush_before(&mut self, tag: &Tag<'_>) {
        if !matches!(
            tag,
            Tag::Strong | Tag::Emphasis | Tag::Link { .. } | Tag::Image { .. }
        ) {
            self.flush();
        }
    }

    fn end_tag(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Strong => self.style.strong = false,
            TagEnd::Emphasis => self.style.emphasis = false,
            TagEnd::Link | TagEnd::Image => self.end_link(),
            TagEnd::Heading(_) => {
                self.flush();
                self.style.strong = false;
            }
            TagEnd::BlockQuote(_) | TagEnd::Item => {
                self.flush();
                self.indents.pop();
                self.mark = None;
            }
            TagEnd::CodeBlock => self.style.code_block = false,
            TagEnd::List(_) => {
                self.flush();
                self.lists.pop();
            }
            _ => self.flush(),
        }
    }

    /// Always shows the target of a link, because the link's text may be misleading.
    fn end_link(&mut self) {
        let Some(link) = self.links.pop() else { return };
        let shown = self.words.last().is_some_and(|word| word.text.contains(&link));
        if !shown && !link.is_empty() {
            self.apart = true;
            self.push(&format!("({link})"));
        }
    }

    fn write_verbatim(&mut self, text: &str) {
        for line in text.lines() {
            let prefix = self.line_prefix();
            self.out
                .push_str(&format!("{prefix}    {}\n", self.paint.cyan(line)));
        }
    }

    fn write_text(&mut self, text: &str) {
        for (index, piece) in text.split([' ', '\n']).enumerate() {
            self.apart |= index > 0;
            if !piece.is_empty() {
                self.push(piece);
            }
        }
    }

    fn push(&mut self, piece: &str) {
        let styled = match self.style {
            MarkdownStyle { code: true, .. } => self.paint.cyan(piece),
            MarkdownStyle { strong: true, .. } => self.paint.bold(piece),
            MarkdownStyle { emphasis: true, .. } => self.paint.italic(piece),
            _ => piece.to_owned(),
        };
        match self.words.last_mut() {
            Some(word) if !self.apart => {
                word.text.push_str(&styled);
                word.width += piece.width();
            }
            _ => self.words.push(MarkdownWord {
                text: styled,
                width: piece.width(),
            }),
        }
        self.apart = false;
    }

    /// Lays out the collected words.
    fn flush(&mut self) {
        let words = std::mem::take(&mut self.words);
        self.apart = true;
        let margin = self.indents.len() * 3;
        let mut used = 0;
        for word in words {
            if used > 0 && margin + used + 1 + word.width > self.width {
                self.out.push('\n');
                used = 0;
            }
            if used == 0 {
                let prefix = self.line_prefix();
                self.out.push_str(&prefix);
            } else {
                self.out.push(' ');
                used += 1;
            }
            self.out.push_str(&word.text);
            used += word.width;
        }
        if used > 0 {
            self.out.push('\n');
        }
    }

    fn line_prefix(&mut self) -> String {
        let mut prefix = self.indents.concat();
        if let (Some(mark), Some(inner)) = (self.mark.take(), self.indents.last()) {
            prefix.truncate(prefix.len().saturating_sub(inner.len()));
            prefix.push_str(&mark);
        }
        prefix
    }
}

#[cfg(test)]
mod tests {
    use super::MarkdownStream;
    use crate::out::TerminalStyle;

    fn plain(width: usize, pieces: &[&str]) -> Vec<String> {
        let mut stream = MarkdownStream::new(TerminalStyle::for_tests(false), width);
        let mut shown: Vec<String> = pieces.iter().map(|piece| stream.push(piece)).collect();
        shown.push(stream.finish());
        shown
    }

    #[test]
    fn a_block_is_shown_when_it_is_complete() {
        let shown = plain(40, &["Hello **wo", "rld**.\n", "\nNext", " one"]);
        assert_eq!(shown, ["", "", "Hello world.\n\n", "", "Next one\n\n"]);
    }

    #[test]
    fn wraps_words_under_their_list_marks() {
        let shown = plain(20, &["1. one two three four five\n2. six\n   * inner\n\n"]).concat();
        assert_eq!(
            shown,
            " 1. one two three\n    four five\n 2. six\n     • inner\n\n"
        );
    }

    #[test]
    fn code_blocks_come_line_by_line_and_unwrapped() {
        let shown = plain(10, &["See:\n```sh\nls -l a very long line\n", "x\n```\nend"]);
        assert_eq!(shown[0], "See:\n\n    ls -l a very long line\n");
        assert_eq!(shown[1], "    x\n\n");
        assert_eq!(shown[2], "end\n\n");
    }

    #[test]
    fn a_link_shows_where_it_leads_and_nothing_steers_the_terminal() {
        let shown = plain(80, &["[home](https://example.com/x) \x1b[2J\n\n"]).concat();
        assert_eq!(shown, "home (https://example.com/x) ·[2J\n\n");
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let mut stream = MarkdownStream::new(TerminalStyle::for_tests(true), 12);
        let shown = stream.push("**one** two\n`three` four\n\n");
        assert_eq!(shown, "\x1b[1mone\x1b[0m two\n\x1b[36mthree\x1b[0m four\n\n");
    }
}
