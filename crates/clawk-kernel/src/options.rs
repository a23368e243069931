//! The settings of an agent that belong to its machine, from `clawk.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clawk_manifest::model::Identity;
use clawk_trace::checkpoint::TraceSigner;
use serde::{Deserialize, Serialize};

use crate::claims::Claims;
use crate::outbox::OutboxLimits;
use crate::output::ResultExcerpt;
use crate::ports::{RemoteWorkers, TokenKey};
use crate::purse::{BudgetSettings, PriceTable};
use crate::retry_policy::ModelOptions;
use crate::screen::JudgeSettings;
use crate::time::Timestamp;
use crate::world_model::PlanLimits;

/// The agent's settings from `clawk.toml`.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where tools start and relative paths begin; absolute.
    pub workdir: PathBuf,
    /// Which manifest it runs: the file's resolved path, or what else tells it from others. Standing grants hold for it alone.
    pub origin: String,
    /// Limits and levels where the manifest's sandbox is silent.
    pub sandbox: clawk_plan::PlanDefaults,
    /// What is the runtime's and not the tools', whatever is mounted.
    pub own: clawk_plan::RuntimeFiles,
    /// The folder where rules are suggested to the operator; none: they are not.
    pub suggestions: Option<PathBuf>,
    /// What it may use up.
    pub budgets: BudgetSettings,
    /// What models cost.
    pub prices: PriceTable,
    /// Audit records are being delivered where policies want them. While not, what must be audited does not run.
    pub audit_writable: Arc<AtomicBool>,
    /// How much a plan step of a world model may take; none: skills do not plan.
    pub planning: Option<PlanLimits>,
    /// Who judges text, where a policy asks for a model's judgement.
    pub judge: JudgeSettings,
    /// Who judges answers before they leave; none: nobody does.
    pub claims: Option<Claims>,
    /// How much of a tool's result a model reads.
    pub shown: ResultExcerpt,
    /// What is local about asking a provider, by its name in the manifest.
    pub models: BTreeMap<String, ModelOptions>,
    /// After the start, providers are reached for without paying; while none can be, the agent is in ERROR and messages wait.
    pub reach_providers: bool,
    /// How much waits, and how much runs at once.
    pub inbox: InboxLimits,
    /// How long a delivery is tried.
    pub outbox: OutboxLimits,
    /// Stores whose entries a turn may recall whoever said them.
    pub across_senders: BTreeSet<String>,
    /// The zone in which a message's date and time are told to a model that is told none of the sender's; none: no time is told, as
    /// in a simulation.
    pub timezone: Option<jiff::tz::TimeZone>,
    /// The swarm.
    pub swarm: SwarmOptions,
}

/// Settings of the swarm from `[swarm]` of `clawk.toml`.
#[derive(Debug, Clone, Default)]
pub struct SwarmOptions {
    /// `[swarm]` of `clawk.toml`.
    pub local: clawk_swarm::limit::LocalLimits,
    /// Identities of members, by name.
    pub identities: BTreeMap<String, Arc<Identity>>,
    /// Members that work elsewhere; none: all work in this process.
    pub elsewhere: Option<Arc<dyn RemoteWorkers>>,
    /// What report tokens are made of.
    pub token_key: TokenKey,
    /// This host's key, under which it gives tasks to other hosts and reports theirs; none: it signs nothing.
    pub signer: Option<Arc<TraceSigner>>,
    /// In a replay: the swarm's tools by name, and since when they were offered. Their results come from the record, as those of all
    /// tools do, and no member works.
    pub taped: Option<BTreeMap<String, Timestamp>>,
}

/// `[inbox]`: how much waits, and how much runs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InboxLimits {
    /// Messages that wait, beyond 32 in each conversation, durable and without taking memory; more are refused.
    pub waiting: usize,
    /// Turns that run at once, of all conversations.
    pub turns: usize,
    /// A channel's conversation leaves memory when nothing was said in it for so long, milliseconds. It goes on with the next
    /// message.
    pub idle_ms: u64,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self {
            waiting: 1000,
            turns: 64,
            idle_ms: 600_000,
        }
    }
}

impl SwarmOptions {
    /// With nobody behind the swarm's tools: they are offered, and their calls come to the runner, as in a replay.
    #[must_use]
    pub fn unmanned(self) -> Self {
        let names = crate::team::specs().into_iter().map(|spec| spec.name);
        Self {
            taped: Some(names.map(|name| (name, Timestamp(0))).collect()),
            ..self
        }
    }
}
