//! The orders of the control socket: approvals, revocations, the emergency stop.

use clawk_kernel::effect::EffectSettlement;
use clawk_kernel::sheet::PreviewReceipt;
use clawk_kernel::{
    ApprovalAnswer, ApprovalPlanStep, ApprovalQuestion, ApprovalReply, EntryPoint, GrantLifetime, GrantScope,
    Kernel, KnownPerson, ReplyOutcome, StandingGrant, stop,
};
use clawk_proto::{Digest, ErrorCode, MessageId, RequestId, RpcError, SessionId};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::channels::Channels;
use crate::error::ckp as error;
use crate::host::AgentHost;
use crate::rpc::questions::{self, QuestionDetail};

#[derive(Deserialize)]
struct AnswerParams {
    /// The id of a call or of a plan.
    request_id: RequestId,
    /// The steps of the plan that the answer covers; `None`: all of them.
    #[serde(default)]
    steps: Option<Vec<u32>>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    for_session: bool,
    #[serde(default)]
    always: bool,
    /// A standing grant covers the folder that the question offers.
    #[serde(default)]
    folder: bool,
    /// Digests of the full texts that the person has read. A yes to a folded question needs the digest of its text.
    #[serde(default)]
    seen: Vec<Digest>,
}

#[derive(Deserialize)]
struct ShowParams {
    /// The id of a call or of a plan.
    request_id: RequestId,
}

#[derive(Deserialize)]
struct RevokeParams {
    grant: String,
}

#[derive(Deserialize)]
struct HistoryParams {
    #[serde(default = "default_history")]
    limit: usize,
}

/// The parameters of an emergency-stop order.
#[derive(Deserialize)]
struct StopParams {
    level: stop::Level,
    #[serde(default)]
    session: Option<SessionId>,
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Deserialize)]
struct LiftParams {
    #[serde(default)]
    session: Option<SessionId>,
}

#[derive(Deserialize)]
struct ResolveParams {
    request_id: RequestId,
    outcome: EffectSettlement,
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Deserialize)]
struct RetryParams {
    message: MessageId,
}

const fn default_history() -> usize {
    100
}

/// The prefix of all orders.
pub(crate) const PREFIX: &str = "clawk.";

/// The prefix of orders about channels.
pub(crate) const CHANNELS: &str = "clawk.channels.";

/// The prefix of orders about the host.
pub(crate) const RESTART: &str = "clawk.restart";

/// Runs an order about the host: `clawk.restart`, or `clawk.restart.status`, which returns the id of the run.
pub(crate) fn of_host(method: &str, host: &AgentHost) -> Result<Value, RpcError> {
    match method {
        RESTART => host
            .request_restart()
            .map_err(|why| RpcError::new(ErrorCode::InvalidRequest, why))?,
        "clawk.restart.status" => {}
        _ => return Err(unknown_order()),
    }
    Ok(json!({"run": host.run(), "restarting": host.is_restarting()}))
}

/// Runs an order about channels.
pub(crate) async fn of_channels(
    method: &str,
    params: &str,
    channels: &dyn Channels,
    by: &str,
) -> Result<Value, RpcError> {
    let params: Value = error::decode(method, params)?;
    match channels.run_order(method, &params, by).await {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(reason)) => Err(RpcError::new(ErrorCode::InvalidRequest, reason)),
        None => Err(unknown_order()),
    }
}

