//! One attempt of a member: opens a session, runs its turn, and reports the end to the coordinator.
//!
//! Long because each end of a turn is reported here as the end of an attempt.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use clawk_events::payload::{MessageAnswered, MessageDead};
use clawk_proto::uri::ClawUri;
use clawk_proto::{MessageId, SessionId};
use clawk_swarm::coord::{RetryReason, TaskId, TryEnd, TryStart, TryUsage, derived};
use clawk_swarm::plan::identity_name;
use clawk_swarm::{SwarmFault, SwarmWorkerId};
use tokio_util::sync::CancellationToken;

use super::{SwarmServices, elsewhere, lock, provider_of, slices};
use crate::door::{EntryPoint, Origin as From};
use crate::error::KernelError;
use crate::event::kind;
use crate::hosts;
use crate::member::{Member, MemberFailure};
use crate::notice::{SessionNotice, TurnEnd};
use crate::ports::{JournalError, JournalScan, RemoteWorkers};
use crate::purse::{BudgetAmount, SWARM_COST, SWARM_TOKENS};
use crate::recover::{self, RebuiltSession};
use crate::session::{self, SessionHandle, SessionOpening};
use crate::start;
use crate::team::{Origin, session_of};

/// Time limit for a turn to end if the agent or its run stops, in milliseconds.
const TURN_END_MS: u64 = 5_000;

/// Delay before an unreachable state is read again.
const AGAIN: Duration = Duration::from_millis(200);

/// A running attempt.
#[derive(Debug, Clone)]
pub(super) struct RunningTry {
    attempt: u32,
    pub(super) session: SessionId,
    pub(super) cancel: CancellationToken,
    /// The part of its session's budget that the attempt does not report: spending of members that it asked, and amounts already
    /// reported.
    below: Arc<Mutex<BudgetAmount>>,
}

/// Returns whether the identity works in this process: the Claw's, one of its Identities, or a plain name.
pub(super) fn is_here(peers: &SwarmServices, reference: &str) -> bool {
    let name = identity_name(reference);
    ClawUri::parse(reference).is_err()
        || name == peers.calls.manifest.identity.name
        || peers.identities.contains_key(&name)
}

/// Returns whether a worker for the identity is available now: in this process, or at its binding.
pub(super) fn is_found(peers: &SwarmServices, reference: &str) -> bool {
    let name = identity_name(reference);
    match peers
        .elsewhere
        .as_ref()
        .filter(|there| there.member_route(&name).is_some())
    {
        Some(there) => !there.is_gone(&name),
        None => is_here(peers, reference),
    }
}

/// Begins an attempt, or continues it.
pub(super) fn begin_try(peers: &Arc<SwarmServices>, start: TryStart) {
    let running = RunningTry {
        attempt: start.attempt,
        session: session_of(&start.session.0, start.session.1),
        cancel: CancellationToken::new(),
        below: Arc::default(),
    };
    lock(&peers.tries).insert(start.task.clone(), running.clone());
    peers
        .life
        .tracker
        .spawn(work_on_try(Arc::clone(peers), start, running));
}

/// Cancels an attempt. Later results of it do not count.
pub(super) fn cancel_try(peers: &SwarmServices, task: &TaskId) {
    if let Some(running) = lock(&peers.tries).remove(task) {
        running.cancel.cancel();
    }
}

async fn work_on_try(peers: Arc<SwarmServices>, start: TryStart, running: RunningTry) {
    let Some(team) = peers.calls.team.clone() else {
        return;
    };
    let ended = attempt_here(&peers, &start, &running).await;
    team.unseat_member(&start.task);
    let Some((end, used)) = ended else { return };
    {
        let mut tries = lock(&peers.tries);
        if tries
            .get(&start.task)
            .is_some_and(|known| known.attempt == start.attempt)
        {
            tries.remove(&start.task);
        }
    }
    tell_end(&peers, &start, running.session, (end, used)).await;
}

