//! Converts any JSON text to its canonical text in a profile. The slow path: exact for big integers, refuses duplicate keys.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{CanonicalError, MAX_DEPTH, Profile, number};

/// The canonical text of a JSON text.
///
/// # Errors
/// The text is not JSON, has a duplicate key, has a number that is not a finite double where one is needed, or nests too deeply.
pub fn transcode_json(profile: Profile, text: &str) -> Result<String, CanonicalError> {
    let mut out = String::with_capacity(text.len());
    write_value(profile, text.trim_matches(BLANKS), 0, &mut out)?;
    Ok(out)
}

const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

/// Fails with [`CanonicalError::Number`] if the text contains a float or an integer above 2^53.
pub(super) fn refuse_disputed_numbers(text: &str) -> Result<(), CanonicalError> {
    fn check_value(text: &str, depth: usize) -> Result<(), CanonicalError> {
        if depth > MAX_DEPTH {
            return Err(CanonicalError::TooDeep);
        }
        match text.bytes().next() {
            Some(b'{') => object_members(text)?
                .iter()
                .try_for_each(|(_, inner)| check_value(inner, depth + 1)),
            Some(b'[') => array_items(text)?
                .iter()
                .try_for_each(|inner| check_value(inner.get(), depth + 1)),
            Some(b'-' | b'0'..=b'9') if number::is_disputed(text) => {
                Err(CanonicalError::Number(text.chars().take(40).collect()))
            }
            _ => Ok(()),
        }
    }
    check_value(text.trim_matches(BLANKS), 0)
}

fn write_value(profile: Profile, text: &str, depth: usize, out: &mut String) -> Result<(), CanonicalError> {
    if depth > MAX_DEPTH {
        return Err(CanonicalError::TooDeep);
    }
    match text.bytes().next() {
        Some(b'{') => write_object(profile, text, depth, out),
        Some(b'[') => {
            out.push('[');
            for (index, item) in array_items(text)?.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(profile, item.get(), depth + 1, out)?;
            }
            out.push(']');
            Ok(())
        }
        Some(b'"') => {
            let JsonKey(string) = serde_json::from_str(text)?;
            write_quoted(profile, &string, out);
            Ok(())
        }
        Some(b'-' | b'0'..=b'9') => {
            let literal: &RawValue = serde_json::from_str(text)?;
            number::write(profile, literal.get(), out)
        }
        _ => {
            let literal: &RawValue = serde_json::from_str(text)?;
            out.push_str(literal.get());
            Ok(())
        }
    }
}

fn write_object(profile: Profile, text: &str, depth: usize, out: &mut String) -> Result<(), CanonicalError> {
    let mut members = object_members(text)?;
    members.sort_by(|(a, _), (b, _)| match profile {
        Profile::Jcs => by_utf16(a, b),
        Profile::AppendixB | Profile::CraCore => a.cmp(b),
    });
    if let Some([(key, _), _]) = members
        .windows(2)
        .find(|pair| matches!(pair, [(a, _), (b, _)] if a == b))
    {
        return Err(CanonicalError::DuplicateKey(key.chars().take(64).collect()));
    }
    out.push('{');
    for (index, (key, inner)) in members.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        match profile {
            Profile::Jcs | Profile::AppendixB => write_quoted(profile, key, out),
            // The reference program writes keys unescaped between quotes.
            Profile::CraCore => out.extend(["\"", key, "\""]),
        }
        out.push(':');
        write_value(profile, inner, depth + 1, out)?;
    }
    out.push('}');
    Ok(())
}

/// RFC 8785's order: by UTF-16 code units.
fn by_utf16(a: &str, b: &str) -> Ordering {
    if a.is_ascii() || b.is_ascii() {
        a.cmp(b)
    } else {
        a.encode_utf16().cmp(b.encode_utf16())
    }
}

/// Appends `text` as a JSON string.
fn write_quoted(profile: Profile, text: &str, out: &mut String) {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    let unit = |unit: u16, out: &mut String| {
        out.push_str("\\u");
        for shift in [12, 8, 4, 0] {
            out.extend(HEX.get(usize::from(unit >> shift & 15)));
        }
    };
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' => c.encode_utf16(&mut [0; 2]).iter().for_each(|&u| unit(u, out)),
            // Python escapes DEL too.
            '\u{7f}'.. if profile == Profile::AppendixB => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|&u| unit(u, out));
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}

fn array_items(text: &str) -> Result<Vec<&RawValue>, CanonicalError> {
    Ok(serde_json::from_str(text)?)
}

fn object_members(text: &str) -> Result<Vec<(Cow<'_, str>, &str)>, CanonicalError> {
    let JsonMembers(members) = serde_json::from_str(text)?;
    Ok(members)
}

/// A string; borrowed if it has no escape.
#[derive(Deserialize)]
struct JsonKey<'a>(#[serde(borrow)] Cow<'a, str>);

/// An object's members in the written order, including duplicates.
struct JsonMembers<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonMembers<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonMembersVisitor;
        impl<'de> Visitor<'de> for JsonMembersVisitor {
            type Value = JsonMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((JsonKey(key), inner)) = map.next_entry::<JsonKey<'de>, &'de RawValue>()? {
                    members.push((key, inner.get()));
                }
                Ok(JsonMembers(members))
            }
        }
        deserializer.deserialize_map(JsonMembersVisitor)
    }
}

#[cfg(test)]
pub(super) fn members_of(text: &str) -> Vec<(Cow<'_, str>, &str)> {
    object_members(text).unwrap()
}
