//! Detects errors that a server sends in place of an answer: with status 200 or inside a stream, in each vendor's own format.

use serde_json::Value;

use crate::draft::shorten;
use crate::fault::AttemptFault;

const SHOWN_MAX_BYTES: usize = 300;

/// Returns the error that `data` holds, if it holds one. `is_named`: the server marked the event as an error.
pub(crate) fn error_in(data: &str, is_named: bool) -> Option<AttemptFault> {
    let value: Value = serde_json::from_str(data).ok()?; // silent-ok: no JSON is another fault
    let value = match &value {
        Value::Array(items) => items.first()?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => &value,
    };
    let has = |name: &str| {
        value
            .get(name)
            .is_some_and(|member| !member.is_null() && *member != Value::Bool(false))
    };
    let is = |name: &str, word: &str| value.get(name).and_then(Value::as_str) == Some(word);
    if has("error") {
        return value.get("error").map(AttemptFault::of_error_object);
    }
    if let Some(first) = value.get("errors").and_then(|errors| errors.get(0)) {
        return Some(AttemptFault::of_error_object(first));
    }
    // MiniMax adds this member to every answer; code 0 means success.
    let told = value.get("base_resp");
    if let Some(told) = told.filter(|told| told.get("status_code").and_then(Value::as_i64).unwrap_or(0) != 0)
    {
        let message = told.get("status_msg").cloned().unwrap_or_default();
        return Some(AttemptFault::of_error_object(
            &serde_json::json!({ "message": message }),
        ));
    }
    let failed = value.get("success") == Some(&Value::Bool(false)) || is("status", "error");
    let says = has("message") || has("msg") || has("detail");
    let coded = (has("code") || has("status") || has("error_code")) && has("message");
    if is_named || is("object", "error") || is("type", "error") || (failed && says) || coded || has("detail")
    {
        return Some(AttemptFault::of_error_object(value));
    }
    None
}

/// Returns the fault for data that is not an answer of the expected format.
pub(crate) fn not_agreed(data: &str, error: &serde_json::Error) -> AttemptFault {
    if error.is_eof() {
        return AttemptFault::cut();
    }
    let shown = shorten(data.trim(), SHOWN_MAX_BYTES);
    match shown.starts_with(['{', '[']) {
        true => AttemptFault::malformed(format!("the answer is not what was agreed: {error}")),
        false => AttemptFault::malformed(format!(
            "the server wrote words in the place of an answer: {shown}"
        )),
    }
}
