//! A tool's schema without alternatives at its top, as several vendors demand it (ADR 0331). The flat schema is what a model reads: each
//! property has the types that any branch gives it. Arguments are judged by the tool's own schema.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// How deep alternatives inside of alternatives are read.
const MAX_DEPTH: u8 = 6;
/// Parts, properties and required names of one schema that are read, together: references multiply.
const MAX_STEPS: usize = 20_000;
/// Different schemas of one property that are shown. A property that has more takes any value.
const MAX_VARIANTS: usize = 16;
/// References to references that are followed.
const MAX_HOPS: usize = 8;
/// The most schemas that are moved to `$defs`. A reference to one more takes any value.
pub const MAX_MOVED: usize = 64;
/// The most bytes of the schemas that are moved, together.
pub const MAX_MOVED_BYTES: usize = 128 * 1024;
/// References that are looked up. One more, if it may be gone, takes any value.
const MAX_REFERENCES: usize = 2_000;
/// Where schemas stand that references lead to.
const DEFINITIONS: &str = "$defs";
/// Members that annotate a schema and restrict nothing.
const ANNOTATIONS: [&str; 7] = [
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "deprecated",
    "readOnly",
];
/// Members whose values are data, not schemas.
const DATA_MEMBERS: [&str; 5] = ["const", "enum", "default", "examples", "example"];
/// Members whose values are schemas by names.
const NAMED_SCHEMAS: [&str; 5] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    DEFINITIONS,
    "definitions",
];

/// A schema whose top is one object.
#[derive(Debug, Clone, PartialEq)]
pub struct FlatSchema {
    /// The schema.
    pub schema: Map<String, Value>,
    /// The members of the top that were taken out, as they were.
    pub left_out: Map<String, Value>,
}

/// Takes these members out of a schema's top (`oneOf`, `anyOf`, `allOf`, `$ref`, `not`, `enum`) and gives the top the properties of all
/// its parts. References into what was taken out lead to `$defs` instead. `None`: the schema is not an object.
#[must_use]
pub fn flatten_top(whole: &Value, refused: &[&str]) -> Option<FlatSchema> {
    let own = whole.as_object()?;
    let targets = SchemaTargets::read(whole);
    let mut reader = PartReader {
        targets: &targets,
        refused,
        steps_left: MAX_STEPS,
    };
    let shape = reader.read_members(own, MAX_DEPTH, &|name| refused.contains(&name));
    let mut schema = own.clone();
    let mut left_out = Map::new();
    for name in refused {
        if let Some(value) = schema.remove(*name) {
            left_out.insert((*name).to_owned(), value);
        }
    }
    schema.insert("type".to_owned(), "object".into());
    let properties = shape.properties.into_iter();
    let properties = properties.map(|(name, variants)| (name.to_owned(), joined(variants)));
    schema.insert("properties".to_owned(), properties.collect::<Map<_, _>>().into());
    schema.remove("required");
    if !shape.required.is_empty() {
        schema.insert("required".to_owned(), shape.required.into_iter().collect());
    }
    if shape.is_open {
        for closing in ["additionalProperties", "unevaluatedProperties"] {
            if schema.get(closing) == Some(&Value::Bool(false)) {
                schema.remove(closing);
            }
        }
    }
    if !left_out.is_empty() {
        ReferenceMover::new(&targets, refused).repair(&mut schema);
    }
    Some(FlatSchema { schema, left_out })
}

/// What an object of a schema may have and must have.
#[derive(Debug, Default)]
struct ObjectShape<'a> {
    /// Each property by the schemas of which its value fits one.
    properties: BTreeMap<&'a str, Vec<&'a Value>>,
    required: BTreeSet<&'a str>,
    /// Something of it could not be read: it may have other members, too.
    is_open: bool,
}

impl<'a> ObjectShape<'a> {
    fn open() -> Self {
        Self {
            is_open: true,
            ..Self::default()
        }
    }

    /// Both hold. Of two schemas of a property the first that restricts anything stands for both.
    fn add_condition(&mut self, other: Self) {
        for (name, variants) in other.properties {
            let known = self.properties.entry(name).or_default();
            if known.is_empty() || known.iter().any(|schema| !is_restricting(schema)) {
                *known = variants;
            }
        }
        self.required.extend(other.required);
        self.is_open |= other.is_open;
    }

    /// One of them holds: a property takes what any of them takes, and required is what all of them ask for.
    fn add_alternatives(&mut self, alternatives: Vec<Self>) {
        let mut alternatives = alternatives.into_iter();
        let Some(mut all) = alternatives.next() else {
            return;
        };
        for one in alternatives {
            for (name, variants) in one.properties {
                let known = all.properties.entry(name).or_default();
                for schema in variants {
                    let is_known = |one: &&Value| std::ptr::eq(*one, schema) || *one == schema;
                    if known.len() <= MAX_VARIANTS && !known.iter().any(is_known) {
                        known.push(schema);
                    }
                }
            }
            all.required.retain(|name| one.required.contains(name));
            all.is_open |= one.is_open;
        }
        self.add_condition(all);
    }
}

