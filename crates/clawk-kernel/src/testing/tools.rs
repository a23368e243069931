//! Tools that do as a test says, and count.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use clawk_plan::{ObtainedEnforcement, Plan, Request, SandboxRefusal};
use clawk_proto::RequestId;
use clawk_proto::content::ContentBlock;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::call::Permit;
use crate::place::{self, PathSearch};
use crate::ports::{
    BoxFuture, Executor, InspectedCall, ReachedConnections, ReconcileMethod, RunError, RunOutcome,
    ToolDescription, ToolRunner,
};
use crate::sheet::{ExecutorPreview, PreviewLine};
use crate::witness::GrantPrecondition;

/// What a tool does.
#[derive(Debug, Clone)]
pub enum Behaviour {
    /// Gives its arguments back as text.
    Echo,
    /// Runs for so long, milliseconds; ended at its deadline.
    Sleep(u64),
    /// Runs and says that it failed.
    Fail(String),
    /// Runs and says this.
    Say(String),
    /// Runs and shows a PNG picture, given as base64.
    Show(String),
    /// Fails in this way.
    Error(RunError),
    /// Fails so often, then echoes.
    Flaky(u32),
    /// Reaches this on the way, then does the other.
    Reach(ReachedConnections, Box<Behaviour>),
}

type Watching = dyn Fn(&RequestId, &str) + Send + Sync;
type Licensing = dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync;

/// Who is asked before every run whether it may begin.
#[derive(Default)]
struct License(Mutex<Option<Box<Licensing>>>);

impl fmt::Debug for License {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("License")
    }
}

/// Who is told of every run before it begins.
#[derive(Default)]
struct Watch(Mutex<Option<Box<Watching>>>);

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Runs tools by [`Behaviour`]; unknown names echo.
#[derive(Debug, Default)]
pub struct TestRunner {
    watch: Watch,
    license: License,
    behaviours: Mutex<BTreeMap<String, Behaviour>>,
    read_only: Mutex<Vec<String>>,
    runs: Mutex<Vec<(String, Map<String, Value>)>>,
    facts: Mutex<Vec<GrantPrecondition>>,
    keys: Mutex<Vec<RequestId>>,
    mends: Mutex<BTreeMap<String, (ReconcileMethod, String)>>,
    checked: Mutex<Vec<Map<String, Value>>>,
    descriptions: Mutex<BTreeMap<String, String>>,
    served: Mutex<BTreeMap<String, Vec<String>>>,
    executors: Mutex<BTreeMap<String, Executor>>,
    made_from: Mutex<Vec<Vec<String>>>,
}

impl TestRunner {
    /// Tells of every run before it begins: its request id and its tool.
    pub fn watch(&self, told: impl Fn(&RequestId, &str) + Send + Sync + 'static) {
        *self.watch.0.lock().unwrap() = Some(Box::new(told));
    }

    /// Asks before every run whether it may begin.
    pub fn license(
        &self,
        asked: impl Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync + 'static,
    ) {
        *self.license.0.lock().unwrap() = Some(Box::new(asked));
    }

    /// Sets what a tool does.
    pub fn set(&self, tool: &str, behaviour: Behaviour) {
        self.behaviours.lock().unwrap().insert(tool.to_owned(), behaviour);
    }

    /// What runs a tool.
    pub fn run_by(&self, tool: &str, executor: Executor) {
        self.executors.lock().unwrap().insert(tool.to_owned(), executor);
    }

    /// The executor says of itself that it is without side effects.
    pub fn read_only(&self, tool: &str) {
        self.read_only.lock().unwrap().push(tool.to_owned());
    }

    /// What the executor says of a tool for models.
    pub fn say_of(&self, tool: &str, description: &str) {
        let mut descriptions = self.descriptions.lock().unwrap();
        descriptions.insert(tool.to_owned(), description.to_owned());
    }

    /// The tool stands for these, all of its server's.
    pub fn serves(&self, tool: &str, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.served.lock().unwrap().insert(tool.to_owned(), names);
    }

