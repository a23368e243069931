//! The settings of an agent that belong to its machine, from `clawk.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clawk_manifest::model::Identity;
use clawk_trace::checkpoint::TraceSigner;
use serde::{Deserialize, Serialize};

use crate::catalog::SandboxSettings;
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
    /// The tools' working directory and the base of relative paths, absolute.
    pub workdir: PathBuf,
    /// Identifies the manifest: the file's resolved path, or another unique text. Standing grants are valid for it only.
    pub origin: String,
    /// Limits and levels that apply if the manifest's sandbox does not set them.
    pub sandbox: clawk_plan::PlanDefaults,
    /// The runtime's own files, which are closed to tools whatever is mounted.
    pub own: clawk_plan::RuntimeFiles,
    /// The folder for suggested rules; `None`: no suggestions are made.
    pub suggestions: Option<PathBuf>,
    /// The spending limits.
    pub budgets: BudgetSettings,
    /// The prices of models.
    pub prices: PriceTable,
    /// `true` while audit records can be delivered to the policies' destinations. Otherwise calls that must be audited do not run.
    pub audit_writable: Arc<AtomicBool>,
    /// Limits for a plan step of a world model; `None`: skills do not plan.
    pub planning: Option<PlanLimits>,
    /// The model that judges text if a policy requires it.
    pub judge: JudgeSettings,
    /// The model that checks answers before they are sent; `None`: answers are not checked.
    pub claims: Option<Claims>,
    /// How much of a tool's result a model reads.
    pub shown: ResultExcerpt,
    /// Local settings of each provider, by its name in the manifest.
    pub models: BTreeMap<String, ModelOptions>,
    /// After the start, providers are contacted without cost. While none can be reached, the agent is in ERROR and messages wait.
    pub reach_providers: bool,
    /// Limits for waiting and concurrent messages.
    pub inbox: InboxLimits,
    /// Limits for the delivery of answers.
    pub outbox: OutboxLimits,
    /// Stores whose entries a turn may recall, whoever they came from.
    pub across_senders: BTreeSet<String>,
    /// The time zone of a message's date and time, if the sender's is unknown; `None`: the model sees no times, as in a simulation.
    pub timezone: Option<jiff::tz::TimeZone>,
    /// Settings of the swarm.
    pub swarm: SwarmOptions,
}

/// Settings of the swarm from `[swarm]` of `clawk.toml`.
#[derive(Debug, Clone, Default)]
pub struct SwarmOptions {
    /// `[swarm]` of `clawk.toml`.
    pub local: clawk_swarm::limit::LocalLimits,
    /// Identities of the swarm's members, by name.
    pub identities: BTreeMap<String, Arc<Identity>>,
    /// Members on other hosts; `None`: all work in this process.
    pub elsewhere: Option<Arc<dyn RemoteWorkers>>,
    /// Key of the report tokens.
    pub token_key: TokenKey,
    /// This host's key, which signs tasks and reports for other hosts; `None`: it signs nothing.
    pub signer: Option<Arc<TraceSigner>>,
    /// In a replay: the swarm's tools by name, and the time since when they were offered. Their results come from the record, and
    /// no member works.
    pub taped: Option<BTreeMap<String, Timestamp>>,
}

/// `[inbox]`: limits for waiting and concurrent messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InboxLimits {
    /// Largest number of waiting messages beyond 32 per conversation. They are durable and need no memory. Further ones are
    /// refused.
    pub waiting: usize,
    /// Largest number of concurrent turns over all conversations.
    pub turns: usize,
    /// Idle time after which a channel's conversation leaves memory, in milliseconds. It continues with the next message.
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

impl Options {
    /// Returns the settings of this machine for sandboxes.
    pub(crate) fn sandbox_settings(&self) -> SandboxSettings<'_> {
        SandboxSettings {
            workdir: &self.workdir,
            defaults: &self.sandbox,
            own: &self.own,
        }
    }
}

impl SwarmOptions {
    /// Returns the options without swarm members: the swarm's tools are offered, and their calls go to the runner, as in a replay.
    #[must_use]
    pub fn without_members(self) -> Self {
        let names = crate::team::tool_declarations().into_iter().map(|spec| spec.name);
        Self {
            taped: Some(names.map(|name| (name, Timestamp(0))).collect()),
            ..self
        }
    }
}