/// Whether a schema restricts its value.
fn is_restricting(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.keys().any(|name| !ANNOTATIONS.contains(&name.as_str())),
        Value::Bool(takes) => !takes,
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => false,
    }
}

/// Whether no object fits this schema, by its type alone.
fn takes_no_object(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name != "object",
        Some(Value::Array(names)) => !names.iter().any(|name| name == "object"),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => {
            schema == &Value::Bool(false)
        }
    }
}

/// One schema that takes what any of these takes.
fn joined(variants: Vec<&Value>) -> Value {
    match variants.as_slice() {
        [one] => (*one).clone(),
        [] => json!({}),
        many if many.len() > MAX_VARIANTS => json!({}),
        many => json!({ "anyOf": many }),
    }
}

/// Reads what the parts of a schema say of an object.
struct PartReader<'a, 'r> {
    targets: &'r SchemaTargets<'a>,
    refused: &'r [&'r str],
    steps_left: usize,
}

impl<'a> PartReader<'a, '_> {
    fn read(&mut self, part: &'a Value, depth: u8) -> ObjectShape<'a> {
        match (part, depth.checked_sub(1)) {
            (Value::Object(members), Some(depth)) => self.read_members(members, depth, &|_| true),
            _ => ObjectShape::open(),
        }
    }

    /// `is_read`: whether this member of combining keywords is read.
    fn read_members(
        &mut self,
        members: &'a Map<String, Value>,
        depth: u8,
        is_read: &dyn Fn(&str) -> bool,
    ) -> ObjectShape<'a> {
        let properties = members.get("properties").and_then(Value::as_object);
        let required = list_of(members, "required");
        let steps = 1 + properties.map_or(0, Map::len) + required.len();
        let Some(left) = self.steps_left.checked_sub(steps) else {
            return ObjectShape::open();
        };
        self.steps_left = left;
        let mut shape = ObjectShape::default();
        for (name, schema) in properties.into_iter().flatten() {
            shape.properties.insert(name, vec![self.inlined(schema)]);
        }
        shape.required = required.iter().filter_map(Value::as_str).collect();
        if let Some(reference) = members.get("$ref").filter(|_| is_read("$ref")) {
            let target = reference.as_str().and_then(|text| self.targets.find(text));
            let read = target.map_or_else(ObjectShape::open, |target| self.read(target, depth));
            shape.add_condition(read);
        }
        if is_read("allOf") {
            for every in list_of(members, "allOf") {
                let read = self.read(every, depth);
                shape.add_condition(read);
            }
        }
        for name in ["oneOf", "anyOf"].into_iter().filter(|name| is_read(name)) {
            let alternatives = list_of(members, name).iter();
            let possible = alternatives.filter(|one| !takes_no_object(one));
            let read = possible.map(|one| self.read(one, depth)).collect();
            shape.add_alternatives(read);
        }
        shape
    }

    /// The schema itself, or the one that it stands for where that is taken out of the top.
    fn inlined(&self, schema: &'a Value) -> &'a Value {
        let mut found = schema;
        for _ in 0..MAX_HOPS {
            let only = found.as_object().filter(|members| members.len() == 1);
            let reference = only.and_then(|members| members.get("$ref")?.as_str());
            let inside = reference.filter(|reference| is_below(reference, self.refused));
            let Some(target) = inside.and_then(|reference| self.targets.find(reference)) else {
                break;
            };
            found = target;
        }
        found
    }
}

fn list_of<'a>(members: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    let list = members.get(name).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

/// The pointer of a reference into its own schema.
fn pointer_of(reference: &str) -> Option<String> {
    let pointer = reference.strip_prefix('#')?;
    (pointer.is_empty() || pointer.starts_with('/')).then(|| percent_decoded(pointer))
}

/// What references into a schema lead to.
struct SchemaTargets<'a> {
    whole: &'a Value,
    anchors: BTreeMap<&'a str, &'a Value>,
}

impl<'a> SchemaTargets<'a> {
    fn read(whole: &'a Value) -> Self {
        let mut targets = Self {
            whole,
            anchors: BTreeMap::new(),
        };
        targets.add_anchors(whole);
        targets
    }

    fn add_anchors(&mut self, value: &'a Value) {
        if let Some(anchor) = value.get("$anchor").and_then(Value::as_str) {
            self.anchors.entry(anchor).or_insert(value);
        }
        for inner in inner_schemas(value) {
            self.add_anchors(inner);
        }
    }

    fn find(&self, reference: &str) -> Option<&'a Value> {
        match pointer_of(reference) {
            Some(pointer) => self.whole.pointer(&pointer),
            None => self.anchors.get(reference.strip_prefix('#')?).copied(),
        }
    }
}

/// Whether a reference leads below one of these members of the top.
fn is_below(reference: &str, members: &[&str]) -> bool {
    let pointer = pointer_of(reference).unwrap_or_default();
    let first = pointer.split('/').nth(1).unwrap_or_default();
    members.contains(&first)
}

