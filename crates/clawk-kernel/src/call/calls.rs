//! The parts that the one path of a call needs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clawk_manifest::model::{Manifest, Skill};
use clawk_policy::path::wanted;
use clawk_policy::{Engine, Subject, UsageView};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::approval::Desk;
use super::standing::{Held, Lasting};
use super::{Caller, Permit, suggest};
use crate::carp::Carp;
use crate::catalog::{Catalog, Described, Entry};
use crate::checkpoint::Interrupted;
use crate::claims::Claims;
use crate::dedup::Dedup;
use crate::error::CallError;
use crate::event::{Scribe, ToolDescribed, canonical, digest, kind};
use crate::hosts::Hosts;
use crate::infer::Models;
use crate::judge::Classifier;
use crate::lifecycle::Life;
use crate::member::Member;
use crate::memory::Memories;
use crate::notice::Question;
use crate::output::{Cuts, Shown};
use crate::place::Search;
use crate::ports::{Later, Look, RunError, RunOutcome, ToolRunner};
use crate::purse::{Purse, Purses};
use crate::rates::Rates;
use crate::replay::facts::ToolFacts;
use crate::screen::Screens;
use crate::state::Table;
use crate::stop::Brake;
use crate::team::Team;
use crate::time::{Clock, Timestamp};
use crate::turn::Bounds;
use crate::world_model::PlanLimits;

/// Runs a skill as the inner turn of a composite tool. Whoever composes the agent gives it: a turn calls tools again.
pub(crate) type Composite = for<'a> fn(
    &'a Calls,
    &'a Caller,
    &'a Skill,
    Permit,
    Purse,
    &'a CancellationToken,
) -> Later<'a, Result<RunOutcome, RunError>>;

/// What the path of a call needs, and what turns, which call, need of it.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) engine: Engine,
    pub(crate) catalog: Catalog,
    pub(crate) runner: Arc<dyn ToolRunner>,
    /// The swarm; none where the manifest has none, and in a replay, where the record is asked.
    pub(crate) team: Option<Arc<Team>>,
    pub(crate) composite: Composite,
    pub(crate) models: Arc<Models>,
    pub(crate) screens: Arc<Screens>,
    pub(crate) classifier: Classifier,
    pub(crate) purses: Arc<Purses>,
    pub(crate) table: Arc<Table>,
    pub(crate) life: Arc<Life>,
    pub(crate) brake: Arc<Brake>,
    pub(crate) dedup: Arc<Dedup>,
    /// The other hosts of this agent; none where it has the agent alone.
    pub(crate) hosts: Option<Arc<Hosts>>,
    pub(crate) scribe: Scribe,
    pub(crate) desk: Desk,
    pub(crate) rates: Rates,
    /// What of tools' results was cut.
    pub(crate) cuts: Arc<Cuts>,
    /// Atlases, and whoever speaks CRA.
    pub(crate) carp: Carp,
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
    pub(crate) shown: Shown,
    /// The zone in which messages' times are told; none: they are not told.
    pub(crate) timezone: Option<jiff::tz::TimeZone>,
    /// What is remembered.
    pub(crate) memories: Arc<Memories>,
    /// How much a plan step may take; none: skills do not plan, as in a record of an earlier version.
    pub(crate) planning: Option<PlanLimits>,
    /// Composite calls that go on after a crash.
    pub(crate) interrupted: Interrupted,
    /// In a replay: the swarm's tools, and since when they were offered.
    pub(crate) taped: Option<BTreeMap<String, Timestamp>>,
}

impl Calls {
    /// The swarm's tools that a turn is offered.
    pub(crate) fn team_offers(&self, in_turn: bool, member: Option<&Member>) -> Vec<Arc<Entry>> {
        if !in_turn || self.manifest.swarm.is_none() {
            return Vec::new();
        }
        let now = self.scribe.now();
        let offered = |name: &&str| match &self.taped {
            None => true,
            Some(taped) => taped.get(*name).is_some_and(|since| *since <= now),
        };
        let names = Team::offers(member);
        names
            .into_iter()
            .filter(offered)
            .filter_map(|name| self.catalog.of_team(name))
            .collect()
    }

    /// Milliseconds until this question lapses.
    pub(crate) fn left_ms(&self, question: &Question) -> u64 {
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
    pub(crate) async fn described(&self, entry: &Entry) -> Result<Arc<Described>, CallError> {
        let scanner = || self.screens.scanner().without_shapes();
        let described = entry.described(&*self.runner, scanner).await?;
        if entry.first_look() {
            let bytes = canonical(&ToolFacts::of(&described, entry.from.as_deref()));
            let tool_hash = digest(&bytes);
            let payload = ToolDescribed {
                action_id: &entry.name,
                tool_hash,
            };
            let thread = self.life.root.child(self.life.root.span);
            let draft = self.scribe.entry(&thread, kind::TOOL_DESCRIBED, &payload);
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
        let subject = Subject {
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
        let search = Search {
            paths: wanted(arguments, subject.schema, workdir),
            then: then.map(|(root, then)| (root.clone(), then.clone())).collect(),
            roots,
        };
        let look = Look {
            tool,
            arguments,
            plan: &entry.plan,
            workdir,
        };
        let places = self.runner.places(look, search).await;
        let subject = Subject {
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
    pub(crate) fn stands(&self, held: Held) {
        if let (Lasting::Always, Some(dir)) = (held.lasting, &self.suggestions)
            && let Err(error) = suggest(dir, &held)
        {
            tracing::warn!(%error, "a suggested rule could not be written");
        }
        self.desk.standing.add(held);
    }
}
