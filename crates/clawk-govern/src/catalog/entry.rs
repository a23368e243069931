//! One tool: the manifest's declaration, completed by its executor's description, and the validation of arguments and results.

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
use super::convert::{ConvertedArguments, convert_arguments};
use super::fault::{bound_fault, one_line};
use super::served_schema::ServedSchema;
use crate::call::ToolRunner;
use crate::error::{ArgumentFault, CallError};
use crate::ports::{Executor, RunError, RunOutcome, ToolDescription, ToolOffer};
use crate::stop::Level;

/// Largest number of faults that are listed for one call's arguments.
const MAX_FAULTS: usize = 16;

/// One tool.
#[derive(Debug)]
pub struct CatalogEntry {
    /// Its name.
    pub name: Arc<str>,
    /// Its declaration.
    pub spec: Tool,
    /// Its sandbox plan.
    pub plan: Arc<Plan>,
    /// The smaller of the tool's and the sandbox's `timeout_ms`, in milliseconds.
    pub timeout_ms: u64,
    /// Paths that rules deny to the tool, removed from its plan.
    pub(super) closed: HiddenRoots,
    /// The skill that a composite tool runs.
    pub skill: Option<Arc<Skill>>,
    /// The skill whose instructions a call returns.
    pub joins: Option<Arc<Skill>>,
    /// It is `output-read`, which the kernel runs itself.
    pub reads_output: bool,
    /// It is a tool of the swarm, which the kernel runs itself.
    pub of_team: bool,
    /// It is `mcp-sampling`, which only servers call.
    pub samples: bool,
    /// An argument that names an object of this agent, and the possible names.
    pub(super) names: Option<(&'static str, String)>,
    /// The declared tool whose server provides this tool, if the manifest does not name it directly.
    pub from: Option<Arc<str>>,
    /// The tools of its server that it represents, once they are known.
    pub(super) stands_for: OnceCell<Vec<Arc<CatalogEntry>>>,
    pub(super) described: OnceCell<Arc<DescribedTool>>,
    pub(super) looked_at: AtomicBool,
}

/// A tool with its full description: the manifest's values first, the executor's for what the manifest does not set.
#[derive(Debug)]
pub struct DescribedTool {
    /// The text for models.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    validator: jsonschema::Validator,
    output: Option<(Value, jsonschema::Validator)>,
    /// Hints about its effects that count.
    pub annotations: Map<String, Value>,
    /// Labels, the category among them.
    pub labels: BTreeMap<String, String>,
    /// What runs it.
    pub executor: Executor,
    /// The executor's category, regardless of the manifest's label.
    pub own_category: Option<&'static str>,
}

impl DescribedTool {
    fn has_hint(&self, name: &str) -> bool {
        self.annotations.get(name).and_then(Value::as_bool) == Some(true)
    }

    /// Returns whether it has no side effects (R13).
    pub fn read_only(&self) -> bool {
        self.has_hint("readOnlyHint")
    }

