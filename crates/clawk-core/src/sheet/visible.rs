//! Text from outside as one line of characters that a person can see and tell apart.
//!
//! Nothing is dropped and two different texts never look the same to this function's caller: what can't be seen is
//! written as `⟨…⟩`, and so is a `⟨` of the text itself.

use std::fmt::Write as _;

/// Blanks in a row that are shown as they are; a longer run is counted.
const BLANKS_SHOWN: usize = 16;
/// Stands for a tab.
const TAB: char = '⇥';
/// Opens what stands for something else.
const OPEN: char = '⟨';

/// One line: control characters (line ends among them), invisible ones and blanks other than a space become `⟨U+200B⟩`, a
/// tab `⇥`, a long run of blanks and one at the end `⟨40 spaces⟩`.
#[must_use]
pub fn visible_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' => {
                let mut run = 1;
                while rest.next_if_eq(&c).is_some() {
                    run += 1;
                }
                write_blanks(&mut out, c, run, rest.peek().is_none());
            }
            c if is_hidden(c) => write(&mut out, format_args!("{OPEN}U+{:04X}⟩", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

fn write_blanks(out: &mut String, blank: char, run: usize, ends: bool) {
    let (name, shown) = if blank == ' ' {
        ("space", ' ')
    } else {
        ("tab", TAB)
    };
    if run > BLANKS_SHOWN || (ends && blank == ' ') {
        let plural = if run == 1 { "" } else { "s" };
        write(out, format_args!("{OPEN}{run} {name}{plural}⟩"));
    } else {
        out.extend(std::iter::repeat_n(shown, run));
    }
}

fn write(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _infallible = out.write_fmt(text); // silent-ok: a string takes everything
}

/// A character that can't be seen, that changes how others are seen, that stands for something in [`visible_text`], or that
/// has no agreed picture.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || c.is_whitespace()
        || matches!(c, OPEN | TAB)
        || is_default_ignorable(c)
        || is_blank_picture(c)
        || has_no_picture(c)
}

/// Unicode's `Default_Ignorable_Code_Point`: marks of direction, joiners, fillers, selectors of variants, tags.
const fn is_default_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// An empty picture without being a blank: the Braille cell without dots, the empty note head, marks of annotation and of
/// hieroglyphic layout.
const fn is_blank_picture(c: char) -> bool {
    matches!(c, '\u{2800}' | '\u{1d159}' | '\u{fff9}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}')
}

/// For private use, or no character at all.
const fn has_no_picture(c: char) -> bool {
    matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fdd0}'..='\u{fdef}' | '\u{f0000}'..='\u{10ffff}')
        || (c as u32) & 0xfffe == 0xfffe
}
