//! The swarm in this process (CKP §9.3.3): performs the coordinator's effects one after the other. An attempt at a task is a turn
//! in its own session, which knows its task and its rights.

mod elsewhere;
mod lead;
mod restore;
mod slices;
mod tries;
mod wire;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use clawk_manifest::model::{Identity, Manifest, Role, Swarm};
use clawk_proto::method::{AcknowledgedResult, DelegateParams, DelegateTask};
use clawk_proto::{ErrorCode, RequestId, SessionId};
use clawk_swarm::coord::{
    Member as Seated, Node, RunResult, RunState, SwarmEdge, SwarmTaskRefusal, TaskBrief, TaskConstraints,
    TaskId,
};
use clawk_swarm::plan::identity_name;
use clawk_swarm::{Effect, Plan, SwarmCoordinator};
use clawk_trace::checkpoint::TraceSigner;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::oneshot;

use crate::dedup::{Claim, DedupAnswer, DedupMethod, answer_key};
use crate::error::{KernelError, StartError};
use crate::event::{JournalWriter, Thread, canonical, digest};
use crate::hosts::runs::{
    self, AssignmentOutcome, RunReservation, StoredRun as Kept, SwarmAssignment, find_stored_run,
};
use crate::judge;
use crate::lifecycle::AgentLifecycle;
use crate::options::SwarmOptions;
use crate::ports::{RemoteWorkers, TokenKey};
use crate::purse::{BudgetAccount, BudgetTree};
use crate::screen::{ScreenedTextKind, ScreeningPass};
use crate::services::KernelServices;
use crate::session::SessionServices;
use crate::team::{Origin, SwarmStep, SwarmTeam};
use crate::watch::NoticeSender;

pub(crate) use elsewhere::report_receiver;
pub(crate) use lead::{home_session, spawn_coordination};
pub(crate) use restore::{follow_broadcast, go_on, restore_swarm};
use tries::RunningTry;
pub use wire::UNPROVEN;
pub(crate) use wire::{broadcast_message, discover_peers, report_task, sign_report, swarm_view, view_here};

/// Tokens of a typical prompt and answer, used to compare prices.
const ORDINARY: (u64, u64) = (2000, 500);

