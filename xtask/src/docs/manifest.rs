//! `docs/reference/manifest.md`: every field of `claw.yaml`, from the JSON Schema and `vectors/coverage.toml`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

const PAGE: &str = "docs/reference/manifest.md";
const TABLE: &str = "vectors/coverage.toml";

/// The primitives in the page's order: kind, position in a manifest, schema.
const KINDS: [(&str, &str, &str); 11] = [
    ("Identity", "spec.identity", "identity"),
    ("Provider", "spec.providers[]", "provider"),
    ("Tool", "spec.tools[]", "tool"),
    ("Sandbox", "spec.sandbox", "sandbox"),
    ("Policy", "spec.policies[]", "policy"),
    ("Channel", "spec.channels[]", "channel"),
    ("Skill", "spec.skills[]", "skill"),
    ("Memory", "spec.memory", "memory"),
    ("WorldModel", "spec.world_model", "world-model"),
    ("Swarm", "spec.swarm", "swarm"),
    ("Telemetry", "spec.telemetry", "telemetry"),
];

const HEAD: &str = "\
# claw.yaml

`cargo xtask docs` writes this page from the JSON Schema and from `vectors/coverage.toml`. Do not edit it.

A manifest is one YAML file. It declares an agent and says nothing about a machine: programs, secrets and folders of a machine are in
[`clawk.toml`](config.md).

```yaml
claw: \"0.3.0\"            # the version of the protocol; 0.2 and 0.3 are accepted
kind: Claw
metadata:
  name: my-agent
  version: \"0.1.0\"
spec:
  identity: { inline: { name: my-agent, personality: You are helpful., autonomy: supervised } }
  providers:
    - inline: { name: by-the-book, protocol: custom, endpoint: \"script:script.yaml\", model: demo, auth: { type: none } }
```

Each primitive is written in one of two ways: `inline:` with the fields below, or the path of another file (`policies: [./policies/standard.yaml]`). A tool that is
[built in](tools.md) needs only its name (`tools: [file-read]`). The other file has `claw`, `kind`, `metadata` and `spec` of its own. A key that no table names is an error. `clawk validate`
names the file, the line and the cure.

The last column says what this version does with the field:

* **works**: the field has its effect. A test shows it; [the coverage page](coverage.md) names the test.
* **no effect yet**: the field is accepted and changes nothing. `clawk validate` warns with the code.
* **refused**: `clawk validate` and every start refuse the field with the code, because no effect is weaker than the one that is asked for.

`[]` stands for the items of a list, `*` for a name that you choose.
";

/// Returns the page's path and text.
pub(super) fn page(root: &Path) -> Result<(&'static str, String)> {
    let text = fs::read_to_string(root.join(TABLE)).with_context(|| format!("can't read {TABLE}"))?;
    let coverage: toml::Table = toml::from_str(&text).with_context(|| format!("{TABLE} is not valid"))?;
    let mut out = HEAD.to_owned();
    let mut metadata = None;
    let mut sections = String::new();
    for (kind, place, file) in KINDS {
        let path = format!("schema/{file}.schema.json");
        let text = fs::read_to_string(root.join(&path)).with_context(|| format!("can't read {path}"))?;
        let schema: Value = serde_json::from_str(&text).with_context(|| format!("{path} is not valid"))?;
        let spec = schema
            .pointer("/properties/spec")
            .with_context(|| format!("{path} has no spec"))?;
        if metadata.is_none() {
            metadata = schema.pointer("/properties/metadata").cloned();
        }
        section(&mut sections, kind, place, spec, &coverage)?;
    }
    let metadata = metadata.context("no schema has metadata")?;
    section(&mut out, "Metadata", "metadata", &metadata, &coverage)?;
    Ok((PAGE, out + &sections))
}

fn section(out: &mut String, kind: &str, place: &str, schema: &Value, coverage: &toml::Table) -> Result<()> {
    let about = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    write!(out, "\n## {kind}\n\n`{place}`. {about}\n\n")?;
    writeln!(
        out,
        "| field | value | effect | this version |\n|---|---|---|---|"
    )?;
    let lines = coverage.get(kind).and_then(toml::Value::as_table);
    let mut rows = Vec::new();
    fields(schema, "", &mut rows);
    for (path, field, required) in rows {
        let about = field
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let about = if about.is_empty() {
            inherited(&path)
        } else {
            cell(about)
        };
        let must = if required { " Required." } else { "" };
        let status = status(&path, lines);
        writeln!(out, "| `{path}` | {} | {about}{must} | {status} |", value(field))?;
    }
    Ok(())
}

/// Returns the text for a field without its own description: it refers to the parent field.
fn inherited(path: &str) -> String {
    let above = path.rsplit_once('.').map_or(path, |(above, _)| above);
    format!("See `{above}`.")
}

/// Collects every field below `above`, parents before children.
fn fields<'a>(schema: &'a Value, above: &str, out: &mut Vec<(String, &'a Value, bool)>) {
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, field) in properties.into_iter().flatten() {
        let path = if above.is_empty() {
            name.clone()
        } else {
            format!("{above}.{name}")
        };
        out.push((path.clone(), field, required.contains(&name.as_str())));
        below(field, &path, out);
    }
}

