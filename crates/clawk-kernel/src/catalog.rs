//! The tools of this agent: what the manifest says of each, completed by what its executor knows.
//!
//! Long because what a tool is comes from six sources, and this is the one place that joins them.

mod fault;
mod plans;
mod skills;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use clawk_manifest::model::{Manifest, Sandbox, Skill, Tool};
use clawk_plan::Plan;
use clawk_policy::leak::Scanner;
use clawk_policy::{Closed, Engine};
use clawk_proto::content::ContentBlock;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use fault::{bounded, one_line};
use plans::Plans;

use crate::error::{ArgumentFault, CallError};
use crate::narrow;
use crate::options::Options;
use crate::output;
use crate::place;
use crate::ports::{Description, RunError, RunOutcome, ToolOffer, ToolRunner};
use crate::sampling;
use crate::team;

/// Faults listed of one call's arguments; the rest is not told.
const MAX_FAULTS: usize = 16;

/// The recorded mechanism of a call that a dry run predicted and did not run.
pub const PREDICTED: &str = "predicted";

/// One tool.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: Arc<str>,
    pub(crate) spec: Tool,
    pub(crate) plan: Arc<Plan>,
    /// The lesser of the tool's `timeout_ms` and the sandbox's, milliseconds.
    pub(crate) timeout_ms: u64,
    /// What rules close to it, taken out of its plan.
    closed: Closed,
    /// The skill that a composite tool runs.
    pub(crate) skill: Option<Arc<Skill>>,
    /// The skill whose instructions a call of it gives.
    pub(crate) joins: Option<Arc<Skill>>,
    /// It is `output-read`, which the kernel runs itself.
    pub(crate) reads_output: bool,
    /// It is one of the swarm's, which the kernel runs itself.
    pub(crate) of_team: bool,
    /// It is `mcp-sampling`, which only servers ask for.
    pub(crate) samples: bool,
    /// An argument that names something of this agent, and what can be named.
    names: Option<(&'static str, String)>,
    /// The declared tool whose server serves it, where the manifest does not name it itself.
    pub(crate) from: Option<Arc<str>>,
    /// Whether it stands for all tools of its server, once that is known.
    stands_for: OnceCell<Vec<Arc<Entry>>>,
    described: OnceCell<Arc<Described>>,
    looked_at: AtomicBool,
}

/// A tool with everything known: from the manifest first, from its executor where the manifest is silent.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) description: String,
    pub(crate) input_schema: Value,
    validator: jsonschema::Validator,
    output: Option<(Value, jsonschema::Validator)>,
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

    fn category(&self) -> Option<&str> {
        self.labels.get("category").map(String::as_str)
    }

    /// It may reach the network: it says so, or nothing says that it does not.
    pub(crate) fn may_reach_network(&self) -> bool {
        let closed = self.annotations.get("openWorldHint").and_then(Value::as_bool) == Some(false);
        match self.category() {
            Some("shell") | None => !closed,
            Some(_) => self.reaches_network(),
        }
    }

    /// It may touch files: its category says so, or it has none.
    pub(crate) fn may_touch_files(&self) -> bool {
        self.category()
            .is_none_or(|category| category == "filesystem" || category == "shell")
    }

    /// It touches files where its arguments say, and nowhere else.
    pub(crate) fn names_its_files(&self) -> bool {
        self.category() == Some("filesystem")
    }

    /// JSON Schema of the result.
    pub(crate) fn output_schema(&self) -> Option<&Value> {
        self.output.as_ref().map(|(schema, _)| schema)
    }

    /// The result, and where it does not fit the tool's `output_schema`: that first, and as an error. What counts is the
    /// structured result or the text as JSON, whichever fits; a text that is no JSON counts as a string.
    pub(crate) fn fitting(&self, mut ran: RunOutcome) -> RunOutcome {
        let ran_indeed = !ran.is_error && !ran.obtained.mechanisms.iter().any(|how| how == PREDICTED);
        let Some((_, validator)) = self.output.as_ref().filter(|_| ran_indeed) else {
            return ran;
        };
        let texts: Vec<String> = ran.content.iter().map(ContentBlock::as_model_text).collect();
        let text = texts.join("\n");
        let json = serde_json::from_str::<Value>(&text).ok(); // silent-ok: prose is an ordinary result
        let mut said: Vec<Value> = ran.structured.iter().cloned().chain(json).collect();
        if said.is_empty() {
            said.push(Value::String(text));
        }
        if said.iter().any(|value| validator.is_valid(value)) {
            return ran;
        }
        let faults: Vec<String> = said
            .first()
            .map(|value| {
                validator
                    .iter_errors(value)
                    .take(MAX_FAULTS)
                    .map(|fault| one_line(&fault))
                    .collect()
            })
            .unwrap_or_default();
        let note = format!(
            "[the tool ran, and its result does not fit its `output_schema`: {}]",
            faults.join("; ")
        );
        ran.content.insert(0, ContentBlock::text(note));
        ran.is_error = true;
        ran
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
                message: bounded(&fault.to_string()),
            })
            .collect();
        Err(CallError::InvalidArguments {
            tool: tool.to_owned(),
            faults,
        })
    }
}

