//! Converts HTML to readable text in one pass, without building a tree. Memory is bounded by the input. Broken markup gives text,
//! never an error.

/// Elements whose content is not shown.
const HIDDEN: [&str; 8] = [
    "script", "style", "noscript", "template", "svg", "iframe", "object", "canvas",
];

/// Elements that start and end a line.
const BLOCKS: [&str; 28] = [
    "p",
    "div",
    "section",
    "article",
    "header",
    "footer",
    "main",
    "nav",
    "aside",
    "ul",
    "ol",
    "table",
    "tr",
    "form",
    "blockquote",
    "pre",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "dl",
    "dt",
    "dd",
    "figure",
    "hr",
    "br",
];

/// Returns the page's title, if it has one, and its text.
pub(super) fn extract_readable(html: &str) -> (Option<String>, String) {
    let mut out = ReadableText::default();
    let mut title = None;
    let mut rest = html;
    while let Some((before, after)) = rest.split_once('<') {
        out.add_words(&decode_references(before));
        let Some((tag, behind)) = Tag::parse(after) else {
            out.add_words("<");
            rest = after;
            continue;
        };
        rest = behind;
        if !tag.closing && tag.name == "title" {
            let (text, behind) = until_closing(rest, "title");
            title = title.or_else(|| {
                Some(
                    decode_references(text)
                        .split_whitespace()
                        .collect::<Vec<_>>()
                        .join(" "),
                )
            });
            rest = behind;
        } else if !tag.closing && HIDDEN.contains(&tag.name.as_str()) {
            rest = until_closing(rest, &tag.name).1;
        } else if tag.name == "li" && !tag.closing {
            out.end_line();
            out.add_words("- ");
        } else if BLOCKS.contains(&tag.name.as_str()) {
            out.end_line();
            if !tag.closing
                && let Some(level) = heading_level(&tag.name)
            {
                out.add_words(&format!("{} ", "#".repeat(level)));
            }
        } else if tag.name == "td" || tag.name == "th" {
            out.add_words(" ");
        }
    }
    out.add_words(&decode_references(rest));
    (title.filter(|title| !title.is_empty()), out.finish())
}

fn heading_level(name: &str) -> Option<usize> {
    name.strip_prefix('h')?
        .parse()
        .ok()
        .filter(|level| (1..=6).contains(level)) // silent-ok: `hr` is no heading
}

struct Tag {
    name: String,
    closing: bool,
}

impl Tag {
    /// Parses the text after a `<`. Returns the tag and the rest. Comments and declarations get an empty name.
    fn parse(after: &str) -> Option<(Self, &str)> {
        if let Some(comment) = after.strip_prefix("!--") {
            let behind = comment.split_once("-->").map_or("", |(_, behind)| behind);
            return Some((
                Self {
                    name: String::new(),
                    closing: false,
                },
                behind,
            ));
        }
        let (closing, body) = match after.strip_prefix('/') {
            Some(body) => (true, body),
            None => (false, after),
        };
        if !body.starts_with(|c: char| c.is_ascii_alphabetic() || c == '!' || c == '?') {
            return None;
        }
        let end = tag_end(body)?;
        let inside = body.get(..end)?;
        let name = inside
            .split(|c: char| !c.is_ascii_alphanumeric())
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase();
        Some((Self { name, closing }, body.get(end + 1..)?))
    }
}

/// The position of the tag's `>`, ignoring quoted ones.
fn tag_end(body: &str) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in body.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(at),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

/// The text up to `</name`, and the rest after that tag.
fn until_closing<'a>(rest: &'a str, name: &str) -> (&'a str, &'a str) {
    let mut from = 0;
    while let Some(at) = rest
        .get(from..)
        .and_then(|part| part.find("</"))
        .map(|at| from + at)
    {
        let behind = rest.get(at + 2..).unwrap_or_default();
        if behind
            .get(..name.len())
            .is_some_and(|found| found.eq_ignore_ascii_case(name))
        {
            let after = behind.split_once('>').map_or("", |(_, after)| after);
            return (rest.get(..at).unwrap_or_default(), after);
        }
        from = at + 2;
    }
    (rest, "")
}

/// Builds the text: blanks are collapsed, and paragraphs are separated by at most one empty line.
#[derive(Default)]
struct ReadableText {
    out: String,
    blank: bool,
}

impl ReadableText {
    fn add_words(&mut self, text: &str) {
        for character in text.chars() {
            if character.is_whitespace() || character == '\u{a0}' {
                self.blank = true;
                continue;
            }
            if std::mem::take(&mut self.blank) && !self.out.is_empty() && !self.out.ends_with('\n') {
                self.out.push(' ');
            }
            self.out.push(character);
        }
    }

    fn end_line(&mut self) {
        self.blank = false;
        if !self.out.is_empty() && !self.out.ends_with('\n') {
            self.out.push('\n');
        }
    }

    fn finish(self) -> String {
        self.out.trim().to_owned()
    }
}

/// Decodes character references: numeric ones and the most common names.
fn decode_references(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let name = after
            .split(';')
            .next()
            .filter(|name| name.len() <= 10 && name.len() < after.len());
        match name.and_then(|name| Some((named_character(name)?, name))) {
            Some((decoded, name)) => {
                out.push(decoded);
                rest = after.get(name.len() + 1..).unwrap_or_default();
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

fn named_character(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?, // silent-ok: then it is text
            None => number.parse().ok()?,                    // silent-ok: then it is text
        };
        return char::from_u32(code);
    }
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => ' ',
        "ndash" => '–',
        "mdash" => '—',
        "hellip" => '…',
        "lsquo" => '‘',
        "rsquo" => '’',
        "ldquo" => '“',
        "rdquo" => '”',
        "copy" => '©',
        "reg" => '®',
        "trade" => '™',
        "bull" => '•',
        "middot" => '·',
        "times" => '×',
        "deg" => '°',
        "euro" => '€',
        "auml" => 'ä',
        "ouml" => 'ö',
        "uuml" => 'ü',
        "Auml" => 'Ä',
        "Ouml" => 'Ö',
        "Uuml" => 'Ü',
        "szlig" => 'ß',
        "eacute" => 'é',
        "egrave" => 'è',
        _ => return None,
    })
}
