//! An agent at work, from INIT to STOPPED: what it is made of, and what that becomes.
//!
//! Each part has what its work needs, and is a part of those above it: [`Models`](crate::infer::Models) are asked, [`Calls`]
//! run tools, turns ask and call, [`Sessions`] have turns, [`Peers`] have sessions.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_manifest::model::Manifest;

use crate::call::Calls;
use crate::carp::Atlases;
use crate::event::Scribe;
use crate::health::Health;
use crate::lifecycle::Life;
use crate::memory::Memories;
use crate::options::Options;
use crate::outbox::Outbox;
use crate::ports::{Journal, Memory, Provider, ToolRunner};
use crate::session::Sessions;
use crate::swarm::Peers;
use crate::time::Clock;

/// Everything an agent is made of; the composition root fills it in.
#[derive(Debug)]
pub struct Parts {
    /// The validated manifest.
    pub manifest: Arc<Manifest>,
    /// By the names of the manifest's providers.
    pub providers: BTreeMap<String, Arc<dyn Provider>>,
    /// Runs the tools.
    pub runner: Arc<dyn ToolRunner>,
    /// The log.
    pub journal: Arc<dyn Journal>,
    /// Keeps the memory's stores; required when the manifest has a Memory.
    pub memory: Option<Arc<dyn Memory>>,
    /// Every secret that was resolved here: none of them may reach a model, a person or the trace.
    pub secrets: clawk_secrets::Given,
    /// Time, ids, randomness.
    pub clock: Arc<dyn Clock>,
    /// The Atlases that govern it; none by default.
    pub atlases: Atlases,
    /// The rest.
    pub options: Options,
}

/// The agent's inside.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) scribe: Scribe,
    pub(crate) life: Arc<Life>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) memories: Arc<Memories>,
    /// Answers on their way.
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) health: Arc<Health>,
}
