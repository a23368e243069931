//! The catalogue of this agent's tools by name: tools of the manifest, of its MCP servers, its skills and its swarm. For a single
//! tool see the module `entry`.

mod convert;
mod entry;
mod fault;
mod plans;
mod served_schema;
mod skills;
mod tool_facts;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use clawk_manifest::model::{Manifest, Sandbox, Tool};
use clawk_policy::{Engine, HiddenRoots};

pub use convert::ConvertedArguments;
pub use entry::{CatalogEntry, DescribedTool, compile_validator};

pub use tool_facts::ToolFacts;

use entry::memory_names;
use plans::SandboxPlans;
pub use plans::SandboxSettings;

use crate::call::ToolRunner;
use crate::error::CallError;
use crate::narrow;
use crate::place;
use crate::ports::ToolDescription;

/// The mechanism recorded for a call that a dry run predicted instead of running.
pub const PREDICTED: &str = "predicted";

/// The declarations of the kernel's own tools, which the manifest does not have.
#[derive(Debug)]
pub struct KernelToolSet {
    /// Reads the omitted part of a shortened result.
    pub output_read: Tool,
    /// Represents a server's question to a model.
    pub sampling: Tool,
    /// The swarm's tools.
    pub team: Vec<Tool>,
    /// Time limit of the swarm's tools, in milliseconds.
    pub team_timeout_ms: u64,
}

/// All tools by name.
#[derive(Debug)]
pub struct ToolCatalog {
    tools: BTreeMap<Arc<str>, Arc<CatalogEntry>>,
    /// Tools of servers that a declared tool represents. Filled when a server has listed its tools.
    taken: RwLock<BTreeMap<Arc<str>, Arc<CatalogEntry>>>,
    /// The built-in `output-read`, offered after a result was shortened; `None` if the manifest has a tool with this name.
    output_read: Option<Arc<CatalogEntry>>,
    /// The tool `mcp-sampling`; `None` if the manifest has a tool with this name.
    sampling: Option<Arc<CatalogEntry>>,
    /// The tools `delegate`, `ask-peer` and `report`; without those whose name the manifest uses. Empty without a swarm.
    team: Vec<Arc<CatalogEntry>>,
    /// A tool `skill-NAME` for each skill, unless another tool has that name.
    skills: Vec<Arc<CatalogEntry>>,
    /// All declared sandboxes; `context.sandbox` may name one.
    sandboxes: BTreeMap<String, Sandbox>,
    plans: SandboxPlans,
    /// The root folders of all rules, and their resolved paths when the agent started.
    pub roots: BTreeMap<PathBuf, PathBuf>,
}

impl ToolCatalog {
    /// Builds the catalogue: describes every declared tool, and compiles its sandbox plan.
    pub async fn new(
        manifest: &Manifest,
        boxes: SandboxSettings<'_>,
        own: KernelToolSet,
        engine: &Engine,
        runner: &dyn ToolRunner,
    ) -> Self {
        let workdir = boxes.workdir;
        let plans = SandboxPlans::new(manifest, boxes);
        let mut tools = BTreeMap::new();
        for spec in &manifest.tools {
            let skill = spec
                .skill_ref
                .as_deref()
                .filter(|_| spec.composite)
                .and_then(|name| manifest.skill(name));
            let known = if skill.is_some() || spec.mcp_source.is_some() {
                ToolDescription::default()
            } else {
                // silent-ok: the first call reports what is wrong with its executor
                runner.describe_tool(&spec.name).await.unwrap_or_default()
            };
            let closed = place::hidden_roots(engine, spec, &known, workdir);
            let sandbox = manifest.sandbox_of(spec).map(|sandbox| sandbox.name.clone());
            let mut entry = CatalogEntry::new(spec.clone(), &plans.plan_hiding(sandbox, &closed));
            entry.closed = closed;
            if known.category == Some("memory") {
                entry.names = memory_names(manifest, &spec.name);
            }
            entry.skill = skill.map(|skill| Arc::new(skill.clone()));
            tools.insert(Arc::clone(&entry.name), Arc::new(entry));
        }
        let output_read = (!tools.contains_key(own.output_read.name.as_str())).then(|| {
            let sandbox = manifest.sandbox.as_ref().map(|sandbox| sandbox.name.clone());
            let plan = plans.plan_hiding(sandbox, &HiddenRoots::default());
            let mut entry = CatalogEntry::new(own.output_read, &plan);
            entry.reads_output = true;
            Arc::new(entry)
        });
        let sampling = (!tools.contains_key(own.sampling.name.as_str())).then(|| {
            let plan = plans.plan_hiding(None, &HiddenRoots::default());
            let mut entry = CatalogEntry::new(own.sampling, &plan);
            entry.samples = true;
            Arc::new(entry)
        });
        let team = own
            .team
            .into_iter()
            .filter(|spec| manifest.swarm.is_some() && manifest.tool(&spec.name).is_none());
        let team = team.map(|spec| {
            let sandbox = manifest.sandbox.as_ref().map(|sandbox| sandbox.name.clone());
            let plan = plans.plan_hiding(sandbox, &HiddenRoots::default());
            let mut entry = CatalogEntry::new(spec, &plan);
            entry.of_team = true;
            entry.timeout_ms = own.team_timeout_ms;
            Arc::new(entry)
        });
        let team = team.collect();
        let skills = skills::skill_entries(manifest, &plans);
        let named = |sandbox: &Sandbox| (sandbox.name.clone(), sandbox.clone());
        Self {
            tools,
            taken: RwLock::default(),
            output_read,
            sampling,
            team,
            skills,
            sandboxes: manifest.sandboxes().map(named).collect(),
            plans,
            roots: place::resolve_roots(engine.all_roots(workdir).into_iter().chain([workdir.to_owned()])),
        }
    }

