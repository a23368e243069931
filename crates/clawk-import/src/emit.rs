//! Writes a JSON value as YAML that a person can edit.

use serde_json::Value;

/// Uses block style. Multi-line texts become literal blocks; other texts are quoted as in JSON, which YAML 1.2 accepts.
pub(crate) fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    write_block(value, 0, &mut out);
    out
}

fn write_block(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, member) in members {
                write_indent(depth, out);
                out.push_str(&quote_key(name));
                out.push(':');
                write_nested(member, depth + 1, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                write_indent(depth, out);
                out.push('-');
                if is_block(item) {
                    let mut inner = String::new();
                    write_block(item, depth + 1, &mut inner);
                    // The first member follows the dash.
                    out.push(' ');
                    out.push_str(inner.trim_start_matches(' '));
                } else {
                    write_nested(item, depth + 1, out);
                }
            }
        }
        _ => {
            write_indent(depth, out);
            out.push_str(&value.to_string());
            out.push('\n');
        }
    }
}

fn write_nested(value: &Value, depth: usize, out: &mut String) {
    match value {
        _ if is_block(value) => {
            out.push('\n');
            write_block(value, depth, out);
        }
        Value::String(text) if text.contains('\n') && fits_literal(text) => {
            out.push_str(" |-\n");
            for line in text.trim_end().lines() {
                if !line.is_empty() {
                    write_indent(depth, out);
                    out.push_str(line);
                }
                out.push('\n');
            }
        }
        _ => {
            out.push(' ');
            out.push_str(&value.to_string());
            out.push('\n');
        }
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => items.iter().any(|item| item.is_object() || item.is_array()),
        _ => false,
    }
}

/// Whether a literal block can hold the text: it must not begin with a blank or contain characters that YAML forbids.
fn fits_literal(text: &str) -> bool {
    let first = text.chars().next();
    let plain = |c: char| {
        c == '\n' || (!c.is_control() && !matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}' | '\u{85}'))
    };
    first.is_some_and(|c| !c.is_whitespace()) && text.chars().all(plain)
}

fn quote_key(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let starts = name
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let word = matches!(
        name,
        "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
    );
    if starts && !word && name.chars().all(plain) {
        name.to_owned()
    } else {
        Value::String(name.to_owned()).to_string()
    }
}

fn write_indent(depth: usize, out: &mut String) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}
