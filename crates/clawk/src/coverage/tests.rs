//! The table of leaves against the schema, the tree and the validator.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clawk_manifest::{LoadOptions, SCHEMA_KINDS, Severity, schema_for_kind, validate_file};
use serde_json::{Map, Value, json};

use super::{COVERAGE, CoverageEntry, JUDGE};

/// Every leaf and word of a schema, as the table calls them.
fn leaves(schema: &Value, path: &str, out: &mut BTreeSet<String>) {
    if let Some(words) = schema["enum"].as_array() {
        out.extend(
            words
                .iter()
                .map(|word| format!("{path}={}", word.as_str().unwrap())),
        );
    } else if schema["type"] == "array" {
        leaves(&schema["items"], &format!("{path}[]"), out);
    } else if schema["additionalProperties"] == json!(false) {
        for (name, member) in schema["properties"].as_object().unwrap() {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            leaves(member, &path, out);
        }
    } else {
        out.insert(path.to_owned());
    }
}

fn kinds() -> impl Iterator<Item = &'static str> {
    SCHEMA_KINDS.into_iter().filter(|kind| *kind != "Claw")
}

fn part(kind: &str, part: &str) -> Value {
    schema_for_kind(kind).unwrap()["properties"][part].clone()
}

#[test]
fn every_leaf_of_the_schema_has_a_line_and_every_line_a_leaf() {
    let mut schemas: Vec<(&str, Value)> = kinds().map(|kind| (kind, part(kind, "spec"))).collect();
    schemas.push(("Metadata", part("Tool", "metadata")));
    let mut count = 0;
    for (kind, schema) in &schemas {
        let mut wanted = BTreeSet::new();
        leaves(schema, "", &mut wanted);
        count += wanted.len();
        let none = Default::default();
        let have: BTreeSet<String> = COVERAGE.get(*kind).unwrap_or(&none).keys().cloned().collect();
        let (missing, strange): (Vec<_>, Vec<_>) = (
            wanted.difference(&have).collect(),
            have.difference(&wanted).collect(),
        );
        assert!(
            missing.is_empty() && strange.is_empty(),
            "vectors/coverage.toml, [{kind}]: leaves without a line: {missing:?}; lines without a leaf: {strange:?}"
        );
    }
    assert_eq!(COVERAGE.len(), schemas.len(), "a table for a kind that is none");
    assert!(count > 350, "{count}");
}

#[test]
fn every_line_says_one_thing() {
    for (kind, lines) in COVERAGE.iter() {
        for (leaf, line) in lines {
            let said = [&line.works, &line.warned, &line.refused];
            let one = said.iter().filter(|said| said.is_some()).count() == 1;
            assert!(
                one,
                "[{kind}] {leaf}: exactly one of `works`, `warned`, `refused`"
            );
            assert_eq!(
                line.works.is_none(),
                !line.why.is_empty(),
                "[{kind}] {leaf}: `why`"
            );
        }
    }
}

/// The tree's sources, those of other languages and generated ones apart.
fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|end| end == "rs") {
            out.push(path);
        }
    }
}

/// The functions that stand under a `#[test]` of some kind.
fn tests_of(text: &str, out: &mut BTreeSet<String>) {
    let mut marked = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some(rest) = line.split("fn ").nth(1).filter(|_| marked) {
            out.extend(rest.split('(').next().map(str::to_owned));
            marked = false;
        }
    }
}

#[test]
fn every_named_test_is_in_the_tree() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut files, mut tests) = (Vec::new(), BTreeSet::new());
    sources(crates, &mut files);
    for file in files {
        tests_of(&std::fs::read_to_string(file).unwrap(), &mut tests);
    }
    assert!(tests.len() > 900, "{}", tests.len());
    let named = COVERAGE
        .values()
        .flatten()
        .filter_map(|(_, line)| line.works.as_ref());
    let gone: BTreeSet<&String> = named.filter(|name| !tests.contains(*name)).collect();
    assert!(
        gone.is_empty(),
        "vectors/coverage.toml names tests that do not exist: {gone:?}"
    );
}

/// The test that runs a leaf's scenario with the leaf and without it, and the file with its table.
const SCENARIOS: (&str, &str) = ("each_leaf_changes_what_its_scenario_gives", "tests/it/leaves.rs");

