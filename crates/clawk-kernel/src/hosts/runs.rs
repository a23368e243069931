//! Requests to the host that coordinates the swarm: runs, reports, and queries of its state. With a single host, this is the
//! coordinator and nothing is sent.

use std::fmt;
use std::time::Duration;

use clawk_events::payload::SwarmProgress;
use clawk_proto::method::{DelegateTask, ReportParams};
use clawk_proto::{Digest, RequestId, SessionId};
use clawk_swarm::coord::{RunResult, TaskBrief, TaskConstraints, TaskId};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::orders::{self, HostOrderRequest as Order};
use crate::agent::Agent;
use crate::dedup::{DedupMethod, answer_key};
use crate::error::{CallError, KernelError};
use crate::event::{JournalWriter, Thread, canonical, digest, kind};
use crate::ports::{JournalError, JournalScan, RecordedEvent};
use crate::purse::{BudgetAmount, BudgetShare};
use crate::recover::{ASSUMED, LENT};
use crate::services::KernelServices;
use crate::swarm::{self, SwarmView};
use crate::team::{DelegationRequest, Origin, SwarmTeam, fact_of};

/// Time limit for a coordinator to accept a run or a report.
const PATIENCE: Duration = Duration::from_secs(30);
/// A run gets half of its session's remaining budget. The rest is for the session's own turn and for concurrent runs.
const PARTS: u64 = 2;
/// Time limit for a query of the swarm's state.
const GLANCE: Duration = Duration::from_secs(5);

/// A request to the coordinator.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CoordinatorRequest {
    Run(Box<SwarmAssignment>),
    Report(Box<ReportParams>),
    View,
}

/// A task for the swarm, or for one of its members.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SwarmAssignment {
    pub(crate) run: TaskId,
    pub(crate) brief: TaskBrief,
    pub(crate) to: Option<String>,
    pub(crate) wish: TaskConstraints,
    pub(crate) origin: Origin,
    /// The request that started it, with the digest of its content.
    pub(crate) asked: Option<(RequestId, Digest)>,
}

/// The outcome of an assignment.
#[derive(Debug)]
pub(crate) enum AssignmentOutcome {
    /// It is durable and in progress. The receiver gets its end.
    Open(oneshot::Receiver<RunResult>),
    /// It was given before, and has ended.
    Ended(Box<RunResult>),
}

/// The coordinator's reply.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CoordinatorReply {
    /// The run is accepted. Holds its result if it was given before and has ended.
    Run(Option<Box<RunResult>>),
    /// Whether the report is acknowledged.
    Reported(bool),
    View(Option<Box<SwarmView>>),
    /// The run's id was used for another run.
    Reused(RequestId),
    Refused {
        code: i64,
        reason: String,
        message: String,
        task: RequestId,
    },
    /// The report is malformed.
    Garbage(String),
}

/// Gives a run to the host that coordinates the swarm. When this returns `Ok`, the run is durable.
///
/// # Errors
/// The run is refused, its id was used for another run, or no host accepted it in time. A repetition is the same run.
pub(crate) async fn give_run(
    calls: &KernelServices,
    team: &SwarmTeam,
    given: SwarmAssignment,
) -> Result<AssignmentOutcome, KernelError> {
    let run = given.run.clone();
    // Register before giving the run, because it may end at once.
    let ends = team.wait_for_end(&run);
    let taken = if team.is_coordinator() {
        take_run(calls, team, given).await
    } else {
        match ask_coordinator(calls, team, CoordinatorRequest::Run(Box::new(given)), PATIENCE).await {
            Ok(CoordinatorReply::Run(ended)) => Ok(ended),
            Ok(_) => Err(unreadable_error("another answer came")),
            Err(error) => Err(error),
        }
    };
    match taken {
        Ok(None) => Ok(AssignmentOutcome::Open(ends)),
        Ok(Some(result)) => {
            team.wait_no_more(&run, ends);
            Ok(AssignmentOutcome::Ended(result))
        }
        Err(error) => {
            team.wait_no_more(&run, ends);
            Err(error)
        }
    }
}

