//! A running agent, from INIT to STOPPED: its dependencies, and the services built from them.
//!
//! Each service holds what its work needs and is part of the services above it: [`Models`](crate::infer::ModelServices) asks
//! models, [`KernelServices`] runs tools, turns use both, [`SessionServices`] has turns, [`SwarmServices`] has sessions.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_manifest::model::Manifest;

use crate::carp::AtlasSettings;
use crate::event::JournalWriter;
use crate::health::Health;
use crate::lifecycle::AgentLifecycle;
use crate::memory::MemoryServices;
use crate::options::Options;
use crate::outbox::Outbox;
use crate::ports::{Journal, Memory, ModelProvider, ToolRunner};
use crate::services::KernelServices;
use crate::session::SessionServices;
use crate::swarm::SwarmServices;
use crate::time::Clock;

/// All dependencies of an agent. The composition root fills them in.
#[derive(Debug)]
pub struct AgentDependencies {
    /// The validated manifest.
    pub manifest: Arc<Manifest>,
    /// The providers, by their names in the manifest.
    pub providers: BTreeMap<String, Arc<dyn ModelProvider>>,
    /// Runs the tools.
    pub runner: Arc<dyn ToolRunner>,
    /// The journal.
    pub journal: Arc<dyn Journal>,
    /// The back end of the memory stores; required if the manifest has a Memory.
    pub memory: Option<Arc<dyn Memory>>,
    /// Every secret resolved in this process. None of them may reach a model, a person or the trace.
    pub secrets: clawk_secrets::ResolvedSecrets,
    /// Time, ids, randomness.
    pub clock: Arc<dyn Clock>,
    /// The Atlases that govern it; none by default.
    pub atlases: AtlasSettings,
    /// All other options.
    pub options: Options,
}

/// The internals of a running agent.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) scribe: JournalWriter,
    pub(crate) life: Arc<AgentLifecycle>,
    pub(crate) calls: Arc<KernelServices>,
    pub(crate) sessions: Arc<SessionServices>,
    pub(crate) peers: Arc<SwarmServices>,
    pub(crate) memories: Arc<MemoryServices>,
    /// Answers that wait for delivery.
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) health: Arc<Health>,
}
