//! The notices that a user interface (terminal, channel, RPC client) gets while a session works.

use std::sync::Arc;

use clawk_proto::{MessageId, RequestId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::call_summary::TurnCallSummary;
use crate::ports::Usage;
use crate::sheet::CallPreview;
use crate::time::Timestamp;

/// An approval request: may this call run?
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalQuestion {
    /// The call; what `Kernel::answer_question` takes.
    pub request_id: RequestId,
    /// Its session.
    pub session: SessionId,
    /// The tool.
    pub tool: String,
    /// The exact arguments of the call.
    pub arguments: Map<String, Value>,
    /// The preview that a person reads: what will happen, and every argument.
    pub sheet: Arc<CallPreview>,
    /// The rule that requires the approval; `None`: the autonomy level does.
    pub rule_id: Option<String>,
    /// Why the approval is needed.
    pub reason: String,
    /// Why each earlier layer and rule did not decide, for the `why` command.
    pub explanation: Vec<String>,
    /// Time of expiry for people, by the wall clock at the time of the request.
    pub expires_at: Timestamp,
    /// Time of expiry by the monotonic clock of this process: [`crate::time::Clock::monotonic_us`].
    pub until_us: u64,
    /// The outcome if nobody answers.
    pub default_if_timeout: &'static str,
    /// The expected cost, if known.
    pub cost: Option<String>,
    /// The folder that a standing grant may cover.
    pub folder: Option<std::path::PathBuf>,
    /// Its step in a plan; `None`: a separate request.
    pub step: Option<ApprovalPlanStep>,
}

/// One of several calls in a model answer that a person is asked about together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalPlanStep {
    /// The plan; what `Kernel::reply_plan` takes.
    pub plan: RequestId,
    /// Number of the step, from 1, among all calls of the answer.
    pub number: u32,
    /// Number of all calls of the answer.
    pub of: u32,
    /// Lines for people about the calls that are not part of the request, and what becomes of them.
    pub beside: Vec<String>,
}

/// One approval request for several calls. Each step has its own id, grant and answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its id.
    pub id: RequestId,
    /// The steps that wait for an answer, in their order of execution.
    pub steps: Vec<ApprovalQuestion>,
}

impl Plan {
    /// Groups requests by plan, in the order of each plan's first step. A request without a plan stays single.
    #[must_use]
    pub fn group_questions(questions: Vec<ApprovalQuestion>) -> Vec<WaitingApproval> {
        let mut all: Vec<WaitingApproval> = Vec::new();
        for question in questions {
            let Some(id) = question.step.as_ref().map(|step| step.plan.clone()) else {
                all.push(WaitingApproval::One(Box::new(question)));
                continue;
            };
            let known = all.iter_mut().find_map(|asked| match asked {
                WaitingApproval::Plan(plan) if plan.id == id => Some(plan),
                WaitingApproval::Plan(_) | WaitingApproval::One(_) => None,
            });
            match known {
                Some(plan) => plan.steps.push(question),
                None => all.push(WaitingApproval::Plan(Self {
                    id,
                    steps: vec![question],
                })),
            }
        }
        for asked in &mut all {
            if let WaitingApproval::Plan(plan) = asked {
                plan.steps.sort_by_key(ApprovalQuestion::step_number);
            }
        }
        all
    }

    /// Returns the lines about calls that are not part of the request.
    #[must_use]
    pub fn uncovered_calls(&self) -> &[String] {
        let first = self.steps.first().and_then(|first| first.step.as_ref());
        first.map_or(&[], |step| &step.beside)
    }
}

/// A waiting approval: one call, or a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitingApproval {
    /// One call.
    One(Box<ApprovalQuestion>),
    /// Several calls.
    Plan(Plan),
}

impl ApprovalQuestion {
    /// Returns its number in the plan; 1 without a plan.
    #[must_use]
    pub fn step_number(&self) -> u32 {
        self.step.as_ref().map_or(1, |step| step.number)
    }
}

/// The reason for a turn's end (R40).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnStop {
    /// The model answered.
    Answered,
    /// The model declined to answer.
    Refused,
    /// It was cancelled.
    Cancelled,
    /// A budget was used up.
    Budget,
    /// The loop guard, or the limit of model answers in a turn.
    Stopped,
    /// It could not be finished.
    Failed,
}

