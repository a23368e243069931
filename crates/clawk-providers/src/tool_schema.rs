//! Simplifies a tool's schema for vendors that require a plain object at its top level, without `oneOf`, `anyOf`, `allOf`, `not`,
//! `enum` or `$ref`. The simplified schema accepts everything that the original accepts, or more. Arguments are always validated by
//! the original.

use std::borrow::Cow;

use clawk_core::tool_schema::flatten_top;
use serde_json::{Value, json};

/// Keywords that are not allowed at the top level.
const REFUSED: [&str; 6] = ["oneOf", "anyOf", "allOf", "not", "enum", "$ref"];
/// The longest description of what was left out, bytes: a longer one is not given.
const TOLD_MAX_BYTES: usize = 4096;

/// Returns the schema with a plain object at its top level.
pub(crate) fn plain_object(schema: &Value) -> Cow<'_, Value> {
    let is_plain = schema.get("type").and_then(Value::as_str) == Some("object")
        && REFUSED.iter().all(|name| schema.get(name).is_none());
    if is_plain {
        return Cow::Borrowed(schema);
    }
    let Some(flat) = flatten_top(schema, &REFUSED) else {
        return Cow::Owned(json!({ "type": "object" }));
    };
    let mut plain = flat.schema;
    if !flat.left_out.is_empty() {
        let told = Value::Object(flat.left_out).to_string();
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
