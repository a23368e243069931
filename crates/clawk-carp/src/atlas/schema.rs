//! JSON Schemas of actions, compiled once.
//!
//! The schemas are untrusted. `pattern` runs on an engine without backtracking (a look-around is refused at load), and a reference
//! may point only into the schema itself.

use std::fmt;

use jsonschema::PatternOptions;
use serde_json::{Map, Value};

use crate::fault::InputFaults;

/// A compiled JSON Schema.
pub struct Schema {
    /// `None`: every value is valid.
    validator: Option<jsonschema::Validator>,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema").finish_non_exhaustive()
    }
}

impl Schema {
    /// The schema that accepts every value.
    pub(crate) const ANY: Self = Self { validator: None };

    pub(crate) fn compile(schema: &Value) -> Result<Self, String> {
        if let Some(away) = reference_away(schema) {
            return Err(format!(
                "`$ref` may only point into the schema itself (`#…`), not to `{away}`"
            ));
        }
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex().size_limit(1 << 20));
        match options.build(schema) {
            Ok(validator) => Ok(Self {
                validator: Some(validator),
            }),
            Err(fault) => Err(format!("no usable JSON Schema: {}", fault.masked())),
        }
    }

    /// Whether no schema was given, so that every value is valid.
    #[must_use]
    pub const fn takes_anything(&self) -> bool {
        self.validator.is_none()
    }

    /// Checks parameters.
    ///
    /// # Errors
    /// All faults; pointers begin with `base`. Values are not repeated, because parameters may hold secrets.
    pub fn check_parameters(&self, parameters: &Map<String, Value>, base: &str) -> Result<(), InputFaults> {
        if self.takes_anything() {
            return Ok(());
        }
        self.check_value(&Value::Object(parameters.clone()), base)
    }

    /// Checks any JSON value, such as a result.
    ///
    /// # Errors
    /// The same errors as [`Self::check_parameters`].
    pub fn check_value(&self, instance: &Value, base: &str) -> Result<(), InputFaults> {
        let Some(validator) = &self.validator else {
            return Ok(());
        };
        if validator.is_valid(instance) {
            return Ok(());
        }
        let mut faults = InputFaults::default();
        for fault in validator.iter_errors(instance) {
            let mut path = format!("{base}{}", fault.instance_path().as_str());
            if let jsonschema::error::ValidationErrorKind::Required { property } = fault.kind() {
                // R30: the path of a missing field ends in the field's name.
                if let Some(name) = property.as_str() {
                    path.push('/');
                    path.push_str(&name.replace('~', "~0").replace('/', "~1"));
                }
            }
            faults.push(path, "invalid_parameters", fault.masked().to_string());
        }
        faults.into_result(Some(()))
    }
}

/// The first `$ref` or `$dynamicRef` that points outside the schema.
fn reference_away(schema: &Value) -> Option<&str> {
    // INVARIANT: the parser limits the depth to 128.
    match schema {
        Value::Object(map) => map.iter().find_map(|(key, value)| match (key.as_str(), value) {
            ("$ref" | "$dynamicRef", Value::String(target)) if !target.starts_with('#') => {
                Some(target.as_str())
            }
            _ => reference_away(value),
        }),
        Value::Array(items) => items.iter().find_map(|item| reference_away(item)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}
