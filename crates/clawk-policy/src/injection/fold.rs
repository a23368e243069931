//! Folds a text to its letters, so that disguised text reads as plain text.

use icu_normalizer::DecomposingNormalizerBorrowed;

use crate::input::kind_of;

/// The lower-case letters and digits of a text without anything in between, with their positions in the original.
pub(super) struct FoldedText {
    text: Vec<u8>,
    /// For each byte of `text`: where its character begins in the original, and where the next one begins.
    places: Vec<(u32, u32)>,
    /// For each byte: whether a letter or digit directly precedes it in the original.
    glued: Vec<bool>,
}

impl FoldedText {
    pub(super) fn from_text(original: &str) -> Self {
        let mut folded = Self {
            text: Vec::with_capacity(original.len()),
            places: Vec::with_capacity(original.len()),
            glued: Vec::with_capacity(original.len()),
        };
        let normalizer = DecomposingNormalizerBorrowed::new_nfkd();
        let mut glued = false;
        let mut chars = original.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let next = chars.peek().map_or(original.len(), |(at, _)| *at);
            let place = (to_u32(at), to_u32(next));
            if c.is_ascii() {
                let sign = matches!(c, '@' | '$')
                    && glued
                    && chars.peek().is_some_and(|(_, c)| c.is_ascii_alphanumeric());
                if c.is_ascii_alphanumeric() || sign {
                    folded.push(fold_letter(c.to_ascii_lowercase()), place, glued);
                    glued = true;
                } else {
                    glued = false;
                }
                continue;
            }
            if kind_of(c).is_some() {
                continue; // invisible: what is before and after stands side by side
            }
            let mut any = false;
            for part in normalizer.normalize_iter(std::iter::once(c)) {
                if matches!(part, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{20d0}'..='\u{20ff}') {
                    any = any || glued;
                    continue;
                }
                for lower in look_alike(part).to_lowercase() {
                    let lower = look_alike(lower);
                    if lower.is_alphanumeric() {
                        folded.push(fold_letter(lower), place, glued);
                        any = true;
                    }
                }
            }
            glued = any;
        }
        folded
    }

    fn push(&mut self, c: char, place: (u32, u32), glued: bool) {
        let mut bytes = [0; 4];
        for byte in c.encode_utf8(&mut bytes).bytes() {
            self.text.push(byte);
            self.places.push(place);
            self.glued.push(glued);
        }
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether the range begins and ends at word boundaries.
    pub(super) fn is_whole(&self, start: usize, end: usize) -> bool {
        let glued = |at: usize| self.glued.get(at).copied().unwrap_or(false);
        !glued(start) && !glued(end)
    }

    /// The range in the original text.
    pub(super) fn original_range(&self, start: usize, end: usize) -> (usize, usize) {
        let from = self.places.get(start).map_or(0, |place| place.0);
        let to = self.places.get(end.saturating_sub(1)).map_or(0, |place| place.1);
        (
            usize::try_from(from).unwrap_or(0),
            usize::try_from(to).unwrap_or(0),
        )
    }
}

fn to_u32(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Folds a phrase.
pub(super) fn fold_phrase(phrase: &str) -> Vec<u8> {
    FoldedText::from_text(phrase).text
}

/// The plain letters of a phrase, before digits and look-alikes are unified.
pub(super) fn plain_letters(phrase: &str) -> String {
    phrase
        .chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// Folds letters again after they were decoded.
pub(super) fn refold_text(text: &str) -> Vec<u8> {
    fold_phrase(text)
}

/// Maps digits to the letters they stand for. `l` and `1` become `i`, because they look alike.
const fn fold_letter(c: char) -> char {
    match c {
        '0' => 'o',
        '1' | 'l' => 'i',
        '3' => 'e',
        '4' | '@' => 'a',
        '5' | '$' => 's',
        '7' => 't',
        c => c,
    }
}

/// Maps look-alike letters of other scripts to Latin letters.
const fn look_alike(c: char) -> char {
    match c {
        'а' | 'А' | 'α' | 'Α' | 'ɑ' | 'ａ' | 'Ꭺ' => 'a',
        'Ь' | 'В' | 'в' | 'Β' | 'β' | 'Ᏼ' => 'b',
        'с' | 'С' | 'ϲ' | 'Ϲ' | 'Ꮯ' | 'ᴄ' => 'c',
        'ԁ' | 'Ԁ' | 'ɗ' | 'Ꭰ' | 'ժ' => 'd',
        'е' | 'Е' | 'ε' | 'Ε' | 'є' | 'Є' | 'Ꭼ' | 'ҽ' | 'ɘ' => 'e',
        'ƒ' | 'Ϝ' | 'ք' => 'f',
        'ɡ' | 'Ԍ' | 'Ꮐ' | 'ց' | 'ɢ' => 'g',
        'н' | 'Н' | 'һ' | 'Һ' | 'Η' | 'Ꮋ' | 'հ' | 'ʜ' => 'h',
        'і' | 'І' | 'ι' | 'Ι' | 'ı' | 'ӏ' | 'Ӏ' | 'Ꭵ' | 'ɩ' | 'ⅰ' | 'ǀ' | '׀' | 'ו' => 'i',
        'ј' | 'Ј' | 'ϳ' | 'Ꭻ' => 'j',
        'к' | 'К' | 'κ' | 'Κ' | 'Ꮶ' | 'ᴋ' => 'k',
        'Ꮮ' | 'ʟ' | 'ł' => 'l',
        'м' | 'М' | 'Μ' | 'Ꮇ' | 'ᴍ' => 'm',
        'ո' | 'Ν' | 'η' | 'п' | 'П' | 'ɴ' | 'ռ' => 'n',
        'о' | 'О' | 'ο' | 'Ο' | 'օ' | 'Օ' | 'ס' | 'ᴏ' | 'ø' | 'Ø' | 'σ' => 'o',
        'р' | 'Р' | 'ρ' | 'Ρ' | 'Ꮲ' => 'p',
        'ԛ' | 'Ԛ' | 'գ' => 'q',
        'г' | 'Г' | 'ᴦ' | 'Ꮢ' | 'ʀ' => 'r',
        'ѕ' | 'Ѕ' | 'Տ' | 'ꜱ' | 'Ꮪ' => 's',
        'т' | 'Т' | 'τ' | 'Τ' | 'Ꭲ' | 'ᴛ' => 't',
        'υ' | 'ս' | 'Ս' | 'ц' | 'ᴜ' => 'u',
        'ν' | 'ѵ' | 'Ѵ' | 'Ꮩ' | 'ᴠ' => 'v',
        'ԝ' | 'Ԝ' | 'ω' | 'ш' | 'Ꮃ' | 'ᴡ' => 'w',
        'х' | 'Х' | 'χ' | 'Χ' | '×' => 'x',
        'у' | 'У' | 'Υ' | 'γ' | 'ү' | 'Ү' | 'ʏ' => 'y',
        'Ζ' | 'ζ' | 'Ꮓ' | 'ᴢ' => 'z',
        c => c,
    }
}
