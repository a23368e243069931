//! The facts of a validation as JSON (DESIGN §6): for `clawk validate --format json`, and for `data` of an error.

use serde::Serialize;

use crate::diagnostic::{Diagnostic, Severity};
use crate::load::Loaded;
use crate::model::{ConformanceLevel, MissingForNext};

/// What a validation found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// There is no error.
    pub valid: bool,
    /// The document's `kind`.
    pub kind: Option<&'static str>,
    /// `level-1` to `level-3`; absent for an invalid manifest or a lone primitive.
    pub conformance_level: Option<ConformanceLevel>,
    /// Kinds of primitive that the manifest declares.
    pub primitives: Vec<&'static str>,
    /// What the next level needs (R6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_for_next: Option<MissingForNext>,
    /// What makes it invalid.
    pub errors: Vec<Diagnostic>,
    /// What its author may not have meant.
    pub warnings: Vec<Diagnostic>,
}

impl Loaded {
    /// The facts, ready to be printed as JSON.
    #[must_use]
    pub fn report(&self) -> Report {
        let of = |severity| {
            self.diagnostics
                .iter()
                .filter(move |found| found.severity == severity)
                .cloned()
                .collect()
        };
        let manifest = self.manifest.as_ref();
        let lone = self.kind.filter(|kind| *kind != "Claw");
        Report {
            valid: self.is_valid(),
            kind: self.kind,
            conformance_level: manifest.map(|manifest| manifest.conformance_level()),
            primitives: manifest.map_or_else(|| lone.into_iter().collect(), |manifest| manifest.primitives()),
            missing_for_next: manifest.and_then(|manifest| manifest.next_level_missing()),
            errors: of(Severity::Error),
            warnings: of(Severity::Warning),
        }
    }
}
