//! The result of a validation as JSON (DESIGN §6): for `clawk validate --format json`, and for the `data` of an error.

use serde::Serialize;

use crate::diagnostic::{Diagnostic, Severity};
use crate::load::LoadedDocument;
use crate::model::{ConformanceLevel, MissingForNext};
use crate::tree::Node;

/// The description of a document. It has no effect on an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DocumentDescription {
    /// `metadata.name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `metadata.version`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `metadata.description`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The Identity's `capabilities`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
}

impl DocumentDescription {
    pub(crate) fn from_metadata(metadata: Option<&Node>) -> Self {
        let text = |key| metadata?.get(key)?.text().map(str::to_owned);
        Self {
            name: text("name"),
            version: text("version"),
            description: text("description"),
            capabilities: Vec::new(),
        }
    }

    /// Adds the capabilities that an Identity declares.
    pub(crate) fn add_abilities(&mut self, identity: &Node) {
        let items = identity
            .get("capabilities")
            .and_then(Node::items)
            .unwrap_or_default();
        self.capabilities = items.iter().filter_map(Node::text).map(str::to_owned).collect();
    }
}

/// The result of a validation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ValidationReport {
    /// Whether there is no error.
    pub valid: bool,
    /// The document's `kind`.
    pub kind: Option<&'static str>,
    /// The document's own description.
    pub about: DocumentDescription,
    /// `level-1` to `level-3`; absent for an invalid manifest or a single primitive.
    pub conformance_level: Option<ConformanceLevel>,
    /// The kinds of primitives that the manifest declares.
    pub primitives: Vec<&'static str>,
    /// The primitives that the next level requires (R6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_for_next: Option<MissingForNext>,
    /// The errors, which make it invalid.
    pub errors: Vec<Diagnostic>,
    /// Warnings: parts that the author may not have intended.
    pub warnings: Vec<Diagnostic>,
}

impl LoadedDocument {
    /// The result in a form for JSON output.
    #[must_use]
    pub fn report(&self) -> ValidationReport {
        let of = |severity| {
            self.diagnostics
                .iter()
                .filter(move |found| found.severity == severity)
                .cloned()
                .collect()
        };
        let manifest = self.manifest.as_ref();
        let lone = self.kind.filter(|kind| *kind != "Claw");
        ValidationReport {
            valid: self.is_valid(),
            kind: self.kind,
            about: self.about.clone(),
            conformance_level: manifest.map(|manifest| manifest.conformance_level()),
            primitives: manifest.map_or_else(|| lone.into_iter().collect(), |manifest| manifest.primitives()),
            missing_for_next: manifest.and_then(|manifest| manifest.next_level_missing()),
            errors: of(Severity::Error),
            warnings: of(Severity::Warning),
        }
    }
}
