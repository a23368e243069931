//! The handle by which every entry point reaches an agent.
//!
//! Long because it has every public function of the kernel, with its guarantees.

mod channels;
pub(crate) mod commands;
mod doors;
mod outside;
mod speech;

pub use channels::{ChannelFact, PairingChange};
pub use commands::ConversationStatus;
pub(crate) use commands::{keep_model, queue_clearing};
pub use outside::PushGivenUp;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clawk_events::payload::MessageDead;
use clawk_manifest::model::Manifest;
use clawk_proto::method::{
    AcknowledgedResult, AgentInfo, BroadcastParams, DelegateParams, DelegateTask, DiscoverParams,
    DiscoverResult, LifecycleState, MemoryCompactParams, MemoryCompactResult, MemoryQueryParams,
    MemoryQueryResult, MemoryStoreParams, MemoryStoreResult, MethodGroup, ReportParams, StatusResult,
    ToolCallParams, ToolCallResult,
};
use clawk_proto::{MessageId, RequestId, SessionId};
use clawk_swarm::coord::RunResult;
use serde_json::Value;
use tokio::sync::broadcast;

use crate::agent::{Agent, AgentDependencies};
use crate::call::{
    self, ApprovalReply, CallOrder, CallerContext, ReplyOutcome, Request, StandingGrant, call,
};
use crate::carp::OutsideAtlasEvent;
use crate::cra::CraHandle;
use crate::door::EntryPoint;
use crate::effect::{self, EffectSettlement, SettlementMethod};
use crate::error::{CallError, KernelError, StartError};
use crate::event::{ForkPoint, JournalWriter, Thread, kind};
use crate::notice::{ApprovalAnswer, ApprovalQuestion, SessionNotice};
use crate::ports::{JournalError, JournalScan, OpenEffect, RecordedEvent, ReportReceiver};
use crate::purse::{BudgetAmount, BudgetReport};
use crate::roles::KnownPerson;
use crate::services::KernelServices;
use crate::session::{SessionHandle, SessionOpening};
use crate::sheet::PreviewReceipt;
use crate::stop::EmergencyStop;
use crate::swarm::SwarmView;
use crate::talk::told::{TalkRequest, TurnResult};
use crate::watch::{NoticeSender, Watcher};
use crate::{fork, health, hosts, memory, recover, start, stop, swarm, talk};

/// How long a shutdown waits for open turns by default, in milliseconds.
pub const DEFAULT_DRAIN_MS: u64 = 10_000;
/// Time limit for cancelled work to end after the drain, in milliseconds.
const LAST_CALL_MS: u64 = 5_000;
/// Default heartbeat interval in milliseconds (CKP §9.3.1).
const DEFAULT_HEARTBEAT_MS: u64 = 30_000;

/// A handle to a running agent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Kernel {
    agent: Arc<Agent>,
}

impl Kernel {
    /// Starts an agent: recovers from a crash, then becomes READY.
    ///
    /// # Errors
    /// Parts of the manifest can't be used here (the error names all of them), or the journal can't be read or written.
    pub async fn start(parts: AgentDependencies) -> Result<Self, StartError> {
        let agent = start::start_agent(parts).await?;
        Ok(Self { agent })
    }

    /// Returns the lifecycle state and the uptime. Cheap.
    #[must_use]
    pub fn status(&self) -> StatusResult {
        let uptime_ms = self
            .agent
            .life
            .uptime_ms(self.agent.scribe.clock().monotonic_us());
        StatusResult {
            state: self.agent.life.state(),
            uptime_ms,
        }
    }

    /// Returns the Identity's name and the manifest's version.
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

