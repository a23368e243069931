//! Schemas as the generators of MCP servers write them: zod 3 and 4, pydantic, schemars, TypeBox, Go's reflection, OpenAPI converters.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use clawk_core::tool_schema::{MAX_MOVED, MAX_MOVED_BYTES, flatten_top};

use crate::catalog::compile_validator as schema_validator;

const ALL: [&str; 6] = ["oneOf", "anyOf", "allOf", "not", "enum", "$ref"];

/// One server's schema, arguments that it takes, and arguments that the flat one shows to be wrong.
struct ServerShape {
    name: &'static str,
    schema: Value,
    takes: Vec<Value>,
    refuses: Vec<Value>,
}

fn shape(name: &'static str, schema: Value, takes: Vec<Value>, refuses: Vec<Value>) -> ServerShape {
    ServerShape {
        name,
        schema,
        takes,
        refuses,
    }
}

fn shapes_of_zod() -> Vec<ServerShape> {
    let filter =
        json!({"type": "object", "properties": {"field": {"type": "string"}}, "required": ["field"]});
    vec![
        shape(
            "a discriminated union whose second branch refers into the first",
            json!({"anyOf": [
                {"type": "object", "properties": {"action": {"type": "string", "const": "list"}, "filter": filter}, "required": ["action"]},
                {"type": "object", "properties": {"action": {"type": "string", "const": "count"}, "filter": {"$ref": "#/anyOf/0/properties/filter"}}, "required": ["action"]}],
                "$schema": "http://json-schema.org/draft-07/schema#"}),
            vec![json!({"action": "count", "filter": {"field": "a"}})],
            vec![
                json!({"action": "count", "filter": {}}),
                json!({"filter": {"field": "a"}}),
            ],
        ),
        shape(
            "a reference deep into a branch, with words beside it",
            json!({"type": "object", "oneOf": [
                {"properties": {"start": {"type": "object", "properties": {"at": {"type": "string"}}}}, "required": ["start"]},
                {"required": ["end"], "properties": {"end": {"$ref": "#/oneOf/0/properties/start/properties/at", "description": "when it ends"}}}]}),
            vec![json!({"end": "noon"}), json!({"start": {"at": "x"}})],
            vec![json!({"end": 3})],
        ),
        shape(
            "an intersection that refers into its first half",
            json!({"allOf": [
                {"type": "object", "properties": {"id": {"type": "string", "minLength": 1}}, "required": ["id"], "additionalProperties": false},
                {"type": "object", "properties": {"parent": {"$ref": "#/allOf/0/properties/id"}, "tags": {"type": "array", "items": {"$ref": "#/allOf/0/properties/id"}}}, "required": ["tags"]}]}),
            // The closed half closes the whole for the server; the flat schema is wider.
            vec![],
            vec![
                json!({"id": "a", "tags": [""]}),
                json!({"tags": []}),
                json!({"id": "a", "tags": [], "parent": 1}),
            ],
        ),
        shape(
            "a lazy tree inside of a branch",
            json!({"anyOf": [
                {"type": "object", "properties": {"node": {"type": "object", "properties": {"name": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/anyOf/0/properties/node"}}}, "required": ["name"]}}, "required": ["node"]},
                {"type": "object", "properties": {"root": {"$ref": "#/anyOf/0/properties/node"}}, "required": ["root"]}]}),
            vec![
                json!({"root": {"name": "a", "children": [{"name": "b"}]}}),
                json!({"node": {"name": "a"}}),
            ],
            vec![json!({"root": {"name": "a", "children": [{}]}})],
        ),
        shape(
            "back-references between properties, and an alternative of what is required",
            json!({"type": "object", "properties": {"body": {"type": "object", "properties": {
                "start": {"type": "object", "properties": {"dateTime": {"type": "string"}}, "required": ["dateTime"]},
                "end": {"$ref": "#/properties/body/properties/start"}}}}, "anyOf": [{"required": ["body"]}, {"required": ["id"]}]}),
            vec![json!({"body": {"end": {"dateTime": "x"}}}), json!({"id": 1})],
            vec![json!({"body": {"end": {}}})],
        ),
    ]
}

fn shapes_of_pydantic() -> Vec<ServerShape> {
    let defs = json!({
        "Create": {"type": "object", "properties": {"kind": {"const": "create"}, "owner": {"$ref": "#/$defs/Owner"}}, "required": ["kind", "owner"]},
        "Drop": {"type": "object", "properties": {"kind": {"const": "drop"}, "id": {"type": "integer"}}, "required": ["kind", "id"]},
        "Owner": {"type": "object", "properties": {"login": {"type": "string"}}, "required": ["login"]}});
    vec![
        shape(
            "a root model of two models",
            json!({"$defs": defs, "discriminator": {"mapping": {"create": "#/$defs/Create", "drop": "#/$defs/Drop"}, "propertyName": "kind"},
                "oneOf": [{"$ref": "#/$defs/Create"}, {"$ref": "#/$defs/Drop"}]}),
            vec![
                json!({"kind": "create", "owner": {"login": "a"}}),
                json!({"kind": "drop", "id": 1}),
            ],
            vec![
                json!({"kind": "create", "owner": {}}),
                json!({"kind": "rename"}),
                json!({"id": 1}),
            ],
        ),
        shape(
            "an optional root",
            json!({"$defs": defs, "anyOf": [{"$ref": "#/$defs/Drop"}, {"type": "null"}]}),
            vec![json!({"kind": "drop", "id": 2})],
            vec![json!({"kind": "drop"}), json!({})],
        ),
        shape(
            "types that contradict one another, beside alternatives of their own",
            json!({"anyOf": [
                {"type": "object", "properties": {"id": {"type": "string", "anyOf": [{"format": "uuid"}, {"pattern": "^[a-z]+$"}]}}},
                {"type": "object", "properties": {"id": {"type": "integer"}}},
                {"type": "object", "properties": {"id": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}}]}),
            vec![
                json!({"id": "abc"}),
                json!({"id": 7}),
                json!({"id": true}),
                json!({"id": null}),
            ],
            vec![json!({"id": [1]})],
        ),
        shape(
            "a property that the top names and a branch types",
            json!({"type": "object", "properties": {"mode": {"description": "how"}, "n": {"type": "integer"}},
                "anyOf": [{"properties": {"mode": {"enum": ["fast"]}, "n": {"minimum": 5}}}, {"properties": {"mode": {"enum": ["slow"]}}}]}),
            vec![json!({"mode": "fast", "n": 5}), json!({"mode": "slow", "n": 1})],
            vec![json!({"mode": "none"}), json!({"n": "x"})],
        ),
    ]
}

fn shapes_of_others() -> Vec<ServerShape> {
    vec![
        shape(
            "schemars: an enum of structs, in definitions",
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "title": "Args", "oneOf": [
                {"type": "object", "required": ["Read"], "properties": {"Read": {"$ref": "#/definitions/Read"}}, "additionalProperties": false},
                {"type": "object", "required": ["Stat"], "properties": {"Stat": {"$ref": "#/oneOf/0/properties/Read"}}, "additionalProperties": false}],
                "definitions": {"Read": {"type": "object", "required": ["path"], "properties": {"path": {"type": "string"}}}}}),
            vec![json!({"Read": {"path": "a"}}), json!({"Stat": {"path": "a"}})],
            vec![json!({"Stat": {}}), json!({"Read": {"path": 1}})],
        ),
        shape(
            "Go: the whole is a reference",
            json!({"$ref": "#/$defs/Args", "$defs": {"Args": {"type": "object", "properties": {"to": {"$ref": "#/$defs/Place"}}, "required": ["to"]},
                "Place": {"type": "object", "properties": {"near": {"$ref": "#/$defs/Place"}, "name": {"type": "string"}}, "required": ["name"]}}}),
            vec![json!({"to": {"name": "a", "near": {"name": "b"}}})],
            vec![
                json!({}),
                json!({"to": {}}),
                json!({"to": {"name": "a", "near": {}}}),
            ],
        ),
        shape(
            "TypeBox: a composite that is closed as a whole",
            json!({"type": "object", "unevaluatedProperties": false, "allOf": [
                {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"$ref": "#/allOf/0/properties/a"}}}]}),
            vec![json!({"a": "x"}), json!({"a": "x", "b": "y"})],
            vec![
                json!({"a": "x", "b": 1}),
                json!({"b": "y"}),
                json!({"a": "x", "c": 1}),
            ],
        ),
        shape(
            "a branch by its anchor, kept below another branch",
            json!({"anyOf": [
                {"type": "object", "properties": {"size": {"$anchor": "size", "type": "integer"}}},
                {"type": "object", "properties": {"sizes": {"type": "array", "items": {"$ref": "#size"}}}}]}),
            vec![json!({"sizes": [1, 2]})],
            vec![json!({"sizes": ["x"]})],
        ),
        shape(
            "names with a slash and a blank",
            json!({"anyOf": [
                {"properties": {"a/b c": {"type": "object", "properties": {"n": {"type": "integer"}}}}},
                {"properties": {"d": {"type": "array", "items": {"$ref": "#/anyOf/0/properties/a~1b%20c/properties/n"}}}}]}),
            vec![json!({"d": [1]}), json!({"a/b c": {"n": 1}})],
            vec![json!({"d": ["x"]})],
        ),
        shape(
            "a reference into what is forbidden, a branch inside of a branch, and definitions with our names",
            json!({"type": "object", "not": {"properties": {"x": {"type": "string", "maxLength": 2}}, "required": ["x"]},
                "$defs": {"part_1": {"type": "boolean"}},
                "anyOf": [{"allOf": [{"properties": {"y": {"type": "array", "items": {"$ref": "#/not/properties/x"}}, "z": {"$ref": "#/$defs/part_1"}}}]},
                    {"oneOf": [{"properties": {"w": {"type": "array", "items": {"$ref": "#/anyOf/0/allOf/0/properties/y/items"}}}}]}]}),
            vec![json!({"y": ["ab"], "z": true}), json!({"w": ["ab"]})],
            vec![json!({"y": ["abc"]}), json!({"z": 1}), json!({"w": ["abc"]})],
        ),
        shape(
            "data that looks like a reference",
            json!({"anyOf": [{"properties": {"t": {"const": {"$ref": "#/anyOf/0"}}, "$ref": {"type": "string"}}}]}),
            vec![json!({"t": {"$ref": "#/anyOf/0"}, "$ref": "x"})],
            vec![json!({"t": {"$ref": "#/$defs/part_1"}}), json!({"$ref": 1})],
        ),
    ]
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref") {
                found.push(reference.clone());
            }
            let schemas = members.iter().filter(|(name, _)| *name != "const");
            schemas.for_each(|(_, one)| references(one, found));
        }
        Value::Array(all) => all.iter().for_each(|one| references(one, found)),
        _ => {}
    }
}

