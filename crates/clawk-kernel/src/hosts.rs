//! Several hosts of one agent (R48). Each host runs the whole kernel on the shared journal, works on the sessions that it owns,
//! follows the events of the other hosts, and takes over the sessions of a lost host. With a single host, this module does nothing.

mod follow;
mod hand;
mod orders;
pub(crate) mod runs;
mod takeover;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_proto::{MessageId, RequestId, SessionId};
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use crate::agent::Agent;
use crate::call::{ApprovalReply, CallGovernor, ReplyOutcome, SessionOwner};
use crate::error::KernelError;
use crate::notice::ApprovalQuestion;
use crate::ports::{BoxFuture, HostCluster, Journal, JournalError, SessionHolder};
use crate::session::SessionServices;

pub(crate) use follow::see_stops;
pub(crate) use hand::{hand_over, is_elsewhere, register_waiter, remove_waiter, wait_for_end};

/// Interval at which a host reads new events and orders of the others while there is activity.
const TICK: Duration = Duration::from_millis(150);
/// Time after the last activity during which that interval still applies. It is longer than the others let a host sleep after they
/// woke it.
const AWAKE: Duration = Duration::from_secs(3);
/// Interval without activity. Other hosts wake this one when they do something; this interval limits the delay if they do not.
const ASLEEP: Duration = Duration::from_millis(500);
/// Shortest time between two reads, however often the host is woken.
const GAP: Duration = Duration::from_millis(50);
/// Interval at which a host looks for lost hosts and for sessions without an owner.
const LOOK: Duration = Duration::from_millis(500);
/// Interval at which a host tries a takeover even if it has found no lost host.
const ANYWAY: Duration = Duration::from_secs(5);
/// Time limit for another host to release the session of a task.
const RELEASED: Duration = Duration::from_secs(2);
/// Time for which this host keeps a session that it took over and that needs no work.
const IDLE: Duration = Duration::from_secs(10);

/// This host's knowledge about the other hosts.
#[derive(Debug)]
pub(crate) struct PeerHosts {
    pub(crate) shared: Arc<dyn HostCluster>,
    /// The last row of the journal that was followed.
    row: tokio::sync::Mutex<u64>,
    /// The same row, for readers that must not wait.
    followed: AtomicU64,
    /// The last row up to which emergency stops are known, if that is later.
    stops: AtomicU64,
    /// The server's timeline to which this row belongs. It changes at a failover.
    line: AtomicU32,
    /// Open approval requests in sessions that other hosts own.
    asked: Mutex<BTreeMap<RequestId, ApprovalQuestion>>,
    /// Tasks here that wait for the end of a turn, which may run on another host.
    waits: Mutex<HashMap<MessageId, Arc<Notify>>>,
    /// Orders that are being executed.
    obeying: Mutex<HashSet<Uuid>>,
    /// Sessions that this host owns but has not resumed, because a step of the resume failed.
    untaken: Mutex<BTreeSet<SessionId>>,
    /// Sessions that were taken over, with the time.
    taken: Mutex<Vec<(SessionId, Instant)>>,
    /// Locked while another host's sessions are taken over, until their unfinished work is settled. No session of them is opened
    /// before that.
    gate: tokio::sync::Mutex<()>,
    /// Notified when there may be something to take over.
    due: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerHosts {
    /// Makes the state; `None` if one host has the whole agent.
    pub(crate) fn from_journal(journal: &dyn Journal) -> Option<Arc<Self>> {
        journal.host_cluster().map(|shared| {
            Arc::new(Self {
                shared,
                row: tokio::sync::Mutex::default(),
                followed: AtomicU64::default(),
                stops: AtomicU64::default(),
                line: AtomicU32::default(),
                asked: Mutex::default(),
                waits: Mutex::default(),
                obeying: Mutex::default(),
                untaken: Mutex::default(),
                taken: Mutex::default(),
                gate: tokio::sync::Mutex::default(),
                due: Notify::new(),
            })
        })
    }

    /// Returns the approval requests that wait on other hosts; `now_us` is monotonic time in microseconds.
    pub(crate) fn pending_questions(&self, now_us: u64) -> Vec<ApprovalQuestion> {
        let asked = lock(&self.asked);
        let open = asked.values().filter(|question| question.until_us > now_us);
        open.cloned().collect()
    }

    /// Starts following the journal after this row, with these approval requests open on other hosts.
    pub(crate) async fn begin_following(&self, row: u64, asked: Vec<ApprovalQuestion>) {
        *self.row.lock().await = row;
        self.followed.store(row, Ordering::SeqCst);
        let asked = asked
            .into_iter()
            .map(|question| (question.request_id.clone(), question));
        lock(&self.asked).extend(asked);
    }
}

impl SessionOwner for PeerHosts {
    fn forward_reply<'a>(
        &'a self,
        calls: &'a CallGovernor,
        id: &'a RequestId,
        reply: &'a ApprovalReply,
    ) -> BoxFuture<'a, ReplyOutcome> {
        Box::pin(orders::forward_reply(calls, self, id, reply))
    }

    fn plan_steps(&self, plan: &RequestId) -> Vec<(u32, RequestId)> {
        let asked = lock(&self.asked);
        let of_plan = asked.values().filter_map(|question| {
            let step = question.step.as_ref().filter(|step| step.plan == *plan)?;
            Some((step.number, question.request_id.clone()))
        });
        of_plan.collect()
    }

    fn stops_known(&self) -> u64 {
        let [followed, stops] = [&self.followed, &self.stops].map(|row| row.load(Ordering::SeqCst));
        followed.max(stops)
    }

    fn see_stops<'a>(&'a self, calls: &'a CallGovernor) -> BoxFuture<'a, Result<(), JournalError>> {
        Box::pin(follow::see_stops(calls, self))
    }
}

