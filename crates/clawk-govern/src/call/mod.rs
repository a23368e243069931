//! The call path: every effect, from every entry point, goes through `call` (promise 1).
//!
//! Read `path` from top to bottom: it follows R12's order. Nothing can run without a [`Permit`], and only this module makes one,
//! after the decision is in the journal (promise 2).
//!
//! Long because a call has one path, and it is read from top to bottom.

mod answers;
mod approval;
mod ask;
mod calls;
mod decide;
mod egress;
mod foretell;
mod grant;
mod leads;
mod pend;
mod permit;
mod plan;
mod ports;
mod rank;
mod reach;
mod reconcile;
mod record;
mod reopen;
mod screen;
mod spend;
mod standing;
mod suggest;
mod tool_runner;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clawk_manifest::model::{AutonomyLevel, Role};
use clawk_policy::{Effect, ValueSources, Verdict};
use clawk_proto::RequestId;
use clawk_proto::method::ToolCallResult;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use answers::PastApproval;
pub use answers::{
    past_approvals, reply_here, reply_plan, reply_to_question, revoke_grant, withdraw_questions,
};
pub use approval::{ApprovalRegistry, PendingCall};
pub use approval::{ApprovalReply, GrantScope, ReplyOutcome};
use ask::ApprovalRequest;
pub use calls::CallGovernor;
use decide::PolicyInput;
pub use foretell::predict_approval;
use grant::CallAuthorization;
pub use permit::Permit;
use permit::made_from;
pub use plan::{PlannedCall, ask_plan as plan};
pub use ports::{KernelToolCall, KernelTools, SessionOwner, TaskRights};
pub use rank::CallOrder;
pub use reconcile::reconcile_effects;
use record::CallRecord;
pub use reopen::{
    follow_grant, follow_revocation, open_questions, question_of, reopen_approvals, restore_approvals,
    restore_standing,
};
use standing::GrantBasis;
pub use standing::{GrantLifetime, StandingGrant};
pub use suggest::append_suggestion as suggest;
pub use suggest::{FILE as SUGGESTED_RULES, suggested_rule};
pub use tool_runner::ToolRunner;

use crate::author::TextAuthor;
use crate::carp::{self, AtlasGate};
use crate::catalog::{CatalogEntry, DescribedTool};
use crate::dedup::{Claim, DedupAnswer, DedupMethod, RemoteClaimOutcome, answer_key};
use crate::door::Origin;
use crate::error::{CallError, DeniedBy};
use crate::event::Thread;
use crate::ports::{
    AnswerKey, BoxFuture, JournalError, ProvenanceCollector, RunError, RunOutcome, UnmetCondition,
};
use crate::purse::BudgetAccount;
use crate::retry_policy::backoff_ms;
use crate::roles;
use crate::skill_rights::SkillCeiling;
use crate::stop;
use crate::watch::NoticeSender;

/// Time limit for the answer of a call that another host has begun.
const ELSEWHERE: std::time::Duration = std::time::Duration::from_secs(900);
/// Interval at which that answer is looked for.
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);

/// A requested call, from any entry point.
#[derive(Debug, Clone)]
pub struct Request {
    /// Name of the tool or of an action.
    pub tool: String,
    /// The arguments.
    pub arguments: Map<String, Value>,
    /// Id of the request; the same id is executed at most once (R19).
    pub request_id: RequestId,
    /// `context.identity`: the identity that the caller claims. It is recorded, but never trusted.
    pub identity: String,
    /// `context.sandbox` and `context.policy`. They can only narrow the call's rights (R15).
    pub sandbox: Option<String>,
    /// See [`Request::sandbox`].
    pub policy: Option<String>,
    /// The CARP resolution under which the caller makes the call, if there is one.
    pub under: Option<carp::ResolutionContext>,
    /// JSON Pointers of arguments that were converted to the types in the schema, before any check.
    pub converted: Vec<String>,
}

