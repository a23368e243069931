//! Reads JSON Schemas of MCP servers. A faulty part is corrected if its meaning is clear, and otherwise removed, so that one
//! unusual keyword loses only its own check and not the tool. Schemas of the manifest are not read here; they must be valid.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::entry::compile_validator;
use clawk_core::tool_schema::{flatten_top, percent_decoded};

/// Largest nesting depth of schemas. Deeper ones check nothing.
const MAX_DEPTH: usize = 48;
/// Largest number of notes about one schema.
const MAX_NOTES: usize = 16;
/// Members with alternatives, which no schema is shown with at its top.
const ALTERNATIVES: [&str; 3] = ["oneOf", "anyOf", "allOf"];
/// The names of types.
const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "null", "number", "object", "string",
];

/// A server's schema in its usable form.
#[derive(Debug)]
pub(super) struct ServedSchema {
    /// Validates a call's arguments or its result.
    pub(super) validator: jsonschema::Validator,
    /// The schema that models see.
    pub(super) shown: Value,
    /// Parts that are not checked, as text for people.
    pub(super) notes: Vec<String>,
}

impl ServedSchema {
    /// Reads the schema of a tool's arguments, which are always an object.
    ///
    /// # Errors
    /// Even a schema that checks nothing does not compile. This was never observed.
    pub(super) fn of_arguments(given: &Value) -> Result<Self, String> {
        let mut mend = SchemaRepair::new(given);
        let mut schema = mend.repair_root(given);
        if let Some(members) = schema.as_object_mut() {
            if !matches!(members.get("type"), None | Some(Value::Array(_)))
                && members.get("type") != Some(&json!("object"))
            {
                mend.add_note("", "arguments are always an object; its `type` is not checked");
            }
            members.insert("type".to_owned(), json!("object"));
            members.entry("properties").or_insert_with(|| json!({}));
        }
        let shown = without_alternatives(&schema);
        mend.compile_schema(&schema, shown)
    }

    /// Reads the schema of a tool's result.
    ///
    /// # Errors
    /// The errors of [`ServedSchema::of_arguments`].
    pub(super) fn of_result(given: &Value) -> Result<Self, String> {
        let mut mend = SchemaRepair::new(given);
        let schema = mend.repair_root(given);
        mend.compile_schema(&schema, schema.clone())
    }
}

/// Replaces alternatives at the top level by the members of all of them, because several vendors refuse alternatives there.
fn without_alternatives(schema: &Value) -> Value {
    let has_alternatives = ALTERNATIVES.iter().any(|name| schema.get(name).is_some());
    let flat = has_alternatives.then(|| flatten_top(schema, &ALTERNATIVES));
    match flat.flatten() {
        Some(flat) => Value::Object(flat.schema),
        None => schema.clone(),
    }
}

struct SchemaRepair<'a> {
    whole: &'a Value,
    /// The URI with which the schema names itself.
    own: Option<&'a str>,
    /// The schema uses an older draft, in which `items` may be a list.
    old: bool,
    notes: Vec<String>,
}

impl<'a> SchemaRepair<'a> {
    fn new(whole: &'a Value) -> Self {
        let word = |name: &str| whole.get(name).and_then(Value::as_str);
        let old =
            word("$schema").is_some_and(|draft| draft.contains("/draft-0") || draft.contains("/2019-09/"));
        Self {
            whole,
            own: word("$id").filter(|own| !own.is_empty()),
            old,
            notes: Vec::new(),
        }
    }

    fn add_note(&mut self, at: &str, why: &str) {
        if self.notes.len() < MAX_NOTES {
            let at = if at.is_empty() { "/" } else { at };
            self.notes
                .push(format!("at {}: {why}", super::fault::bound_fault(at)));
        }
    }

    fn compile_schema(mut self, schema: &Value, shown: Value) -> Result<ServedSchema, String> {
        let (validator, shown) = match compile_validator(schema) {
            Ok(validator) => (validator, shown),
            Err(fault) => {
                self.add_note(
                    "",
                    &format!("the schema does not compile, and nothing is checked by it: {fault}"),
                );
                (compile_validator(&json!({}))?, names_only(schema))
            }
        };
        Ok(ServedSchema {
            validator,
            shown,
            notes: self.notes,
        })
    }

