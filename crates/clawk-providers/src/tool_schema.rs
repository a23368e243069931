//! Simplifies a tool's schema for vendors that require a plain object at its top level, without `oneOf`, `anyOf`, `allOf`, `not`,
//! `enum` or `$ref`. The simplified schema accepts everything that the original accepts, or more. Arguments are always validated by
//! the original.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Keywords that are not allowed at the top level.
const REFUSED: [&str; 6] = ["oneOf", "anyOf", "allOf", "not", "enum", "$ref"];
/// Nesting depth up to which alternatives are read.
const DEPTH: u8 = 6;
/// Largest number of subschemas that are read. References can multiply them.
const MAX_PARTS: u32 = 2_000;
/// Longest description of the omitted rules, in bytes. A longer description is dropped.
const TOLD_MAX_BYTES: usize = 4096;

/// Returns the schema with a plain object at its top level.
pub(crate) fn plain_object(schema: &Value) -> Cow<'_, Value> {
    let is_plain = schema.get("type").and_then(Value::as_str) == Some("object")
        && REFUSED.iter().all(|name| schema.get(name).is_none());
    let Some(own) = schema.as_object().filter(|_| !is_plain) else {
        return match is_plain {
            true => Cow::Borrowed(schema),
            false => Cow::Owned(json!({ "type": "object" })),
        };
    };
    let shape = SchemaShape::read((schema, &Cell::new(MAX_PARTS)), schema, DEPTH);
    let mut plain = own.clone();
    let told: Map<String, Value> = REFUSED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), plain.remove(*name)?)))
        .collect();
    plain.insert("type".to_owned(), "object".into());
    plain.insert("properties".to_owned(), shape.properties.into());
    if shape.required.is_empty() {
        plain.remove("required");
    } else {
        plain.insert("required".to_owned(), shape.required.into_iter().collect());
    }
    if plain.get("additionalProperties") == Some(&Value::Bool(false)) && shape.is_open {
        plain.remove("additionalProperties");
    }
    if !told.is_empty() {
        let told = Value::Object(told).to_string();
        let own = plain
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let text = format!("{own} The arguments must also fit this JSON Schema: {told}");
        if told.len() <= TOLD_MAX_BYTES {
            plain.insert("description".to_owned(), text.trim_start().into());
        }
    }
    Cow::Owned(plain.into())
}

/// The allowed and required properties of an object schema.
#[derive(Debug, Default)]
struct SchemaShape {
    properties: Map<String, Value>,
    required: BTreeSet<String>,
    /// Part of the schema could not be read, so other properties are allowed.
    is_open: bool,
}