/// Handles `claw.swarm.report` on a host that does not coordinate. Returns whether the report is acknowledged.
///
/// # Errors
/// The report is refused, or no coordinator accepted it in time.
pub(crate) async fn forward_report(
    calls: &KernelServices,
    team: &SwarmTeam,
    params: ReportParams,
) -> Result<bool, KernelError> {
    match ask_coordinator(
        calls,
        team,
        CoordinatorRequest::Report(Box::new(params)),
        PATIENCE,
    )
    .await?
    {
        CoordinatorReply::Reported(acknowledged) => Ok(acknowledged),
        _ => Err(unreadable_error("another answer came")),
    }
}

/// Returns the swarm's state as its coordinator sees it.
///
/// # Errors
/// No host coordinates it now.
pub(crate) async fn fetch_view(
    calls: &KernelServices,
    team: &SwarmTeam,
) -> Result<Option<SwarmView>, KernelError> {
    match ask_coordinator(calls, team, CoordinatorRequest::View, GLANCE).await? {
        CoordinatorReply::View(view) => Ok(view.map(|view| *view)),
        _ => Err(unreadable_error("another answer came")),
    }
}

/// Makes the error for an unreadable message. `why` holds no part of its content.
fn unreadable_error(why: impl fmt::Display) -> KernelError {
    JournalError::Away(format!(
        "the host that coordinates the swarm can't be understood, its version may be another one: {why}"
    ))
    .into()
}

async fn ask_coordinator(
    calls: &KernelServices,
    team: &SwarmTeam,
    what: CoordinatorRequest,
    patience: Duration,
) -> Result<CoordinatorReply, KernelError> {
    let (Some(hosts), Some(home)) = (&calls.hosts, team.home_session()) else {
        return Err(KernelError::NotReady(calls.life.state()));
    };
    let what = Box::new(what);
    let wish = (home, Order::Swarm { what });
    let said = tokio::select! {
        biased;
        said = orders::ask_holder(calls, hosts, wish, patience) => said?,
        () = calls.life.stop.cancelled() => return Err(KernelError::NotReady(calls.life.state())),
    };
    match serde_json::from_slice(&said) {
        Ok(CoordinatorReply::Reused(id)) => Err(KernelError::RequestIdReused(id)),
        Ok(CoordinatorReply::Refused {
            code,
            reason,
            message,
            task,
        }) => Err(KernelError::Swarm {
            code,
            swarm: team.with_coordinator(|coord| coord.plan().swarm.clone()),
            task_id: task,
            reason,
            message,
        }),
        Ok(CoordinatorReply::Garbage(reason)) => Err(KernelError::BadParameter {
            member: "result",
            reason,
        }),
        Ok(said) => Ok(said),
        Err(error) => Err(unreadable_error(error)),
    }
}

/// Executes another host's request to the coordinator. `None`: this host does not coordinate yet, or can't record anything now. The
/// next coordinator executes it.
pub(super) async fn obey_request(agent: &Agent, what: CoordinatorRequest) -> Option<Vec<u8>> {
    let team = agent.calls.team.as_ref().filter(|team| team.is_coordinator())?;
    let _working = agent.life.begin_work().ok()?; // silent-ok: as said
    let said = match what {
        CoordinatorRequest::Run(given) => take_run(&agent.calls, team, *given)
            .await
            .map(CoordinatorReply::Run),
        CoordinatorRequest::Report(params) => {
            let session = agent.life.root.session;
            let taken = swarm::report_task(&agent.peers, session, *params).await;
            taken.map(|answer| CoordinatorReply::Reported(answer.acknowledged))
        }
        CoordinatorRequest::View => Ok(CoordinatorReply::View(
            swarm::view_here(&agent.peers).map(Box::new),
        )),
    };
    let said = match said {
        Ok(said) => said,
        Err(KernelError::Journal(_) | KernelError::NotReady(_)) => return None,
        Err(KernelError::RequestIdReused(id)) => CoordinatorReply::Reused(id),
        Err(KernelError::Swarm {
            code,
            reason,
            message,
            task_id,
            ..
        }) => CoordinatorReply::Refused {
            code,
            reason,
            message,
            task: task_id,
        },
        Err(KernelError::BadParameter { reason, .. }) => CoordinatorReply::Garbage(reason),
        Err(error) => CoordinatorReply::Garbage(error.to_string()),
    };
    Some(canonical(&said))
}

