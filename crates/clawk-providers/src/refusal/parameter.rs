//! Which parameter of a request a refusal names: the words of vendors' servers, and of the validators that they are built from.

use serde_json::{Map, Value};

use crate::state::{CALL_MEMBERS, MESSAGE_MEMBERS};

/// Members of messages and calls that can be left out of a conversation's history, beside what servers hand over for safe keeping.
const MARKS: &[&str] = &["cache_control"];

/// What stands before the name of a parameter that is not taken.
const PARAMETER_BEHIND: &[&str] = &[
    "unsupported parameter: ",
    "unsupported parameter ",
    "unsupported parameters: ",
    "unsupported parameter(s): ",
    "unsupported field: ",
    "unsupported field ",
    "unsupported property ",
    "unsupported value: ",
    "unknown parameter: ",
    "unknown parameter ",
    "unrecognized request argument supplied: ",
    "unrecognized request arguments supplied: ",
    "unrecognized argument: ",
    "unexpected keyword argument ",
    "argument not supported on this model: ",
    "argument not supported: ",
    "does not support parameters: ",
    "does not support parameter ",
    "does not support the parameter ",
    "parameter not supported: ",
    "invalid parameter: ",
    "extra inputs are not permitted, field: ",
    "unknown field: parameter ",
    "unknown field: ",
    "unknown field ",
    "unknown name ",
    "unknown key: ",
    "unknown key ",
    "unknown argument: ",
    "unknown argument ",
    "unknown arguments: ",
    "unknown property: ",
    "unknown property ",
    "unknown properties: ",
    "unknown attribute ",
    "unexpected field: ",
    "unexpected field ",
    "unexpected fields found: ",
    "unexpected key: ",
    "unexpected key ",
    "unexpected parameter: ",
    "unexpected parameter ",
    "unexpected property: ",
    "unexpected property ",
    "unexpected argument: ",
    "unrecognized field: ",
    "unrecognized field ",
    "unrecognized parameter: ",
    "unrecognized parameter ",
    "unrecognized property: ",
    "unrecognized key: ",
    "unrecognized keys: ",
    "unrecognized key ",
    "unrecognized key(s) in object: ",
    "unspecified keys: ",
    "extra attributes are not allowed (",
    "extraneous key ",
    "no such field: ",
    "cannot find field: ",
    "not allowed by the schema: ",
    "schema does not define properties: ",
    "additional object properties are not allowed: ",
    "additional properties are not allowed: ",
    "additional properties are not allowed (",
    "unevaluated properties are not allowed: ",
    "unevaluated properties are not allowed (",
    "additional properties ",
    "additionalproperties ",
    "additional property ",
    "expected never but received ",
    "the property ",
    "the parameter ",
    "property ",
];

/// Words that must stand behind the name, where the words before it say too little.
const CONFIRMED_BY: &[(&str, &[&str])] = &[
    (
        "property ",
        &[
            "unsupported",
            "not supported",
            "not allowed",
            "not defined",
            "not permitted",
            "unexpected",
            "should not exist",
            "could not be mapped",
            "disallowed",
            "unknown",
        ],
    ),
    (
        "the property ",
        &["is not defined", "not allowed", "could not be mapped"],
    ),
    (
        "the parameter ",
        &["is not recognized", "is not supported", "is unknown"],
    ),
    ("additional properties ", &["not allowed"]),
    ("additionalproperties ", &["not allowed"]),
    ("additional property ", &["not allowed"]),
];

/// What stands behind it.
const PARAMETER_BEFORE: &[&str] = &[
    ": extra inputs are not permitted",
    " extra inputs are not permitted",
    ": extra fields not permitted",
    " extra fields not permitted",
    " should not exist",
    " was unexpected",
    " is not an allowed property",
    " is not a known field",
    " is not recognized",
    " is an unknown field",
    ": this field was not expected",
    ": unknown field",
    ": is not defined in the schema and the schema does not allow additional properties",
    " is a disallowed additional property",
    " is not supported with this model",
    " is not supported by this model",
    " is not supported for this model",
    " is not supported in this model",
    " is not supported on this model",
    " is not supported when using",
    " is not supported",
    " are not supported with this model",
    " is unsupported",
    " is not permitted",
    " is deprecated for this model",
    " is not a valid field",
    " is not a valid parameter",
    " is only allowed when",
    " does not support ",
    " parameter is not supported",
    " parameter not supported",
    " not supported",
];