/// What a server says of its tools goes to models and into the record: without the values that are known here.
fn without_known(scanner: &Scanner, known: &mut Description) {
    if scanner.is_idle() {
        return;
    }
    if let Some((clean, _told)) = scanner.redact(&known.description) {
        known.description = clean;
    }
    for schema in [Some(&mut known.input_schema), known.output_schema.as_mut()]
        .into_iter()
        .flatten()
    {
        let _told = scanner.redact_json(schema);
    }
}

/// What the built-ins of memory can name: the model learns it from the schema, not from a refusal.
fn names(manifest: &Manifest, tool: &str) -> Option<(&'static str, String)> {
    let stores = manifest.memory.iter().flat_map(|memory| &memory.stores);
    let (argument, known): (_, Vec<&str>) = if tool == "context-write" {
        (
            "file",
            manifest
                .identity
                .context_files
                .keys()
                .map(String::as_str)
                .collect(),
        )
    } else {
        ("store", stores.map(|store| store.name.as_str()).collect())
    };
    (!known.is_empty()).then(|| (argument, format!("One of: {}", known.join(", "))))
}

/// Adds to what a schema says of an argument, unless it lists the values itself.
fn say_names(schema: &mut Value, argument: &str, names: &str) {
    let place = schema
        .get_mut("properties")
        .and_then(|properties| properties.get_mut(argument))
        .and_then(Value::as_object_mut);
    let Some(property) = place.filter(|known| !known.contains_key("enum") && !known.contains_key("const"))
    else {
        return;
    };
    let said = property.get("description").and_then(Value::as_str);
    let said = said.map_or_else(
        || names.to_owned(),
        |said| format!("{}. {names}", said.trim_end_matches('.')),
    );
    property.insert("description".to_owned(), Value::String(said));
}

impl Entry {
    /// A source without the name of a tool, and without a schema that would say which one is meant.
    fn may_stand_for_others(&self) -> bool {
        let source = self.spec.mcp_source.as_ref();
        source.is_some_and(|source| source.tool_name.is_none())
            && self.spec.input_schema.is_none()
            && self.skill.is_none()
            && self.from.is_none()
    }

    fn stands_for_others(&self) -> bool {
        let found = self.stands_for.get();
        found.is_some_and(|found| found.iter().all(|other| other.name != self.name))
    }

    /// The name may be that of a tool which this one stands for.
    fn is_prefix_of(&self, name: &str) -> bool {
        self.may_stand_for_others()
            && name
                .strip_prefix(&*self.name)
                .is_some_and(|rest| rest.starts_with('-'))
    }

    fn new(spec: Tool, plan: &Arc<Plan>) -> Self {
        let limit = plan.limits().timeout_ms;
        Self {
            name: spec.name.as_str().into(),
            plan: Arc::clone(plan),
            timeout_ms: spec.timeout_ms.map_or(limit, |own| own.min(limit)),
            closed: Closed::default(),
            skill: None,
            joins: None,
            reads_output: false,
            of_team: false,
            samples: false,
            names: None,
            from: None,
            stands_for: OnceCell::new(),
            described: OnceCell::new(),
            looked_at: AtomicBool::new(false),
            spec,
        }
    }

    /// Everything known of the tool; asks its executor once, on first need. A failure is not kept.
    pub(crate) async fn described(
        &self,
        runner: &dyn ToolRunner,
        scanner: impl FnOnce() -> Scanner,
    ) -> Result<Arc<Described>, CallError> {
        let described = self
            .described
            .get_or_try_init(|| self.describe(runner, scanner))
            .await?;
        Ok(Arc::clone(described))
    }

    /// Tells whether this is the first request.
    pub(crate) fn first_look(&self) -> bool {
        !self.looked_at.load(Ordering::Relaxed) && !self.looked_at.swap(true, Ordering::Relaxed)
    }

    /// The record did not take what was seen.
    pub(crate) fn look_again(&self) {
        self.looked_at.store(false, Ordering::Relaxed);
    }

