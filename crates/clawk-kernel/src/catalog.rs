//! The tools of this agent: what the manifest says of each, completed by what its executor knows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawk_manifest::model::{Manifest, Skill, Tool};
use clawk_policy::{Closed, Engine};
use clawk_sandbox::Plan;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use crate::agent::Options;
use crate::error::{ArgumentFault, CallError};
use crate::place;
use crate::ports::{Description, RunError, ToolOffer, ToolRunner};

/// Faults listed of one call's arguments; the rest is not told.
const MAX_FAULTS: usize = 16;

/// One tool.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: Arc<str>,
    pub(crate) spec: Tool,
    pub(crate) plan: Arc<Plan>,
    /// The lesser of the tool's `timeout_ms` and the sandbox's, milliseconds.
    pub(crate) timeout_ms: u64,
    /// The skill that a composite tool runs.
    pub(crate) skill: Option<Arc<Skill>>,
    described: OnceCell<Arc<Described>>,
    looked_at: AtomicBool,
}

/// A tool with everything known: from the manifest first, from its executor where the manifest is silent.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) description: String,
    pub(crate) input_schema: Value,
    validator: jsonschema::Validator,
    pub(crate) annotations: Map<String, Value>,
    pub(crate) labels: BTreeMap<String, String>,
}

impl Described {
    fn hint(&self, name: &str) -> bool {
        self.annotations.get(name).and_then(Value::as_bool) == Some(true)
    }

    /// Without side effects (R13).
    pub(crate) fn read_only(&self) -> bool {
        self.hint("readOnlyHint")
    }

    /// Without side effects and without reach outside this machine: decision and outcome may share one commit.
    pub(crate) fn pure(&self) -> bool {
        self.read_only() && !self.hint("openWorldHint")
    }

    /// May be run again after a failure.
    pub(crate) fn idempotent(&self) -> bool {
        self.hint("idempotentHint")
    }

    /// Reaches the network, as far as is declared.
    pub(crate) fn reaches_network(&self) -> bool {
        self.hint("openWorldHint") || self.labels.get("category").is_some_and(|c| c == "network")
    }

    /// Touches files, as far as is declared.
    pub(crate) fn touches_files(&self) -> bool {
        self.labels
            .get("category")
            .is_some_and(|c| c == "filesystem" || c == "shell")
    }

    /// Every fault of the arguments.
    pub(crate) fn check(&self, tool: &str, arguments: &Value) -> Result<(), CallError> {
        if self.validator.is_valid(arguments) {
            return Ok(());
        }
        let faults = self
            .validator
            .iter_errors(arguments)
            .take(MAX_FAULTS)
            .map(|fault| ArgumentFault {
                path: fault.instance_path().to_string(),
                message: fault.to_string(),
            })
            .collect();
        Err(CallError::InvalidArguments {
            tool: tool.to_owned(),
            faults,
        })
    }
}

impl Entry {
    /// Everything known of the tool; asks its executor once, on first need. A failure is not kept.
    pub(crate) async fn described(&self, runner: &dyn ToolRunner) -> Result<Arc<Described>, CallError> {
        let described = self.described.get_or_try_init(|| self.describe(runner)).await?;
        Ok(Arc::clone(described))
    }

    /// Whether nobody asked before.
    pub(crate) fn first_look(&self) -> bool {
        !self.looked_at.load(Ordering::Relaxed) && !self.looked_at.swap(true, Ordering::Relaxed)
    }

    /// The record did not take what was seen.
    pub(crate) fn look_again(&self) {
        self.looked_at.store(false, Ordering::Relaxed);
    }

    async fn describe(&self, runner: &dyn ToolRunner) -> Result<Arc<Described>, CallError> {
        let complete = self.spec.description.is_some() && self.spec.input_schema.is_some();
        // A complete MCP tool needs no server before its first call.
        let known = if self.skill.is_some() || (complete && self.spec.mcp_source.is_some()) {
            crate::ports::Description::default()
        } else {
            runner
                .describe(&self.name)
                .await
                .map_err(|error| self.unavailable(&error))?
        };
        let mut annotations = known.trusted_annotations;
        annotations.extend(self.spec.annotations.clone());
        let mut labels = self.spec.labels.clone();
        if let Some(category) = known.category {
            labels
                .entry("category".to_owned())
                .or_insert_with(|| category.to_owned());
        }
        let input_schema = match (&self.spec.input_schema, &self.skill) {
            (Some(schema), _) => schema.clone(),
            (None, Some(skill)) => skill
                .input_schema
                .clone()
                .unwrap_or_else(|| json!({"type": "object"})),
            (None, None) if known.input_schema.is_object() => known.input_schema,
            (None, None) => json!({"type": "object"}),
        };
        let validator = validator(&input_schema).map_err(|fault| CallError::Unavailable {
            tool: self.name.to_string(),
            reason: format!("its input_schema is no valid JSON Schema: {fault}"),
        })?;
        let description = self
            .spec
            .description
            .clone()
            .or_else(|| self.skill.as_ref().map(|skill| skill.description.clone()))
            .unwrap_or(known.description);
        Ok(Arc::new(Described {
            description,
            input_schema,
            validator,
            annotations,
            labels,
        }))
    }