    /// Returns the built-in that reads the omitted part of a shortened result.
    pub const fn output_read(&self) -> Option<&Arc<CatalogEntry>> {
        self.output_read.as_ref()
    }

    /// Returns the kernel's own tool with this name. Whether a call may use it is for [`crate::call::KernelTools::offers_tool`].
    pub fn kernel_tool(&self, name: &str) -> Option<Arc<CatalogEntry>> {
        let own = self.output_read.iter().chain(&self.sampling).chain(&self.team);
        own.into_iter().find(|entry| *entry.name == *name).cloned()
    }

    /// Returns the swarm's tool with this name.
    pub fn of_team(&self, name: &str) -> Option<Arc<CatalogEntry>> {
        self.team.iter().find(|entry| *entry.name == *name).cloned()
    }

    /// Returns the tool that invokes a skill by this name.
    pub fn of_skill(&self, name: &str) -> Option<Arc<CatalogEntry>> {
        self.skills.iter().find(|entry| *entry.name == *name).cloned()
    }

    /// Returns the tool with its plan narrowed to this sandbox (R15); `None`: the sandbox does not exist.
    ///
    /// # Errors
    /// The reason why the tool can't run in the sandbox.
    pub fn narrow_to_sandbox(
        &self,
        tool: &Arc<CatalogEntry>,
        name: &str,
    ) -> Option<Result<Arc<CatalogEntry>, String>> {
        let inner = self.sandboxes.get(name)?;
        let own = tool.plan.name().and_then(|own| self.sandboxes.get(own));
        if own.is_some_and(|own| own.name == inner.name) {
            return Some(Ok(Arc::clone(tool)));
        }
        let refuse = |why: &str| Some(Err(format!("it can't run in the sandbox `{name}`: {why}")));
        if tool.spec.mcp_source.is_some() {
            return refuse("its MCP server runs in a sandbox of its own already");
        }
        if tool.skill.is_some() {
            return refuse("each call of a composite tool runs in the sandbox of the called tool");
        }
        let plan = &self.plans.plan_hiding(Some(name.to_owned()), &tool.closed);
        let narrower = own.is_some_and(|outer| {
            narrow::sandbox_within(inner, outer) && narrow::limits_within(plan.limits(), tool.plan.limits())
        });
        if !narrower {
            return refuse("it grants more than the tool's own, and `context.sandbox` may only narrow");
        }
        Some(Ok(Arc::new(CatalogEntry {
            described: tool.described.clone(),
            closed: tool.closed.clone(),
            timeout_ms: tool.timeout_ms.min(plan.limits().timeout_ms),
            looked_at: AtomicBool::new(tool.looked_at.load(Ordering::Relaxed)),
            ..CatalogEntry::new(tool.spec.clone(), plan)
        })))
    }