impl TurnStop {
    /// The word in the record of a message that could not be answered; none: it failed.
    pub const fn stop_reason(self) -> Option<&'static str> {
        match self {
            Self::Budget => Some("budget"),
            Self::Stopped => Some("stopped"),
            Self::Answered | Self::Refused | Self::Cancelled | Self::Failed => None,
        }
    }
}

/// A person's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalAnswer {
    /// This call may run.
    Approve,
    /// This call may run, and later calls that match it in this session: a standing grant (R13).
    ApproveForSession,
    /// This call may run, and later calls that match it until the grant is revoked. A rule is suggested to the operator.
    Always,
    /// The call may not run.
    Deny,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnEnd {
    /// The agent answered.
    Answered,
    /// The user cancelled.
    Cancelled,
    /// It could not be finished; the message is in the dead-letter box. Holds the reason and a fix, for people.
    Failed(String),
}

/// One notice. Its text may be shown to people.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionNotice {
    /// A turn began.
    TurnStarted {
        /// The message it answers.
        message: MessageId,
    },
    /// A piece of the answer. It may be dropped if the client is slow; [`SessionNotice::Said`] has the complete text.
    Delta(String),
    /// A complete text of the agent.
    Said(String),
    /// What the model thought before it went on, without secrets: for the process owner's terminal alone, and no part of the answer. May
    /// be dropped when the surface is slow.
    Thought(String),
    /// So many notices did not fit into this watcher's queue: it read too slowly. The journal has what happened.
    Missed(u64),
    /// A provider attempt failed and another follows.
    Retrying {
        /// The provider that failed.
        provider: String,
        /// The provider's error.
        reason: String,
        /// Delay before the next attempt, in milliseconds.
        wait_ms: u64,
        /// The provider of the next attempt.
        next: String,
    },
    /// A call was decided on.
    CallDecided {
        /// The call.
        request_id: RequestId,
        /// The tool.
        tool: String,
        /// Its arguments.
        arguments: Map<String, Value>,
        /// `allow`, `audit-only`, `approved`, `deny`.
        verdict: String,
        /// The rule that decided, if any.
        rule_id: Option<String>,
        /// The refusing part, as a word of the trace: `policy`, `sandbox`, `approval_denied` …; `None`: the call runs.
        refused_by: Option<&'static str>,
    },
    /// Screening found something in a text.
    Screened {
        /// The kind of text: `arguments`, `answer`, `result`, `error`, `message`, `memory`, `peer`.
        place: &'static str,
        /// The action: `redact`, `block`, `warn`.
        action: &'static str,
        /// The kinds of findings; never the text.
        kinds: Vec<String>,
    },
    /// A person is asked for approval.
    Asking(Box<ApprovalQuestion>),
    /// A person is asked for approval of several calls at once.
    Planned(Plan),
    /// A call ended.
    CallFinished {
        /// The call.
        request_id: RequestId,
        /// The tool.
        tool: String,
        /// The call failed, or did not run.
        is_error: bool,
        /// The first lines of the result, limited in length.
        summary: String,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The sandbox level that was obtained; `built-in` or `remote` if none applies; empty if the call did not run.
        level: String,
    },
    /// A call of a client's own tool. The client runs it, and the turn ends.
    Handed(ClientCall),
    /// Summary of the turn's recorded calls, before its end, with one line for people.
    Shown(TurnCallSummary, String),
    /// A limit is nearly used up. Holds the limit, the used part and the reset time, for people.
    Warned(String),
    /// Providers could not be reached after the start. Holds the names, the reasons and the consequence for messages, for people.
    Unreachable(String),
    /// A turn ended.
    TurnEnded {
        /// The message it answered.
        message: MessageId,
        /// The result.
        end: TurnEnd,
        /// The reason for its end.
        stop: TurnStop,
        /// Tokens of the whole turn.
        usage: Usage,
    },
}

/// A call of a client's own tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCall {
    /// JSON: an object.
    pub arguments: String,
    /// The model's id for it.
    pub id: String,
    /// The client's tool.
    pub name: String,
}