/// Dependencies of the swarm's operations.
#[derive(Debug)]
pub(crate) struct SwarmServices {
    pub(crate) sessions: Arc<SessionServices>,
    pub(crate) calls: Arc<KernelServices>,
    pub(crate) life: Arc<AgentLifecycle>,
    pub(crate) scribe: JournalWriter,
    identities: BTreeMap<String, Arc<Identity>>,
    elsewhere: Option<Arc<dyn RemoteWorkers>>,
    /// Key of report tokens: this host's own, or the one that all hosts share once this host coordinates.
    token_key: OnceLock<TokenKey>,
    own_key: TokenKey,
    signer: Option<Arc<TraceSigner>>,
    /// Attempts that run elsewhere.
    sent: Mutex<elsewhere::SentTries>,
    tries: Mutex<HashMap<TaskId, RunningTry>>,
    /// The budget of each run.
    purses: Mutex<HashMap<TaskId, BudgetAccount>>,
    /// The budgets of each run's tasks.
    slices: Mutex<slices::TaskSlices>,
    /// Sessions of a run that may still receive a message.
    kept: Mutex<HashMap<TaskId, Vec<SessionId>>>,
    /// Broadcasts that members had received when their attempts began, for attempts that continue after a restart.
    told: Mutex<HashMap<TaskId, Vec<String>>>,
    /// Sessions of attempts that began while another host coordinated.
    moved: Mutex<HashSet<SessionId>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The current state of a swarm.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SwarmView {
    /// Name of the swarm.
    pub swarm: String,
    /// The topology, which determines who may talk to whom.
    pub topology: String,
    /// Members in seat order.
    pub members: Vec<Seated>,
    /// Number of running attempts.
    pub running: usize,
    /// Number of waiting tasks.
    pub waiting: usize,
    /// Runs that have not ended.
    pub runs: Vec<RunState>,
    /// Nodes of the topology.
    pub nodes: Vec<Node>,
    /// Edges of the topology.
    pub edges: Vec<SwarmEdge>,
}

impl SwarmView {
    /// Makes the view from a coordinator's state.
    #[must_use]
    pub fn from_coordinator(coord: &SwarmCoordinator) -> Self {
        let (nodes, edges) = coord.graph();
        let runs = coord.runs_now();
        Self {
            swarm: coord.plan().swarm.clone(),
            topology: coord.plan().topology.to_string(),
            members: coord.members(),
            running: coord.running_tries(),
            waiting: runs.iter().map(|run| run.waiting).sum(),
            runs,
            nodes,
            edges,
        }
    }
}

/// Plans the manifest's swarm for this host.
///
/// # Errors
/// The swarm is not valid, for example because it has two heads.
pub(crate) fn plan_swarm(
    manifest: &Manifest,
    options: &SwarmOptions,
    purses: &BudgetTree,
) -> Result<Option<Plan>, StartError> {
    let Some(swarm) = &manifest.swarm else {
        return Ok(None);
    };
    let plan = Plan::from_manifest(swarm, &manifest.identity.name, options.local);
    let mut plan = plan.map_err(|fault| StartError::Unserved(vec![fault.to_string()]))?;
    for seat in &mut plan.seats {
        let provider = provider_of(manifest, purses, seat.provider.as_deref(), plan.limits.cost_aware);
        seat.price_microusd = purses.price_of(&provider, ORDINARY.0, ORDINARY.1);
        let there = options.elsewhere.as_ref();
        let name = identity_name(&seat.identity);
        seat.timeout_ms = there.and_then(|there| there.timeout_ms(&name));
        let here = there.is_none_or(|there| there.member_route(&name).is_none());
        seat.asks = here.then_some(provider);
    }
    Ok(Some(plan))
}

/// Returns a member's provider: its own, else the Claw's first one. With `cost_aware`, it is the cheapest provider with a known
/// price.
fn provider_of(manifest: &Manifest, purses: &BudgetTree, own: Option<&str>, cost_aware: bool) -> String {
    if let Some(own) = own {
        return own.to_owned();
    }
    let first = manifest.providers.iter().map(|provider| provider.name.as_str());
    let price = |name: &&str| purses.price_of(name, ORDINARY.0, ORDINARY.1).unwrap_or(u64::MAX);
    let found = if cost_aware {
        first.min_by_key(price)
    } else {
        first.into_iter().next()
    };
    found.unwrap_or_default().to_owned()
}

fn declared_swarm<'a>(
    peers: &'a SwarmServices,
    name: &str,
) -> Result<(&'a Swarm, &'a Arc<SwarmTeam>), KernelError> {
    let swarm = peers
        .calls
        .manifest
        .swarm
        .as_ref()
        .filter(|swarm| swarm.name == name);
    swarm
        .zip(peers.calls.team.as_ref())
        .ok_or_else(|| KernelError::UnknownSwarm {
            name: name.chars().take(64).collect(),
        })
}

fn session_thread(peers: &SwarmServices, session: SessionId) -> Thread {
    Thread::for_session(session).child(peers.scribe.clock().new_uuid())
}

pub(crate) fn refusal_error(team: &SwarmTeam, task: &RequestId, refusal: SwarmTaskRefusal) -> KernelError {
    KernelError::Swarm {
        code: refusal.code,
        swarm: team.with_coordinator(|coord| coord.plan().swarm.clone()),
        task_id: task.clone(),
        reason: refusal.reason.to_owned(),
        message: refusal.message,
    }
}

impl SwarmServices {
    pub(crate) fn new(sessions: Arc<SessionServices>, options: SwarmOptions) -> Self {
        let shared = sessions
            .calls
            .team
            .as_ref()
            .is_some_and(|team| team.home_session().is_some());
        let token_key = if shared {
            OnceLock::new()
        } else {
            OnceLock::from(options.token_key.clone())
        };
        Self {
            calls: Arc::clone(&sessions.calls),
            life: Arc::clone(&sessions.life),
            scribe: sessions.scribe.clone(),
            sessions,
            identities: options.identities,
            elsewhere: options.elsewhere,
            token_key,
            own_key: options.token_key,
            signer: options.signer,
            sent: Mutex::default(),
            tries: Mutex::default(),
            purses: Mutex::default(),
            slices: Mutex::default(),
            kept: Mutex::default(),
            told: Mutex::default(),
            moved: Mutex::default(),
        }
    }

