//! Markdown in platforms' own markups (C6): what a platform can't show becomes plain text.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::message::MarkupFormat;

/// Converts Markdown to a platform's own markup.
pub(crate) fn dress(text: &str, markup: MarkupFormat) -> String {
    match markup {
        MarkupFormat::Markdown => text.to_owned(),
        MarkupFormat::TelegramHtml => telegram_html(text),
        MarkupFormat::Mrkdwn => slack_mrkdwn(text),
        MarkupFormat::Whatsapp => whatsapp_markup(text),
        MarkupFormat::Html => page_html(text),
        MarkupFormat::Plain => plain_text(text),
    }
}

/// How one markup writes things.
struct MarkupStyle {
    strong: (&'static str, &'static str),
    emphasis: (&'static str, &'static str),
    strike: (&'static str, &'static str),
    code: (&'static str, &'static str),
    block: (&'static str, &'static str),
    quote: (&'static str, &'static str),
    heading: (&'static str, &'static str),
    escape: fn(&str) -> String,
    /// The text of code. Some markups end code at the next backticks, whatever is written.
    escape_code: fn(&str) -> String,
    link: fn(url: &str, label: &str) -> String,
}

/// The tags that Telegram and a page have in common.
const TAGS: MarkupStyle = MarkupStyle {
    strong: ("<b>", "</b>"),
    emphasis: ("<i>", "</i>"),
    strike: ("<s>", "</s>"),
    code: ("<code>", "</code>"),
    block: ("<pre>", "</pre>"),
    quote: ("<blockquote>", "</blockquote>"),
    heading: ("<b>", "</b>"),
    escape: html_text,
    escape_code: html_text,
    link: |url, label| {
        format!(
            "<a href=\"{}\">{label}</a>",
            html_text(url).replace('"', "&quot;")
        )
    },
};

/// Telegram's HTML.
pub(crate) fn telegram_html(text: &str) -> String {
    write(text, &TAGS)
}

/// HTML for a page: what is not ours is escaped, and a link leads to the web or to a mail address only.
pub(crate) fn page_html(text: &str) -> String {
    let style = MarkupStyle {
        escape: escape_attribute,
        escape_code: escape_attribute,
        link: |url, label| {
            format!(
                "<a href=\"{}\" target=\"_blank\" rel=\"noopener noreferrer\">{label}</a>",
                escape_attribute(url)
            )
        },
        ..TAGS
    };
    write(text, &style)
}

/// A text that may stand between quotation marks, too.
fn escape_attribute(text: &str) -> String {
    html_text(text).replace('"', "&quot;").replace('\'', "&#39;")
}

/// Slack's mrkdwn.
pub(crate) fn slack_mrkdwn(text: &str) -> String {
    write(
        text,
        &MarkupStyle {
            strong: ("*", "*"),
            emphasis: ("_", "_"),
            strike: ("~", "~"),
            code: ("`", "`"),
            block: ("```\n", "```"),
            quote: ("> ", ""),
            heading: ("*", "*"),
            escape: html_text,
            escape_code: |text| html_text(&replace_backticks(text)),
            link: |url, label| {
                let url = html_text(url).replace('|', "%7C");
                format!("<{url}|{label}>")
            },
        },
    )
}

/// WhatsApp's marks. They can't be escaped: marks in a word may format it.
pub(crate) fn whatsapp_markup(text: &str) -> String {
    write(
        text,
        &MarkupStyle {
            strong: ("*", "*"),
            emphasis: ("_", "_"),
            strike: ("~", "~"),
            code: ("`", "`"),
            block: ("```\n", "```"),
            quote: ("> ", ""),
            heading: ("*", "*"),
            escape: str::to_owned,
            escape_code: replace_backticks,
            link: labelled_link,
        },
    )
}

/// Code in which nothing ends it: where backticks would, marks that look the same stand there.
fn replace_backticks(text: &str) -> String {
    // Code in a line ends at one backtick, a block at three. A block ends in a line end.
    if text.contains("```") || !text.ends_with('\n') {
        text.replace('`', "\u{2cb}")
    } else {
        text.to_owned()
    }
}

/// A link's label with its address behind it.
fn labelled_link(url: &str, label: &str) -> String {
    if label == url {
        url.to_owned()
    } else {
        format!("{label} ({url})")
    }
}

