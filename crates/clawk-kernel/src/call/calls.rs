//! The parts that the one path of a call needs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clawk_events::payload::ToolDescribed;
use clawk_manifest::model::{Manifest, Skill};
use clawk_policy::path::wanted;
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

/// Runs a skill as the inner turn of a composite tool. Whoever composes the agent gives it: a turn calls tools again.
pub(crate) type CompositeRunner = for<'a> fn(
    &'a CallGovernor,
    &'a CallerContext,
    &'a Skill,
    Permit,
    BudgetAccount,
    &'a CancellationToken,
) -> BoxFuture<'a, Result<RunOutcome, RunError>>;

/// What the path of a call needs, and what turns, which call, need of it.
#[derive(Debug)]
pub(crate) struct CallGovernor {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) engine: Engine,
    pub(crate) catalog: ToolCatalog,
    pub(crate) runner: Arc<dyn ToolRunner>,
    /// The swarm; none where the manifest has none, and in a replay, where the record is asked.
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
    /// The other hosts of this agent; none where it has the agent alone.
    pub(crate) hosts: Option<Arc<PeerHosts>>,
    pub(crate) scribe: JournalWriter,
    pub(crate) desk: ApprovalRegistry,
    pub(crate) rates: CallRateWindow,
    /// What of tools' results was cut.
    pub(crate) cuts: Arc<TruncatedOutputs>,
    /// Atlases, and whoever speaks CRA.
    pub(crate) carp: CarpRuntime,
    /// The outcome of an effect could not be recorded: it is told unknown before the end, at the latest.
    pub(crate) owes: AtomicBool,
    /// Where tools start and relative paths begin; absolute.
    pub(crate) workdir: PathBuf,
    /// Which manifest it is: standing grants hold for it alone.
    pub(crate) origin: String,
    /// The folder where rules are suggested to the operator; none: they are not.
    pub(crate) suggestions: Option<PathBuf>,
    /// Audit records are being delivered where policies want them.
    pub(crate) audit_writable: Arc<AtomicBool>,
    /// Who judges answers before they leave; `None`: answers leave unjudged.
    pub(crate) claims: Option<Claims>,
    /// How much of a tool's result a model reads.
    pub(crate) shown: ResultExcerpt,
    /// The zone in which messages' times are told; none: they are not told.
    pub(crate) timezone: Option<jiff::tz::TimeZone>,
    /// What is remembered.
    pub(crate) memories: Arc<MemoryServices>,
    /// How much a plan step may take; none: skills do not plan, as in a record of an earlier version.
    pub(crate) planning: Option<PlanLimits>,
    /// Composite calls that go on after a crash.
    pub(crate) interrupted: InterruptedComposites,
    /// In a replay: the swarm's tools, and since when they were offered.
    pub(crate) taped: Option<BTreeMap<String, Timestamp>>,
}

impl CallGovernor {
    /// The swarm's tools that a turn is offered.
    pub(crate) fn team_offers(&self, in_turn: bool, member: Option<&Member>) -> Vec<Arc<CatalogEntry>> {
        if !in_turn || self.manifest.swarm.is_none() {
            return Vec::new();
        }
        let now = self.scribe.now();
        let offered = |name: &&str| match &self.taped {
            None => true,
            Some(taped) => taped.get(*name).is_some_and(|since| *since <= now),
        };
        let names = SwarmTeam::offers(member);
        names
            .into_iter()
            .filter(offered)
            .filter_map(|name| self.catalog.of_team(name))
            .collect()
    }

    /// Milliseconds until this question lapses.
    pub(crate) fn left_ms(&self, question: &ApprovalQuestion) -> u64 {
        let left_us = question.until_us.saturating_sub(self.clock().monotonic_us());
        left_us.div_ceil(1000)
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.scribe.clock()
    }

    /// What was spent today, as rules see it.
    pub(crate) fn usage(&self) -> UsageView {
        let (tokens_today, cost_today_microusd) = self.purses.today(self.scribe.now());
        UsageView {
            tokens_today,
            cost_today_microusd,
        }
    }

    /// What a turn may do at most.
    pub(crate) fn bounds(&self) -> Bounds {
        let budgets = self.purses.budgets();
        Bounds {
            steps: budgets.steps_per_turn.max(1),
            repeats: budgets.repeats_per_turn,
        }
    }

    /// Everything known of a tool; what was not told in this run is told to the record.
    pub(crate) async fn described(&self, entry: &CatalogEntry) -> Result<Arc<DescribedTool>, CallError> {
        let scanner = || self.screens.scanner().without_shapes();
        let described = entry.described(&*self.runner, scanner).await?;
        if entry.first_look() {
            let bytes = canonical(&ToolFacts::of(&described, entry.from.as_deref()));
            let tool_hash = digest(&bytes);
            let payload = ToolDescribed {
                action_id: entry.name.to_string(),
                tool_hash,
            };
            let thread = self.life.root.child(self.life.root.span);
            let draft = self.scribe.entry(&thread, &payload);
            // Queued before the decision that rests on it; the decision waits for both.
            if let Err(error) = self.scribe.submit(vec![draft.content(tool_hash, bytes)]) {
                entry.look_again();
                return Err(error.into());
            }
        }
        Ok(described)
    }

    /// Why the rules decide as they do, for people.
    pub(crate) async fn explain(&self, tool: &str, arguments: &Map<String, Value>) -> Vec<String> {
        let Some(entry) = self.catalog.get(tool) else {
            return Vec::new();
        };
        let Ok(described) = self.described(&entry).await else {
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
            usage: self.usage(),
            places: None,
            taint: Some(&[]),
            values: None,
        };
        let roots = self.engine.roots(&subject);
        let then = roots
            .keys()
            .filter_map(|root| self.catalog.roots.get_key_value(root));
        let search = PathSearch {
            paths: wanted(arguments, subject.schema, workdir),
            then: then.map(|(root, then)| (root.clone(), then.clone())).collect(),
            roots,
        };
        let look = InspectedCall {
            tool,
            arguments,
            plan: &entry.plan,
            workdir,
        };
        let places = self.runner.places(look, search).await;
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

    /// A person's standing grant stands from here on.
    pub(crate) fn stands(&self, held: StandingGrant) {
        if let (GrantLifetime::Always, Some(dir)) = (held.lasting, &self.suggestions)
            && let Err(error) = suggest(dir, &held)
        {
            tracing::warn!(%error, "a suggested rule could not be written");
        }
        self.desk.standing.add(held);
    }
}