    fn repair_root(&mut self, given: &Value) -> Value {
        match given {
            Value::Object(_) => self.repair_schema(given, "", 0),
            Value::Null => json!({}),
            Value::Array(all) if all.is_empty() => json!({}),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                self.add_note("", "it is not an object; nothing is checked by it");
                json!({})
            }
        }
    }

    fn repair_schema(&mut self, given: &Value, at: &str, depth: usize) -> Value {
        let members = match given {
            Value::Object(members) if depth < MAX_DEPTH => members,
            // Several vendors refuse a schema that is not an object.
            Value::Bool(false) => return json!({"not": {}}),
            Value::Bool(true) => return json!({}),
            Value::Object(_) => {
                self.add_note(at, "the schema is too deep; nothing is checked from here on");
                return json!({});
            }
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => return json!({}),
        };
        let mut out = Map::new();
        let mut lifted = Vec::new();
        for (name, value) in members {
            let here = format!("{at}/{name}");
            if let Some(kept) = self.repair_keyword((name, value), &here, depth, members, &mut lifted) {
                out.insert(kept.0, kept.1);
            }
        }
        if !lifted.is_empty() {
            let mut all: BTreeSet<String> = lifted.into_iter().collect();
            let given = out
                .get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            all.extend(given.filter_map(Value::as_str).map(str::to_owned));
            out.insert("required".to_owned(), json!(all));
        }
        Value::Object(out)
    }

    /// Returns one keyword in its usable form; `None`: it is removed.
    fn repair_keyword(
        &mut self,
        (name, value): (&str, &Value),
        at: &str,
        depth: usize,
        beside: &Map<String, Value>,
        lifted: &mut Vec<String>,
    ) -> Option<(String, Value)> {
        let kept = match name {
            "$id" | "id" if value.is_string() && (name == "$id" || depth == 0) => None,
            "$schema" => value
                .as_str()
                .filter(|draft| is_known_draft(draft))
                .map(|_| value.clone()),
            "$ref" | "$dynamicRef" | "$recursiveRef" => return self.repair_reference(name, value, at),
            "properties" | "$defs" | "definitions" | "dependentSchemas" | "patternProperties" => {
                self.repair_named_schemas(name, value, at, depth, lifted)
            }
            "items" => return self.repair_items(value, at, depth),
            "additionalProperties"
            | "additionalItems"
            | "unevaluatedProperties"
            | "unevaluatedItems"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contains"
            | "propertyNames"
            | "contentSchema" => match value {
                Value::Bool(_) => Some(value.clone()),
                Value::Object(_) => Some(self.repair_schema(value, at, depth + 1)),
                Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
            },
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => self.repair_list(value, at, depth),
            "type" => self.repair_types(value, at),
            "required" => self.repair_required(value, at, depth),
            "pattern" => self.repair_pattern(value, at),
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => {
                let bound = if name == "exclusiveMinimum" {
                    "minimum"
                } else {
                    "maximum"
                };
                (value == &json!(true))
                    .then(|| beside.get(bound).filter(|bound| bound.is_number()).cloned())?
            }
            "minimum" if beside.get("exclusiveMinimum") == Some(&json!(true)) => None,
            "maximum" if beside.get("exclusiveMaximum") == Some(&json!(true)) => None,
            _ => self.repair_simple(name, value, at),
        };
        kept.map(|kept| (name.to_owned(), kept))
    }

    /// Handles keywords whose value is not a schema.
    fn repair_simple(&mut self, name: &str, value: &Value, at: &str) -> Option<Value> {
        let fits = match name {
            "enum" => value.as_array().is_some_and(|all| !all.is_empty()),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
            | "minContains" | "maxContains" => is_count(value),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
            "multipleOf" | "divisibleBy" => value.as_f64().is_some_and(|step| step > 0.0),
            "uniqueItems" => value.is_boolean(),
            "format" | "$anchor" | "$dynamicAnchor" | "title" | "description" | "$comment"
            | "contentEncoding" | "contentMediaType" => value.is_string(),
            "dependentRequired" | "dependencies" | "$vocabulary" | "$recursiveAnchor" => {
                compile_validator(&json!({ name: value })).is_ok()
            }
            _ => true,
        };
        if !fits && !value.is_null() {
            self.add_note(at, "this is not valid, and is not checked");
        }
        fits.then(|| value.clone())
    }

    fn repair_named_schemas(
        &mut self,
        name: &str,
        value: &Value,
        at: &str,
        depth: usize,
        lifted: &mut Vec<String>,
    ) -> Option<Value> {
        let all = value.as_object()?;
        let mut out = Map::new();
        for (key, schema) in all {
            if name == "patternProperties" && compile_validator(&json!({"pattern": key})).is_err() {
                self.add_note(at, "a pattern that can't be used is not checked");
                continue;
            }
            // `required` one level too deep: it lists members and is not a property itself.
            if let ("properties", "required", Value::Array(names)) = (name, key.as_str(), schema) {
                let names = names
                    .iter()
                    .filter_map(Value::as_str)
                    .filter(|name| all.contains_key(*name));
                lifted.extend(names.map(str::to_owned));
                continue;
            }
            if name == "properties" && schema.get("required") == Some(&json!(true)) {
                lifted.push(key.clone());
            }
            out.insert(
                key.clone(),
                self.repair_schema(schema, &format!("{at}/{key}"), depth + 1),
            );
        }
        Some(Value::Object(out))
    }

    fn repair_items(&mut self, value: &Value, at: &str, depth: usize) -> Option<(String, Value)> {
        match value {
            Value::Array(all) if all.is_empty() => None,
            Value::Array(_) => {
                let name = if self.old { "items" } else { "prefixItems" };
                self.repair_list(value, at, depth)
                    .map(|list| (name.to_owned(), list))
            }
            Value::Object(_) | Value::Bool(_) => {
                Some(("items".to_owned(), self.repair_schema(value, at, depth + 1)))
            }
            Value::Null | Value::Number(_) | Value::String(_) => None,
        }
    }

    fn repair_list(&mut self, value: &Value, at: &str, depth: usize) -> Option<Value> {
        let all = value.as_array().filter(|all| !all.is_empty())?;
        let all = all.iter().enumerate();
        let kept: Vec<Value> = all
            .map(|(n, one)| self.repair_schema(one, &format!("{at}/{n}"), depth + 1))
            .collect();
        Some(Value::Array(kept))
    }

    fn repair_types(&mut self, value: &Value, at: &str) -> Option<Value> {
        let known = |word: &Value| {
            let word = word.as_str()?.to_ascii_lowercase();
            TYPES.contains(&word.as_str()).then_some(word)
        };
        let kept = match value {
            Value::String(_) => known(value).map(Value::String),
            Value::Array(all) => {
                let kept: BTreeSet<String> = all.iter().filter_map(known).collect();
                // One unknown alternative accepts every value.
                (kept.len() == all.len() && !kept.is_empty()).then(|| json!(kept))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
        };
        if kept.is_none() {
            self.add_note(at, "an unknown type is not checked");
        }
        kept
    }

    fn repair_required(&mut self, value: &Value, at: &str, depth: usize) -> Option<Value> {
        match value {
            Value::Array(all) => {
                let names: BTreeSet<&str> = all.iter().filter_map(Value::as_str).collect();
                Some(json!(names))
            }
            // Draft 3: `required` was in the member itself, and has been moved to the object around it.
            Value::Bool(_) | Value::Null => None,
            Value::Number(_) | Value::String(_) | Value::Object(_) => {
                self.add_note(
                    at,
                    if depth == 0 {
                        "it names no members"
                    } else {
                        "this is not valid, and is not checked"
                    },
                );
                None
            }
        }
    }

    fn repair_pattern(&mut self, value: &Value, at: &str) -> Option<Value> {
        if compile_validator(&json!({"pattern": value})).is_ok() {
            return Some(value.clone());
        }
        self.add_note(at, "the pattern can't be used, and is not checked");
        None
    }

    /// Handles a reference within the schema. Any other reference is never followed.
    fn repair_reference(&mut self, name: &str, value: &Value, at: &str) -> Option<(String, Value)> {
        let given = value.as_str().unwrap_or_default();
        let inside = match self.own {
            Some(own) => given.strip_prefix(own).unwrap_or(given),
            None => given,
        };
        // Anchors and dynamic references are rare, and a cycle through them would not be detected.
        let leads = match inside.strip_prefix('#') {
            Some(pointer) if name == "$ref" && (pointer.is_empty() || pointer.starts_with('/')) => {
                let plain = percent_decoded(pointer);
                let found = self.whole.pointer(&plain);
                found.is_some_and(|found| found.is_object() || found.is_boolean())
                    && !self.runs_in_circles(&plain)
            }
            Some(_) | None => false,
        };
        if leads {
            return Some((name.to_owned(), Value::String(inside.to_owned())));
        }
        let why = if inside.starts_with('#') {
            "it leads nowhere, and is not checked"
        } else {
            "it leads to another document, which is never fetched; nothing is checked by it"
        };
        self.add_note(at, why);
        None
    }

    /// Returns whether references lead back to themselves without descending into the value. They would be followed forever.
    fn runs_in_circles(&self, pointer: &str) -> bool {
        self.has_circle(pointer, &mut Vec::new(), &mut BTreeSet::new())
    }

    fn has_circle(&self, pointer: &str, path: &mut Vec<String>, done: &mut BTreeSet<String>) -> bool {
        if path.iter().any(|known| known == pointer) || path.len() >= MAX_DEPTH {
            return true;
        }
        if !done.insert(pointer.to_owned()) {
            return false;
        }
        let mut next = Vec::new();
        if let Some(schema) = self.whole.pointer(pointer) {
            references_in_place(schema, &mut next, 0);
        }
        path.push(pointer.to_owned());
        let found = next.iter().any(|pointer| self.has_circle(pointer, path, done));
        path.pop();
        found
    }
}

