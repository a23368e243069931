//! A tool's properties as policies see them: those of the manifest, completed by those of the built-in, as in the kernel (R13). No
//! server is asked.

use std::collections::BTreeMap;

use clawk_manifest::Manifest;
use clawk_manifest::model::Tool;
use clawk_tools::builtin;
use serde_json::{Map, Value};

use crate::config::Settings;

/// A tool as rules see it.
#[derive(Debug, Clone, Default)]
pub(super) struct PolicyToolFacts {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: Map<String, Value>,
    pub(super) schema: Option<Value>,
    /// Properties that are unknown here but may be known to the running agent.
    pub(super) doubt: Option<String>,
}

impl PolicyToolFacts {
    /// Returns the properties of a built-in, declared or not. Nothing is known about any other name.
    pub(super) fn of_name(name: &str) -> Self {
        let mut facts = Self::default();
        if let Some(known) = builtin::describe_builtin(name) {
            facts.annotations = known.trusted_annotations;
            facts.schema = Some(known.input_schema);
            if let Some(category) = known.category {
                facts.labels.insert("category".to_owned(), category.to_owned());
            }
        }
        facts
    }

    /// Returns the properties of a declared tool.
    pub(super) fn of_tool(tool: &Tool, manifest: &Manifest, settings: &Settings) -> Self {
        let bound = settings.tools.tools.get(&tool.name);
        let elsewhere = bound.is_some_and(|bound| {
            bound.command.is_some() || bound.http.is_some() || bound.wasm.is_some() || bound.a2a.is_some()
        });
        let mut facts = if elsewhere || tool.composite || tool.mcp_source.is_some() {
            Self::default()
        } else {
            Self::of_name(&tool.name)
        };
        facts.annotations.extend(tool.annotations.clone());
        facts.labels.extend(tool.labels.clone());
        let skill = tool.skill_ref.as_deref().filter(|_| tool.composite);
        let of_skill = skill
            .and_then(|name| manifest.skill(name))
            .and_then(|skill| skill.input_schema.clone());
        facts.schema = tool.input_schema.clone().or(of_skill).or(facts.schema);
        let incomplete = tool.description.is_none() || tool.input_schema.is_none();
        if incomplete && tool.mcp_source.is_some() {
            let text =
                "its MCP server is not started here: what the server says of the tool may count besides";
            facts.doubt = Some(text.to_owned());
        }
        facts
    }
}
