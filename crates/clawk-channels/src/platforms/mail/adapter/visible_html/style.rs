//! As much of CSS as says whether a text can be seen. Pure.

/// Rules of one mail that are read.
const MAX_RULES: usize = 2_000;
/// A font below so many pixels can't be read.
const LEAST_PX: f32 = 3.0;

/// What declarations say of an element.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct StyleDeclarations {
    /// Nothing of it, or below it, is shown.
    pub(super) gone: bool,
    pub(super) invisible: Option<bool>,
    pub(super) tiny: Option<bool>,
    pub(super) colour: Option<[u8; 3]>,
    pub(super) background: Option<[u8; 3]>,
}

impl StyleDeclarations {
    /// With what `later` says.
    pub(super) fn merge_later(&mut self, later: &Self) {
        self.gone |= later.gone;
        self.invisible = later.invisible.or(self.invisible);
        self.tiny = later.tiny.or(self.tiny);
        self.colour = later.colour.or(self.colour);
        self.background = later.background.or(self.background);
    }
}

/// What a `style` attribute, or the body of a rule, declares.
pub(super) fn parse_declarations(style: &str) -> StyleDeclarations {
    let style = normalize_css(style);
    let mut all = StyleDeclarations::default();
    let (mut clips, mut flat) = (false, false);
    for declaration in style.split(';') {
        let Some((name, value)) = declaration.split_once(':') else {
            continue;
        };
        let (name, value) = (name.trim(), value.replace("!important", ""));
        let value = value.trim();
        match name {
            "display" => all.gone |= value == "none",
            "visibility" => all.invisible = Some(matches!(value, "hidden" | "collapse")),
            "opacity" => {
                all.gone |= value
                    .trim_end_matches('%')
                    .parse::<f32>()
                    .is_ok_and(|opacity| opacity <= 0.05)
            }
            "mso-hide" => all.gone |= value == "all",
            "font-size" => all.tiny = parse_pixels(value).map(|px| px < LEAST_PX).or(all.tiny),
            "font" => {
                let mut sizes = value.split([' ', '/']).filter_map(parse_pixels);
                all.tiny = sizes.next().map(|px| px < LEAST_PX).or(all.tiny);
            }
            "color" => match parse_colour(value) {
                Some(CssColour::Rgb(rgb)) => all.colour = Some(rgb),
                Some(CssColour::Transparent) => all.invisible = Some(true),
                None => {}
            },
            "background" | "background-color" => {
                let mut colours = value
                    .split_inclusive([' ', ')'])
                    .filter_map(|word| parse_colour(word.trim()));
                if let Some(CssColour::Rgb(rgb)) = parse_colour(value).or_else(|| colours.next()) {
                    all.background = Some(rgb);
                }
            }
            "overflow" | "overflow-x" | "overflow-y" => clips |= value.contains("hidden"),
            "height" | "max-height" | "width" | "max-width" => {
                flat |= parse_pixels(value).is_some_and(|px| px <= 1.0);
            }
            "left" | "top" | "right" | "bottom" | "text-indent" | "margin-left" | "margin-top" => {
                all.gone |= parse_pixels(value).is_some_and(|px| px <= -500.0);
            }
            "clip" => {
                all.gone |= value
                    .replace([' ', ','], "")
                    .trim_end_matches(')')
                    .ends_with("(0000")
            }
            "clip-path" => {
                all.gone |=
                    value.contains("inset(50%") || value.contains("inset(100%") || value.contains("circle(0")
            }
            "transform" => all.gone |= value.replace(' ', "").contains("scale(0)"),
            _ => {}
        }
    }
    all.gone |= clips && flat;
    all
}

/// Rules with simple selectors: an element's name, a class, an id, or a name with one of them.
#[derive(Debug, Default)]
pub(super) struct StyleSheet(Vec<(CssSelector, StyleDeclarations)>);

#[derive(Debug)]
struct CssSelector {
    element: Option<String>,
    class: Option<String>,
    id: Option<String>,
}

