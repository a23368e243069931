//! Swarm operations in one process (CKP §9.3.3): a delegated task is a turn of a peer session of this agent.

mod reopen;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_manifest::model::{Role, Swarm, SwarmAgent};
use clawk_proto::method::{
    Acknowledged, BroadcastParams, DelegateParams, DiscoverParams, DiscoverResult, Peer, PeerStatus,
    ReportParams, Task, TaskStatus,
};
use clawk_proto::uri::ClawUri;
use clawk_proto::{RequestId, SessionId};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::call::{Claim, Keyed, Stored, key};
use crate::door::Door;
use crate::error::KernelError;
use crate::event::{SwarmBroadcast, SwarmDelegated, SwarmReported, Thread, canonical, digest, kind};
use crate::notice::{Notice, TurnEnd};
use crate::purse::Amount;
use crate::recover::OpenTurn;
use crate::screen::{self, Look, Spot};
use crate::session::{self, Notices, Opening, Session};

pub(crate) use reopen::{OpenTask, open_tasks, take_up};

/// Broadcast messages kept for a peer's next task.
const PEER_INBOX: usize = 64;
/// Bytes of one broadcast message that a peer reads.
const PEER_MESSAGE_BYTES: usize = 16_384;
/// How long a turn has to end when the agent stops, milliseconds.
const TURN_END_MS: u64 = 5_000;
/// Ended tasks that are remembered, so that a late report is no orphan.
const ENDED_TASKS: usize = 1024;

/// Tasks and what peers were told.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Running tasks by id, with the peer that works on each.
    running: HashMap<RequestId, usize>,
    ended: VecDeque<RequestId>,
    inboxes: HashMap<usize, VecDeque<String>>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, task: &RequestId) -> bool {
        let mut inner = self.lock();
        let known = inner.running.remove(task).is_some() || inner.ended.contains(task);
        if known && !inner.ended.contains(task) {
            inner.ended.push_back(task.clone());
            if inner.ended.len() > ENDED_TASKS {
                inner.ended.pop_front();
            }
        }
        known
    }
}

impl Inner {
    /// Puts a message into every peer's bounded inbox: how many there are.
    fn tell(&mut self, swarm: &Swarm, text: &str) -> usize {
        let mut peers = 0;
        for (at, _) in seats(swarm) {
            let inbox = self.inboxes.entry(at).or_default();
            inbox.push_back(text.chars().take(PEER_MESSAGE_BYTES).collect());
            if inbox.len() > PEER_INBOX {
                inbox.pop_front();
            }
            peers += 1;
        }
        peers
    }
}

/// What is left to do of a task.
enum Rest {
    /// Its peer has not heard of it.
    All(String),
    /// Its turn was interrupted.
    Turn(Box<OpenTurn>),
    /// The report.
    Report(Outcome),
}

/// How it ended, with what, and the tokens that it took.
type Outcome = (TaskStatus, Value, u64);

/// Every peer of a swarm, `count` times each.
fn seats(swarm: &Swarm) -> impl Iterator<Item = (usize, &SwarmAgent)> {
    swarm
        .agents
        .iter()
        .flat_map(|agent| (0..agent.count).map(move |_| agent))
        .enumerate()
}

fn declared<'a>(agent: &'a Agent, name: &str) -> Result<&'a Swarm, KernelError> {
    let swarm = agent.manifest.swarm.as_ref().filter(|swarm| swarm.name == name);
    swarm.ok_or_else(|| KernelError::UnknownSwarm {
        name: name.chars().take(64).collect(),
    })
}

fn thread(agent: &Agent, session: SessionId) -> Thread {
    Thread {
        session,
        span: session.0,
        parent: None,
    }
    .child(agent.clock().uuid())
}

