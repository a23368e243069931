//! One tool: what the manifest says of it, completed by what its executor knows, and the check of a call's arguments and result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawk_manifest::model::{Manifest, Skill, Tool};
use clawk_plan::Plan;
use clawk_policy::HiddenRoots;
use clawk_policy::leak::Scanner;
use clawk_proto::content::ContentBlock;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use super::PREDICTED;
use super::convert::{ConvertedArguments, convert};
use super::fault::{bounded, one_line};
use super::served_schema::ServedSchema;
use crate::error::{ArgumentFault, CallError};
use crate::ports::{Executor, RunError, RunOutcome, ToolDescription, ToolOffer, ToolRunner};
use crate::stop::Level;

/// Faults listed of one call's arguments; the rest is not told.
const MAX_FAULTS: usize = 16;

/// One tool.
#[derive(Debug)]
pub(crate) struct CatalogEntry {
    pub(crate) name: Arc<str>,
    pub(crate) spec: Tool,
    pub(crate) plan: Arc<Plan>,
    /// The lesser of the tool's `timeout_ms` and the sandbox's, milliseconds.
    pub(crate) timeout_ms: u64,
    /// What rules close to it, taken out of its plan.
    pub(super) closed: HiddenRoots,
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
    pub(super) names: Option<(&'static str, String)>,
    /// The declared tool whose server serves it, where the manifest does not name it itself.
    pub(crate) from: Option<Arc<str>>,
    /// Whether it stands for all tools of its server, once that is known.
    pub(super) stands_for: OnceCell<Vec<Arc<CatalogEntry>>>,
    pub(super) described: OnceCell<Arc<DescribedTool>>,
    pub(super) looked_at: AtomicBool,
}

/// A tool with everything known: from the manifest first, from its executor where the manifest is silent.
#[derive(Debug)]
pub(crate) struct DescribedTool {
    pub(crate) description: String,
    pub(crate) input_schema: Value,
    validator: jsonschema::Validator,
    output: Option<(Value, jsonschema::Validator)>,
    pub(crate) annotations: Map<String, Value>,
    pub(crate) labels: BTreeMap<String, String>,
    /// What runs it.
    pub(crate) executor: Executor,
    /// The category that its executor gives it, whatever the manifest's label says.
    pub(crate) own_category: Option<&'static str>,
}

impl DescribedTool {
    fn hint(&self, name: &str) -> bool {
        self.annotations.get(name).and_then(Value::as_bool) == Some(true)
    }

    /// Without side effects (R13).
    pub(crate) fn read_only(&self) -> bool {
        self.hint("readOnlyHint")
    }