impl SchemaShape {
    fn read((whole, parts): (&Value, &Cell<u32>), part: &Value, depth: u8) -> Self {
        let (Some(depth), Some(left)) = (depth.checked_sub(1), parts.get().checked_sub(1)) else {
            return Self::open();
        };
        parts.set(left);
        let whole = (whole, parts);
        let mut shape = Self::default();
        for (name, schema) in part
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            shape.add_property(name, schema);
        }
        let required = part
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        shape.required = required.filter_map(Value::as_str).map(str::to_owned).collect();
        if let Some(reference) = part.get("$ref") {
            let target = reference
                .as_str()
                .and_then(|text| whole.0.pointer(text.strip_prefix('#')?));
            shape.add_all(target.map_or_else(Self::open, |target| Self::read(whole, target, depth)));
        }
        for every in part.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            shape.add_all(Self::read(whole, every, depth));
        }
        for name in ["oneOf", "anyOf"] {
            let alternatives = part.get(name).and_then(Value::as_array).into_iter().flatten();
            let alternatives: Vec<Self> = alternatives
                .map(|alternative| Self::read(whole, alternative, depth))
                .collect();
            shape.add_one_of(alternatives);
        }
        shape
    }

    fn open() -> Self {
        Self {
            is_open: true,
            ..Self::default()
        }
    }

    fn add_all(&mut self, other: Self) {
        for (name, schema) in &other.properties {
            self.add_property(name, schema);
        }
        self.required.extend(other.required);
        self.is_open |= other.is_open;
    }

    /// Adds alternatives. Only properties that all alternatives require are required.
    fn add_one_of(&mut self, alternatives: Vec<Self>) {
        let common = alternatives
            .iter()
            .map(|alternative| alternative.required.clone())
            .reduce(|one, two| one.intersection(&two).cloned().collect());
        self.required.extend(common.unwrap_or_default());
        for mut alternative in alternatives {
            alternative.required.clear();
            self.add_all(alternative);
        }
    }

    /// Adds a property. With several schemas it accepts values of any of them.
    fn add_property(&mut self, name: &str, schema: &Value) {
        match self.properties.get_mut(name) {
            None => {
                self.properties.insert(name.to_owned(), schema.clone());
            }
            Some(known) if known == schema => {}
            Some(known) => match known.get_mut("anyOf").and_then(Value::as_array_mut) {
                Some(list) if !list.contains(schema) => list.push(schema.clone()),
                Some(_) => {}
                None => *known = json!({ "anyOf": [known.clone(), schema] }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::plain_object;
    use serde_json::{Value, json};

    #[test]
    fn references_that_multiply_are_read_within_a_bound() {
        let many = |to: &str, count| vec![json!({ "$ref": to }); count];
        let schema = json!({ "anyOf": many("#/b", 1_440), "b": { "anyOf": many("#/c", 1_440) },
            "c": { "anyOf": vec![json!({}); 7_000] } });
        let plain = plain_object(&schema).into_owned();
        assert_eq!(plain["type"], "object");
        assert!(plain.get("anyOf").is_none());
    }

    #[test]
    fn alternatives_at_the_top_become_one_object() {
        let a = json!({ "properties": { "a": { "type": "string" }, "k": { "const": "a" } }, "required": ["a", "k"] });
        let b = json!({ "type": "object", "properties": { "b": { "type": "integer" }, "k": { "const": "b" } }, "required": ["b", "k"], "additionalProperties": false });
        for (schema, properties, required) in [
            (json!({ "oneOf": [a, b] }), json!(["a", "b", "k"]), json!(["k"])),
            (
                json!({ "type": "object", "anyOf": [a, b] }),
                json!(["a", "b", "k"]),
                json!(["k"]),
            ),
            (
                json!({ "allOf": [a, b] }),
                json!(["a", "b", "k"]),
                json!(["a", "b", "k"]),
            ),
            (
                json!({ "type": "object", "properties": { "x": true }, "required": ["x"], "anyOf": [{ "required": ["a"] }, { "required": ["b"] }] }),
                json!(["x"]),
                json!(["x"]),
            ),
            (
                json!({ "anyOf": [{ "allOf": [a, { "oneOf": [b] }] }, b] }),
                json!(["a", "b", "k"]),
                json!(["b", "k"]),
            ),
            (
                json!({ "$ref": "#/$defs/a", "$defs": { "a": a } }),
                json!(["a", "k"]),
                json!(["a", "k"]),
            ),
            (
                json!({ "type": "object", "not": { "required": ["q"] } }),
                json!([]),
                Value::Null,
            ),
            (json!({ "properties": { "y": {} } }), json!(["y"]), Value::Null),
            (
                json!({ "type": ["object", "null"], "properties": {} }),
                json!([]),
                Value::Null,
            ),
            (
                json!({ "oneOf": [{ "$ref": "#/oneOf/0" }, a] }),
                json!(["a", "k"]),
                Value::Null,
            ),
        ] {
            let plain = plain_object(&schema);
            assert_eq!(plain["type"], "object", "{schema}");
            for refused in ["oneOf", "anyOf", "allOf", "not", "enum", "$ref"] {
                assert!(plain.get(refused).is_none(), "{refused} in {plain}");
            }
            let names: Value = plain["properties"].as_object().unwrap().keys().cloned().collect();
            assert_eq!(names, properties, "{schema}");
            assert_eq!(plain["required"], required, "{schema}");
        }
    }

    #[test]
    fn a_plain_schema_stays_as_it_is() {
        for schema in [
            json!({ "type": "object" }),
            json!({ "type": "object", "properties": { "a": { "oneOf": [{ "type": "string" }, { "type": "null" }] } }, "required": ["a"] }),
        ] {
            assert_eq!(*plain_object(&schema), schema);
        }
    }

    #[test]
    fn the_model_is_told_what_was_left_out() {
        let schema = json!({ "type": "object", "description": "Finds.", "anyOf": [{ "required": ["a"] }, { "required": ["b"] }] });
        let told = plain_object(&schema)["description"].as_str().unwrap().to_owned();
        assert!(
            told.starts_with("Finds. ") && told.contains("\"anyOf\""),
            "{told}"
        );
    }
}
