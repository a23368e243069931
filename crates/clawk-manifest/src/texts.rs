//! Checks texts with their own syntax: cron expressions, URLs, host names, regular expressions, JSON Schemas. Each error is the end
//! of a sentence.

use crate::model::host_of;
use crate::tree::{Node, Tree, join_pointer};

#[cfg(test)]
mod tests;

/// The name of a secret. It is also a file name under `$CLAW_SECRETS_DIR`, so it must not contain a path.
pub(crate) fn secret_ref(text: &str) -> Result<(), String> {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    if text.is_empty() || text.len() > 128 || !text.bytes().all(known) || text.starts_with('.') {
        // The message does not contain the text: somebody may have put the secret itself here.
        return Err("a secret's name is 1 to 128 letters, digits, `_`, `-` and `.`".to_owned());
    }
    if clawk_proto::secret_name::looks_like_key(text) {
        return Err("this looks like the secret itself, and only its name belongs here: put the value into an environment variable or a \
                    file below `$CLAW_SECRETS_DIR`, write that name, and replace the key, because it has stood in a file"
            .to_owned());
    }
    Ok(())
}

/// `http://host…` or `https://host…`.
pub(crate) fn url(text: &str) -> Result<(), String> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    let Some(rest) = rest else {
        return Err("a URL starts with `https://` or `http://`".to_owned());
    };
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("a URL holds no blanks".to_owned());
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err("a URL here carries no user name or password; name a secret instead".to_owned());
    }
    if host_of(rest).is_empty() {
        return Err("the URL names no host".to_owned());
    }
    let after = authority.rsplit(']').next().unwrap_or_default();
    match after.split_once(':') {
        Some((_, port)) if port.parse::<u16>().map_or(true, |port| port == 0) => {
            Err("the URL's port is not a number from 1 to 65535".to_owned())
        }
        _ => Ok(()),
    }
}

/// A host name, `*.example.com`, `*`, or an address.
pub(crate) fn host(text: &str) -> Result<(), String> {
    if text == "*" || text.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok() {
        return Ok(());
    }
    if text.contains('/') {
        return Err("a host is a name without scheme or path, such as `api.example.com`".to_owned());
    }
    let name = text.strip_prefix("*.").unwrap_or(text);
    let (name, port) = name
        .split_once(':')
        .map_or((name, None), |(name, port)| (name, Some(port)));
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err("the port after a host is a number".to_owned());
    }
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if name.split('.').all(label) {
        Ok(())
    } else {
        Err(
            "a host is a name such as `api.example.com`; `*` stands at the front only, as in `*.example.com`"
                .to_owned(),
        )
    }
}

/// A regular expression of bounded size.
pub(crate) fn regex(pattern: &str) -> Result<(), String> {
    match regex::RegexBuilder::new(pattern).size_limit(1 << 20).build() {
        Ok(_) => Ok(()),
        Err(regex::Error::CompiledTooBig(_)) => Err("the regular expression is too large".to_owned()),
        Err(error) => {
            let text = error.to_string();
            let reason = text
                .lines()
                .last()
                .unwrap_or_default()
                .trim_start_matches("error: ")
                .to_owned();
            Err(format!("not a regular expression: {reason}"))
        }
    }
}

/// A glob over names.
pub(crate) fn glob(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Err("a name or a glob, not nothing".to_owned());
    }
    globset::Glob::new(pattern)
        .map(|_| ())
        .map_err(|error| format!("not a glob: {}", error.kind()))
}

/// Five fields: minute, hour, day of month, month, day of week.
pub(crate) fn cron(expression: &str) -> Result<(), String> {
    const MONTHS: [&str; 12] = [
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ];
    const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let fields: Vec<&str> = expression.split_whitespace().collect();
    let &[minute, hour, day, month, weekday] = fields.as_slice() else {
        return Err(format!(
            "a cron expression has five fields (minute, hour, day, month, weekday), not {}",
            fields.len()
        ));
    };
    cron_field("minute", minute, 0, 59, &[])?;
    cron_field("hour", hour, 0, 23, &[])?;
    cron_field("day", day, 1, 31, &[])?;
    cron_field("month", month, 1, 12, &MONTHS)?;
    cron_field("weekday", weekday, 0, 7, &DAYS)
}

