//! What a server's refusal names as its cause, where a changed request may be accepted (R53): the words of many vendors, read into
//! [`RefusalCause`]. A refusal that names nothing stays what it is.

use clawk_core::ports::RefusalCause;
use serde_json::Value;

#[cfg(test)]
mod tests;

/// The longest refusal that is read, bytes.
const READ_MAX_BYTES: usize = 16 * 1024;
/// How deep JSON inside of JSON texts is looked for: gateways pack one refusal into another.
const DEPTH: u8 = 4;

/// Words that say that a request is too long, in lower case.
const TOO_LONG: &[&str] = &[
    "context_length_exceeded",
    "exceed_context_size",
    "context length",
    "context size",
    "context window",
    "maximum context",
    "max context",
    "maximum prompt length",
    "maximum model length",
    "max_seq_len",
    "model_max_prompt_tokens_exceeded",
    "prompt is too long",
    "prompt too long",
    "prompt exceeds max length",
    "input is too long",
    "input too long",
    "input length exceeds",
    "input length and `max_tokens` exceed",
    "too many tokens",
    "too many total text bytes",
    "input token count",
    "prompt token count",
    "maximum number of tokens allowed",
    "exceeded model token limit",
    "range of input length should be",
    "reduce the length of the messages",
    "reduce the length of the input",
    "request too large for model",
    "request body too large for",
    "tokens to keep from the initial prompt is greater than",
    "must have less than",
    "max_new_tokens` must be <=",
    "max_tokens must be at least 1, got -",
    "string_above_max_length",
];

/// What stands before the window's size, where it is said; the first that is found counts.
const LIMIT_BEHIND: &[&str] = &[
    "maximum context length is only ",
    "maximum context length is ",
    "maximum context length of ",
    "maximum context length: ",
    "context length is only ",
    "context length of only ",
    "maximum prompt length is ",
    "maximum model length of ",
    "maximum number of tokens allowed (",
    "range of input length should be [1, ",
    "exceeded model token limit: ",
    "exceeds the limit of ",
    "exceeds limit of ",
    "max_seq_len (",
    "\"n_ctx\":",
    "available context size (",
    "context size (",
    "context size of ",
    "context window of ",
    "while limit is ",
    "must have less than ",
    "max_new_tokens` must be <= ",
    "in the prompt cannot exceed ",
    "max size: ",
    "(tpm): limit ",
    "tokens > ",
    "too large for model with ",
];

/// Words about the order of messages, or about empty ones.
const ROLES: &[&str] = &[
    "roles must alternate",
    "role must alternate",
    "must alternate between",
    "conversation roles",
    "expected last role user or tool",
    "unexpected role 'user' after role",
    "unexpected role 'system' after role",
    "unexpected role 'tool' after role",
    "not the same role in a row",
    "consecutive messages",
    "multiple consecutive",
    "must have non-empty content",
    "content blocks must be non-empty",
    "text content is empty",
    "message content cannot be empty",
    "must have either content or tool_calls",
    "must not be empty for role",
    "system message must be at the beginning",
    "system role not supported",
    "system role is not supported",
    "does not support the system role",
    "first message must be",
    "only user and assistant roles are supported",
];

/// Words about the form of call ids.
const CALL_IDS: &[&str] = &[
    "with a length of 9",
    "tool call ids should be alphanumeric strings with length 9",
    "tool_call_id: string too long",
    "tool_use.id: string should match pattern",
    "tool_use_id: string should match pattern",
    "`tool_use` ids must be unique",
    "tool_use ids must be unique",
    "duplicate tool call id",
    "duplicate tool_call_id",
];

/// What stands before the name of a parameter that is not taken.
const PARAMETER_BEHIND: &[&str] = &[
    "unsupported parameter: ",
    "unsupported parameter ",
    "unsupported parameters: ",
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
    "unknown field ",
    "unknown name ",
    "unrecognized field ",
    "unrecognized key(s) in object: ",
    "additional properties are not allowed (",
    "property ",
];