/// Plain text.
pub(crate) fn plain_text(text: &str) -> String {
    write(
        text,
        &MarkupStyle {
            strong: ("", ""),
            emphasis: ("", ""),
            strike: ("", ""),
            code: ("", ""),
            block: ("", ""),
            quote: ("> ", ""),
            heading: ("", ""),
            escape: str::to_owned,
            escape_code: str::to_owned,
            link: labelled_link,
        },
    )
}

fn html_text(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// What is being written.
struct Page<'s> {
    style: &'s MarkupStyle,
    out: String,
    /// Links that are open: where to, and where their label begins.
    links: Vec<(String, usize)>,
    /// Lists that are open: the next number of a numbered one.
    lists: Vec<Option<u64>>,
    /// A table's row has a cell already.
    cell: bool,
    /// A block of code is open, with this text so far.
    in_code: bool,
    code: String,
}

fn write(text: &str, style: &MarkupStyle) -> String {
    let mut page = Page {
        style,
        out: String::with_capacity(text.len()),
        links: Vec::new(),
        lists: Vec::new(),
        cell: false,
        in_code: false,
        code: String::new(),
    };
    for event in Parser::new_ext(text, Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TABLES) {
        page.write_event(event);
    }
    page.out.truncate(page.out.trim_end().len());
    page.out
}