/// Accepts a run. When this returns `Ok`, the run is durable. Returns its result if it was given before and has ended.
async fn take_run(
    calls: &KernelServices,
    team: &SwarmTeam,
    given: SwarmAssignment,
) -> Result<Option<Box<RunResult>>, KernelError> {
    let SwarmAssignment {
        run,
        brief,
        to,
        wish,
        origin,
        asked,
    } = given;
    if team.with_coordinator(|coord| coord.has_ended(&run)) {
        return ended_before(calls, team, &run, brief).await;
    }
    let asked = asked.map(|(request_id, request_hash)| DelegationRequest {
        key: answer_key(DedupMethod::Delegate, &request_id),
        request_id,
        request_hash,
    });
    let kept = team.accept_run(&run, brief, (to.as_deref(), wish), origin, asked.as_ref());
    let kept = kept.map_err(|refusal| swarm::refusal_error(team, &run, refusal))?;
    let gone = || JournalError::Unwritable("the agent has ended".to_owned());
    kept.await.map_err(|_| gone())??; // silent-ok: RecvError says no more
    Ok(None)
}

/// Returns the result of the run with this id, if its request was the same.
async fn ended_before(
    calls: &KernelServices,
    team: &SwarmTeam,
    run: &TaskId,
    brief: TaskBrief,
) -> Result<Option<Box<RunResult>>, KernelError> {
    // Its end may be on its way into the journal.
    if let Some(ending) = team.when_ended(run) {
        tokio::select! {
            biased;
            _ = ending => {}
            () = calls.life.stop.cancelled() => {}
        }
    }
    match find_stored_run(&calls.scribe, team.home_session(), run).await? {
        StoredRun {
            words: Some(known),
            result: Some(result),
        } if known == brief_digest(brief) => Ok(Some(result)),
        _ => Err(KernelError::RequestIdReused(run.clone())),
    }
}

/// Returns the digest of a task by which requests are compared.
fn brief_digest(brief: TaskBrief) -> Digest {
    let task = DelegateTask {
        description: brief.description,
        input: brief.input,
    };
    digest(&canonical(&task))
}

/// A run as recorded in the journal.
#[derive(Debug, Default)]
pub(crate) struct StoredRun {
    /// Digest of its task; `None`: the run does not exist.
    pub(crate) words: Option<Digest>,
    /// Its result, once it has ended.
    pub(crate) result: Option<Box<RunResult>>,
}

/// Returns the journal's record of a run.
///
/// # Errors
/// The journal can't be read.
pub(crate) async fn find_stored_run(
    scribe: &JournalWriter,
    home: Option<SessionId>,
    run: &TaskId,
) -> Result<StoredRun, JournalError> {
    let scan = JournalScan {
        session: home,
        kinds: &[kind::SWARM_RUN, kind::SWARM_ENDED],
        // Matches the text of payloads. However many runs there are, only this one's contents are read.
        says: Some(format!("\"run\":\"{run}\"")),
        with_content: true,
        ..JournalScan::default()
    };
    let mut found = StoredRun::default();
    scribe
        .for_each_event(scan, |event| match fact_of(event) {
            Some(clawk_swarm::SwarmFact::Run {
                run: known, brief, ..
            }) if known == *run => {
                found.words = Some(brief_digest(brief));
            }
            Some(clawk_swarm::SwarmFact::Ended { result }) if result.task_id == *run => {
                found.result = Some(result)
            }
            _ => {}
        })
        .await?;
    Ok(found)
}