/// Reports the end to the coordinator, and ends the session unless it may still get a message.
async fn tell_end(
    peers: &SwarmServices,
    start: &TryStart,
    session: SessionId,
    (end, used): (TryEnd, TryUsage),
) {
    let Some(team) = &peers.calls.team else { return };
    let Ok(_durable) = team.queue_decision(None, |coord, now_ms| {
        Ok::<_, std::convert::Infallible>(coord.try_ended(&start.task, start.attempt, end, used, now_ms))
    });
    let open = team.with_coordinator(|coord| {
        coord
            .task(&start.task)
            .is_some_and(|task| !task.is_done() && task.attempts == start.attempt)
    });
    if open {
        lock(&peers.kept)
            .entry(start.run.clone())
            .or_default()
            .push(session);
    } else {
        peers.sessions.end_session(session, "completed").await;
    }
}

/// Runs an attempt. Returns its end; `None`: it was cancelled, or the agent ended first and it continues after the next start.
async fn attempt_here(
    peers: &Arc<SwarmServices>,
    start: &TryStart,
    running: &RunningTry,
) -> Option<(TryEnd, TryUsage)> {
    let team = peers.calls.team.as_ref()?;
    let origin = team.run_origin(&start.run)?;
    let _held = slices::hold_slice(peers, start, origin);
    if let Some(place) = elsewhere::remote_member(peers, start, origin) {
        let place = (&Arc::clone(place.0), place.1, place.2);
        return elsewhere::attempt_remotely(peers, (start, running), origin, place).await;
    }
    let reference =
        team.with_coordinator(|coord| coord.plan().seat(start.who).map(|seat| seat.identity.clone()));
    if let Some(reference) = reference.filter(|reference| !is_here(peers, reference)) {
        let message = format!(
            "the identity `{reference}` is found nowhere: `[registries]`, `[peers]` or a file in `identities` can give it"
        );
        return Some((lost_end(RetryReason::Unreached, message), TryUsage::default()));
    }
    let member = Arc::new(member_of(peers, start));
    team.seat_member(Arc::clone(&member));
    let opened = open_try_session(peers, (start, running), origin, &member).await;
    let (session, before, counted) = match opened {
        Ok(opened) => opened,
        Err(KernelError::NotReady(_)) => {
            end_turn(peers, running).await;
            return None; // silent-ok: it goes on after the next start, unless it was cancelled
        }
        Err(error) => {
            return Some((
                lost_end(RetryReason::Crashed, error.to_string()),
                TryUsage::default(),
            ));
        }
    };
    let at_first = session.spent_amount();
    leave_out(running, counted);
    let message = message_of(&start.task, start.attempt);
    let outcome = match give_task(peers, &session, before, (start, message), origin).await {
        Ok(Some(said)) => Some((said, 0)),
        Ok(None) => wait_for_outcome(peers, &session, message, &running.cancel).await,
        Err(KernelError::NotReady(_)) => None, // silent-ok: as above
        Err(error) => Some((Err(TurnEnd::Failed(error.to_string())), 0)),
    };
    let spent = session.spent_amount();
    if let Some(asker) = start
        .asker
        .as_ref()
        .and_then(|asker| lock(&peers.tries).get(asker).cloned())
    {
        let mut below = lock(&asker.below);
        *below = below.plus(spent.minus(at_first));
    }
    let (end, tokens) = outcome?;
    let cost_microusd = spent
        .cost_microusd
        .saturating_sub(lock(&running.below).cost_microusd);
    let end = match end {
        // Whatever its answer, its effects were blocked, because another host has the task.
        Ok(_)
            if member.claim.is_some()
                && matches!(member.worst_failure(), Some(MemberFailure::Effects(_))) =>
        {
            failed_end(&member, &TurnEnd::Answered)
        }
        Ok(text) => TryEnd::Said { text },
        Err(end) => failed_end(&member, &end),
    };
    Some((
        end,
        TryUsage {
            tokens,
            cost_microusd,
        },
    ))
}

