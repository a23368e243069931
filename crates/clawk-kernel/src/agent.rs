//! An agent at work: its parts, from INIT to STOPPED, and the handle by which every door reaches it.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_manifest::model::{ConformanceLevel, Manifest, Provider as ProviderSpec};
use clawk_policy::{Engine, Subject, UsageView};
use clawk_proto::method::{
    Acknowledged, AgentInfo, BroadcastParams, DelegateParams, DiscoverParams, DiscoverResult, Group,
    LifecycleState, MemoryCompactParams, MemoryCompactResult, MemoryQueryParams, MemoryQueryResult,
    MemoryStoreParams, MemoryStoreResult, ReportParams, StatusResult, ToolCallParams, ToolCallResult,
};
use clawk_proto::{MessageId, RequestId, SessionId};
use serde_json::{Map, Value};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::{Answered, Caller, Dedup, Desk, Request, call};
use crate::catalog::Catalog;
use crate::error::{CallError, KernelError, StartError};
use crate::event::{Scribe, SessionEnded, SessionStarted, Thread, Transition, kind};
use crate::lifecycle::Life;
use crate::notice::{Answer, Question};
use crate::ports::{ANSWER_KEPT_MS, Journal, JournalError, Memory, Provider, Scan, ToolRunner};
use crate::quota::Ledger;
use crate::session::{self, Door, Notices, Opening, Session, State};
use crate::swarm::{self, Board};
use crate::time::Clock;
use crate::{memory, recover};

/// How long a shutdown drains when nobody says, milliseconds.
pub const DEFAULT_DRAIN_MS: u64 = 10_000;
/// How long cancelled work may take to end after the drain, milliseconds.
const LAST_CALL_MS: u64 = 5_000;
/// Heartbeats when the manifest doesn't say, milliseconds (CKP §9.3.1).
const DEFAULT_HEARTBEAT_MS: u64 = 30_000;

/// What is local to this machine.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where tools start and relative paths begin; absolute.
    pub workdir: PathBuf,
    /// Limits and levels where the manifest's sandbox is silent.
    pub sandbox: clawk_sandbox::Defaults,
}

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
    /// Time, ids, randomness.
    pub clock: Arc<dyn Clock>,
    /// The rest.
    pub options: Options,
}

/// The agent's inside.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) engine: Engine,
    pub(crate) catalog: Catalog,
    pub(crate) providers: BTreeMap<String, Arc<dyn Provider>>,
    pub(crate) runner: Arc<dyn ToolRunner>,
    pub(crate) memory: Option<Arc<dyn Memory>>,
    pub(crate) scribe: Scribe,
    pub(crate) options: Options,
    pub(crate) life: Life,
    pub(crate) dedup: Dedup,
    pub(crate) desk: Desk,
    pub(crate) ledger: Ledger,
    pub(crate) board: Board,
    pub(crate) tracker: TaskTracker,
    /// Nothing new begins: workers end after the turn that they are in.
    pub(crate) closing: CancellationToken,
    /// What runs is cancelled.
    pub(crate) stop: CancellationToken,
    /// STOPPED: surfaces may go.
    pub(crate) over: CancellationToken,
    level: ConformanceLevel,
    /// The runtime's own chain: lifecycle.
    root: Thread,
    started_us: u64,
    sessions: Mutex<HashMap<SessionId, Arc<State>>>,
}

impl Agent {
    pub(crate) fn clock(&self) -> &dyn Clock {
        self.scribe.clock()
    }

    pub(crate) fn sessions_lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<State>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first provider of the manifest; validation says that there is one.
    pub(crate) fn primary_provider(&self) -> &str {
        self.manifest
            .providers
            .first()
            .map(|provider| provider.name.as_str())
            .unwrap_or_default()
    }

    /// A provider and its fallbacks in order, each once (CKP §5.2).
    pub(crate) fn chain(&self, provider: &str) -> Vec<&ProviderSpec> {
        let Some(first) = self.manifest.provider(provider) else {
            return Vec::new();
        };
        let mut chain = vec![first];
        for fallback in &first.fallback {
            if let Some(next) = self.manifest.provider(&fallback.provider_ref)
                && !chain.iter().any(|known| known.name == next.name)
            {
                chain.push(next);
            }
        }
        chain
    }