    /// Returns the chain of the whole swarm, if hosts share the agent.
    fn home_session(&self) -> Option<SessionId> {
        self.calls.team.as_ref().and_then(|team| team.home_session())
    }

    /// Returns the chain in which a run of this session is recorded.
    fn chain_of(&self, giver: SessionId) -> SessionId {
        self.home_session().unwrap_or(giver)
    }

    /// Returns a run's budget: a slice of the budget of the session that started it.
    fn purse_of(&self, run: &TaskId, origin: Origin) -> BudgetAccount {
        let mut purses = lock(&self.purses);
        let own = purses.entry(run.clone()).or_insert_with(|| {
            let limits = self
                .calls
                .manifest
                .swarm
                .as_ref()
                .map(|swarm| swarm.resource_limits.clone());
            let (purses, now) = (&self.calls.purses, self.scribe.now());
            let limits = limits.unwrap_or_default();
            if self.home_session().is_some() {
                // The session's budget may be on another host, which has reserved this amount.
                let lent = (origin.tokens, origin.cost_microusd);
                let parent = purses.task_account(purses.root_account(), run.as_str(), lent, now);
                return purses.run(&parent, run.as_str(), &limits, now);
            }
            // For a session that is not open, the restart has read its spending.
            let before = || lock(&self.slices).of_giver(origin.session);
            let parent = self.sessions.table.giver_account(origin.session, run, || {
                let purse = purses.session_account(purses.root_account(), &origin.session.to_string(), now);
                purse.add_earlier_spending(before()?);
                Some(purse)
            });
            purses.run(&parent, run.as_str(), &limits, now)
        });
        own.clone()
    }
}

/// `claw.swarm.delegate`: starts a run of the whole swarm, or a task for one member. It is acknowledged when it is recorded, once
/// per `request_id` (R19).
pub(crate) async fn delegate_task(
    peers: &Arc<SwarmServices>,
    session: SessionId,
    mut params: DelegateParams,
) -> Result<AcknowledgedResult, KernelError> {
    let _working = peers.life.begin_work().map_err(KernelError::NotReady)?;
    let (swarm, team) = declared_swarm(peers, &params.context.swarm)?;
    // Compare the text before screening, so that the same request stays equal even if screening knows more secrets later.
    let asked = digest(&canonical(&params.task));
    let request_hash = digest(&[&asked.0[..], params.task_id.as_str().as_bytes()].concat());
    let key = answer_key(DedupMethod::Delegate, &params.context.request_id);
    let claim = peers
        .calls
        .dedup
        .claim_request(key, request_hash, &**peers.scribe.journal())
        .await?;
    let guard = match claim {
        Claim::Fresh(guard) => guard,
        Claim::Answered(DedupAnswer::Delegated(answer)) => return Ok(answer),
        Claim::Answered(DedupAnswer::Call(_) | DedupAnswer::Memory(_) | DedupAnswer::Message(_))
        | Claim::Reused => {
            return Err(KernelError::RequestIdReused(params.context.request_id));
        }
    };
    screen_task(peers, session, &swarm.name, &mut params.task).await?;
    let limits = params.context.limits.as_ref();
    let role = elsewhere::at_most(peers.sessions.table.role_of(session), limits);
    let origin = Origin {
        autonomy: limits.and_then(elsewhere::parse_autonomy),
        from_afar: params.context.report_token.is_some() || limits.is_some(),
        by_bus: peers.sessions.table.is_peers(session),
        ..Origin::from_session(session, role)
    };
    let mut given = SwarmAssignment {
        run: params.task_id,
        wish: limits.map(elsewhere::task_constraints).unwrap_or_default(),
        to: params.context.member,
        brief: task_brief(params.task),
        origin,
        asked: Some((params.context.request_id, request_hash)),
    };
    let run = given.run.clone();
    team.note_asker(&run, &BTreeSet::new());
    let lent = reserve_run(peers, team, &mut given)?;
    if let AssignmentOutcome::Open(ended) = runs::give_run(&peers.calls, team, given).await? {
        paid_by(peers, team, &run, origin);
        settle_later(peers, lent, ended);
    }
    let answer = AcknowledgedResult { acknowledged: true };
    guard.publish_answer(DedupAnswer::Delegated(answer));
    Ok(answer)
}

