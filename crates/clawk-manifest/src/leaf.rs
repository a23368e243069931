//! The leaves of a document, for a runtime that comments on them (R41).
//!
//! This crate knows a leaf's name and position. The runtime gives its comment with a [`LeafCheckFn`].

use clawk_proto::uri::Kind;

use crate::diagnostic::{Diagnostic, FileFindings, Severity};
use crate::shape::{FieldType, MapShape, spec_of};
use crate::tree::{Node, Tree};

/// A member of a primitive's `spec` that is not a closed map, or one word of a closed set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ManifestLeaf<'a> {
    /// The primitive's kind.
    pub kind: Kind,
    /// Its path below `spec`, with `[]` for the items of a list: `fallback[].provider_ref`.
    pub path: &'a str,
    /// Its value.
    pub value: LeafValue<'a>,
}

/// The value of a leaf of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafValue<'a> {
    /// A word of a closed set. An unknown word is a separate error and not a leaf.
    Word(&'a str),
    /// Other text.
    Text(&'a str),
    /// `true` or `false`.
    Bool(bool),
    /// A number, an open map or a schema.
    Other,
}

/// A comment of the runtime on a leaf: a warning or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafRemark {
    /// An error refuses the manifest.
    pub severity: Severity,
    /// The finding's stable name, kebab-case.
    pub code: &'static str,
    /// The message.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
}

/// Comments on a leaf, or returns `None`.
pub type LeafCheckFn = fn(&ManifestLeaf<'_>) -> Option<LeafRemark>;

/// Passes every leaf of a primitive to `judge`. Its remarks become findings at the leaf's position.
pub(crate) fn judge_leaves(
    kind: Kind,
    spec: &Node,
    pointer: &str,
    judge: LeafCheckFn,
    findings: &mut FileFindings,
) {
    let mut walk = LeafWalk {
        kind,
        judge,
        path: String::new(),
        pointer: pointer.to_owned(),
        findings,
    };
    walk.walk_map(spec, spec_of(kind));
}

struct LeafWalk<'f> {
    kind: Kind,
    judge: LeafCheckFn,
    path: String,
    pointer: String,
    findings: &'f mut FileFindings,
}

impl LeafWalk<'_> {
    fn walk_map(&mut self, node: &Node, shape: &'static MapShape) {
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
            self.walk_value(&entry.value, &field.ty);
            self.path.truncate(path);
            self.pointer.truncate(pointer);
        }
    }

    fn walk_value(&mut self, node: &Node, ty: &FieldType) {
        match (ty, &node.value) {
            (_, Tree::Null) | (FieldType::Item(_), _) => {}
            (FieldType::Map(shape), _) => self.walk_map(node, shape),
            (FieldType::List { of, .. }, _) => {
                let (path, pointer) = (self.path.len(), self.pointer.len());
                self.path.push_str("[]");
                for (index, item) in node.items().unwrap_or_default().iter().enumerate() {
                    self.pointer.push('/');
                    self.pointer.push_str(&index.to_string());
                    self.walk_value(item, of);
                    self.pointer.truncate(pointer);
                }
                self.path.truncate(path);
            }
            (FieldType::Word(words), Tree::Text(text)) if words.contains(&text.as_str()) => {
                self.judge_leaf(node, LeafValue::Word(text));
            }
            (FieldType::Word(_), _) => {}
            (_, Tree::Text(text)) => self.judge_leaf(node, LeafValue::Text(text)),
            (_, Tree::Bool(flag)) => self.judge_leaf(node, LeafValue::Bool(*flag)),
            (_, Tree::Number(_) | Tree::List(_) | Tree::Map(_)) => self.judge_leaf(node, LeafValue::Other),
        }
    }

    fn judge_leaf(&mut self, node: &Node, value: LeafValue<'_>) {
        let leaf = ManifestLeaf {
            kind: self.kind,
            path: &self.path,
            value,
        };
        let Some(remark) = (self.judge)(&leaf) else {
            return;
        };
        let mut finding = Diagnostic::error(remark.code, self.pointer.clone(), remark.message).at_node(node);
        finding.severity = remark.severity;
        finding.help = remark.help;
        self.findings.push(finding);
    }
}