/// The caller, and the chain in which the call is recorded.
#[derive(Debug, Clone)]
pub struct CallerContext {
    /// The chain in which the call is recorded.
    pub thread: Thread,
    /// The entry point: `rpc`, `cli`, `peer` …
    pub door: &'static str,
    /// The turn that made the call, if any.
    pub turn: Option<Uuid>,
    /// The model's id of the call.
    pub call_id: Option<String>,
    /// Permission limits of the active skills.
    pub ceilings: Vec<SkillCeiling>,
    /// Nesting depth of composite tools.
    pub depth: u8,
    /// The sender's role (CKP §5.3).
    pub role: Role,
    /// The client that follows the call.
    pub notices: NoticeSender,
    /// The call does not wait for an approval. The caller is told that the request is open (CRA).
    pub pends: bool,
    /// The budget that pays for the call.
    pub purse: BudgetAccount,
    /// The context of the call, with its provenance.
    pub context: Arc<Context>,
    /// The rights of the task that the turn works on, if it works on one.
    pub member: Option<Arc<dyn TaskRights>>,
    /// The call's position among concurrent calls of one answer.
    pub rank: CallOrder,
}

/// The context in which a call is made.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// Sources of text in it that is not its user's own (R46).
    pub taint: Vec<String>,
    /// The texts in which argument values are looked up (R51); empty if no rule needs them.
    pub values: ValueSources,
    /// The origin of the answered message; `None`: a client makes the call itself.
    pub origin: Option<Origin>,
    /// The requester: the author of the message, or the client that makes the call itself. `None`: clawk itself.
    pub requester: Option<TextAuthor>,
    /// Collects the untrusted files that its calls could read.
    pub read: ProvenanceCollector,
}

impl Context {
    /// Returns the provenance of everything made in this context: the sources of its text, and the message's sender if they are
    /// below admin.
    pub fn output_origins(&self) -> BTreeSet<String> {
        let own = self.requester.as_ref().and_then(TextAuthor::own_origin);
        self.taint.iter().cloned().chain(own).collect()
    }
}

impl CallerContext {
    /// Returns the autonomy level: the stricter of the Claw's and the member's.
    pub fn effective_autonomy(&self, calls: &CallGovernor) -> AutonomyLevel {
        let claw = calls.manifest.identity.autonomy;
        self.member
            .as_ref()
            .map_or(claw, |member| member.effective_autonomy(claw))
    }
}

/// Runs one governed call. Boxed because composite tools call it recursively.
///
/// # Errors
/// The call did not run, or was interrupted (R20). Every outcome is in the journal when this returns.
pub fn call<'a>(
    calls: &'a CallGovernor,
    caller: &'a CallerContext,
    mut request: Request,
    cancel: &'a CancellationToken,
) -> BoxFuture<'a, Result<ToolCallResult, CallError>> {
    screen::redact_names(calls, &mut request);
    // Registered before the first await, so that an answer sent immediately after the call finds it (R18).
    let seat = calls.desk.register_call(&request.request_id);
    Box::pin(async move {
        // A running turn may finish its calls while the agent drains, but nothing new begins.
        let working = if caller.turn.is_some() {
            calls.life.join_work()
        } else {
            calls
                .life
                .begin_work()
                .map_err(|state| CallError::NotReady { state })?
        };
        // The last known event in which another host records that it did not run this call.
        let mut passed = 0;
        let outcome = loop {
            match start_here(calls, caller, &request, &seat, cancel).await {
                CallStart::Here(outcome) => break outcome,
                CallStart::Elsewhere(asked) => {
                    match wait_for_remote(calls, asked, &request.request_id, passed).await? {
                        RemoteCallOutcome::Answer(answer) => break answer,
                        RemoteCallOutcome::NotRun { row } => passed = row,
                    }
                }
            }
        };
        drop(working);
        outcome
    })
}