    async fn describe(
        &self,
        runner: &dyn ToolRunner,
        scanner: impl FnOnce() -> Scanner,
    ) -> Result<Arc<Described>, CallError> {
        let complete = self.spec.description.is_some() && self.spec.input_schema.is_some();
        // A complete MCP tool needs no server before its first call.
        let mut known = if self.reads_output
            || self.of_team
            || self.joins.is_some()
            || self.samples
            || self.skill.is_some()
            || (complete && self.spec.mcp_source.is_some())
        {
            Description::default()
        } else {
            runner
                .describe(&self.name)
                .await
                .map_err(|error| self.unavailable(&error))?
        };
        without_known(&scanner(), &mut known);
        let mut annotations = known.trusted_annotations;
        annotations.extend(self.spec.annotations.clone());
        let mut labels = self.spec.labels.clone();
        if let Some(category) = known.category {
            labels
                .entry("category".to_owned())
                .or_insert_with(|| category.to_owned());
        }
        let mut input_schema = match (&self.spec.input_schema, &self.skill) {
            (Some(schema), _) => schema.clone(),
            (None, Some(skill)) => skill
                .input_schema
                .clone()
                .unwrap_or_else(|| json!({"type": "object"})),
            (None, None) if known.input_schema.is_object() => known.input_schema,
            (None, None) => json!({"type": "object"}),
        };
        if let Some((argument, names)) = &self.names {
            say_names(&mut input_schema, argument, names);
        }
        let compiled = |schema: &Value, name: &str| {
            validator(schema).map_err(|fault| CallError::Unavailable {
                tool: self.name.to_string(),
                reason: format!("its {name} is not a valid JSON Schema: {fault}"),
            })
        };
        let validator = compiled(&input_schema, "input_schema")?;
        let output = match self.spec.output_schema.clone().or(known.output_schema) {
            Some(schema) => Some((schema.clone(), compiled(&schema, "output_schema")?)),
            None => None,
        };
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
            output,
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

/// All tools by name.
#[derive(Debug)]
pub(crate) struct Catalog {
    tools: BTreeMap<Arc<str>, Arc<Entry>>,
    /// Tools of servers that a declared tool stands for, once the servers told of them.
    taken: RwLock<BTreeMap<Arc<str>, Arc<Entry>>>,
    /// Offered after a cut; absent where the manifest has a tool of this name.
    output_read: Option<Arc<Entry>>,
    /// `mcp-sampling`; absent where the manifest has a tool of the name.
    sampling: Option<Arc<Entry>>,
    /// `delegate`, `ask-peer`, `report`; absent where the manifest has a tool of the name, or no swarm.
    team: Vec<Arc<Entry>>,
    /// `skill-NAME` of each skill whose name no tool has.
    skills: Vec<Arc<Entry>>,
    /// Every declared sandbox; `context.sandbox` may name one.
    sandboxes: BTreeMap<String, Sandbox>,
    plans: Plans,
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
        let plans = Plans::new(manifest, options);
        let mut tools = BTreeMap::new();
        for spec in &manifest.tools {
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
            let closed = place::closed(engine, spec, &known, workdir);
            let sandbox = manifest.sandbox_of(spec).map(|sandbox| sandbox.name.clone());
            let mut entry = Entry::new(spec.clone(), &plans.without(sandbox, &closed));
            entry.closed = closed;
            if known.category == Some("memory") {
                entry.names = names(manifest, &spec.name);
            }
            entry.skill = skill.map(|skill| Arc::new(skill.clone()));
            tools.insert(Arc::clone(&entry.name), Arc::new(entry));
        }
        let output_read = (!tools.contains_key(output::NAME)).then(|| {
            let sandbox = manifest.sandbox.as_ref().map(|sandbox| sandbox.name.clone());
            let plan = plans.without(sandbox, &Closed::default());
            let mut entry = Entry::new(output::tool(), &plan);
            entry.reads_output = true;
            Arc::new(entry)
        });
        let sampling = (!tools.contains_key(sampling::NAME)).then(|| {
            let plan = plans.without(None, &Closed::default());
            let mut entry = Entry::new(sampling::tool(), &plan);
            entry.samples = true;
            Arc::new(entry)
        });
        let team = team::specs()
            .into_iter()
            .filter(|spec| manifest.swarm.is_some() && manifest.tool(&spec.name).is_none());
        let team = team.map(|spec| {
            let sandbox = manifest.sandbox.as_ref().map(|sandbox| sandbox.name.clone());
            let plan = plans.without(sandbox, &Closed::default());
            let mut entry = Entry::new(spec, &plan);
            entry.of_team = true;
            entry.timeout_ms = team::WAIT_MS;
            Arc::new(entry)
        });
        let team = team.collect();
        let skills = skills::entries(manifest, &plans);
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
            roots: place::roots(engine.all_roots(workdir).into_iter().chain([workdir.clone()])),
        }
    }

    /// The built-in that reads what a cut left out.
    pub(crate) const fn output_read(&self) -> Option<&Arc<Entry>> {
        self.output_read.as_ref()
    }

