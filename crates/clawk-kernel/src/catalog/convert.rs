//! What a model wrote in its own way, as the tool's schema wants it: `null` for an optional parameter, `"5"` for an integer, a JSON
//! text for an object. Converted before policy, approvals and the tool see the call, and only where the schema leaves no doubt.

use std::collections::BTreeMap;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, Validator};
use serde_json::{Map, Value};

/// How often the arguments are looked at again: what was a text may hold values that are to be converted themselves.
const ROUNDS: usize = 3;
/// Values converted in one call; arguments with more faults are refused as they are.
const MAX_CONVERTED: usize = 64;
/// The longest text that is read as JSON, bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Arguments that were converted, and where.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConvertedArguments {
    pub(crate) arguments: Map<String, Value>,
    /// JSON Pointers of the values that were changed or left out, in order.
    pub(crate) pointers: Vec<String>,
}

/// What one fault of a value asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConversionRemedy {
    /// The value becomes this type.
    Type(JsonType),
    /// The schema wants something else: nobody can say what was meant.
    Unclear,
}

/// Arguments that fit the schema, where those that were given do not and their meaning is plain; `None`: they stay as they are.
///
/// It is all or nothing: a call whose arguments can't be made to fit as a whole is refused with what the model wrote.
pub(super) fn convert(validator: &Validator, given: &Map<String, Value>) -> Option<ConvertedArguments> {
    let mut value = Value::Object(given.clone());
    let mut pointers: Vec<String> = Vec::new();
    for _ in 0..ROUNDS {
        if validator.is_valid(&value) {
            break;
        }
        let faults = remedies(validator, &value);
        if faults.len() > MAX_CONVERTED {
            return None;
        }
        // Deeper values first: a list is changed before the object that it stands in.
        for (pointer, remedy) in faults.iter().rev() {
            if !apply(&mut value, pointer, *remedy) {
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

/// What each faulty value would have to become, by its pointer.
fn remedies(validator: &Validator, value: &Value) -> BTreeMap<String, ConversionRemedy> {
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

/// Changes the value at this place; `false`: it can't be done without guessing.
fn apply(value: &mut Value, pointer: &str, remedy: ConversionRemedy) -> bool {
    let Some(here) = value.pointer_mut(pointer) else {
        return false;
    };
    if here.is_null() {
        return leave_out(value, pointer);
    }
    let ConversionRemedy::Type(kind) = remedy else {
        return false;
    };
    match converted(here, kind) {
        Some(new) => {
            *here = new;
            true
        }
        None => false,
    }
}

/// A member that is `null` and may not be is as good as absent. Of a list nothing is left out: its places have a meaning.
fn leave_out(value: &mut Value, pointer: &str) -> bool {
    let Some((parent, name)) = pointer.rsplit_once('/') else {
        return false;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    let parent = value.pointer_mut(parent).and_then(Value::as_object_mut);
    parent.and_then(|members| members.remove(&name)).is_some()
}

/// The same value in another type, where it can only mean one thing.
fn converted(value: &Value, kind: JsonType) -> Option<Value> {
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
                // One value where several may stand. That the list takes texts is checked with all the rest.
                Ok(Value::Null) => None,
                _ => Some(Value::Array(vec![Value::String(text.to_owned())])),
            }
        }
        JsonType::String | JsonType::Null => None,
    }
}

/// A whole number as JSON writes it: no sign `+`, no leading zeros, no blanks, no exponent.
fn whole_number(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?; // silent-ok: no number, nothing to convert
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests;
