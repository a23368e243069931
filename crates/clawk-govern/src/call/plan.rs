//! One approval request for a plan: the calls of one model answer that need a person, shown together before the first of them runs.
//!
//! Nothing here allows a call to run. A step is an ordinary approval request with its own id, exact grant and expiry, made before
//! its call arrives. The call finds it like one that an earlier run of the agent left open.

use std::path::PathBuf;

use clawk_policy::{Approval, Effect, Verdict};
use clawk_proto::RequestId;

use super::approval::OpenApproval;
use super::ask::ApprovalRequest;
use super::decide::PolicyInput;
use super::grant::works_on;
use super::record::CallRecord;
use super::standing::GrantBasis;
use super::{
    CallGovernor, CallerContext, Request, check_arguments, check_audit, guard_call, judge_call, reach,
    screen, spend, tool_of,
};
use crate::catalog::{CatalogEntry, DescribedTool};
use crate::error::CallError;
use crate::notice::{ApprovalPlanStep, ApprovalQuestion, Plan};
use crate::witness::ExactGrant;

/// Largest number of steps in one request. Further calls make their own requests.
const MAX_STEPS: usize = 32;

/// Longest reason shown for a step that will be refused, in characters.
const MAX_REASON_CHARS: usize = 300;

/// A call of the model's answer.
#[derive(Debug)]
pub struct PlannedCall {
    /// Number of the step, from 1.
    pub number: u32,
    /// The caller.
    pub caller: CallerContext,
    /// The call.
    pub request: Request,
}

/// The forecast for a call, as far as possible before the calls in front of it have run.
enum CallForecast<'a> {
    Asks(Box<PlanStepQuestion<'a>>),
    /// It runs without an approval.
    Runs,
    /// A person will be asked later. Holds the reason why not now.
    Later(String),
}

struct PlanStepQuestion<'a> {
    number: u32,
    record: CallRecord<'a>,
    question: ApprovalQuestion,
    grant: ExactGrant,
    verdict: Verdict,
    approval: Approval,
}

/// Files that earlier steps may change, with the step's number.
type TouchedFiles = Vec<(u32, PathBuf)>;