/// Where a call began.
enum CallStart {
    /// On this host, or on none. Holds its answer.
    Here(Result<ToolCallResult, CallError>),
    /// On another host, with this key and the same request digest.
    Elsewhere((AnswerKey, clawk_proto::Digest)),
}

/// Runs the call from the claim to the answer, unless another host has begun the same call.
async fn start_here(
    calls: &CallGovernor,
    caller: &CallerContext,
    request: &Request,
    seat: &PendingCall<'_>,
    cancel: &CancellationToken,
) -> CallStart {
    let started_us = calls.clock().monotonic_us();
    let mut record = CallRecord::new(calls, caller, request);
    let key = answer_key(DedupMethod::Call, &request.request_id);
    let journal = &**calls.scribe.journal();
    let reused = || {
        CallStart::Here(Err(CallError::RequestIdReused {
            request_id: request.request_id.clone(),
        }))
    };
    let guard = match calls.dedup.claim_request(key, record.request_hash, journal).await {
        Ok(Claim::Fresh(guard)) => guard,
        Ok(Claim::Answered(DedupAnswer::Call(answer))) => return CallStart::Here(answer),
        Ok(
            Claim::Answered(DedupAnswer::Memory(_) | DedupAnswer::Delegated(_) | DedupAnswer::Message(_))
            | Claim::Reused,
        ) => return reused(),
        Err(error) => return CallStart::Here(Err(error.into())),
    };
    // An open approval request belongs to the call that made it (R19).
    let asked = calls.desk.open_request(&request.request_id);
    if asked.is_some_and(|asked| asked != record.request_hash) {
        return reused();
    }
    let outcome = run_path(calls, caller, request, seat, &mut record, cancel).await;
    let outcome = screen::screen_outcome(calls, caller, &mut record, outcome, cancel).await;
    let outcome = record.record_outcome(outcome, started_us).await;
    if matches!(
        outcome,
        Err(CallError::Journal(JournalError::Unmet(UnmetCondition::Claimed)))
    ) {
        return CallStart::Elsewhere((key, record.request_hash));
    }
    if let (Some(member), Err(error)) = (&caller.member, &outcome) {
        member.note_call(error, record.has_side_effects());
    }
    record.notify_outcome(&outcome, started_us).await;
    // A call that the journal refused before anything ran may be repeated. Any other call has had its answer.
    let pending = matches!(
        outcome,
        Err(CallError::Journal(_) | CallError::ApprovalPending { .. })
    );
    let no_answer = matches!(&outcome, Err(error) if error.is_no_answer());
    if !no_answer && (record.has_run() || !(record.left_open() || pending)) {
        guard.publish_answer(DedupAnswer::Call(outcome.clone()));
    }
    if !record.left_open() {
        calls.desk.close_question(&request.request_id);
    }
    CallStart::Here(outcome)
}

/// The result of a call that another host began.
enum RemoteCallOutcome {
    Answer(Result<ToolCallResult, CallError>),
    /// That host's agent ended before the call ran, by the event in this row.
    NotRun {
        row: u64,
    },
}