/// A pointer as it is written in an address, decoded.
pub fn percent_decoded(pointer: &str) -> String {
    pointer
        .replace("%24", "$")
        .replace("%20", " ")
        .replace("%25", "%")
}

/// Leads references into what was taken out of a schema's top to copies in `$defs`.
struct ReferenceMover<'a, 'r> {
    targets: &'r SchemaTargets<'a>,
    refused: &'r [&'r str],
    /// References that led into what is gone, by the name of the copy; `None`: there is no copy, and any value is taken.
    moved: BTreeMap<String, Option<String>>,
    copies: Vec<(String, &'a Value)>,
    bytes_left: usize,
}

impl<'a, 'r> ReferenceMover<'a, 'r> {
    fn new(targets: &'r SchemaTargets<'a>, refused: &'r [&'r str]) -> Self {
        Self {
            targets,
            refused,
            moved: BTreeMap::new(),
            copies: Vec::new(),
            bytes_left: MAX_MOVED_BYTES,
        }
    }

    fn repair(mut self, schema: &mut Map<String, Value>) {
        let flat = Value::Object(schema.clone());
        let flat_targets = SchemaTargets::read(&flat);
        let mut waiting = BTreeSet::new();
        collect_references(&flat, &mut waiting);
        let mut seen = BTreeSet::new();
        while let Some(reference) = waiting.pop_first() {
            if !seen.insert(reference.clone()) {
                continue;
            }
            if seen.len() > MAX_REFERENCES {
                let is_below = is_below(&reference, self.refused);
                if is_below || pointer_of(&reference).is_none() {
                    self.moved.insert(reference, None);
                }
            } else if (is_below(&reference, self.refused) || flat_targets.find(&reference).is_none())
                && let Some(target) = self.targets.find(&reference)
            {
                let name = self.copy(target, &flat);
                if name.is_some() {
                    collect_references(target, &mut waiting);
                }
                self.moved.insert(reference, name);
            }
        }
        if self.moved.is_empty() {
            return;
        }
        let mut repaired = flat;
        redirect(&mut repaired, &self.moved);
        let Value::Object(mut members) = repaired else {
            return;
        };
        let mut definitions = match members.remove(DEFINITIONS) {
            Some(Value::Object(definitions)) => definitions,
            _ => Map::new(),
        };
        for (name, target) in self.copies {
            let mut copy = target.clone();
            redirect(&mut copy, &self.moved);
            definitions.insert(name, copy);
        }
        if !definitions.is_empty() {
            members.insert(DEFINITIONS.to_owned(), definitions.into());
        }
        *schema = members;
    }

    /// Keeps a copy of a schema: by which name. `None`: there are too many.
    fn copy(&mut self, target: &'a Value, flat: &Value) -> Option<String> {
        let known = self.copies.iter().find(|(_, copy)| std::ptr::eq(*copy, target));
        if let Some((name, _)) = known {
            return Some(name.clone());
        }
        if self.copies.len() >= MAX_MOVED {
            return None;
        }
        let left = self.bytes_left.checked_sub(target.to_string().len())?;
        self.bytes_left = left;
        let taken = flat.get(DEFINITIONS);
        let is_free = |name: &String| {
            taken.is_none_or(|taken| taken.get(name).is_none())
                && self.copies.iter().all(|(known, _)| known != name)
        };
        let name = (1..).map(|n| format!("part_{n}")).find(is_free)?;
        self.copies.push((name.clone(), target));
        Some(name)
    }
}

/// Goes to each schema directly below this one; members that hold data are left out.
fn inner_schemas(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(members) => {
            let schemas = members
                .iter()
                .filter(|(name, _)| !DATA_MEMBERS.contains(&name.as_str()));
            schemas
                .flat_map(|(name, member)| match member {
                    Value::Object(named) if NAMED_SCHEMAS.contains(&name.as_str()) => {
                        named.values().collect()
                    }
                    _ => vec![member],
                })
                .collect()
        }
        Value::Array(all) => all.iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

fn collect_references(value: &Value, found: &mut BTreeSet<String>) {
    if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
        found.insert(reference.to_owned());
    }
    for inner in inner_schemas(value) {
        collect_references(inner, found);
    }
}

fn redirect(value: &mut Value, moved: &BTreeMap<String, Option<String>>) {
    match value {
        Value::Object(members) => {
            let reference = members.get("$ref").and_then(Value::as_str);
            match reference.and_then(|reference| moved.get(reference)) {
                Some(Some(name)) => {
                    members.insert("$ref".to_owned(), format!("#/{DEFINITIONS}/{name}").into());
                }
                Some(None) => {
                    members.remove("$ref");
                }
                None => {}
            }
            let schemas = members
                .iter_mut()
                .filter(|(name, _)| !DATA_MEMBERS.contains(&name.as_str()));
            for (name, member) in schemas {
                match member {
                    Value::Object(named) if NAMED_SCHEMAS.contains(&name.as_str()) => {
                        named.values_mut().for_each(|one| redirect(one, moved));
                    }
                    _ => redirect(member, moved),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| redirect(one, moved)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