    /// The provider's own window, tokens.
    pub(crate) fn context_tokens(&self, provider: &str) -> Option<usize> {
        let limit = self.manifest.provider(provider)?.limits.max_context_window?;
        usize::try_from(limit).ok() // silent-ok: more than the address space is no limit
    }

    /// Why the rules decide as they do, for people.
    pub(crate) async fn explain(&self, tool: &str, arguments: &Map<String, Value>) -> Vec<String> {
        let Some(entry) = self.catalog.get(tool) else {
            return Vec::new();
        };
        let Ok(described) = entry.described(&*self.runner).await else {
            return Vec::new();
        };
        let subject = Subject {
            tool,
            labels: &described.labels,
            annotations: &described.annotations,
            arguments,
            schema: Some(&described.input_schema),
            workdir: &self.options.workdir,
            usage: UsageView {
                tokens_today: self.ledger.tokens_today(self.scribe.now()),
                cost_today_microusd: 0,
            },
        };
        self.engine
            .explain(&subject)
            .to_string()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Moves the lifecycle and records the move (CKP §8).
    fn advance(&self, to: LifecycleState, reason: &str) -> Result<(), JournalError> {
        let now_us = self.clock().monotonic_us();
        let Some(from) = self.life.advance(to, now_us) else {
            return Ok(());
        };
        let payload = Transition {
            agent: &self.manifest.metadata.name,
            duration_ms: now_us.saturating_sub(self.started_us) / 1000,
            from: from.name(),
            reason,
            to: to.name(),
        };
        let draft = self
            .scribe
            .entry(&self.root.child(self.root.span), kind::LIFECYCLE, &payload);
        let _ticket = self.scribe.submit(vec![draft])?; // order is kept by the journal; `start` and `shutdown` flush
        Ok(())
    }

    /// Ends a session: its chain gets its last event, its grants lapse.
    pub(crate) async fn end_session(&self, id: SessionId, reason: &str) {
        let Some(state) = self.sessions_lock().remove(&id) else {
            return;
        };
        self.desk.forget(id);
        let duration_ms = self.clock().monotonic_us().saturating_sub(state.started_us) / 1000;
        let draft = self.scribe.entry(
            &state.thread.child(id.0),
            kind::SESSION_ENDED,
            &SessionEnded { duration_ms, reason },
        );
        if let Err(error) = self.scribe.write(vec![draft]).await {
            tracing::error!(%error, session = %id, "a session's end could not be recorded");
        }
    }
}

/// A handle to a running agent; cheap to clone.
#[derive(Debug, Clone)]
pub struct Kernel {
    agent: Arc<Agent>,
}

impl Kernel {
    /// Starts an agent: recovers what a crash left, then READY.
    ///
    /// # Errors
    /// A part of the manifest can't be served here (all of them are named), or the journal can't be read or written.
    pub async fn start(parts: Parts) -> Result<Self, StartError> {
        check(&parts)?;
        let agent = Arc::new(assemble(parts).await?);
        let draft = SessionStarted {
            agent_id: &agent.manifest.identity.name,
            door: "runtime",
            goal: "lifecycle",
        };
        let _ticket = agent.scribe.submit(vec![agent.scribe.entry(
            &agent.root,
            kind::SESSION_STARTED,
            &draft,
        )])?;
        let unclean = recover::unclean_since(&agent).await?;
        agent.advance(LifecycleState::Starting, "start")?;
        if let Some(row) = unclean {
            let unknown = recover::report_unknown(&agent, row).await?;
            if unknown > 0 {
                tracing::warn!(
                    unknown,
                    "calls of the last run have no known outcome; they are listed in the trace"
                );
            }
        }
        recover::restore_usage(&agent).await?;
        agent.advance(LifecycleState::Ready, "started")?;
        agent.scribe.journal().flush().await?;
        resume_open(&agent).await?;
        Ok(Self { agent })
    }

    /// The lifecycle state and the uptime; cheap.
    #[must_use]
    pub fn status(&self) -> StatusResult {
        let uptime_ms = self.agent.life.uptime_ms(self.agent.clock().monotonic_us());
        StatusResult {
            state: self.agent.life.state(),
            uptime_ms,
        }
    }

    /// The Identity's name and the manifest's version.
    #[must_use]
    pub fn agent_info(&self) -> AgentInfo {
        let version = self
            .agent
            .manifest
            .metadata
            .version
            .clone()
            .unwrap_or_else(|| "0.0.0".to_owned());
        AgentInfo {
            name: self.agent.manifest.identity.name.clone(),
            version,
        }
    }