/// Ends the turn that an earlier coordinator began in the attempt's session, if the attempt was cancelled before this host had the
/// session.
async fn end_turn(peers: &SwarmServices, running: &RunningTry) {
    if running.cancel.is_cancelled()
        && let Err(error) = start::end_task(&peers.sessions, running.session).await
    {
        tracing::warn!(%error, session = %running.session, "the turn of a task that was cancelled has not ended; whoever coordinates next ends it");
    }
}

/// Excludes an amount from the attempt's report.
fn leave_out(running: &RunningTry, counted: BudgetAmount) {
    let mut below = lock(&running.below);
    *below = below.plus(counted);
}

fn lost_end(why: RetryReason, message: String) -> TryEnd {
    TryEnd::Lost { why, message }
}

/// Returns what a turn without an answer means for its task.
fn failed_end(member: &Member, end: &TurnEnd) -> TryEnd {
    let over = |fault: SwarmFault, run: bool| TryEnd::Over { fault, run };
    let reason = match end {
        TurnEnd::Failed(reason) => reason.clone(),
        TurnEnd::Cancelled => "it was cancelled".to_owned(),
        TurnEnd::Answered => String::new(),
    };
    match member.worst_failure() {
        Some(MemberFailure::Effects(what)) => over(SwarmFault::task_failed("effects_unknown", what), false),
        Some(MemberFailure::Quota(limit)) if limit == SWARM_TOKENS => {
            over(SwarmFault::limit_spent("swarm_tokens", reason), true)
        }
        Some(MemberFailure::Quota(limit)) if limit == SWARM_COST => {
            over(SwarmFault::limit_spent("swarm_cost", reason), true)
        }
        Some(MemberFailure::Quota(_)) => over(SwarmFault::limit_spent("quota", reason), false),
        Some(MemberFailure::Unpriced) => over(SwarmFault::limit_spent("price_unknown", reason), false),
        Some(MemberFailure::NoProvider) => lost_end(RetryReason::NoProvider, reason),
        None if *end == TurnEnd::Cancelled => over(SwarmFault::task_failed("cancelled", reason), false),
        None => over(SwarmFault::task_failed("failed", reason), false),
    }
}

fn member_of(peers: &SwarmServices, start: &TryStart) -> Member {
    let team = peers.calls.team.as_ref();
    let of = |what: fn(&clawk_swarm::Plan, SwarmWorkerId) -> String| {
        team.map(|team| team.with_coordinator(|coord| what(coord.plan(), start.who)))
            .unwrap_or_default()
    };
    let reference = of(|plan, who| {
        plan.seat(who)
            .map(|seat| seat.identity.clone())
            .unwrap_or_default()
    });
    let name = identity_name(&reference);
    let own = start.who == SwarmWorkerId::Claw || name == peers.calls.manifest.identity.name;
    Member {
        swarm: of(|plan, _| plan.swarm.clone()),
        name: start.member.clone(),
        role: of(|plan, who| plan.role(who).to_owned()),
        task: start.task.clone(),
        kind: start.kind,
        below: start.below.clone(),
        askable: start.askable.clone(),
        tools: start.wish.tools.clone(),
        at_most: team
            .and_then(|team| team.run_origin(&start.run))
            .and_then(|origin| origin.autonomy),
        identity: (!own).then(|| peers.identities.get(&name).cloned()).flatten(),
        heard: Mutex::new(start.heard.clone()),
        trouble: Mutex::default(),
        claim: bus_claim(peers, start),
    }
}

/// Returns the claim of a task from a bus. Such a task may run on another host, too, so effects begin only on the host with the
/// claim.
fn bus_claim(peers: &SwarmServices, start: &TryStart) -> Option<(Arc<dyn RemoteWorkers>, TaskId)> {
    let origin = peers.calls.team.as_ref()?.run_origin(&start.run)?;
    let there = peers.elsewhere.as_ref().filter(|_| origin.by_bus)?;
    Some((Arc::clone(there), start.run.clone()))
}

