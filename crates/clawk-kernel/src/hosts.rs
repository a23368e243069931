//! Several hosts of one agent (R48): each runs the whole kernel on the one journal, works on the sessions that it holds, follows what
//! the others append, and takes up what a lost one left. Where one host has the agent, none of this is there.

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
use crate::error::KernelError;
use crate::notice::ApprovalQuestion;
use crate::ports::{HostCluster, Journal, JournalError, SessionHolder};
use crate::session::SessionServices;

pub(crate) use follow::see_stops;
pub(crate) use hand::{hand_over, is_elsewhere, pause, waited, waiting};
pub(crate) use orders::reply;

/// How often a host looks for what others have appended and ordered, while something happens.
const TICK: Duration = Duration::from_millis(150);
/// How long after the last thing that happened it still does. Longer than others leave it asleep once they have woken it.
const AWAKE: Duration = Duration::from_secs(3);
/// How often it looks while nothing happens. A host is woken when others do something; this bounds the time if it is not.
const ASLEEP: Duration = Duration::from_millis(500);
/// Between two looks, however often it is woken.
const GAP: Duration = Duration::from_millis(50);
/// How often it looks for lost hosts and for sessions without a holder.
const LOOK: Duration = Duration::from_millis(500);
/// How often it tries to take something over though no look has found any.
const ANYWAY: Duration = Duration::from_secs(5);
/// How long a host is waited for that is asked to give up the session of a task.
const RELEASED: Duration = Duration::from_secs(2);
/// How long a session that was taken over is held when nothing is to be done in it.
const IDLE: Duration = Duration::from_secs(10);

