//! What a person sees of a mail's HTML. Text that a mail program does not show is an old way to write to a machine behind the reader's
//! back: it never reaches the model. Pure.
//!
//! The reader errs on the side of hiding: it knows the common ways, not all of CSS.

mod style;

use mail_parser::decoders::html::html_to_text;

use self::style::{StyleDeclarations, StyleSheet, parse_declarations};

/// Elements that have no end tag.
const VOID: [&str; 14] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track",
    "wbr",
];
/// Elements whose content is text up to their own end tag, and is not shown.
const RAW: [&str; 8] = [
    "script", "style", "title", "xmp", "iframe", "noembed", "noframes", "textarea",
];
/// Elements whose content no mail program shows.
const NEVER_SHOWN: [&str; 4] = ["head", "template", "datalist", "object"];
/// Elements that end an open paragraph.
const BLOCKS: [&str; 16] = [
    "p",
    "div",
    "table",
    "ul",
    "ol",
    "dl",
    "pre",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "blockquote",
    "section",
];
/// Elements that end an open one of their own name.
const SIBLINGS: [&str; 7] = ["li", "td", "th", "tr", "dt", "dd", "option"];
/// Elements open at a time; below them everything is taken for hidden.
const MAX_DEPTH: usize = 512;

/// The text that is shown, and whether anything was left out.
pub(super) fn visible_text(html: &str) -> (String, bool) {
    let mut reader = VisibleHtmlReader {
        shown: String::with_capacity(html.len()),
        hid: false,
        open: Vec::new(),
        sheet: StyleSheet::read(html),
    };
    reader.read(html);
    (html_to_text(&reader.shown), reader.hid)
}

/// How an element shows its text; children begin with their parent's.
#[derive(Debug, Clone, Copy)]
struct ElementVisibility {
    /// Nothing below it is shown.
    gone: bool,
    /// Not shown, though a child may be.
    invisible: bool,
    tiny: bool,
    colour: Option<[u8; 3]>,
    background: [u8; 3],
}

const PAGE: ElementVisibility = ElementVisibility {
    gone: false,
    invisible: false,
    tiny: false,
    colour: None,
    background: [255, 255, 255],
};

impl ElementVisibility {
    fn is_visible(&self) -> bool {
        let same = |colour: [u8; 3]| {
            let near = |(one, other): (u8, u8)| one.abs_diff(other) <= 8;
            colour.into_iter().zip(self.background).all(near)
        };
        !self.gone && !self.invisible && !self.tiny && !self.colour.is_some_and(same)
    }

    /// The same below an element that declares this.
    fn with_declarations(mut self, declared: &StyleDeclarations) -> Self {
        self.gone |= declared.gone;
        self.invisible = declared.invisible.unwrap_or(self.invisible);
        self.tiny = declared.tiny.unwrap_or(self.tiny);
        self.colour = declared.colour.or(self.colour);
        self.background = declared.background.unwrap_or(self.background);
        self
    }
}

/// A start tag.
#[derive(Debug, Default)]
struct Tag {
    name: String,
    attributes: Vec<(String, String)>,
}

impl Tag {
    fn attribute(&self, name: &str) -> Option<&str> {
        let mut found = self.attributes.iter().filter(|(known, _)| known == name);
        found.next().map(|(_, value)| value.as_str())
    }
}

struct VisibleHtmlReader {
    /// HTML without attributes, with what is shown alone.
    shown: String,
    hid: bool,
    open: Vec<(String, ElementVisibility)>,
    sheet: StyleSheet,
}

impl VisibleHtmlReader {
    fn current_visibility(&self) -> ElementVisibility {
        self.open.last().map_or(PAGE, |(_, look)| *look)
    }

    fn read(&mut self, html: &str) {
        let mut rest = html;
        while let Some((text, after)) = rest.split_once('<') {
            self.add_text(text);
            rest = self.read_markup(after);
        }
        self.add_text(rest);
    }

    fn add_text(&mut self, text: &str) {
        if self.current_visibility().is_visible() {
            self.shown.push_str(text);
        } else if !text.trim().is_empty() {
            self.hid = true;
        }
    }