/// Returns the id of an attempt's message, which is the same after a restart.
fn message_of(task: &TaskId, attempt: u32) -> MessageId {
    let id = derived(task, &format!("message/{attempt}"));
    MessageId(uuid::Uuid::parse_str(id.as_str()).unwrap_or_default()) // silent-ok: a RequestId is a UUID
}

/// Opens the attempt's session. Returns what its chain holds so far, and the part of its budget that the attempt does not report.
async fn open_try_session(
    peers: &Arc<SwarmServices>,
    (start, running): (&TryStart, &RunningTry),
    origin: Origin,
    member: &Arc<Member>,
) -> Result<(SessionHandle, RebuiltSession, BudgetAmount), KernelError> {
    let own = start.session.0 == start.task;
    let mut rebuilt = if start.resumed || !own {
        fetch_session(peers, running).await?;
        rebuild_session(peers, running).await?
    } else {
        RebuiltSession::default()
    };
    let cost_aware = peers
        .calls
        .manifest
        .swarm
        .as_ref()
        .is_some_and(|swarm| swarm.aggregation.cost_aware);
    let given = peers.calls.team.as_ref().and_then(|team| {
        team.with_coordinator(|coord| {
            coord
                .plan()
                .seat(start.who)
                .and_then(|seat| seat.provider.clone())
        })
    });
    let told = match lock(&peers.told).remove(&start.task) {
        Some(told) if start.resumed => told,
        _ => peers
            .calls
            .team
            .as_ref()
            .map(|team| team.take_inbox(&start.member))
            .unwrap_or_default(),
    };
    let (below, reported) = lock(&peers.slices).take_earlier_spending(&start.task, running.session);
    let spent = rebuilt.spent.plus(below);
    let opening = SessionOpening {
        id: rebuilt.exists.then_some(running.session),
        door: EntryPoint::Peer {
            identity: start.member.clone(),
            task_id: start.task.to_string(),
            role: origin.role.0,
        },
        provider: provider_of(
            &peers.calls.manifest,
            &peers.calls.purses,
            given.as_deref(),
            cost_aware,
        ),
        goal: start.text.chars().take(200).collect(),
        history: std::mem::take(&mut rebuilt.history),
        under: Some(slices::task_account(peers, start, origin)),
        spent,
        surface: true,
        peer_messages: told,
        member: Some(Arc::clone(member)),
    };
    let session = SessionHandle::open_as(&peers.sessions, opening, running.session).await?;
    // Spending in the session of another task belongs to that task.
    let counted = if own { below.plus(reported) } else { spent };
    Ok((session, rebuilt, counted))
}

/// Takes ownership of an earlier attempt's session for this host, until the attempt is cancelled.
async fn fetch_session(peers: &SwarmServices, running: &RunningTry) -> Result<(), KernelError> {
    let fetched = hosts::fetch_session(&peers.sessions, running.session);
    unless_cancelled(peers, running, fetched).await
}

/// Reads the attempt's chain. If the state can't be reached, repeats the read until it can; the task does not fail.
async fn rebuild_session(peers: &SwarmServices, running: &RunningTry) -> Result<RebuiltSession, KernelError> {
    let read = async {
        loop {
            match recover::rebuild_session(&peers.calls, running.session).await {
                Err(JournalError::Away(why)) => {
                    tracing::debug!(why, session = %running.session, "a task waits for the state");
                    tokio::time::sleep(AGAIN).await;
                }
                read => return Ok(read?),
            }
        }
    };
    unless_cancelled(peers, running, read).await
}

/// Runs a future until the attempt is cancelled or the agent ends.
async fn unless_cancelled<T>(
    peers: &SwarmServices,
    running: &RunningTry,
    what: impl Future<Output = Result<T, KernelError>>,
) -> Result<T, KernelError> {
    tokio::select! {
        biased;
        done = what => done,
        () = running.cancel.cancelled() => Err(KernelError::NotReady(peers.life.state())),
        () = peers.life.stop.cancelled() => Err(KernelError::NotReady(peers.life.state())),
    }
}