/// Waits for the answer of the same call on another host, which is also this call's answer. If that host is lost, the host that
/// takes over records its calls as `unknown`. Events up to row `passed` are older than that host's attempt.
async fn wait_for_remote(
    calls: &CallGovernor,
    (key, request_hash): (AnswerKey, clawk_proto::Digest),
    id: &RequestId,
    passed: u64,
) -> Result<RemoteCallOutcome, CallError> {
    let journal = &**calls.scribe.journal();
    let until = tokio::time::Instant::now() + ELSEWHERE;
    loop {
        match calls.dedup.recorded_outcome(key, request_hash, journal).await? {
            Some(RemoteClaimOutcome::Answered(Claim::Answered(DedupAnswer::Call(answer)))) => {
                return Ok(RemoteCallOutcome::Answer(answer));
            }
            Some(RemoteClaimOutcome::Answered(_)) => {
                return Err(CallError::RequestIdReused {
                    request_id: id.clone(),
                });
            }
            Some(RemoteClaimOutcome::NotRun { row }) if row > passed => {
                return Ok(RemoteCallOutcome::NotRun { row });
            }
            Some(RemoteClaimOutcome::NotRun { .. }) | None => {}
        }
        if calls.life.stop.is_cancelled() || tokio::time::Instant::now() >= until {
            return Err(CallError::Journal(JournalError::Unmet(UnmetCondition::Claimed)));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Runs the path from the checks to the outcome, in R12's order.
async fn run_path(
    calls: &CallGovernor,
    caller: &CallerContext,
    request: &Request,
    seat: &PendingCall<'_>,
    record: &mut CallRecord<'_>,
    cancel: &CancellationToken,
) -> Result<RunOutcome, CallError> {
    let gate = atlas_gate(calls, caller, request).await?;
    let tool = tool_of(calls, caller, request, gate.as_ref()).await?;
    let described = calls.describe_tool(&tool).await?;
    check_arguments(&described, request)?;
    let screened = screen::screen_arguments(calls, caller, record, request).await?;
    let request = screened.as_ref();
    let arguments = &request.arguments;
    record.set_description(&described);
    let held = guard_call(calls, caller, &described, request, cancel)?;
    let cancel = &held.cancel;
    let case = PolicyInput {
        calls,
        caller,
        request,
        tool: &tool,
        described: &described,
        basis: GrantBasis::default(),
    };
    let (verdict, asked) = judge_call(case, gate.as_ref(), record).await?;
    check_audit(calls, request, &verdict)?;
    record.hold_budget(spend::reserve_call(calls, caller, request, &tool, &described)?);
    calls.rates.take_call(&request.tool, calls.scribe.now())?;
    calls
        .runner
        .preflight_call(&tool.name, arguments, &tool.plan, &calls.workdir)
        .map_err(CallError::Sandbox)?;
    if described.reaches_network() {
        reach::check_urls(&described.input_schema, arguments, &tool.plan).map_err(CallError::Sandbox)?;
    }
    let (tool, described, verdict) = (&*tool, &*described, &verdict);
    let asking = ApprovalRequest {
        calls,
        caller,
        request,
        tool,
        described,
        seat,
        verdict,
        cancel,
    };
    let leave = match verdict.effect {
        Effect::Ask(_) if caller.pends => asking.find_or_ask(record).await?,
        Effect::Ask(_) => {
            // While a person decides, others may use the reserved budget.
            record.let_go();
            let leave = asking.ask_person(record).await?;
            record.hold_budget(spend::reserve_call(calls, caller, request, tool, described)?);
            leave
        }
        Effect::Allow | Effect::AuditOnly | Effect::Deny => {
            asking.settle_unasked()?;
            CallAuthorization::by_policy()
        }
    };
    if let Some(gate) = &gate {
        record.record_charge(gate.charge_execution(&calls.carp, arguments, asked)?);
    }
    record.record_decision(verdict, &leave.by).await?;
    let limit = gate
        .as_ref()
        .map_or(tool.timeout_ms, |gate| gate.timeout_ms.min(tool.timeout_ms));
    let idempotent = described.is_idempotent() || gate.as_ref().is_some_and(|gate| gate.idempotent);
    let outcome = run(&asking, &leave, (limit, idempotent), record).await;
    let outcome = left_open(&asking, outcome, record)?;
    Ok(match &gate {
        Some(gate) => gate.judge_result(outcome),
        None => outcome,
    })
}

/// Leaves a composite call open that a stop interrupted and that has a checkpoint. It continues with its turn after the next start.
fn left_open(
    at: &ApprovalRequest<'_>,
    outcome: Result<RunOutcome, CallError>,
    record: &mut CallRecord<'_>,
) -> Result<RunOutcome, CallError> {
    let in_turn = at.caller.turn.is_some() && at.caller.depth == 0;
    let stopped = at.calls.life.stop.is_cancelled();
    if outcome.is_err() && at.tool.skill.is_some() && in_turn && stopped && at.calls.keeps_checkpoints {
        record.leave_open();
    }
    outcome
}

/// Runs the Atlases' gate before a call, if the call names an action.
async fn atlas_gate(
    calls: &CallGovernor,
    caller: &CallerContext,
    request: &Request,
) -> Result<Option<AtlasGate>, CallError> {
    let (name, under) = (request.tool.as_str(), request.under.as_ref());
    AtlasGate::for_call(
        (&calls.carp, &calls.catalog),
        caller.thread.session,
        (name, under),
    )
    .await
}

/// Returns the combined verdict of all layers, including the Atlases, unless it is a refusal; and whether the Atlases require an
/// approval.
async fn judge_call(
    case: PolicyInput<'_>,
    gate: Option<&AtlasGate>,
    record: &mut CallRecord<'_>,
) -> Result<(Verdict, bool), CallError> {
    let case = PolicyInput {
        basis: case.grant_basis().await,
        ..case
    };
    let PolicyInput { calls, request, .. } = case;
    let mut places = case.resolve_judged_paths().await;
    let atlas = gate
        .map(|gate| gate.judge_call(&calls.carp, &request.arguments))
        .transpose()?;
    if let (Some(gate), Some(atlas)) = (gate, &atlas) {
        record.record_atlas_judgement(gate, atlas);
    }
    let ours = atlas.as_ref().map(|atlas| atlas.verdict.clone());
    let judged = case.decide_call(record.parameters, places.as_ref(), ours);
    if let Some(places) = &places {
        record.apart = Arc::new(case.excluded_paths(places, judged.verdict()));
    }
    // A person's grant is bound to the call's resolved paths.
    if places.is_none() && matches!(judged.verdict().effect, Effect::Ask(_)) {
        places = Some(case.resolve_paths(BTreeMap::new()).await);
    }
    record.led = places.as_ref().and_then(|places| case.resolved_digest(places));
    let verdict = judged
        .require_permitted(&request.tool)
        .map_err(|error| match &atlas {
            Some(atlas) => atlas.reword_error(error),
            None => error,
        })?;
    Ok((verdict, atlas.is_some_and(|atlas| atlas.asks)))
}

/// Returns the tool. Asks a server for its tools if the name may be one of them.
async fn tool_of(
    calls: &CallGovernor,
    caller: &CallerContext,
    request: &Request,
    gate: Option<&AtlasGate>,
) -> Result<Arc<CatalogEntry>, CallError> {
    let name = gate.map_or(&request.tool, |gate| &gate.tool);
    // A name that a rule always refuses is refused before a server is asked.
    if calls.engine.always_denies_by_name(&request.tool).is_none() {
        calls.catalog.prepare_tool(name, &*calls.runner).await?;
    }
    resolve_tool(calls, caller, request, gate)
}

/// Returns the tool with the narrowing names of the request applied (R15, R17).
fn resolve_tool(
    calls: &CallGovernor,
    caller: &CallerContext,
    request: &Request,
    gate: Option<&AtlasGate>,
) -> Result<Arc<CatalogEntry>, CallError> {
    // A rule that names an action denies it, whatever the name of the tool that runs it.
    if gate.is_some()
        && let Some(verdict) = calls.engine.always_denies_by_name(&request.tool)
    {
        return Err(decide::denied_error(&request.tool, &verdict, DeniedBy::Policy));
    }
    let name = gate.map_or(&request.tool, |gate| &gate.tool);
    let of_kernel = || {
        let entry = calls.catalog.kernel_tool(name);
        entry.filter(|entry| calls.kernel_tools.offers_tool(entry, caller))
    };
    let of_skill = || {
        let invokes = caller.turn.is_some() && caller.depth == 0 && roles::may_trigger(caller.role);
        invokes.then(|| calls.catalog.of_skill(name)).flatten()
    };
    let found = calls.catalog.get(name).or_else(of_kernel);
    let Some(tool) = found.or_else(of_skill) else {
        return Err(match calls.engine.denies_by_name(&request.tool) {
            Some(verdict) => decide::denied_error(&request.tool, &verdict, DeniedBy::Policy),
            None => calls.catalog.unknown_tool(&request.tool),
        });
    };
    let unknown = |member: &str, name: &str| CallError::UnknownReference {
        member: member.to_owned(),
        name: name.chars().take(64).collect(),
    };
    if let Some(name) = &request.policy
        && !calls.engine.has_policy(name)
    {
        return Err(unknown("policy", name));
    }
    match &request.sandbox {
        Some(name) if name == clawk_policy::engine::DENY_ALL => Err(decide::denied_error(
            &request.tool,
            &Verdict::deny("the sandbox `deny-all` denies everything"),
            DeniedBy::Policy,
        )),
        Some(name) => match calls.catalog.narrow_to_sandbox(&tool, name) {
            None => Err(unknown("sandbox", name)),
            Some(Ok(tool)) => Ok(tool),
            Some(Err(why)) => Err(decide::denied_error(
                &request.tool,
                &Verdict::deny(why),
                DeniedBy::Policy,
            )),
        },
        None => Ok(tool),
    }
}

/// Puts the call under the emergency stop: from here on a stop refuses or ends it.
fn guard_call<'a>(
    calls: &'a CallGovernor,
    caller: &CallerContext,
    described: &DescribedTool,
    request: &Request,
    cancel: &CancellationToken,
) -> Result<stop::StopGuard<'a>, CallError> {
    calls
        .brake
        .guard_work(caller.thread.session, described.stopped_by(), cancel)
        .map_err(|stop| stop::stopped_error(&request.tool, &stop))
}

/// Refuses a call that must be audited while its audit can't be written.
fn check_audit(calls: &CallGovernor, request: &Request, verdict: &Verdict) -> Result<(), CallError> {
    let owed = verdict.audit || verdict.effect == Effect::AuditOnly;
    if owed && !calls.audit_writable.load(Ordering::Acquire) {
        let reason = "it must be audited, and the audit's destination takes no records now";
        return Err(decide::denied_error(
            &request.tool,
            &Verdict {
                rule_id: verdict.rule_id.clone(),
                policy: verdict.policy.clone(),
                ..Verdict::deny(reason)
            },
            DeniedBy::Policy,
        ));
    }
    Ok(())
}

fn check_arguments(described: &DescribedTool, request: &Request) -> Result<(), CallError> {
    described.check_arguments(&request.tool, &Value::Object(request.arguments.clone()))
}

/// Who allowed a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallApprover {
    /// The policy layers, without a person.
    Policy,
    /// A person.
    Person(String),
    /// Nobody: the rule says that no answer means yes (R16).
    Silence,
}