    /// Returns whether both handles belong to the same run.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.agent, &other.agent)
    }

    /// Returns the agent's manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.agent.manifest
    }

    /// Returns the manifest's conformance level: 1, 2 or 3.
    #[must_use]
    pub fn conformance_level(&self) -> u8 {
        self.agent.manifest.conformance_level().number()
    }

    /// Returns whether this group of methods is served (R6).
    #[must_use]
    pub fn serves_group(&self, group: MethodGroup) -> bool {
        match group {
            MethodGroup::Core => true,
            MethodGroup::Tools => self.conformance_level() >= 2,
            MethodGroup::Memory => self.agent.manifest.memory.is_some(),
            MethodGroup::Swarm => self.agent.manifest.swarm.is_some(),
        }
    }

    /// Returns the heartbeat interval in milliseconds.
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
    pub async fn open_session(&self, door: EntryPoint) -> Result<SessionHandle, KernelError> {
        let _working = self.agent.life.begin_work().map_err(KernelError::NotReady)?;
        let opening = SessionOpening {
            id: None,
            door,
            provider: self.agent.calls.models.primary_provider().to_owned(),
            goal: "conversation".to_owned(),
            history: Vec::new(),
            under: None,
            spent: BudgetAmount::default(),
            surface: true,
            peer_messages: Vec::new(),
            member: None,
        };
        let session = SessionHandle::open(&self.agent.sessions, opening).await?;
        health::notify_new_session(&self.agent.health, session.services_and_state().1).await;
        Ok(session)
    }

    /// Continues an earlier session. A loaded session is shared, so that its turns stay serial; otherwise its conversation is
    /// rebuilt from its chain.
    ///
    /// # Errors
    /// The session does not exist for this role, the agent is not READY, or the journal can't be read.
    pub async fn reopen_session(
        &self,
        id: SessionId,
        door: EntryPoint,
    ) -> Result<SessionHandle, KernelError> {
        let _working = self.agent.life.begin_work().map_err(KernelError::NotReady)?;
        if self.agent.sessions.table.get(id).is_none() {
            // Unfinished work of a lost host may continue here afterwards.
            hosts::hold_session(&self.agent.sessions, id).await?;
        }
        let live = self.agent.sessions.table.get(id);
        if let Some(state) = live {
            // A session has the rights of its opener, so a sender with fewer rights can't enter it.
            if door.role() < state.door.role() {
                return Err(KernelError::UnknownSession(id.to_string()));
            }
            return Ok(SessionHandle::join_loaded(&self.agent.sessions, state, door));
        }
        let rebuilt = recover::rebuild_session(&self.agent.calls, id).await?;
        if !rebuilt.exists {
            return Err(KernelError::UnknownSession(id.to_string()));
        }
        let opening = SessionOpening {
            id: Some(id),
            door,
            provider: self.agent.calls.models.primary_provider().to_owned(),
            goal: String::new(),
            history: rebuilt.history,
            under: None,
            spent: rebuilt.spent,
            surface: true,
            peer_messages: Vec::new(),
            member: None,
        };
        let session = SessionHandle::open(&self.agent.sessions, opening).await?;
        session.services_and_state().1.set_model(rebuilt.model);
        health::notify_new_session(&self.agent.health, session.services_and_state().1).await;
        Ok(session)
    }

    /// Opens a new session that continues from a step of another one, which stays unchanged. With `go_on`, a turn that was running
    /// there continues with its next step (returns `true` if there was one); earlier steps are not repeated.
    ///
    /// # Errors
    /// The session does not exist, the agent is not READY, or the journal can't be read or written.
    pub async fn fork_session(
        &self,
        point: ForkPoint,
        door: EntryPoint,
        go_on: bool,
    ) -> Result<(SessionHandle, bool), KernelError> {
        let _working = self.agent.life.begin_work().map_err(KernelError::NotReady)?;
        fork::fork_session(&self.agent.sessions, point, door, go_on).await
    }

    /// Sends a message to the agent and waits for its answer (`claw.message.send`). `tell` receives the turn's notices and must not
    /// block. The answer to the same request is stored; a caller that disconnects stops nothing.
    ///
    /// # Errors
    /// The message was refused, its request id was used with another text, or the agent ended before the turn. In the last case the
    /// same request returns the answer after the next start.
    pub async fn send_message(
        &self,
        door: EntryPoint,
        asked: TalkRequest,
        tell: &(dyn Fn(MessageId, &SessionNotice) + Send + Sync),
    ) -> Result<TurnResult, KernelError> {
        talk::send_message(&self.agent.sessions, door, asked, tell).await
    }

    /// Adds a watcher to an open session, which gets all further notices; `None` if the session is not open.
    #[must_use]
    pub fn watch_session(&self, session: SessionId) -> Option<Watcher> {
        let state = self.agent.sessions.table.get(session)?;
        Some(state.notices.watch(self.agent.life.over.clone()))
    }

    /// Makes a governed tool call (`claw.tool.call`). The call is registered immediately, before the first poll, so that an answer
    /// sent directly after it finds it (R18).
    ///
    /// # Errors
    /// The call did not run, or was interrupted (R20).
    pub fn call(
        &self,
        session: SessionId,
        params: ToolCallParams,
    ) -> impl Future<Output = Result<ToolCallResult, CallError>> + Send + use<> {
        let calls = Arc::clone(&self.agent.calls);
        // Registered twice: here, synchronously, and again in the call path. The entry is removed when both guards are gone.
        let early = EarlyPendingCall::new(Arc::clone(&calls), &params.context.request_id);
        async move {
            let _early = early;
            let caller = CallerContext {
                thread: Thread::for_session(session),
                door: "rpc",
                turn: None,
                call_id: None,
                ceilings: Vec::new(),
                depth: 0,
                role: calls.table.role_of(session),
                notices: NoticeSender::default(),
                pends: false,
                purse: calls.table.purse_of(session),
                context: Arc::new(calls.session_context(session)),
                member: None,
                rank: CallOrder::default(),
            };
            let context = params.context;
            let request = Request {
                tool: params.name,
                arguments: params.arguments,
                request_id: context.request_id,
                identity: context.identity,
                sandbox: context.sandbox,
                policy: context.policy,
                under: None,
                converted: Vec::new(),
            };
            let cancel = calls.life.stop.child_token();
            call(&calls, &caller, request, &cancel).await
        }
    }

    /// For a replay: sets the known adaptation of a provider's requests.
    pub(crate) fn learn_form(&self, provider: &str, form: crate::infer::LearntForm) {
        self.agent.calls.models.forms.set_form(provider, form);
    }

    /// Returns the agent's CRA operations.
    #[must_use]
    pub fn cra_handle(&self) -> CraHandle {
        CraHandle::new(Arc::clone(&self.agent.calls))
    }

    /// Repeats an event from beside the replayed session.
    pub(crate) async fn repeat_event(&self, event: &RecordedEvent, session: SessionId) {
        let calls = &self.agent.calls;
        match OutsideAtlasEvent::read(event, session) {
            Ok(Some(outside)) => outside.apply((&calls.carp, &calls.catalog), event.at).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "a change of Atlases could not be repeated"),
        }
    }

    /// Answers an approval request. Waits if the call is in progress and has not asked yet (R18). Returns `false` if no request
    /// waits for it, or it was answered before.
    pub async fn answer_question(
        &self,
        id: &RequestId,
        answer: ApprovalAnswer,
        reason: Option<String>,
        by: &str,
    ) -> bool {
        let reply = ApprovalReply {
            answer,
            breadth: call::GrantScope::Exact,
            person: KnownPerson::admin("local", by),
            reason,
            seen: PreviewReceipt::Short,
        };
        self.reply_to_question(id, reply).await == ReplyOutcome::Taken
    }

    /// Like [`Self::answer_question`], with the person's role: only an admin may approve, and a viewer may not even deny (CKP §5.3).
    pub async fn reply_to_question(&self, id: &RequestId, reply: ApprovalReply) -> ReplyOutcome {
        call::reply_to_question(&self.agent.calls, id, reply).await
    }

    /// Answers several steps of a plan; all of them if `only` is `None`. Returns the outcome of each. Each step gets its own
    /// answer.
    pub async fn reply_plan(
        &self,
        plan: &RequestId,
        only: Option<&[u32]>,
        reply: &ApprovalReply,
    ) -> Vec<(u32, ReplyOutcome)> {
        call::reply_plan(&self.agent.calls, plan, only, reply).await
    }

    /// Emergency stop: ends running work and refuses new work, also after restarts, until an admin lifts it.
    ///
    /// # Errors
    /// The stop could not be recorded. It then holds only until this process ends.
    pub async fn engage_stop(
        &self,
        session: Option<SessionId>,
        level: stop::Level,
        by: &KnownPerson,
        reason: Option<String>,
    ) -> Result<stop::ActiveStop, KernelError> {
        let stop = stop::engage_stop(self.emergency_stop(), session, level, by, reason).await?;
        self.see_stops().await?;
        Ok(stop)
    }

    /// If hosts share the agent, reads the current stops from the record.
    async fn see_stops(&self) -> Result<(), KernelError> {
        if let Some(hosts) = &self.agent.calls.hosts {
            hosts::see_stops(&self.agent.calls, hosts).await?;
        }
        Ok(())
    }

    fn emergency_stop(&self) -> (&EmergencyStop, &JournalWriter, &Thread) {
        let agent = &self.agent;
        (&agent.calls.brake, &agent.scribe, &agent.life.root)
    }

    /// Lifts a stop. Returns `false` if there is none or `by` has no right to lift it.
    ///
    /// # Errors
    /// The lift could not be recorded. The stop then still holds.
    pub async fn lift_stop(&self, session: Option<SessionId>, by: &KnownPerson) -> Result<bool, KernelError> {
        let shared = self.agent.calls.hosts.is_some();
        let lifted = stop::lift_stop(self.emergency_stop(), session, by, shared).await?;
        self.see_stops().await?;
        Ok(lifted)
    }

    /// Returns the stops in force.
    #[must_use]
    pub fn active_stops(&self) -> Vec<stop::ActiveStop> {
        self.agent.calls.brake.active_stops()
    }

    /// Returns the standing grants: calls that need no further approval, and who granted them.
    #[must_use]
    pub fn standing_grants(&self) -> Vec<StandingGrant> {
        self.agent.calls.desk.standing.list_grants()
    }

    /// Revokes a standing grant, durably. Returns `false` if it does not exist or `by` has no right to revoke it.
    ///
    /// # Errors
    /// The journal can't be written. The grant then stays valid.
    pub async fn revoke_grant(&self, grant: &str, by: &KnownPerson) -> Result<bool, KernelError> {
        call::revoke_grant(&self.agent.calls, grant, by).await
    }

    /// Returns past approval requests with their answers, newest last.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn past_approvals(&self, limit: usize) -> Result<Vec<call::PastApproval>, KernelError> {
        call::past_approvals(&self.agent.calls, limit).await
    }

    /// Returns the number of the agent's running tasks: one worker for each open session, and background tasks.
    #[cfg(test)]
    pub(crate) fn task_count(&self) -> usize {
        self.agent.life.tracker.len()
    }

    /// Returns whether running work has been cancelled by a shutdown.
    #[cfg(test)]
    pub(crate) fn is_cut_off(&self) -> bool {
        self.agent.life.stop.is_cancelled()
    }

    /// Returns the waiting approval requests, those that expire first at the front.
    #[must_use]
    pub fn pending_questions(&self) -> Vec<ApprovalQuestion> {
        let calls = &self.agent.calls;
        let now_us = calls.clock().monotonic_us();
        let mut found = calls.desk.pending_questions(now_us);
        if let Some(hosts) = &calls.hosts {
            let elsewhere = hosts.pending_questions(now_us);
            let known =
                |question: &ApprovalQuestion| found.iter().any(|own| own.request_id == question.request_id);
            let elsewhere: Vec<ApprovalQuestion> = elsewhere
                .into_iter()
                .filter(|question| !known(question))
                .collect();
            found.extend(elsewhere);
            found.sort_by_key(|question| (question.expires_at, question.step_number()));
        }
        found
    }

    /// Returns the milliseconds until a request expires, by the monotonic clock. Changes of the wall clock have no effect.
    #[must_use]
    pub fn left_ms(&self, question: &ApprovalQuestion) -> u64 {
        self.agent.calls.left_ms(question)
    }

    /// Returns whether the wall clock is behind the record of an earlier run. Then the age of earlier events is unknown.
    #[must_use]
    pub fn is_clock_behind(&self) -> bool {
        self.agent.calls.dedup.is_behind()
    }

    /// Subscribes to every approval request from now on.
    #[must_use]
    pub fn subscribe_questions(&self) -> broadcast::Receiver<ApprovalQuestion> {
        self.agent.calls.desk.subscribe_questions()
    }

    /// Returns the open sessions, oldest first, with their entry points.
    #[must_use]
    pub fn list_open_sessions(&self) -> Vec<(SessionId, EntryPoint)> {
        let mut open: Vec<(SessionId, EntryPoint)> = self
            .agent
            .sessions
            .table
            .lock_open()
            .iter()
            .map(|(id, state)| (*id, state.door.clone()))
            .collect();
        open.sort_by_key(|(id, _)| *id);
        open
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
        memory::query_store(&self.agent.memories, session, params).await
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
        memory::store_entries(&self.agent.memories, session, params).await
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
        memory::compact_store(&self.agent.memories, session, params).await
    }

    /// `claw.swarm.delegate`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub async fn delegate_task(
        &self,
        session: SessionId,
        params: DelegateParams,
    ) -> Result<AcknowledgedResult, KernelError> {
        swarm::delegate_task(&self.agent.peers, session, params).await
    }

    /// `claw.swarm.report`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub async fn report_task(
        &self,
        session: SessionId,
        params: ReportParams,
    ) -> Result<AcknowledgedResult, KernelError> {
        swarm::report_task(&self.agent.peers, session, params).await
    }

    /// `claw.swarm.broadcast`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub async fn broadcast_message(
        &self,
        session: SessionId,
        params: BroadcastParams,
    ) -> Result<(), KernelError> {
        swarm::broadcast_message(&self.agent.peers, session, params).await
    }

    /// `claw.swarm.discover`.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub async fn discover_peers(&self, params: &DiscoverParams) -> Result<DiscoverResult, KernelError> {
        swarm::discover_peers(&self.agent.peers, params).await
    }

    /// Gives the swarm, or the members that `to` names, a task and waits for the result. The same id means the same run.
    ///
    /// # Errors
    /// There is no swarm, the task is refused, its id was used for another one, or the agent ended first. In the last case the run
    /// continues when it is requested after the next start.
    pub async fn swarm_run(
        &self,
        session: &SessionHandle,
        id: RequestId,
        task: DelegateTask,
        to: Option<String>,
    ) -> Result<RunResult, KernelError> {
        swarm::run(&self.agent.peers, (session.id, session.role()), id, task, to).await
    }

    /// Waits for the result of a delegated run. Returns `None` if the run is unknown or the agent ends first.
    pub async fn swarm_result(&self, run: &RequestId) -> Option<RunResult> {
        swarm::result_of(&self.agent.peers, run).await
    }

    /// Returns the params of a report to another host, signed by this host's key if it has one.
    #[must_use]
    pub fn sign_report(&self, params: Value) -> Value {
        swarm::sign_report(&self.agent.peers, params)
    }

    /// Returns the receiver of reports from a bus or from this host's own connections.
    #[must_use]
    pub fn report_receiver(&self) -> Arc<dyn ReportReceiver> {
        swarm::report_receiver(&self.agent.peers)
    }

    /// Returns the swarm's current state; `None` if the manifest has no swarm.
    ///
    /// # Errors
    /// Hosts share the agent, and none of them coordinates the swarm now.
    pub async fn swarm_view(&self) -> Result<Option<SwarmView>, KernelError> {
        swarm::swarm_view(&self.agent.peers).await
    }

    /// Completes when this host coordinates the swarm, or has the whole agent. Only then it works for the swarm's bus.
    pub async fn wait_until_coordinating(&self) {
        if let Some(team) = &self.agent.calls.team {
            team.wait_until_coordinator().await;
        }
    }

    /// Returns effects with an unknown outcome, oldest first (promise 4).
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn open_effects(&self) -> Result<Vec<OpenEffect>, KernelError> {
        Ok(self.agent.scribe.journal().open_effects().await?)
    }

    /// Records a person's statement about an unknown effect. Returns `false` if no effect with this id is unknown.
    ///
    /// # Errors
    /// The journal can't be read or written.
    pub async fn resolve_effect(
        &self,
        id: &RequestId,
        outcome: EffectSettlement,
        by: &str,
        reason: Option<&str>,
    ) -> Result<bool, KernelError> {
        Ok(effect::resolve_effect(
            &self.agent.scribe,
            id,
            outcome,
            SettlementMethod::Person,
            by,
            reason,
        )
        .await?)
    }

    /// Returns the spent, reserved and remaining amounts of every budget.
    #[must_use]
    pub fn budget_report(&self) -> BudgetReport {
        self.agent.calls.purses.budget_report(self.agent.scribe.now())
    }

    /// Returns at most `limit` messages whose turn could not be finished, newest last.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, KernelError> {
        let scan = JournalScan {
            kinds: &[kind::MESSAGE_DEAD],
            limit,
            with_content: true,
            ..JournalScan::default()
        };
        let found = self.agent.scribe.journal().scan_events(scan).await?;
        Ok(found.iter().map(DeadLetter::read).collect::<Result<_, _>>()?)
    }

    /// Ends a session normally.
    pub async fn end_session(&self, id: SessionId, reason: &str) {
        self.agent.sessions.end_session(id, reason).await;
    }

    /// Returns whether the agent ends because its state was unavailable or taken over, and its host will restart it. Clients
    /// continue in the next run.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.agent.life.goes_on.load(Ordering::SeqCst)
    }

    /// Ends the agent at once for the next run: see [`Self::goes_on`].
    pub async fn give_way(&self, reason: &str) {
        self.agent.life.goes_on.store(true, Ordering::SeqCst);
        self.shutdown(reason, 0).await;
    }

    /// STOPPING: accepts nothing new, drains for at most `timeout_ms`, cancels the rest, records the end, STOPPED. Returns `true`
    /// if all work ended in time. Waiting messages are answered after the next start.
    pub async fn shutdown(&self, reason: &str, timeout_ms: u64) -> bool {
        let agent = &self.agent;
        if let Err(error) = agent.life.advance_to(LifecycleState::Stopping, reason) {
            tracing::error!(%error, "stopping could not be recorded");
        }
        agent.life.closing.cancel();
        let drained = agent
            .life
            .wait_until_drained(Duration::from_millis(timeout_ms))
            .await;
        agent.life.stop.cancel();
        if !drained {
            let ended = agent
                .life
                .wait_until_drained(Duration::from_millis(LAST_CALL_MS))
                .await;
            tracing::warn!(ended, "work in flight was cancelled");
        }
        agent.life.tracker.close();
        let tasks =
            tokio::time::timeout(Duration::from_millis(LAST_CALL_MS), agent.life.tracker.wait()).await;
        if tasks.is_err() {
            tracing::error!("some tasks did not end when cancelled");
        }
        agent.calls.runner.close().await;
        let open: Vec<SessionId> = agent.sessions.table.lock_open().keys().copied().collect();
        for id in open {
            agent
                .sessions
                .end_session(id, if drained { "completed" } else { "cancelled" })
                .await;
        }
        // If hosts share the agent, the session's next owner records it.
        if agent.calls.owes.load(Ordering::SeqCst)
            && agent.calls.hosts.is_none()
            && let Err(error) = recover::report_owed(&agent.scribe, &agent.calls.catalog).await
        {
            tracing::error!(%error, "outcomes that are not known could not be recorded");
        }
        if let Err(error) = agent.life.advance_to(LifecycleState::Stopped, reason) {
            tracing::error!(%error, "the stop could not be recorded");
        }
        if let Err(error) = agent.scribe.journal().flush().await {
            tracing::error!(%error, "the journal could not be flushed");
        }
        agent.life.over.cancel();
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
    /// Time when it was given up, RFC 3339.
    pub at: String,
    /// Why.
    pub reason: String,
}

impl DeadLetter {
    fn read(event: &RecordedEvent) -> Result<Self, JournalError> {
        let dead: MessageDead = event.read_with_words()?;
        Ok(Self {
            message: MessageId(dead.message_id),
            session: event.session,
            at: event.at.to_string(),
            reason: dead.reason.into(),
        })
    }
}

/// A call's entry in the registry before its future is first polled.
struct EarlyPendingCall {
    calls: Arc<KernelServices>,
    request_id: RequestId,
}

impl EarlyPendingCall {
    fn new(calls: Arc<KernelServices>, request_id: &RequestId) -> Self {
        calls.desk.hold_call(request_id);
        Self {
            calls,
            request_id: request_id.clone(),
        }
    }
}

impl Drop for EarlyPendingCall {
    fn drop(&mut self) {
        self.calls.desk.release_call(&self.request_id);
    }
}