type TryAnswer = Result<String, TurnEnd>;

/// Sends the member its task, unless it has it already. Then its turn continues, or its end is reported.
async fn give_task(
    peers: &SwarmServices,
    session: &SessionHandle,
    before: RebuiltSession,
    (start, message): (&TryStart, MessageId),
    origin: Origin,
) -> Result<Option<TryAnswer>, KernelError> {
    let open = before.open.into_iter().next();
    if let Some(open) = open {
        session::queue_resumed_turn(&peers.sessions, session.services_and_state().1, open)?;
        return Ok(None);
    }
    if start.resumed
        && let Some(said) = recorded_end(peers, session.id, message).await?
    {
        return Ok(Some(said));
    }
    let mut from = From::from(EntryPoint::Peer {
        identity: start.member.clone(),
        task_id: start.task.to_string(),
        role: origin.role.0,
    });
    if let Some(team) = &peers.calls.team {
        from.repeats = team.asked_in(start);
    }
    let (sessions, state) = session.services_and_state();
    session::accept_as(sessions, state, message, from, start.text.clone().into()).await?;
    Ok(None)
}

/// Returns how a message's turn ended, by the record. The session's last end counts.
async fn recorded_end(
    peers: &SwarmServices,
    session: SessionId,
    _message: MessageId,
) -> Result<Option<TryAnswer>, JournalError> {
    let scan = JournalScan {
        session: Some(session),
        kinds: &[kind::MESSAGE_ANSWERED, kind::MESSAGE_DEAD],
        with_content: true,
        ..JournalScan::default()
    };
    let mut said = None;
    peers
        .scribe
        .read_each(scan, |event| {
            said = Some(if event.kind == kind::MESSAGE_DEAD {
                let dead: MessageDead = event.read_with_words()?;
                Err(TurnEnd::Failed(dead.reason.into()))
            } else if event.read_as::<MessageAnswered>()?.end == "answered" {
                Ok(recover::event_text(event))
            } else {
                Err(TurnEnd::Cancelled)
            });
            Ok(())
        })
        .await?;
    Ok(said)
}

/// Waits for the end of the turn: its text and its tokens. `None`: it was cancelled here, or the agent ended first.
async fn wait_for_outcome(
    peers: &SwarmServices,
    session: &SessionHandle,
    message: MessageId,
    cancel: &CancellationToken,
) -> Option<(TryAnswer, u64)> {
    let mut said = String::new();
    loop {
        let notice = tokio::select! {
            biased;
            notice = session.next_notice() => notice?,
            () = cancel.cancelled() => {
                stop_try(peers, session).await;
                return None;
            }
            () = wait_until_drained(peers) => return None,
        };
        match notice {
            SessionNotice::Said(text) => said = text,
            SessionNotice::TurnEnded { end, usage, .. } => {
                let _ = message;
                let end = match end {
                    TurnEnd::Answered => Ok(said),
                    other => Err(other),
                };
                return Some((end, usage.total()));
            }
            _ => {}
        }
    }
}

/// Ends the turn and the session of an attempt that no longer counts.
async fn stop_try(peers: &SwarmServices, session: &SessionHandle) {
    let ended = async {
        loop {
            // The turn may not have begun yet: it is cancelled when it begins.
            session.cancel_turn();
            let next = tokio::time::timeout(Duration::from_millis(20), session.next_notice()).await;
            if matches!(next, Ok(None | Some(SessionNotice::TurnEnded { .. }))) {
                return;
            }
        }
    };
    let in_time = tokio::time::timeout(Duration::from_millis(TURN_END_MS), ended).await;
    if in_time.is_err() {
        tracing::warn!(session = %session.id, "a cancelled try did not end in time");
    }
    peers.sessions.end_session(session.id, "cancelled").await;
}

/// Waits until the agent stops and no turn runs.
async fn wait_until_drained(peers: &SwarmServices) {
    peers.life.stop.cancelled().await;
    peers
        .life
        .wait_until_drained(Duration::from_millis(TURN_END_MS))
        .await;
}

