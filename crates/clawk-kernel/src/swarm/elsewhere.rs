//! An attempt on another process: it is sent as `claw.swarm.delegate` and ends with the first valid report. The result is a peer's
//! text and is always treated as data.
//!
//! Long because sending, counting and each way to end share one record of what was sent.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use clawk_events::payload::SwarmProgress;
use clawk_manifest::model::{AutonomyLevel, Role};
use clawk_proto::method::{AcknowledgedResult, ReportParams, TaskLimits};
use clawk_proto::{RequestId, SessionId};
use clawk_swarm::coord::{Kind, RetryReason, TaskConstraints, TaskId, TryEnd, TryStart, TryUsage, derived};
use clawk_swarm::plan::identity_name;
use clawk_swarm::{SwarmFault, SwarmWorkerId};
use clawk_trace::proof;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::tries::RunningTry;
use super::{SwarmServices, lock, session_thread, slices};
use crate::error::{CallError, KernelError};
use crate::event::{Draft, Thread};
use crate::judge;
use crate::ports::{
    BoxFuture, JournalError, MemberRoute, RemoteResult, RemoteTask, RemoteWorkers, ReportReceiver,
    ReportedTryState, SpentAmount,
};
use crate::purse::{BudgetAmount, BudgetReservation, BudgetShare, SWARM_COST, SWARM_TOKENS};
use crate::recover::ASSUMED;
use crate::screen::{ScreenedTextKind, ScreeningPass};
use crate::team::Origin;
use crate::watch::NoticeSender;

/// Longest text that a member may answer, in bytes.
const MAX_TEXT: usize = 1 << 20;
/// Number of ended attempts that are remembered, so that late reports are recognised.
const ENDED: usize = 4096;
/// Largest use that a member's report may claim if nothing was limited, so that sums don't overflow.
const MOST_SAID: u64 = 1_000_000_000_000;
/// Largest number of ineffective reports of one attempt that are recorded. Further ones are refused without a record.
const MOST_REFUSED: u32 = 64;

/// State of an attempt whose use is counted as its end reports it.
pub(super) const SETTLED: &str = "settled";
/// State of an interrupted attempt whose report has arrived since.
pub(super) const LEARNED: &str = "learned";

/// An attempt that another process works on, or has finished.
#[derive(Debug, Clone)]
pub(super) struct SentTry {
    /// Id of the task on this host.
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    pub(super) member: String,
    pub(super) identity: String,
    run: TaskId,
    /// The chain that records its run.
    session: SessionId,
    token: String,
    /// Reserved tokens and money; `None`: not limited.
    share: (Option<u64>, Option<u64>),
    /// Cancelled when a report counted or the attempt is over.
    taken: CancellationToken,
    used: Arc<Mutex<Option<TryUsage>>>,
    /// The amount counted for the attempt while its end is unknown, until its report arrives.
    assumed: Arc<Mutex<Option<AssumedUsage>>>,
    refused: Arc<AtomicU32>,
}

/// The amount counted for an attempt that may have used less.
#[derive(Debug, Clone)]
struct AssumedUsage {
    used: TryUsage,
    /// The part that the agent's daily and monthly budgets have counted.
    kept: Vec<SpentAmount>,
}

/// Attempts by the ids that other processes use for them.
#[derive(Debug, Default)]
pub(super) struct SentTries {
    by_id: HashMap<RequestId, SentTry>,
    order: VecDeque<RequestId>,
}

impl SentTries {
    fn add_try(&mut self, id: RequestId, sent: SentTry) {
        if self.by_id.insert(id.clone(), sent).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > ENDED {
            if let Some(old) = self.order.pop_front() {
                self.by_id.remove(&old);
            }
        }
    }

    /// Returns the attempt of this report, and whether its sender may report it.
    pub(super) fn find_reported(
        &self,
        params: &ReportParams,
        bound: Option<&str>,
    ) -> Option<(SentTry, bool)> {
        let sent = self.by_id.get(&params.task_id)?;
        let shown = params
            .report_token
            .as_ref()
            .is_some_and(|shown| constant_time_eq(shown, &sent.token));
        // A sender with a wrong token is not the member, whichever connection it uses.
        let wrong = params.report_token.is_some() && !shown;
        let own = shown || (bound == Some(sent.member.as_str()) && !wrong);
        Some((sent.clone(), own))
    }
}

