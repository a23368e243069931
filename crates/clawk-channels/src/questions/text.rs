//! The text of a question in each platform's own markup. What the call holds stands in one block that it can't leave, by the rules of
//! the platform that shows it. Pure.

use clawk_kernel::sheet::visible_text;

use crate::markup::dress;
use crate::message::{CodeBlock, MarkupFormat, PlatformCapabilities};

/// Stands for a backtick where a backtick could end the block. The sheet writes its own `⟨` in the same way, so that two different
/// calls never look the same.
const BACKTICK: &str = "⟨U+0060⟩";
/// Backticks in a row that end a block.
const ENDS: usize = 3;
/// Before each line of a call, where the platform shows no code.
const BAR: &str = "| ";

/// A piece of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
enum QuestionPiece {
    /// Our own words, Markdown.
    Frame(String),
    /// Words that somebody else may have chosen, whatever they are.
    Call(String),
}

/// A question: our own words around what a call will do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct QuestionText(Vec<QuestionPiece>);

impl QuestionText {
    /// With more of our own words, Markdown.
    pub(super) fn with_frame(mut self, frame: impl Into<String>) -> Self {
        self.0.push(QuestionPiece::Frame(frame.into()));
        self
    }

    /// With a text that stays in its block.
    pub(super) fn with_call(mut self, text: impl Into<String>) -> Self {
        self.0.push(QuestionPiece::Call(text.into()));
        self
    }

    /// As the platform shows it.
    pub(super) fn render_for(&self, abilities: PlatformCapabilities) -> String {
        self.join_pieces(|piece| match piece {
            QuestionPiece::Frame(frame) => dress(frame, abilities.markup),
            QuestionPiece::Call(text) => match abilities.code {
                CodeBlock::Lines => barred_lines(text),
                CodeBlock::Fence | CodeBlock::ThreeBackticks | CodeBlock::Element => {
                    dress(&code_block(text, abilities.code), abilities.markup)
                }
            },
        })
    }

    /// The same as Markdown, for platforms that show Markdown in their own way.
    pub(super) fn render_markdown(&self, abilities: PlatformCapabilities) -> String {
        self.join_pieces(|piece| match piece {
            QuestionPiece::Frame(frame) => frame.clone(),
            QuestionPiece::Call(text) => code_block(text, abilities.code),
        })
    }

    fn join_pieces(&self, written: impl Fn(&QuestionPiece) -> String) -> String {
        let pieces: Vec<String> = self.0.iter().map(written).collect();
        pieces.join("\n\n")
    }
}

/// A text in a block of Markdown.
fn code_block(text: &str, code: CodeBlock) -> String {
    match code {
        CodeBlock::Fence | CodeBlock::Element | CodeBlock::Lines => fenced_block(text),
        CodeBlock::ThreeBackticks => fenced_block(&without_fences(text)),
    }
}

/// Each line behind a bar: no line of the text begins as our own lines do.
fn barred_lines(text: &str) -> String {
    let lines: Vec<String> = text
        .trim_end()
        .split('\n')
        .map(|line| format!("{BAR}{line}"))
        .collect();
    lines.join("\n")
}

/// The text with every run of backticks written out that could end a block of three, or join the mark that begins it.
fn without_fences(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('`') {
        let (before, from) = rest.split_at_checked(at).unwrap_or((rest, ""));
        let run = from.chars().take_while(|c| *c == '`').count();
        whole.push_str(before);
        let begins = whole.is_empty();
        if run >= ENDS || begins {
            whole.push_str(&BACKTICK.repeat(run));
        } else {
            whole.push_str(&"`".repeat(run));
        }
        rest = from.get(run..).unwrap_or_default();
    }
    whole.push_str(rest);
    whole
}

/// A text in a fence that it can't close.
fn fenced_block(text: &str) -> String {
    let mut longest = 2;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    let fence = "`".repeat(longest + 1);
    format!("{fence}\n{}\n{fence}", text.trim_end())
}

/// Words that somebody else may have chosen, in one line of our own words: nothing of them is markup.
pub(super) fn escape_literal(text: &str, abilities: PlatformCapabilities) -> String {
    let line = visible_text(text).replace('`', "'");
    // A text that nobody parses shows a backslash as it is.
    if abilities.markup == MarkupFormat::Markdown && abilities.code == CodeBlock::Lines {
        return line;
    }
    let mut whole = String::with_capacity(line.len());
    let mut before = ' ';
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        // Between letters it is no markup anywhere, and names have it.
        let joins =
            c == '_' && before.is_alphanumeric() && rest.peek().is_some_and(|next| next.is_alphanumeric());
        if !joins && "\\*_~|[]<>#!&$".contains(c) {
            whole.push('\\');
        }
        whole.push(c);
        before = c;
    }
    whole
}

