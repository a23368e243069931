//! Running tools: only ever with a [`Permit`], which only the call path can make.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use clawk_plan::{ObtainedEnforcement, Plan, SandboxRefusal};
use clawk_policy::path::RealLocations;
use clawk_proto::SessionId;
use clawk_proto::content::ContentBlock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{BoxFuture, MarkedContent, TaintedFiles};
use crate::call::Permit;
use crate::place::{self, PathSearch};
use crate::sampling::{SampleAnswer, SampleRequest};
use crate::sheet::ExecutorPreview;
use crate::witness::GrantPrecondition;

/// The executor's description of a tool. Fields of the manifest take precedence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolDescription {
    /// For the model.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the result, where the executor has one.
    pub output_schema: Option<Value>,
    /// Hints that count: a built-in's own, or an MCP server's that `clawk.toml` trusts (R13).
    pub trusted_annotations: Map<String, Value>,
    /// The default `labels.category`, for tools whose manifest names none.
    pub category: Option<&'static str>,
    /// What runs the tool.
    pub executor: Executor,
}

/// What runs a tool: it decides whose text a result is (R50).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Executor {
    /// A record of an earlier version, which does not say.
    #[default]
    Unrecorded,
    /// clawk itself.
    Builtin,
    /// A program or a WebAssembly module of the operator's, in a sandbox.
    Command,
    /// An HTTP endpoint.
    Http,
    /// An MCP server.
    Mcp,
    /// Another agent.
    A2a,
}

impl Executor {
    pub(crate) fn is_unrecorded(&self) -> bool {
        *self == Self::Unrecorded
    }
}

/// One call to examine before a person is asked about it.
#[derive(Debug, Clone, Copy)]
pub struct InspectedCall<'a> {
    /// The tool.
    pub tool: &'a str,
    /// What it would get.
    pub arguments: &'a Map<String, Value>,
    /// The sandbox it would run in.
    pub plan: &'a Arc<Plan>,
    /// Where it would start; absolute.
    pub workdir: &'a Path,
}

/// A tool that ran (R20): it may have failed, and says so in `is_error`.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    /// What a model reads.
    pub content: Vec<ContentBlock>,
    /// It ran and failed.
    pub is_error: bool,
    /// Facts beside the text (R20a).
    pub structured: Option<Value>,
    /// What really enclosed it.
    pub obtained: ObtainedEnforcement,
}

/// A tool that did not run, or was cut short.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RunError {
    /// The sandbox refused or can't be had; nothing ran.
    #[error("{0}")]
    Sandbox(SandboxRefusal),
    /// It ran past its deadline and was ended with all its processes.
    #[error("ended after {timeout_ms} ms, its `timeout_ms`")]
    Timeout {
        /// The deadline, milliseconds.
        timeout_ms: u64,
        /// What enclosed it.
        obtained: ObtainedEnforcement,
    },
    /// It could not be started or reached; surely nothing happened. Says what would mend it.
    #[error("{0}")]
    Unavailable(String),
    /// This host may begin nothing now; nothing happened, and the same request may come again.
    #[error("nothing was begun: {0}")]
    NotBegun(String),
    /// It died or lost its connection on the way; what it did is not known.
    #[error("{0}; what it did before is not known")]
    Unknown(String),
    /// What a person was shown is not what is there now; nothing was done.
    #[error("{0}")]
    Changed(String),
    /// The caller cancelled; it was ended.
    #[error("cancelled; what it did before is not known")]
    Cancelled,
}

/// How clawk finds out the outcome of a run that was cut off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ReconcileMethod {
    /// A person is asked.
    #[default]
    Person,
    /// The same request again: the other side knows it by its key and does it once.
    SameKey,
    /// By [`ToolRunner::check`].
    Check,
    /// By a declared tool without side effects.
    Tool(String),
}

/// Puts a server's question to a model, for the session whose call runs at the server.
pub type SamplingHandler = Arc<
    dyn Fn(SessionId, SampleRequest, CancellationToken) -> BoxFuture<'static, Result<SampleAnswer, String>>
        + Send
        + Sync,
>;

/// Runs tools by the executor bound to their name.
pub trait ToolRunner: Send + Sync + fmt::Debug {
    /// What the tool is. Local for built-ins; asks the server, started on first need, for MCP tools.
    fn describe<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<ToolDescription, RunError>>;

    /// The names under which all tools of a server are taken over for a declared tool that names a server and none of its
    /// tools; `None`: the declared tool is itself the one that is meant. [`ToolRunner::describe`] and the rest then know
    /// these names, too.
    fn takes_over<'a>(&'a self, _tool: &'a str) -> BoxFuture<'a, Result<Option<Vec<String>>, RunError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// The sandbox's static checks of one call, before anybody is asked: is the level to be had, and do command, paths
    /// and hosts fit the plan? Pure; the run checks again.
    ///
    /// # Errors
    /// The plan refuses (-32010).
    fn preflight(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal>;

    /// The same for a call that may come later. The caller may ask again.
    ///
    /// # Errors
    /// As [`ToolRunner::preflight`].
    fn foresee(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        self.preflight(tool, arguments, plan, workdir)
    }

    /// Runs exactly what the permit says, once. The arguments are read from the permit and nowhere else.
    fn run<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>>;

    /// What a person should see before saying yes: a diff, a command with its program and folder, a host and body.
    /// The kernel adds every argument that this does not show whole.
    fn preview<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, ExecutorPreview>;

    /// What the call would act through, beside its arguments and the files that they name: the programs that its names
    /// stand for, the place that a request goes to, with what is configured of them. An exact grant is bound to it.
    fn stands_on<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, Vec<GrantPrecondition>>;

    /// Of a past run that is played again: whether a person was asked about this call. `None`: this is no replay.
    fn was_asked(&self, _look: InspectedCall<'_>) -> Option<bool> {
        None
    }

    /// Where the paths of a call and the roots of the rules really lead.
    fn places<'a>(&'a self, _look: InspectedCall<'a>, search: PathSearch) -> BoxFuture<'a, RealLocations> {
        Box::pin(place::look(search))
    }

    /// The origins of untrusted text in these contents, as far as calls of this agent brought it there. What holds none is left out.
    fn marked<'a>(&'a self, _contents: Vec<MarkedContent>) -> BoxFuture<'a, TaintedFiles> {
        Box::pin(std::future::ready(TaintedFiles::new()))
    }

    /// Records that these bytes come from these origins. A file in which they are found later has these origins, too.
    ///
    /// # Errors
    /// The record could not be written.
    fn mark<'a>(
        &'a self,
        _content: Vec<u8>,
        _origins: BTreeSet<String>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// How the tool's unknown outcomes are found out.
    fn mend(&self, _tool: &str) -> ReconcileMethod {
        ReconcileMethod::Person
    }

    /// Runs the check that is configured for the permit's tool. It gets the call's `request_id`, `tool` and `arguments`, and
    /// answers `done`, `not-done` or anything else for "don't know".
    fn check<'a>(
        &'a self,
        permit: Permit,
        _cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        let tool = permit.tool().to_owned();
        Box::pin(async move { Err(RunError::Unavailable(format!("`{tool}` has no check"))) })
    }

    /// This tool is a built-in that the kernel runs itself: it needs the kernel's stores.
    fn is_kernels(&self, _tool: &str) -> bool {
        false
    }

    /// Tells, once and before any call, how a server's question reaches the agent's models.
    fn models(&self, _sampler: SamplingHandler) {}

    /// Ends servers and processes that outlive calls.
    fn close(&self) -> BoxFuture<'_, ()>;
}