/// `claw.swarm.delegate`: acknowledged when the task is recorded and its peer has it; once per `request_id` (R19).
pub(crate) async fn delegate(
    agent: &Arc<Agent>,
    session: SessionId,
    mut params: DelegateParams,
) -> Result<Acknowledged, KernelError> {
    let _working = agent.life.enter().map_err(KernelError::NotReady)?;
    let swarm = declared(agent, &params.context.swarm)?;
    // What was asked, before screening: the same request is the same, whatever has become known since.
    let asked = digest(&canonical(&params.task));
    let request_hash = digest(&[&asked.0[..], params.task_id.as_str().as_bytes()].concat());
    let key = key(Keyed::Delegate, &params.context.request_id);
    let claim = agent
        .dedup
        .claim(key, request_hash, &**agent.scribe.journal(), agent.scribe.now())
        .await?;
    let guard = match claim {
        Claim::Fresh(guard) => guard,
        Claim::Answered(Stored::Delegated(answer)) => return Ok(answer),
        Claim::Answered(Stored::Call(_) | Stored::Memory(_) | Stored::Message(_)) | Claim::Reused => {
            return Err(KernelError::RequestIdReused(params.context.request_id));
        }
    };
    screen_task(agent, session, &swarm.name, &mut params.task).await?;
    let task_bytes = canonical(&params.task);
    let task_hash = digest(&task_bytes);
    let (seat, peer, peer_messages) = take_seat(agent, swarm, &params.task_id)?;
    let free = || agent.board.lock().running.remove(&params.task_id);
    // The narrower of both sides: a peer works with at most the rights of who delegates to it.
    let role = agent.role_of(session);
    let opening = Opening {
        goal: params.task.description.chars().take(200).collect(),
        ..opening(
            agent,
            session,
            (&peer.identity_ref, &params.task_id, role),
            peer_messages,
        )
    };
    let worker = Session::open(agent, opening).await.inspect_err(|_| {
        free();
    })?;
    let payload = SwarmDelegated {
        peer: &peer.identity_ref,
        peer_session: worker.id.0,
        request_hash,
        request_id: params.context.request_id.as_str(),
        role: role.as_str(),
        seat,
        swarm: &swarm.name,
        task_hash,
        task_id: params.task_id.as_str(),
    };
    let draft = agent
        .scribe
        .entry(&thread(agent, session), kind::SWARM_DELEGATED, &payload);
    let kept = agent
        .scribe
        .write(vec![draft.content(task_hash, task_bytes).answers(Some(key))])
        .await;
    if let Err(error) = kept {
        free();
        agent.end_session(worker.id, "failed").await;
        return Err(error.into());
    }
    tracing::debug!(seat, task = %params.task_id, "delegated");
    let rest = Rest::All(words(&params.task));
    agent
        .tracker
        .spawn(work(Arc::clone(agent), session, worker, params.task_id, rest));
    let answer = Acknowledged { acknowledged: true };
    guard.settle(Stored::Delegated(answer), agent.scribe.now());
    Ok(answer)
}

/// The peer's session: its purse is a slice of its asker's.
fn opening(
    agent: &Agent,
    asker: SessionId,
    (identity, task_id, role): (&str, &RequestId, Role),
    peer_messages: Vec<String>,
) -> Opening {
    let mut peers = agent.manifest.swarm.iter().flat_map(|swarm| &swarm.agents);
    let provider = peers
        .find(|peer| peer.identity_ref == identity)
        .and_then(|peer| peer.provider_ref.as_deref())
        .unwrap_or(agent.primary_provider());
    Opening {
        id: None,
        door: Door::Peer {
            identity: identity.to_owned(),
            task_id: task_id.to_string(),
            role,
        },
        provider: provider.to_owned(),
        goal: String::new(),
        history: Vec::new(),
        under: Some(agent.purse_of(asker)),
        spent: Amount::default(),
        surface: true,
        peer_messages,
    }
}

/// A task as its peer reads it.
fn words(task: &Task) -> String {
    match &task.input {
        Some(input) => format!("{}\n\nInput: {input}", task.description),
        None => task.description.clone(),
    }
}

/// A task, without the secrets that the policies take out of what comes in. Its whole text is screened again, as a message to
/// the peer.
async fn screen_task(
    agent: &Agent,
    session: SessionId,
    swarm: &str,
    task: &mut Task,
) -> Result<(), KernelError> {
    let mut value = json!(task);
    let mut look = Look::new(
        agent,
        thread(agent, session),
        Spot::Peer,
        swarm,
        &Notices::default(),
    );
    let outcome = screen::value_in(&mut look, &mut value).await;
    if !look.drafts.is_empty() {
        agent.scribe.write(look.drafts).await?;
    }
    outcome?;
    if let Ok(clean) = serde_json::from_value(value) {
        *task = clean;
    }
    Ok(())
}