#[test]
fn schemas_of_real_servers_stay_whole_without_alternatives_at_the_top() {
    let shapes = [shapes_of_zod(), shapes_of_pydantic(), shapes_of_others()];
    for shape in shapes.into_iter().flatten() {
        let ServerShape { name, schema, .. } = &shape;
        let own = schema_validator(schema).expect(name);
        for refused in [&ALL[..], &ALL[..3]] {
            let flat = Value::from(flatten_top(schema, refused).expect(name).schema);
            assert_eq!(flat["type"], "object", "{name}");
            for member in refused {
                assert!(flat.get(member).is_none(), "{name}: {member} in {flat}");
            }
            let mut left = Vec::new();
            references(&flat, &mut left);
            for reference in left {
                let target = flat.pointer(&reference.trim_start_matches('#').replace("%20", " "));
                assert!(
                    target.is_some() || !reference.starts_with("#/"),
                    "{name}: {reference} leads nowhere in {flat}"
                );
            }
            let read = schema_validator(&flat).unwrap_or_else(|fault| panic!("{name}: {fault} in {flat}"));
            for arguments in &shape.takes {
                assert!(own.is_valid(arguments), "{name}: the server takes {arguments}");
                assert!(read.is_valid(arguments), "{name}: {arguments} in {flat}");
            }
            for arguments in &shape.refuses {
                assert!(!read.is_valid(arguments), "{name}: {arguments} in {flat}");
            }
        }
    }
}