    /// Returns the lowest emergency-stop level that blocks this tool.
    pub fn stopped_by(&self) -> Level {
        // A command line can reach any host.
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

    /// Returns whether it has no side effects and reaches nothing outside this machine. Decision and outcome may then share one
    /// commit.
    pub fn is_pure(&self) -> bool {
        self.read_only() && !self.has_hint("openWorldHint")
    }

    /// Returns whether it may be run again after a failure.
    pub fn is_idempotent(&self) -> bool {
        self.has_hint("idempotentHint")
    }

    /// Returns whether it is declared to reach the network.
    pub fn reaches_network(&self) -> bool {
        self.has_hint("openWorldHint") || self.labels.get("category").is_some_and(|c| c == "network")
    }

    fn category(&self) -> Option<&str> {
        self.labels.get("category").map(String::as_str)
    }

    /// Returns whether it may reach the network: declared, or not excluded.
    pub fn may_reach_network(&self) -> bool {
        let closed = self.annotations.get("openWorldHint").and_then(Value::as_bool) == Some(false);
        match self.category() {
            Some("shell") | None => !closed,
            Some(_) => self.reaches_network(),
        }
    }

    /// Returns whether it may use files: by its category, or because it has none.
    pub fn may_touch_files(&self) -> bool {
        self.category()
            .is_none_or(|category| category == "filesystem" || category == "shell")
    }

    /// Returns whether it uses only files that its arguments name.
    pub fn names_its_files(&self) -> bool {
        self.category() == Some("filesystem")
    }

    /// Returns the JSON Schema of the result.
    pub fn output_schema(&self) -> Option<&Value> {
        self.output.as_ref().map(|(schema, _)| schema)
    }

    /// Validates the result. If it does not match the tool's `output_schema`, the result becomes an error that begins with the
    /// fault. The structured result or the text as JSON is validated, whichever matches; a text that is not JSON counts as a
    /// string.
    pub fn enforce_output_schema(&self, mut ran: RunOutcome) -> RunOutcome {
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

    /// Converts a model's arguments to the schema's types, if they do not match and their meaning is clear; `None`: they stay
    /// unchanged.
    pub fn convert_arguments(&self, arguments: &Map<String, Value>) -> Option<ConvertedArguments> {
        convert_arguments(&self.validator, arguments)
    }

    /// Validates the arguments and lists every fault.
    pub fn check_arguments(&self, tool: &str, arguments: &Value) -> Result<(), CallError> {
        if self.validator.is_valid(arguments) {
            return Ok(());
        }
        let faults = self
            .validator
            .iter_errors(arguments)
            .take(MAX_FAULTS)
            .map(|fault| ArgumentFault {
                path: fault.instance_path().to_string(),
                message: bound_fault(&fault.to_string()),
            })
            .collect();
        Err(CallError::InvalidArguments {
            tool: tool.to_owned(),
            faults,
        })
    }
}

/// Removes known secrets from a server's description of its tools, which goes to models and into the record.
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

/// Returns the names that the memory built-ins accept, so that the model learns them from the schema and not from a refusal.
pub(super) fn memory_names(manifest: &Manifest, tool: &str) -> Option<(&'static str, String)> {
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

/// Adds the names to an argument's description, unless the schema already lists the values.
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
    // A replay uses the recorded description, which already has the names.
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
    /// Returns whether the tool may represent others: its source has no tool name, and no schema says which tool is meant.
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

    /// Returns whether the name may belong to a tool that this one represents.
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

    /// Returns the tool's full description. The executor is asked at the first use. A failure is not cached.
    pub async fn describe_once(
        &self,
        runner: &dyn ToolRunner,
        scanner: impl FnOnce() -> Scanner,
    ) -> Result<Arc<DescribedTool>, CallError> {
        let described = self
            .described
            .get_or_try_init(|| self.describe_tool(runner, scanner))
            .await?;
        Ok(Arc::clone(described))
    }

    /// Returns whether this is the first request.
    pub fn first_look(&self) -> bool {
        !self.looked_at.load(Ordering::Relaxed) && !self.looked_at.swap(true, Ordering::Relaxed)
    }

    /// Called if the description could not be recorded, so that it is recorded again.
    pub fn look_again(&self) {
        self.looked_at.store(false, Ordering::Relaxed);
    }

    async fn describe_tool(
        &self,
        runner: &dyn ToolRunner,
        scanner: impl FnOnce() -> Scanner,
    ) -> Result<Arc<DescribedTool>, CallError> {
        let complete = self.spec.description.is_some() && self.spec.input_schema.is_some();
        // An MCP tool that the manifest describes completely needs no server before its first call.
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
                .describe_tool(&self.name)
                .await
                .map_err(|error| self.unavailable_error(&error))?
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
            // A built-in's own schema is used if the manifest's only says "an object" (R54).
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

    /// Returns the arguments' schema as models see it, and its validator. A server's schema may have faults; the manifest's may
    /// not.
    fn of_arguments(&self, schema: Value) -> Result<(Value, jsonschema::Validator), CallError> {
        let of_manifest = self
            .spec
            .input_schema
            .as_ref()
            .is_some_and(|own| !says_nothing(own));
        if self.spec.mcp_source.is_none() || of_manifest {
            let validator = self.compile_schema(&schema, "input_schema")?;
            return Ok((schema, validator));
        }
        let read = self.accept_schema(ServedSchema::of_arguments(&schema), "input_schema")?;
        Ok((read.shown, read.validator))
    }

    /// Returns the result's schema, the manifest's or the executor's, and its validator.
    fn of_result(&self, known: Option<Value>) -> Result<Option<(Value, jsonschema::Validator)>, CallError> {
        let own = self.spec.output_schema.clone();
        let of_server = own.is_none() && self.spec.mcp_source.is_some();
        let Some(schema) = own.or(known) else {
            return Ok(None);
        };
        let validator = if of_server {
            self.accept_schema(ServedSchema::of_result(&schema), "output_schema")?
                .validator
        } else {
            self.compile_schema(&schema, "output_schema")?
        };
        Ok(Some((schema, validator)))
    }

    fn compile_schema(&self, schema: &Value, name: &str) -> Result<jsonschema::Validator, CallError> {
        compile_validator(schema).map_err(|fault| CallError::Unavailable {
            tool: self.name.to_string(),
            reason: format!("its {name} is not a valid JSON Schema: {fault}"),
        })
    }

    /// Returns a server's schema. Logs which parts are not checked.
    fn accept_schema(
        &self,
        read: Result<ServedSchema, String>,
        name: &str,
    ) -> Result<ServedSchema, CallError> {
        let read = read.map_err(|fault| CallError::Unavailable {
            tool: self.name.to_string(),
            reason: format!("its {name} can't be used: {fault}"),
        })?;
        for note in &read.notes {
            tracing::warn!(target: crate::OPERATOR, "tool `{}`: the server's {name} is odd, {note}", self.name);
        }
        Ok(read)
    }

    /// Returns the executor. For the kernel's own tools no executor is asked.
    fn executor(&self, known: &ToolDescription) -> Executor {
        let of_kernel = self.reads_output || self.of_team || self.joins.is_some() || self.samples;
        match (known.executor, &self.spec.mcp_source) {
            (Executor::Unrecorded, Some(_)) if known.description.is_empty() => Executor::Mcp,
            (Executor::Unrecorded, _) if of_kernel || self.skill.is_some() => Executor::Builtin,
            (executor, _) => executor,
        }
    }

    pub(super) fn unavailable_error(&self, error: &RunError) -> CallError {
        match error {
            RunError::Sandbox(refusal) => CallError::Sandbox(refusal.clone()),
            other => CallError::Unavailable {
                tool: self.name.to_string(),
                reason: other.to_string(),
            },
        }
    }

    /// Returns the tool as it is offered to a model.
    pub fn tool_offer(&self, described: &DescribedTool) -> ToolOffer {
        ToolOffer {
            name: self.name.to_string(),
            description: described.description.clone(),
            input_schema: described.input_schema.clone(),
        }
    }
}

/// Returns whether a schema only says that its value is an object.
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

/// Compiles a schema, with regular expressions that can't backtrack because schemas also come from MCP servers. References to other
/// documents are not followed.
pub fn compile_validator(schema: &Value) -> Result<jsonschema::Validator, String> {
    jsonschema::options()
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .build(schema)
        .map_err(|fault| fault.to_string())
}