impl SentTry {
    /// Returns the use that a report claims, at most the reservation. Without a claim it is the whole reservation.
    pub(super) fn reported_usage(&self, params: &ReportParams) -> TryUsage {
        bounded_usage(self.share, (params.token_usage, params.cost_microusd))
    }

    /// Marks the report as counted, which ends the attempt.
    pub(super) fn end_try(&self, params: &ReportParams) {
        *lock(&self.used) = Some(self.reported_usage(params));
        self.taken.cancel();
    }

    /// Returns whether more is counted for the attempt than its report may claim.
    pub(super) fn is_assumed(&self) -> bool {
        lock(&self.assumed).is_some()
    }

    /// Counts one more ineffective report. Returns `false` if it must not be recorded any more.
    pub(super) fn is_recorded(&self) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed) < MOST_REFUSED
    }
}

fn bounded_usage((tokens, cost): (Option<u64>, Option<u64>), said: (Option<u64>, Option<u64>)) -> TryUsage {
    let of = |said: Option<u64>, most: Option<u64>| match (said, most) {
        (Some(said), Some(most)) => said.min(most),
        (said, most) => said.or(most).unwrap_or(0).min(MOST_SAID),
    };
    TryUsage {
        tokens: of(said.0, tokens),
        cost_microusd: of(said.1, cost),
    }
}

/// Converts another party's reason to a safe word, because it appears in the record and on terminals.
fn sanitize_reason(reason: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let word: String = reason.chars().filter(plain).take(64).collect();
    if word.is_empty() {
        "refused".to_owned()
    } else {
        word
    }
}

/// Compares in constant time.
fn constant_time_eq(a: &str, b: &str) -> bool {
    let differ = a.bytes().zip(b.bytes()).fold(0_u8, |sum, (a, b)| sum | (a ^ b));
    a.len() == b.len() && differ == 0
}

/// Returns where an attempt's member is, if it is not in this process.
pub(super) fn remote_member<'a>(
    peers: &'a SwarmServices,
    start: &TryStart,
    origin: Origin,
) -> Option<(&'a Arc<dyn RemoteWorkers>, String, MemberRoute)> {
    let there = peers.elsewhere.as_ref()?;
    let team = peers.calls.team.as_ref()?;
    let identity = team.with_coordinator(|coord| {
        coord
            .plan()
            .seat(start.who)
            .map(|seat| identity_name(&seat.identity))
    })?;
    let place = there.member_route(&identity)?;
    // A member that delegates, asks or judges works where its run is. A task that arrived over a bus is worked on here.
    let plain = start.kind == Kind::Work && start.below.is_empty() && start.askable.is_empty();
    let crosses = match place {
        MemberRoute::Peer => start.who != SwarmWorkerId::Claw,
        MemberRoute::Bus => plain && !origin.from_afar,
    };
    crosses.then_some((there, identity, place))
}