/// Reports the recorded end of a run to the callers that wait here.
pub(super) fn notify_run_ended(agent: &Agent, event: &RecordedEvent) {
    let fact = fact_of(event);
    if let (Some(team), Some(clawk_swarm::SwarmFact::Ended { result })) = (&agent.calls.team, fact) {
        team.notify_run_ended(&result);
    }
}

/// The amount that a session's budget reserves for a run that the coordinator pays for, until its end is known.
#[derive(Debug)]
pub(crate) struct RunReservation {
    share: BudgetShare,
    session: SessionId,
    run: TaskId,
}

/// Reserves the run's amount in the giving session's budget if another host may coordinate it, and writes the amount into the run.
/// `None`: the budget is on this host and pays directly.
///
/// # Errors
/// -32021: nothing is left.
pub(crate) fn reserve_run(
    calls: &KernelServices,
    team: &SwarmTeam,
    run: &TaskId,
    origin: &mut Origin,
) -> Result<Option<RunReservation>, CallError> {
    if team.home_session().is_none() {
        return Ok(None);
    }
    let purse = calls.table.purse_of(origin.session);
    let share = calls
        .purses
        .reserve_run_share(&purse, PARTS, calls.scribe.now())?;
    (origin.tokens, origin.cost_microusd) = (share.tokens, share.cost_microusd);
    Ok(Some(RunReservation {
        share,
        session: origin.session,
        run: run.clone(),
    }))
}

impl RunReservation {
    /// Returns whether nothing is limited, so that nobody must wait for the run's use.
    pub(crate) fn is_open(&self) -> bool {
        self.share.tokens.is_none() && self.share.cost_microusd.is_none()
    }

    /// Settles a run that was given before and has ended, unless the session's record already has it. The giver may have been
    /// interrupted in between.
    pub(crate) async fn settle_once(
        self,
        calls: &KernelServices,
        team: &SwarmTeam,
        result: &RunResult,
    ) -> Result<(), JournalError> {
        let scan = JournalScan {
            session: Some(self.session),
            kinds: &[kind::SWARM_TRY],
            ..JournalScan::default()
        };
        let mut known = false;
        calls
            .scribe
            .for_each_event(scan, |event| known |= event.payload.contains(self.run.as_str()))
            .await?;
        if !known {
            self.settle(calls, team, Some(result));
        }
        Ok(())
    }

    /// Charges the run's use to the session that gave it. A run with an unknown end is charged with its whole reservation.
    pub(crate) fn settle(self, calls: &KernelServices, team: &SwarmTeam, result: Option<&RunResult>) {
        let (used, state) = match result {
            Some(result) => (
                BudgetAmount {
                    tokens: result.tokens,
                    cost_microusd: result.cost_microusd,
                    ..BudgetAmount::default()
                },
                LENT,
            ),
            None => (self.share.reservation.amount, ASSUMED),
        };
        // No persistent budget is among them.
        let _settled = self.share.reservation.settle(used, calls.scribe.now());
        if used.is_zero() {
            return;
        }
        let swarm = team.with_coordinator(|coord| coord.plan().swarm.clone());
        let payload = SwarmProgress {
            cost_microusd: Some(used.cost_microusd),
            run: Some(self.run.as_str().to_owned()),
            state: Some(state.to_owned()),
            swarm: swarm.to_string(),
            task_id: Some(self.run.as_str().to_owned()),
            token_usage: Some(used.tokens),
            ..SwarmProgress::default()
        };
        let thread = Thread::for_session(self.session).child(calls.scribe.clock().new_uuid());
        let draft = calls.scribe.draft_event(&thread, &payload.as_try());
        if let Err(error) = calls.scribe.submit_drafts(vec![draft]) {
            tracing::error!(%error, "what a run of the swarm used can't be recorded for its session");
        }
    }
}
