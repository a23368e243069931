//! Checks in one pass whether a text is already canonical. It never copies, and may answer "unknown".

use super::MAX_DEPTH;

/// How a canonical text without disputed numbers relates to the other profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CanonicalPlainness {
    /// Printable ASCII without escapes in keys: the text is the same in all three profiles.
    Everywhere,
    /// The text is RFC 8785's; the other profiles may differ.
    JcsOnly,
}

/// The largest integer that every reader represents exactly.
const MAX_EXACT: u64 = 1 << 53;

/// Whether `text` is one JSON value in RFC 8785 form, without floats and integers above 2^53. `None` means "no, or unknown" (keys
/// whose order depends on escapes or astral characters).
#[must_use]
pub fn scan_canonical(text: &str) -> Option<CanonicalPlainness> {
    let mut scanner = Scanner {
        bytes: text.as_bytes(),
        at: 0,
        plain: true,
    };
    scanner.scan_value(0)?;
    if scanner.at != scanner.bytes.len() {
        return None;
    }
    Some(if scanner.plain {
        CanonicalPlainness::Everywhere
    } else {
        CanonicalPlainness::JcsOnly
    })
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    plain: bool,
}

impl<'a> Scanner<'a> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn take_byte(&mut self, byte: u8) -> Option<()> {
        if self.peek()? == byte {
            self.at += 1;
            return Some(());
        }
        None
    }

    #[inline]
    fn scan_word(&mut self, word: &[u8]) -> Option<()> {
        if self.bytes.get(self.at..)?.starts_with(word) {
            self.at += word.len();
            return Some(());
        }
        None
    }

    fn scan_value(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'"' => self.scan_string().map(drop),
            b'{' => self.scan_object(depth),
            b'[' => self.scan_array(depth),
            b't' => self.scan_word(b"true"),
            b'f' => self.scan_word(b"false"),
            b'n' => self.scan_word(b"null"),
            _ => self.scan_integer(),
        }
    }

    fn scan_array(&mut self, depth: usize) -> Option<()> {
        self.take_byte(b'[')?;
        if self.take_byte(b']').is_some() {
            return Some(());
        }
        loop {
            self.scan_value(depth + 1)?;
            if self.take_byte(b',').is_none() {
                return self.take_byte(b']');
            }
        }
    }

    fn scan_object(&mut self, depth: usize) -> Option<()> {
        self.take_byte(b'{')?;
        if self.take_byte(b'}').is_some() {
            return Some(());
        }
        let mut last: Option<&[u8]> = None;
        loop {
            let (key, simple) = self.scan_string()?;
            // Byte order equals UTF-16 order only without astral characters, and equals the order of key texts only without
            // escapes.
            if !simple || last.is_some_and(|last| last >= key) {
                return None;
            }
            last = Some(key);
            self.take_byte(b':')?;
            self.scan_value(depth + 1)?;
            if self.take_byte(b',').is_none() {
                return self.take_byte(b'}');
            }
        }
    }

    #[inline]
    /// The string's inner bytes, and whether they contain neither an escape nor an astral character.
    fn scan_string(&mut self) -> Option<(&'a [u8], bool)> {
        self.take_byte(b'"')?;
        let start = self.at;
        let mut simple = true;
        loop {
            self.at += printable_run(self.bytes.get(self.at..)?);
            let byte = self.peek()?;
            match byte {
                b'"' => {
                    let inner = self.bytes.get(start..self.at)?;
                    self.at += 1;
                    return Some((inner, simple));
                }
                b'\\' => {
                    simple = false;
                    self.at += 1;
                    self.scan_escape()?;
                }
                0..=0x1f => return None,
                0x20..=0x7e => self.at += 1,
                0x7f..=0xef => {
                    self.plain = false;
                    self.at += 1;
                }
                0xf0..=0xff => {
                    (self.plain, simple) = (false, false);
                    self.at += 1;
                }
            }
        }
    }

    fn scan_escape(&mut self) -> Option<()> {
        let byte = self.peek()?;
        self.at += 1;
        match byte {
            b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits: [u8; 4] = self.bytes.get(self.at..self.at + 4)?.try_into().ok()?; // silent-ok: too short
                self.at += 4;
                let [
                    b'0',
                    b'0',
                    high @ (b'0' | b'1'),
                    low @ (b'0'..=b'9' | b'a'..=b'f'),
                ] = digits
                else {
                    return None;
                };
                // \b \t \n \f \r have short forms.
                let has_short_form = high == b'0' && matches!(low, b'8' | b'9' | b'a' | b'c' | b'd');
                (!has_short_form).then_some(())
            }
            _ => None,
        }
    }

    #[inline]
    fn scan_integer(&mut self) -> Option<()> {
        let negative = self.take_byte(b'-').is_some();
        let start = self.at;
        let mut value: u64 = 0;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            value = value * 10 + u64::from(digit - b'0');
            self.at += 1;
            if value > MAX_EXACT {
                return None;
            }
        }
        let first = *self.bytes.get(start)?;
        let length = self.at - start;
        let well_formed = length > 0 && (first != b'0' || (length == 1 && !negative));
        (well_formed && !matches!(self.peek(), Some(b'.' | b'e' | b'E'))).then_some(())
    }
}

/// The number of leading bytes that are certainly printable ASCII without quote and backslash. Checks eight bytes at a time.
#[inline]
pub(crate) fn printable_run(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    // The lowest flag of each of these is exact; a borrow or carry affects only later bytes.
    let zero = |x: u64| x.wrapping_sub(ONES) & !x;
    let (words, _) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let x = u64::from_le_bytes(*word);
        let special = zero(x ^ (ONES * u64::from(b'"')))
            | zero(x ^ (ONES * u64::from(b'\\')))
            | (x.wrapping_sub(ONES * 0x20) & !x)
            | x.wrapping_add(ONES)
            | x;
        if special & HIGH != 0 {
            let inside = usize::try_from((special & HIGH).trailing_zeros() / 8).unwrap_or(0);
            return index * 8 + inside;
        }
    }
    words.len() * 8
}
