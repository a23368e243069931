//! The kernel's `ToolRunner`: passes a permit to the executor that is bound to its tool.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use clawk_kernel::call::Permit;
use clawk_kernel::ports::{
    BoxFuture, Executor, InspectedCall, MarkedContent, ReconcileMethod, RunError, RunOutcome,
    SamplingHandler, TaintedFiles, ToolDescription, ToolRunner,
};
use clawk_kernel::sheet::{ExecutorPreview, PreviewLine};
use clawk_kernel::witness::GrantPrecondition;
use clawk_plan::{ObtainedEnforcement, Plan, SandboxRefusal};
use clawk_proto::SessionId;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::builtin::{BuiltinContext, BuiltinTool, ExternalBuiltin, SearchEndpoint};
use crate::call::ExecutorCall;
use crate::executor::{A2aEndpoint, Command, Endpoint};
use crate::keep;
use crate::mcp::{McpServer, McpServerSource, McpTool, check_admitted, taken_names};
use crate::mend::{IdempotencyKeySlot, ReconcilePlan};
use crate::origins::{self, FileProvenanceStore, TrackedCall};
use crate::stands::CallDependencies;
use crate::undo::UndoStore;

/// The executor of a tool.
#[derive(Debug)]
pub(crate) enum ExecutorBinding {
    Builtin(BuiltinTool),
    Extra(Arc<dyn ExternalBuiltin>),
    Search(SearchEndpoint),
    Command(Command),
    Http(Endpoint),
    A2a(A2aEndpoint),
    Mcp(McpTool),
}

/// Runs all tools of an agent. Created by [`crate::bind_tools()`].
pub struct Runner {
    bound: BTreeMap<String, Arc<ExecutorBinding>>,
    /// Tools of servers that a declared tool represents: the declared tool's name, and the binding.
    taken: RwLock<BTreeMap<String, (String, Arc<ExecutorBinding>)>>,
    mending: BTreeMap<String, ReconcilePlan>,
    servers: Vec<Arc<McpServer>>,
    shared: BuiltinContext,
    undo: Option<Arc<UndoStore>>,
    /// The provenance of text in files, and the folder for relative paths.
    origins: Option<Arc<FileProvenanceStore>>,
    workdir: PathBuf,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.bound).finish()
    }
}

impl Runner {
    pub(crate) fn new(
        bound: BTreeMap<String, ExecutorBinding>,
        mending: BTreeMap<String, ReconcilePlan>,
        servers: Vec<Arc<McpServer>>,
        shared: BuiltinContext,
    ) -> Self {
        let bound = bound.into_iter().map(|(name, binding)| (name, Arc::new(binding)));
        Self {
            bound: bound.collect(),
            taken: RwLock::default(),
            mending,
            servers,
            shared,
            undo: None,
            origins: None,
            workdir: PathBuf::new(),
        }
    }

    /// Returns this runner with recording of file provenance. Relative paths start at `workdir`.
    #[must_use]
    pub fn tracing_text(self, origins: Arc<FileProvenanceStore>, workdir: PathBuf) -> Self {
        Self {
            origins: Some(origins),
            workdir,
            ..self
        }
    }

    /// Returns this runner with undo: it saves what calls overwrite.
    #[must_use]
    pub fn with_undo_store(self, undo: Arc<UndoStore>) -> Self {
        Self {
            undo: Some(undo),
            ..self
        }
    }

