//! A tool as rules see it, written as content: what a replay needs of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::DescribedTool;
use crate::ports::Executor;

/// The content of `ckp.tool.described`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolFacts {
    /// Hints that counted.
    pub annotations: Map<String, Value>,
    /// For models.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// Labels, the category among them.
    pub labels: BTreeMap<String, String>,
    /// The declared tool that stood for it, if the manifest does not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// What ran it; absent: the record is older than that, and labels alone said whose text a result was.
    #[serde(default, skip_serializing_if = "Executor::is_unrecorded")]
    pub executor: Executor,
    /// The category from its executor. It counts more than the labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_category: Option<String>,
    /// JSON Schema of the result, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
}

impl ToolFacts {
    /// Makes the facts of a described tool; `from` is the declared tool that stands for it.
    pub fn from_described(described: &DescribedTool, from: Option<&str>) -> Self {
        Self {
            from: from.map(str::to_owned),
            annotations: described.annotations.clone(),
            description: described.description.clone(),
            input_schema: described.input_schema.clone(),
            labels: described.labels.clone(),
            executor: described.executor,
            own_category: described.own_category.map(str::to_owned),
            output_schema: described.output_schema().cloned(),
        }
    }
}
