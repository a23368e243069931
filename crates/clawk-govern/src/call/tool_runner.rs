//! Running tools: only ever with a [`Permit`], which only the call path can make. So this trait stands beside the permit and not among
//! the other ports.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use clawk_plan::{Plan, SandboxRefusal};
use clawk_policy::path::RealLocations;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::Permit;
use crate::place::{self, PathSearch};
use crate::ports::{
    BoxFuture, InspectedCall, MarkedContent, ReconcileMethod, RunError, RunOutcome, SamplingHandler,
    TaintedFiles, ToolDescription,
};
use crate::sheet::ExecutorPreview;
use crate::witness::GrantPrecondition;

/// Runs tools by the executor bound to their name.
pub trait ToolRunner: Send + Sync + fmt::Debug {
    /// What the tool is. Local for built-ins; asks the server, started on first need, for MCP tools.
    fn describe_tool<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<ToolDescription, RunError>>;

    /// The names under which all tools of a server are taken over for a declared tool that names a server and none of its
    /// tools; `None`: the declared tool is itself the one that is meant. [`ToolRunner::describe_tool`] and the rest then know
    /// these names, too.
    fn takes_over<'a>(&'a self, _tool: &'a str) -> BoxFuture<'a, Result<Option<Vec<String>>, RunError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// The sandbox's static checks of one call, before anybody is asked: is the level to be had, and do command, paths
    /// and hosts fit the plan? Pure; the run checks again.
    ///
    /// # Errors
    /// The plan refuses (-32010).
    fn preflight_call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal>;

    /// The same for a call that may come later. The caller may ask again.
    ///
    /// # Errors
    /// As [`ToolRunner::preflight_call`].
    fn preflight_later(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        self.preflight_call(tool, arguments, plan, workdir)
    }

    /// Runs exactly what the permit says, once. The arguments are read from the permit and nowhere else.
    fn run<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>>;

    /// What a person should see before saying yes: a diff, a command with its program and folder, a host and body.
    /// The kernel adds every argument that this does not show whole.
    fn preview_call<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, ExecutorPreview>;

    /// What the call would act through, beside its arguments and the files that they name: the programs that its names
    /// stand for, the place that a request goes to, with what is configured of them. An exact grant is bound to it.
    fn stands_on<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, Vec<GrantPrecondition>>;

    /// Of a past run that is played again: whether a person was asked about this call. `None`: this is no replay.
    fn was_asked(&self, _look: InspectedCall<'_>) -> Option<bool> {
        None
    }

    /// Where the paths of a call and the roots of the rules really lead.
    fn locate_paths<'a>(
        &'a self,
        _look: InspectedCall<'a>,
        search: PathSearch,
    ) -> BoxFuture<'a, RealLocations> {
        Box::pin(place::resolve_paths(search))
    }

    /// The origins of untrusted text in these contents, as far as calls of this agent brought it there. What holds none is left out.
    fn marked_origins<'a>(&'a self, _contents: Vec<MarkedContent>) -> BoxFuture<'a, TaintedFiles> {
        Box::pin(std::future::ready(TaintedFiles::new()))
    }

    /// Records that these bytes come from these origins. A file in which they are found later has these origins, too.
    ///
    /// # Errors
    /// The record could not be written.
    fn mark_content<'a>(
        &'a self,
        _content: Vec<u8>,
        _origins: BTreeSet<String>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// How the tool's unknown outcomes are found out.
    fn reconcile_method(&self, _tool: &str) -> ReconcileMethod {
        ReconcileMethod::Person
    }

    /// Runs the check that is configured for the permit's tool. It gets the call's `request_id`, `tool` and `arguments`, and
    /// answers `done`, `not-done` or anything else for "don't know".
    fn run_check<'a>(
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
    fn set_sampling_handler(&self, _sampler: SamplingHandler) {}

    /// Ends servers and processes that outlive calls.
    fn close(&self) -> BoxFuture<'_, ()>;
}
