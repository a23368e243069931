//! An agent at work, from INIT to STOPPED: what it is made of, and what that becomes.
//!
//! Each part has what its work needs, and is a part of those above it: [`Models`](crate::infer::ModelServices) are asked, [`CallGovernor`]
//! run tools, turns ask and call, [`SessionServices`] have turns, [`SwarmServices`] have sessions.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_manifest::model::Manifest;

use crate::call::CallGovernor;
use crate::carp::AtlasSettings;
use crate::event::JournalWriter;
use crate::health::Health;
use crate::lifecycle::AgentLifecycle;
use crate::memory::MemoryServices;
use crate::options::Options;
use crate::outbox::Outbox;
use crate::ports::{Journal, Memory, ModelProvider, ToolRunner};
use crate::session::SessionServices;
use crate::swarm::SwarmServices;
use crate::time::Clock;

/// Everything an agent is made of; the composition root fills it in.
#[derive(Debug)]
pub struct AgentDependencies {
    /// The validated manifest.
    pub manifest: Arc<Manifest>,
    /// By the names of the manifest's providers.
    pub providers: BTreeMap<String, Arc<dyn ModelProvider>>,
    /// Runs the tools.
    pub runner: Arc<dyn ToolRunner>,
    /// The log.
    pub journal: Arc<dyn Journal>,
    /// Keeps the memory's stores; required when the manifest has a Memory.
    pub memory: Option<Arc<dyn Memory>>,
    /// Every secret that was resolved here: none of them may reach a model, a person or the trace.
    pub secrets: clawk_secrets::ResolvedSecrets,
    /// Time, ids, randomness.
    pub clock: Arc<dyn Clock>,
    /// The Atlases that govern it; none by default.
    pub atlases: AtlasSettings,
    /// The rest.
    pub options: Options,
}

/// The agent's inside.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) scribe: JournalWriter,
    pub(crate) life: Arc<AgentLifecycle>,
    pub(crate) calls: Arc<CallGovernor>,
    pub(crate) sessions: Arc<SessionServices>,
    pub(crate) peers: Arc<SwarmServices>,
    pub(crate) memories: Arc<MemoryServices>,
    /// Answers on their way.
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) health: Arc<Health>,
}
