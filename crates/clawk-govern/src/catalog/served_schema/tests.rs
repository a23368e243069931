use serde_json::{Value, json};

use super::ServedSchema;

fn with(property: Value) -> Value {
    json!({"type": "object", "properties": {"a": property}})
}

/// A schema that a server sent, arguments that fit, and whether anything is said of it.
#[expect(clippy::too_many_lines, reason = "a table")]
fn shapes() -> Vec<(&'static str, Value, Value, bool)> {
    vec![
        ("null", Value::Null, json!({"a": 1}), false),
        ("an empty array", json!([]), json!({"a": 1}), false),
        ("a text", json!("object"), json!({"a": 1}), true),
        (
            "no type",
            json!({"properties": {"a": {"type": "string"}}}),
            json!({"a": "x"}),
            false,
        ),
        (
            "properties as PHP writes them",
            json!({"type": "object", "properties": []}),
            json!({"a": 1}),
            false,
        ),
        (
            "properties null",
            json!({"type": "object", "properties": null}),
            json!({"a": 1}),
            false,
        ),
        (
            "type object or null",
            json!({"type": ["object", "null"]}),
            json!({}),
            false,
        ),
        ("type string", json!({"type": "string"}), json!({}), true),
        (
            "a property that is null",
            with(Value::Null),
            json!({"a": 1}),
            false,
        ),
        (
            "a property that is an array",
            with(json!([])),
            json!({"a": 1}),
            false,
        ),
        (
            "an unknown type",
            with(json!({"type": "date"})),
            json!({"a": "x"}),
            true,
        ),
        (
            "a type in capitals",
            with(json!({"type": "String"})),
            json!({"a": "x"}),
            false,
        ),
        (
            "a lookahead",
            with(json!({"type": "string", "pattern": "^(?!no)x"})),
            json!({"a": "nox"}),
            true,
        ),
        (
            "an open pattern",
            with(json!({"pattern": "(open"})),
            json!({"a": "x"}),
            true,
        ),
        (
            "a pattern that is a number",
            with(json!({"pattern": 1})),
            json!({"a": "x"}),
            true,
        ),
        (
            "pattern properties",
            json!({"patternProperties": {"(open": {"type": "string"}}}),
            json!({"a": 1}),
            true,
        ),
        (
            "draft 3 required",
            with(json!({"type": "string", "required": true})),
            json!({"a": "x"}),
            false,
        ),
        (
            "draft 4 bounds",
            with(json!({"minimum": 0, "exclusiveMinimum": true})),
            json!({"a": 1}),
            false,
        ),
        (
            "draft 4 bounds off",
            with(json!({"maximum": 5, "exclusiveMaximum": false})),
            json!({"a": 5}),
            false,
        ),
        (
            "required null",
            json!({"type": "object", "required": null}),
            json!({}),
            false,
        ),
        (
            "required as an object",
            json!({"type": "object", "required": {}}),
            json!({}),
            true,
        ),
        (
            "a dangling reference",
            with(json!({"$ref": "#/$defs/Gone"})),
            json!({"a": 1}),
            true,
        ),
        (
            "a remote reference",
            with(json!({"$ref": "https://example.com/s.json"})),
            json!({"a": 1}),
            true,
        ),
        (
            "a file",
            with(json!({"$ref": "file:///etc/passwd"})),
            json!({"a": 1}),
            true,
        ),
        (
            "a reference that is a number",
            with(json!({"$ref": 1})),
            json!({"a": 1}),
            true,
        ),
        (
            "a loop of references",
            json!({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"$ref": "#/$defs/y"},
            "y": {"$ref": "#/$defs/x"}}}),
            json!({"a": 1}),
            true,
        ),
        (
            "a reference to itself",
            json!({"properties": {"a": {"$ref": "#/properties/a"}}}),
            json!({"a": 1}),
            true,
        ),
        (
            "a circle through allOf",
            json!({"properties": {"a": {"$ref": "#/$defs/x"}},
            "$defs": {"x": {"allOf": [{"$ref": "#/$defs/x"}]}}}),
            json!({"a": 1}),
            true,
        ),
        (
            "a circle through the whole",
            json!({"anyOf": [{"$ref": "#"}]}),
            json!({"a": 1}),
            true,
        ),
        (
            "a circle through not",
            json!({"properties": {"a": {"not": {"not": {"$ref": "#/properties/a"}}}}}),
            json!({"a": 1}),
            true,
        ),
        (
            "a circle through an anchor",
            json!({"$anchor": "a", "allOf": [{"$ref": "#a"}]}),
            json!({"a": 1}),
            true,
        ),
        (
            "a dynamic circle",
            json!({"$dynamicAnchor": "a", "allOf": [{"$dynamicRef": "#a"}]}),
            json!({"a": 1}),
            true,
        ),
        (
            "recursion",
            json!({"properties": {"a": {"$ref": "#"}}}),
            json!({"a": {"a": {}}}),
            false,
        ),
        (
            "a relative id",
            json!({"$id": "tool.json", "properties": {"a": {"$ref": "tool.json#/$defs/A"}},
            "$defs": {"A": {"type": "string"}}}),
            json!({"a": "x"}),
            false,
        ),
        (
            "an unknown draft",
            json!({"$schema": "https://example.com/x", "properties": {}}),
            json!({}),
            false,
        ),
        (
            "a draft that is a number",
            json!({"$schema": 7}),
            json!({}),
            false,
        ),
        ("an empty enum", with(json!({"enum": []})), json!({"a": 1}), true),
        (
            "a negative length",
            with(json!({"minLength": -1})),
            json!({"a": "x"}),
            true,
        ),
        (
            "a length in words",
            with(json!({"maxLength": "10"})),
            json!({"a": "x"}),
            true,
        ),
        (
            "a step of zero",
            with(json!({"multipleOf": 0})),
            json!({"a": 1}),
            true,
        ),
        (
            "an empty anyOf",
            with(json!({"anyOf": []})),
            json!({"a": 1}),
            false,
        ),
        (
            "anyOf as an object",
            with(json!({"anyOf": {}})),
            json!({"a": 1}),
            false,
        ),
        (
            "items as a list",
            with(json!({"type": "array", "items": [{"type": "string"}]})),
            json!({"a": ["x"]}),
            false,
        ),
        (
            "items as an empty list",
            with(json!({"type": "array", "items": []})),
            json!({"a": ["x"]}),
            false,
        ),
        (
            "a description that is a list",
            with(json!({"description": ["x"]})),
            json!({"a": 1}),
            true,
        ),
        (
            "a format that is null",
            with(json!({"format": null})),
            json!({"a": 1}),
            false,
        ),
        (
            "a number with an exponent",
            with(json!({"maxLength": 1e2})),
            json!({"a": "x"}),
            false,
        ),
        (
            "alternatives at the top",
            json!({"oneOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]},
            {"properties": {"b": {}}, "required": ["b"]}]}),
            json!({"a": "x"}),
            false,
        ),
    ]
}

