//! Templates `{{name}}` in a script's texts.

use serde_json::{Map, Value};

use super::script::ScriptContext;

const NAMES: &[&str] = &["last_user_text", "last_tool_text", "model", "turn"];

/// Checks that all templates exist.
///
/// # Errors
/// The name of the first unknown template.
pub(super) fn check_templates(text: &str) -> Result<(), String> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else {
            return Err("`{{` without `}}`".to_owned());
        };
        if !NAMES.contains(&name.trim()) {
            return Err(format!(
                "unknown template `{}`; there are {}",
                name.trim(),
                NAMES.join(", ")
            ));
        }
        rest = after;
    }
    Ok(())
}

pub(super) fn check_value(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) => check_templates(text),
        Value::Array(items) => items.iter().try_for_each(check_value),
        Value::Object(members) => members.values().try_for_each(check_value),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Fills in the templates in one pass. Inserted text is not searched for templates.
pub(super) fn fill_templates(text: &str, seen: &ScriptContext<'_>, model: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let Some((name, after)) = after.split_once("}}") else {
            break;
        };
        match name.trim() {
            "last_user_text" => out.push_str(seen.last_user),
            "last_tool_text" => out.push_str(seen.last_tool),
            "model" => out.push_str(model),
            "turn" => out.push_str(&seen.turn.to_string()),
            _ => {}
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

pub(super) fn fill_all(
    members: &Map<String, Value>,
    seen: &ScriptContext<'_>,
    model: &str,
) -> Map<String, Value> {
    members
        .iter()
        .map(|(name, value)| (name.clone(), fill_value(value, seen, model)))
        .collect()
}

fn fill_value(value: &Value, seen: &ScriptContext<'_>, model: &str) -> Value {
    match value {
        Value::String(text) => Value::String(fill_templates(text, seen, model)),
        Value::Array(items) => items.iter().map(|item| fill_value(item, seen, model)).collect(),
        Value::Object(members) => Value::Object(fill_all(members, seen, model)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
