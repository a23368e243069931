//! A primitive as it was read, before it becomes a typed one.

use clawk_proto::uri::Kind;
use serde_json::{Map, Value};

use crate::check::RefUse;
use crate::tree::{Location, Node, join_pointer};

/// A primitive with its name, from any place in the manifest.
#[derive(Debug)]
pub(crate) struct UntypedPrimitive {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// The name was generated (R7).
    pub(crate) generated: bool,
    pub(crate) version: Option<String>,
    pub(crate) labels: Map<String, Value>,
    pub(crate) spec: Node,
    /// JSON pointer to the spec in its file.
    pub(crate) pointer: String,
    /// The index of its file among the files read.
    pub(crate) file: usize,
    pub(crate) place: Option<Location>,
    pub(crate) refs: Vec<RefUse>,
}

impl UntypedPrimitive {
    /// JSON pointer to its name, or to the primitive if the name was generated.
    pub(crate) fn name_pointer(&self) -> String {
        if self.pointer.ends_with("/inline") && !self.generated {
            join_pointer(&self.pointer, "name")
        } else if self.pointer == "/spec" && !self.generated {
            "/metadata/name".to_owned()
        } else {
            // The name was generated, or the item is nothing but the name of a built-in tool.
            self.pointer.clone()
        }
    }

    /// The object from which the typed model is deserialized: spec, name, version, labels. References are plain names.
    pub(crate) fn to_json(&self, members: &[&str]) -> Value {
        let mut value = self.spec.to_json();
        for used in &self.refs {
            let inside = used.pointer.strip_prefix(&self.pointer);
            if let Some(slot) = inside.and_then(|inside| value.pointer_mut(inside)) {
                *slot = Value::String(used.name.clone());
            }
        }
        if let Value::Object(object) = &mut value {
            // The schema of arguments may omit `type: object`; it is added here for its readers.
            if let Some(Value::Object(schema)) = object.get_mut("input_schema") {
                schema.entry("type").or_insert_with(|| "object".into());
            }
            object.retain(|key, _| members.contains(&key.as_str()));
            object.insert("name".to_owned(), Value::String(self.name.clone()));
            object.insert("labels".to_owned(), Value::Object(self.labels.clone()));
            if let Some(version) = &self.version {
                object.insert("version".to_owned(), Value::String(version.clone()));
            }
        }
        value
    }
}