/// A free peer, workers before leaders; none free is said, not queued without bound.
fn take_seat<'a>(
    agent: &Agent,
    swarm: &'a Swarm,
    task: &RequestId,
) -> Result<(usize, &'a SwarmAgent, Vec<String>), KernelError> {
    let busy = || KernelError::PeersBusy(swarm.name.clone());
    let mut inner = agent.board.lock();
    if inner.running.contains_key(task) {
        return Err(KernelError::BadParameter {
            member: "task_id",
            reason: "this task runs already".to_owned(),
        });
    }
    let bound = swarm.coordination.concurrency.max_parallel.unwrap_or(u32::MAX);
    if inner.running.len() >= usize::try_from(bound).unwrap_or(usize::MAX) {
        return Err(busy());
    }
    let free = |at: &usize| !inner.running.values().any(|taken| taken == at);
    let found = seats(swarm)
        .filter(|(at, _)| free(at))
        .min_by_key(|(_, peer)| matches!(peer.role.as_str(), "leader" | "root" | "source"));
    let (at, peer) = found.ok_or_else(busy)?;
    inner.running.insert(task.clone(), at);
    let messages = inner.inboxes.remove(&at).unwrap_or_default();
    Ok((at, peer, messages.into()))
}

/// What is left of a delegated task, up to its report. If the agent ends before the task, its turn waits for the next start, and
/// the report with it.
async fn work(agent: Arc<Agent>, asker: SessionId, worker: Session, task: RequestId, rest: Rest) {
    let started_us = agent.clock().monotonic_us();
    let begun = match rest {
        Rest::All(text) => worker.send(text).await.map(|_| None),
        Rest::Turn(open) => session::resume(&agent, worker.inside().1, *open).map(|()| None),
        Rest::Report(outcome) => Ok(Some(outcome)),
    };
    let ended = match begun {
        Ok(Some(outcome)) => Some(outcome),
        Ok(None) => outcome(&agent, &worker).await,
        Err(KernelError::NotReady(_)) => None, // silent-ok: as in the comment above
        Err(error) => Some((TaskStatus::Failed, json!({"error": error.to_string()}), 0)),
    };
    let Some((status, result, tokens)) = ended else {
        return;
    };
    let duration_ms = agent.clock().monotonic_us().saturating_sub(started_us) / 1000;
    let params = ReportParams {
        task_id: task,
        status,
        result,
        token_usage: Some(tokens),
        duration_ms: Some(duration_ms),
    };
    let cost = worker.spent().cost_microusd;
    if let Err(error) = record_report(&agent, asker, params, cost).await {
        tracing::error!(%error, "a task's report could not be recorded");
    }
    agent.end_session(worker.id, "completed").await;
}

/// How the turn ended; `None`: the agent ended first.
async fn outcome(agent: &Agent, worker: &Session) -> Option<Outcome> {
    let mut said = String::new();
    loop {
        let notice = tokio::select! {
            biased;
            notice = worker.next_notice() => notice?,
            () = over(agent) => return None,
        };
        match notice {
            Notice::Said(text) => said = text,
            Notice::TurnEnded { end, usage, .. } => {
                let (status, result) = match end {
                    TurnEnd::Answered => (TaskStatus::Completed, json!({"text": said})),
                    TurnEnd::Cancelled => (TaskStatus::Failed, json!({"error": "cancelled"})),
                    TurnEnd::Failed(reason) => (TaskStatus::Failed, json!({"error": reason})),
                };
                return Some((status, result, usage.total()));
            }
            _ => {}
        }
    }
}

/// The agent stops, and no turn runs any more.
async fn over(agent: &Agent) {
    agent.stop.cancelled().await;
    agent.life.drained(Duration::from_millis(TURN_END_MS)).await;
}