    /// What calls stand on, from now on: a program, a host.
    pub fn stand_on(&self, subject: &str, value: &str) {
        self.stand_on_all(vec![GrantPrecondition::new(subject, value)]);
    }

    /// All that calls stand on from now on.
    ///
    /// # Panics
    /// Poisoned.
    pub fn stand_on_all(&self, facts: Vec<GrantPrecondition>) {
        *self.facts.lock().unwrap() = facts;
    }

    /// Sets how a tool's unknown outcomes are found out, and what its check says.
    pub fn mends(&self, tool: &str, way: ReconcileMethod, says: &str) {
        let mut mends = self.mends.lock().unwrap();
        mends.insert(tool.to_owned(), (way, says.to_owned()));
    }

    /// What checks were given, in order.
    #[must_use]
    pub fn checked(&self) -> Vec<Map<String, Value>> {
        self.checked.lock().unwrap().clone()
    }

    /// The id that went with every run, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<RequestId> {
        self.keys.lock().unwrap().clone()
    }

    /// Every run with its arguments, in order.
    #[must_use]
    pub fn runs(&self) -> Vec<(String, Map<String, Value>)> {
        self.runs.lock().unwrap().clone()
    }

    /// What the text that each run may have written was made from, in order.
    #[must_use]
    pub fn made_from(&self) -> Vec<Vec<String>> {
        self.made_from.lock().unwrap().clone()
    }

    /// It may begin.
    fn begin<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        if let Some(told) = &*self.watch.0.lock().unwrap() {
            told(permit.request_id(), permit.tool());
        }
        self.runs
            .lock()
            .unwrap()
            .push((permit.tool().to_owned(), permit.arguments().clone()));
        self.keys.lock().unwrap().push(permit.request_id().clone());
        self.made_from.lock().unwrap().push(permit.made_from().to_vec());
        let mut behaviour = self.behaviour(permit.tool());
        while let Behaviour::Reach(reached, then) = behaviour {
            permit.connections().add_connections(reached);
            behaviour = *then;
        }
        // Counted only for who asks: a measurement makes thousands of runs.
        let runs = match behaviour {
            Behaviour::Flaky(_) => {
                let runs = self.runs.lock().unwrap();
                runs.iter().filter(|(tool, _)| tool == permit.tool()).count()
            }
            _ => 0,
        };
        Box::pin(async move {
            match behaviour {
                Behaviour::Echo => Ok(echo(permit.arguments())),
                Behaviour::Sleep(ms) => {
                    let timeout_ms = permit.timeout_ms();
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(Duration::from_millis(ms)) => Ok(echo(permit.arguments())),
                        () = tokio::time::sleep(Duration::from_millis(timeout_ms)) =>
                            Err(RunError::Timeout { timeout_ms, obtained: ObtainedEnforcement::in_process("test") }),
                        () = cancel.cancelled() => Err(RunError::Cancelled),
                    }
                }
                Behaviour::Fail(text) => Ok(RunOutcome {
                    content: vec![ContentBlock::text(text)],
                    is_error: true,
                    ..echo(permit.arguments())
                }),
                Behaviour::Show(data) => Ok(RunOutcome {
                    content: vec![ContentBlock::Image {
                        data,
                        mime_type: "image/png".to_owned(),
                    }],
                    is_error: false,
                    structured: None,
                    obtained: ObtainedEnforcement::in_process("test"),
                }),
                Behaviour::Say(text) => Ok(RunOutcome {
                    content: vec![ContentBlock::text(text)],
                    ..echo(permit.arguments())
                }),
                Behaviour::Error(error) => Err(error),
                Behaviour::Flaky(times) if runs <= usize::try_from(times).unwrap() => {
                    Err(RunError::Unavailable("not yet".to_owned()))
                }
                Behaviour::Flaky(_) | Behaviour::Reach(..) => Ok(echo(permit.arguments())),
            }
        })
    }

    fn behaviour(&self, tool: &str) -> Behaviour {
        self.behaviours
            .lock()
            .unwrap()
            .get(tool)
            .cloned()
            .unwrap_or(Behaviour::Echo)
    }
}