#[test]
fn each_leaf_with_a_scenario_stands_in_both_tables() {
    let (test, file) = SCENARIOS;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(file).unwrap();
    let kinds: BTreeSet<&str> = COVERAGE.keys().map(String::as_str).collect();
    let rows: BTreeSet<String> = text
        .split('"')
        .filter(|part| {
            part.split_once(' ')
                .is_some_and(|(kind, leaf)| kinds.contains(kind) && !leaf.contains(' '))
        })
        .map(str::to_owned)
        .collect();
    let named = COVERAGE.iter().flat_map(|(kind, lines)| {
        let own = lines
            .iter()
            .filter(|(_, line)| line.works.as_deref() == Some(test));
        own.map(move |(leaf, _)| format!("{kind} {leaf}"))
    });
    assert_eq!(rows, named.collect::<BTreeSet<_>>());
    assert!(rows.len() >= 8, "{rows:?}");
}

/// The least that a schema accepts, more or less: what else is wrong with it is another finding.
fn least(schema: &Value) -> Value {
    if let Some(words) = schema["enum"].as_array() {
        return words[0].clone();
    }
    match schema["type"].as_str() {
        Some("array") => json!([least(&schema["items"])]),
        Some("object") => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let members = required.iter().map(|name| {
                let name = name.as_str().unwrap();
                (name.to_owned(), least(&schema["properties"][name]))
            });
            Value::Object(members.collect())
        }
        Some("integer" | "number") => schema["minimum"]
            .as_u64()
            .map_or(json!(1), |least| json!(least.max(1))),
        Some("boolean") => json!(true),
        _ => json!("x1"),
    }
}

/// A value of the schema that uses this leaf, and the leaf's pointer in it.
fn using(schema: &Value, leaf: &str, idle: Option<bool>) -> (Value, String) {
    let mut value = least(schema);
    if let Some(word) = leaf.strip_prefix('=') {
        return (json!(word), String::new());
    }
    if let Some(rest) = leaf.strip_prefix("[]") {
        let (item, pointer) = using(&schema["items"], rest.strip_prefix('.').unwrap_or(rest), idle);
        return (json!([item]), format!("/0{pointer}"));
    }
    if leaf.is_empty() {
        if let (Value::Bool(flag), Some(idle)) = (&mut value, idle) {
            *flag = !idle;
        }
        return (value, String::new());
    }
    let end = leaf.find(['.', '[', '=']).unwrap_or(leaf.len());
    let (name, rest) = leaf.split_at(end);
    let member = &schema["properties"][name];
    let (inner, pointer) = using(member, rest.strip_prefix('.').unwrap_or(rest), idle);
    if !value.is_object() {
        value = Value::Object(Map::new());
    }
    value[name] = inner;
    (value, format!("/{name}{pointer}"))
}

/// Whether `validate` says of a document that uses this leaf what the table says.
fn is_told(dir: &Path, kind: &str, leaf: &str, line: &CoverageEntry) -> Result<(), String> {
    let idle = line.unless.as_ref().and_then(toml::Value::as_bool);
    let (spec, pointer) = using(&part(kind, "spec"), leaf, idle);
    let document = json!({"claw": "0.3.0", "kind": kind, "metadata": {"name": "x1"}, "spec": spec});
    let file = dir.join("primitive.json");
    std::fs::write(&file, document.to_string()).unwrap();
    let options = LoadOptions {
        judge: Some(JUDGE),
        ..LoadOptions::default()
    };
    let loaded = validate_file(&file, &options);
    let at = format!("/spec{pointer}");
    let said: Vec<_> = loaded
        .diagnostics
        .iter()
        .filter(|found| found.path == at)
        .map(|found| (found.severity, found.code))
        .collect();
    let expected = match (&line.warned, &line.refused) {
        (Some(code), _) => Some((Severity::Warning, code.as_str())),
        (_, Some(code)) => Some((Severity::Error, code.as_str())),
        (None, None) => None,
    };
    let codes: BTreeSet<&str> = COVERAGE
        .values()
        .flatten()
        .filter_map(|(_, line)| line.warned.as_deref().or(line.refused.as_deref()))
        .collect();
    let right = match expected {
        Some(expected) => said.contains(&expected),
        None => said.iter().all(|(_, code)| !codes.contains(code)),
    };
    if right {
        Ok(())
    } else {
        Err(format!(
            "[{kind}] {leaf} at {at}: expected {expected:?}, got {said:?} for {document}"
        ))
    }
}

#[test]
fn validate_says_of_each_leaf_what_the_table_says() {
    let dir = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (kind, lines) in COVERAGE.iter().filter(|(kind, _)| *kind != "Metadata") {
        for (leaf, line) in lines {
            wrong.extend(is_told(dir.path(), kind, leaf, line).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
