//! The coverage table: how this version treats each leaf of a manifest (R41). The program and its tests read
//! `vectors/coverage.toml`.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use clawk_manifest::{LeafCheckFn, LeafRemark, LeafValue, ManifestLeaf, Severity};
use serde::Deserialize;

const TABLE: &str = include_str!("../../../vectors/coverage.toml");

/// Entries by kind, then by leaf: `path`, or `path=word`.
type Table = BTreeMap<String, BTreeMap<String, CoverageEntry>>;

/// The entry of one leaf. Exactly one of `works`, `warned`, `refused` is set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoverageEntry {
    /// The test that shows that the leaf works.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the tests and the reader"))]
    works: Option<String>,
    warned: Option<String>,
    refused: Option<String>,
    /// What happens instead, or how to fix it.
    #[serde(default)]
    why: String,
    /// The leaf's value for which nothing is reported, because it requests nothing.
    unless: Option<toml::Value>,
}

#[expect(
    clippy::expect_used,
    reason = "the text is part of the program, and tests read it"
)]
static COVERAGE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(TABLE).expect("vectors/coverage.toml is a table of leaves"));

/// Returns the findings about a leaf. `clawk validate` and every start print them.
pub(crate) const JUDGE: LeafCheckFn = judge;

fn judge(leaf: &ManifestLeaf<'_>) -> Option<LeafRemark> {
    let lines = COVERAGE.get(leaf.kind.title())?;
    let (line, shown) = match leaf.value {
        LeafValue::Word(word) => (
            lines.get(&format!("{}={word}", leaf.path))?,
            format!("`{}: {word}`", leaf.path),
        ),
        LeafValue::Text(_) | LeafValue::Bool(_) | LeafValue::Other => {
            (lines.get(leaf.path)?, format!("`{}`", leaf.path))
        }
    };
    if line.asks_nothing(leaf.value) {
        return None;
    }
    match (&line.refused, &line.warned) {
        (Some(code), _) => Some(LeafRemark {
            severity: Severity::Error,
            code,
            message: format!("{shown} cannot be run by this version"),
            help: Some(line.why.clone()),
        }),
        (None, Some(code)) => Some(LeafRemark {
            severity: Severity::Warning,
            code,
            message: format!(
                "{shown} is accepted, but this version does not act on it: {}",
                line.why
            ),
            help: None,
        }),
        (None, None) => None,
    }
}

impl CoverageEntry {
    fn asks_nothing(&self, value: LeafValue<'_>) -> bool {
        match (&self.unless, value) {
            (Some(toml::Value::Boolean(idle)), LeafValue::Bool(flag)) => *idle == flag,
            (Some(toml::Value::String(idle)), LeafValue::Text(text)) => idle == text,
            (None, LeafValue::Bool(flag)) => !flag,
            _ => false,
        }
    }
}
