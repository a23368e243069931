//! In-memory and scripted sides of the ports, for tests here and in other crates. They can be told to fail.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test parts: a broken one should fail loudly"
)]

mod boxes;
mod channel;
mod journal;
mod memory;
mod model;
mod tools;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use clawk_manifest::model::Manifest;
use uuid::Uuid;

pub use channel::ScriptedChannel;
pub use clawk_core::testing::manifest;
pub use journal::MemJournal;
pub use memory::MemMemory;
pub use model::{ScriptedModel, calls, says};
pub use tools::{Behaviour, TestRunner};

use crate::ports::{ModelProvider, ToolRunner};
use crate::purse::{BudgetSettings, PriceTable};
use crate::time::{Clock, Timestamp};
use crate::{AgentDependencies, Kernel, Options};

/// A clock that moves by hand; ids are unique and increase.
#[derive(Debug)]
pub struct TestClock {
    now_us: AtomicI64,
    /// How far the wall clock is off.
    off_us: AtomicI64,
    ids: AtomicU64,
    alone: AtomicBool,
}

impl Default for TestClock {
    /// 2026-01-02T03:04:05Z.
    fn default() -> Self {
        Self {
            now_us: AtomicI64::new(1_767_323_045_000_000),
            off_us: AtomicI64::new(0),
            ids: AtomicU64::new(1),
            alone: AtomicBool::new(false),
        }
    }
}

impl TestClock {
    /// Moves time on.
    pub fn advance_ms(&self, ms: i64) {
        self.now_us.fetch_add(ms * 1000, Ordering::SeqCst);
    }

    /// From now on, what blocks runs where it is asked for: the same inputs give the same order.
    pub fn without_threads(&self) {
        self.alone.store(true, Ordering::SeqCst);
    }

    /// The ids from now on are these: another clock's are others.
    pub fn ids_from(&self, first: u64) {
        self.ids.store(first, Ordering::SeqCst);
    }

    /// Sets the wall clock, so far off from the time that passes; the monotonic clock goes on.
    pub fn set_off_ms(&self, ms: i64) {
        self.off_us.store(ms * 1000, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let passed = self.now_us.fetch_add(1, Ordering::SeqCst);
        Timestamp(passed + self.off_us.load(Ordering::SeqCst))
    }

    fn monotonic_us(&self) -> u64 {
        u64::try_from(self.now_us.load(Ordering::SeqCst)).unwrap_or(0)
    }

    fn new_uuid(&self) -> Uuid {
        let id = self.ids.fetch_add(1, Ordering::SeqCst);
        uuid::Builder::from_unix_timestamp_millis(1_767_323_045_000, &{
            let mut bytes = [0u8; 10];
            for (slot, byte) in bytes.iter_mut().skip(2).zip(id.to_be_bytes()) {
                *slot = byte;
            }
            bytes
        })
        .into_uuid()
    }

    fn random_u64(&self) -> u64 {
        0
    }

    fn has_threads(&self) -> bool {
        !self.alone.load(Ordering::SeqCst)
    }
}

/// The parts of a test agent; take what a test needs and change it.
#[derive(Debug, Clone)]
pub struct Rig {
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// The log; shared by all kernels of the rig, as a state directory is by restarts.
    pub journal: Arc<MemJournal>,
    /// The stores.
    pub memory: Arc<MemMemory>,
    /// The tools.
    pub runner: Arc<TestRunner>,
    /// The models by provider name.
    pub models: BTreeMap<String, Arc<ScriptedModel>>,
    /// The clock.
    pub clock: Arc<TestClock>,
    /// Audit records find their way.
    pub audit_writable: Arc<AtomicBool>,
    /// Where tools start.
    pub workdir: PathBuf,
    /// Which manifest it runs.
    pub origin: String,
    /// The Atlases.
    pub atlases: crate::AtlasSettings,
    /// `[budgets]`.
    pub budgets: BudgetSettings,
    /// `[prices]`.
    pub prices: PriceTable,
    /// How much of a result a model reads.
    pub shown: crate::ResultExcerpt,
    /// `[providers.NAME]`, as far as the kernel knows it.
    pub locals: BTreeMap<String, crate::ModelOptions>,
    /// Providers are reached for after the start.
    pub reach_providers: bool,
    /// What must not be seen anywhere.
    pub secrets: clawk_secrets::ResolvedSecrets,
    /// `[claims]`.
    pub claims: Option<crate::Claims>,
    /// `[inbox]`.
    pub inbox: crate::InboxLimits,
    /// `[outbox]`.
    pub outbox: crate::OutboxLimits,
    /// The zone in which messages' times are told.
    pub timezone: Option<jiff::tz::TimeZone>,
    /// What is local about the swarm.
    pub swarm: crate::SwarmOptions,
}

impl Rig {
    /// A rig for this manifest; every provider says "ok".
    #[must_use]
    pub fn new(manifest: Manifest) -> Self {
        let models = manifest
            .providers
            .iter()
            .map(|provider| (provider.name.clone(), Arc::new(ScriptedModel::saying("ok"))))
            .collect();
        Self {
            manifest: Arc::new(manifest),
            journal: Arc::default(),
            memory: Arc::default(),
            runner: Arc::default(),
            models,
            clock: Arc::default(),
            audit_writable: Arc::new(AtomicBool::new(true)),
            workdir: PathBuf::from("/work"),
            origin: "/work/claw.yaml".to_owned(),
            atlases: crate::AtlasSettings::default(),
            budgets: BudgetSettings::default(),
            prices: PriceTable::default(),
            shown: crate::ResultExcerpt::default(),
            locals: BTreeMap::new(),
            reach_providers: false,
            secrets: clawk_secrets::ResolvedSecrets::default(),
            claims: None,
            inbox: crate::InboxLimits::default(),
            outbox: crate::OutboxLimits::default(),
            timezone: None,
            swarm: crate::SwarmOptions::default(),
        }
    }

    /// The parts for [`Kernel::start`].
    #[must_use]
    pub fn parts(&self) -> AgentDependencies {
        let providers = self
            .models
            .iter()
            .map(|(name, model)| (name.clone(), Arc::clone(model) as Arc<dyn ModelProvider>))
            .collect();
        AgentDependencies {
            manifest: Arc::clone(&self.manifest),
            providers,
            runner: Arc::clone(&self.runner) as Arc<dyn ToolRunner>,
            journal: Arc::clone(&self.journal) as _,
            memory: Some(Arc::clone(&self.memory) as _),
            secrets: self.secrets.clone(),
            clock: Arc::clone(&self.clock) as _,
            atlases: self.atlases.clone(),
            options: Options {
                workdir: self.workdir.clone(),
                origin: self.origin.clone(),
                sandbox: clawk_plan::PlanDefaults::default(),
                own: clawk_plan::RuntimeFiles::empty(),
                suggestions: None,
                budgets: self.budgets.clone(),
                prices: self.prices.clone(),
                audit_writable: Arc::clone(&self.audit_writable),
                planning: Some(crate::PlanLimits::default()),
                judge: crate::JudgeSettings::default(),
                claims: self.claims.clone(),
                shown: self.shown,
                models: self.locals.clone(),
                reach_providers: self.reach_providers,
                inbox: self.inbox,
                outbox: self.outbox,
                across_senders: Default::default(),
                timezone: self.timezone.clone(),
                swarm: self.swarm.clone(),
            },
        }
    }

    /// Starts a kernel.
    ///
    /// # Panics
    /// It does not start.
    pub async fn start(&self) -> Kernel {
        Kernel::start(self.parts()).await.expect("the rig starts")
    }
}
