//! Errors for an event payload that can't be read. An error names the event type, the field and the offset. It never repeats a
//! value.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde_json::value::RawValue;

use crate::field::PayloadField;

/// The payload of an event can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the payload of `{kind}`: {fault}")]
pub struct EventError {
    /// The event's type.
    pub kind: String,
    /// What is wrong.
    pub fault: PayloadFault,
}

/// What is wrong with a payload. Offsets count bytes from the payload's beginning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadFault {
    /// The payload is not JSON.
    #[error("not JSON, from byte {offset}")]
    NotJson {
        /// Byte offset at which reading stopped.
        offset: usize,
    },
    /// The payload is JSON, but not an object.
    #[error("{found} in place of an object")]
    NotAnObject {
        /// The JSON type that was found instead.
        found: JsonType,
    },
    /// A field that every version writes is missing.
    #[error("the field `{field}` is missing")]
    MissingField {
        /// The field.
        field: &'static str,
    },
    /// A field occurs twice.
    #[error("the field `{field}` occurs twice")]
    RepeatedField {
        /// The field.
        field: &'static str,
    },
    /// The payload was shortened to the size limit of an event when it was written, and the caller needs the whole payload.
    #[error("cut to the size of an event when it was written")]
    Shortened,
    /// A field has a value of the wrong type.
    #[error("the field `{field}` at byte {offset} is {found}; expected {expected}")]
    WrongField {
        /// The field.
        field: &'static str,
        /// Byte offset in the payload where the wrong value begins or ends.
        offset: usize,
        /// The JSON type of the field's value.
        found: JsonType,
        /// The type that was expected.
        expected: String,
    },
}

impl PayloadFault {
    /// Explains why `payload` could not be read as an object.
    pub(crate) fn of_text(payload: &str) -> Self {
        match serde_json::from_str::<&RawValue>(payload) {
            Ok(raw) => Self::NotAnObject {
                found: JsonType::of_text(raw.get()),
            },
            Err(error) => Self::NotJson {
                offset: error.column().saturating_sub(1),
            },
        }
    }
}

/// The type of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonType {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// A number.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl JsonType {
    /// Returns the type of a valid JSON text by its first byte.
    fn of_text(text: &str) -> Self {
        match text.trim_start().as_bytes().first() {
            Some(b'{') => Self::Object,
            Some(b'[') => Self::Array,
            Some(b'"') => Self::String,
            Some(b't' | b'f') => Self::Bool,
            Some(b'n') => Self::Null,
            Some(_) | None => Self::Number,
        }
    }
}

impl fmt::Display for JsonType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        })
    }
}

/// Why a payload could not be read as its type.
#[derive(Debug)]
pub(crate) enum FieldDiagnosis {
    /// The field was shortened to the size limit of an event when it was written: [`clawk_trace::bounded`].
    Shortened,
    /// The field is malformed.
    Fault(PayloadFault),
}

/// Checks the payload field by field to find the one that caused `error`.
pub(crate) fn diagnose_payload(
    fields: &[PayloadField],
    payload: &str,
    error: &serde_json::Error,
) -> FieldDiagnosis {
    let members: BTreeMap<Cow<'_, str>, &RawValue> = match serde_json::from_str(payload) {
        Ok(members) => members,
        Err(_) => return FieldDiagnosis::Fault(PayloadFault::of_text(payload)), // silent-ok: it is looked at again there
    };
    if members.len() == 1
        && members
            .get("oversize")
            .is_some_and(|text| is_cut_text(text.get()))
    {
        return FieldDiagnosis::Shortened;
    }
    for field in fields {
        let Some(value) = members.get(field.name) else {
            continue;
        };
        if let Err(fault) = (field.check)(value.get()) {
            if is_cut_text(value.get()) {
                return FieldDiagnosis::Shortened;
            }
            let start = value
                .get()
                .as_ptr()
                .addr()
                .saturating_sub(payload.as_ptr().addr());
            return FieldDiagnosis::Fault(PayloadFault::WrongField {
                field: field.name,
                offset: start.saturating_add(fault.column().saturating_sub(1)),
                found: JsonType::of_text(value.get()),
                expected: expected_text(&fault),
            });
        }
    }
    FieldDiagnosis::Fault(absent_or_repeated(fields, payload, error))
}

/// Used when every present field can be read: then a field is missing, or occurs twice.
fn absent_or_repeated(fields: &[PayloadField], payload: &str, error: &serde_json::Error) -> PayloadFault {
    let text = error.to_string();
    let named = |what: &str| {
        let name = text.strip_prefix(what)?.split('`').next()?;
        fields.iter().map(|field| field.name).find(|field| *field == name)
    };
    if let Some(field) = named("missing field `") {
        return PayloadFault::MissingField { field };
    }
    if let Some(field) = named("duplicate field `") {
        return PayloadFault::RepeatedField { field };
    }
    PayloadFault::of_text(payload)
}

/// Returns what serde expected, without the value that it found.
fn expected_text(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(text, _)| text);
    match text.rsplit_once(", expected ") {
        Some((_, expected)) => expected.to_owned(),
        None => "a valid value".to_owned(),
    }
}

/// Returns whether the JSON string ends in the suffix that [`clawk_trace::bounded`] writes: `… [N bytes, sha256:HEX]`.
fn is_cut_text(text: &str) -> bool {
    let Some((_, mark)) = text.rsplit_once("… [") else {
        return false;
    };
    let Some((size, digest)) = mark.split_once(" bytes, sha256:") else {
        return false;
    };
    let is_digest = digest
        .strip_suffix("]\"")
        .is_some_and(|digest| clawk_proto::Digest::from_hex(digest).is_some());
    text.starts_with('"') && is_digest && !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_digit())
}
