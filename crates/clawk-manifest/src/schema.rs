//! The JSON Schema for editors, generated from the table that the checker uses (`shape`).

use clawk_proto::uri::{Kind, MAX_NAME};
use serde_json::{Map, Value, json};

use crate::model::BUILTIN_TOOL_NAMES;
use crate::shape::{CLAW_SPEC, FieldType, HINTS, METADATA, MapShape, spec_of};

/// The kinds that [`schema_for_kind`] accepts: the root and every primitive.
pub const SCHEMA_KINDS: [&str; 12] = [
    "Claw",
    "Identity",
    "Provider",
    "Channel",
    "Tool",
    "Skill",
    "Memory",
    "Sandbox",
    "Policy",
    "Swarm",
    "Telemetry",
    "WorldModel",
];

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The JSON Schema of a kind of document (in any case), or `None` for an unknown kind.
///
/// ```
/// let policy = clawk_manifest::schema_for_kind("policy").ok_or("unknown kind")?;
/// assert_eq!(policy["properties"]["kind"]["const"], "Policy");
/// assert!(clawk_manifest::schema_for_kind("Unknown").is_none());
/// # Ok::<(), &str>(())
/// ```
#[must_use]
pub fn schema_for_kind(kind: &str) -> Option<Value> {
    if kind.eq_ignore_ascii_case("Claw") {
        return Some(claw_schema());
    }
    let same =
        |known: &Kind| known.title().eq_ignore_ascii_case(kind) || known.segment().eq_ignore_ascii_case(kind);
    Kind::ALL.into_iter().find(same).map(primitive_schema)
}

/// The name of the committed file, under `schema/`, with the schema of a kind.
#[must_use]
pub fn schema_file(kind: &str) -> String {
    let segment = Kind::from_title(kind).map_or("claw", Kind::segment);
    format!("{segment}.schema.json")
}

/// One schema for all files of an agent: `kind` decides the content of `spec`.
fn claw_schema() -> Value {
    let mut definitions = Map::new();
    let mut cases = vec![kind_case("Claw", "ClawSpec")];
    definitions.insert("ClawSpec".to_owned(), map_schema(&CLAW_SPEC, &Map::new()));
    for kind in Kind::ALL {
        definitions.insert(format!("{kind}Spec"), map_schema(spec_of(kind), &Map::new()));
        definitions.insert(format!("{kind}Item"), item_schema(kind));
        cases.push(kind_case(kind.title(), &format!("{kind}Spec")));
    }
    let mut schema = document_schema(
        "Claw",
        "A file of an agent: the root `claw.yaml` (CKP 6), or one primitive.",
        json!({"type": "object"}),
    );
    if let Value::Object(schema) = &mut schema {
        schema.insert("$defs".to_owned(), Value::Object(definitions));
        schema.insert("allOf".to_owned(), Value::Array(cases));
        let kinds =
            json!({"enum": SCHEMA_KINDS, "description": "What this document is; `Claw` is the root."});
        schema
            .get_mut("properties")
            .and_then(|p| p.as_object_mut())
            .map(|p| p.insert("kind".to_owned(), kinds));
    }
    schema
}

fn kind_case(kind: &str, definition: &str) -> Value {
    json!({
        "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
        "then": {"properties": {"spec": {"$ref": format!("#/$defs/{definition}")}}},
    })
}

fn primitive_schema(kind: Kind) -> Value {
    let shape = spec_of(kind);
    document_schema(kind.title(), shape.doc, map_schema(shape, &Map::new()))
}

fn document_schema(kind: &str, doc: &str, spec: Value) -> Value {
    json!({
        "$schema": DIALECT,
        "title": kind,
        "description": doc,
        "type": "object",
        "properties": {
            "claw": {"type": "string", "pattern": "^0\\.[23]\\.[0-9]+", "description": "Protocol version.", "examples": ["0.3.0"]},
            "kind": {"const": kind, "description": "What this document is."},
            "metadata": map_schema(&METADATA, &Map::new()),
            "spec": spec,
        },
        "required": ["claw", "kind", "metadata", "spec"],
        "additionalProperties": false,
    })
}