    fn unavailable(&self, error: &RunError) -> CallError {
        match error {
            RunError::Sandbox(refusal) => CallError::Sandbox(refusal.clone()),
            other => CallError::Unavailable {
                tool: self.name.to_string(),
                reason: other.to_string(),
            },
        }
    }

    /// As a model is offered it.
    pub(crate) fn offer(&self, described: &Described) -> ToolOffer {
        ToolOffer {
            name: self.name.to_string(),
            description: described.description.clone(),
            input_schema: described.input_schema.clone(),
        }
    }
}

/// The manifest's plan, less what rules close to a tool; tools to which the same is closed share one.
struct Plans<'a> {
    declared: Plan,
    options: &'a Options,
    made: BTreeMap<Closed, Arc<Plan>>,
}

impl<'a> Plans<'a> {
    fn new(manifest: &Manifest, options: &'a Options) -> Self {
        Self {
            declared: Plan::compile(manifest.sandbox.as_ref(), &options.sandbox),
            options,
            made: BTreeMap::new(),
        }
    }

    fn without(&mut self, closed: Closed) -> Arc<Plan> {
        let Self {
            declared,
            options,
            made,
        } = self;
        let make = |closed: &Closed| {
            let plan = declared.clone().denying(&closed.denied, &closed.open);
            Arc::new(plan.keeping(&options.own, &options.workdir))
        };
        if let Some(plan) = made.get(&closed) {
            return Arc::clone(plan);
        }
        let plan = make(&closed);
        made.insert(closed, Arc::clone(&plan));
        plan
    }
}

/// All tools by name.
#[derive(Debug)]
pub(crate) struct Catalog {
    tools: BTreeMap<Arc<str>, Arc<Entry>>,
    /// The manifest's one plan; `context.sandbox` may name it.
    pub(crate) sandbox_name: Option<String>,
    /// The roots of all rules and where they led when the agent started.
    pub(crate) roots: BTreeMap<PathBuf, PathBuf>,
}

impl Catalog {
    pub(crate) async fn new(
        manifest: &Manifest,
        options: &Options,
        engine: &Engine,
        runner: &dyn ToolRunner,
    ) -> Self {
        let workdir = &options.workdir;
        let mut plans = Plans::new(manifest, options);
        let mut tools = BTreeMap::new();
        for spec in &manifest.tools {
            let name: Arc<str> = spec.name.as_str().into();
            let skill = spec
                .skill_ref
                .as_deref()
                .filter(|_| spec.composite)
                .and_then(|name| manifest.skill(name));
            let known = if skill.is_some() || spec.mcp_source.is_some() {
                Description::default()
            } else {
                // silent-ok: the first call says what is wrong with its executor
                runner.describe(&spec.name).await.unwrap_or_default()
            };
            let plan = plans.without(place::closed(engine, spec, &known, workdir));
            let limit = plan.limits().timeout_ms;
            let entry = Entry {
                name: Arc::clone(&name),
                spec: spec.clone(),
                plan,
                timeout_ms: spec.timeout_ms.map_or(limit, |own| own.min(limit)),
                skill: skill.map(|skill| Arc::new(skill.clone())),
                described: OnceCell::new(),
                looked_at: AtomicBool::new(false),
            };
            tools.insert(name, Arc::new(entry));
        }
        Self {
            tools,
            roots: place::roots(engine.all_roots(workdir).into_iter().chain([workdir.clone()])),
            sandbox_name: manifest.sandbox.as_ref().map(|sandbox| sandbox.name.clone()),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        self.tools.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.tools.values()
    }

    /// The refusal of a name that is no tool.
    pub(crate) fn unknown(&self, name: &str) -> CallError {
        let near = self
            .tools
            .keys()
            .map(|known| (distance(name, known), known))
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

/// A schema compiled with regular expressions that can't backtrack: schemas come from MCP servers, too. References to
/// other documents are not followed.
pub(crate) fn validator(schema: &Value) -> Result<jsonschema::Validator, String> {
    jsonschema::options()
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .build(schema)
        .map_err(|fault| fault.to_string())
}

/// Levenshtein distance, for hints; long names count as far.
fn distance(left: &str, right: &str) -> usize {
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
    use super::distance;

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("shel", "shell"), 1);
        assert_eq!(distance("shell", "shell"), 0);
        assert_eq!(distance("ab", "ba"), 2);
        assert_eq!(distance("", "abc"), 3);
    }
}
