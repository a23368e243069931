use serde_json::{Value, json};

use super::convert_arguments;
use crate::catalog::compile_validator;

fn schema() -> Value {
    json!({
        "type": "object",
        "$defs": {"size": {"type": "integer"}},
        "properties": {
            "text": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1},
            "ratio": {"type": "number"},
            "deep": {"type": "boolean"},
            "where": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "ids": {"type": "array", "items": {"type": "string"}},
            "numbers": {"type": "array", "items": {"type": "integer"}},
            "size": {"$ref": "#/$defs/size"},
            "level": {"type": "integer", "enum": [1, 2]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
            "both": {"type": ["integer", "boolean"]},
            "open": {"type": ["string", "null"]},
            "any": {},
        },
        "required": ["text"],
    })
}

fn check(given: Value, wanted: Option<(Value, &[&str])>) {
    let validator = compile_validator(&schema()).unwrap();
    let arguments = given.as_object().unwrap();
    let found = convert_arguments(&validator, arguments);
    match (found, wanted) {
        (None, None) => {}
        (Some(found), Some((value, pointers))) => {
            assert_eq!(Value::Object(found.arguments), value, "{given}");
            assert_eq!(found.pointers, pointers, "{given}");
        }
        (found, wanted) => panic!("{given}: {found:?}, wanted {wanted:?}"),
    }
}

#[test]
fn what_models_write_becomes_what_the_schema_wants() {
    let rows: &[(Value, Value, &[&str])] = &[
        (
            json!({"text": "x", "limit": null, "deep": null}),
            json!({"text": "x"}),
            &["/deep", "/limit"],
        ),
        (
            json!({"text": "x", "limit": "5"}),
            json!({"text": "x", "limit": 5}),
            &["/limit"],
        ),
        (
            json!({"text": "x", "ratio": "0.5"}),
            json!({"text": "x", "ratio": 0.5}),
            &["/ratio"],
        ),
        (
            json!({"text": "x", "ratio": "-2"}),
            json!({"text": "x", "ratio": -2}),
            &["/ratio"],
        ),
        (
            json!({"text": "x", "deep": "true"}),
            json!({"text": "x", "deep": true}),
            &["/deep"],
        ),
        (
            json!({"text": "x", "deep": "False"}),
            json!({"text": "x", "deep": false}),
            &["/deep"],
        ),
        (
            json!({"text": "x", "where": "{\"a\": 1}"}),
            json!({"text": "x", "where": {"a": 1}}),
            &["/where"],
        ),
        (
            json!({"text": "x", "where": "{\"n\": \"7\"}"}),
            json!({"text": "x", "where": {"n": 7}}),
            &["/where", "/where/n"],
        ),
        (
            json!({"text": "x", "where": {"n": "7"}}),
            json!({"text": "x", "where": {"n": 7}}),
            &["/where/n"],
        ),
        (
            json!({"text": "x", "ids": "[\"a\"]"}),
            json!({"text": "x", "ids": ["a"]}),
            &["/ids"],
        ),
        (
            json!({"text": "x", "ids": "a"}),
            json!({"text": "x", "ids": ["a"]}),
            &["/ids"],
        ),
        (
            json!({"text": "x", "numbers": ["1", 2]}),
            json!({"text": "x", "numbers": [1, 2]}),
            &["/numbers/0"],
        ),
        (
            json!({"text": "x", "size": "3"}),
            json!({"text": "x", "size": 3}),
            &["/size"],
        ),
        (
            json!({"text": "x", "either": null}),
            json!({"text": "x"}),
            &["/either"],
        ),
        (
            json!({"text": "x", "level": null}),
            json!({"text": "x"}),
            &["/level"],
        ),
    ];
    for (given, value, pointers) in rows {
        check(given.clone(), Some((value.clone(), pointers)));
    }
}

#[test]
fn where_the_schema_leaves_a_doubt_nothing_is_converted() {
    for given in [
        // It fits already: a text stays a text, and null stays where it is allowed.
        json!({"text": "5"}),
        json!({"text": "true", "any": "5", "open": null}),
        json!({"text": "x", "limit": 5.0}),
        // More than one type would do.
        json!({"text": "x", "either": "5"}),
        json!({"text": "x", "both": "5"}),
        json!({"text": "x", "level": "1"}),
        // What it would mean is not plain.
        json!({"text": "x", "limit": "5 items"}),
        json!({"text": "x", "limit": " 5"}),
        json!({"text": "x", "limit": "05"}),
        json!({"text": "x", "limit": "0x10"}),
        json!({"text": "x", "limit": "1e3"}),
        json!({"text": "x", "limit": "99999999999999999999"}),
        json!({"text": "x", "limit": true}),
        json!({"text": "x", "deep": "yes"}),
        json!({"text": "x", "deep": 1}),
        json!({"text": "x", "where": "[1]"}),
        json!({"text": "x", "where": "not json"}),
        json!({"text": 5}),
        // The result would not fit either.
        json!({"text": "x", "limit": "0"}),
        json!({"text": "x", "numbers": "a"}),
        json!({"text": null}),
        json!({"limit": "5"}),
        json!({"text": "x", "numbers": [null]}),
    ] {
        check(given, None);
    }
}