    /// The manifest it runs.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.agent.manifest
    }

    /// The conformance level that the manifest reaches: 1, 2 or 3.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.agent.level.number()
    }

    /// Whether the wire serves this group of methods (R6).
    #[must_use]
    pub fn serves(&self, group: Group) -> bool {
        match group {
            Group::Core => true,
            Group::Tools => self.level() >= 2,
            Group::Memory => self.agent.manifest.memory.is_some(),
            Group::Swarm => self.agent.manifest.swarm.is_some(),
        }
    }

    /// Between two heartbeats, milliseconds.
    #[must_use]
    pub fn heartbeat_interval_ms(&self) -> u64 {
        self.agent
            .manifest
            .metadata
            .heartbeat_interval_ms
            .unwrap_or(DEFAULT_HEARTBEAT_MS)
    }

    /// Opens a session.
    ///
    /// # Errors
    /// The agent is not READY, or the journal can't be written.
    pub async fn open(&self, door: Door) -> Result<Session, KernelError> {
        let _working = self.agent.life.enter().map_err(KernelError::NotReady)?;
        let opening = Opening {
            id: None,
            door,
            provider: self.agent.primary_provider().to_owned(),
            goal: "conversation".to_owned(),
            history: Vec::new(),
            surface: true,
            peer_messages: Vec::new(),
        };
        Session::open(&self.agent, opening).await
    }

    /// Goes on with an earlier session: its conversation is rebuilt from its chain.
    ///
    /// # Errors
    /// There is no such session, the agent is not READY, or the journal can't be read.
    pub async fn reopen(&self, id: SessionId, door: Door) -> Result<Session, KernelError> {
        let _working = self.agent.life.enter().map_err(KernelError::NotReady)?;
        let rebuilt = recover::rebuild(&self.agent, id).await?;
        if !rebuilt.exists {
            return Err(KernelError::UnknownSession(id.to_string()));
        }
        self.end_quietly(id);
        let opening = Opening {
            id: Some(id),
            door,
            provider: self.agent.primary_provider().to_owned(),
            goal: String::new(),
            history: rebuilt.history,
            surface: true,
            peer_messages: Vec::new(),
        };
        Session::open(&self.agent, opening).await
    }

    fn end_quietly(&self, id: SessionId) {
        self.agent.sessions_lock().remove(&id);
    }

    /// Calls a tool, governed (`claw.tool.call`). The call is registered when this is called, before the first poll:
    /// an answer sent right behind it finds it (R18).
    ///
    /// # Errors
    /// The call did not run, or was cut short (R20).
    pub fn call(
        &self,
        session: SessionId,
        params: ToolCallParams,
    ) -> impl Future<Output = Result<ToolCallResult, CallError>> + Send + use<> {
        let agent = Arc::clone(&self.agent);
        // Seated twice: here, synchronously; the path's own seat finds this one and leaves it alone until both are gone.
        let early = EarlySeat::new(Arc::clone(&agent), &params.context.request_id);
        async move {
            let _early = early;
            let caller = Caller {
                thread: Thread {
                    session,
                    span: session.0,
                    parent: None,
                },
                door: "rpc",
                turn: None,
                call_id: None,
                ceilings: Vec::new(),
                depth: 0,
                notices: Notices::default(),
            };
            let context = params.context;
            let request = Request {
                tool: params.name,
                arguments: params.arguments,
                request_id: context.request_id,
                identity: context.identity,
                sandbox: context.sandbox,
                policy: context.policy,
            };
            let cancel = agent.stop.child_token();
            call(&agent, &caller, request, &cancel).await
        }
    }

    /// Answers a question; waits while that call is in progress and has not asked yet (R18). `false`: nothing asks for
    /// it, or it was answered before.
    pub async fn answer(&self, id: &RequestId, answer: Answer, reason: Option<String>, by: &str) -> bool {
        self.agent
            .desk
            .answer(
                id,
                Answered {
                    answer,
                    by: by.to_owned(),
                    reason,
                },
            )
            .await
    }

    /// What waits for a person now, the most urgent first.
    #[must_use]
    pub fn pending(&self) -> Vec<Question> {
        self.agent.desk.pending()
    }

    /// Every question from now on.
    #[must_use]
    pub fn questions(&self) -> broadcast::Receiver<Question> {
        self.agent.desk.questions()
    }

    /// `claw.memory.query`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub async fn memory_query(
        &self,
        session: SessionId,
        params: MemoryQueryParams,
    ) -> Result<MemoryQueryResult, KernelError> {
        memory::query(&self.agent, session, params).await
    }

    /// `claw.memory.store`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub async fn memory_store(
        &self,
        session: SessionId,
        params: MemoryStoreParams,
    ) -> Result<MemoryStoreResult, KernelError> {
        memory::store(&self.agent, session, params).await
    }

    /// `claw.memory.compact`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub async fn memory_compact(
        &self,
        session: SessionId,
        params: MemoryCompactParams,
    ) -> Result<MemoryCompactResult, KernelError> {
        memory::compact(&self.agent, session, params).await
    }

    /// `claw.swarm.delegate`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub async fn delegate(
        &self,
        session: SessionId,
        params: DelegateParams,
    ) -> Result<Acknowledged, KernelError> {
        swarm::delegate(&self.agent, session, params).await
    }

    /// `claw.swarm.report`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub async fn report(
        &self,
        session: SessionId,
        params: ReportParams,
    ) -> Result<Acknowledged, KernelError> {
        swarm::report(&self.agent, session, params).await
    }

    /// `claw.swarm.broadcast`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub async fn broadcast(&self, session: SessionId, params: BroadcastParams) -> Result<(), KernelError> {
        swarm::broadcast(&self.agent, session, params).await
    }

    /// `claw.swarm.discover`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub fn discover(&self, params: &DiscoverParams) -> Result<DiscoverResult, KernelError> {
        swarm::discover(&self.agent, params)
    }

    /// Messages whose turn could not be finished: id, session, why; the latest last, at most `limit`.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, KernelError> {
        let scan = Scan {
            kinds: &[kind::MESSAGE_DEAD],
            limit,
            ..Scan::default()
        };
        let found = self.agent.scribe.journal().scan(scan).await?;
        Ok(found.iter().filter_map(DeadLetter::read).collect())
    }

    /// Ends a session in order.
    pub async fn end_session(&self, id: SessionId, reason: &str) {
        self.agent.end_session(id, reason).await;
    }

    /// STOPPING: takes nothing new, drains for at most `timeout_ms`, cancels the rest, records the end, STOPPED.
    /// `true`: all that was in flight ended in time. Messages that still wait are answered after the next start.
    pub async fn shutdown(&self, reason: &str, timeout_ms: u64) -> bool {
        let agent = &self.agent;
        if let Err(error) = agent.advance(LifecycleState::Stopping, reason) {
            tracing::error!(%error, "stopping could not be recorded");
        }
        agent.closing.cancel();
        let drained = agent.life.drained(Duration::from_millis(timeout_ms)).await;
        agent.stop.cancel();
        if !drained {
            let ended = agent.life.drained(Duration::from_millis(LAST_CALL_MS)).await;
            tracing::warn!(ended, "work in flight was cancelled");
        }
        agent.tracker.close();
        let tasks = tokio::time::timeout(Duration::from_millis(LAST_CALL_MS), agent.tracker.wait()).await;
        if tasks.is_err() {
            tracing::error!("some tasks did not end when cancelled");
        }
        agent.runner.close().await;
        let open: Vec<SessionId> = agent.sessions_lock().keys().copied().collect();
        for id in open {
            agent
                .end_session(id, if drained { "completed" } else { "cancelled" })
                .await;
        }
        if let Err(error) = agent.advance(LifecycleState::Stopped, reason) {
            tracing::error!(%error, "the stop could not be recorded");
        }
        if let Err(error) = agent.scribe.journal().flush().await {
            tracing::error!(%error, "the journal could not be flushed");
        }
        agent.over.cancel();
        drained
    }
}