/// A primitive in the root: a path, a glob, a URI, or `inline`.
fn item_schema(kind: Kind) -> Value {
    let mut extra = Map::new();
    extra.insert(
        "name".to_owned(),
        with_description(name(), "Its name; made up when absent."),
    );
    extra.insert(
        "version".to_owned(),
        with_description(semver_schema(), "Its version; the Claw's own when absent."),
    );
    extra.insert(
        "labels".to_owned(),
        json!({"type": "object", "additionalProperties": {"type": "string"}, "description": "Text labels."}),
    );
    let inline = map_schema(spec_of(kind), &extra);
    let mut items = vec![
        json!({"type": "string", "minLength": 1, "description": "A file path, a glob, or a `claw://` URI."}),
        json!({"type": "object", "properties": {"inline": inline}, "required": ["inline"], "additionalProperties": false}),
    ];
    if kind == Kind::Tool {
        // For completion in editors: a file's path is a string, too.
        items.insert(
            0,
            json!({"enum": BUILTIN_TOOL_NAMES, "description": "A built-in tool, by its name."}),
        );
    }
    json!({ "anyOf": items })
}

fn map_schema(shape: &MapShape, extra: &Map<String, Value>) -> Value {
    let mut properties = extra.clone();
    for field in shape.fields {
        properties.insert(
            field.name.to_owned(),
            with_description(value_schema(&field.ty), field.doc),
        );
    }
    let required: Vec<&str> = shape
        .fields
        .iter()
        .filter(|field| field.required)
        .map(|field| field.name)
        .collect();
    let mut schema = json!({
        "type": "object", "description": shape.doc, "properties": properties, "additionalProperties": false,
    });
    if let (Value::Object(schema), false) = (&mut schema, required.is_empty()) {
        schema.insert("required".to_owned(), json!(required));
    }
    schema
}

fn with_description(mut schema: Value, doc: &str) -> Value {
    if let Value::Object(schema) = &mut schema {
        schema.insert("description".to_owned(), json!(doc));
    }
    schema
}

fn name() -> Value {
    json!({"type": "string", "pattern": format!("^[A-Za-z0-9-]{{1,{MAX_NAME}}}$")})
}

fn semver_schema() -> Value {
    json!({"type": "string", "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+(-[A-Za-z0-9.-]+)?$"})
}

fn value_schema(ty: &FieldType) -> Value {
    match ty {
        FieldType::Text => json!({"type": "string"}),
        FieldType::FullText | FieldType::Glob | FieldType::Host => json!({"type": "string", "minLength": 1}),
        FieldType::Bool => json!({"type": "boolean"}),
        FieldType::Count { min, .. } => json!({"type": "integer", "minimum": min}),
        FieldType::Real { min, max: None } => json!({"type": "number", "minimum": min}),
        FieldType::Real { min, max: Some(max) } => json!({"type": "number", "minimum": min, "maximum": max}),
        FieldType::Word(words) => json!({"enum": words}),
        FieldType::Name => name(),
        FieldType::Ref(kind) => {
            let uri = format!(
                "claw://(local/)?{}/[A-Za-z0-9-]{{1,{MAX_NAME}}}(@[0-9A-Za-z.-]+)?",
                kind.segment()
            );
            json!({"type": "string", "pattern": format!("^([A-Za-z0-9-]{{1,{MAX_NAME}}}|{uri})$")})
        }
        FieldType::Semver => semver_schema(),
        FieldType::Duration => json!({"type": "string", "pattern": "^[0-9]+[smhd]$", "examples": ["30d"]}),
        FieldType::SecretRef => json!({"type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$"}),
        FieldType::Regex => json!({"type": "string", "format": "regex"}),
        FieldType::Cron => json!({"type": "string", "examples": ["0 */6 * * *"]}),
        FieldType::Url => json!({"type": "string", "format": "uri", "pattern": "^https?://"}),
        FieldType::McpUri => json!({"type": "string", "pattern": "^(stdio:///|stdio://\\./|https?://)"}),
        FieldType::ObjectSchema => json!({
            "type": "object", "properties": {"type": {"const": "object"}},
        }),
        FieldType::Schema => json!({"type": ["object", "boolean"]}),
        FieldType::List { of, min: 0 } => json!({"type": "array", "items": value_schema(of)}),
        FieldType::List { of, min } => json!({"type": "array", "items": value_schema(of), "minItems": min}),
        FieldType::Map(shape) => map_schema(shape, &Map::new()),
        FieldType::TextMap => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        FieldType::AnyMap => json!({"type": "object"}),
        FieldType::Hints => {
            let hints = HINTS.map(|hint| (hint.to_owned(), json!({"type": "boolean"})));
            json!({"type": "object", "properties": Map::from_iter(hints)})
        }
        FieldType::Item(kind) => json!({"$ref": format!("#/$defs/{kind}Item")}),
        FieldType::Items(kind) => {
            let item = value_schema(&FieldType::Item(*kind));
            json!({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]})
        }
    }
}