/// Collects a schema's references that check the same value as the schema itself.
fn references_in_place(schema: &Value, found: &mut Vec<String>, depth: usize) {
    let Some(members) = schema.as_object().filter(|_| depth < MAX_DEPTH) else {
        return;
    };
    for (name, value) in members {
        match name.as_str() {
            "$ref" => {
                // A relative URI of the schema itself may precede the `#`.
                let pointer = value.as_str().and_then(|given| given.split_once('#'));
                found.extend(pointer.map(|(_, pointer)| percent_decoded(pointer)));
            }
            "allOf" | "anyOf" | "oneOf" => {
                let all = value.as_array().into_iter().flatten();
                all.for_each(|one| references_in_place(one, found, depth + 1));
            }
            "not" | "if" | "then" | "else" => references_in_place(value, found, depth + 1),
            "dependentSchemas" | "dependencies" => {
                let all = value.as_object().into_iter().flat_map(Map::values);
                all.for_each(|one| references_in_place(one, found, depth + 1));
            }
            _ => {}
        }
    }
}

fn is_count(value: &Value) -> bool {
    value.as_u64().is_some()
        || value
            .as_f64()
            .is_some_and(|count| count >= 0.0 && count.fract() == 0.0)
}

fn is_known_draft(draft: &str) -> bool {
    let draft = draft.trim_end_matches('#');
    let bare = draft
        .strip_prefix("https://")
        .or_else(|| draft.strip_prefix("http://"));
    matches!(
        bare,
        Some(
            "json-schema.org/draft-04/schema"
                | "json-schema.org/draft-06/schema"
                | "json-schema.org/draft-07/schema"
                | "json-schema.org/draft/2019-09/schema"
                | "json-schema.org/draft/2020-12/schema"
        )
    )
}

/// The members by name and description, where nothing else can be used.
fn names_only(schema: &Value) -> Value {
    let properties = schema.get("properties").and_then(Value::as_object);
    let named = properties.into_iter().flatten().map(|(name, property)| {
        let about = property.get("description").filter(|about| about.is_string());
        let about = about.map(|about| json!({"description": about}));
        (name.clone(), about.unwrap_or_else(|| json!({})))
    });
    json!({"type": "object", "properties": named.collect::<Map<_, _>>()})
}

#[cfg(test)]
mod tests;