/// Follows the other hosts and takes over their lost sessions, until the agent ends.
pub(crate) fn spawn_host_watch(agent: &Arc<Agent>, hosts: &Arc<PeerHosts>) {
    let (own, known) = (Arc::clone(agent), Arc::clone(hosts));
    agent.life.tracker.spawn(async move {
        tokio::select! {
            biased;
            () = orders::listen_for_orders(&own, &known) => {}
            () = own.life.stop.cancelled() => {}
        }
    });
    let (own, known) = (Arc::clone(agent), Arc::clone(hosts));
    agent.life.tracker.spawn(async move {
        tokio::select! {
            biased;
            () = takeover::watch_for_takeover(&own, &known) => {}
            () = own.life.closing.cancelled() => {}
        }
    });
}

/// Returns an error if other hosts have taken over from this one.
pub(crate) fn lost_error(sessions: &SessionServices) -> Option<KernelError> {
    let hosts = sessions.calls.hosts.as_ref()?;
    hosts.shared.is_lost().then(|| {
        KernelError::from(JournalError::Fenced {
            host: hosts.shared.host_name().to_owned(),
        })
    })
}

/// Takes ownership of the session for this host. Afterwards it may be loaded, and its interrupted turns continue.
///
/// # Errors
/// Another host owns it.
pub(crate) async fn hold_session(
    sessions: &Arc<SessionServices>,
    session: SessionId,
) -> Result<(), KernelError> {
    match session_holder(sessions, session).await? {
        None => Ok(()),
        Some(host) => Err(JournalError::Fenced { host }.into()),
    }
}

/// Returns the other host that owns the session. `None`: this host now owns it and has resumed its unfinished work.
async fn session_holder(
    sessions: &Arc<SessionServices>,
    session: SessionId,
) -> Result<Option<String>, KernelError> {
    let Some(hosts) = &sessions.calls.hosts else {
        return Ok(None);
    };
    if sessions.table.get(session).is_some() && hosts.shared.holds_session(session) {
        return Ok(None);
    }
    let _alone = hosts.gate.lock().await;
    let held = hosts.shared.hold_session(session).await?;
    match held {
        SessionHolder::Here if !lock(&hosts.untaken).contains(&session) => Ok(None),
        // The session was opened here, and its first append only now reported the ownership.
        SessionHolder::Taken if sessions.table.get(session).is_some() => Ok(None),
        // INVARIANT: a call that was decided on another host gets its unknown outcome before the session's turns continue.
        SessionHolder::Here | SessionHolder::Taken => {
            match takeover::take_up(sessions, hosts, vec![session]).await {
                Ok(()) => Ok(None),
                Err(error) => {
                    Err(JournalError::Away(format!("the session can't be taken up now: {error}")).into())
                }
            }
        }
        SessionHolder::There(host) => Ok(Some(host)),
    }
}

/// Takes ownership of a task's session for this host, which coordinates the swarm, from whichever host has it.
///
/// # Errors
/// The agent ends first.
pub(crate) async fn fetch_session(
    sessions: &Arc<SessionServices>,
    session: SessionId,
) -> Result<(), KernelError> {
    let Some(hosts) = &sessions.calls.hosts else {
        return Ok(());
    };
    loop {
        match session_holder(sessions, session).await {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => {
                let wish = (session, orders::HostOrderRequest::Release);
                let asked = orders::ask_holder(&sessions.calls, hosts, wish, RELEASED).await;
                if let Err(error) = asked {
                    tracing::debug!(%error, %session, "the session of a task is with another host yet");
                }
            }
            Err(error) => tracing::debug!(%error, %session, "the session of a task can't be taken yet"),
        }
        if let Some(lost) = lost_error(sessions) {
            return Err(lost);
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(TICK) => {}
            () = sessions.life.stop.cancelled() => return Err(KernelError::NotReady(sessions.life.state())),
        }
    }
}

/// Releases a session that has ended or left memory, so that another host may take it.
pub(crate) fn release_session(sessions: &SessionServices, session: SessionId) {
    if let Some(hosts) = &sessions.calls.hosts {
        hosts.shared.release_session(session);
    }
}