impl StyleSheet {
    /// The rules of all style elements of a mail that say something of sight.
    pub(super) fn read(html: &str) -> Self {
        let mut rules = Vec::new();
        let lower = html.to_ascii_lowercase();
        let mut rest = lower.as_str();
        while let Some((_, after)) = rest.split_once("<style") {
            let (_, body) = after.split_once('>').unwrap_or((after, ""));
            let (body, after) = body.split_once("</style").unwrap_or((body, ""));
            rest = after;
            // A block around rules (`@media`) ends in one brace more, which no selector holds.
            for rule in normalize_css(body).split('}') {
                let Some((selectors, declarations)) = rule.rsplit_once('{') else {
                    continue;
                };
                let said = parse_declarations(declarations);
                if said == StyleDeclarations::default() || rules.len() >= MAX_RULES {
                    continue;
                }
                let selectors = selectors.rsplit(['{', ';']).next().unwrap_or_default();
                rules.extend(
                    selectors
                        .split(',')
                        .filter_map(parse_selector)
                        .map(|one| (one, said)),
                );
            }
        }
        Self(rules)
    }

    /// What the rules say of an element.
    pub(super) fn declarations_for(&self, element: &str, class: &str, id: &str) -> StyleDeclarations {
        let mut all = StyleDeclarations::default();
        let (class, id) = (class.to_ascii_lowercase(), id.to_ascii_lowercase());
        for (selector, said) in &self.0 {
            let of_element = selector.element.as_deref().is_none_or(|name| name == element);
            let of_class = selector
                .class
                .as_deref()
                .is_none_or(|name| class.split_ascii_whitespace().any(|known| known == name));
            let of_id = selector.id.as_deref().is_none_or(|name| name == id.trim());
            if of_element && of_class && of_id {
                all.merge_later(said);
            }
        }
        all
    }
}

/// The last part of a selector; none where it is of another kind than this reader knows.
fn parse_selector(text: &str) -> Option<CssSelector> {
    let last = text.split_ascii_whitespace().next_back()?;
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '#' | '*');
    if !last.chars().all(known) {
        return None;
    }
    let at = last.find(['.', '#']).unwrap_or(last.len());
    let (element, rest) = last.split_at_checked(at)?;
    let of = |mark: char| {
        let (_, name) = rest.split_once(mark)?;
        name.split(['.', '#']).next().map(str::to_owned)
    };
    Some(CssSelector {
        element: Some(element)
            .filter(|name| !name.is_empty() && *name != "*")
            .map(str::to_owned),
        class: of('.'),
        id: of('#'),
    })
}

/// Lower case, without comments and escapes.
fn normalize_css(css: &str) -> String {
    let mut text = String::with_capacity(css.len());
    let mut rest = css;
    while let Some((before, after)) = rest.split_once("/*") {
        text.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    if !text.contains('\\') {
        return text.to_ascii_lowercase();
    }
    let mut whole = String::with_capacity(text.len());
    let mut parts = text.split('\\');
    whole.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.chars().take(6).take_while(char::is_ascii_hexdigit).count();
        let (hex, rest) = part.split_at_checked(digits).unwrap_or(("", part));
        // silent-ok: without digits it is the character itself
        match u32::from_str_radix(hex, 16).ok().and_then(char::from_u32) {
            Some(c) => {
                whole.push(c);
                whole.push_str(rest.strip_prefix(' ').unwrap_or(rest));
            }
            None => whole.push_str(part),
        }
    }
    whole.to_ascii_lowercase()
}

/// A length in pixels, as far as it can be told without the page.
fn parse_pixels(value: &str) -> Option<f32> {
    let value = value.trim();
    let end = value
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+')))
        .unwrap_or(value.len());
    let (number, unit) = value.split_at_checked(end)?;
    let number: f32 = number.parse().ok()?; // silent-ok: a word is no length
    let factor = match unit {
        "px" => 1.0,
        "" if number.abs() < f32::EPSILON => 1.0,
        "pt" => 4.0 / 3.0,
        "em" | "rem" | "ex" | "ch" => 16.0,
        "%" => 0.16,
        "in" | "cm" | "mm" | "vw" | "vh" => 10.0,
        _ => return None,
    };
    Some(number * factor)
}

