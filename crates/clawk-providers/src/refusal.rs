//! Recognises the cause of a server's refusal if a changed request may succeed (R53). It maps the texts of many vendors to
//! [`RefusalCause`]. A refusal without a known cause stays unchanged.

use clawk_core::ports::RefusalCause;
use serde_json::Value;

use self::parameter::{
    first_word, forbidden, forbidden_places, is_name, named_before, named_behind, top_level,
};

mod parameter;
#[cfg(test)]
mod tests;

/// Largest refusal that is searched, in bytes.
const READ_MAX_BYTES: usize = 16 * 1024;
/// Nesting depth up to which JSON inside JSON strings is searched. Gateways wrap the refusals of other servers.
const DEPTH: u8 = 4;

/// Phrases that mean "the request is too long", in lower case.
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

/// Phrases before the window's size. The first phrase that is found counts.
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

/// Phrases about the order of messages, or about empty messages.
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

/// Phrases about the format of call ids.
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

/// Returns whether the account has no credit left, or its quota is used up permanently. A retry is then useless.
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
    // A limit per minute uses the same phrases, but also says when to retry.
    let returns = [
        "retrydelay",
        "retry in",
        "per minute",
        "perminute",
        "try again in",
    ];
    body.contains("exceeded your current quota") && !returns.iter().any(|words| body.contains(words))
}

/// All texts and members of a refusal, also from nested JSON.
#[derive(Debug, Default)]
struct RefusalText {
    /// All texts in lower case, joined.
    words: String,
    /// The `param` members of OpenAI's errors.
    params: Vec<String>,
    /// The `code` and `type` members.
    codes: Vec<String>,
    /// The `loc` paths of pydantic's `extra_forbidden` errors.
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
                self.forbidden.extend(forbidden_places(members));
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

    /// Reads the same errors in Python's notation: `{'type': 'extra_forbidden', 'loc': ('body', 'stream_options'), …}`.
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
        // A limit on the answer alone does not mean that the conversation is too long, unless the sum of both is.
        let answer_only = self.says("completion tokens") && self.says("supports at most");
        !answer_only && TOO_LONG.iter().any(|words| self.says(words))
    }

    fn limit_tokens(&self) -> Option<u64> {
        // Some servers name a sum that exceeds the limit: `188240 + 21333 > 200000`.
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
        let mut lines = self.words.lines().peekable();
        let mut before = "";
        while let Some(line) = lines.next() {
            let next = lines.peek().copied().unwrap_or_default();
            let found = named_behind(line, next).or_else(|| named_before(line, before));
            if found.is_some() {
                return found;
            }
            before = line;
        }
        None
    }

    /// Returns the parameter name that the server suggests instead.
    fn instead(&self) -> Option<String> {
        let (_, rest) = self.words.split_once("use ")?;
        let (name, rest) = first_word(rest)?;
        let rest = rest.trim_start_matches(['"', '\'', '`']);
        (rest.starts_with(" instead") && is_name(name)).then(|| name.to_owned())
    }
}

/// Returns the number that follows `words`.
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