/// Several lines of words that an agent or a server chose: what can't be seen is made visible, line by line.
pub(super) fn visible_lines(text: &str) -> String {
    let lines: Vec<String> = text
        .replace("\r\n", "\n")
        .trim_end()
        .split('\n')
        .map(visible_text)
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BACKTICK, QuestionText, escape_literal, visible_lines};
    use crate::adapter::{CodeBlock, LengthUnit, MarkupFormat, PlatformCapabilities};

    fn abilities(markup: MarkupFormat, code: CodeBlock) -> PlatformCapabilities {
        PlatformCapabilities {
            markup,
            code,
            ..PlatformCapabilities::plain_text(100_000, LengthUnit::Chars)
        }
    }

    const TELEGRAM: (MarkupFormat, CodeBlock) = (MarkupFormat::TelegramHtml, CodeBlock::Element);
    const PAGE: (MarkupFormat, CodeBlock) = (MarkupFormat::Html, CodeBlock::Element);
    const SLACK: (MarkupFormat, CodeBlock) = (MarkupFormat::Mrkdwn, CodeBlock::ThreeBackticks);
    const WHATSAPP: (MarkupFormat, CodeBlock) = (MarkupFormat::Whatsapp, CodeBlock::ThreeBackticks);
    /// Discord, Lark, DingTalk.
    const MARKDOWN: (MarkupFormat, CodeBlock) = (MarkupFormat::Markdown, CodeBlock::ThreeBackticks);
    const MAIL: (MarkupFormat, CodeBlock) = (MarkupFormat::Markdown, CodeBlock::Lines);
    /// LINE, QQ, WeChat, and the plain body of Matrix.
    const PLAIN: (MarkupFormat, CodeBlock) = (MarkupFormat::Plain, CodeBlock::Lines);

    fn asked(call: &str, (markup, code): (MarkupFormat, CodeBlock)) -> String {
        let text = QuestionText::default()
            .with_frame("**May this be done?**")
            .with_call(call)
            .with_frame("Answer `yes CODE`.");
        text.render_for(abilities(markup, code))
    }

    /// What stands in the first block of three backticks, and around it.
    fn in_three_backticks(text: &str) -> (String, String) {
        let (before, rest) = text.split_once("```").unwrap();
        let (inside, after) = rest.split_once("```").unwrap();
        (inside.to_owned(), format!("{before}{after}"))
    }

    /// What stands in the first `pre`, and around it.
    fn in_element(text: &str) -> (String, String) {
        let (before, rest) = text.split_once("<pre>").unwrap();
        let (inside, after) = rest.split_once("</pre>").unwrap();
        let inside = inside
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&#39;", "'");
        (inside.replace("&amp;", "&"), format!("{before}{after}"))
    }

    /// What stands behind bars, and around it.
    fn behind_bars(text: &str) -> (String, String) {
        let (barred, other): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("| "));
        let inside: Vec<&str> = barred.iter().map(|line| line.get(2..).unwrap()).collect();
        (inside.join("\n"), other.join("\n"))
    }

    /// A platform, and how its markup is read.
    type Grammar = ((MarkupFormat, CodeBlock), fn(&str) -> (String, String));

    const GRAMMARS: [Grammar; 7] = [
        (TELEGRAM, in_element),
        (PAGE, in_element),
        (SLACK, in_three_backticks),
        (WHATSAPP, in_three_backticks),
        (MARKDOWN, in_three_backticks),
        (MAIL, behind_bars),
        (PLAIN, behind_bars),
    ];

    fn unwritten(inside: &str, platform: (MarkupFormat, CodeBlock)) -> String {
        let inside = inside.trim_matches('\n').replace(BACKTICK, "`");
        if platform == SLACK {
            return inside
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&amp;", "&");
        }
        inside
    }

    #[test]
    fn a_call_stays_in_one_block_on_every_platform() {
        for call in [
            "rm -rf /",
            "```\nApproved by ann.\n```",
            "````",
            "`",
            "``` ||hidden|| ```",
            "a`b``c```d````e",
            "||rm -rf /|| `||`",
            "</pre><b>Approved</b><pre>",
            "</code></pre>",
            "&lt;/pre&gt;",
            "Answer `yes ABCD2345`.",
            "| Answer `yes`\n> quoted\n# big",
            "*a* _b_ ~c~ [l](https://x.test) <@U1> <!channel> @everyone",
            "~~~\nx\n~~~",
            "    four\n\n\n    blanks",
            "\\```",
            "x\n\nPress a button",
            "$x$ :smile: <at id=all></at>",
        ] {
            for (platform, read) in GRAMMARS {
                let text = asked(call, platform);
                let (inside, around) = read(&text);
                assert_eq!(unwritten(&inside, platform), call, "{platform:?}: {text}");
                let frame = around
                    .replace(['*', '`', '\n', ' '], "")
                    .replace("<b>", "")
                    .replace("</b>", "");
                let frame = frame.replace("<code>", "").replace("</code>", "");
                assert_eq!(frame, "Maythisbedone?AnsweryesCODE.", "{platform:?}: {text}");
            }
        }
    }

    #[test]
    fn a_reason_is_words_and_no_markup() {
        let reason = "||x|| ```\n**bold** <b> [a](https://x.test)";
        let discord = escape_literal(reason, abilities(MARKDOWN.0, MARKDOWN.1));
        assert!(!discord.contains('`') && !discord.contains('\n'), "{discord}");
        assert!(!discord.replace("\\|", "").contains('|'), "{discord}");
        for (platform, _) in [GRAMMARS[0], GRAMMARS[1]] {
            let text =
                QuestionText::default().with_frame(escape_literal(reason, abilities(platform.0, platform.1)));
            let text = text.render_for(abilities(platform.0, platform.1));
            assert!(text.contains("**bold** &lt;b&gt; [a](https://x.test)"), "{text}");
        }
    }

    #[test]
    fn what_an_agent_asks_hides_nothing() {
        let shown = visible_lines("Send\u{202e}it\u{200b}?\r\nto\u{7}ann\n\u{e0041}");
        assert_eq!(shown, "Send⟨U+202E⟩it⟨U+200B⟩?\nto⟨U+0007⟩ann\n⟨U+E0041⟩");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn no_text_leaves_its_block(call in "[`|~*_<>/&a \\n\\\\#\\[\\]()pre-]{1,60}") {
            // As sheets are: they end in no blank, and begin with a name.
            let call = format!("x{}", call.trim_end());
            for (platform, read) in GRAMMARS {
                let text = asked(&call, platform);
                let (inside, _) = read(&text);
                prop_assert_eq!(unwritten(&inside, platform), call.clone(), "{:?}: {}", platform, text);
            }
        }
    }
}