enum CssColour {
    Rgb([u8; 3]),
    Transparent,
}

/// A colour by name or number; none where it is not one that this reader knows.
fn parse_colour(value: &str) -> Option<CssColour> {
    let named = match value {
        "white" => Some([255, 255, 255]),
        "black" => Some([0, 0, 0]),
        "snow" | "ghostwhite" | "ivory" | "floralwhite" | "mintcream" | "azure" => Some([254, 254, 254]),
        "red" => Some([255, 0, 0]),
        "blue" => Some([0, 0, 255]),
        "green" => Some([0, 128, 0]),
        "yellow" => Some([255, 255, 0]),
        "gray" | "grey" => Some([128, 128, 128]),
        "silver" => Some([192, 192, 192]),
        "navy" => Some([0, 0, 128]),
        "transparent" => return Some(CssColour::Transparent),
        _ => None,
    };
    if let Some(rgb) = named {
        return Some(CssColour::Rgb(rgb));
    }
    if let Some(hex) = value.strip_prefix('#') {
        return of_hex(hex);
    }
    let inner = value.strip_prefix("rgb")?.trim_start_matches('a').trim_start();
    let inner = inner.strip_prefix('(')?.strip_suffix(')')?;
    let numbers: Vec<f32> = inner
        .split([',', ' ', '/'])
        .filter_map(|part| part.trim().trim_end_matches('%').parse().ok()) // silent-ok: too few numbers are no colour
        .collect();
    match numbers.as_slice() {
        [_, _, _, alpha] if *alpha <= 0.05 => Some(CssColour::Transparent),
        [red, green, blue, ..] => Some(CssColour::Rgb([
            nearest_byte(*red),
            nearest_byte(*green),
            nearest_byte(*blue),
        ])),
        _ => None,
    }
}

/// The nearest byte.
fn nearest_byte(number: f32) -> u8 {
    (0..=u8::MAX)
        .find(|byte| f32::from(*byte) >= number)
        .unwrap_or(u8::MAX)
}

fn of_hex(hex: &str) -> Option<CssColour> {
    let digit = |at: usize| {
        hex.chars()
            .nth(at)?
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    }; // silent-ok: below 16
    let pair = |at: usize| Some(digit(at)? * 16 + digit(at + 1)?);
    let twice = |at: usize| digit(at).map(|digit| digit * 17);
    match hex.len() {
        4 if twice(3) == Some(0) => Some(CssColour::Transparent),
        8 if pair(6) == Some(0) => Some(CssColour::Transparent),
        3 | 4 => Some(CssColour::Rgb([twice(0)?, twice(1)?, twice(2)?])),
        6 | 8 => Some(CssColour::Rgb([pair(0)?, pair(2)?, pair(4)?])),
        _ => None,
    }
}

/// A text of an attribute with its character references resolved, as far as style and class need it.
pub(super) fn unescape_text(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    let mut whole = String::with_capacity(text.len());
    let mut parts = text.split('&');
    whole.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.find(|c: char| !(c.is_ascii_alphanumeric() || c == '#'));
        let (name, rest) = part
            .split_at_checked(end.unwrap_or(part.len()))
            .unwrap_or((part, ""));
        match entity_char(name) {
            Some(c) => {
                whole.push(c);
                whole.push_str(rest.strip_prefix(';').unwrap_or(rest));
            }
            None => {
                whole.push('&');
                whole.push_str(part);
            }
        }
    }
    whole
}

fn entity_char(name: &str) -> Option<char> {
    let number = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().and_then(char::from_u32); // silent-ok: no number
    if let Some(digits) = name.strip_prefix("#x").or_else(|| name.strip_prefix("#X")) {
        return number(digits, 16);
    }
    if let Some(digits) = name.strip_prefix('#') {
        return number(digits, 10);
    }
    match name {
        "colon" => Some(':'),
        "semi" => Some(';'),
        "num" => Some('#'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        "amp" => Some('&'),
        "Tab" => Some('\t'),
        "NewLine" => Some('\n'),
        "lpar" => Some('('),
        "rpar" => Some(')'),
        "nbsp" => Some('\u{a0}'),
        _ => None,
    }
}
