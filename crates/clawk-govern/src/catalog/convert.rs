//! Converts a model's arguments to the types in the tool's schema: `null` for an optional parameter, `"5"` for an integer, a JSON
//! text for an object. The conversion happens before policy, approvals and the tool see the call, and only if the schema allows a
//! single reading.

use std::collections::BTreeMap;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, Validator};
use serde_json::{Map, Value};

/// Number of passes over the arguments. A converted text may contain values that must be converted, too.
const ROUNDS: usize = 3;
/// Largest number of converted values in one call. Arguments with more faults are refused unchanged.
const MAX_CONVERTED: usize = 64;
/// Longest text that is parsed as JSON, in bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Converted arguments, and which values changed.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertedArguments {
    /// The arguments after the conversion.
    pub arguments: Map<String, Value>,
    /// JSON Pointers of the values that were changed or removed, in order.
    pub pointers: Vec<String>,
}

/// The correction for one faulty value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConversionRemedy {
    /// Convert the value to this type.
    Type(JsonType),
    /// No correction: the intended value is not clear.
    Unclear,
}

/// Returns arguments that match the schema, if the given ones do not and their meaning is clear; `None`: they stay unchanged.
///
/// Either all faults are corrected, or none: otherwise the call is refused with the model's original arguments.
pub(super) fn convert_arguments(
    validator: &Validator,
    given: &Map<String, Value>,
) -> Option<ConvertedArguments> {
    let mut value = Value::Object(given.clone());
    let mut pointers: Vec<String> = Vec::new();
    for _ in 0..ROUNDS {
        if validator.is_valid(&value) {
            break;
        }
        let faults = find_remedies(validator, &value);
        if faults.len() > MAX_CONVERTED {
            return None;
        }
        // Deeper values first: a list is changed before the object that contains it.
        for (pointer, remedy) in faults.iter().rev() {
            if !apply_remedy(&mut value, pointer, *remedy) {
                return None;
            }
            if !pointers.contains(pointer) {
                pointers.push(pointer.clone());
            }
        }
    }
    if pointers.is_empty() || !validator.is_valid(&value) {
        return None;
    }
    pointers.sort_unstable();
    let Value::Object(arguments) = value else {
        return None;
    };
    Some(ConvertedArguments { arguments, pointers })
}

/// Returns the correction for each faulty value, by its pointer.
fn find_remedies(validator: &Validator, value: &Value) -> BTreeMap<String, ConversionRemedy> {
    let mut found: BTreeMap<String, ConversionRemedy> = BTreeMap::new();
    for fault in validator.iter_errors(value).take(MAX_CONVERTED + 1) {
        let remedy = match fault.kind() {
            ValidationErrorKind::Type {
                kind: TypeKind::Single(kind),
            } => ConversionRemedy::Type(*kind),
            _ => ConversionRemedy::Unclear,
        };
        let pointer = fault.instance_path().to_string();
        found
            .entry(pointer)
            .and_modify(|known| {
                if *known != remedy {
                    *known = ConversionRemedy::Unclear;
                }
            })
            .or_insert(remedy);
    }
    found
}

/// Changes the value at this place. Returns `false` if that would be a guess.
fn apply_remedy(value: &mut Value, pointer: &str, remedy: ConversionRemedy) -> bool {
    let Some(here) = value.pointer_mut(pointer) else {
        return false;
    };
    if here.is_null() {
        return leave_out(value, pointer);
    }
    let ConversionRemedy::Type(kind) = remedy else {
        return false;
    };
    match convert_value(here, kind) {
        Some(new) => {
            *here = new;
            true
        }
        None => false,
    }
}

/// Removes a member that is `null` but may not be. List entries are never removed, because their positions have a meaning.
fn leave_out(value: &mut Value, pointer: &str) -> bool {
    let Some((parent, name)) = pointer.rsplit_once('/') else {
        return false;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    let parent = value.pointer_mut(parent).and_then(Value::as_object_mut);
    parent.and_then(|members| members.remove(&name)).is_some()
}

/// Returns the value converted to another type, if only one reading is possible.
fn convert_value(value: &Value, kind: JsonType) -> Option<Value> {
    let text = value.as_str().filter(|text| text.len() <= MAX_TEXT_BYTES);
    match kind {
        JsonType::Integer => whole_number(text?).map(Value::from),
        JsonType::Number => {
            let number: Value = serde_json::from_str(text?).ok()?; // silent-ok: no number, nothing to convert
            number.is_number().then_some(number)
        }
        JsonType::Boolean => match text? {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            _ => None,
        },
        JsonType::Object => {
            let inner: Value = serde_json::from_str(text?).ok()?; // silent-ok: as above
            inner.is_object().then_some(inner)
        }
        JsonType::Array => {
            let text = text?;
            match serde_json::from_str(text) {
                Ok(inner @ Value::Array(_)) => Some(inner),
                // One value in place of a list. The later validation checks that the list may contain texts.
                Ok(Value::Null) => None,
                _ => Some(Value::Array(vec![Value::String(text.to_owned())])),
            }
        }
        JsonType::String | JsonType::Null => None,
    }
}

/// Parses a whole number in JSON's notation: no `+`, no leading zeros, no blanks, no exponent.
fn whole_number(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?; // silent-ok: no number, nothing to convert
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests;
