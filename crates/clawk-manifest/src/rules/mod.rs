//! Rules about combinations of a primitive's members: the conditional rules of CKP §5, beyond its shape.
//!
//! Rules read the located tree, so they also work for documents with other errors.

mod agent;
mod governance;
mod team;
mod tool;
pub(crate) mod whole;

use clawk_proto::uri::Kind;

use crate::check::{DocumentChecker, first_line};
use crate::diagnostic::Diagnostic;
use crate::tree::{Node, Tree, join_pointer};

/// Checks the rules of one primitive.
pub(crate) fn check_rules(
    kind: Kind,
    spec: &Node,
    pointer: &str,
    name: &str,
    checker: &mut DocumentChecker<'_>,
) {
    let spec = LocatedNode {
        node: spec,
        pointer: pointer.to_owned(),
    };
    match kind {
        Kind::Identity => {}
        Kind::Provider => agent::check_provider(&spec, checker),
        Kind::Channel => agent::check_channel(&spec, checker),
        Kind::Tool => tool::check_tool(&spec, name, checker),
        Kind::Skill => tool::check_skill(&spec, checker),
        Kind::Memory => tool::check_memory(&spec, checker),
        Kind::Sandbox => governance::check_sandbox(&spec, checker),
        Kind::Policy => governance::check_policy(&spec, checker),
        Kind::Swarm => team::check_swarm(&spec, checker),
        Kind::Telemetry => team::check_telemetry(&spec, checker),
        Kind::WorldModel => team::world_model(&spec, checker),
    }
}

/// A node and its JSON pointer.
#[derive(Debug, Clone)]
pub(crate) struct LocatedNode<'n> {
    pub(crate) node: &'n Node,
    pub(crate) pointer: String,
}

impl<'n> LocatedNode<'n> {
    pub(crate) fn get(&self, key: &str) -> Option<Self> {
        let node = self.node.get(key).filter(|node| node.value != Tree::Null)?;
        Some(Self {
            node,
            pointer: join_pointer(&self.pointer, key),
        })
    }

    /// Finds a nested member by its path.
    pub(crate) fn find_member(&self, path: &[&str]) -> Option<Self> {
        path.iter().try_fold(self.clone(), |spot, key| spot.get(key))
    }

    pub(crate) fn text_at(&self, key: &str) -> Option<&'n str> {
        self.node.get(key).and_then(Node::text)
    }

    pub(crate) fn has_member(&self, key: &str) -> bool {
        self.node.entry(key).is_some()
    }

    pub(crate) fn items(&self) -> Vec<Self> {
        let items = self.node.items().unwrap_or_default();
        let spot = |(index, node): (usize, &'n Node)| Self {
            node,
            pointer: join_pointer(&self.pointer, &index.to_string()),
        };
        items.iter().enumerate().map(spot).collect()
    }

    pub(crate) fn error(&self, code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, self.pointer.clone(), message).at_node(self.node)
    }

    pub(crate) fn warning(&self, code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::warning(code, self.pointer.clone(), message).at_node(self.node)
    }

    /// The finding for a required `key` that is absent.
    pub(crate) fn missing_member(&self, key: &str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error("missing-field", join_pointer(&self.pointer, key), message)
            .with_location(first_line(self.node))
    }

    /// The finding for a member that is not allowed here, reported at its key.
    pub(crate) fn stray_member(
        &self,
        key: &str,
        code: &'static str,
        message: impl Into<String>,
    ) -> Diagnostic {
        let place = self.node.entry(key).and_then(|entry| entry.key_place);
        Diagnostic::error(code, join_pointer(&self.pointer, key), message).with_location(place)
    }

    /// The finding for a member without effect here, reported at its key.
    pub(crate) fn idle_member(&self, key: &str, message: impl Into<String>) -> Diagnostic {
        let place = self.node.entry(key).and_then(|entry| entry.key_place);
        Diagnostic::warning("no-effect", join_pointer(&self.pointer, key), message).with_location(place)
    }
}

/// The items of a list whose `key` repeats an earlier one: the item and the text of the key.
pub(crate) fn repeated_items<'n>(items: &[LocatedNode<'n>], key: &str) -> Vec<(LocatedNode<'n>, &'n str)> {
    let mut seen = std::collections::HashSet::new();
    let mut out = Vec::new();
    for item in items {
        if let (Some(text), Some(spot)) = (item.text_at(key), item.get(key))
            && !seen.insert(text)
        {
            out.push((spot, text));
        }
    }
    out
}
