//! The provenance of the text in a turn's context (R46).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clawk_manifest::model::Skill;
use clawk_policy::ValueSources;

use super::RunningTurn;
use crate::call::Context;
use crate::output;
use crate::ports::{Executor, ModelMessage};
use crate::recall;
use crate::skill;
use crate::taint::{self, ToolTextOrigin};
use crate::turn::Turn;
use crate::value_facts::{self, ToolFacts, ValueContext};
use crate::world_model;

impl RunningTurn<'_> {
    /// Computes the provenance of the context (R46): the whole conversation, shown or not, and the text beside it.
    pub(super) async fn look_back(&mut self, turn: &Turn) {
        let brings = self.brings_of(turn.messages()).await;
        let of = |tool: &str| brings.get(tool).copied().unwrap_or(ToolTextOrigin::Web);
        let mut taint = taint::of_messages(turn.messages(), of);
        taint.extend(self.base.iter().cloned());
        taint.extend(taint::through(&self.context.read.collected_files()));
        // Earlier messages of the requester count as the requester's own text.
        if let Some(requester) = &self.context.requester {
            taint.retain(|origin| !requester.is_own_origin(origin));
        }
        let values = self.value_sources(turn, &taint, &brings).await;
        self.context = Arc::new(Context {
            values,
            taint: taint.into_iter().collect(),
            origin: self.context.origin.clone(),
            requester: self.context.requester.clone(),
            read: self.context.read.clone(),
        });
    }

    /// Returns the texts in which values are looked up, if a rule needs them.
    async fn value_sources(
        &self,
        turn: &Turn,
        taint: &BTreeSet<String>,
        brings: &BTreeMap<&str, ToolTextOrigin>,
    ) -> ValueSources {
        let engine = &self.calls.engine;
        if !engine.looks_at_confidential() && (!engine.looks_at_values() || taint.is_empty()) {
            return ValueSources::default();
        }
        let mut tools = BTreeMap::new();
        for name in brings.keys() {
            let facts = self.tool_facts(name).await;
            tools.insert(*name, facts.unwrap_or_default());
        }
        let mut gone = Vec::new();
        // The provenance of remembered tool text is known by its source.
        let remembered = crate::taint::of_messages(turn.messages(), |tool| match brings.get(tool) {
            Some(ToolTextOrigin::Memory) => ToolTextOrigin::Memory,
            Some(_) | None => ToolTextOrigin::Nothing,
        });
        for origin in self.base.iter().chain(&remembered) {
            let name = origin.split_once(' ').map_or("", |(_, name)| name);
            if let Some(facts) = self.tool_facts(name).await {
                gone.push((name, facts));
            }
        }
        let context = ValueContext {
            taint,
            requester: self.context.requester.as_ref(),
            brings,
            tools: &tools,
            stores: recall::recall_stores(self.calls)
                .map(|store| store.name.as_str())
                .collect(),
            gone,
        };
        value_facts::gather_values(turn.messages(), &context)
    }

    /// Returns a tool's properties. `None`: the tool is unknown or can't be described.
    async fn tool_facts(&self, name: &str) -> Option<ToolFacts> {
        let action = self
            .granted
            .as_ref()
            .and_then(|granted| granted.find_action(name));
        let entry = self.calls.catalog.get(action.unwrap_or(name))?;
        let Ok(described) = self.calls.describe_tool(&entry).await else {
            // Only the manifest's own annotations count; everything else is assumed to be the worst.
            return Some(ToolFacts {
                annotations: entry.spec.annotations.clone(),
                reads_files: true,
            });
        };
        let category = described.labels.get("category").map(String::as_str);
        Some(ToolFacts {
            annotations: described.annotations.clone(),
            reads_files: described.executor == Executor::Command
                || matches!(category, Some("shell" | "filesystem")),
        })
    }

    /// Returns the kind of text of each tool that these messages call.
    pub(super) async fn brings_of<'m>(
        &self,
        messages: &'m [ModelMessage],
    ) -> BTreeMap<&'m str, ToolTextOrigin> {
        let mut brings: BTreeMap<&'m str, ToolTextOrigin> = BTreeMap::new();
        let asked = messages.iter().flat_map(|message| match message {
            ModelMessage::Assistant { calls, .. } => calls.as_slice(),
            ModelMessage::User { .. } | ModelMessage::ToolResult { .. } => &[],
        });
        for wanted in asked {
            if !brings.contains_key(wanted.name.as_str()) {
                let found = self.tool_text_origin(&wanted.name).await;
                brings.insert(&wanted.name, found);
            }
        }
        brings
    }

    /// Returns the kind of a tool's results; for an unknown tool, the least trusted kind.
    async fn tool_text_origin(&self, name: &str) -> ToolTextOrigin {
        if name == output::NAME {
            return ToolTextOrigin::Nothing; // what it brings was brought before
        }
        if let Some(skill) = self.find_skill(name) {
            return world_model::plan_text_origin(self.calls, &skill).await;
        }
        let action = self
            .granted
            .as_ref()
            .and_then(|granted| granted.find_action(name));
        let name = action.unwrap_or(name);
        if self.calls.catalog.of_team(name).is_some() {
            return ToolTextOrigin::Peer;
        }
        let Some(entry) = self.calls.catalog.get(name) else {
            return ToolTextOrigin::Web;
        };
        if let Some(skill) = &entry.skill {
            return self.worst_text_origin(skill).await;
        }
        match self.calls.describe_tool(&entry).await {
            Ok(described) => taint::tool_text_origin(&entry, &described),
            Err(_) => ToolTextOrigin::Web, // silent-ok: said so where it is offered
        }
    }

    /// Returns the kind of a composite tool's results: they may depend on the results of any of its tools. Memory entries have lost
    /// their marks there.
    async fn worst_text_origin(&self, skill: &Skill) -> ToolTextOrigin {
        let mut worst = world_model::plan_text_origin(self.calls, skill).await;
        for name in skill::needed_tools(skill) {
            let found = match self.calls.catalog.get(&name) {
                Some(entry) if entry.skill.is_none() => match self.calls.describe_tool(&entry).await {
                    Ok(described) => taint::tool_text_origin(&entry, &described),
                    Err(_) => ToolTextOrigin::Web, // silent-ok: of what nobody knows, the worst
                },
                // A nested composite tool, or a tool of a server that is not known yet.
                Some(_) | None => ToolTextOrigin::Web,
            };
            worst = worst.less_trusted(match found {
                ToolTextOrigin::Memory => ToolTextOrigin::Web,
                other => other,
            });
        }
        worst
    }
}
