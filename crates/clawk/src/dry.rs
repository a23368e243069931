//! A dry run: the whole agent with its model, but each call with side effects is predicted instead of run.
//!
//! Calls that only read run normally. Every other call, also of a tool without annotations, returns a description of its effects,
//! the same text that an approval request shows. The run uses a copy of the state, so that the agent does not remember calls that
//! never happened.

mod report;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use clawk_kernel::call::Permit;
use clawk_kernel::place::PathSearch;
use clawk_kernel::ports::{
    BoxFuture, InspectedCall, MarkedContent, ReconcileMethod, RunError, RunOutcome, SamplingHandler,
    TaintedFiles, ToolDescription, ToolRunner,
};
use clawk_kernel::sheet::{CallPreview, ExecutorPreview};
use clawk_kernel::witness::GrantPrecondition;
use clawk_kernel::{AgentDependencies, PREDICTED};
use clawk_plan::{ObtainedEnforcement, Plan, SandboxRefusal};
use clawk_policy::path::RealLocations;
use clawk_proto::RequestId;
use clawk_proto::content::ContentBlock;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) use report::{ApprovedPlan, DryRunReport, Recorder};
pub(crate) use state::{copy_server, copy_state};

/// The predictions so far, by call id. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallPredictions(Arc<Mutex<BTreeMap<RequestId, CallPrediction>>>);

/// The prediction for one call.
#[derive(Debug, Clone)]
pub(crate) struct CallPrediction {
    /// SHA-256 of the arguments' canonical JSON, lower-case hex.
    pub(crate) parameters: String,
    /// Description of the call's effects, in lines.
    pub(crate) lines: Vec<String>,
}

impl CallPredictions {
    /// Returns the prediction for a call; `None`: the call ran or was refused.
    pub(crate) fn get(&self, id: &RequestId) -> Option<CallPrediction> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).cloned()
    }

    fn add(&self, id: RequestId, predicted: CallPrediction) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(id, predicted);
    }

    /// Wraps the agent's tool runner in the dry runner, and removes the members behind the swarm's tools.
    pub(crate) fn wrap_dependencies(&self, parts: AgentDependencies) -> AgentDependencies {
        let mut parts = parts;
        // Members and peers receive nothing: the swarm's tools are predicted, too.
        parts.options.swarm = std::mem::take(&mut parts.options.swarm).without_members();
        parts.options.reach_providers = false;
        parts.runner = Arc::new(DryRunner {
            inner: parts.runner,
            predictions: self.clone(),
        });
        parts
    }
}

/// Runs calls that only read, and predicts the others.
struct DryRunner {
    inner: Arc<dyn ToolRunner>,
    predictions: CallPredictions,
}

impl fmt::Debug for DryRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DryRunner({:?})", self.inner)
    }
}

impl DryRunner {
    async fn predict_call(&self, permit: &Permit) -> RunOutcome {
        let look = InspectedCall {
            tool: permit.tool(),
            arguments: permit.arguments(),
            plan: permit.sandbox_plan(),
            workdir: permit.workdir(),
        };
        let preview = self.inner.preview_call(look).await;
        let sheet = CallPreview::of(permit.arguments(), preview, Vec::new());
        let text = format!(
            "[dry run] This was not done. It would be:\n{}\n[Go on as if it had been done. What you read later shows the \
             world as it is now, without it.]",
            sheet.whole()
        );
        let predicted = CallPrediction {
            parameters: permit.digest().to_hex(),
            lines: sheet.whole().lines().map(str::to_owned).collect(),
        };
        self.predictions.add(permit.request_id().clone(), predicted);
        RunOutcome {
            content: vec![ContentBlock::text(text)],
            is_error: false,
            structured: Some(json!({"dry_run": true})),
            obtained: ObtainedEnforcement::in_process(PREDICTED),
        }
    }
}

impl ToolRunner for DryRunner {
    fn describe_tool<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<ToolDescription, RunError>> {
        self.inner.describe_tool(tool)
    }

    fn takes_over<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<Option<Vec<String>>, RunError>> {
        self.inner.takes_over(tool)
    }

    fn preflight_call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        self.inner.preflight_call(tool, arguments, plan, workdir)
    }

    fn preflight_later(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        self.inner.preflight_later(tool, arguments, plan, workdir)
    }

    fn run<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        if permit.read_only() {
            return self.inner.run(permit, cancel);
        }
        Box::pin(async move { Ok(self.predict_call(&permit).await) })
    }

    fn preview_call<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, ExecutorPreview> {
        self.inner.preview_call(look)
    }

    fn stands_on<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, Vec<GrantPrecondition>> {
        self.inner.stands_on(look)
    }

    fn locate_paths<'a>(
        &'a self,
        look: InspectedCall<'a>,
        search: PathSearch,
    ) -> BoxFuture<'a, RealLocations> {
        self.inner.locate_paths(look, search)
    }

    fn marked_origins<'a>(&'a self, contents: Vec<MarkedContent>) -> BoxFuture<'a, TaintedFiles> {
        self.inner.marked_origins(contents)
    }

    /// Marks content in the copy of the state.
    fn mark_content<'a>(
        &'a self,
        content: Vec<u8>,
        origins: BTreeSet<String>,
    ) -> BoxFuture<'a, Result<(), String>> {
        self.inner.mark_content(content, origins)
    }

    /// A dry run's call is never reconciled, because it had no effect.
    fn reconcile_method(&self, _tool: &str) -> ReconcileMethod {
        ReconcileMethod::Person
    }

    /// The kernel runs its own tools that only read; its other tools are predicted here.
    fn is_kernels(&self, tool: &str) -> bool {
        let reads = clawk_tools::builtin::describe_builtin(tool)
            .is_some_and(|known| known.trusted_annotations.get("readOnlyHint") == Some(&Value::Bool(true)));
        reads && self.inner.is_kernels(tool)
    }

    fn set_sampling_handler(&self, sampler: SamplingHandler) {
        self.inner.set_sampling_handler(sampler);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}