    /// What stands behind a `<`; returns what follows it.
    fn read_markup<'t>(&mut self, after: &'t str) -> &'t str {
        if let Some(comment) = after.strip_prefix("!--") {
            return behind_comment(comment);
        }
        if let Some(end) = after.strip_prefix('/') {
            if end.starts_with(|c: char| c.is_ascii_alphabetic()) {
                let (tag, rest) = parse_tag(end);
                self.end_element(&tag.name);
                return rest;
            }
            return after_match(end, ">");
        }
        if after.starts_with(['!', '?']) {
            return after_match(after, ">");
        }
        if !after.starts_with(|c: char| c.is_ascii_alphabetic()) {
            self.add_text("&lt;");
            return after;
        }
        let (tag, rest) = parse_tag(after);
        if RAW.contains(&tag.name.as_str()) {
            return behind_element(rest, &tag.name);
        }
        self.begin_element(&tag);
        rest
    }

    fn begin_element(&mut self, tag: &Tag) {
        let name = tag.name.as_str();
        if BLOCKS.contains(&name) && self.open.iter().any(|(open, _)| open == "p") {
            self.end_element("p");
        }
        // A cell or an item ends the one before it, within its own table or list.
        if SIBLINGS.contains(&name) {
            let holder = |open: &str| matches!(open, "table" | "ul" | "ol" | "dl" | "select");
            let mut inner = self.open.iter().rev().take_while(|(open, _)| !holder(open));
            if inner.any(|(open, _)| open == name) {
                self.end_element(name);
            }
        }
        let mut look = self.current_visibility();
        look.gone |= NEVER_SHOWN.contains(&name) || self.open.len() >= MAX_DEPTH;
        let look = look.with_declarations(&self.declarations_of(tag));
        let void = VOID.contains(&name);
        if look.is_visible() || matches!(name, "br" | "p") {
            self.shown.push_str(&format!("<{name}>"));
        }
        if !void && self.open.len() < MAX_DEPTH {
            self.open.push((tag.name.clone(), look));
        }
    }

    fn declarations_of(&self, tag: &Tag) -> StyleDeclarations {
        let class = tag.attribute("class").unwrap_or_default();
        let id = tag.attribute("id").unwrap_or_default();
        let mut all = self.sheet.declarations_for(&tag.name, class, id);
        if let Some(colour) = tag.attribute("color") {
            all.merge_later(&parse_declarations(&format!("color:{colour}")));
        }
        if let Some(colour) = tag.attribute("bgcolor") {
            all.merge_later(&parse_declarations(&format!("background-color:{colour}")));
        }
        if tag.name == "font" && tag.attribute("size").is_some_and(|size| size.trim() == "0") {
            all.tiny = Some(true);
        }
        all.merge_later(&parse_declarations(tag.attribute("style").unwrap_or_default()));
        let hidden = tag.attribute("hidden").is_some()
            || tag
                .attribute("aria-hidden")
                .is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
        all.gone |= hidden;
        all
    }

    fn end_element(&mut self, name: &str) {
        let Some(at) = self.open.iter().rposition(|(open, _)| open == name) else {
            return;
        };
        if self.current_visibility().is_visible() || name == "p" {
            self.shown.push_str(&format!("</{name}>"));
            // Words of two blocks are two words.
            if name != "p" && (BLOCKS.contains(&name) || matches!(name, "tr" | "li" | "td")) {
                self.shown.push_str("<br>");
            }
        }
        self.open.truncate(at);
    }
}

/// What follows the first `end`; nothing, where there is none.
fn after_match<'t>(text: &'t str, end: &str) -> &'t str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

fn behind_comment(text: &str) -> &str {
    // An empty comment may be written in short.
    if let Some(rest) = text.strip_prefix('>').or_else(|| text.strip_prefix("->")) {
        return rest;
    }
    let ends = ["-->", "--!>"].into_iter();
    let first = ends.filter_map(|end| Some((text.find(end)?, end.len()))).min();
    first
        .and_then(|(at, length)| text.get(at + length..))
        .unwrap_or_default()
}