/// A message in the dead-letter box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its id.
    pub message: MessageId,
    /// Its session.
    pub session: SessionId,
    /// When it was given up, RFC 3339.
    pub at: String,
    /// Why.
    pub reason: String,
}

impl DeadLetter {
    fn read(event: &crate::ports::Recorded) -> Option<Self> {
        let payload: Value = serde_json::from_str(&event.payload).ok()?; // silent-ok: payloads of ours always read
        let text = |name: &str| payload.get(name).and_then(Value::as_str);
        Some(Self {
            message: text("message_id")?.parse().ok()?, // silent-ok: as above
            session: event.session,
            at: event.at.to_string(),
            reason: text("reason")?.to_owned(),
        })
    }
}

/// A call's place at the desk before its future is first polled.
struct EarlySeat {
    agent: Arc<Agent>,
    request_id: RequestId,
}

impl EarlySeat {
    fn new(agent: Arc<Agent>, request_id: &RequestId) -> Self {
        agent.desk.hold(request_id);
        Self {
            agent,
            request_id: request_id.clone(),
        }
    }
}

impl Drop for EarlySeat {
    fn drop(&mut self) {
        self.agent.desk.release(&self.request_id);
    }
}

/// Everything that keeps this agent from starting here, at once.
fn check(parts: &Parts) -> Result<(), StartError> {
    let mut unserved = Vec::new();
    for provider in &parts.manifest.providers {
        if !parts.providers.contains_key(&provider.name) {
            unserved.push(format!("provider `{}` is not connected", provider.name));
        }
    }
    match (&parts.manifest.memory, &parts.memory) {
        (Some(_), None) => {
            unserved.push("the manifest declares a memory and no backend is configured".to_owned())
        }
        (Some(memory), Some(backend)) => {
            let faults = memory.stores.iter().filter_map(|store| {
                backend
                    .check(store)
                    .err()
                    .map(|error| format!("store `{}`: {error}", store.name))
            });
            unserved.extend(faults);
        }
        (None, _) => {}
    }
    if unserved.is_empty() {
        Ok(())
    } else {
        Err(StartError::Unserved(unserved))
    }
}