    /// What a server's question to a model is, for policies and the trace.
    pub(crate) const fn sampling(&self) -> Option<&Arc<Entry>> {
        self.sampling.as_ref()
    }

    /// The swarm's tool of this name.
    pub(crate) fn of_team(&self, name: &str) -> Option<Arc<Entry>> {
        self.team.iter().find(|entry| *entry.name == *name).cloned()
    }

    /// What invokes a skill by this name.
    pub(crate) fn of_skill(&self, name: &str) -> Option<Arc<Entry>> {
        self.skills.iter().find(|entry| *entry.name == *name).cloned()
    }

    /// The tool as it runs in this sandbox, which may only narrow (R15); `None`: there is no such sandbox.
    ///
    /// # Errors
    /// Why it can't run there.
    pub(crate) fn within(&self, tool: &Arc<Entry>, name: &str) -> Option<Result<Arc<Entry>, String>> {
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
        let plan = &self.plans.without(Some(name.to_owned()), &tool.closed);
        let narrower = own.is_some_and(|outer| {
            narrow::narrows(inner, outer) && narrow::within(plan.limits(), tool.plan.limits())
        });
        if !narrower {
            return refuse("it grants more than the tool's own, and `context.sandbox` may only narrow");
        }
        Some(Ok(Arc::new(Entry {
            described: tool.described.clone(),
            closed: tool.closed.clone(),
            timeout_ms: tool.timeout_ms.min(plan.limits().timeout_ms),
            looked_at: AtomicBool::new(tool.looked_at.load(Ordering::Relaxed)),
            ..Entry::new(tool.spec.clone(), plan)
        })))
    }

    /// What is offered for a declared tool: itself, or every tool of the server that it stands for. Asks the server once.
    ///
    /// # Errors
    /// The server can't be had, or two of its tools would have one name.
    pub(crate) async fn offered(
        &self,
        entry: &Arc<Entry>,
        runner: &dyn ToolRunner,
    ) -> Result<Vec<Arc<Entry>>, CallError> {
        if !entry.may_stand_for_others() {
            return Ok(vec![Arc::clone(entry)]);
        }
        let found = entry
            .stands_for
            .get_or_try_init(|| async {
                let names = runner.takes_over(&entry.name).await;
                let Some(names) = names.map_err(|error| entry.unavailable(&error))? else {
                    return Ok(vec![Arc::new(Entry::new(entry.spec.clone(), &entry.plan))]);
                };
                self.take(entry, names)
            })
            .await?;
        // A tool that stands for itself alone is not held by itself.
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

    fn take(&self, entry: &Arc<Entry>, names: Vec<String>) -> Result<Vec<Arc<Entry>>, CallError> {
        let mut taken = self.taken.write().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<Arc<Entry>> = Vec::new();
        for name in names {
            let known = self.tools.contains_key(name.as_str())
                || taken.contains_key(name.as_str())
                || self.output_read.as_ref().is_some_and(|own| *own.name == *name)
                || found.iter().any(|other| *other.name == *name);
            if known {
                return Err(CallError::Unavailable {
                    tool: entry.name.to_string(),
                    reason: format!(
                        "two tools would be called `{name}`; name this one in the manifest, with `mcp_source.tool_name`"
                    ),
                });
            }
            let spec = Tool {
                name,
                description: None,
                ..entry.spec.clone()
            };
            let mut one = Entry::new(spec, &entry.plan);
            one.from = Some(Arc::clone(&entry.name));
            found.push(Arc::new(one));
        }
        taken.extend(found.iter().map(|one| (Arc::clone(&one.name), Arc::clone(one))));
        Ok(found)
    }

    /// Asks the server of the declared tool to which this name belongs, if nobody did so far.
    ///
    /// # Errors
    /// As [`Catalog::offered`].
    pub(crate) async fn prepare(&self, name: &str, runner: &dyn ToolRunner) -> Result<(), CallError> {
        for entry in self.tools.values().filter(|entry| entry.may_stand_for_others()) {
            if *entry.name == *name || entry.is_prefix_of(name) {
                let _known = self.offered(entry, runner).await?;
            }
        }
        Ok(())
    }

    /// The time limit of a tool by its name, milliseconds, also where its server has not told of it yet.
    pub(crate) fn timeout_ms(&self, name: &str) -> Option<u64> {
        let declared = || {
            self.tools
                .values()
                .find(|entry| entry.is_prefix_of(name))
                .cloned()
        };
        self.get(name).or_else(declared).map(|entry| entry.timeout_ms)
    }

    /// A tool that can be called by this name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Entry>> {
        let declared = self.tools.get(name).filter(|entry| !entry.stands_for_others());
        declared.cloned().or_else(|| {
            let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
            taken.get(name).cloned()
        })
    }

    /// Every declared tool.
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
