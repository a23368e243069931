//! `delegate`, `ask-peer` and `report`: how a model reaches its swarm. They are called by the one path, as every tool is.

use std::collections::BTreeSet;
use std::time::Duration;

use clawk_manifest::model::Tool;
use clawk_plan::ObtainedEnforcement;
use clawk_proto::content::ContentBlock;
use clawk_proto::method::TaskStatus;
use clawk_swarm::coord::{
    DelegatedTask, Kind, ReportReception, RunResult, SwarmTaskRefusal, TaskBrief, TaskConstraints, TaskId,
    TaskResult, derived,
};
use clawk_swarm::words;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Origin, SwarmTeam};
use crate::call::CallOrder;
use crate::error::KernelError;
use crate::hosts::runs::{self, AssignmentOutcome, SwarmAssignment};
use crate::member::Member;
use crate::ports::{RunError, RunOutcome};
use crate::services::KernelServices;
use clawk_proto::{ErrorCode, RequestId, SessionId};

/// Gives a task to a member, or to the whole swarm.
pub(crate) const DELEGATE: &str = "delegate";
/// Asks a peer.
pub(crate) const ASK: &str = "ask-peer";
/// Ends one's own task.
pub(crate) const REPORT: &str = "report";
/// Waiting ends with the run's own limits; this bounds what has none, milliseconds.
pub(crate) const WAIT_MS: u64 = 86_400_000;