/// What follows the end tag of an element whose content is text.
fn behind_element<'t>(text: &'t str, name: &str) -> &'t str {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("</") {
        let named = after
            .get(..name.len())
            .is_some_and(|found| found.eq_ignore_ascii_case(name));
        let ends = after.get(name.len()..).is_some_and(|tail| {
            tail.starts_with(|c: char| c.is_ascii_whitespace() || matches!(c, '>' | '/'))
        });
        if named && ends {
            return after_match(after, ">");
        }
        rest = after;
    }
    ""
}

/// A tag, whose name stands first, and what follows it.
fn parse_tag(text: &str) -> (Tag, &str) {
    let ends = |c: char| c.is_ascii_whitespace() || matches!(c, '>' | '/');
    let (name, mut rest) = split_where(text, ends);
    let mut tag = Tag {
        name: name.to_ascii_lowercase(),
        ..Tag::default()
    };
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
        if let Some(after) = rest.strip_prefix('>') {
            return (tag, after);
        }
        if let Some(after) = rest.strip_prefix('/') {
            rest = after;
            continue;
        }
        if rest.is_empty() {
            return (tag, "");
        }
        let ends = |c: char| c.is_ascii_whitespace() || matches!(c, '=' | '>' | '/');
        // An equals sign at the beginning is part of the name.
        let lead = usize::from(rest.starts_with('='));
        let (found, _) = split_where(rest.get(lead..).unwrap_or_default(), ends);
        let (name, after) = rest.split_at_checked(lead + found.len()).unwrap_or((rest, ""));
        let unspaced = after.trim_start_matches(|c: char| c.is_ascii_whitespace());
        let (value, after) = match unspaced.strip_prefix('=') {
            Some(value) => value_of(value),
            None => ("", after),
        };
        tag.attributes
            .push((name.to_ascii_lowercase(), style::unescape_text(value)));
        rest = after;
    }
}

/// The value of an attribute, and what follows it.
fn value_of(text: &str) -> (&str, &str) {
    let text = text.trim_start_matches(|c: char| c.is_ascii_whitespace());
    for mark in ['"', '\''] {
        if let Some(quoted) = text.strip_prefix(mark) {
            return quoted.split_once(mark).unwrap_or((quoted, ""));
        }
    }
    split_where(text, |c: char| c.is_ascii_whitespace() || c == '>')
}