/// Collects the content of a field: members, items of a list, values of a map, variants.
fn below<'a>(field: &'a Value, path: &str, out: &mut Vec<(String, &'a Value, bool)>) {
    fields(field, path, out);
    if let Some(items) = field.get("items") {
        below(items, &format!("{path}[]"), out);
    }
    if let Some(values) = field
        .get("additionalProperties")
        .filter(|values| values.is_object())
    {
        below(values, &format!("{path}.*"), out);
    }
    for word in ["anyOf", "oneOf"] {
        for variant in field.get(word).and_then(Value::as_array).into_iter().flatten() {
            below(variant, path, out);
        }
    }
}

/// Returns a field's type, its allowed words and its bounds.
fn value(field: &Value) -> String {
    if let Some(words) = field.get("enum").and_then(Value::as_array) {
        let words: Vec<String> = words
            .iter()
            .filter_map(Value::as_str)
            .map(|word| format!("`{word}`"))
            .collect();
        return words.join(", ");
    }
    if let Some(only) = field.get("const") {
        return cell(&format!("`{only}`"));
    }
    for word in ["anyOf", "oneOf"] {
        if let Some(variants) = field.get(word).and_then(Value::as_array) {
            let kinds: Vec<String> = variants
                .iter()
                .map(value)
                .filter(|kind| !kind.is_empty())
                .collect();
            return kinds.join(" or ");
        }
    }
    let kind = match field.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        Some(Value::Array(kinds)) => kinds
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(" or "),
        _ => "any".to_owned(),
    };
    match kind.as_str() {
        "array" => field
            .get("items")
            .map(value)
            .filter(|item| item != "any")
            .map_or_else(|| "list".to_owned(), |item| format!("list of {item}")),
        "object" if field.get("properties").is_some() => "mapping".to_owned(),
        "object" => "mapping of your names".to_owned(),
        "string" => "text".to_owned(),
        "integer" | "number" => kind + &bounds(field),
        "boolean" => "`true` or `false`".to_owned(),
        _ => kind,
    }
}

fn bounds(field: &Value) -> String {
    let text = |key| field.get(key).map(ToString::to_string);
    match (text("minimum"), text("maximum")) {
        (Some(least), Some(most)) => format!(", {least} to {most}"),
        (Some(least), None) => format!(", at least {least}"),
        (None, Some(most)) => format!(", at most {most}"),
        (None, None) => String::new(),
    }
}

/// Returns how this version treats a field: its own line of the coverage table, or the lines of its words.
fn status(path: &str, lines: Option<&toml::Table>) -> String {
    let Some(lines) = lines else {
        return String::new();
    };
    let told = |line: &toml::Value| {
        let text = |key: &str| line.get(key).and_then(toml::Value::as_str);
        let why = cell(text("why").unwrap_or_default());
        if let Some(code) = text("refused") {
            format!("refused (`{code}`): {why}")
        } else if let Some(code) = text("warned") {
            format!("no effect yet (`{code}`): {why}")
        } else {
            "works".to_owned()
        }
    };
    let mut own = Vec::new();
    for name in [path.to_owned(), format!("{path}[]"), format!("{path}.*")] {
        own.extend(lines.get(&name).map(&told));
    }
    let mut words = Vec::new();
    for (leaf, line) in lines {
        let word = [format!("{path}="), format!("{path}[]=")]
            .iter()
            .find_map(|start| leaf.strip_prefix(start));
        if let Some(word) = word {
            words.push((word, told(line)));
        }
    }
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for (word, told) in words {
        match groups.iter_mut().find(|(known, _)| *known == told) {
            Some((_, words)) => words.push(format!("`{word}`")),
            None => groups.push((told, vec![format!("`{word}`")])),
        }
    }
    match groups.as_slice() {
        [(told, _)] => own.push(told.clone()),
        _ => own.extend(
            groups
                .iter()
                .map(|(told, words)| format!("{}: {told}", words.join(", "))),
        ),
    }
    own.dedup();
    own.join("; ")
}

/// Escapes text for a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::page;

    /// Every leaf of the coverage table is a row of the page, and every row has a description. A test keeps the table equal to the
    /// schema.
    #[test]
    fn every_leaf_of_the_schema_is_in_the_page_with_its_effect() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (_, text) = page(root).unwrap();
        let table = std::fs::read_to_string(root.join("vectors/coverage.toml")).unwrap();
        let table: toml::Table = toml::from_str(&table).unwrap();
        let mut missing = Vec::new();
        for (kind, leaves) in &table {
            let start = text
                .find(&format!("\n## {kind}\n"))
                .unwrap_or_else(|| panic!("no section {kind}"));
            let section = text
                .get(start + 1..)
                .and_then(|rest| rest.split("\n## ").next())
                .unwrap();
            for leaf in leaves.as_table().unwrap().keys() {
                let field = leaf.split('=').next().unwrap();
                let plain = field.trim_end_matches("[]").trim_end_matches(".*");
                let row = |name: &str| section.contains(&format!("| `{name}` |"));
                if !row(field) && !row(plain) {
                    missing.push(format!("{kind}: {leaf}"));
                }
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
        assert!(
            !text.contains("|  | works") && !text.contains("|   |"),
            "a row without an effect"
        );
    }
}
