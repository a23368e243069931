//! Names that others chose, in a form that is safe to show in one line.

/// How many characters of a platform's names are shown.
const NAME_CHARS: usize = 100;

/// A platform's name in one line, without invisible characters and without those that change the direction of text.
pub(crate) fn harmless(name: &str) -> String {
    let plain = |c: char| {
        let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{ad}');
        if c.is_control() || matches!(c, '[' | ']' | '\u{2028}' | '\u{2029}') || hidden {
            '·'
        } else {
            c
        }
    };
    name.chars().take(NAME_CHARS).map(plain).collect()
}
