//! Recovery of the swarm after a restart: rebuilds its state from the recorded facts, and continues what had begun (promise 4).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use clawk_events::Event;
use clawk_events::payload::{SwarmBroadcast, SwarmProgress, SwarmReported};
use clawk_proto::SessionId;
use clawk_swarm::coord::{SwarmTask, SwarmTaskPhase, TaskId, TryUsage};
use clawk_swarm::{SwarmCoordinator, SwarmFact};

use super::elsewhere::{LEARNED, SETTLED, usage_amount};
use super::slices::EarlierRunSpending;
use super::{SwarmServices, lock, work_off};
use crate::error::StartError;
use crate::event::{Thread, digest, kind};
use crate::ports::{JournalError, JournalScan, RecordedEvent};
use crate::purse::BudgetAmount;
use crate::recover::{ASSUMED, SPENDING, SessionSpending};
use crate::team::{Origin, SWARM_KINDS, SwarmTeam, fact_of, session_of};

/// Largest depth of subtasks. The coordinator allows far fewer.
const MAX_DEPTH: usize = 64;

/// Folds the record. Returns the sessions that go on with their tasks, and whose turns nobody else may take up.
pub(crate) async fn restore_swarm(peers: &SwarmServices) -> Result<Vec<SessionId>, JournalError> {
    let scan = JournalScan {
        kinds: &SWARM_KINDS,
        with_content: true,
        ..JournalScan::default()
    };
    // Tasks of earlier versions, in which a task was only a peer's turn.
    let mut old: BTreeMap<String, SessionId> = BTreeMap::new();
    let Some(team) = &peers.calls.team else {
        return Ok(Vec::new());
    };
    let (mut told, mut began) = (SwarmSpending::default(), TryCoordinators::default());
    peers
        .scribe
        .read_each(scan, |event| {
            if event.kind == kind::SWARM_BROADCAST {
                return apply_broadcast(peers, event);
            }
            match fact_of(event) {
                Some(fact) => {
                    if let SwarmFact::Began { task, who, .. } = &fact {
                        let member = team.with_coordinator(|coord| coord.plan().member(*who).to_owned());
                        let told = team.take_inbox(&member);
                        if !told.is_empty() {
                            lock(&peers.told).insert(task.clone(), told);
                        }
                    }
                    told.apply_fact(&fact, event.row);
                    began.apply_fact(&fact);
                    team.restore_fact(&fact);
                }
                None => match event.read_whole()? {
                    Event::SwarmLed(led) => began.host = led.host.map(Into::into),
                    Event::SwarmDelegated(task) => {
                        old.insert(task.task_id, event.session);
                    }
                    Event::SwarmReported(task) => {
                        old.remove(&task.task_id);
                    }
                    Event::SwarmTry(said)
                    | Event::SwarmRun(said)
                    | Event::SwarmRefused(said)
                    | Event::SwarmDeadLettered(said)
                    | Event::SwarmAggregated(said)
                    | Event::SwarmEnded(said) => {
                        told.see_settled(&said);
                        old.remove(said.task_id.as_deref().unwrap_or_default());
                    }
                    // No other event is scanned for.
                    _ => {}
                },
            }
            Ok(())
        })
        .await?;
    for (task, session) in old {
        give_up(peers, &task, session).await?;
    }
    recount_spending(peers, team, &told).await?;
    let running = team.with_coordinator(running_tasks);
    if let Some(hosts) = &peers.calls.hosts {
        let own = hosts.shared.host_name();
        let moved = running.iter().filter(|(task, _)| began.is_anothers(task, own));
        lock(&peers.moved).extend(moved.map(|(_, session)| *session));
    }
    Ok(running.into_iter().map(|(_, session)| session).collect())
}

/// Which host coordinated the swarm when each open attempt began, if hosts share the agent.
#[derive(Debug, Default)]
struct TryCoordinators {
    /// The coordinator at this position of the record.
    host: Option<Arc<str>>,
    by: HashMap<TaskId, Option<Arc<str>>>,
}