    /// The least stop that it does not run under.
    pub(crate) fn stopped_by(&self) -> Level {
        // Nobody knows where a command line reaches.
        let is_shell = self
            .labels
            .get("category")
            .is_some_and(|category| category == "shell");
        if self.reaches_network() || is_shell {
            Level::NoNetwork
        } else {
            Level::NoTools
        }
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

    /// A model's arguments as the schema wants them, where they do not fit and their meaning is plain; `None`: they stay as they are.
    pub(crate) fn convert(&self, arguments: &Map<String, Value>) -> Option<ConvertedArguments> {
        convert(&self.validator, arguments)
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
fn without_known(scanner: &Scanner, known: &mut ToolDescription) {
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
pub(super) fn names(manifest: &Manifest, tool: &str) -> Option<(&'static str, String)> {
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
    // A replay is told what the record has: the names are in it.
    if said.is_some_and(|said| said.ends_with(names)) {
        return;
    }
    let said = said.map_or_else(
        || names.to_owned(),
        |said| format!("{}. {names}", said.trim_end_matches('.')),
    );
    property.insert("description".to_owned(), Value::String(said));
}

impl CatalogEntry {
    /// A source without the name of a tool, and without a schema that would say which one is meant.
    pub(super) fn may_stand_for_others(&self) -> bool {
        let source = self.spec.mcp_source.as_ref();
        source.is_some_and(|source| source.tool_name.is_none())
            && self.spec.input_schema.is_none()
            && self.skill.is_none()
            && self.from.is_none()
    }

    pub(super) fn stands_for_others(&self) -> bool {
        let found = self.stands_for.get();
        found.is_some_and(|found| found.iter().all(|other| other.name != self.name))
    }

    /// The name may be that of a tool which this one stands for.
    pub(super) fn is_prefix_of(&self, name: &str) -> bool {
        self.may_stand_for_others()
            && name
                .strip_prefix(&*self.name)
                .is_some_and(|rest| rest.starts_with('-'))
    }

    pub(super) fn new(spec: Tool, plan: &Arc<Plan>) -> Self {
        let limit = plan.limits().timeout_ms;
        Self {
            name: spec.name.as_str().into(),
            plan: Arc::clone(plan),
            timeout_ms: spec.timeout_ms.map_or(limit, |own| own.min(limit)),
            closed: HiddenRoots::default(),
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
    ) -> Result<Arc<DescribedTool>, CallError> {
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
    ) -> Result<Arc<DescribedTool>, CallError> {
        let complete = self.spec.description.is_some() && self.spec.input_schema.is_some();
        // A complete MCP tool needs no server before its first call.
        let mut known = if self.reads_output
            || self.of_team
            || self.joins.is_some()
            || self.samples
            || self.skill.is_some()
            || (complete && self.spec.mcp_source.is_some())
        {
            ToolDescription::default()
        } else {
            runner
                .describe(&self.name)
                .await
                .map_err(|error| self.unavailable(&error))?
        };
        without_known(&scanner(), &mut known);
        let executor = self.executor(&known);
        let mut annotations = known.trusted_annotations;
        annotations.extend(self.spec.annotations.clone());
        let mut labels = self.spec.labels.clone();
        if let Some(category) = known.category {
            labels
                .entry("category".to_owned())
                .or_insert_with(|| category.to_owned());
        }
        let mut input_schema = match (&self.spec.input_schema, &self.skill) {
            // A built-in keeps its arguments where the manifest says only that there are some (R54).
            (Some(schema), _) if says_nothing(schema) && known.input_schema.get("properties").is_some() => {
                known.input_schema
            }
            (Some(schema), _) => schema.clone(),
            (None, Some(skill)) => skill
                .input_schema
                .clone()
                .unwrap_or_else(|| json!({"type": "object"})),
            (None, None) if known.input_schema.is_object() || self.spec.mcp_source.is_some() => {
                known.input_schema
            }
            (None, None) => json!({"type": "object"}),
        };
        if let Some((argument, names)) = &self.names {
            say_names(&mut input_schema, argument, names);
        }
        let (input_schema, validator) = self.of_arguments(input_schema)?;
        let output = self.of_result(known.output_schema)?;
        let description = self
            .spec
            .description
            .clone()
            .or_else(|| self.skill.as_ref().map(|skill| skill.description.clone()))
            .unwrap_or(known.description);
        Ok(Arc::new(DescribedTool {
            description,
            input_schema,
            validator,
            output,
            annotations,
            labels,
            executor,
            own_category: known.category,
        }))
    }

    /// The schema of the arguments as models are shown it, and what checks them. A server's own may be odd; the manifest's may not.
    fn of_arguments(&self, schema: Value) -> Result<(Value, jsonschema::Validator), CallError> {
        let of_manifest = self
            .spec
            .input_schema
            .as_ref()
            .is_some_and(|own| !says_nothing(own));
        if self.spec.mcp_source.is_none() || of_manifest {
            let validator = self.compiled(&schema, "input_schema")?;
            return Ok((schema, validator));
        }
        let read = self.served(ServedSchema::of_arguments(&schema), "input_schema")?;
        Ok((read.shown, read.validator))
    }

    /// The schema of the result, the manifest's or the executor's, and what checks it.
    fn of_result(&self, known: Option<Value>) -> Result<Option<(Value, jsonschema::Validator)>, CallError> {
        let own = self.spec.output_schema.clone();
        let of_server = own.is_none() && self.spec.mcp_source.is_some();
        let Some(schema) = own.or(known) else {
            return Ok(None);
        };
        let validator = if of_server {
            self.served(ServedSchema::of_result(&schema), "output_schema")?
                .validator
        } else {
            self.compiled(&schema, "output_schema")?
        };
        Ok(Some((schema, validator)))
    }

    fn compiled(&self, schema: &Value, name: &str) -> Result<jsonschema::Validator, CallError> {
        validator(schema).map_err(|fault| CallError::Unavailable {
            tool: self.name.to_string(),
            reason: format!("its {name} is not a valid JSON Schema: {fault}"),
        })
    }

    /// A server's schema; what is not checked of it is said.
    fn served(&self, read: Result<ServedSchema, String>, name: &str) -> Result<ServedSchema, CallError> {
        let read = read.map_err(|fault| CallError::Unavailable {
            tool: self.name.to_string(),
            reason: format!("its {name} can't be used: {fault}"),
        })?;
        for note in &read.notes {
            tracing::warn!(target: crate::OPERATOR, "tool `{}`: the server's {name} is odd, {note}", self.name);
        }
        Ok(read)
    }

    /// What runs it. Of what the kernel runs itself no executor is asked.
    fn executor(&self, known: &ToolDescription) -> Executor {
        let of_kernel = self.reads_output || self.of_team || self.joins.is_some() || self.samples;
        match (known.executor, &self.spec.mcp_source) {
            (Executor::Unrecorded, Some(_)) if known.description.is_empty() => Executor::Mcp,
            (Executor::Unrecorded, _) if of_kernel || self.skill.is_some() => Executor::Builtin,
            (executor, _) => executor,
        }
    }

    pub(super) fn unavailable(&self, error: &RunError) -> CallError {
        match error {
            RunError::Sandbox(refusal) => CallError::Sandbox(refusal.clone()),
            other => CallError::Unavailable {
                tool: self.name.to_string(),
                reason: other.to_string(),
            },
        }
    }

    /// As a model is offered it.
    pub(crate) fn offer(&self, described: &DescribedTool) -> ToolOffer {
        ToolOffer {
            name: self.name.to_string(),
            description: described.description.clone(),
            input_schema: described.input_schema.clone(),
        }
    }
}

/// Whether a schema says no more than that its value is an object.
fn says_nothing(schema: &Value) -> bool {
    let plain = ["type", "title", "description", "$schema", "properties"];
    let empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
    schema.as_object().is_some_and(|schema| {
        let known = |(name, value): (&String, &Value)| {
            plain.contains(&name.as_str())
                && (name != "properties" || empty(value))
                && (name != "type" || value == "object")
        };
        schema.iter().all(known)
    })
}

/// A schema compiled with regular expressions that can't backtrack: schemas come from MCP servers, too. References to
/// other documents are not followed.
pub(crate) fn validator(schema: &Value) -> Result<jsonschema::Validator, String> {
    jsonschema::options()
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .build(schema)
        .map_err(|fault| fault.to_string())
}
