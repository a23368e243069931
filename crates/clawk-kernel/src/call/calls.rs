//! The dependencies of the call path.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clawk_events::payload::ToolDescribed;
use clawk_manifest::model::{Manifest, Skill};
use clawk_policy::path::paths_to_resolve;
use clawk_policy::{Engine, PolicySubject, UsageView};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::approval::ApprovalRegistry;
use super::standing::{GrantLifetime, StandingGrant};
use super::{CallerContext, Permit, suggest};
use crate::carp::CarpRuntime;
use crate::catalog::{CatalogEntry, DescribedTool, ToolCatalog};
use crate::checkpoint::InterruptedComposites;
use crate::claims::Claims;
use crate::dedup::DedupTable;
use crate::error::CallError;
use crate::event::{JournalWriter, canonical, digest};
use crate::hosts::PeerHosts;
use crate::infer::ModelServices;
use crate::judge::InjectionClassifier;
use crate::lifecycle::AgentLifecycle;
use crate::member::Member;
use crate::memory::MemoryServices;
use crate::notice::ApprovalQuestion;
use crate::output::{ResultExcerpt, TruncatedOutputs};
use crate::place::PathSearch;
use crate::ports::{BoxFuture, InspectedCall, RunError, RunOutcome, ToolRunner};
use crate::purse::{BudgetAccount, BudgetTree};
use crate::rates::CallRateWindow;
use crate::replay::facts::ToolFacts;
use crate::screen::AgentScreening;
use crate::state::Table;
use crate::stop::EmergencyStop;
use crate::team::SwarmTeam;
use crate::time::{Clock, Timestamp};
use crate::turn::Bounds;
use crate::world_model::PlanLimits;

/// Runs a skill as the inner turn of a composite tool. The composition passes it in, because a turn calls tools again.
pub(crate) type CompositeRunner = for<'a> fn(
    &'a CallGovernor,
    &'a CallerContext,
    &'a Skill,
    Permit,
    BudgetAccount,
    &'a CancellationToken,
) -> BoxFuture<'a, Result<RunOutcome, RunError>>;

/// The dependencies of the call path, and of turns, which make calls.
#[derive(Debug)]
pub(crate) struct CallGovernor {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) engine: Engine,
    pub(crate) catalog: ToolCatalog,
    pub(crate) runner: Arc<dyn ToolRunner>,
    /// The swarm; `None` without one in the manifest, and in a replay, which uses the record instead.
    pub(crate) team: Option<Arc<SwarmTeam>>,
    pub(crate) composite: CompositeRunner,
    pub(crate) models: Arc<ModelServices>,
    pub(crate) screens: Arc<AgentScreening>,
    pub(crate) classifier: InjectionClassifier,
    pub(crate) purses: Arc<BudgetTree>,
    pub(crate) table: Arc<Table>,
    pub(crate) life: Arc<AgentLifecycle>,
    pub(crate) brake: Arc<EmergencyStop>,
    pub(crate) dedup: Arc<DedupTable>,
    /// The other hosts of this agent; `None` if there is only this one.
    pub(crate) hosts: Option<Arc<PeerHosts>>,
    pub(crate) scribe: JournalWriter,
    pub(crate) desk: ApprovalRegistry,
    pub(crate) rates: CallRateWindow,
    /// The omitted parts of tool results.
    pub(crate) cuts: Arc<TruncatedOutputs>,
    /// The Atlases and the CRA clients' runtime.
    pub(crate) carp: CarpRuntime,
    /// An effect's outcome could not be recorded. It is recorded as unknown at the end, at the latest.
    pub(crate) owes: AtomicBool,
    /// The tools' working directory and the base of relative paths, absolute.
    pub(crate) workdir: PathBuf,
    /// Identifies the manifest. Standing grants are valid for this manifest only.
    pub(crate) origin: String,
    /// The folder for suggested rules; `None`: no suggestions are made.
    pub(crate) suggestions: Option<PathBuf>,
    /// `true` while audit records can be delivered to the policies' destinations.
    pub(crate) audit_writable: Arc<AtomicBool>,
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

impl CallGovernor {
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

    /// Returns the milliseconds until this request expires.
    pub(crate) fn left_ms(&self, question: &ApprovalQuestion) -> u64 {
        let left_us = question.until_us.saturating_sub(self.clock().monotonic_us());
        left_us.div_ceil(1000)
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.scribe.clock()
    }

    /// Returns today's spending in the form that rules use.
    pub(crate) fn usage_view(&self) -> UsageView {
        let (tokens_today, cost_today_microusd) = self.purses.spent_today(self.scribe.now());
        UsageView {
            tokens_today,
            cost_today_microusd,
        }
    }

    /// Returns the limits of a turn.
    pub(crate) fn turn_bounds(&self) -> Bounds {
        let budgets = self.purses.budgets();
        Bounds {
            steps: budgets.steps_per_turn.max(1),
            repeats: budgets.repeats_per_turn,
        }
    }

    /// Returns the tool's full description. If this run has not recorded it yet, records it.
    pub(crate) async fn describe_tool(&self, entry: &CatalogEntry) -> Result<Arc<DescribedTool>, CallError> {
        let scanner = || self.screens.scanner().without_shapes();
        let described = entry.describe_once(&*self.runner, scanner).await?;
        if entry.first_look() {
            let bytes = canonical(&ToolFacts::from_described(&described, entry.from.as_deref()));
            let tool_hash = digest(&bytes);
            let payload = ToolDescribed {
                action_id: entry.name.to_string(),
                tool_hash,
            };
            let thread = self.life.root.child(self.life.root.span);
            let draft = self.scribe.draft_event(&thread, &payload);
            // Queued before the decision that rests on it; the decision waits for both.
            if let Err(error) = self
                .scribe
                .submit_drafts(vec![draft.with_content(tool_hash, bytes)])
            {
                entry.look_again();
                return Err(error.into());
            }
        }
        Ok(described)
    }

    /// Explains for people why the rules decide as they do.
    pub(crate) async fn explain_decision(&self, tool: &str, arguments: &Map<String, Value>) -> Vec<String> {
        let Some(entry) = self.catalog.get(tool) else {
            return Vec::new();
        };
        let Ok(described) = self.describe_tool(&entry).await else {
            return Vec::new();
        };
        let workdir = &self.workdir;
        let subject = PolicySubject {
            tool,
            labels: &described.labels,
            annotations: &described.annotations,
            arguments,
            schema: Some(&described.input_schema),
            workdir,
            usage: self.usage_view(),
            places: None,
            taint: Some(&[]),
            values: None,
        };
        let roots = self.engine.path_rule_roots(&subject);
        let then = roots
            .keys()
            .filter_map(|root| self.catalog.roots.get_key_value(root));
        let search = PathSearch {
            paths: paths_to_resolve(arguments, subject.schema, workdir),
            then: then.map(|(root, then)| (root.clone(), then.clone())).collect(),
            roots,
        };
        let look = InspectedCall {
            tool,
            arguments,
            plan: &entry.plan,
            workdir,
        };
        let places = self.runner.locate_paths(look, search).await;
        let subject = PolicySubject {
            places: Some(&places),
            ..subject
        };
        self.engine
            .explain(&subject)
            .to_string()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Activates a person's standing grant.
    pub(crate) fn add_standing_grant(&self, held: StandingGrant) {
        if let (GrantLifetime::Always, Some(dir)) = (held.lasting, &self.suggestions)
            && let Err(error) = suggest(dir, &held)
        {
            tracing::warn!(%error, "a suggested rule could not be written");
        }
        self.desk.standing.add(held);
    }
}
