//! Questions to people. A question frees its call's place (R25), and clients that asked for it are notified (R18a).

use std::collections::HashSet;

use clawk_kernel::{ApprovalQuestion, Plan, WaitingApproval};
use clawk_proto::RequestId;
use clawk_proto::rpc::write_notification;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use super::ServedRun;
use super::lane::ConnectionLimits;
use crate::transport::outbox::Outbox;

/// The notification's name. The specification does not define it, so only clients that asked for it get it.
const PENDING: &str = "claw.tool.pending";

/// Follows the questions of the current run in `pulse`, until the connection ends.
pub(crate) async fn follow_questions(
    mut pulse: watch::Receiver<Option<ServedRun>>,
    lanes: &ConnectionLimits,
    outbox: &Outbox,
) {
    loop {
        let run = pulse.borrow_and_update().clone();
        let Some(run) = run else {
            if pulse.changed().await.is_err() {
                return;
            }
            continue;
        };
        let mut questions = run.kernel.subscribe_questions();
        let mut announced = HashSet::new();
        // Subscribe first, then list: a question asked in between is seen twice but sent once.
        tell_all(&run, lanes, outbox, &mut announced).await;
        loop {
            tokio::select! {
                biased;
                changed = pulse.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return, // silent-ok: the connection is over
                },
                asked = questions.recv() => match asked {
                    Ok(question) => announce_question(&run, lanes, outbox, &mut announced, &question).await,
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        tell_all(&run, lanes, outbox, &mut announced).await;
                    }
                    Err(broadcast::error::RecvError::Closed) => {
                        if pulse.changed().await.is_err() {
                            return;
                        }
                        break;
                    }
                },
            }
        }
    }
}

async fn tell_all(
    run: &ServedRun,
    lanes: &ConnectionLimits,
    outbox: &Outbox,
    announced: &mut HashSet<RequestId>,
) {
    let pending = run.kernel.pending_questions();
    let still: HashSet<&RequestId> = pending.iter().map(|question| &question.request_id).collect();
    let plans: HashSet<&RequestId> = pending
        .iter()
        .filter_map(|question| question.step.as_ref().map(|step| &step.plan))
        .collect();
    announced.retain(|id| still.contains(id) || plans.contains(id));
    for question in &pending {
        lanes.park_call(&question.request_id);
    }
    for question in &pending {
        announce_question(run, lanes, outbox, announced, question).await;
    }
}

async fn announce_question(
    run: &ServedRun,
    lanes: &ConnectionLimits,
    outbox: &Outbox,
    announced: &mut HashSet<RequestId>,
    question: &ApprovalQuestion,
) {
    lanes.park_call(&question.request_id);
    if !run.notify_questions {
        return;
    }
    // A plan is announced once, as a whole. Each step is announced again when its own call waits for it.
    let plan = question.step.as_ref().map(|step| &step.plan);
    let facts = match plan.filter(|plan| announced.insert((*plan).clone())) {
        Some(plan) => {
            announced.insert(question.request_id.clone());
            let steps = run.kernel.pending_questions().into_iter();
            let steps = steps.filter(|other| other.step.as_ref().is_some_and(|step| step.plan == *plan));
            list_questions(steps.collect(), QuestionDetail::Whole)
                .into_iter()
                .next()
        }
        None => announced
            .insert(question.request_id.clone())
            .then(|| question_facts(question, QuestionDetail::Whole)),
    };
    let Some(facts) = facts else { return };
    outbox.room().await;
    let mut line = Vec::new();
    if write_notification(&mut line, PENDING, &facts) {
        line.push(b'\n');
        outbox.take(&mut line);
    }
}

/// How much of a question's text is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuestionDetail {
    /// The short text, and how much it hides.
    Short,
    /// The whole text too.
    Whole,
}

/// The open questions. A plan is one question: the facts of its first step, and under `plan` its id and all steps.
pub(crate) fn list_questions(questions: Vec<ApprovalQuestion>, text: QuestionDetail) -> Vec<Value> {
    Plan::group_questions(questions)
        .iter()
        .map(|asked| match asked {
            WaitingApproval::One(question) => question_facts(question, text),
            WaitingApproval::Plan(plan) => {
                let facts = |step| question_facts(step, text);
                let mut told = plan.steps.first().map_or(Value::Null, facts);
                let steps: Vec<Value> = plan.steps.iter().map(facts).collect();
                if let Some(told) = told.as_object_mut() {
                    told.insert(
                        "plan".to_owned(),
                        json!({"id": plan.id, "beside": plan.uncovered_calls(), "steps": steps}),
                    );
                }
                told
            }
        })
        .collect()
}

/// A question as JSON, for the wire and the control socket. A reader of `text` has seen the whole text; `digest` is its SHA-256.
pub(crate) fn question_facts(question: &ApprovalQuestion, text: QuestionDetail) -> Value {
    let sheet = &question.sheet;
    let mut facts = json!({
        "request_id": question.request_id,
        "session": question.session,
        "tool": question.tool,
        "arguments": question.arguments,
        "preview": sheet.short(),
        "hidden_bytes": sheet.hidden_bytes(),
        "digest": sheet.digest(),
        "rule_id": question.rule_id,
        "reason": question.reason,
        "explanation": question.explanation,
        "expires_at": question.expires_at.to_string(),
        "default_if_timeout": question.default_if_timeout,
        "cost": question.cost,
        "folder": question.folder,
        "step": question.step.as_ref().map(|step| json!({"plan": step.plan, "step": step.number, "of": step.of})),
    });
    if let (QuestionDetail::Whole, Some(facts)) = (text, facts.as_object_mut()) {
        facts.insert("text".to_owned(), sheet.whole().into());
    }
    facts
}