/// Returns the token of an attempt, which only a holder of the key can make; `None`: this host does not coordinate the swarm.
fn try_token(peers: &SwarmServices, id: &RequestId) -> Option<String> {
    let mut hash = Sha256::new();
    hash.update(b"clawk report token\0");
    hash.update(peers.token_key.get()?.0);
    hash.update(id.as_str().as_bytes());
    let bytes = hash.finalize();
    Some(bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

fn lost_end(why: RetryReason, message: impl Into<String>) -> TryEnd {
    TryEnd::Lost {
        why,
        message: message.into(),
    }
}

const fn is_unanswered(result: &RemoteResult) -> bool {
    matches!(result, RemoteResult::Lost { .. } | RemoteResult::Refused { .. })
}

/// Runs an attempt by sending it to its member; `None`: it was cancelled, or the agent ended first.
pub(super) async fn attempt_remotely(
    peers: &Arc<SwarmServices>,
    (start, running): (&TryStart, &RunningTry),
    origin: Origin,
    (there, identity, place): (&Arc<dyn RemoteWorkers>, String, MemberRoute),
) -> Option<(TryEnd, TryUsage)> {
    if origin.from_afar && place == MemberRoute::Peer {
        let message = "a task that came from another host is not passed on to a third one";
        return Some((lost_end(RetryReason::Unreached, message), TryUsage::default()));
    }
    if place == MemberRoute::Peer
        && there.lives_here(&identity)
        && lock(&peers.moved).contains(&running.session)
    {
        // Only the member's own record knows its effects, and that is with the lost host.
        let fault = SwarmFault::task_failed(
            "effects_unknown",
            "another host coordinated the swarm when this member began the task; what it did there is not known here",
        );
        return Some((TryEnd::Over { fault, run: false }, TryUsage::default()));
    }
    let spoken = peers
        .calls
        .team
        .as_ref()
        .is_some_and(|team| team.with_coordinator(|coord| coord.has_word(&start.task)));
    let settled = lock(&peers.slices).take_settled_usage(&start.task, start.attempt);
    if start.resumed && spoken {
        // Its report was counted before this start.
        let used = match settled {
            Some(used) => used,
            None => settle_said(peers, start, origin),
        };
        return Some((TryEnd::Said { text: String::new() }, used));
    }
    let purse = slices::task_account(peers, start, origin);
    let now = peers.scribe.now();
    let share = match peers
        .calls
        .purses
        .reserve_remote_share(&purse, wanted_share(peers, start), now)
    {
        Ok(share) => share,
        Err(error) => return Some((no_room(&error), TryUsage::default())),
    };
    let (errand, sent) = prepare_task(peers, start, origin, (there, identity), &share)?;
    lock(&peers.sent).add_try(errand.id.clone(), sent.clone());
    if let Some(team) = &peers.calls.team {
        let Ok(_durable) = team.queue_decision(None, |coord, now_ms| {
            Ok::<_, std::convert::Infallible>(coord.crosses(&start.task, now_ms))
        });
    }
    let reports: Arc<dyn ReportReceiver> = Arc::new(SwarmReportReceiver(Arc::downgrade(peers)));
    let worked = tokio::select! {
        biased;
        () = sent.taken.cancelled() => None,
        () = running.cancel.cancelled() => {
            // The use so far is unknown; a report may tell it.
            let assumed = settle_usage(peers, (start, origin, ASSUMED), (share, settled), (None, None));
            *lock(&sent.assumed) = Some(assumed);
            return None;
        }
        () = peers.life.stop.cancelled() => return None,
        worked = there.perform_task(errand, reports) => Some(worked),
    };
    // An earlier process may have sent it already.
    let unused = |tokens: Option<u64>| tokens.filter(|tokens| *tokens > 0 || !start.resumed);
    let (tokens, cost) = match &worked {
        None => lock(&sent.used).map_or((None, None), |used| (Some(used.tokens), Some(used.cost_microusd))),
        Some(RemoteResult::Answered { tokens, .. }) => (*tokens, None),
        Some(RemoteResult::Lost { tokens, .. } | RemoteResult::Refused { tokens, .. }) => {
            let tokens = unused(*tokens);
            (tokens, tokens.filter(|tokens| *tokens == 0))
        }
    };
    let counted = settle_usage(peers, (start, origin, SETTLED), (share, settled), (tokens, cost));
    let used = counted.used;
    if tokens.is_none() && worked.as_ref().is_some_and(is_unanswered) {
        *lock(&sent.assumed) = Some(counted);
    }
    Some((remote_end(peers, origin, worked).await, used))
}

/// Returns how the attempt ended; `None`: by its report.
async fn remote_end(peers: &SwarmServices, origin: Origin, worked: Option<RemoteResult>) -> TryEnd {
    match worked {
        // The report is the task's result, so its text is taken from there.
        None => TryEnd::Said { text: String::new() },
        Some(RemoteResult::Answered { text, .. }) if text.len() > MAX_TEXT => lost_end(
            RetryReason::Garbage,
            format!("its answer has more than {MAX_TEXT} bytes"),
        ),
        Some(RemoteResult::Answered { text, .. }) => TryEnd::Said {
            text: screen_text(peers, origin, text).await,
        },
        Some(RemoteResult::Lost { why, message, .. }) => lost_end(why, message),
        Some(RemoteResult::Refused { reason, message, .. }) => TryEnd::Over {
            fault: SwarmFault::task_failed(&sanitize_reason(&reason), message),
            run: false,
        },
    }
}

/// Returns the amounts to reserve of a limited budget: the task's own wish, else its part.
fn wanted_share(peers: &SwarmServices, start: &TryStart) -> (Option<u64>, Option<u64>, u64) {
    let parallel = peers.calls.team.as_ref().map_or(1, |team| {
        team.with_coordinator(|coord| coord.plan().limits.max_parallel)
    });
    let parts = u64::try_from(parallel).unwrap_or(u64::MAX).max(1);
    (start.wish.tokens, start.wish.cost_microusd, parts)
}

fn no_room(error: &CallError) -> TryEnd {
    let name = match error {
        CallError::Quota { limit_name, .. } => limit_name.as_str(),
        _ => "",
    };
    let (reason, run) = match name {
        SWARM_TOKENS => ("swarm_tokens", true),
        SWARM_COST => ("swarm_cost", true),
        _ => ("quota", false),
    };
    TryEnd::Over {
        fault: SwarmFault::limit_spent(reason, error.to_string()),
        run,
    }
}

fn prepare_task(
    peers: &SwarmServices,
    start: &TryStart,
    origin: Origin,
    (there, identity): (&Arc<dyn RemoteWorkers>, String),
    share: &BudgetShare,
) -> Option<(RemoteTask, SentTry)> {
    let id = derived(&start.task, &format!("try/{}", start.attempt));
    let token = try_token(peers, &id)?;
    let swarm = peers
        .calls
        .team
        .as_ref()
        .map(|team| team.with_coordinator(|coord| coord.plan().swarm.clone()))
        .unwrap_or_default();
    let mut errand = RemoteTask {
        swarm,
        member: start.member.clone(),
        request_id: derived(&id, "request"),
        text: start.text.clone(),
        limits: TaskLimits {
            role: Some(origin.role.0.as_str().to_owned()),
            autonomy: Some(peers.calls.manifest.identity.autonomy.as_str().to_owned()),
            tools: narrow_tools(start, there.allowed_tools(&identity)),
            tokens: share.tokens,
            cost_microusd: share.cost_microusd,
            timeout_ms: start.wish.timeout_ms.or_else(|| there.timeout_ms(&identity)),
        },
        report_token: token.clone(),
        proof: None,
        identity,
        id,
    };
    let signer = peers.signer.as_ref();
    errand.proof = signer.and_then(|signer| {
        let at_ms = peers.scribe.now().as_millis();
        proof::sign_task(&errand.delegate_params(), &errand.identity, at_ms, signer)
    });
    let sent = SentTry {
        task: start.task.clone(),
        attempt: start.attempt,
        member: start.member.clone(),
        identity: errand.identity.clone(),
        run: start.run.clone(),
        session: peers.chain_of(origin.session),
        token,
        share: (share.tokens, share.cost_microusd),
        taken: CancellationToken::new(),
        used: Arc::default(),
        assumed: Arc::default(),
        refused: Arc::default(),
    };
    Some((errand, sent))
}

/// Returns the narrower of the asker's tools and those that this host allows the peer. A judge gets none.
fn narrow_tools(start: &TryStart, own: Option<Vec<String>>) -> Option<Vec<String>> {
    if matches!(start.kind, Kind::Judge { .. }) {
        return Some(Vec::new());
    }
    match (start.wish.tools.clone(), own) {
        (Some(given), Some(own)) => Some(given.into_iter().filter(|tool| own.contains(tool)).collect()),
        (given, own) => given.or(own),
    }
}

/// Counts the use that the other side reports, at most the reservation, or the whole reservation without a report. `before` was
/// counted already. Returns the total.
fn settle_usage(
    peers: &SwarmServices,
    (start, origin, state): (&TryStart, Origin, &'static str),
    (share, before): (BudgetShare, Option<TryUsage>),
    said: (Option<u64>, Option<u64>),
) -> AssumedUsage {
    let used = bounded_usage((share.tokens, share.cost_microusd), said);
    let before = before.unwrap_or_default(); // silent-ok: nothing was counted yet
    let all = TryUsage {
        tokens: used.tokens.max(before.tokens),
        cost_microusd: used.cost_microusd.max(before.cost_microusd),
    };
    let kept = count_usage(peers, (start, origin, state), share.reservation, (before, all));
    AssumedUsage { used: all, kept }
}

/// Counts the use in a report that arrived before a restart and was not counted yet.
fn settle_said(peers: &SwarmServices, start: &TryStart, origin: Origin) -> TryUsage {
    let team = peers.calls.team.as_ref();
    let said = team.and_then(|team| team.with_coordinator(|coord| coord.word_used(&start.task)));
    let used = said.unwrap_or_default(); // silent-ok: a report of an earlier version does not say
    let purse = slices::task_account(peers, start, origin);
    let aside = peers.calls.purses.nothing_aside(&purse, peers.scribe.now());
    match aside {
        Ok(aside) => drop(count_usage(
            peers,
            (start, origin, SETTLED),
            aside,
            (TryUsage::default(), used),
        )),
        Err(error) => tracing::error!(%error, "what a peer used can't be counted"),
    }
    used
}

/// Adds to the budgets the difference between `all` and `before`, and records it. Returns what the agent's daily and monthly
/// budgets have counted.
fn count_usage(
    peers: &SwarmServices,
    (start, origin, state): (&TryStart, Origin, &'static str),
    aside: BudgetReservation,
    (before, all): (TryUsage, TryUsage),
) -> Vec<SpentAmount> {
    let took = usage_amount(all).minus(usage_amount(before));
    let settled = aside.settle(took, peers.scribe.now());
    if settled.spent.is_empty() {
        return Vec::new();
    }
    let about = (&start.run, &start.task, start.attempt, start.member.as_str());
    let draft = usage_draft(peers, peers.chain_of(origin.session), about, (state, all));
    let kept = settled.spent.clone();
    if let Err(error) = peers
        .scribe
        .submit_spending(vec![draft], settled.spent, Vec::new())
    {
        tracing::error!(%error, "what a peer used can't be recorded");
        return Vec::new();
    }
    kept
}

pub(super) fn usage_amount(used: TryUsage) -> BudgetAmount {
    BudgetAmount {
        tokens: used.tokens,
        cost_microusd: used.cost_microusd,
        ..BudgetAmount::default()
    }
}

/// Returns the event of the amount counted for an attempt.
fn usage_draft(
    peers: &SwarmServices,
    session: SessionId,
    (run, task, attempt, member): (&TaskId, &TaskId, u32, &str),
    (state, used): (&'static str, TryUsage),
) -> Draft {
    let swarm = peers.calls.manifest.swarm.as_ref();
    let payload = SwarmProgress {
        attempt: Some(attempt),
        cost_microusd: Some(used.cost_microusd),
        member: Some(member.to_owned()),
        run: Some(run.as_str().to_owned()),
        state: Some(state.to_owned()),
        swarm: swarm
            .map(|swarm| swarm.name.as_str())
            .unwrap_or_default()
            .to_owned(),
        task_id: Some(task.as_str().to_owned()),
        token_usage: Some(used.tokens),
        ..SwarmProgress::default()
    };
    let thread = Thread::for_session(session).child(peers.scribe.clock().new_uuid());
    peers.scribe.draft_event(&thread, &payload.as_try())
}

/// Handles the late report of an attempt that was given up: replaces the counted amount by the reported one and returns the
/// difference to the run and the agent.
pub(super) async fn apply_late_report(
    peers: &SwarmServices,
    sent: &SentTry,
    params: &ReportParams,
) -> Result<(), JournalError> {
    let Some(assumed) = lock(&sent.assumed).take() else {
        return Ok(());
    };
    let used = sent.reported_usage(params);
    let less = usage_amount(assumed.used).minus(usage_amount(used));
    if less.is_zero() {
        return Ok(());
    }
    let about = (&sent.run, &sent.task, sent.attempt, sent.member.as_str());
    let draft = usage_draft(peers, sent.session, about, (LEARNED, used));
    // At most the amount counted then; a part may have been counted before a restart.
    let unspent = assumed.kept.into_iter().map(|row| SpentAmount {
        amount: row.amount.unitwise_min(less),
        ..row
    });
    let unspent: Vec<SpentAmount> = unspent.collect();
    peers
        .scribe
        .take_back(vec![draft], unspent.clone())?
        .wait_until_durable()
        .await?;
    peers.calls.purses.take_back(&unspent, peers.scribe.now());
    slices::give_back(peers, &sent.run, &sent.task, less);
    Ok(())
}

/// Removes secrets from a peer's text, by the policies for incoming text.
async fn screen_text(peers: &SwarmServices, origin: Origin, text: String) -> String {
    let mut look = ScreeningPass::new(
        &peers.calls.screens,
        session_thread(peers, peers.chain_of(origin.session)),
        ScreenedTextKind::Peer,
        "report",
        &NoticeSender::default(),
    );
    let mut value = Value::String(text);
    judge::peer_value(&mut look, &mut value).await;
    if !look.drafts.is_empty()
        && let Err(error) = peers.scribe.write(look.drafts).await
    {
        tracing::error!(%error, "what was screened of a peer's answer can't be recorded");
    }
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Receives reports while the agent runs.
#[derive(Debug)]
struct SwarmReportReceiver(Weak<SwarmServices>);

impl ReportReceiver for SwarmReportReceiver {
    fn try_state(&self, task: &RequestId, shown: Option<&str>) -> ReportedTryState {
        let Some(peers) = self.0.upgrade() else {
            return ReportedTryState::Given; // nobody is here any more who could say
        };
        if lock(&peers.sent).by_id.contains_key(task) {
            return ReportedTryState::Sent;
        }
        match shown {
            Some(shown) if try_token(&peers, task).is_some_and(|own| constant_time_eq(shown, &own)) => {
                ReportedTryState::Given
            }
            Some(_) | None => ReportedTryState::Foreign,
        }
    }

    fn accept_report<'a>(
        &'a self,
        bound: Option<&'a str>,
        params: ReportParams,
    ) -> BoxFuture<'a, Result<AcknowledgedResult, KernelError>> {
        Box::pin(async move {
            let gone = || JournalError::Unwritable("the agent has ended".to_owned());
            let peers = self.0.upgrade().ok_or_else(gone)?;
            let session = peers.life.root.session;
            super::wire::report_as(&peers, session, bound, params).await
        })
    }
}

/// Returns the receiver for reports that do not arrive over an attempt's own connection.
pub(crate) fn report_receiver(peers: &Arc<SwarmServices>) -> Arc<dyn ReportReceiver> {
    Arc::new(SwarmReportReceiver(Arc::downgrade(peers)))
}

/// Limits the role of a task from another host to the one that this host allows.
pub(super) fn at_most(role: Role, limits: Option<&TaskLimits>) -> Role {
    let said = limits.and_then(|limits| limits.role.as_deref());
    // An unknown word means the lowest role.
    said.map_or(role, |word| role.min(Role::parse(word).unwrap_or(Role::Viewer)))
}

/// Parses the autonomy level; an unknown word means the strictest.
pub(super) fn parse_autonomy(limits: &TaskLimits) -> Option<AutonomyLevel> {
    let word = limits.autonomy.as_deref()?;
    Some(AutonomyLevel::parse(word).unwrap_or(AutonomyLevel::Observer))
}

/// Returns the rest of the task's own limits.
pub(super) fn task_constraints(limits: &TaskLimits) -> TaskConstraints {
    TaskConstraints {
        tools: limits.tools.clone(),
        timeout_ms: limits.timeout_ms,
        tokens: limits.tokens,
        cost_microusd: limits.cost_microusd,
    }
}
