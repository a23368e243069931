//! `skill-NAME`: the tool that a model calls to invoke a skill. Its calls take the usual path; it has no effect of its own.

use std::sync::Arc;

use clawk_manifest::model::{Manifest, Skill, Tool};
use clawk_policy::HiddenRoots;
use serde_json::{Map, Value, json};

use super::CatalogEntry;
use super::plans::SandboxPlans;
use crate::skill_rights;

/// The category by which rules match invocations of skills.
const CATEGORY: &str = "skill";

/// Returns one tool for each skill, unless another tool has that name.
pub(super) fn skill_entries(manifest: &Manifest, plans: &SandboxPlans) -> Vec<Arc<CatalogEntry>> {
    let sandbox = manifest.sandbox.as_ref().map(|sandbox| sandbox.name.clone());
    let one = |skill: &Skill| {
        let mut entry = CatalogEntry::new(
            skill_tool(skill),
            &plans.plan_hiding(sandbox.clone(), &HiddenRoots::default()),
        );
        entry.joins = Some(Arc::new(skill.clone()));
        Arc::new(entry)
    };
    let skills = manifest.skills.iter();
    skills
        .filter(|skill| manifest.tool(&skill_rights::name_of(skill)).is_none())
        .map(one)
        .collect()
}

fn skill_tool(skill: &Skill) -> Tool {
    let mut labels = skill.labels.clone();
    labels
        .entry("category".to_owned())
        .or_insert_with(|| CATEGORY.to_owned());
    let hints = [("readOnlyHint", true), ("openWorldHint", false)];
    let hints = hints.map(|(name, value)| (name.to_owned(), Value::Bool(value)));
    Tool {
        name: skill_rights::name_of(skill),
        version: skill.version.clone(),
        labels,
        description: Some(skill_rights::skill_description(skill)),
        input_schema: Some(
            skill
                .input_schema
                .clone()
                .unwrap_or_else(|| json!({"type": "object"})),
        ),
        output_schema: None,
        sandbox_ref: None,
        policy_ref: None,
        mcp_source: None,
        annotations: Map::from_iter(hints),
        composite: false,
        skill_ref: None,
        timeout_ms: None,
        retry: None,
    }
}