/// Runs an authorized call, with one permit per attempt. It is repeated only if the tool or its action is declared idempotent.
#[expect(
    clippy::too_many_lines,
    reason = "the end of the one path, read downward: to split it would hide the order"
)]
async fn run(
    at: &ApprovalRequest<'_>,
    leave: &CallAuthorization,
    (timeout_ms, idempotent): (u64, bool),
    record: &mut CallRecord<'_>,
) -> Result<RunOutcome, CallError> {
    let ApprovalRequest {
        calls,
        caller,
        request,
        tool,
        described,
        cancel,
        ..
    } = *at;
    let retry = tool.spec.retry.clone().filter(|_| idempotent);
    let attempts = retry.as_ref().map_or(1, |retry| retry.max_attempts.max(1));
    // The end of the previous attempt.
    let mut ended = None;
    loop {
        if cancel.is_cancelled() {
            return ended.unwrap_or_else(|| Err(not_begun(calls, caller, request)));
        }
        if let Some(member) = caller.member.as_ref().filter(|_| !described.read_only()) {
            // The call may wait long for the bus. A stop ends the wait, and nothing has run.
            tokio::select! {
                biased;
                () = cancel.cancelled() => continue,
                begun = member.may_begin(&request.tool) => begun?,
            }
        }
        record.attempts += 1;
        let permit = Permit {
            tool: Arc::clone(&tool.name),
            arguments: request.arguments.clone(),
            digest: record.parameters,
            plan: Arc::clone(&tool.plan),
            workdir: calls.workdir.clone(),
            timeout_ms: record.timeout_ms(timeout_ms),
            request_id: request.request_id.clone(),
            session: caller.thread.session,
            marks: Arc::clone(&leave.marks),
            apart: Arc::clone(&record.apart),
            connections: record.connections.clone(),
            read_only: described.read_only(),
            made_from: made_from(caller, tool, described, &request.arguments),
            sources: record.sources.clone(),
        };
        let outcome = if calls.kernel_tools.runs_tool(tool) {
            let call = KernelToolCall {
                caller,
                tool,
                permit,
                purse: record.inner_account(),
                cancel,
            };
            calls.kernel_tools.run_tool(call).await
        } else {
            calls.runner.run(permit, cancel).await
        };
        let again = record.attempts < attempts
            && !cancel.is_cancelled()
            && match &outcome {
                Ok(ran) => ran.is_error,
                Err(RunError::Unavailable(_) | RunError::Unknown(_) | RunError::Timeout { .. }) => true,
                Err(
                    RunError::Sandbox(_) | RunError::Cancelled | RunError::Changed(_) | RunError::NotBegun(_),
                ) => false,
            };
        if let (Err(RunError::NotBegun(_)), Some(before)) = (&outcome, ended.take()) {
            return before;
        }
        let outcome = outcome
            .map(|ran| described.enforce_output_schema(ran))
            .map_err(|error| run_failure(&tool.name, error));
        if let (true, Some(retry)) = (again, &retry) {
            let wait = backoff_ms(retry.backoff, 1000, record.attempts, calls.clock().random_u64());
            tokio::select! {
                biased;
                () = tokio::time::sleep(std::time::Duration::from_millis(calls.clock().patience_ms(wait))) => {
                    // The preconditions of the first attempt must still hold for the next one.
                    if at.is_still_valid(record, leave).await {
                        ended = Some(outcome);
                        continue;
                    }
                }
                () = cancel.cancelled() => {}
            }
        }
        return outcome;
    }
}

/// Returns the error for a stop before the call began. If the agent ends, a client may send its own call again; a turn continues
/// after the next start, and its model is told.
fn not_begun(calls: &CallGovernor, caller: &CallerContext, request: &Request) -> CallError {
    if caller.turn.is_none() && calls.life.stop.is_cancelled() {
        let state = calls.life.state();
        return CallError::NotReady { state };
    }
    CallError::Cancelled {
        tool: request.tool.clone(),
    }
}

fn run_failure(tool: &str, error: RunError) -> CallError {
    let tool = tool.to_owned();
    match error {
        RunError::Sandbox(refusal) => CallError::Sandbox(refusal),
        RunError::Timeout { timeout_ms, .. } => CallError::Timeout { tool, timeout_ms },
        RunError::Unavailable(reason) => CallError::Unavailable { tool, reason },
        RunError::Unknown(reason) => CallError::Unknown { tool, reason },
        RunError::NotBegun(reason) => CallError::NotBegun { tool, reason },
        RunError::Changed(changed) => CallError::ApprovalVoid { tool, changed },
        RunError::Cancelled => CallError::Unknown {
            tool,
            reason: "cancelled while it ran".to_owned(),
        },
    }
}