/// Makes the request durably, if two calls or more need a person.
///
/// # Errors
/// The journal can't be written. Then nobody is asked.
pub async fn ask_plan(
    calls: &CallGovernor,
    wanted: &[PlannedCall],
    of: u32,
) -> Result<Option<Plan>, CallError> {
    let (mut asks, mut beside, mut touched) = (Vec::new(), Vec::new(), TouchedFiles::new());
    for wanted in wanted.iter().take(MAX_STEPS) {
        let tool: String = wanted.request.tool.chars().take(64).collect();
        let number = wanted.number;
        match forecast_call(calls, wanted, &mut touched).await {
            Ok(CallForecast::Asks(step)) => asks.push(step),
            Ok(CallForecast::Runs) => beside.push(format!("step {number}: `{tool}` needs no question")),
            Ok(CallForecast::Later(why)) => {
                beside.push(format!(
                    "step {number}: `{tool}` is asked about in its turn: {why}"
                ));
            }
            // The path will refuse the call and tell the model. So the person is not asked.
            Err(error) => beside.push(refusal_note(calls, wanted, &tool, &error)),
        }
    }
    if asks.len() < 2 {
        return Ok(None);
    }
    let id = RequestId::from(calls.clock().new_uuid());
    let (mut drafts, mut open, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for step in asks {
        let PlanStepQuestion {
            number,
            mut record,
            mut question,
            grant,
            verdict,
            approval,
        } = *step;
        question.step = Some(ApprovalPlanStep {
            plan: id.clone(),
            number,
            of,
            beside: beside.clone(),
        });
        record.add_question(&question, &grant, &verdict, approval);
        open.push(OpenApproval {
            question: question.clone(),
            grant,
            request_hash: record.request_hash,
            thread: *record.thread(),
            reply: None,
        });
        steps.push(question);
        drafts.extend(record.into_drafts());
    }
    // Written completely or not at all, so that no half plan is recorded.
    calls.scribe.write(drafts).await?;
    calls.desk.reopen_questions(open);
    Ok(Some(Plan { id, steps }))
}

/// Returns the text beside a step that can't run, and for which nobody is asked.
fn refusal_note(calls: &CallGovernor, wanted: &PlannedCall, tool: &str, error: &CallError) -> String {
    let number = wanted.number;
    // The reason may quote arguments. If they hold a secret, it is kept out of the request.
    if !screen::finds_nothing(calls, &wanted.request) {
        return format!("step {number}: `{tool}` will be refused");
    }
    let reason: String = error.to_string().chars().take(MAX_REASON_CHARS).collect();
    format!("step {number}: `{tool}` will be refused: {reason}")
}

/// Returns what would end the call now, whatever a person answers: a stop, a used-up budget, a full rate limit, the sandbox's
/// static checks. Nothing is reserved.
fn stands_against(
    calls: &CallGovernor,
    wanted: &PlannedCall,
    tool: &CatalogEntry,
    described: &DescribedTool,
) -> Result<(), CallError> {
    let PlannedCall { caller, request, .. } = wanted;
    drop(guard_call(calls, caller, described, request, &calls.life.stop)?);
    drop(spend::reserve_call(calls, caller, request, tool, described)?);
    calls.rates.has_room(&request.tool, calls.scribe.now())?;
    calls
        .runner
        .preflight_later(&tool.name, &request.arguments, &tool.plan, &calls.workdir)
        .map_err(CallError::Sandbox)?;
    if described.reaches_network() {
        reach::check_urls(&described.input_schema, &request.arguments, &tool.plan)
            .map_err(CallError::Sandbox)?;
    }
    Ok(())
}

/// Runs the checks of the path that change nothing, in its order.
///
/// # Errors
/// The call will be refused.
async fn forecast_call<'a>(
    calls: &'a CallGovernor,
    wanted: &'a PlannedCall,
    touched: &mut TouchedFiles,
) -> Result<CallForecast<'a>, CallError> {
    let PlannedCall {
        number,
        caller,
        request,
    } = wanted;
    let gate = super::atlas_gate(calls, caller, request).await?;
    let tool = tool_of(calls, caller, request, gate.as_ref()).await?;
    let described = calls.describe_tool(&tool).await?;
    check_arguments(&described, request)?;
    let mut record = CallRecord::new(calls, caller, request);
    record.set_description(&described);
    let case = PolicyInput {
        calls,
        caller,
        request,
        tool: &tool,
        described: &described,
        basis: GrantBasis::default(),
    };
    let (verdict, _) = judge_call(case, gate.as_ref(), &mut record).await?;
    check_audit(calls, request, &verdict)?;
    stands_against(calls, wanted, &tool, &described)?;
    let workdir = &calls.workdir;
    let files = works_on(&request.arguments, &described.input_schema, workdir);
    let before = touched.iter().find(|(_, path)| files.contains(path));
    let before = before.map(|(step, path)| format!("it works on `{}`, as step {step} does", path.display()));
    if !described.read_only() {
        touched.extend(files.into_iter().map(|path| (*number, path)));
    }
    let Effect::Ask(approval) = verdict.effect else {
        return Ok(CallForecast::Runs);
    };
    // The preview could be wrong, and the grant would be void.
    if let Some(why) = before {
        return Ok(CallForecast::Later(why));
    }
    if !screen::finds_nothing(calls, request) {
        return Ok(CallForecast::Later("screening changes it".to_owned()));
    }
    let seat = calls.desk.register_call(&request.request_id);
    let asking = ApprovalRequest {
        calls,
        caller,
        request,
        tool: &tool,
        described: &described,
        seat: &seat,
        verdict: &verdict,
        cancel: &calls.life.stop,
    };
    let grant = asking.observe_grant(&record).await?;
    let question = asking.build_question(approval).await;
    Ok(CallForecast::Asks(Box::new(PlanStepQuestion {
        number: *number,
        record,
        question,
        grant,
        verdict,
        approval,
    })))
}