impl TryCoordinators {
    fn apply_fact(&mut self, fact: &SwarmFact) {
        match fact {
            SwarmFact::Began { task, .. } => {
                self.by.insert(task.clone(), self.host.clone());
            }
            SwarmFact::TryEnded { task, .. } => {
                self.by.remove(task);
            }
            _ => {}
        }
    }

    /// Returns whether another host coordinated when the task's attempt began, or the record does not say which.
    fn is_anothers(&self, task: &TaskId, own: &str) -> bool {
        self.by.get(task).is_none_or(|host| host.as_deref() != Some(own))
    }
}

/// The spending in the recorded facts.
#[derive(Debug, Default)]
struct SwarmSpending {
    /// The row of each run's acceptance. Nothing was spent on it before.
    since: HashMap<TaskId, u64>,
    /// The reported use of ended attempts.
    used: HashMap<(TaskId, u32), BudgetAmount>,
    /// The last amount counted for attempts elsewhere, and whether this is its only source.
    settled: HashMap<(TaskId, u32), (TryUsage, bool)>,
    /// The sessions that gave the runs that continue.
    givers: HashMap<TaskId, SessionId>,
}

impl SwarmSpending {
    /// Reads an event that says what was counted for a try on another host. The coordinator does not keep it.
    fn see_settled(&mut self, found: &SwarmProgress) {
        let assumed = match found.state.as_deref() {
            Some(ASSUMED) => true,
            Some(SETTLED | LEARNED) => false,
            Some(_) | None => return,
        };
        // silent-ok: it is about no task
        let Some(Ok(task)) = found.task_id.as_deref().map(TaskId::parse) else {
            return;
        };
        let used = TryUsage {
            tokens: found.token_usage.unwrap_or_default(),
            cost_microusd: found.cost_microusd.unwrap_or_default(),
        };
        let attempt = found.attempt.unwrap_or_default();
        let known = self.settled.entry((task, attempt)).or_default();
        *known = (used, known.1 || assumed);
    }

    fn apply_fact(&mut self, fact: &SwarmFact, row: u64) {
        match fact {
            SwarmFact::Run { run, origin, .. } => {
                self.since.insert(run.clone(), row);
                self.givers.insert(run.clone(), Origin::read(origin).session);
            }
            SwarmFact::TryEnded {
                task, attempt, used, ..
            } => {
                let sum = self.used.entry((task.clone(), *attempt)).or_default();
                *sum = sum.plus(usage_amount(*used));
            }
            SwarmFact::Ended { result } => {
                self.since.remove(&result.task_id);
                self.givers.remove(&result.task_id);
            }
            _ => {}
        }
    }
}

/// Counts the earlier spending of the continued runs and their tasks, because their budget slices are opened again.
async fn recount_spending(
    peers: &SwarmServices,
    team: &SwarmTeam,
    told: &SwarmSpending,
) -> Result<(), JournalError> {
    let Some(since) = told.since.values().min() else {
        return Ok(());
    };
    let mut spending = SessionSpending::default();
    let scan = JournalScan {
        kinds: SPENDING,
        after_row: *since,
        ..JournalScan::default()
    };
    let mine = team.with_coordinator(|coord| {
        let tasks = coord
            .tasks()
            .filter(|task| told.since.contains_key(&task.new.run));
        let sessions = tasks.flat_map(try_sessions).map(|(session, _)| session);
        sessions.collect::<HashSet<_>>()
    });
    peers
        .scribe
        .read_each(scan, |event| match mine.contains(&event.session) {
            true => spending.apply_event(event),
            false => Ok(()),
        })
        .await?;
    let by_session = spending.into_totals();
    for run in told.since.keys() {
        let found = team.with_coordinator(|coord| earlier_spending(coord, run, &by_session, told));
        lock(&peers.slices).add_earlier_spending(run, found);
    }
    if team.home_session().is_some() {
        // The hosts of the giving sessions count their reservations.
        return Ok(());
    }
    for session in told.givers.values().collect::<HashSet<_>>() {
        let spent = SessionSpending::of_giver(&peers.scribe, *session).await?;
        lock(&peers.slices).recall_giver(*session, spent);
    }
    Ok(())
}

