//! Gives a new tool a rule where the agent's policies would deny it without a word about it, and a test for that rule.

use anyhow::Result;
use clawk_manifest::{ListInsertion, list_item_names};
use clawk_policy::{Engine, PolicyLayers, PolicySubject, UsageView};
use serde_json::Map;

use super::AgentEdit;
use crate::companion;

/// A tool as the policies will see it.
pub(super) struct NewTool<'t> {
    /// The name of a call, for example `NAME-x` for a server with several tools.
    pub(super) called: String,
    /// What a rule matches, for example `NAME-*`.
    pub(super) pattern: String,
    /// The name of the declaration.
    pub(super) name: &'t str,
    /// Its labels.
    pub(super) labels: std::collections::BTreeMap<String, String>,
}

/// Adds a rule that asks before each call of the tool, if the policies deny it. A policy that stands in the manifest itself is not
/// edited: the rule is shown.
///
/// # Errors
/// A policy file has a layout that can't be edited.
pub(super) fn add_asking_rule(edit: &mut AgentEdit<'_>, tool: &NewTool<'_>) -> Result<()> {
    if !is_denied(edit, tool)? {
        return Ok(());
    }
    let id = format!("ask-before-{}", tool.name);
    let rule = format!(
        "id: {id}\naction: require-approval\nscope: tool\nmatch: {{ name: \"{}\" }}\nreason: Added with the tool; each call is asked for\n\
         approval: {{ timeout_seconds: 300, default_if_timeout: deny }}",
        tool.pattern
    );
    let files: Vec<_> = edit
        .loaded
        .sources
        .files()
        .map(std::path::Path::to_path_buf)
        .collect();
    let policy = files.into_iter().find_map(|file| {
        let text = edit.loaded.sources.text(&file)?;
        let names = list_item_names(text, "rules");
        // What no rule matches is denied, so a last rule that denies all is the usual place to stand before.
        let last = names.len().checked_sub(1)?;
        Some((file, names, last))
    });
    let Some((file, names, last)) = policy else {
        let indented = rule.replace('\n', "\n      ");
        edit.note(format!(
            "no policy file was found to edit, and the policies deny the tool `{}`; add this rule to one:\n    - {indented}",
            tool.name
        ));
        return Ok(());
    };
    let before = first_general_denial(edit, &file).unwrap_or(last);
    let insertion = ListInsertion {
        parent: "spec",
        section: "rules",
        item: &rule,
        before: (before < names.len()).then_some(before),
    };
    edit.insert(&file, insertion)?;
    let Some(tests) = companion::tests_path(&file).filter(|tests| tests.is_file()) else {
        return Ok(());
    };
    let case = format!(
        "name: {} is asked for\ntool: {}\nlabels: {}\nexpect: require-approval\nrule: {id}",
        tool.name,
        tool.called,
        serde_json::to_string(&tool.labels)?
    );
    let insertion = ListInsertion {
        parent: "",
        section: "cases",
        item: &case,
        before: None,
    };
    edit.insert(&tests, insertion)
}

impl AgentEdit<'_> {
    /// Adds a rule that asks before each call of a tool of this name, if the policies deny it.
    ///
    /// # Errors
    /// A policy file has a layout that can't be edited.
    pub(crate) fn add_asking_rule(&mut self, name: &str) -> Result<()> {
        let tool = NewTool {
            called: name.to_owned(),
            pattern: name.to_owned(),
            name,
            labels: std::collections::BTreeMap::new(),
        };
        add_asking_rule(self, &tool)
    }
}

/// Returns the index of the first rule that denies every tool, under conditions or without.
fn first_general_denial(edit: &AgentEdit<'_>, file: &std::path::Path) -> Option<usize> {
    let text = edit.loaded.sources.text(file)?;
    let names = list_item_names(text, "rules");
    let rules = edit.manifest.policies.iter().flat_map(|policy| &policy.rules);
    let denials: Vec<&str> = rules
        .filter(|rule| {
            rule.action == clawk_manifest::model::RuleAction::Deny
                && rule.scope == clawk_manifest::model::RuleScope::All
        })
        .map(|rule| rule.id.as_str())
        .collect();
    names
        .iter()
        .position(|name| name.as_deref().is_some_and(|name| denials.contains(&name)))
}

fn is_denied(edit: &AgentEdit<'_>, tool: &NewTool<'_>) -> Result<bool> {
    let engine = Engine::compile(&edit.manifest.policies)?;
    let (none, annotations) = (Map::new(), Map::new());
    let subject = PolicySubject {
        tool: &tool.called,
        labels: &tool.labels,
        annotations: &annotations,
        arguments: &none,
        schema: None,
        workdir: &edit.manifest.dir,
        usage: UsageView::default(),
        places: None,
        taint: None,
        values: None,
    };
    let layers = PolicyLayers {
        autonomy: clawk_manifest::model::AutonomyLevel::Autonomous,
        named: &[],
    };
    Ok(layers.decide(&engine, &subject).effect.name() == "deny")
}