fn echo(arguments: &Map<String, Value>) -> RunOutcome {
    let text = arguments
        .get("text")
        .and_then(Value::as_str)
        .map_or_else(|| json!(arguments).to_string(), str::to_owned);
    RunOutcome {
        content: vec![ContentBlock::text(text)],
        is_error: false,
        structured: None,
        obtained: ObtainedEnforcement::in_process("test"),
    }
}

impl ToolRunner for TestRunner {
    fn is_kernels(&self, tool: &str) -> bool {
        tool.starts_with("memory-") || tool == "context-write"
    }

    fn describe_tool<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<ToolDescription, RunError>> {
        let hint = self.read_only.lock().unwrap().iter().any(|name| name == tool);
        let trusted_annotations = if hint {
            json!({"readOnlyHint": true})
        } else {
            json!({})
        };
        let said = self.descriptions.lock().unwrap().get(tool).cloned();
        let described = ToolDescription {
            description: said.unwrap_or_else(|| format!("the tool {tool}")),
            input_schema: json!({"type": "object"}),
            output_schema: None,
            trusted_annotations: trusted_annotations.as_object().cloned().unwrap(),
            category: None,
            executor: self
                .executors
                .lock()
                .unwrap()
                .get(tool)
                .copied()
                .unwrap_or_default(),
        };
        Box::pin(std::future::ready(Ok(described)))
    }

    fn takes_over<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<Option<Vec<String>>, RunError>> {
        let names = self.served.lock().unwrap().get(tool).cloned();
        Box::pin(std::future::ready(Ok(names)))
    }

    fn preflight_call(
        &self,
        _: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        _: &Path,
    ) -> Result<(), SandboxRefusal> {
        plan.check_available()?;
        match arguments.get("command").and_then(Value::as_str) {
            Some(command) => plan.preflight(&Request::Shell { command }),
            None => Ok(()),
        }
    }

    fn run<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        let asked = self.license.0.lock().unwrap().as_ref().map(|asked| asked());
        let Some(asked) = asked else {
            return self.begin(permit, cancel);
        };
        Box::pin(async move {
            asked.await.map_err(RunError::NotBegun)?;
            self.begin(permit, cancel).await
        })
    }

    fn preview_call<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, ExecutorPreview> {
        let line = format!("{} {}", look.tool, json!(look.arguments));
        Box::pin(std::future::ready(ExecutorPreview {
            lines: vec![PreviewLine::fact(&line)],
            covers: &[],
        }))
    }

    fn stands_on<'a>(&'a self, _: InspectedCall<'a>) -> BoxFuture<'a, Vec<GrantPrecondition>> {
        Box::pin(std::future::ready(self.facts.lock().unwrap().clone()))
    }

    /// Where it is asked for: a thread would have an order of its own.
    fn locate_paths<'a>(
        &'a self,
        _: InspectedCall<'a>,
        search: PathSearch,
    ) -> BoxFuture<'a, clawk_policy::path::RealLocations> {
        Box::pin(std::future::ready(place::resolve_paths_blocking(&search)))
    }

    fn reconcile_method(&self, tool: &str) -> ReconcileMethod {
        let mends = self.mends.lock().unwrap();
        mends.get(tool).map(|(way, _)| way.clone()).unwrap_or_default()
    }

    fn run_check<'a>(
        &'a self,
        permit: Permit,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        self.checked.lock().unwrap().push(permit.arguments().clone());
        let mends = self.mends.lock().unwrap();
        let says = mends
            .get(permit.tool())
            .map(|(_, says)| says.clone())
            .unwrap_or_default();
        let outcome = RunOutcome {
            content: vec![ContentBlock::text(says)],
            is_error: false,
            structured: None,
            obtained: ObtainedEnforcement::in_process("test"),
        };
        Box::pin(std::future::ready(Ok(outcome)))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