#[test]
fn an_odd_schema_costs_its_own_check_alone() {
    for (name, schema, fits, said) in shapes() {
        let read = ServedSchema::of_arguments(&schema).expect(name);
        assert!(read.validator.is_valid(&fits), "{name}: {fits}");
        assert_eq!(!read.notes.is_empty(), said, "{name}: {:?}", read.notes);
        // What models are shown is a plain schema of an object for every vendor.
        assert_eq!(read.shown["type"], "object", "{name}");
        assert!(read.shown["properties"].is_object(), "{name}");
        assert!(read.shown.get("oneOf").is_none(), "{name}");
        let result = ServedSchema::of_result(&schema).expect(name);
        assert!(
            result.validator.is_valid(&fits) || schema["type"] == "string",
            "{name} as a result"
        );
    }
}

#[test]
fn what_is_clear_still_holds() {
    for (schema, wrong) in [
        (
            with(json!({"type": "string", "pattern": "^(?!no)x"})),
            json!({"a": 1}),
        ),
        (with(json!({"type": "string", "required": true})), json!({})),
        (
            with(json!({"minimum": 0, "exclusiveMinimum": true})),
            json!({"a": 0}),
        ),
        (with(json!({"type": "Integer"})), json!({"a": "x"})),
        (
            json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({}),
        ),
        (
            json!({"$id": "t.json", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string"}}}),
            json!({"a": 1}),
        ),
        (
            json!({"properties": {"a": {"type": "string"}, "b": {"$ref": "#/gone"}}}),
            json!({"a": 1, "b": 2}),
        ),
    ] {
        let read = ServedSchema::of_arguments(&schema).expect("read");
        assert!(!read.validator.is_valid(&wrong), "{schema} takes {wrong}");
    }
}

#[test]
fn required_one_level_too_deep_is_understood() {
    let schema = json!({"type": "object", "properties": {"coin": {"type": "string"}, "required": ["coin", "gone"], "any": true}});
    let read = ServedSchema::of_arguments(&schema).expect("read");
    assert!(!read.validator.is_valid(&json!({})) && read.validator.is_valid(&json!({"coin": "x"})));
    let shown = json!({"type": "object", "properties": {"coin": {"type": "string"}, "any": {}}, "required": ["coin"]});
    assert_eq!(
        read.shown, shown,
        "every property is an object, as vendors want it"
    );
}

#[test]
fn a_deep_schema_ends() {
    let mut schema = json!({"type": "string"});
    for _ in 0..100 {
        schema = json!({"type": "array", "items": schema});
    }
    let read = ServedSchema::of_arguments(&with(schema)).expect("read");
    assert!(
        read.notes.iter().any(|note| note.contains("too deep")),
        "{:?}",
        read.notes
    );
}
