//! The leaves that a document gives, for a runtime that has something to say of them (R41).
//!
//! This crate knows what a leaf is called and where it stands; what a runtime makes of it, the runtime says by a [`LeafCheckFn`].

use clawk_proto::uri::Kind;

use crate::diagnostic::{Diagnostic, FileFindings, Severity};
use crate::shape::{FieldType, MapShape, spec_of};
use crate::tree::{Node, Tree};

/// A member of a primitive's `spec` that holds no closed map, or one word of a closed set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ManifestLeaf<'a> {
    /// The primitive's kind.
    pub kind: Kind,
    /// Where it stands below `spec`, with `[]` for the items of a list: `fallback[].provider_ref`.
    pub path: &'a str,
    /// What it holds.
    pub value: LeafValue<'a>,
}

/// The value of a leaf of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafValue<'a> {
    /// A word of a closed set; a word that the set lacks is an error of its own, and no leaf.
    Word(&'a str),
    /// Other text.
    Text(&'a str),
    /// `true` or `false`.
    Bool(bool),
    /// A number, an open map, a schema.
    Other,
}

/// A remark of the runtime about a leaf: a warning or a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafRemark {
    /// An error refuses the manifest.
    pub severity: Severity,
    /// Stable name of the finding, kebab-case.
    pub code: &'static str,
    /// What is so.
    pub message: String,
    /// What would mend it.
    pub help: Option<String>,
}

/// Says something of a leaf, or nothing.
pub type LeafCheckFn = fn(&ManifestLeaf<'_>) -> Option<LeafRemark>;

/// Shows every leaf of a primitive to the judge; remarks become findings at their place.
pub(crate) fn judge(kind: Kind, spec: &Node, pointer: &str, judge: LeafCheckFn, findings: &mut FileFindings) {
    let mut walk = LeafWalk {
        kind,
        judge,
        path: String::new(),
        pointer: pointer.to_owned(),
        findings,
    };
    walk.map(spec, spec_of(kind));
}

struct LeafWalk<'f> {
    kind: Kind,
    judge: LeafCheckFn,
    path: String,
    pointer: String,
    findings: &'f mut FileFindings,
}

impl LeafWalk<'_> {
    fn map(&mut self, node: &Node, shape: &'static MapShape) {
        for entry in node.entries().unwrap_or_default() {
            let Some(field) = shape.field(&entry.key) else {
                continue;
            };
            let (path, pointer) = (self.path.len(), self.pointer.len());
            if path > 0 {
                self.path.push('.');
            }
            self.path.push_str(field.name);
            self.pointer.push('/');
            self.pointer.push_str(field.name);
            self.value(&entry.value, &field.ty);
            self.path.truncate(path);
            self.pointer.truncate(pointer);
        }
    }

    fn value(&mut self, node: &Node, ty: &FieldType) {
        match (ty, &node.value) {
            (_, Tree::Null) | (FieldType::Item(_), _) => {}
            (FieldType::Map(shape), _) => self.map(node, shape),
            (FieldType::List { of, .. }, _) => {
                let (path, pointer) = (self.path.len(), self.pointer.len());
                self.path.push_str("[]");
                for (index, item) in node.items().unwrap_or_default().iter().enumerate() {
                    self.pointer.push('/');
                    self.pointer.push_str(&index.to_string());
                    self.value(item, of);
                    self.pointer.truncate(pointer);
                }
                self.path.truncate(path);
            }
            (FieldType::Word(words), Tree::Text(text)) if words.contains(&text.as_str()) => {
                self.leaf(node, LeafValue::Word(text));
            }
            (FieldType::Word(_), _) => {}
            (_, Tree::Text(text)) => self.leaf(node, LeafValue::Text(text)),
            (_, Tree::Bool(flag)) => self.leaf(node, LeafValue::Bool(*flag)),
            (_, Tree::Number(_) | Tree::List(_) | Tree::Map(_)) => self.leaf(node, LeafValue::Other),
        }
    }

    fn leaf(&mut self, node: &Node, value: LeafValue<'_>) {
        let leaf = ManifestLeaf {
            kind: self.kind,
            path: &self.path,
            value,
        };
        let Some(remark) = (self.judge)(&leaf) else {
            return;
        };
        let mut finding = Diagnostic::error(remark.code, self.pointer.clone(), remark.message).on(node);
        finding.severity = remark.severity;
        finding.help = remark.help;
        self.findings.push(finding);
    }
}
