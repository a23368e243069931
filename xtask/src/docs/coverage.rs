//! `docs/reference/coverage.md`, generated from `vectors/coverage.toml`: how this version treats each leaf of a manifest.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const TABLE: &str = "vectors/coverage.toml";
const PAGE: &str = "docs/reference/coverage.md";

const HEAD: &str = "\
# What acts in a manifest

Written by `cargo xtask docs` from `vectors/coverage.toml`; do not edit this page. One row for each leaf of a primitive's schema and
for each word of a closed set; `[]` stands for the items of a list.

* **works**: it acts, and the named test shows the effect.
* **warned**: it is accepted and does nothing yet. `clawk validate` says so with the code.
* **refused**: no machine can run it in this version. `clawk validate` and every start refuse it with the code.
";

/// Returns the page's path and text.
pub(super) fn page(root: &Path) -> Result<(&'static str, String)> {
    let text = fs::read_to_string(root.join(TABLE)).with_context(|| format!("can't read {TABLE}"))?;
    let table: toml::Table = toml::from_str(&text).with_context(|| format!("{TABLE} is not valid"))?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut rows = String::new();
    for (kind, leaves) in &table {
        writeln!(rows, "\n## {kind}\n\n| leaf | | |\n|---|---|---|")?;
        for (leaf, line) in leaves.as_table().into_iter().flatten() {
            let text = |key| line.get(key).and_then(toml::Value::as_str);
            let (how, about) = if let Some(test) = text("works") {
                ("works", format!("`{test}`"))
            } else {
                let how = if text("refused").is_some() {
                    "refused"
                } else {
                    "warned"
                };
                let code = text(how).unwrap_or_default();
                (how, format!("`{code}`: {}", text("why").unwrap_or_default()))
            };
            *counts.entry(how).or_default() += 1;
            writeln!(rows, "| `{leaf}` | {how} | {about} |")?;
        }
    }
    let sums: Vec<String> = counts
        .iter()
        .map(|(how, count)| format!("{count} {how}"))
        .collect();
    let text = format!(
        "{HEAD}\nOf {} leaves: {}.\n{rows}",
        counts.values().sum::<usize>(),
        sums.join(", ")
    );
    Ok((PAGE, text))
}
