//! The dependencies of the call path.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clawk_events::payload::ToolDescribed;
use clawk_manifest::model::Manifest;
use clawk_policy::path::paths_to_resolve;
use clawk_policy::{Engine, PolicySubject, UsageView};
use serde_json::{Map, Value};

use super::approval::ApprovalRegistry;
use super::ports::{KernelTools, SessionOwner};
use super::standing::{GrantLifetime, StandingGrant};
use super::{ToolRunner, suggest};
use crate::carp::CarpRuntime;
use crate::catalog::{CatalogEntry, DescribedTool, ToolCatalog, ToolFacts};
use crate::dedup::DedupTable;
use crate::error::CallError;
use crate::event::{JournalWriter, canonical, digest};
use crate::lifecycle::AgentLifecycle;
use crate::notice::ApprovalQuestion;
use crate::place::PathSearch;
use crate::ports::InspectedCall;
use crate::purse::BudgetTree;
use crate::rates::CallRateWindow;
use crate::screen::{AgentScreening, InjectionJudge};
use crate::stop::EmergencyStop;
use crate::time::Clock;
use crate::turn::Bounds;

/// The governor: the dependencies of the call path.
#[derive(Debug)]
pub struct CallGovernor {
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// The compiled policies.
    pub engine: Engine,
    /// The tools.
    pub catalog: ToolCatalog,
    /// Runs the tools, with a permit.
    pub runner: Arc<dyn ToolRunner>,
    /// The screening of texts.
    pub screens: Arc<AgentScreening>,
    /// Checks text for prompt injections.
    pub judge: Arc<dyn InjectionJudge>,
    /// The budgets.
    pub purses: Arc<BudgetTree>,
    /// The state of the agent.
    pub life: Arc<AgentLifecycle>,
    /// The emergency stops.
    pub brake: Arc<EmergencyStop>,
    /// The answered and running requests.
    pub dedup: Arc<DedupTable>,
    /// The other hosts of this agent; `None` if there is only this one.
    pub owners: Option<Arc<dyn SessionOwner>>,
    /// The tools that the kernel itself runs.
    pub kernel_tools: Arc<dyn KernelTools>,
    /// Composite calls that a stop interrupts continue after the next start, because the manifest has a store of checkpoints.
    pub keeps_checkpoints: bool,
    /// Writes the journal.
    pub scribe: JournalWriter,
    /// The approval requests.
    pub desk: ApprovalRegistry,
    /// The rate windows of tools.
    pub rates: CallRateWindow,
    /// The Atlases and the CRA clients' runtime.
    pub carp: CarpRuntime,
    /// An effect's outcome could not be recorded. It is recorded as unknown at the end, at the latest.
    pub owes: AtomicBool,
    /// The tools' working directory and the base of relative paths, absolute.
    pub workdir: PathBuf,
    /// Identifies the manifest. Standing grants are valid for this manifest only.
    pub origin: String,
    /// The folder for suggested rules; `None`: no suggestions are made.
    pub suggestions: Option<PathBuf>,
    /// `true` while audit records can be delivered to the policies' destinations.
    pub audit_writable: Arc<AtomicBool>,
}

impl CallGovernor {
    /// Returns the milliseconds until this request expires.
    pub fn left_ms(&self, question: &ApprovalQuestion) -> u64 {
        let left_us = question.until_us.saturating_sub(self.clock().monotonic_us());
        left_us.div_ceil(1000)
    }

    /// Returns the clock.
    pub fn clock(&self) -> &dyn Clock {
        self.scribe.clock()
    }

    /// Returns today's spending in the form that rules use.
    pub fn usage_view(&self) -> UsageView {
        let (tokens_today, cost_today_microusd) = self.purses.spent_today(self.scribe.now());
        UsageView {
            tokens_today,
            cost_today_microusd,
        }
    }

    /// Returns the limits of a turn.
    pub fn turn_bounds(&self) -> Bounds {
        let budgets = self.purses.budgets();
        Bounds {
            steps: budgets.steps_per_turn.max(1),
            repeats: budgets.repeats_per_turn,
        }
    }

    /// Returns the tool's full description. If this run has not recorded it yet, records it.
    pub async fn describe_tool(&self, entry: &CatalogEntry) -> Result<Arc<DescribedTool>, CallError> {
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
    pub async fn explain_decision(&self, tool: &str, arguments: &Map<String, Value>) -> Vec<String> {
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
    pub fn add_standing_grant(&self, held: StandingGrant) {
        if let (GrantLifetime::Always, Some(dir)) = (held.lasting, &self.suggestions)
            && let Err(error) = suggest(dir, &held)
        {
            tracing::warn!(%error, "a suggested rule could not be written");
        }
        self.desk.standing.add(held);
    }
}