#[test]
fn no_type_stands_beside_alternatives_that_contradict_it() {
    let schema = json!({"anyOf": [
        {"properties": {"a": {"type": "string", "anyOf": [{"minLength": 1}]}}},
        {"properties": {"a": {"type": "integer"}}}]});
    let flat = flatten_top(&schema, &ALL).unwrap().schema;
    let variants = json!({"anyOf": [{"type": "string", "anyOf": [{"minLength": 1}]}, {"type": "integer"}]});
    assert_eq!(flat["properties"]["a"], variants);
}

#[test]
fn a_shared_part_of_two_branches_is_shown_once() {
    let schema = shapes_of_zod().remove(0).schema;
    let flat = flatten_top(&schema, &ALL).unwrap().schema;
    assert_eq!(
        flat["properties"]["filter"],
        schema["anyOf"][0]["properties"]["filter"]
    );
    assert!(flat.get("$defs").is_none(), "{flat:?}");
}

/// Schemas whose references multiply; none may take long or become large.
#[test]
fn references_that_multiply_stay_bounded() {
    let many = |to: &str, count| vec![json!({ "$ref": to }); count];
    let wide: serde_json::Map<_, _> = (0..3_000)
        .map(|n| {
            (
                format!("p{n}"),
                json!({"type": "string", "description": "x".repeat(50)}),
            )
        })
        .collect();
    let nested = |depth: usize| {
        let inner = (0..depth).fold(
            json!({"type": "string", "description": "y".repeat(2_000)}),
            |inner, n| json!({"type": "object", "description": n, "properties": {"q": inner}}),
        );
        let refs: serde_json::Map<_, _> = (0..depth)
            .map(|n| {
                let to = format!("#/anyOf/0/properties/deep{}", "/properties/q".repeat(n));
                (format!("r{n}"), json!({"type": "array", "items": {"$ref": to}}))
            })
            .collect();
        json!({"anyOf": [{"properties": {"deep": inner}}, {"properties": refs}]})
    };
    let variants: Vec<Value> = (0..5_000)
        .map(|n| json!({"properties": {"a": {"const": n}}}))
        .collect();
    let anchors: Vec<Value> = (0..5_000)
        .map(|n| json!({"properties": {format!("x{n}"): {"items": {"$ref": format!("#gone{n}")}}}}))
        .collect();
    for (name, schema) in [
        (
            "branches of branches",
            json!({ "anyOf": many("#/b", 1_440), "b": { "anyOf": many("#/c", 1_440) }, "c": { "anyOf": vec![json!({}); 7_000] } }),
        ),
        (
            "one wide part, many times",
            json!({ "anyOf": many("#/$defs/w", 2_000), "$defs": { "w": { "properties": wide } } }),
        ),
        ("targets inside of targets", nested(60)),
        ("one property in many forms", json!({ "oneOf": variants })),
        ("many anchors that are nowhere", json!({ "oneOf": anchors })),
    ] {
        let (size, begun) = (schema.to_string().len(), Instant::now());
        let flat = Value::from(flatten_top(&schema, &ALL).unwrap().schema);
        assert!(begun.elapsed() < Duration::from_secs(20), "{name}");
        let grown = flat.to_string().len();
        assert!(
            grown <= 2 * size + MAX_MOVED_BYTES,
            "{name}: {size} became {grown}"
        );
        let copies = flat["$defs"].as_object().map_or(0, serde_json::Map::len);
        assert!(copies <= MAX_MOVED + 1, "{name}: {copies}");
    }
}