/// `claw.swarm.report`: recorded in any case; of an unknown task as an orphan (R22).
pub(crate) async fn report(
    agent: &Agent,
    session: SessionId,
    params: ReportParams,
) -> Result<Acknowledged, KernelError> {
    let _working = agent.life.enter().map_err(KernelError::NotReady)?;
    record_report(agent, session, params, 0).await
}

async fn record_report(
    agent: &Agent,
    session: SessionId,
    mut params: ReportParams,
    cost_microusd: u64,
) -> Result<Acknowledged, KernelError> {
    let known = agent.board.end(&params.task_id);
    let mut look = Look::new(
        agent,
        thread(agent, session),
        Spot::Peer,
        "report",
        &Notices::default(),
    );
    screen::peer_value(&mut look, &mut params.result).await;
    let mut drafts = look.drafts;
    let bytes = canonical(&params.result);
    let result_hash = digest(&bytes);
    let payload = SwarmReported {
        cost_microusd,
        duration_ms: params.duration_ms.unwrap_or(0),
        orphan: !known,
        result_hash,
        status: match params.status {
            TaskStatus::Completed => "completed",
            TaskStatus::Failed => "failed",
            TaskStatus::Partial => "partial",
        },
        task_id: params.task_id.as_str(),
        token_usage: params.token_usage.unwrap_or(0),
    };
    let draft = agent
        .scribe
        .entry(&thread(agent, session), kind::SWARM_REPORTED, &payload);
    drafts.push(draft.content(result_hash, bytes));
    agent.scribe.write(drafts).await?;
    Ok(Acknowledged { acknowledged: true })
}

/// `claw.swarm.broadcast`: into every peer's bounded inbox; each reads it, marked as data, with its next task.
pub(crate) async fn broadcast(
    agent: &Agent,
    session: SessionId,
    params: BroadcastParams,
) -> Result<(), KernelError> {
    let _working = agent.life.enter().map_err(KernelError::NotReady)?;
    let swarm = declared(agent, &params.swarm)?;
    let mut look = Look::new(
        agent,
        thread(agent, session),
        Spot::Peer,
        &swarm.name,
        &Notices::default(),
    );
    let screened = screen::peer_text(&mut look, params.message.to_string(), &agent.stop.child_token()).await;
    let mut drafts = look.drafts;
    let text = match screened {
        Ok(text) => text,
        Err(refused) => {
            agent.scribe.write(drafts).await?;
            return Err(refused.into());
        }
    };
    let message_hash = digest(text.as_bytes());
    let peers = agent.board.lock().tell(swarm, &text);
    let bytes = text.into_bytes();
    let payload = SwarmBroadcast {
        message_hash,
        peers,
        swarm: &swarm.name,
    };
    let draft = agent
        .scribe
        .entry(&thread(agent, session), kind::SWARM_BROADCAST, &payload);
    drafts.push(draft.content(message_hash, bytes));
    agent.scribe.write(drafts).await?;
    Ok(())
}

/// A peer's identity as the wire names it: canonical, whichever form the manifest uses (CKP §7).
fn canonical_uri(identity: &str) -> String {
    match ClawUri::parse(identity) {
        Ok(uri) => uri.to_string(),
        Err(_) => format!("claw://local/identity/{identity}"), // silent-ok: it is a plain name
    }
}

/// `claw.swarm.discover`: the peers of this process, busy ones as such. An unknown swarm has none.
pub(crate) fn discover(agent: &Agent, params: &DiscoverParams) -> Result<DiscoverResult, KernelError> {
    let _working = agent.life.enter().map_err(KernelError::NotReady)?;
    let swarm = agent.manifest.swarm.as_ref();
    let swarm = swarm.filter(|swarm| params.swarm.as_ref().is_none_or(|name| *name == swarm.name));
    let inner = agent.board.lock();
    let peers = swarm.into_iter().flat_map(seats).map(|(at, peer)| Peer {
        identity: peer.identity_ref.clone(),
        uri: canonical_uri(&peer.identity_ref),
        status: if inner.running.values().any(|taken| *taken == at) {
            PeerStatus::Busy
        } else {
            PeerStatus::Ready
        },
    });
    Ok(DiscoverResult {
        peers: peers.collect(),
    })
}
