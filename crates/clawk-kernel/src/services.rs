//! The services of a turn beside the governor of its calls, and the tools that the kernel itself runs.
//!
//! The governor knows none of them. It reaches them through its ports [`KernelTools`] and
//! [`SessionOwner`](crate::call::SessionOwner), and only after its decision.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use clawk_proto::SessionId;

use crate::author::TextAuthor;
use crate::call::{CallGovernor, CallerContext, Context, KernelToolCall, KernelTools};
use crate::catalog::{CatalogEntry, KernelToolSet};
use crate::checkpoint::InterruptedComposites;
use crate::claims::Claims;
use crate::composite;
use crate::hosts::PeerHosts;
use crate::infer::ModelServices;
use crate::judge::InjectionClassifier;
use crate::member::{Member, member_of};
use crate::memory::MemoryServices;
use crate::output::{self, ResultExcerpt, TruncatedOutputs};
use crate::ports::{BoxFuture, RunError, RunOutcome};
use crate::remember;
use crate::sampling;
use crate::skill;
use crate::state::Table;
use crate::team::{self, SwarmTeam, SwarmToolCaller};
use crate::time::Timestamp;
use crate::world_model::PlanLimits;

/// The governor of calls, and what turns need beside it.
#[derive(Debug)]
pub(crate) struct KernelServices {
    pub(crate) governor: Arc<CallGovernor>,
    /// The swarm; `None` without one in the manifest, and in a replay, which uses the record instead.
    pub(crate) team: Option<Arc<SwarmTeam>>,
    pub(crate) models: Arc<ModelServices>,
    pub(crate) classifier: InjectionClassifier,
    pub(crate) table: Arc<Table>,
    /// The other hosts of this agent; `None` if there is only this one.
    pub(crate) hosts: Option<Arc<PeerHosts>>,
    /// The omitted parts of tool results.
    pub(crate) cuts: Arc<TruncatedOutputs>,
    /// The model that checks answers before they are sent; `None`: answers are not checked.
    pub(crate) claims: Option<Claims>,
    /// How much of a tool's result a model reads.
    pub(crate) shown: ResultExcerpt,
    /// The time zone for the times of messages; `None`: the model sees no times.
    pub(crate) timezone: Option<jiff::tz::TimeZone>,
    /// The memory services.
    pub(crate) memories: Arc<MemoryServices>,
    /// Limits for a plan step; `None`: skills do not plan, as in a record of an earlier version.
    pub(crate) planning: Option<PlanLimits>,
    /// Composite calls that continue after a crash.
    pub(crate) interrupted: InterruptedComposites,
    /// In a replay: the swarm's tools, and the time since when they were offered.
    pub(crate) taped: Option<BTreeMap<String, Timestamp>>,
}

impl Deref for KernelServices {
    type Target = CallGovernor;

    fn deref(&self) -> &CallGovernor {
        &self.governor
    }
}

impl KernelServices {
    /// Returns the swarm's tools that are offered in a turn.
    pub(crate) fn team_offers(&self, in_turn: bool, member: Option<&Member>) -> Vec<Arc<CatalogEntry>> {
        if !in_turn || self.manifest.swarm.is_none() {
            return Vec::new();
        }
        let now = self.scribe.now();
        let offered = |name: &&str| match &self.taped {
            None => true,
            Some(taped) => taped.get(*name).is_some_and(|since| *since <= now),
        };
        let names = SwarmTeam::offered_names(member);
        names
            .into_iter()
            .filter(offered)
            .filter_map(|name| self.catalog.of_team(name))
            .collect()
    }

    /// Returns the context of a call that a client makes itself, by its session's entry point.
    pub(crate) fn session_context(&self, session: SessionId) -> Context {
        let state = self.table.get(session);
        let requester = state.map_or_else(TextAuthor::unknown, |state| {
            TextAuthor::of_door(&state.door, &self.manifest)
        });
        Context {
            requester: Some(requester),
            ..Context::default()
        }
    }

    /// Runs a decided call of one of the kernel's own tools.
    async fn run_kernel_tool(&self, call: KernelToolCall<'_>) -> Result<RunOutcome, RunError> {
        let KernelToolCall {
            caller,
            tool,
            permit,
            purse,
            cancel,
        } = call;
        if let Some(skill) = &tool.skill {
            return composite::run(self, caller, skill, permit, purse, cancel).await;
        }
        if tool.reads_output {
            let session = caller.thread.session;
            let window = self.models.window_tokens(session, self.models.primary_provider());
            let cuts = (&*self.cuts, self.shown.limited_to_window(window));
            return output::read(&self.scribe, cuts, session, permit.arguments()).await;
        }
        if tool.joins.is_some() {
            return skill::join_skill(self, caller, tool, permit.arguments(), cancel).await;
        }
        if tool.samples {
            return sampling::run(self, caller, &permit, &purse, cancel).await;
        }
        if self.runner.is_kernels(&tool.name) {
            return remember::run(self, caller, &permit, cancel).await;
        }
        let Some(team) = self.team.as_ref().filter(|_| tool.of_team) else {
            let reason = format!("`{}` is not a tool of the kernel", tool.name);
            return Err(RunError::Unavailable(reason));
        };
        let made_from = caller.context.output_origins();
        let member = member_of(caller);
        let calling = SwarmToolCaller {
            calls: self,
            session: caller.thread.session,
            role: caller.role,
            member: member.as_deref(),
            request_id: permit.request_id(),
            rank: &caller.rank,
            made_from: &made_from,
        };
        Box::pin(team.call(&tool.name, calling, permit.arguments(), cancel)).await
    }
}

/// Returns the declarations of the kernel's own tools.
pub(crate) fn kernel_tools() -> KernelToolSet {
    KernelToolSet {
        output_read: output::tool_declaration(),
        sampling: sampling::tool_declaration(),
        team: team::tool_declarations().into(),
        team_timeout_ms: team::WAIT_MS,
    }
}

/// The kernel's own tools for the governor, which is part of the services. So the services are held weakly; without them nothing runs.
#[derive(Debug)]
pub(crate) struct KernelToolRunner(pub(crate) Weak<KernelServices>);

impl KernelTools for KernelToolRunner {
    fn offers_tool(&self, tool: &CatalogEntry, caller: &CallerContext) -> bool {
        let Some(services) = self.0.upgrade() else {
            return false;
        };
        if tool.reads_output {
            return services.cuts.has_cuts(caller.thread.session);
        }
        if tool.samples {
            return sampling::may_sample(caller);
        }
        let member = member_of(caller);
        let offered = services.team_offers(caller.turn.is_some(), member.as_deref());
        tool.of_team && offered.iter().any(|entry| entry.name == tool.name)
    }

    fn runs_tool(&self, tool: &CatalogEntry) -> bool {
        let Some(services) = self.0.upgrade() else {
            return true;
        };
        let own = tool.skill.is_some() || tool.reads_output || tool.joins.is_some() || tool.samples;
        own || services.runner.is_kernels(&tool.name) || (tool.of_team && services.team.is_some())
    }

    fn run_tool<'a>(&'a self, call: KernelToolCall<'a>) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let Some(services) = self.0.upgrade() else {
                return Err(RunError::NotBegun("the agent has ended".to_owned()));
            };
            services.run_kernel_tool(call).await
        })
    }
}