    /// The kind of a tool's executor, for `clawk doctor` and logs: `built-in`, `command`, `wasm`, `http`, `a2a`, `mcp`.
    #[must_use]
    pub fn executor_name(&self, tool: &str) -> Option<&'static str> {
        self.bound.get(tool).map(|binding| match &**binding {
            ExecutorBinding::Builtin(_) | ExecutorBinding::Extra(_) | ExecutorBinding::Search(_) => {
                "built-in"
            }
            ExecutorBinding::Command(command) if command.guest => "wasm",
            ExecutorBinding::Command(_) => "command",
            ExecutorBinding::Http(_) => "http",
            ExecutorBinding::A2a(_) => "a2a",
            ExecutorBinding::Mcp(_) => "mcp",
        })
    }

    /// The arguments as sent: with the call's idempotency key, if `clawk.toml` names an argument for it.
    pub(crate) fn sent_arguments<'a>(
        &self,
        tool: &str,
        arguments: &'a Map<String, Value>,
        request_id: &str,
    ) -> Cow<'a, Map<String, Value>> {
        match self.mending_of(tool).and_then(|mending| mending.key.as_ref()) {
            Some(IdempotencyKeySlot::Argument(name)) => {
                let mut arguments = arguments.clone();
                arguments.insert(name.clone(), request_id.into());
                Cow::Owned(arguments)
            }
            Some(IdempotencyKeySlot::Header(_)) | None => Cow::Borrowed(arguments),
        }
    }

    fn key_header(&self, tool: &str, request_id: &str) -> Option<(http::HeaderName, String)> {
        match self.mending_of(tool)?.key.as_ref()? {
            IdempotencyKeySlot::Header(name) => Some((name.clone(), request_id.to_owned())),
            IdempotencyKeySlot::Argument(_) => None,
        }
    }

    /// Facts for people about how a call is run.
    fn call_facts(&self, binding: &ExecutorBinding, look: &InspectedCall<'_>) -> Vec<String> {
        match binding {
            ExecutorBinding::Builtin(BuiltinTool::Shell) => {
                CallDependencies::for_call(binding, look, self.search_path()).display_lines()
            }
            ExecutorBinding::Command(command) => {
                let mut facts = vec![format!("$ {}", command_line(&command.program, &command.args))];
                facts.extend(CallDependencies::for_call(binding, look, None).display_lines());
                facts
            }
            ExecutorBinding::Http(endpoint) => vec![redacted_target(&endpoint.url)],
            ExecutorBinding::A2a(remote) => vec![remote.call_fact()],
            ExecutorBinding::Search(search) => vec![search.call_fact()],
            ExecutorBinding::Mcp(tool) => {
                let served = tool.served_as.as_deref().unwrap_or(look.tool);
                vec![format!("ask the MCP server {} for {served}", tool.server.name())]
            }
            ExecutorBinding::Builtin(_) | ExecutorBinding::Extra(_) => Vec::new(),
        }
    }

    /// The reasons why programs of MCP servers can't start here, as far as visible without starting them.
    #[must_use]
    pub fn server_faults(&self) -> Vec<String> {
        self.servers
            .iter()
            .filter_map(|server| server.start_fault())
            .collect()
    }

    /// The number of tools that this tool's MCP server lists. Starts the server.
    ///
    /// # Errors
    /// The server can't be started or reached, or gives no list.
    pub async fn served_tools(&self, tool: &str) -> Result<usize, RunError> {
        match &*self.require_binding(tool)? {
            ExecutorBinding::Mcp(served) => served.listed_count().await,
            ExecutorBinding::Builtin(_)
            | ExecutorBinding::Extra(_)
            | ExecutorBinding::Search(_)
            | ExecutorBinding::Command(_)
            | ExecutorBinding::Http(_)
            | ExecutorBinding::A2a(_) => Ok(1),
        }
    }

    /// The search path of command lines.
    fn search_path(&self) -> Option<String> {
        self.shared.env.non_empty("PATH")
    }

    fn find_binding(&self, tool: &str) -> Option<Arc<ExecutorBinding>> {
        self.bound.get(tool).cloned().or_else(|| {
            let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
            taken.get(tool).map(|(_, binding)| Arc::clone(binding))
        })
    }

    fn require_binding(&self, tool: &str) -> Result<Arc<ExecutorBinding>, RunError> {
        self.find_binding(tool)
            .ok_or_else(|| RunError::Unavailable(format!("nothing runs the tool `{tool}`")))
    }

    /// The reconcile settings of a tool, or of the declared tool that represents it.
    fn mending_of(&self, tool: &str) -> Option<&ReconcilePlan> {
        self.mending.get(tool).or_else(|| {
            let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
            let (declared, _) = taken.get(tool)?;
            self.mending.get(declared)
        })
    }

    /// Binds every tool of the server that `tool` represents.
    async fn take_over(&self, tool: &str) -> Result<Option<Vec<String>>, RunError> {
        let binding = self.require_binding(tool)?;
        let ExecutorBinding::Mcp(declared) = &*binding else {
            return Ok(None);
        };
        let Some(served) = declared.takes_over().await? else {
            return Ok(None);
        };
        let names = taken_names(tool, &served);
        let mut taken = self.taken.write().unwrap_or_else(PoisonError::into_inner);
        for (name, served_as) in &names {
            let one = McpTool {
                name: name.clone(),
                served_as: Some(served_as.clone()),
                ..declared.clone()
            };
            taken.insert(
                name.clone(),
                (tool.to_owned(), Arc::new(ExecutorBinding::Mcp(one))),
            );
        }
        Ok(Some(names.into_keys().collect()))
    }

    #[cfg(test)]
    pub(crate) fn bound_for_tests(&self, tool: &str) -> Arc<ExecutorBinding> {
        self.find_binding(tool).expect("bound")
    }

    /// Runs a call within its time limit, until it ends or is cancelled.
    pub(crate) async fn run_call(
        &self,
        binding: &ExecutorBinding,
        call: ExecutorCall<'_>,
        session: Option<SessionId>,
        cancel: &CancellationToken,
    ) -> Result<RunOutcome, RunError> {
        let _stop = call.stop.clone().drop_guard();
        // If this host can't provide the level, no tool runs, even if it would start no process (R32). The result of the check is
        // cached.
        let level = call.plan.level();
        self.shared
            .launcher
            .probe_level(level)
            .await
            .map_err(RunError::Sandbox)?;
        if let ExecutorBinding::A2a(remote) = binding {
            // It tells the other agent itself if the call is cancelled.
            return remote.run(&call, cancel).await;
        }
        let work = async {
            match binding {
                // Processes and servers enforce the time limit themselves: they end what they started.
                ExecutorBinding::Builtin(builtin) if builtin.keeps_time(call.plan) => {
                    builtin.run(&call, &self.shared, session).await
                }
                ExecutorBinding::Command(command) => command.run(&call, &self.shared).await,
                ExecutorBinding::Mcp(tool) => tool.run(&call, session).await,
                ExecutorBinding::Builtin(builtin) => {
                    run_with_timeout(&call, builtin.run(&call, &self.shared, session)).await
                }
                ExecutorBinding::Http(endpoint) => run_with_timeout(&call, endpoint.run(&call)).await,
                ExecutorBinding::Search(search) => {
                    run_with_timeout(&call, search.run(&call, &self.shared)).await
                }
                ExecutorBinding::Extra(_) | ExecutorBinding::A2a(_) => {
                    Err(RunError::Unavailable("it needs a permit".to_owned()))
                }
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(RunError::Cancelled),
            result = work => result,
        }
    }
}