fn task_brief(task: DelegateTask) -> TaskBrief {
    TaskBrief {
        description: task.description,
        input: task.input,
    }
}

/// Reserves the run's budget in the giving session's budget, if another host may pay for the run.
fn reserve_run(
    peers: &SwarmServices,
    team: &SwarmTeam,
    given: &mut SwarmAssignment,
) -> Result<Option<RunReservation>, KernelError> {
    let lent = runs::reserve_run(&peers.calls, team, &given.run, &mut given.origin);
    lent.map_err(|error| KernelError::Swarm {
        code: ErrorCode::QuotaExceeded.code(),
        swarm: team.with_coordinator(|coord| coord.plan().swarm.clone()),
        task_id: given.run.clone(),
        reason: "quota".to_owned(),
        message: error.to_string(),
    })
}

/// Settles a run's use in its session's budget in the background, if that budget is limited. No caller waits for the run.
fn settle_later(
    peers: &Arc<SwarmServices>,
    lent: Option<RunReservation>,
    ended: oneshot::Receiver<RunResult>,
) {
    let Some(lent) = lent.filter(|lent| !lent.is_open()) else {
        return;
    };
    let own = Arc::clone(peers);
    peers.life.tracker.spawn(async move {
        let result = wait_for_result(&own, ended).await;
        if let (Some(team), Some(result)) = (&own.calls.team, result) {
            lent.settle(&own.calls, team, Some(&result));
        }
    });
}

/// Waits for a run; `None`: the agent ends first.
async fn wait_for_result(peers: &SwarmServices, ended: oneshot::Receiver<RunResult>) -> Option<RunResult> {
    tokio::select! {
        biased;
        result = ended => result.ok(), // silent-ok: the agent has ended
        () = peers.life.stop.cancelled() => None,
    }
}

/// Opens the budget of an accepted run while its session is open.
fn paid_by(peers: &SwarmServices, team: &SwarmTeam, run: &TaskId, origin: Origin) {
    if team.is_coordinator() && team.with_coordinator(|coord| coord.run(run).is_some()) {
        drop(peers.purse_of(run, origin));
    }
}

/// Gives the whole swarm, or the member `to`, a task and waits for its end. The same id means the same run: its result is returned,
/// or the call waits for it.
pub(crate) async fn run(
    peers: &Arc<SwarmServices>,
    (session, role): (SessionId, Role),
    run: TaskId,
    mut task: DelegateTask,
    to: Option<String>,
) -> Result<RunResult, KernelError> {
    let unknown = || KernelError::UnknownSwarm { name: String::new() };
    let (swarm, team) = peers
        .calls
        .manifest
        .swarm
        .as_ref()
        .zip(peers.calls.team.as_ref())
        .ok_or_else(unknown)?;
    if let Kept {
        words,
        result: Some(result),
    } = find_stored_run(&peers.scribe, team.home_session(), &run).await?
    {
        return if words == Some(digest(&canonical(&task))) {
            Ok(*result)
        } else {
            Err(KernelError::RequestIdReused(run))
        };
    }
    let (ended, lent) = {
        let _working = peers.life.begin_work().map_err(KernelError::NotReady)?;
        screen_task(peers, session, &swarm.name, &mut task).await?;
        let origin = Origin::from_session(session, role);
        let mut given = SwarmAssignment {
            run: run.clone(),
            brief: task_brief(task),
            to,
            wish: TaskConstraints::default(),
            origin,
            asked: None,
        };
        team.note_asker(&run, &BTreeSet::new());
        let lent = reserve_run(peers, team, &mut given)?;
        match runs::give_run(&peers.calls, team, given).await? {
            AssignmentOutcome::Open(ended) => {
                paid_by(peers, team, &run, origin);
                (ended, lent)
            }
            AssignmentOutcome::Ended(result) => {
                if let Some(lent) = lent {
                    lent.settle_once(&peers.calls, team, &result).await?;
                }
                return Ok(*result);
            }
        }
    };
    let result = wait_for_result(peers, ended).await;
    if let Some(lent) = lent {
        lent.settle(&peers.calls, team, result.as_ref());
    }
    result.ok_or_else(|| KernelError::NotReady(peers.life.state()))
}