fn cron_field(what: &str, field: &str, low: u32, high: u32, names: &[&str]) -> Result<(), String> {
    let bad = |item: &str| format!("`{item}` is not a valid {what} of a cron expression ({low} to {high})");
    let value = |text: &str| -> Option<u32> {
        let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let number = match named.and_then(|at| u32::try_from(at).ok()) {
            Some(at) => at + low,
            None if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok()?,
            None => return None,
        };
        (low..=high).contains(&number).then_some(number)
    };
    for item in field.split(',') {
        let (range, step) = item
            .split_once('/')
            .map_or((item, None), |(range, step)| (range, Some(step)));
        let step_ok =
            step.is_none_or(|step| step.parse::<u32>().is_ok_and(|step| (1..=high).contains(&step)));
        let range_ok = range == "*"
            || match range.split_once('-') {
                Some((from, to)) => matches!((value(from), value(to)), (Some(from), Some(to)) if from <= to),
                None => value(range).is_some(),
            };
        if !step_ok || !range_ok {
            return Err(bad(item));
        }
    }
    Ok(())
}

/// Finds obvious errors in a JSON Schema: the pointer below `pointer`, and the error. Not a full meta-schema check.
pub(crate) fn json_schema<'n>(node: &'n Node, pointer: &str, out: &mut Vec<(String, &'n Node, String)>) {
    const TYPES: [&str; 7] = [
        "object", "array", "string", "number", "integer", "boolean", "null",
    ];
    let Some(entries) = node.entries() else {
        if node.as_bool().is_none() {
            out.push((
                pointer.to_owned(),
                node,
                format!("a JSON Schema is a map, not {}", node.describe()),
            ));
        }
        return;
    };
    for entry in entries {
        let at = join_pointer(pointer, &entry.key);
        let value = &entry.value;
        match (entry.key.as_str(), &value.value) {
            ("type", Tree::Text(word)) if !TYPES.contains(&word.as_str()) => {
                out.push((
                    at,
                    value,
                    format!("`{word}` is not a valid JSON Schema type ({})", TYPES.join(", ")),
                ));
            }
            ("type", Tree::Text(_)) => {}
            ("type", Tree::List(words)) => {
                if let Some(bad) = words
                    .iter()
                    .find(|w| w.text().is_none_or(|word| !TYPES.contains(&word)))
                {
                    out.push((
                        at,
                        bad,
                        format!("a JSON Schema type is one of {}", TYPES.join(", ")),
                    ));
                }
            }
            ("type", _) => out.push((at, value, "`type` is a word or a list of words".to_owned())),
            ("properties" | "patternProperties" | "$defs" | "definitions", Tree::Map(members)) => {
                for member in members {
                    json_schema(&member.value, &join_pointer(&at, &member.key), out);
                }
            }
            ("properties" | "patternProperties" | "$defs" | "definitions", _) => {
                out.push((
                    at,
                    value,
                    format!("`{}` is a map of schemas, not {}", entry.key, value.describe()),
                ));
            }
            ("required", Tree::List(names)) if names.iter().all(|name| name.text().is_some()) => {}
            ("required", _) => out.push((at, value, "`required` is a list of member names".to_owned())),
            ("enum", Tree::List(_)) => {}
            ("enum", _) => out.push((at, value, "`enum` is a list of values".to_owned())),
            (
                "items" | "additionalProperties" | "not" | "if" | "then" | "else" | "contains",
                Tree::Map(_),
            ) => {
                json_schema(value, &at, out);
            }
            ("anyOf" | "allOf" | "oneOf", Tree::List(schemas)) => {
                for (index, schema) in schemas.iter().enumerate() {
                    json_schema(schema, &join_pointer(&at, &index.to_string()), out);
                }
            }
            _ => {}
        }
    }
}