/// The parameter that stands behind words of refusal. `next`: the line behind.
pub(super) fn named_behind(line: &str, next: &str) -> Option<String> {
    PARAMETER_BEHIND.iter().find_map(|words| {
        let (front, rest) = line.split_once(words)?;
        let (name, behind) = first_word(rest)?;
        let is_quoted = rest.starts_with(['\'', '"', '`', '\\', '[']);
        // Prose goes on behind such words, too.
        let is_told = words.ends_with([':', '(']) || words.ends_with(": ");
        if !is_told && !is_quoted && !looks_like_parameter(name) {
            return None;
        }
        let confirming = CONFIRMED_BY.iter().find(|(known, _)| known == words);
        if confirming.is_some_and(|(_, all)| !all.iter().any(|words| behind.contains(words))) {
            return None;
        }
        match place_behind(behind).or_else(|| next.trim_start().strip_prefix("→ at ")) {
            Some(place) => top_level(&format!("{place}.{name}")),
            // A name inside of a tool's schema or of a message is none of the request's.
            None if has_inner_place(front) || has_inner_place(behind) => kept_member(name),
            None => top_level(name),
        }
    })
}

/// The parameter that stands before words of refusal, in the same line or alone in the line before.
pub(super) fn named_before(line: &str, line_before: &str) -> Option<String> {
    PARAMETER_BEFORE.iter().find_map(|words| {
        let (front, _) = line.split_once(words)?;
        let (name, front) = match last_word(front) {
            Some(name) => (name, front),
            // Pydantic's list of faults: the path, then the fault below it.
            None if words.contains("extra") => (last_word(line_before)?, line_before),
            None => return None,
        };
        if has_inner_place(front) {
            return kept_member(name.rsplit('.').next().unwrap_or(name));
        }
        // Prose stands before such words, too: only what looks like a parameter counts.
        top_level(name).filter(|name| looks_like_parameter(name))
    })
}

/// The place that is said directly behind a name: `at 'messages[0]'`, `at path: $.tools`.
fn place_behind(behind: &str) -> Option<&str> {
    let behind = behind.trim_start_matches(['"', '\'', '`', '\\', ']', ')', ',']);
    let words = [
        " was unexpected) - ",
        " at path: ",
        " at path ",
        " - at ",
        " at ",
        " in ",
        " - ",
    ];
    let rest = words.iter().find_map(|words| behind.strip_prefix(words))?;
    let is_place = rest.starts_with(['\'', '"', '`', '$', '#', '/', '\\']);
    let rest = rest.trim_start_matches(['\'', '"', '`', '\\', '$', '#', '/']);
    let (place, _) = first_word(rest).filter(|_| is_place)?;
    Some(place)
}

fn looks_like_parameter(name: &str) -> bool {
    name.contains('_') || ONE_WORD.contains(&name)
}

/// Whether a text names a place inside of the request's lists: `messages[1]`, `tools.0`, `#/messages/0`, `messages -> 2`.
fn has_inner_place(text: &str) -> bool {
    LISTS.iter().any(|list| {
        text.match_indices(list).any(|(at, _)| {
            let before = text.get(..at).and_then(|before| before.chars().next_back());
            let rest = text.get(at + list.len()..).unwrap_or_default();
            let rest = rest.trim_start_matches(['"', '\'', '`', ']']);
            let inner = [".", "/", " -> ", "->", "["].iter();
            let index = inner.filter_map(|between| rest.strip_prefix(between));
            let is_index = index
                .map(|index| index.trim_start_matches(|c: char| !c.is_ascii_digit() && c != ' '))
                .any(|index| index.starts_with(|c: char| c.is_ascii_digit()));
            before.is_none_or(|c| !c.is_alphanumeric() && c != '_') && is_index
        })
    })
}