/// Waits for the end of an earlier run; `None`: the run does not exist, or the agent ends first.
pub(crate) async fn result_of(peers: &SwarmServices, run: &TaskId) -> Option<RunResult> {
    let team = peers.calls.team.as_ref()?;
    let ended = match team.when_ended(run) {
        Some(ended) => ended,
        None => {
            let ended = team.wait_for_end(run);
            match find_stored_run(&peers.scribe, team.home_session(), run).await {
                // Another host coordinates the run.
                Ok(Kept {
                    words: Some(_),
                    result: None,
                }) if !team.is_coordinator() => ended,
                found => {
                    team.wait_no_more(run, ended);
                    let found =
                        found.inspect_err(|error| tracing::error!(%error, "a stored result can't be read"));
                    return found.ok()?.result.map(|result| *result); // silent-ok: said above
                }
            }
        }
    };
    wait_for_result(peers, ended).await
}

/// Removes the secrets from a task's text, by the policies for incoming text. The peer's message is screened again.
async fn screen_task(
    peers: &SwarmServices,
    session: SessionId,
    swarm: &str,
    task: &mut DelegateTask,
) -> Result<(), KernelError> {
    let mut value = json!(task);
    let mut look = ScreeningPass::new(
        &peers.calls.screens,
        session_thread(peers, session),
        ScreenedTextKind::Peer,
        swarm,
        &NoticeSender::default(),
    );
    let outcome = judge::value_in(&mut look, &mut value).await;
    if !look.drafts.is_empty() {
        peers.scribe.write(look.drafts).await?;
    }
    outcome?;
    if let Ok(clean) = serde_json::from_value(value) {
        *task = clean;
    }
    Ok(())
}

/// Performs the coordinator's decisions until the agent stops.
pub(crate) async fn work_off(peers: Arc<SwarmServices>) {
    let Some(team) = peers.calls.team.clone() else {
        return;
    };
    loop {
        let wakes = team.with_coordinator(SwarmCoordinator::wakes_at);
        let step = tokio::select! {
            biased;
            () = peers.life.stop.cancelled() => return team.close(),
            step = team.next() => step,
            () = sleep_until(&team, wakes) => {
                let Ok(_durable) = team.queue_decision(None, |coord, now_ms| Ok::<_, std::convert::Infallible>(coord.tick(now_ms)));
                continue;
            }
        };
        perform_step(&peers, &team, step).await;
    }
}

async fn sleep_until(team: &SwarmTeam, wakes: Option<u64>) {
    match wakes {
        Some(at) => tokio::time::sleep(Duration::from_millis(at.saturating_sub(team.now_ms()).max(1))).await,
        None => std::future::pending().await,
    }
}

async fn perform_step(peers: &Arc<SwarmServices>, team: &Arc<SwarmTeam>, step: SwarmStep) {
    let SwarmStep {
        ticket,
        effects,
        done,
    } = step;
    let kept = match ticket {
        Some(ticket) => ticket.wait_until_durable().await,
        None => Ok(()),
    };
    if let Err(error) = &kept {
        tracing::error!(%error, "what the swarm decided can't be recorded: it is not done");
    }
    let durable = kept.is_ok();
    if let Some(done) = done {
        let _gone = done.send(kept); // silent-ok: nobody waits for it
    }
    if !durable {
        return;
    }
    for effect in effects {
        match effect {
            Effect::Record(_) => {}
            Effect::Start(start) => tries::begin_try(peers, *start),
            Effect::Cancel(task) => tries::cancel_try(peers, &task),
            Effect::Reply { asker, result } => team.deliver_result(&asker, *result),
            Effect::Tell { task, of, text } => tries::deliver_text(peers, &task, &of, text).await,
            Effect::Publish { to, text } => {
                let members = to.iter().filter_map(|task| team.task_member(task));
                members.for_each(|member| member.add_peer_report(text.clone()));
            }
            Effect::RunEnded(result) => {
                lock(&peers.purses).remove(&result.task_id);
                peers.sessions.table.forget_run(&result.task_id);
                lock(&peers.slices).forget_run(&result.task_id);
                let kept = lock(&peers.kept).remove(&result.task_id);
                for session in kept.unwrap_or_default() {
                    peers.sessions.end_session(session, "completed").await;
                }
                team.notify_run_ended(&result);
            }
        }
    }
}
