//! A document as a tree in which every node knows its position in the file.

use serde_json::{Map, Number, Value};

/// The deepest nesting of a document, JSON or YAML.
pub(crate) const MAX_DEPTH: usize = 128;

/// A position in a file: byte range, and its start as line and column (both from 1, column in characters).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// A value and its position; documents from the wire have no positions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Tree,
    pub(crate) place: Option<Location>,
}

/// The value of a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tree {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<MapEntry>),
}

/// A member of a map; keys are unique.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MapEntry {
    pub(crate) key: String,
    pub(crate) key_place: Option<Location>,
    pub(crate) value: Node,
}

impl Node {
    /// A tree without positions from a JSON value. `None` if it nests deeper than [`MAX_DEPTH`].
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        from_json(value, 0)
    }

    /// The value without positions.
    pub(crate) fn to_json(&self) -> Value {
        match &self.value {
            Tree::Null => Value::Null,
            Tree::Bool(flag) => Value::Bool(*flag),
            Tree::Number(number) => Value::Number(number.clone()),
            Tree::Text(text) => Value::String(text.clone()),
            Tree::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Tree::Map(entries) => Value::Object(members_to_json(entries)),
        }
    }

    pub(crate) fn entries(&self) -> Option<&[MapEntry]> {
        if let Tree::Map(entries) = &self.value {
            Some(entries)
        } else {
            None
        }
    }

    pub(crate) fn items(&self) -> Option<&[Node]> {
        if let Tree::List(items) = &self.value {
            Some(items)
        } else {
            None
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Tree::Text(text) = &self.value {
            Some(text)
        } else {
            None
        }
    }

    pub(crate) fn as_bool(&self) -> Option<bool> {
        if let Tree::Bool(flag) = &self.value {
            Some(*flag)
        } else {
            None
        }
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&MapEntry> {
        self.entries()?.iter().find(|entry| entry.key == key)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The type of the value, for messages.
    pub(crate) fn describe(&self) -> &'static str {
        match &self.value {
            Tree::Null => "nothing",
            Tree::Bool(_) => "a boolean",
            Tree::Number(_) => "a number",
            Tree::Text(_) => "text",
            Tree::List(_) => "a list",
            Tree::Map(_) => "a map",
        }
    }
}

/// The members as a JSON object.
pub(crate) fn members_to_json(entries: &[MapEntry]) -> Map<String, Value> {
    entries
        .iter()
        .map(|entry| (entry.key.clone(), entry.value.to_json()))
        .collect()
}

fn from_json(value: &Value, depth: usize) -> Option<Node> {
    if depth > MAX_DEPTH {
        return None;
    }
    let value = match value {
        Value::Null => Tree::Null,
        Value::Bool(flag) => Tree::Bool(*flag),
        Value::Number(number) => Tree::Number(number.clone()),
        Value::String(text) => Tree::Text(text.clone()),
        Value::Array(items) => Tree::List(
            items
                .iter()
                .map(|item| from_json(item, depth + 1))
                .collect::<Option<_>>()?,
        ),
        Value::Object(map) => Tree::Map(
            map.iter()
                .map(|(key, value)| {
                    Some(MapEntry {
                        key: key.clone(),
                        key_place: None,
                        value: from_json(value, depth + 1)?,
                    })
                })
                .collect::<Option<_>>()?,
        ),
    };
    Some(Node { value, place: None })
}

/// The JSON pointer of a member below `pointer` (RFC 6901).
pub(crate) fn join_pointer(pointer: &str, segment: &str) -> String {
    format!("{pointer}/{}", segment.replace('~', "~0").replace('/', "~1"))
}