/// Builds a built-in's preview outside the async threads, because files are read.
async fn built_in(builtin: BuiltinTool, look: &InspectedCall<'_>) -> ExecutorPreview {
    let (arguments, plan) = (look.arguments.clone(), Arc::clone(look.plan));
    let workdir = look.workdir.to_path_buf();
    let work = move || {
        builtin.preview(&InspectedCall {
            tool: builtin.name(),
            arguments: &arguments,
            plan: &plan,
            workdir: &workdir,
        })
    };
    let worked = tokio::task::spawn_blocking(work).await;
    worked.unwrap_or_else(|error| ExecutorPreview {
        lines: vec![PreviewLine::fact(&format!(
            "what it would change can't be told: {error}"
        ))],
        covers: &[],
    })
}

/// A configured command with its words visibly separated.
fn command_line(program: &str, args: &[String]) -> String {
    let words = std::iter::once(program).chain(args.iter().map(String::as_str));
    let parts = |c: char| c.is_whitespace() || matches!(c, '\'' | '"');
    let words = words.map(|word| {
        if word.is_empty() || word.contains(parts) {
            format!("{word:?}")
        } else {
            word.to_owned()
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The target of a configured request, without parts that may contain secrets.
fn redacted_target(url: &clawk_egress::Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let query = if url.query().is_some() {
        ", with the query that is configured"
    } else {
        ""
    };
    format!("POST {}://{host}{port}{}{query}", url.scheme(), url.path())
}

/// A value that is never the same twice: evidence that can't be read must never match an approval.
fn unmatchable_value(why: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{why} ({})", NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn run_with_timeout(
    call: &ExecutorCall<'_>,
    work: impl Future<Output = Result<RunOutcome, RunError>>,
) -> Result<RunOutcome, RunError> {
    match tokio::time::timeout(call.timeout(), work).await {
        Ok(result) => result,
        Err(_elapsed) => Err(RunError::Timeout {
            timeout_ms: call.timeout_ms,
            obtained: ObtainedEnforcement::in_process("watcher:time"),
        }),
    }
}

/// The description of a tool that only the manifest describes.
fn declared_description(executor: Executor) -> ToolDescription {
    ToolDescription {
        input_schema: json!({"type": "object"}),
        executor,
        ..ToolDescription::default()
    }
}

impl ToolRunner for Runner {
    fn describe_tool<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<ToolDescription, RunError>> {
        Box::pin(async move {
            Ok(match &*self.require_binding(tool)? {
                ExecutorBinding::Builtin(builtin) => ToolDescription {
                    executor: Executor::Builtin,
                    ..builtin.describe_here(&self.shared)
                },
                ExecutorBinding::Search(_) => BuiltinTool::WebSearch.describe(),
                ExecutorBinding::Extra(extra) => ToolDescription {
                    executor: Executor::Builtin,
                    ..extra.describe()
                },
                ExecutorBinding::Mcp(served) => ToolDescription {
                    executor: Executor::Mcp,
                    ..served.describe().await?
                },
                ExecutorBinding::A2a(_) => ToolDescription {
                    executor: Executor::A2a,
                    ..A2aEndpoint::describe()
                },
                // The manifest describes these tools.
                ExecutorBinding::Command(_) => declared_description(Executor::Command),
                ExecutorBinding::Http(_) => declared_description(Executor::Http),
            })
        })
    }

    fn takes_over<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<Option<Vec<String>>, RunError>> {
        Box::pin(self.take_over(tool))
    }

    fn preflight_call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        self.shared.launcher.level_availability(plan.level())?;
        match self.find_binding(tool).as_deref() {
            Some(ExecutorBinding::Builtin(builtin)) => builtin.preflight(arguments, plan, workdir),
            Some(ExecutorBinding::Search(search)) => search.preflight(plan),
            Some(ExecutorBinding::Mcp(served)) => match served.server.source() {
                McpServerSource::Endpoint(endpoint) => plan
                    .check_available()
                    .and_then(|()| check_admitted(&endpoint.url, plan)),
                McpServerSource::Program { .. } => plan.check_available(),
            },
            Some(ExecutorBinding::Command(_) | ExecutorBinding::Http(_) | ExecutorBinding::A2a(_)) => {
                plan.check_available()
            }
            Some(ExecutorBinding::Extra(_)) | None => Ok(()),
        }
    }

    fn run<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let bound = self.require_binding(permit.tool())?;
            let binding = &*bound;
            if let ExecutorBinding::Extra(extra) = binding {
                return tokio::select! {
                    biased;
                    () = cancel.cancelled() => Err(RunError::Cancelled),
                    result = extra.run(permit, cancel) => result,
                };
            }
            let request_id = permit.request_id().as_str();
            let arguments = self.sent_arguments(permit.tool(), permit.arguments(), request_id);
            let call = ExecutorCall {
                arguments: &arguments,
                key: self.key_header(permit.tool(), request_id),
                plan: permit.sandbox_plan(),
                workdir: permit.workdir(),
                timeout_ms: permit.timeout_ms(),
                request_id,
                marks: permit.file_marks(),
                apart: permit.excluded_paths(),
                tool: permit.tool(),
                connections: permit.connections().clone(),
                stop: cancel.child_token(),
            };
            let marked = origins::before_call(self.origins.as_ref(), &bound, &permit).await?;
            let kept = keep::before_call(self.undo.as_ref(), binding, &permit).await;
            let outcome = self.run_call(binding, call, Some(permit.session()), cancel).await;
            origins::after_call(
                self.origins.as_ref(),
                &bound,
                TrackedCall::from_permit(&permit),
                marked,
            )
            .await;
            keep::after_call(self.undo.as_ref(), kept).await;
            outcome
        })
    }

    fn preview_call<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, ExecutorPreview> {
        Box::pin(async move {
            let Some(found) = self.find_binding(look.tool) else {
                return ExecutorPreview::default();
            };
            let binding = &*found;
            let mut preview = match binding {
                ExecutorBinding::Builtin(builtin) => built_in(*builtin, &look).await,
                ExecutorBinding::Command(_)
                | ExecutorBinding::Http(_)
                | ExecutorBinding::A2a(_)
                | ExecutorBinding::Mcp(_)
                | ExecutorBinding::Search(_)
                | ExecutorBinding::Extra(_) => ExecutorPreview::default(),
            };
            let mut facts = self.call_facts(binding, &look);
            let key = self
                .mending_of(look.tool)
                .and_then(|mending| mending.key.as_ref());
            if let Some(IdempotencyKeySlot::Argument(name)) = key {
                facts.push(format!(
                    "  `{name}` is set to the call's id, whatever stands below"
                ));
            }
            facts.extend(keep::missing_undo_notice(self.undo.as_ref(), binding, &look).await);
            preview
                .lines
                .extend(facts.iter().map(|fact| PreviewLine::fact(fact)));
            preview
        })
    }

    fn stands_on<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, Vec<GrantPrecondition>> {
        Box::pin(async move {
            let Some(binding) = self.find_binding(look.tool) else {
                return Vec::new();
            };
            let stands = CallDependencies::for_call(&binding, &look, self.search_path());
            match tokio::task::spawn_blocking(move || stands.into_preconditions()).await {
                Ok(facts) => facts,
                Err(error) => vec![GrantPrecondition::new(
                    "the executor",
                    unmatchable_value(&error.to_string()),
                )],
            }
        })
    }

    fn marked_origins<'a>(&'a self, contents: Vec<MarkedContent>) -> BoxFuture<'a, TaintedFiles> {
        Box::pin(origins::content_origins(
            self.origins.as_ref(),
            &self.workdir,
            contents,
        ))
    }

    fn mark_content<'a>(
        &'a self,
        content: Vec<u8>,
        from: BTreeSet<String>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(origins::mark_content(self.origins.as_ref(), content, from))
    }

    fn reconcile_method(&self, tool: &str) -> ReconcileMethod {
        self.mending_of(tool)
            .map(ReconcilePlan::reconcile_method)
            .unwrap_or_default()
    }

    fn run_check<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let none = || RunError::Unavailable(format!("`{}` has no check", permit.tool()));
            let mending = self.mending_of(permit.tool()).ok_or_else(none)?;
            let call = ExecutorCall {
                arguments: permit.arguments(),
                key: None,
                plan: permit.sandbox_plan(),
                workdir: permit.workdir(),
                timeout_ms: permit.timeout_ms(),
                request_id: permit.request_id().as_str(),
                tool: permit.tool(),
                connections: permit.connections().clone(),
                marks: permit.file_marks(),
                apart: permit.excluded_paths(),
                stop: cancel.child_token(),
            };
            let _stop = call.stop.clone().drop_guard();
            tokio::select! {
                biased;
                () = cancel.cancelled() => Err(RunError::Cancelled),
                result = mending.check_outcome(&call, &self.shared) => result,
            }
        })
    }

    fn is_kernels(&self, tool: &str) -> bool {
        matches!(self.bound.get(tool).map(|binding| &**binding), Some(ExecutorBinding::Builtin(builtin)) if builtin.is_kernels())
    }

    fn set_sampling_handler(&self, sampler: SamplingHandler) {
        for server in &self.servers {
            server.set_sampler(Arc::clone(&sampler));
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            futures::future::join_all(self.servers.iter().map(|server| server.close())).await;
        })
    }
}