async fn assemble(parts: Parts) -> Result<Agent, StartError> {
    let Parts {
        manifest,
        providers,
        runner,
        journal,
        memory,
        clock,
        options,
    } = parts;
    let engine =
        Engine::compile(&manifest.policies).map_err(|error| StartError::Unserved(vec![error.to_string()]))?;
    let scribe = Scribe::new(Arc::clone(&journal), clock);
    let id = SessionId(scribe.clock().uuid());
    let since = scribe.now().plus_millis(-ANSWER_KEPT_MS);
    let answering = &[
        kind::ACTION_EXECUTED,
        kind::ACTION_DENIED,
        kind::ACTION_FAILED,
        kind::ACTION_APPROVED,
        kind::MEMORY_STORED,
        kind::SWARM_DELEGATED,
    ];
    let recent = Scan {
        kinds: answering,
        since: Some(since),
        limit: 1,
        ..Scan::default()
    };
    let cold = !journal.scan(recent).await?.is_empty();
    Ok(Agent {
        catalog: Catalog::new(&manifest, &options.sandbox),
        ledger: Ledger::new(&manifest.providers),
        level: manifest.conformance_level(),
        dedup: Dedup::new(scribe.now(), cold),
        started_us: scribe.clock().monotonic_us(),
        root: Thread {
            session: id,
            span: id.0,
            parent: None,
        },
        life: Life::new(),
        desk: Desk::default(),
        board: Board::default(),
        tracker: TaskTracker::new(),
        closing: CancellationToken::new(),
        stop: CancellationToken::new(),
        over: CancellationToken::new(),
        sessions: Mutex::default(),
        manifest,
        engine,
        providers,
        runner,
        memory,
        scribe,
        options,
    })
}

/// Takes up the turns that a crash or a stop interrupted.
async fn resume_open(agent: &Arc<Agent>) -> Result<(), StartError> {
    let mut seen = Vec::new();
    for open in agent.scribe.journal().open_messages().await? {
        if seen.contains(&open.session) {
            continue;
        }
        seen.push(open.session);
        let rebuilt = recover::rebuild(agent, open.session).await?;
        let opening = Opening {
            id: Some(open.session),
            door: Door::Cli,
            provider: agent.primary_provider().to_owned(),
            goal: String::new(),
            history: rebuilt.history,
            surface: false,
            peer_messages: Vec::new(),
        };
        let (state, _) = session::open(agent, opening)
            .await
            .map_err(|error| StartError::Unserved(vec![error.to_string()]))?;
        let agent = Arc::clone(agent);
        let turns = rebuilt.open;
        agent.clone().tracker.spawn(async move {
            for turn in turns {
                if let Err(error) = session::resume(&agent, &state, turn).await {
                    tracing::warn!(%error, "an interrupted turn could not be taken up");
                }
            }
        });
    }
    Ok(())
}