/// Runs one order; `by` is the person who gave it.
pub(crate) async fn run_order(
    method: &str,
    params: &str,
    kernel: &Kernel,
    by: &str,
) -> Result<Value, RpcError> {
    match method {
        "clawk.status" => Ok(status_json(kernel)),
        "clawk.sessions" => {
            let open: Vec<Value> = kernel
                .list_open_sessions()
                .iter()
                .map(|(id, door)| session_json(*id, door))
                .collect();
            Ok(json!({"sessions": open}))
        }
        "clawk.budget" => Ok(json!(kernel.budget_report())),
        "clawk.effects.resolve" => {
            let asked: ResolveParams = error::decode(method, params)?;
            let taken = kernel
                .resolve_effect(&asked.request_id, asked.outcome, by, asked.reason.as_deref())
                .await;
            let acknowledged = taken.map_err(|e| error::from_kernel(&e))?;
            Ok(json!({"acknowledged": acknowledged}))
        }
        "clawk.outbox.retry" => {
            let asked: RetryParams = error::decode(method, params)?;
            let known = kernel.retry_delivery(asked.message, by).await;
            let acknowledged = known.map_err(|e| error::from_kernel(&e))?;
            Ok(json!({"acknowledged": acknowledged}))
        }
        "clawk.stop" => {
            let asked: StopParams = error::decode(method, params)?;
            let person = KnownPerson::admin("control", by);
            let stopped = kernel
                .engage_stop(asked.session, asked.level, &person, asked.reason)
                .await;
            stopped.map_err(|error| error::from_kernel(&error))?;
            Ok(json!({"stops": kernel.active_stops()}))
        }
        "clawk.stop.lift" => {
            let asked: LiftParams = error::decode(method, params)?;
            let lifted = kernel
                .lift_stop(asked.session, &KnownPerson::admin("control", by))
                .await;
            let lifted = lifted.map_err(|error| error::from_kernel(&error))?;
            Ok(json!({"lifted": lifted, "stops": kernel.active_stops()}))
        }
        "clawk.stop.status" => Ok(json!({"stops": kernel.active_stops()})),
        _ => run_approval_order(method, params, kernel, by).await,
    }
}

/// Runs an order about questions and grants.
async fn run_approval_order(
    method: &str,
    params: &str,
    kernel: &Kernel,
    by: &str,
) -> Result<Value, RpcError> {
    match method {
        "clawk.approvals.list" => Ok(
            json!({"approvals": questions::list_questions(kernel.pending_questions(), QuestionDetail::Short)}),
        ),
        "clawk.approvals.show" => {
            let asked: ShowParams = error::decode(method, params)?;
            let meant = |question: &ApprovalQuestion| {
                let plan = question.step.as_ref().map(|step| &step.plan);
                question.request_id == asked.request_id || plan == Some(&asked.request_id)
            };
            let mut waiting = kernel.pending_questions();
            waiting.retain(meant);
            Ok(json!({"approvals": questions::list_questions(waiting, QuestionDetail::Whole)}))
        }
        "clawk.approve" => {
            let asked: AnswerParams = error::decode(method, params)?;
            let answer = match (asked.always, asked.for_session) {
                (true, _) => ApprovalAnswer::Always,
                (false, true) => ApprovalAnswer::ApproveForSession,
                (false, false) => ApprovalAnswer::Approve,
            };
            Ok(settle_approval(kernel, asked, answer, by).await)
        }
        "clawk.approvals.granted" => {
            let granted: Vec<Value> = kernel.standing_grants().iter().map(grant_json).collect();
            Ok(json!({"grants": granted}))
        }
        "clawk.approvals.revoke" => {
            let asked: RevokeParams = error::decode(method, params)?;
            let person = KnownPerson::admin("control", by);
            let revoked = kernel.revoke_grant(&asked.grant, &person).await;
            let revoked = revoked.map_err(|error| error::from_kernel(&error))?;
            Ok(json!({"revoked": revoked}))
        }
        "clawk.approvals.answered" => {
            let asked: HistoryParams = error::decode(method, params)?;
            let past = kernel.past_approvals(asked.limit).await;
            let past = past.map_err(|error| error::from_kernel(&error))?;
            let past: Vec<Value> = past
                .iter()
                .map(|past| {
                    json!({"request_id": past.request_id, "session": past.session, "tool": past.tool,
                        "answer": past.answer, "by": past.by, "channel": past.channel, "role": past.role,
                        "reason": past.reason, "at": past.at})
                })
                .collect();
            Ok(json!({"answered": past}))
        }
        "clawk.deny" => {
            Ok(settle_approval(kernel, error::decode(method, params)?, ApprovalAnswer::Deny, by).await)
        }
        _ => Err(unknown_order()),
    }
}

fn session_json(id: SessionId, door: &EntryPoint) -> Value {
    json!({"session": id, "door": door.name(), "who": door.sender()})
}