/// Sends results of tasks that were not awaited to the member that delegated them, in another turn.
#[expect(
    clippy::too_many_lines,
    reason = "a try that is begun from what is known of its task"
)]
pub(super) async fn deliver_text(peers: &Arc<SwarmServices>, task: &TaskId, of: &[TaskId], text: String) {
    let Some(team) = peers.calls.team.clone() else {
        return;
    };
    let found = team.with_coordinator(|coord| {
        let known = coord.task(task)?;
        Some((known.attempts, known.new.run.clone(), known.seat, known.new.kind))
    });
    let Some((attempt, run, seat, kind)) = found else {
        return;
    };
    let Some(origin) = team.run_origin(&run) else {
        return;
    };
    let of: Vec<&str> = of.iter().map(TaskId::as_str).collect();
    let id = derived(task, &format!("told/{}", of.join(",")));
    let message = MessageId(uuid::Uuid::parse_str(id.as_str()).unwrap_or_default()); // silent-ok: a RequestId is a UUID
    let member = seat
        .map(|who| team.with_coordinator(|coord| coord.plan().member(who).to_owned()))
        .unwrap_or_default();
    let who = seat.unwrap_or(SwarmWorkerId::Claw);
    let start = TryStart {
        task: task.clone(),
        run,
        kind,
        who,
        member: member.clone(),
        attempt,
        text: String::new(),
        heard: Vec::new(),
        asker: team.with_coordinator(|coord| coord.task(task).and_then(|task| task.new.parent.clone())),
        below: team.with_coordinator(|coord| subordinate_names(coord, who)),
        askable: Vec::new(),
        wish: team
            .with_coordinator(|coord| coord.task(task).map(|task| task.new.wish.clone()))
            .unwrap_or_default(),
        session: (task.clone(), attempt),
        resumed: true,
    };
    let running = RunningTry {
        attempt,
        session: session_of(task, attempt),
        cancel: CancellationToken::new(),
        below: Arc::default(),
    };
    lock(&peers.tries).insert(task.clone(), running.clone());
    let own = Arc::clone(peers);
    peers.life.tracker.spawn(async move {
        let _held = slices::hold_slice(&own, &start, origin);
        let seated = Arc::new(member_of(&own, &start));
        if let Some(team) = &own.calls.team {
            team.seat_member(Arc::clone(&seated));
        }
        let Ok((session, ..)) = open_try_session(&own, (&start, &running), origin, &seated).await else {
            return;
        };
        // Its earlier turns are already reported.
        leave_out(&running, session.spent_amount());
        let from = From::from(EntryPoint::Peer {
            identity: member,
            task_id: start.task.to_string(),
            role: origin.role.0,
        });
        let (sessions, state) = session.services_and_state();
        if let Err(error) = session::accept_as(sessions, state, message, from, text.into()).await {
            let end = lost_end(RetryReason::Crashed, error.to_string());
            tell_end(&own, &start, running.session, (end, TryUsage::default())).await;
            return;
        }
        let Some((said, tokens)) = wait_for_outcome(&own, &session, message, &running.cancel).await else {
            return;
        };
        let spent = session
            .spent_amount()
            .cost_microusd
            .saturating_sub(lock(&running.below).cost_microusd);
        let end = match said {
            Ok(text) => TryEnd::Said { text },
            Err(end) => failed_end(&seated, &end),
        };
        let used = TryUsage {
            tokens,
            cost_microusd: spent,
        };
        lock(&own.tries).remove(&start.task);
        tell_end(&own, &start, running.session, (end, used)).await;
    });
}

fn subordinate_names(coord: &clawk_swarm::SwarmCoordinator, who: SwarmWorkerId) -> Vec<String> {
    let plan = coord.plan();
    plan.delegable_seats(who)
        .into_iter()
        .map(|who| plan.member(who).to_owned())
        .collect()
}