    /// Returns the tools that a declared tool offers: itself, or every tool of its server. The server is asked once.
    ///
    /// # Errors
    /// The server can't be reached, or two of its tools would have the same name.
    pub async fn offered_entries(
        &self,
        entry: &Arc<CatalogEntry>,
        runner: &dyn ToolRunner,
    ) -> Result<Vec<Arc<CatalogEntry>>, CallError> {
        if !entry.may_stand_for_others() {
            return Ok(vec![Arc::clone(entry)]);
        }
        let found = entry
            .stands_for
            .get_or_try_init(|| async {
                let names = runner.takes_over(&entry.name).await;
                let Some(names) = names.map_err(|error| entry.unavailable_error(&error))? else {
                    return Ok(vec![Arc::new(CatalogEntry::new(entry.spec.clone(), &entry.plan))]);
                };
                Ok::<_, CallError>(self.register_names(entry, names))
            })
            .await?;
        // A tool that represents only itself must not hold a reference to itself.
        Ok(found
            .iter()
            .map(|found| {
                if found.name == entry.name {
                    Arc::clone(entry)
                } else {
                    Arc::clone(found)
                }
            })
            .collect())
    }

    /// Adds a server's tools, without those whose name is already used.
    fn register_names(&self, entry: &Arc<CatalogEntry>, names: Vec<String>) -> Vec<Arc<CatalogEntry>> {
        let mut taken = self.taken.write().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<Arc<CatalogEntry>> = Vec::new();
        for name in names {
            let known = self.tools.contains_key(name.as_str())
                || taken.contains_key(name.as_str())
                || self.output_read.as_ref().is_some_and(|own| *own.name == *name)
                || found.iter().any(|other| *other.name == *name);
            if known {
                tracing::warn!(
                    target: crate::OPERATOR,
                    tool = %entry.name,
                    "another tool is called `{name}` already; the one of this server is left out. Name it in the manifest, with `mcp_source.tool_name`"
                );
                continue;
            }
            let spec = Tool {
                name,
                description: None,
                ..entry.spec.clone()
            };
            let mut one = CatalogEntry::new(spec, &entry.plan);
            one.from = Some(Arc::clone(&entry.name));
            found.push(Arc::new(one));
        }
        taken.extend(found.iter().map(|one| (Arc::clone(&one.name), Arc::clone(one))));
        found
    }

    /// Asks the server of the declared tool to which this name belongs, unless it was asked before.
    ///
    /// # Errors
    /// The errors of [`ToolCatalog::offered_entries`].
    pub async fn prepare_tool(&self, name: &str, runner: &dyn ToolRunner) -> Result<(), CallError> {
        for entry in self.tools.values().filter(|entry| entry.may_stand_for_others()) {
            if *entry.name == *name || entry.is_prefix_of(name) {
                let _known = self.offered_entries(entry, runner).await?;
            }
        }
        Ok(())
    }

    /// Returns a tool's time limit in milliseconds by name, even if its server has not listed it yet.
    pub fn timeout_ms(&self, name: &str) -> Option<u64> {
        let declared = || {
            self.tools
                .values()
                .find(|entry| entry.is_prefix_of(name))
                .cloned()
        };
        self.get(name).or_else(declared).map(|entry| entry.timeout_ms)
    }

    /// Returns the tool that can be called by this name.
    pub fn get(&self, name: &str) -> Option<Arc<CatalogEntry>> {
        let declared = self.tools.get(name).filter(|entry| !entry.stands_for_others());
        declared.cloned().or_else(|| {
            let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
            taken.get(name).cloned()
        })
    }

    /// Returns every declared tool.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CatalogEntry>> {
        self.tools.values()
    }

    /// Returns the error for an unknown tool name.
    pub fn unknown_tool(&self, name: &str) -> CallError {
        let near = self
            .tools
            .keys()
            .map(|known| (edit_distance(name, known), known))
            .min()
            .filter(|(far, _)| *far <= 2);
        let hint = near
            .map(|(_, known)| format!(" (did you mean `{known}`?)"))
            .unwrap_or_default();
        CallError::UnknownTool {
            tool: name.chars().take(64).collect(),
            hint,
        }
    }
}

/// Returns the Levenshtein distance for "did you mean" hints. Long names count as distant.
fn edit_distance(left: &str, right: &str) -> usize {
    if left.len() > 64 {
        return usize::MAX;
    }
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = i;
        let mut before = i + 1;
        for (cell, b) in row.iter_mut().skip(1).zip(&right) {
            let above = *cell;
            let cost = diagonal + usize::from(a != *b);
            before = cost.min(above + 1).min(before + 1);
            diagonal = above;
            *cell = before;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::edit_distance;

    #[test]
    fn distance_counts_edits() {
        assert_eq!(edit_distance("shel", "shell"), 1);
        assert_eq!(edit_distance("shell", "shell"), 0);
        assert_eq!(edit_distance("ab", "ba"), 2);
        assert_eq!(edit_distance("", "abc"), 3);
    }
}