fn status_json(kernel: &Kernel) -> Value {
    let status = kernel.status();
    let info = kernel.agent_info();
    json!({
        "agent": info.name,
        "version": info.version,
        "state": status.state,
        "uptime_ms": status.uptime_ms,
        "conformance_level": format!("level-{}", kernel.conformance_level()),
        "approvals_pending": kernel.pending_questions().len(),
        "stops": kernel.active_stops(),
        "pid": std::process::id(),
    })
}

fn unknown_order() -> RpcError {
    RpcError::new(ErrorCode::MethodNotFound, "the control socket has no such method")
}

async fn settle_approval(kernel: &Kernel, asked: AnswerParams, answer: ApprovalAnswer, by: &str) -> Value {
    let reply = ApprovalReply {
        answer,
        breadth: if asked.folder {
            GrantScope::Folder
        } else {
            GrantScope::Exact
        },
        // Only the owner can open the socket.
        person: KnownPerson::admin("control", by),
        reason: asked.reason.clone(),
        seen: PreviewReceipt::Whole(asked.seen.clone()),
    };
    let Some(plan) = plan_of(kernel, &asked) else {
        // Steps were named, but no plan is known: the answer matches nothing.
        if asked.steps.is_some() {
            return json!({"acknowledged": false});
        }
        let reception = kernel.reply_to_question(&asked.request_id, reply).await;
        let unseen: Vec<&RequestId> = (reception == ReplyOutcome::Unseen)
            .then_some(&asked.request_id)
            .into_iter()
            .collect();
        return acknowledgement(reception == ReplyOutcome::Taken, &unseen).into();
    };
    let answered = kernel.reply_plan(&plan, asked.steps.as_deref(), &reply).await;
    let taken: Vec<u32> = answered
        .iter()
        .filter(|(_, reception)| *reception == ReplyOutcome::Taken)
        .map(|(number, _)| *number)
        .collect();
    let waiting: Vec<u32> = of_plan(kernel, &plan).map(|step| step.number).collect();
    let unseen = answered
        .iter()
        .filter(|(_, reception)| *reception == ReplyOutcome::Unseen);
    let unseen: Vec<u32> = unseen.map(|(number, _)| *number).collect();
    let asked_for = asked.steps.map_or(taken.len(), |steps| steps.len());
    let mut told = acknowledgement(!taken.is_empty() && taken.len() == asked_for, &unseen);
    told.extend([
        ("plan".to_owned(), json!(plan)),
        ("steps".to_owned(), json!(taken)),
        ("waiting".to_owned(), json!(waiting)),
    ]);
    told.into()
}

/// The answer's members. `unseen`: questions that stay open, because a folded part was not read.
fn acknowledgement(acknowledged: bool, unseen: &[impl serde::Serialize]) -> Map<String, Value> {
    let mut told = Map::from_iter([("acknowledged".to_owned(), json!(acknowledged))]);
    if !unseen.is_empty() {
        told.insert("unseen".to_owned(), json!(unseen));
    }
    told
}

/// The plan that an answer is for: named by its own id, or by the id of a step.
fn plan_of(kernel: &Kernel, asked: &AnswerParams) -> Option<RequestId> {
    let pending = kernel.pending_questions();
    let mut steps = pending
        .iter()
        .filter_map(|question| Some((&question.request_id, question.step.as_ref()?)));
    let found = steps.find(|(id, step)| {
        step.plan == asked.request_id || (asked.steps.is_some() && **id == asked.request_id)
    });
    found.map(|(_, step)| step.plan.clone())
}

fn of_plan(kernel: &Kernel, plan: &RequestId) -> impl Iterator<Item = ApprovalPlanStep> {
    let pending = kernel.pending_questions().into_iter();
    let steps = pending.filter_map(|question| question.step);
    steps.filter(move |step| step.plan == *plan)
}

fn grant_json(grant: &StandingGrant) -> Value {
    json!({
        "grant": grant.id,
        "tool": grant.tool,
        "lasting": grant.lasting.name(),
        "session": match grant.lasting {
            GrantLifetime::Session(session) => Some(session),
            GrantLifetime::Always => None,
        },
        "folder": grant.folder,
        "shown": grant.shown,
        "by": grant.by,
        "at": grant.at.to_string(),
    })
}