/// Returns the sessions of a task's attempts.
fn try_sessions(task: &SwarmTask) -> impl Iterator<Item = (SessionId, u32)> {
    (1..=task.attempts).map(|attempt| (session_of(task.id(), attempt), attempt))
}

/// Returns the earlier spending on a run, by task. For each attempt the larger of the record and the report counts, because another
/// host's record is not available here.
fn earlier_spending(
    coord: &SwarmCoordinator,
    run: &TaskId,
    by_session: &HashMap<SessionId, BudgetAmount>,
    told: &SwarmSpending,
) -> EarlierRunSpending {
    let mut found = EarlierRunSpending::default();
    let (mut goes_on, mut assumed) = (HashSet::new(), HashMap::<TaskId, BudgetAmount>::new());
    for task in coord.tasks_in(run) {
        for (_, attempt) in try_sessions(task) {
            // A question may have been a turn in another task's session.
            let (of, its) = match attempt == task.attempts {
                true => coord.session_of(task),
                false => (task.id().clone(), attempt),
            };
            let session = session_of(&of, its);
            let try_of = (task.id().clone(), attempt);
            let settled = told.settled.get(&try_of).copied();
            if let Some((used, true)) = settled {
                add_amount(&mut assumed, task.id(), usage_amount(used));
            }
            if let Some((used, _)) = settled.filter(|_| attempt == task.attempts && !task.is_done()) {
                found.settled.insert(try_of.clone(), used);
            }
            // The last counted amount includes a report that arrived after the attempt was given up.
            let used = settled.map(|(used, _)| usage_amount(used));
            if let Some(used) = used.or_else(|| told.used.get(&try_of).copied()) {
                let sum = found.told.entry(session).or_default();
                *sum = sum.plus(used);
            }
        }
    }
    for task in coord.tasks_in(run) {
        let own = try_sessions(task).fold(BudgetAmount::default(), |sum, (session, _)| {
            let of =
                |known: &HashMap<SessionId, BudgetAmount>| known.get(&session).copied().unwrap_or_default(); // silent-ok: it has spent nothing
            sum.plus(of(by_session).unitwise_max(of(&found.told)))
        });
        found.whole = found.whole.plus(own);
        if !task.is_done() {
            // The giver's chain records interrupted attempts.
            let known = assumed.get(task.id()).copied().unwrap_or_default(); // silent-ok: none was
            found.open = found.open.plus(own.minus(known));
            goes_on.insert(session_of(task.id(), task.attempts));
        }
        add_amount(&mut found.spent, task.id(), own);
        let mut above = task.new.parent.as_ref();
        for _ in 0..MAX_DEPTH {
            let Some(asker) = above.and_then(|asker| coord.task(asker)) else {
                break;
            };
            add_amount(&mut found.spent, asker.id(), own);
            add_amount(&mut found.below, asker.id(), own);
            above = asker.new.parent.as_ref();
        }
    }
    found.told.retain(|session, _| goes_on.contains(session));
    found
}

fn add_amount(to: &mut HashMap<TaskId, BudgetAmount>, task: &TaskId, amount: BudgetAmount) {
    let sum = to.entry(task.clone()).or_default();
    *sum = sum.plus(amount);
}

/// Applies a broadcast that another host recorded.
pub(crate) fn follow_broadcast(peers: &SwarmServices, event: &RecordedEvent) {
    // A later coordinator reads it from the record.
    if peers
        .calls
        .team
        .as_ref()
        .is_some_and(|team| team.is_coordinator())
        && let Err(error) = apply_broadcast(peers, event)
    {
        tracing::error!(%error, "a broadcast of another host could not be read");
    }
}

fn apply_broadcast(peers: &SwarmServices, event: &RecordedEvent) -> Result<(), JournalError> {
    let found: SwarmBroadcast = event.read_as()?;
    let text = event
        .content
        .as_ref()
        .map(|content| String::from_utf8_lossy(&content.bytes).into_owned());
    if let (Some(team), Some(text)) = (&peers.calls.team, text) {
        let own = team.with_coordinator(|coord| coord.plan().swarm == found.swarm);
        if own {
            team.add_broadcast(&text, event.row);
        }
    }
    Ok(())
}

