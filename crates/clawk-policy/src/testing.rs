//! Test data for tests and benchmarks. Secrets are generated at run time from templates, so that no fixture looks like a real key.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::Value;

/// A small random generator with a fixed seed (SplitMix64): it gives the same test data each time.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// A generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 for 0.
    pub fn below(&mut self, n: usize) -> usize {
        let n = u64::try_from(n).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.roll() % n).unwrap_or(0)
    }

    /// A random element.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    fn text(&mut self, set: &str, len: usize) -> String {
        let letters: &[u8] = match set {
            "digits" => b"123456789023456789",
            "hex" => b"0123456789abcdef",
            "upper" => b"ACDEFGHJKLMNPQRSTUVWXYZ023456789",
            "base32" => b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
            "url" => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
            "b64" => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
            _ => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
        };
        let mut out: String = (0..len)
            .filter_map(|_| self.pick(letters).map(|byte| char::from(*byte)))
            .collect();
        // A token of this length without a digit and a letter is too rare to break a test.
        if set != "digits" && len >= 4 {
            out.replace_range(len - 2..len, if set == "hex" { "a7" } else { "Z7" });
        }
        out
    }
}

/// A text with the kind of secret that must be found in it.
#[derive(Debug, Clone)]
pub struct Case {
    /// The kind, as in [`crate::leak::Kind::word`].
    pub kind: String,
    /// The template of the text.
    pub template: String,
    /// The text.
    pub text: String,
    /// The random parts; a redacted text must not contain any of them.
    pub parts: Vec<String>,
}

/// Every template of `vectors/policy/secrets.json` in every context.
#[must_use]
pub fn secrets(corpus: &str, seed: u64) -> Vec<Case> {
    let mut dice = Dice::new(seed);
    let data: Value = serde_json::from_str(corpus).unwrap_or_default(); // silent-ok: an empty corpus fails its tests
    let contexts = texts(member(&data, "contexts"));
    let mut cases = Vec::new();
    for shape in member(&data, "shapes").as_array().into_iter().flatten() {
        for template in texts(member(shape, "templates")) {
            for context in &contexts {
                let (secret, parts) = fill(&template, &mut dice);
                cases.push(Case {
                    kind: member(shape, "kind").as_str().unwrap_or_default().to_owned(),
                    template: template.clone(),
                    text: context.replace("{}", &secret),
                    parts,
                });
            }
        }
    }
    cases
}

fn member<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

/// Reads a list of texts.
#[must_use]
pub fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

fn fill(template: &str, dice: &mut Dice) -> (String, Vec<String>) {
    let (mut out, mut parts, mut rest) = (String::new(), Vec::new(), template);
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let (what, next) = after.split_once('}').unwrap_or((after, ""));
        let made = make(what, dice);
        out.push_str(&made);
        if made.len() >= 12 {
            parts.push(made);
        }
        rest = next;
    }
    out.push_str(rest);
    (out, parts)
}

fn make(what: &str, dice: &mut Dice) -> String {
    let (name, argument) = what.split_once(':').unwrap_or((what, ""));
    match name {
        "pem" => {
            let lines: Vec<String> = (0..12).map(|_| dice.text("b64", 64)).collect();
            format!(
                "-----BEGIN {argument}-----\n{}\n-----END {argument}-----",
                lines.join("\n")
            )
        }
        "jwt" => {
            let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
            let claims = URL_SAFE_NO_PAD.encode(format!(
                r#"{{"sub":"u-{}","role":"ops"}}"#,
                dice.text("digits", 6)
            ));
            format!("{header}.{claims}.{}", dice.text("url", 43))
        }
        "discord" => {
            let id = format!("7{}", dice.text("digits", 17));
            format!(
                "{}.{}.{}",
                STANDARD_NO_PAD.encode(id),
                dice.text("alnum", 6),
                dice.text("alnum", 38)
            )
        }
        "basic" => STANDARD_NO_PAD.encode(format!("svc-deploy:{}", dice.text("alnum", 18))),
        set => dice.text(set, argument.parse().unwrap_or(0)), // silent-ok: an empty secret fails its test
    }
}

/// The names of the disguises for an attack.
pub const DRESSES: &[&str] = &[
    "plain",
    "upper",
    "zero-width",
    "look-alike",
    "spaced",
    "dotted",
    "leet",
    "fullwidth",
    "accents",
    "bold",
    "soft-hyphen",
    "lines",
    "base64",
    "rot13",
    "reversed",
    "tags",
    "selectors",
    "html-comment",
    "json",
];

/// Disguises an attack.
#[must_use]
pub fn dress(name: &str, text: &str, dice: &mut Dice) -> String {
    match name {
        "upper" => text.to_uppercase(),
        "lines" => text.replace(' ', "\n"),
        "base64" => STANDARD_NO_PAD.encode(text),
        "reversed" => text.chars().rev().collect(),
        "html-comment" => format!("<p>Welcome</p><!-- {text} --><p>Bye</p>"),
        "json" => serde_json::json!({"title": "Report", "body": text}).to_string(),
        "selectors" => {
            let selector = |b: u8| char::from_u32(if b < 16 { 0xfe00 } else { 0xe00f0 } + u32::from(b));
            text.bytes().filter_map(selector).collect()
        }
        _ => text.chars().map(|c| worn(name, c, dice)).collect(),
    }
}

fn shifted(c: char, base: u32, from: char) -> String {
    let code = base + u32::from(c) - u32::from(from);
    char::from_u32(code).map(String::from).unwrap_or_default()
}

/// Disguises one character.
fn worn(name: &str, c: char, dice: &mut Dice) -> String {
    let among = |from: &str, to: &str| {
        let at = from.chars().position(|other| other == c);
        at.and_then(|at| to.chars().nth(at)).unwrap_or(c).to_string()
    };
    match name {
        "zero-width" => {
            let hidden = ["\u{200b}", "\u{2060}", "\u{200d}", ""];
            format!("{c}{}", dice.pick(&hidden).unwrap_or(&""))
        }
        "look-alike" if dice.below(3) > 0 => {
            among("aeoipsc", "\u{430}\u{435}\u{3bf}\u{456}\u{440}\u{455}\u{441}")
        }
        "spaced" => format!("{c} "),
        "dotted" if c != ' ' => format!("{c}."),
        "leet" => among("oieast", "013457"),
        "fullwidth" if c.is_ascii_graphic() => shifted(c, 0xff01, '!'),
        "bold" if c.is_ascii_lowercase() => shifted(c, 0x1d41a, 'a'),
        "bold" if c.is_ascii_uppercase() => shifted(c, 0x1d400, 'A'),
        "accents" if "aeiou".contains(c) => format!("{c}\u{301}"),
        "soft-hyphen" => format!("{c}\u{ad}"),
        "rot13" if c.is_ascii_alphabetic() => {
            let base = if c.is_ascii_lowercase() { 'a' } else { 'A' };
            char::from_u32((u32::from(c) - u32::from(base) + 13) % 26 + u32::from(base))
                .unwrap_or(c)
                .to_string()
        }
        "tags" if c.is_ascii_graphic() || c == ' ' => shifted(c, 0xe0020, ' '),
        _ => c.to_string(),
    }
}
