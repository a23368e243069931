//! Repairs JSON as real servers write it: output of Python, PHP and JavaScript that a strict parser refuses, if its meaning is
//! clear. Only used after strict parsing has failed.

use std::borrow::Cow;

use serde_json::Value;

/// Parses every JSON value of a text, one after the other. Text before the first `{` or `[` and after the last value is skipped.
///
/// # Errors
/// The reason why the text contains no readable value.
pub(super) fn read_values(raw: &[u8]) -> Result<Vec<Value>, String> {
    let text = String::from_utf8_lossy(raw);
    let text = text.trim_start_matches('\u{feff}').trim();
    let strict = read_strictly(text);
    if !strict.is_empty() {
        return Ok(strict);
    }
    let start = text.find("{\"").or_else(|| text.find(['{', '['])).unwrap_or(0);
    let mended = mend_text(text.get(start..).unwrap_or_default());
    match serde_json::from_str(&mended) {
        Ok(value) => Ok(vec![value]),
        Err(error) => {
            let several = read_strictly(&mended);
            if several.is_empty() {
                Err(error.to_string())
            } else {
                Ok(several)
            }
        }
    }
}

fn read_strictly(text: &str) -> Vec<Value> {
    let mut all = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => all.push(value),
            // silent-ok: the values before it count; a log line is not a message
            Ok(_) | Err(_) => break,
        }
    }
    all
}

/// Replaces half surrogate pairs by `U+FFFD`, escapes raw control characters, keeps unknown escapes as text, and replaces `NaN` and
/// `Infinity` by `null`.
fn mend_text(text: &str) -> Cow<'_, str> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        let after = rest.get(c.len_utf8()..).unwrap_or_default();
        rest = match c {
            '"' => {
                in_string = !in_string;
                out.push(c);
                after
            }
            '\\' if in_string => mend_escape(after, &mut out),
            c if in_string && c.is_ascii_control() => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
                after
            }
            '-' | 'N' | 'I' if !in_string => match not_a_number(rest) {
                Some(after) => {
                    out.push_str("null");
                    after
                }
                None => {
                    out.push(c);
                    after
                }
            },
            c => {
                out.push(c);
                after
            }
        };
    }
    if out == text {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(out)
    }
}

fn not_a_number(text: &str) -> Option<&str> {
    ["NaN", "-NaN", "Infinity", "-Infinity"]
        .iter()
        .find_map(|word| text.strip_prefix(word))
}

/// Repairs the escape after a backslash. Returns the text after the escape.
fn mend_escape<'t>(text: &'t str, out: &mut String) -> &'t str {
    let Some(c) = text.chars().next() else {
        return text;
    };
    let after = text.get(c.len_utf8()..).unwrap_or_default();
    match c {
        '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => {
            out.push('\\');
            out.push(c);
            after
        }
        'u' => match (code_unit(after), after.get(4..)) {
            (Some(high @ 0xd800..=0xdbff), Some(behind)) => {
                let low = behind.strip_prefix("\\u").and_then(code_unit);
                if let Some(low @ 0xdc00..=0xdfff) = low {
                    out.push_str(&format!("\\u{high:04x}\\u{low:04x}"));
                    behind.get(6..).unwrap_or_default()
                } else {
                    out.push('\u{fffd}');
                    behind
                }
            }
            (Some(0xdc00..=0xdfff), Some(behind)) => {
                out.push('\u{fffd}');
                behind
            }
            (Some(unit), Some(behind)) => {
                out.push_str(&format!("\\u{unit:04x}"));
                behind
            }
            (None, _) | (_, None) => {
                out.push_str("\\\\u");
                after
            }
        },
        '\'' => {
            out.push('\'');
            after
        }
        // Unknown escape: the backslash itself is meant.
        _ => {
            out.push_str("\\\\");
            text
        }
    }
}

fn code_unit(text: &str) -> Option<u16> {
    let digits = text.get(..4)?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| u16::from_str_radix(digits, 16).ok()) // silent-ok: four digits always fit
        .flatten()
}

