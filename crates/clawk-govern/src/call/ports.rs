//! Ports of the call path: what it needs from the rest of the agent, without knowing sessions, swarms, hosts or models.

use std::any::Any;
use std::fmt;

use clawk_manifest::model::AutonomyLevel;
use clawk_proto::RequestId;
use tokio_util::sync::CancellationToken;

use super::approval::{ApprovalReply, ReplyOutcome};
use super::{CallGovernor, CallerContext, Permit};
use crate::catalog::CatalogEntry;
use crate::error::CallError;
use crate::ports::{BoxFuture, JournalError, RunError, RunOutcome};
use crate::purse::BudgetAccount;

/// A decided call of a tool that the kernel itself runs.
#[derive(Debug)]
pub struct KernelToolCall<'a> {
    /// The caller.
    pub caller: &'a CallerContext,
    /// The tool.
    pub tool: &'a CatalogEntry,
    /// The right to run it once.
    pub permit: Permit,
    /// The budget that pays for the work.
    pub purse: BudgetAccount,
    /// Ends the work.
    pub cancel: &'a CancellationToken,
}

/// The tools that the kernel itself runs: composite tools, skills, the swarm's tools, memory, sampling, and shortened results.
pub trait KernelTools: Send + Sync + fmt::Debug {
    /// Returns whether this caller may use this tool of the kernel's own now; see [`crate::catalog::ToolCatalog::kernel_tool`].
    fn offers_tool(&self, tool: &CatalogEntry, caller: &CallerContext) -> bool;

    /// Returns whether [`KernelTools::run_tool`] runs this tool, and not the [`super::ToolRunner`].
    fn runs_tool(&self, tool: &CatalogEntry) -> bool;

    /// Runs it.
    ///
    /// # Errors
    /// The errors of [`super::ToolRunner::run`].
    fn run_tool<'a>(&'a self, call: KernelToolCall<'a>) -> BoxFuture<'a, Result<RunOutcome, RunError>>;
}

/// The other hosts of this agent, which own other sessions.
pub trait SessionOwner: Send + Sync + fmt::Debug {
    /// Gives an approval answer to the host that owns the call's session.
    fn forward_reply<'a>(
        &'a self,
        calls: &'a CallGovernor,
        id: &'a RequestId,
        reply: &'a ApprovalReply,
    ) -> BoxFuture<'a, ReplyOutcome>;

    /// Returns the steps of a plan that wait on other hosts.
    fn plan_steps(&self, plan: &RequestId) -> Vec<(u32, RequestId)>;

    /// Returns the row of the journal up to which emergency stops are known here.
    fn stops_known(&self) -> u64;

    /// Reads the stops that this host does not know yet.
    ///
    /// # Errors
    /// The journal can't be read.
    fn see_stops<'a>(&'a self, calls: &'a CallGovernor) -> BoxFuture<'a, Result<(), JournalError>>;
}

/// The rights of a turn that works on a task which somebody else gave: they only narrow the agent's own.
pub trait TaskRights: Any + Send + Sync + fmt::Debug {
    /// Returns the stricter of the task's autonomy level and the Claw's.
    fn effective_autonomy(&self, claw: AutonomyLevel) -> AutonomyLevel;

    /// Returns whether the task may use this tool of the agent.
    fn may_use(&self, tool: &str) -> bool;

    /// Completes when an effect of the task may begin on this host.
    ///
    /// # Errors
    /// Another host has the task, so nothing of it counts here any more.
    fn may_begin<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<(), CallError>>;

    /// Records that a call may have had effects.
    fn note_call(&self, error: &CallError, side_effects: bool);
}