/// Ends a task of an earlier version that no member works on any more. Its end is reported once.
async fn give_up(peers: &SwarmServices, task: &str, session: SessionId) -> Result<(), JournalError> {
    let reason = br#"{"error":"it was given to a peer by an earlier version, which kept too little to go on with it"}"#;
    let result_hash = digest(reason);
    let payload = SwarmReported {
        result_hash: Some(result_hash),
        status: "failed".to_owned(),
        task_id: task.to_owned(),
        ..SwarmReported::default()
    };
    let thread = Thread::for_session(session).child(peers.scribe.clock().new_uuid());
    let draft = peers.scribe.draft_event(&thread, &payload);
    peers
        .scribe
        .write(vec![draft.with_content(result_hash, reason.to_vec())])
        .await
}

/// Returns the running tasks, each with the session of its attempt.
fn running_tasks(coord: &SwarmCoordinator) -> Vec<(TaskId, SessionId)> {
    let tasks = coord.tasks();
    tasks
        .filter(|task| task.phase == SwarmTaskPhase::Running || task.phase == SwarmTaskPhase::Parked)
        .map(|task| {
            let (of, attempt) = coord.session_of(task);
            (task.id().clone(), session_of(&of, attempt))
        })
        .collect()
}

/// Continues what had begun, and performs later decisions.
pub(crate) fn go_on(peers: &Arc<SwarmServices>) -> Result<(), StartError> {
    let Some(team) = &peers.calls.team else {
        return Ok(());
    };
    let runs = team.with_coordinator(|coord| {
        let runs = coord.runs_now();
        let of = |id: &TaskId| Some((id.clone(), Origin::read(&coord.run(id)?.origin)));
        runs.iter().filter_map(|run| of(&run.task_id)).collect::<Vec<_>>()
    });
    for (run, origin) in runs {
        let (whole, open) = lock(&peers.slices).of_run(&run);
        let purse = peers.purse_of(&run, origin);
        purse.add_earlier_spending(whole);
        if let Some(lent) = purse.parent_account().filter(|_| team.home_session().is_some()) {
            lent.add_earlier_spending(whole);
        }
        // The chain's rebuilt budget includes only the tasks that were reported.
        if let Some(giver) = peers.sessions.table.kept_purse(origin.session) {
            giver.add_earlier_spending(open);
        }
    }
    let Ok(_durable) = team.queue_decision(None, |coord, now_ms| {
        Ok::<_, std::convert::Infallible>(coord.resume(now_ms))
    });
    peers.life.tracker.spawn(work_off(Arc::clone(peers)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clawk_swarm::SwarmWorkerId;
    use clawk_swarm::coord::TryEnd;

    use super::*;

    fn task(n: u32) -> TaskId {
        TaskId::parse(&format!("00000000-0000-4000-8000-{n:012}")).unwrap()
    }

    fn begins(n: u32) -> SwarmFact {
        SwarmFact::Began {
            task: task(n),
            who: SwarmWorkerId::Claw,
            attempt: 1,
        }
    }

    /// A host may be lost again before it has told what became of another one's tries.
    #[test]
    fn a_try_stays_anothers_however_often_this_host_begins_to_coordinate() {
        let mut began = TryCoordinators::default();
        began.apply_fact(&begins(0));
        for (host, n) in [("a", Some(1)), ("b", Some(2)), ("b", None)] {
            began.host = Some(host.into());
            if let Some(n) = n {
                began.apply_fact(&begins(n));
            }
        }
        let anothers = |n| began.is_anothers(&task(n), "b");
        assert!(anothers(0), "nobody knows whose it was");
        assert!(anothers(1));
        assert!(!anothers(2), "its own, over a restart");
        // The next attempt of the same task belongs to this host.
        began.apply_fact(&SwarmFact::TryEnded {
            task: task(1),
            attempt: 1,
            end: TryEnd::Said { text: String::new() },
            used: TryUsage::default(),
            again: None,
        });
        began.apply_fact(&begins(1));
        assert!(!began.is_anothers(&task(1), "b"));
    }
}