/// Places where one schema's fault is told of a request with members: who forbids them, as servers' validators write it.
pub(super) fn forbidden_places(members: &Map<String, Value>) -> Vec<Vec<String>> {
    let text = |name: &str| members.get(name).and_then(Value::as_str).unwrap_or_default();
    let list = |name: &str| -> Option<Vec<String>> {
        let parts = members.get(name)?.as_array()?.iter();
        let parts = parts.map(|part| match part {
            Value::String(part) => part.clone(),
            other => other.to_string(),
        });
        Some(parts.collect())
    };
    let pointer = |path: &str| -> Vec<String> {
        let steps = path.split(['/', '.', '[', ']']).filter(|step| !step.is_empty());
        steps.map(str::to_owned).collect()
    };
    let joined = |mut place: Vec<String>, name: &str| {
        place.push(name.to_owned());
        place
    };
    let mut found = Vec::new();
    // Pydantic, versions 2 and 1.
    if matches!(text("type"), "extra_forbidden" | "value_error.extra") {
        found.extend(list("loc"));
    }
    // Zod.
    if text("code") == "unrecognized_keys" {
        let place = list("path").unwrap_or_default();
        let keys = list("keys").unwrap_or_default();
        found.extend(keys.iter().map(|key| joined(place.clone(), key)));
    }
    // Ajv.
    let extra = members
        .get("params")
        .and_then(|params| params.get("additionalProperty"));
    if let Some(name) = extra.and_then(Value::as_str) {
        let place = pointer(text("instancePath")).into_iter();
        let place = place.chain(pointer(text("dataPath")));
        found.push(joined(place.collect(), name));
    }
    // Validators of OpenAPI, which name the whole path.
    if text("errorCode").starts_with("additionalProperties") {
        found.push(pointer(text("path")));
    }
    // Symfony.
    let said = [text("title"), text("message")];
    if said
        .iter()
        .any(|said| said.starts_with("This field was not expected"))
    {
        found.push(pointer(text("propertyPath")));
    }
    // Marshmallow: each member with its faults.
    for (name, faults) in members {
        let faults = faults.as_array().into_iter().flatten();
        let is_unknown = |fault: &Value| {
            fault
                .as_str()
                .is_some_and(|said| said.starts_with("Unknown field"))
        };
        if faults.into_iter().any(is_unknown) {
            found.push(vec![name.clone()]);
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '[' | ']')
}

/// The first word, quoted or not, and what stands behind it.
pub(super) fn first_word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches(['"', '\'', '`', '[', '(', '\\', ' ']);
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    let (word, rest) = text.split_at_checked(end)?;
    (!word.is_empty()).then_some((word.trim_end_matches(['.', ']']), rest))
}

/// The last word, quoted or not.
fn last_word(text: &str) -> Option<&str> {
    let text = text.trim_end_matches(['"', '\'', '`', ' ', ')', ':']);
    let start = text.rfind(|c| !is_word(c)).map_or(0, |at| at + 1);
    text.get(start..).filter(|word| !word.is_empty())
}

pub(super) fn is_name(name: &str) -> bool {
    let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    letters && (2..=64).contains(&name.len()) && name.chars().any(|c| c.is_ascii_alphabetic())
}

/// Words that stand where a name could, and are none.
const NO_NAMES: &[&str] = &[
    "model",
    "this",
    "it",
    "that",
    "parameter",
    "parameters",
    "value",
    "which",
    "feature",
    "type",
    "messages",
    "tools",
    "contents",
    "functions",
    "generation_config",
    "content",
    "and",
    "or",
    "is",
    "are",
    "input",
    "request",
    "format",
    "role",
    "image",
    "images",
    "audio",
    "streaming",
    "function",
    "endpoint",
    "the",
    "in",
    "language",
    "region",
    "currently",
    "tool",
    "url",
];

/// Lists of a request, whose members are none of its parameters.
const LISTS: &[&str] = &[
    "messages",
    "tools",
    "contents",
    "input",
    "functions",
    "tool_calls",
];

/// Parameters whose names are one word.
const ONE_WORD: &[&str] = &[
    "temperature",
    "thinking",
    "reasoning",
    "store",
    "include",
    "seed",
    "user",
    "logprobs",
    "stop",
    "metadata",
    "truncation",
    "speed",
];

/// The request's own parameter that a path begins with. Messages, tools and the model are not parameters that could be left out, except
/// for what messages and calls carry of earlier answers.
pub(super) fn top_level(path: &str) -> Option<String> {
    let path = path.trim_matches(['"', '\'', '`']);
    let steps = path.split(['.', '[', ']', '/']).filter(|step| !step.is_empty());
    let mut steps = steps.skip_while(|step| matches!(*step, "body" | "request" | "root"));
    let first = steps.next()?;
    match steps.last() {
        Some(last) if NO_NAMES.contains(&first) || first == "messages" => kept_member(last),
        Some("reasoning_content") => Some("reasoning_content".to_owned()),
        Some(_) | None => (is_name(first) && !NO_NAMES.contains(&first)).then(|| first.to_owned()),
    }
}

/// A member of messages and calls that can be left out.
fn kept_member(name: &str) -> Option<String> {
    let mut known = MESSAGE_MEMBERS.iter().chain(&CALL_MEMBERS).chain(MARKS);
    known.find(|known| **known == name).map(|name| (*name).to_owned())
}

/// The parameter that a validator's place names.
pub(super) fn forbidden(place: &[String]) -> Option<String> {
    top_level(&place.join("."))
}

#[cfg(test)]
mod tests;