/// Who calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SwarmToolCaller<'a> {
    pub(crate) calls: &'a KernelServices,
    pub(crate) session: SessionId,
    pub(crate) role: clawk_manifest::model::Role,
    /// The member and its task; none: the Claw in a turn of its own.
    pub(crate) member: Option<&'a Member>,
    pub(crate) request_id: &'a RequestId,
    pub(crate) rank: &'a CallOrder,
    /// Origins of the text in the context that asks.
    pub(crate) made_from: &'a BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DelegateArgs {
    task: String,
    to: Option<String>,
    input: Option<Value>,
    tools: Option<Vec<String>>,
    timeout_ms: Option<u64>,
    budget: Option<DelegateBudget>,
    wait: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DelegateBudget {
    tokens: Option<u64>,
    cost_usd: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskPeerArgs {
    to: String,
    question: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportArgs {
    status: TaskStatus,
    result: Value,
}

/// The tools as the catalog has them.
pub(crate) fn tool_declarations() -> [Tool; 3] {
    let text = |about: &str| json!({"type": "string", "minLength": 1, "description": about});
    let delegate = json!({"type": "object", "required": ["task"], "additionalProperties": false, "properties": {
        "task": text("What is to be done, in words."),
        "to": text("A member, an identity or a role; without it, whoever is free below you."),
        "input": {"description": "Structured input."},
        "tools": {"type": "array", "items": {"type": "string"}, "description": "At most these of your tools."},
        "timeout_ms": {"type": "integer", "minimum": 1, "description": "Of the whole task."},
        "budget": {"type": "object", "additionalProperties": false, "properties": {
            "tokens": {"type": "integer", "minimum": 1}, "cost_usd": {"type": "number", "minimum": 0}}},
        "wait": {"type": "boolean", "description": "Wait for the result; true by default. Else it comes later as a message."},
    }});
    let ask = json!({"type": "object", "required": ["to", "question"], "additionalProperties": false, "properties": {
        "to": text("The peer."), "question": text("What you want to know."),
    }});
    let report = json!({"type": "object", "required": ["status", "result"], "additionalProperties": false, "properties": {
        "status": {"enum": ["completed", "failed", "partial"], "description": "How your task ended."},
        "result": {"type": ["object", "string"], "description": "Its result."},
    }});
    let acts = json!({"readOnlyHint": false, "destructiveHint": false, "idempotentHint": true, "openWorldHint": true});
    let reads = json!({"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": true});
    [
        declare_tool(
            DELEGATE,
            "Gives a task to a member of your swarm and returns its result.",
            delegate,
            &acts,
        ),
        declare_tool(
            ASK,
            "Asks another member of your swarm and returns its answer.",
            ask,
            &reads,
        ),
        declare_tool(
            REPORT,
            "Ends your own task with this result, once.",
            report,
            &reads,
        ),
    ]
}

fn declare_tool(name: &str, about: &str, schema: Value, hints: &Value) -> Tool {
    Tool {
        name: name.to_owned(),
        version: None,
        labels: [("category".to_owned(), "swarm".to_owned())].into(),
        description: Some(about.to_owned()),
        input_schema: Some(schema),
        output_schema: None,
        sandbox_ref: None,
        policy_ref: None,
        mcp_source: None,
        annotations: hints.as_object().cloned().unwrap_or_default(),
        composite: false,
        skill_ref: None,
        timeout_ms: None,
        retry: None,
    }
}

fn structured_outcome(text: String, structured: Value, is_error: bool) -> RunOutcome {
    RunOutcome {
        content: vec![ContentBlock::text(text)],
        is_error,
        structured: Some(structured),
        obtained: ObtainedEnforcement::in_process("no-host-access"),
    }
}

fn refused_outcome(refusal: &SwarmTaskRefusal) -> RunOutcome {
    not_taken(refusal.code, refusal.reason, &refusal.message)
}

fn not_taken(code: i64, reason: &str, message: &str) -> RunOutcome {
    let error = json!({"error": {"code": code, "reason": reason}, "status": "failed"});
    structured_outcome(format!("not taken ({reason}): {message}"), error, true)
}

fn bad_arguments(error: &serde_json::Error) -> RunOutcome {
    let structured = json!({"error": {"code": -32602, "reason": "bad_arguments"}, "status": "failed"});
    structured_outcome(format!("bad arguments: {error}"), structured, true)
}

/// A task's result as its asker reads it.
fn task_outcome(result: &TaskResult) -> RunOutcome {
    let is_error = result.status == TaskStatus::Failed;
    let mut facts = json!({
        "task_id": result.task_id, "member": result.member, "status": result.status,
        "result": {"text": result.text}, "tokens": result.tokens, "cost_microusd": result.cost_microusd,
        "duration_ms": result.duration_ms, "attempts": result.attempts,
    });
    if let (Some(data), Some(Value::Object(inner))) = (&result.data, facts.get_mut("result")) {
        inner.insert("data".to_owned(), data.clone());
    }
    let mut text = words::mark_text(&result.member, &result.text);
    if let Some(fault) = &result.error {
        if let Value::Object(facts) = &mut facts {
            facts.insert(
                "error".to_owned(),
                json!({"code": fault.code, "reason": fault.reason}),
            );
        }
        text = format!("the task failed ({}): {}", fault.reason, fault.message);
    }
    structured_outcome(text, facts, is_error)
}

/// A run's result as the Claw reads it.
fn run_told(result: &RunResult) -> RunOutcome {
    let is_error = result.status == TaskStatus::Failed;
    let text = match &result.error {
        Some(fault) if is_error => format!("the swarm failed ({}): {}", fault.reason, fault.message),
        _ => words::mark_text(&result.swarm, &result.text),
    };
    structured_outcome(text, json!(result), is_error)
}

/// The tools of the asker that the task may use: its own wish within what the asker has.
fn tools_of(member: Option<&Member>, wished: Option<Vec<String>>) -> Option<Vec<String>> {
    let own = member.and_then(|member| member.tools.clone());
    match (own, wished) {
        (Some(own), Some(wished)) => Some(wished.into_iter().filter(|tool| own.contains(tool)).collect()),
        (own, wished) => wished.or(own),
    }
}

/// Millionths of a dollar; what can't be counted is no money.
fn usd_to_microusd(usd: f64) -> u64 {
    clawk_policy::micro_usd(usd).unwrap_or(0)
}

impl SwarmTeam {
    /// The names of these tools that a turn is offered.
    pub(crate) fn offered_names(member: Option<&Member>) -> Vec<&'static str> {
        let Some(member) = member else {
            return vec![DELEGATE];
        };
        let mut names = Vec::new();
        if !member.below.is_empty() {
            names.push(DELEGATE);
        }
        if !member.askable.is_empty() {
            names.push(ASK);
        }
        if member.kind == Kind::Work {
            names.push(REPORT);
        }
        names
    }

    /// Runs one of them.
    ///
    /// # Errors
    /// It was cancelled, or the agent stopped before the result came.
    pub(crate) async fn call(
        &self,
        tool: &str,
        calling: SwarmToolCaller<'_>,
        arguments: &Map<String, Value>,
        cancel: &CancellationToken,
    ) -> Result<RunOutcome, RunError> {
        let arguments = Value::Object(arguments.clone());
        calling.rank.wait_for_turn(cancel).await?;
        let run = || derived(calling.request_id, "run");
        let asker = calling.member.map_or_else(run, |member| member.task.clone());
        self.note_asker(&asker, calling.made_from);
        match tool {
            DELEGATE => match serde_json::from_value::<DelegateArgs>(arguments) {
                Ok(wanted) => self.call_delegate(calling, wanted, cancel).await,
                Err(error) => Ok(bad_arguments(&error)),
            },
            ASK => match serde_json::from_value::<AskPeerArgs>(arguments) {
                Ok(asked) => self.call_ask(calling, asked, cancel).await,
                Err(error) => Ok(bad_arguments(&error)),
            },
            _ => match serde_json::from_value::<ReportArgs>(arguments) {
                Ok(report) => self.call_report(calling, &report).await,
                Err(error) => Ok(bad_arguments(&error)),
            },
        }
    }

    async fn call_delegate(
        &self,
        calling: SwarmToolCaller<'_>,
        wanted: DelegateArgs,
        cancel: &CancellationToken,
    ) -> Result<RunOutcome, RunError> {
        let wait = wanted.wait.unwrap_or(true);
        let brief = TaskBrief {
            description: wanted.task,
            input: wanted.input,
        };
        let wish = TaskConstraints {
            tools: tools_of(calling.member, wanted.tools),
            timeout_ms: wanted.timeout_ms,
            tokens: wanted.budget.as_ref().and_then(|budget| budget.tokens),
            cost_microusd: wanted
                .budget
                .and_then(|budget| budget.cost_usd)
                .map(usd_to_microusd),
        };
        let Some(member) = calling.member else {
            return self
                .call_run(calling, brief, wanted.to.as_deref(), (wish, wait), cancel)
                .await;
        };
        let task = derived(calling.request_id, "task");
        let wanted = DelegatedTask {
            task: task.clone(),
            brief,
            to: wanted.to,
            wish,
            wait,
        };
        let given = self.delegate_task(&member.task, wanted);
        calling.rank.mark_done();
        match given {
            Err(refusal) => Ok(refused_outcome(&refusal)),
            Ok(_later) if !wait => {
                let facts = json!({"task_id": task, "status": "submitted"});
                Ok(structured_outcome(
                    "submitted; its report comes as a message".to_owned(),
                    facts,
                    false,
                ))
            }
            Ok(result) => await_result(result, cancel)
                .await
                .map(|result| task_outcome(&result)),
        }
    }

    /// A run that the Claw begins in a turn of its own.
    async fn call_run(
        &self,
        calling: SwarmToolCaller<'_>,
        brief: TaskBrief,
        to: Option<&str>,
        (wish, wait): (TaskConstraints, bool),
        cancel: &CancellationToken,
    ) -> Result<RunOutcome, RunError> {
        if !wait || wish != TaskConstraints::default() {
            let refusal = SwarmTaskRefusal {
                code: -32602,
                reason: "not_for_a_run",
                message: "`tools`, `timeout_ms`, `budget` and `wait: false` are for tasks of members; a run has the limits of the Swarm".to_owned(),
            };
            return Ok(refused_outcome(&refusal));
        }
        let run: TaskId = derived(calling.request_id, "run");
        let mut origin = Origin::from_session(calling.session, calling.role);
        let lent = match runs::reserve_run(calling.calls, self, &run, &mut origin) {
            Ok(lent) => lent,
            Err(error) => {
                calling.rank.mark_done();
                return Ok(not_taken(
                    ErrorCode::QuotaExceeded.code(),
                    "quota",
                    &error.to_string(),
                ));
            }
        };
        let given = SwarmAssignment {
            run,
            brief,
            to: to.map(str::to_owned),
            wish: TaskConstraints::default(),
            origin,
            asked: None,
        };
        let taken = runs::give_run(calling.calls, self, given).await;
        calling.rank.mark_done();
        let result = match taken {
            Ok(AssignmentOutcome::Open(ended)) => await_result(ended, cancel).await,
            Ok(AssignmentOutcome::Ended(result)) => {
                if let Some(lent) = lent {
                    let settled = lent.settle_once(calling.calls, self, &result).await;
                    settled.map_err(|error| RunError::Unavailable(error.to_string()))?;
                }
                return Ok(run_told(&result));
            }
            Err(KernelError::Swarm {
                code,
                reason,
                message,
                ..
            }) => return Ok(not_taken(code, &reason, &message)),
            Err(KernelError::RequestIdReused(_)) => {
                let code = ErrorCode::InvalidParams.code();
                return Ok(not_taken(
                    code,
                    "task_id_reused",
                    "another task has this `task_id`",
                ));
            }
            // It may be taken yet.
            Err(error) => {
                if let Some(lent) = lent {
                    lent.settle(calling.calls, self, None);
                }
                return Err(RunError::Unknown(error.to_string()));
            }
        };
        if let Some(lent) = lent {
            lent.settle(calling.calls, self, result.as_ref().ok());
        }
        result.map(|result| run_told(&result))
    }

    async fn call_ask(
        &self,
        calling: SwarmToolCaller<'_>,
        asked: AskPeerArgs,
        cancel: &CancellationToken,
    ) -> Result<RunOutcome, RunError> {
        let Some(member) = calling.member else {
            return Ok(structured_outcome(
                "only a member of a swarm has peers".to_owned(),
                json!({}),
                true,
            ));
        };
        let task = derived(calling.request_id, "task");
        let given = self.ask_peer(&member.task, task, &asked.to, asked.question);
        calling.rank.mark_done();
        match given {
            Err(refusal) => Ok(refused_outcome(&refusal)),
            Ok(result) => {
                let result = await_result(result, cancel).await?;
                let outcome = task_outcome(&result);
                Ok(RunOutcome {
                    structured: Some(json!({"member": result.member, "text": result.text})),
                    ..outcome
                })
            }
        }
    }

    async fn call_report(
        &self,
        calling: SwarmToolCaller<'_>,
        report: &ReportArgs,
    ) -> Result<RunOutcome, RunError> {
        let Some(member) = calling.member else {
            return Ok(structured_outcome(
                "you work on no task that could be reported".to_owned(),
                json!({}),
                true,
            ));
        };
        let mut met = ReportReception::Unknown;
        let kept = self.queue_decision(None, |coord, _| {
            let (reception, effects) =
                coord.accept_report(&member.task, Some(&member.name), report.status, &report.result);
            met = reception;
            Ok::<_, std::convert::Infallible>(effects)
        });
        let Ok(durable) = kept;
        if !matches!(durable.await, Ok(Ok(()))) {
            return Err(RunError::Unavailable("the report can't be recorded".to_owned()));
        }
        let reason = match met {
            ReportReception::Taken => {
                return Ok(structured_outcome(
                    "reported; your task ends with this turn".to_owned(),
                    json!({"acknowledged": true}),
                    false,
                ));
            }
            ReportReception::Duplicate => "already_reported",
            other => other.reason().unwrap_or("unknown_task"),
        };
        Ok(structured_outcome(
            format!("not taken: {reason}"),
            json!({"acknowledged": false, "reason": reason}),
            true,
        ))
    }
}

/// Waits for a result, as long as the call may.
async fn await_result<T>(result: oneshot::Receiver<T>, cancel: &CancellationToken) -> Result<T, RunError> {
    tokio::select! {
        biased;
        result = result => result.map_err(|_| RunError::Cancelled), // silent-ok: the swarm has ended
        () = cancel.cancelled() => Err(RunError::Cancelled),
        () = tokio::time::sleep(Duration::from_millis(WAIT_MS)) => Err(RunError::Unknown("no result came".to_owned())),
    }
}
