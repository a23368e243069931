//! What a policy may know of a tool: the manifest first, a built-in's own words where the manifest is silent, as the kernel
//! has it (R13). No server is asked.

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
    /// What is not known here and the running agent may know.
    pub(super) doubt: Option<String>,
}

impl PolicyToolFacts {
    /// Of a built-in, whether or not anything declares it; of any other name nothing is known.
    pub(super) fn of_name(name: &str) -> Self {
        let mut facts = Self::default();
        if let Some(known) = builtin::describe(name) {
            facts.annotations = known.trusted_annotations;
            facts.schema = Some(known.input_schema);
            if let Some(category) = known.category {
                facts.labels.insert("category".to_owned(), category.to_owned());
            }
        }
        facts
    }

    /// Of a declared tool.
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