fn split_where(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(ends).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::visible_text;

    fn shown(html: &str) -> String {
        visible_text(html)
            .0
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn what_no_mail_program_shows_is_left_out() {
        for hidden in [
            "<div style=\"display:none\">SECRET</div>",
            "<div style='DISPLAY : NONE !important'>SECRET</div>",
            "<div style=display:none>SECRET</div>",
            "<div style=\"display&#58;none\">SECRET</div>",
            "<div style=\"display:/* x */none\">SECRET</div>",
            "<div style=\"d\\69splay:none\">SECRET</div>",
            "<div style=\"color:red;display:none;\"><p><b>SECRET</b></p></div>",
            "<span style=\"visibility:hidden\">SECRET</span>",
            "<span style=\"visibility: collapse\">SECRET</span>",
            "<span style=\"opacity:0\">SECRET</span>",
            "<span style=\"opacity:0.0\">SECRET</span>",
            "<span style=\"font-size:0\">SECRET</span>",
            "<span style=\"font-size:0px\">SECRET</span>",
            "<span style=\"font-size:0.1em\">SECRET</span>",
            "<span style=\"font-size:1px\">SECRET</span>",
            "<span style=\"font:0/0 a\">SECRET</span>",
            "<font size=0>SECRET</font>",
            "<font color=white>SECRET</font>",
            "<font color=\"#ffffff\">SECRET</font>",
            "<span style=\"color:#fff\">SECRET</span>",
            "<span style=\"color:rgb(255, 255, 255)\">SECRET</span>",
            "<span style=\"color:#fefefe\">SECRET</span>",
            "<span style=\"color:transparent\">SECRET</span>",
            "<span style=\"color:rgba(0,0,0,0)\">SECRET</span>",
            "<td bgcolor=black><font color=\"#000\">SECRET</font></td>",
            "<div style=\"background:#123456\"><span style=\"color:#123456\">SECRET</span></div>",
            "<div style=\"max-height:0;overflow:hidden\">SECRET</div>",
            "<div style=\"height:0px;overflow:hidden\">SECRET</div>",
            "<div style=\"width:0;overflow:hidden\">SECRET</div>",
            "<div style=\"position:absolute;left:-9999px\">SECRET</div>",
            "<div style=\"text-indent:-9999px\">SECRET</div>",
            "<div style=\"mso-hide:all\">SECRET</div>",
            "<div style=\"clip:rect(0,0,0,0);position:absolute\">SECRET</div>",
            "<div style=\"transform:scale(0)\">SECRET</div>",
            "<div hidden>SECRET</div>",
            "<div HIDDEN=\"\">SECRET</div>",
            "<div aria-hidden=\"true\">SECRET</div>",
            "<!-- SECRET -->",
            "<!-- > SECRET -->",
            "<!--[if mso]> SECRET <![endif]-->",
            "<style>.x{display:none}</style><p class=\"a x\">SECRET</p>",
            "<style>@media all { #pre { visibility : hidden } }</style><p id=pre>SECRET</p>",
            "<style>b{font-size:0}</style><b>SECRET</b>",
            "<style>div.x, span.y{display:none}</style><div class=x>SECRET</div>",
            "<script>SECRET</script>",
            "<style>SECRET</style>",
            "<title>SECRET</title>",
            "<head><meta content=SECRET>SECRET</head>",
            "<template>SECRET</template>",
            "<textarea hidden>SECRET</textarea>",
            "<div hidden title=\"</div>\">SECRET</div>",
            "<div hidden></p>SECRET</div>",
            "<div hidden><![CDATA[</div>]]>SECRET</div>",
            "<div hidden><!-- </div> -->SECRET</div>",
            "<div hidden><script>'</div>'</script>SECRET</div>",
            "<img alt=\"SECRET\">",
        ] {
            let html = format!("<p>Before</p>{hidden}<p>After</p>");
            assert_eq!(shown(&html), "Before After", "{hidden}");
        }
    }

    #[test]
    fn what_is_shown_stays() {
        for visible in [
            "<div style=\"display:block\">SEEN</div>",
            "<td style=\"font-size:0\"><span style=\"font-size:14px\">SEEN</span></td>",
            "<div style=\"visibility:hidden\"><b style=\"visibility:visible\">SEEN</b></div>",
            "<td bgcolor=\"#003366\"><font color=white>SEEN</font></td>",
            "<div style=\"background-color:#222;color:#fff\">SEEN</div>",
            "<div aria-hidden=false>SEEN</div>",
            "<div hidden>x</div>SEEN",
            "<p hidden>x<p>SEEN",
            "<ul><li hidden>x<li>SEEN</ul>",
            "<p style=\"display:none\">x</p><p>SEEN</p>",
            "<div style=\"height:0\">SEEN</div>",
            "<!---->SEEN",
            "<!-->SEEN",
            "<a href=\"https://x.test\">SEEN</a>",
            "<style>.x{display:none}</style><p class=xy>SEEN</p>",
            "<style>.x{display:none}</style><p>SEEN</p>",
            "<div style=\"opacity:0.8\">SEEN</div>",
            "<div style=\"font-size:14px;line-height:0\">SEEN</div>",
        ] {
            let html = format!("<p>Before</p>{visible} <p>After</p>");
            assert_eq!(shown(&html), "Before SEEN After", "{visible}");
        }
        assert_eq!(shown("1 < 2 &amp; 3"), "1 < 2 & 3");
        assert!(!visible_text("<p>a</p>").1);
        assert!(visible_text("<p hidden>a</p>").1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Nothing that stands inside of a hidden element gets out of it without that element's end tag.
        #[test]
        fn a_hidden_element_holds_what_is_in_it(
            inner in proptest::collection::vec(prop_oneof![
                Just("<p>"), Just("</p>"), Just("<b>"), Just("</b>"), Just("<td>"), Just("</td>"), Just("<br>"), Just("<!-- -->"),
                Just("<i title='</div>'>"), Just("<![CDATA[</div>]]>"), Just("SECRET"), Just("<script></div></script>"),
            ], 0..12),
        ) {
            let html = format!("<div hidden>{}SECRET</div>", inner.concat());
            prop_assert!(!visible_text(&html).0.contains("SECRET"), "{}", html);
        }
    }
}