/// Finds the `id` of a message that can't be parsed: a member of the outermost object, or else an `id` at the end of the text. An
/// `id` inside a result is ignored.
pub(super) fn find_id(raw: &[u8]) -> Option<i64> {
    let text = String::from_utf8_lossy(raw);
    let (mut depth, mut in_string, mut escaped, mut key_from) = (0_usize, false, false, 0);
    for (at, c) in text.char_indices() {
        if escaped {
            escaped = false;
            continue;
        }
        match c {
            '\\' if in_string => escaped = true,
            '"' if in_string => {
                in_string = false;
                if depth == 1 && text.get(key_from..at) == Some("\"id") {
                    let found = text.get(at + 1..).and_then(number_behind_colon);
                    if let Some((id, _)) = found {
                        return Some(id);
                    }
                }
            }
            '"' => (in_string, key_from) = (true, at),
            '{' | '[' if !in_string => depth += 1,
            '}' | ']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    let last = text.get(text.rfind("\"id\"")? + 4..)?;
    let (id, behind) = number_behind_colon(last)?;
    (behind.trim() == "}").then_some(id)
}

/// The number after a colon, and the text after it.
fn number_behind_colon(text: &str) -> Option<(i64, &str)> {
    let text = text.trim_start().strip_prefix(':')?.trim_start();
    let bare = text.strip_prefix('"').unwrap_or(text);
    let digits = bare.bytes().take_while(u8::is_ascii_digit).count();
    let id = bare.get(..digits)?.parse().ok()?; // silent-ok: not one of our ids
    let behind = bare.get(digits..)?;
    Some((id, behind.strip_prefix('"').unwrap_or(behind)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{find_id, read_values};

    #[test]
    fn what_servers_print_is_read() {
        let shapes: [(&[u8], Value); 14] = [
            (b"{\"a\": 1}", json!({"a": 1})),
            (b"\xef\xbb\xbf{\"a\": 1}\r", json!({"a": 1})),
            (br#"{"a": "x \ud83d y"}"#, json!({"a": "x \u{fffd} y"})),
            (br#"{"a": "x \ude00"}"#, json!({"a": "x \u{fffd}"})),
            (
                br#"{"a": "\ud83d\ude00 \ud83d"}"#,
                json!({"a": "\u{1f600} \u{fffd}"}),
            ),
            (
                b"{\"a\": NaN, \"b\": [Infinity, -Infinity]}",
                json!({"a": null, "b": [null, null]}),
            ),
            (b"{\"a\": \"NaN\", \"b\": NaN}", json!({"a": "NaN", "b": null})),
            (b"{\"a\": \"one\ttwo\x1b[0m\"}", json!({"a": "one\ttwo\u{1b}[0m"})),
            (br#"{"a": "it\'s C:\dir \q"}"#, json!({"a": "it's C:\\dir \\q"})),
            (b"{\"a\": \"caf\xe9\"}", json!({"a": "caf\u{fffd}"})),
            (b"Loading... {\"a\": 1}", json!({"a": 1})),
            (b"\x1b[32mready\x1b[0m{\"a\": 1}", json!({"a": 1})),
            (b"{\"a\": 1} trailing words", json!({"a": 1})),
            (br#"{"a": "\u12"}"#, json!({"a": "\\u12"})),
        ];
        for (raw, want) in shapes {
            let shown = String::from_utf8_lossy(raw).into_owned();
            assert_eq!(read_values(raw).expect(&shown), [want], "{shown}");
        }
        assert_eq!(
            read_values(br#"{"a":1}{"b":2}"#).expect("two"),
            [json!({"a":1}), json!({"b":2})]
        );
        for noise in [
            "INFO server started",
            "",
            "null",
            "12",
            "{\"a\": tru",
            "[2026-01-01] started",
        ] {
            let read = read_values(noise.as_bytes());
            let odd = read.as_ref().is_ok_and(|all| all.iter().any(Value::is_object));
            assert!(!odd, "{noise}: {read:?}");
        }
    }

    #[test]
    fn the_id_of_what_cannot_be_read_is_found() {
        for (text, id) in [
            (
                r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"te"#,
                Some(7),
            ),
            (r#"{"result":{"id":9,"x":[tru]},"id": 7}"#, Some(7)),
            (r#"{"result":{"id":9,"x":[[[tru},"id": 7}"#, Some(7)),
            (r#"{"result":{"text":"a\"id\":3"},"id":"7"}"#, Some(7)),
            (r#"{"result":{"id":9,"x":["#, None),
            (r#"{"id": null, "result": {tru}}"#, None),
            ("INFO listening", None),
        ] {
            assert_eq!(find_id(text.as_bytes()), id, "{text}");
        }
    }
}