/// What this host knows of the others.
#[derive(Debug)]
pub(crate) struct PeerHosts {
    pub(crate) shared: Arc<dyn HostCluster>,
    /// The journal is followed up to this row.
    row: tokio::sync::Mutex<u64>,
    /// The same, for who does not wait.
    followed: AtomicU64,
    /// Stops are known up to this row, where that is later.
    stops: AtomicU64,
    /// The line of servers that this row is of.
    line: AtomicU32,
    /// Questions of sessions that other hosts hold.
    asked: Mutex<BTreeMap<RequestId, ApprovalQuestion>>,
    /// Who waits here for the end of a turn that may run elsewhere.
    waits: Mutex<HashMap<MessageId, Arc<Notify>>>,
    /// Orders that are being obeyed.
    obeying: Mutex<HashSet<Uuid>>,
    /// Sessions that this host has and has not taken up yet: a step of it failed.
    untaken: Mutex<BTreeSet<SessionId>>,
    /// Sessions that were taken over, and when.
    taken: Mutex<Vec<(SessionId, Instant)>>,
    /// Locked from the taking of another host's sessions until their unfinished work is settled. Nobody opens one of them before that.
    gate: tokio::sync::Mutex<()>,
    /// There is something to take over.
    due: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerHosts {
    /// None where one host has the whole agent.
    pub(crate) fn of(journal: &dyn Journal) -> Option<Arc<Self>> {
        journal.shared().map(|shared| {
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

    /// Questions that wait on other hosts; `now_us` is of the monotonic clock.
    pub(crate) fn pending(&self, now_us: u64) -> Vec<ApprovalQuestion> {
        let asked = lock(&self.asked);
        let open = asked.values().filter(|question| question.until_us > now_us);
        open.cloned().collect()
    }

    /// Up to which row emergency stops are known here.
    pub(crate) fn stops_known(&self) -> u64 {
        let [followed, stops] = [&self.followed, &self.stops].map(|row| row.load(Ordering::SeqCst));
        followed.max(stops)
    }

    /// The steps of a plan that wait on other hosts.
    pub(crate) fn steps(&self, plan: &RequestId) -> Vec<(u32, RequestId)> {
        let asked = lock(&self.asked);
        let of_plan = asked.values().filter_map(|question| {
            let step = question.step.as_ref().filter(|step| step.plan == *plan)?;
            Some((step.number, question.request_id.clone()))
        });
        of_plan.collect()
    }

    /// From now on the journal is followed behind this row, and these questions wait elsewhere.
    pub(crate) async fn begin(&self, row: u64, asked: Vec<ApprovalQuestion>) {
        *self.row.lock().await = row;
        self.followed.store(row, Ordering::SeqCst);
        let asked = asked
            .into_iter()
            .map(|question| (question.request_id.clone(), question));
        lock(&self.asked).extend(asked);
    }
}

/// Follows the others and takes up what they leave, until the agent ends.
pub(crate) fn watch(agent: &Arc<Agent>, hosts: &Arc<PeerHosts>) {
    let (own, known) = (Arc::clone(agent), Arc::clone(hosts));
    agent.life.tracker.spawn(async move {
        tokio::select! {
            biased;
            () = orders::listen(&own, &known) => {}
            () = own.life.stop.cancelled() => {}
        }
    });
    let (own, known) = (Arc::clone(agent), Arc::clone(hosts));
    agent.life.tracker.spawn(async move {
        tokio::select! {
            biased;
            () = takeover::look(&own, &known) => {}
            () = own.life.closing.cancelled() => {}
        }
    });
}

/// If other hosts have taken over from this one, the caller is told so, and nothing else.
pub(crate) fn lost(sessions: &SessionServices) -> Option<KernelError> {
    let hosts = sessions.calls.hosts.as_ref()?;
    hosts.shared.is_lost().then(|| {
        KernelError::from(JournalError::Fenced {
            host: hosts.shared.host().to_owned(),
        })
    })
}

/// Takes the session for this host. Afterwards it may be in memory: its turns that were cut off go on.
///
/// # Errors
/// Another host holds it.
pub(crate) async fn hold(sessions: &Arc<SessionServices>, session: SessionId) -> Result<(), KernelError> {
    match holder(sessions, session).await? {
        None => Ok(()),
        Some(host) => Err(JournalError::Fenced { host }.into()),
    }
}

/// The other host that holds the session; else this one does from now on, and has taken up what was left in it.
async fn holder(sessions: &Arc<SessionServices>, session: SessionId) -> Result<Option<String>, KernelError> {
    let Some(hosts) = &sessions.calls.hosts else {
        return Ok(None);
    };
    if sessions.table.get(session).is_some() && hosts.shared.holds(session) {
        return Ok(None);
    }
    let _alone = hosts.gate.lock().await;
    let held = hosts.shared.hold(session).await?;
    match held {
        SessionHolder::Here if !lock(&hosts.untaken).contains(&session) => Ok(None),
        // It was opened here, and its first append told so only now.
        SessionHolder::Taken if sessions.table.get(session).is_some() => Ok(None),
        // INVARIANT: a call that was decided elsewhere gets its unknown outcome before the session's turns go on.
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

/// Takes the session of a task for this host, which coordinates the swarm, out of the hands of whichever host took it over.
///
/// # Errors
/// The agent ends first.
pub(crate) async fn fetch(sessions: &Arc<SessionServices>, session: SessionId) -> Result<(), KernelError> {
    let Some(hosts) = &sessions.calls.hosts else {
        return Ok(());
    };
    loop {
        match holder(sessions, session).await {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => {
                let wish = (session, orders::HostOrderRequest::Release);
                let asked = orders::ask(&sessions.calls, hosts, wish, RELEASED).await;
                if let Err(error) = asked {
                    tracing::debug!(%error, %session, "the session of a task is with another host yet");
                }
            }
            Err(error) => tracing::debug!(%error, %session, "the session of a task can't be taken yet"),
        }
        if let Some(lost) = lost(sessions) {
            return Err(lost);
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(TICK) => {}
            () = sessions.life.stop.cancelled() => return Err(KernelError::NotReady(sessions.life.state())),
        }
    }
}

/// The session is over, or has left memory: another host may take it.
pub(crate) fn release(sessions: &SessionServices, session: SessionId) {
    if let Some(hosts) = &sessions.calls.hosts {
        hosts.shared.release(session);
    }
}