impl Page<'_> {
    fn write_event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start_tag(tag),
            Event::End(tag) => self.end_tag(tag),
            // What looks like markup of somebody else is shown as it stands.
            Event::Text(text) if self.in_code => self.code.push_str(&text),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => {
                self.out.push_str(&(self.style.escape)(&text));
            }
            Event::Code(text) | Event::InlineMath(text) | Event::DisplayMath(text) => {
                let (open, close) = self.style.code;
                self.out
                    .push_str(&format!("{open}{}{close}", (self.style.escape_code)(&text)));
            }
            Event::SoftBreak | Event::HardBreak => self.out.push('\n'),
            Event::Rule => self.write_paragraph("———"),
            Event::FootnoteReference(name) => self.out.push_str(&format!("[{}]", (self.style.escape)(&name))),
            Event::TaskListMarker(done) => self.out.push_str(if done { "[x] " } else { "[ ] " }),
        }
    }

    fn write_paragraph(&mut self, text: &str) {
        self.ensure_line_ends(2);
        self.out.push_str(text);
    }

    /// At least so many line ends, unless it is the beginning.
    fn ensure_line_ends(&mut self, lines: usize) {
        if self.out.is_empty() {
            return;
        }
        let there = self.out.len() - self.out.trim_end_matches('\n').len();
        for _ in there..lines {
            self.out.push('\n');
        }
    }

    fn start_tag(&mut self, tag: Tag<'_>) {
        let style = self.style;
        match tag {
            Tag::Paragraph => {
                let in_item = self.lists.last().is_some() && self.out.ends_with(' ');
                let in_quote = !style.quote.0.is_empty() && self.out.ends_with(style.quote.0);
                if !in_item && !in_quote {
                    self.ensure_line_ends(2);
                }
            }
            Tag::Heading { .. } => self.write_paragraph(style.heading.0),
            Tag::BlockQuote(_) => self.write_paragraph(style.quote.0),
            // No markup of ours names a language.
            Tag::CodeBlock(_) => {
                self.write_paragraph(style.block.0);
                self.in_code = true;
            }
            Tag::List(first) => {
                self.ensure_line_ends(if self.lists.is_empty() { 2 } else { 1 });
                self.lists.push(first);
            }
            Tag::Item => {
                self.ensure_line_ends(1);
                let indent = "  ".repeat(self.lists.len().saturating_sub(1));
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    Some(None) | None => "• ".to_owned(),
                };
                self.out.push_str(&format!("{indent}{mark}"));
            }
            Tag::Emphasis => self.out.push_str(style.emphasis.0),
            Tag::Strong => self.out.push_str(style.strong.0),
            Tag::Strikethrough => self.out.push_str(style.strike.0),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push((dest_url.into_string(), self.out.len()));
            }
            Tag::TableHead | Tag::TableRow => {
                self.ensure_line_ends(1);
                self.cell = false;
            }
            Tag::TableCell => {
                if std::mem::replace(&mut self.cell, true) {
                    self.out.push_str(" | ");
                }
            }
            Tag::Table(_) => self.ensure_line_ends(2),
            Tag::HtmlBlock
            | Tag::FootnoteDefinition(_)
            | Tag::DefinitionList
            | Tag::DefinitionListTitle
            | Tag::DefinitionListDefinition
            | Tag::Superscript
            | Tag::Subscript
            | Tag::MetadataBlock(_) => {}
        }
    }

    fn end_tag(&mut self, tag: TagEnd) {
        let style = self.style;
        match tag {
            TagEnd::Heading(_) => self.out.push_str(style.heading.1),
            TagEnd::BlockQuote(_) => {
                self.out.truncate(self.out.trim_end().len());
                self.out.push_str(style.quote.1);
            }
            TagEnd::CodeBlock => {
                self.in_code = false;
                let code = std::mem::take(&mut self.code);
                self.out.push_str(&(style.escape_code)(&code));
                self.out.push_str(style.block.1);
            }
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::Emphasis => self.out.push_str(style.emphasis.1),
            TagEnd::Strong => self.out.push_str(style.strong.1),
            TagEnd::Strikethrough => self.out.push_str(style.strike.1),
            TagEnd::Link | TagEnd::Image => {
                if let Some((url, at)) = self.links.pop() {
                    let label = self.out.split_off(at);
                    let lower = url.to_ascii_lowercase();
                    let web = ["https://", "http://", "mailto:"]
                        .iter()
                        .any(|scheme| lower.starts_with(scheme));
                    let shown = if web { (style.link)(&url, &label) } else { label };
                    self.out.push_str(&shown);
                }
            }
            TagEnd::Paragraph
            | TagEnd::Item
            | TagEnd::Table
            | TagEnd::TableHead
            | TagEnd::TableRow
            | TagEnd::TableCell
            | TagEnd::HtmlBlock
            | TagEnd::FootnoteDefinition
            | TagEnd::DefinitionList
            | TagEnd::DefinitionListTitle
            | TagEnd::DefinitionListDefinition
            | TagEnd::Superscript
            | TagEnd::Subscript
            | TagEnd::MetadataBlock(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{page_html, plain_text, slack_mrkdwn, telegram_html};

    const TEXT: &str = "# Title\n\nA **bold** and *slanted* `x < y` [link](https://a.example/?q=1&r=2).\n\n- one\n- two\n  1. deep\n\n```rust\nif a < b {}\n```\n\n> said\n\n<b>raw</b> [bad](javascript:alert(1))";

    #[test]
    fn markdown_becomes_each_platforms_own() {
        assert_eq!(
            telegram_html(TEXT),
            "<b>Title</b>\n\nA <b>bold</b> and <i>slanted</i> <code>x &lt; y</code> <a href=\"https://a.example/?q=1&amp;r=2\">link</a>.\n\n• one\n• two\n  1. deep\n\n<pre>if a &lt; b {}\n</pre>\n\n<blockquote>said</blockquote>\n\n&lt;b&gt;raw&lt;/b&gt; bad"
        );
        assert!(slack_mrkdwn(TEXT).contains("<https://a.example/?q=1&amp;r=2|link>"));
        assert!(plain_text(TEXT).contains("link (https://a.example/?q=1&r=2)"));
        assert!(!plain_text(TEXT).contains("**"));
    }

    #[test]
    fn nothing_of_a_text_is_a_tag_or_leaves_its_attribute() {
        let evil = "[a](<https://x.example/\"onclick=\"alert(1)>) [b](javascript:alert(1)) [c](JavaScript:alert(1)) \
                    [d](data:text/html,x) `</code><script>` <img src=x onerror=alert(1)>\n\n<script>alert(1)</script>";
        for made in [telegram_html(evil), page_html(evil)] {
            assert!(!made.contains("<script") && !made.contains("<img"), "{made}");
            assert!(
                !made.to_lowercase().contains("href=\"javascript") && !made.contains("data:text"),
                "{made}"
            );
            let inside = made.split("href=\"").nth(1).unwrap().split('>').next().unwrap();
            assert!(!inside.contains("onclick=\"alert"), "{made}");
        }
        assert!(slack_mrkdwn("<!channel> <@U1>").contains("&lt;!channel&gt; &lt;@U1&gt;"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Whatever is written, tags are balanced and nothing of the text is a tag.
        #[test]
        fn telegram_html_is_always_balanced(text in "[a-z<>&*_`#\\[\\]()~ \\n-]{0,200}") {
            let html = telegram_html(&text);
            let mut open = Vec::new();
            for part in html.split('<').skip(1) {
                let tag = part.split('>').next().unwrap();
                match tag.strip_prefix('/') {
                    Some(name) => prop_assert_eq!(open.pop(), Some(name.to_owned())),
                    None => open.push(tag.split(' ').next().unwrap().to_owned()),
                }
            }
            prop_assert!(open.is_empty(), "{}", html);
        }
    }
}