/// What stands behind it.
const PARAMETER_BEFORE: &[&str] = &[
    ": extra inputs are not permitted",
    " extra inputs are not permitted",
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

/// What a refusal names as its cause. `status`: HTTP's; none: the error stood inside of an answer.
pub(crate) fn cause_of(status: Option<u16>, body: &str) -> Option<RefusalCause> {
    let body = body
        .get(..body.floor_char_boundary(READ_MAX_BYTES))
        .unwrap_or(body);
    let refusal = RefusalText::read(body);
    let too_large_for_a_minute = refusal.says("request too large for");
    match status {
        None | Some(400 | 404 | 413 | 422 | 500) => {}
        Some(429) if too_large_for_a_minute => {}
        Some(_) => return None,
    }
    let is_parameters = matches!(status, None | Some(400 | 404 | 422));
    if is_parameters && refusal.wants_responses() {
        return Some(RefusalCause::ResponsesApi);
    }
    if refusal.is_about_call_ids() {
        return Some(RefusalCause::CallIds);
    }
    let a_minute_too_long = too_large_for_a_minute && refusal.says("tokens per min");
    if status == Some(413) || a_minute_too_long || refusal.is_too_long() {
        return Some(RefusalCause::TooLong {
            limit_tokens: refusal.limit_tokens(),
        });
    }
    if ROLES.iter().any(|words| refusal.says(words)) {
        return Some(RefusalCause::Roles);
    }
    refusal.parameter().filter(|_| is_parameters)
}

/// The account has no credit left, or its quota is used up for good: asking again does not help.
pub(crate) fn is_used_up(body: &str) -> bool {
    let body = body.to_ascii_lowercase();
    let for_good = [
        "insufficient_quota",
        "billing_hard_limit",
        "billing hard limit",
        "credit balance is too low",
        "insufficient balance",
        "insufficient credits",
        "insufficient_balance",
        "exceeded_current_quota",
        "account is not active",
        "payment required",
        "arrearage",
    ];
    if for_good.iter().any(|words| body.contains(words)) {
        return true;
    }
    // The same words stand before a limit of a minute; that one says when to come back.
    let returns = [
        "retrydelay",
        "retry in",
        "per minute",
        "perminute",
        "try again in",
    ];
    body.contains("exceeded your current quota") && !returns.iter().any(|words| body.contains(words))
}

/// A refusal's texts and members, however deep they are packed.
#[derive(Debug, Default)]
struct RefusalText {
    /// All texts in lower case, one behind the other.
    words: String,
    /// `param` of OpenAI's errors.
    params: Vec<String>,
    /// `code` and `type`.
    codes: Vec<String>,
    /// `loc` of pydantic's faults of the kind `extra_forbidden`.
    forbidden: Vec<Vec<String>>,
}

impl RefusalText {
    fn read(body: &str) -> Self {
        let mut refusal = Self::default();
        refusal.text(body, DEPTH);
        refusal
    }

    fn text(&mut self, text: &str, depth: u8) {
        let inner =
            (depth > 0 && text.trim_start().starts_with(['{', '['])).then(|| serde_json::from_str(text));
        match inner {
            Some(Ok(value)) => self.value(&value, depth - 1),
            _ => {
                self.words.push_str(&text.to_lowercase());
                self.words.push('\n');
                self.python(text);
            }
        }
    }

    fn value(&mut self, value: &Value, depth: u8) {
        match value {
            Value::String(text) => self.text(text, depth),
            Value::Array(all) => all.iter().for_each(|value| self.value(value, depth)),
            Value::Object(members) => {
                if members.get("type").and_then(Value::as_str) == Some("extra_forbidden")
                    && let Some(place) = members.get("loc").and_then(Value::as_array)
                {
                    let place = place.iter().map(|part| match part {
                        Value::String(part) => part.clone(),
                        other => other.to_string(),
                    });
                    self.forbidden.push(place.collect());
                }
                for (name, member) in members {
                    match (name.as_str(), member) {
                        ("input" | "loc" | "url", _) => {}
                        ("param", Value::String(param)) => self.params.push(param.clone()),
                        ("code" | "type" | "status", Value::String(code)) => {
                            self.codes.push(code.to_lowercase());
                            self.text(code, 0);
                        }
                        (name, Value::Number(number)) => {
                            self.words.push_str(&format!("\"{name}\":{number}\n"));
                        }
                        (_, member) => self.value(member, depth),
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Python's way to write the same faults: `{'type': 'extra_forbidden', 'loc': ('body', 'stream_options'), …}`.
    fn python(&mut self, text: &str) {
        for part in text.split("extra_forbidden").skip(1) {
            let Some((_, rest)) = part.split_once("'loc': (") else {
                continue;
            };
            let Some((place, _)) = rest.split_once(')') else {
                continue;
            };
            let place = place
                .split(',')
                .map(|part| part.trim().trim_matches('\'').to_owned());
            self.forbidden
                .push(place.filter(|part| !part.is_empty()).collect());
        }
    }

    fn says(&self, words: &str) -> bool {
        self.words.contains(words)
    }

    fn wants_responses(&self) -> bool {
        let named = ["/v1/responses", "v1/responses", "responses api"];
        let wanted = [
            "use",
            "only supported in",
            "only supported with",
            "only available",
        ];
        named.iter().any(|name| self.says(name)) && wanted.iter().any(|words| self.says(words))
    }

    fn is_too_long(&self) -> bool {
        // The bound of an answer alone is not the conversation's fault, unless both together are too long.
        let answer_only = self.says("completion tokens") && self.says("supports at most");
        !answer_only && TOO_LONG.iter().any(|words| self.says(words))
    }

    fn limit_tokens(&self) -> Option<u64> {
        // A sum that is said to be more than the limit: `188240 + 21333 > 200000`.
        let sum = match self.says("exceed context limit") {
            true => number_behind(&self.words, " > "),
            false => None,
        };
        let behind = || {
            LIMIT_BEHIND
                .iter()
                .find_map(|words| number_behind(&self.words, words))
        };
        let found = sum.or_else(behind);
        found.filter(|limit| (256..=100_000_000).contains(limit))
    }

    fn is_about_call_ids(&self) -> bool {
        let long_id = self.says("string too long")
            && (self.says("tool_calls[") || self.says("call_id"))
            && self.says("id'");
        long_id || CALL_IDS.iter().any(|words| self.says(words))
    }

    fn parameter(&self) -> Option<RefusalCause> {
        let coded = self.codes.iter().any(|code| {
            ["unsupported_parameter", "unknown_parameter", "unsupported_value"].contains(&code.as_str())
        });
        let by_code = self
            .params
            .iter()
            .filter(|_| coded)
            .find_map(|param| top_level(param));
        let by_place = || self.forbidden.iter().find_map(|place| forbidden(place));
        let name = by_code.or_else(by_place).or_else(|| self.parameter_in_words())?;
        let instead = self.instead().filter(|instead| *instead != name);
        Some(RefusalCause::Parameter { instead, name })
    }

    fn parameter_in_words(&self) -> Option<String> {
        if self.says("does not support thinking") || self.says("does not support reasoning") {
            return Some("reasoning_effort".to_owned());
        }
        self.words.lines().find_map(|line| {
            let behind = PARAMETER_BEHIND.iter().find_map(|words| {
                let (_, rest) = line.split_once(words)?;
                let (name, rest) = first_word(rest)?;
                // A name inside of a tool's schema or of a message is none of the request's.
                let inside = rest
                    .trim_start_matches(['"', '\'', '`', '\\'])
                    .starts_with(" at '");
                let quoted = *words != "property " || rest.starts_with(['\'', '"', '`']);
                top_level(name).filter(|_| !inside && quoted)
            });
            behind.or_else(|| {
                PARAMETER_BEFORE.iter().find_map(|words| {
                    let (before, _) = line.split_once(words)?;
                    // Prose stands before such words, too: only what looks like a parameter counts.
                    let known = |name: &String| name.contains('_') || ONE_WORD.contains(&name.as_str());
                    top_level(last_word(before)?).filter(known)
                })
            })
        })
    }

    /// The name that the server wants in its place.
    fn instead(&self) -> Option<String> {
        let (_, rest) = self.words.split_once("use ")?;
        let (name, rest) = first_word(rest)?;
        let rest = rest.trim_start_matches(['"', '\'', '`']);
        (rest.starts_with(" instead") && is_name(name)).then(|| name.to_owned())
    }
}

/// The digits behind these words.
fn number_behind(text: &str, words: &str) -> Option<u64> {
    let (_, rest) = text.split_once(words)?;
    let digits: String = rest
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == ',')
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().ok() // silent-ok: no number is said there
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '[' | ']')
}

/// The first word, quoted or not, and what stands behind it.
fn first_word(text: &str) -> Option<(&str, &str)> {
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

fn is_name(name: &str) -> bool {
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
/// for what messages carry of earlier reasoning.
fn top_level(path: &str) -> Option<String> {
    let path = path.trim_matches(['"', '\'', '`']);
    if path.ends_with("reasoning_content") {
        return Some("reasoning_content".to_owned());
    }
    let first = path.split(['.', '[']).next().unwrap_or_default();
    (is_name(first) && !NO_NAMES.contains(&first)).then(|| first.to_owned())
}

/// The parameter that pydantic's place names.
fn forbidden(place: &[String]) -> Option<String> {
    let place = match place {
        [body, rest @ ..] if body == "body" => rest,
        place => place,
    };
    match place {
        [name] => top_level(name),
        [.., name] if name == "reasoning_content" => Some(name.clone()),
        [name, ..] if name != "messages" && name != "tools" => top_level(name),
        _ => None,
    }
}
