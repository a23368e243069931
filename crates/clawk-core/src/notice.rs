//! The notices that a surface (terminal, channel, RPC client) gets while a session works.

use std::sync::Arc;

use clawk_proto::{MessageId, RequestId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::call_summary::TurnCallSummary;
use crate::ports::Usage;
use crate::sheet::CallPreview;
use crate::time::Timestamp;

/// A question to a person: may this call run?
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalQuestion {
    /// The call; what `Kernel::answer` takes.
    pub request_id: RequestId,
    /// Its session.
    pub session: SessionId,
    /// The tool.
    pub tool: String,
    /// Exactly what it will get.
    pub arguments: Map<String, Value>,
    /// What a person reads before they answer: what will happen, and every argument.
    pub sheet: Arc<CallPreview>,
    /// The rule that asks, or the autonomy.
    pub rule_id: Option<String>,
    /// Why it is asked.
    pub reason: String,
    /// Why each earlier layer and rule did not decide, for `why`.
    pub explanation: Vec<String>,
    /// When the question lapses, for people; by the wall clock of when it was put.
    pub expires_at: Timestamp,
    /// When it lapses, by the clock that no one can set: [`crate::time::Clock::monotonic_us`] of this process.
    pub until_us: u64,
    /// What happens then.
    pub default_if_timeout: &'static str,
    /// What it is expected to cost, as far as anything is known.
    pub cost: Option<String>,
    /// The folder that a standing grant may cover where the person wants more than this very call.
    pub folder: Option<std::path::PathBuf>,
    /// Which step of a plan it is; `None`: it is asked for itself.
    pub step: Option<ApprovalPlanStep>,
}

/// One of the calls that a model asked for in one answer, and that are put to a person together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalPlanStep {
    /// The plan; what `Kernel::reply_plan` takes.
    pub plan: RequestId,
    /// From 1, among all calls of the answer.
    pub number: u32,
    /// How many those are.
    pub of: u32,
    /// For people: the calls that this question is not about, and what becomes of them.
    pub beside: Vec<String>,
}

/// One question about several calls. Each step has its own id, grant and answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its id.
    pub id: RequestId,
    /// What waits for an answer, in the order in which it would run.
    pub steps: Vec<ApprovalQuestion>,
}

impl Plan {
    /// The steps among `questions`, plan by plan, in the order of the first of each; a question that is no step stands
    /// alone.
    #[must_use]
    pub fn group(questions: Vec<ApprovalQuestion>) -> Vec<WaitingApproval> {
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
                plan.steps.sort_by_key(ApprovalQuestion::number);
            }
        }
        all
    }

    /// The calls that it is not about; for people.
    #[must_use]
    pub fn beside(&self) -> &[String] {
        let first = self.steps.first().and_then(|first| first.step.as_ref());
        first.map_or(&[], |step| &step.beside)
    }
}

/// What waits: one call, or a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitingApproval {
    /// A call.
    One(Box<ApprovalQuestion>),
    /// Several.
    Plan(Plan),
}

impl ApprovalQuestion {
    /// Its number in its plan; 1 where it is asked for itself.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.step.as_ref().map_or(1, |step| step.number)
    }
}

/// What ended a turn (R40).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnStop {
    /// An answer.
    Answered,
    /// The model declined to answer.
    Refused,
    /// Somebody cancelled it.
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
    pub const fn why(self) -> Option<&'static str> {
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
    /// This call, and later ones of the same shape in this session: a standing grant (R13).
    ApproveForSession,
    /// This call, and later ones of the same shape until it is revoked; a rule is suggested to the operator.
    Always,
    /// It may not.
    Deny,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnEnd {
    /// The agent answered.
    Answered,
    /// The user cancelled.
    Cancelled,
    /// It could not be finished; the message lies in the dead-letter box. For people: why, and the cure.
    Failed(String),
}

/// One thing that happened. Text in it is what a person may see.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionNotice {
    /// A turn began.
    TurnStarted {
        /// The message it answers.
        message: MessageId,
    },
    /// A piece of the answer; may be dropped when the surface is slow, [`SessionNotice::Said`] has it all.
    Delta(String),
    /// A whole text of the agent.
    Said(String),
    /// So many notices did not fit into this watcher's queue: it read too slowly. The journal has what happened.
    Missed(u64),
    /// A provider attempt failed and another follows.
    Retrying {
        /// The provider that failed.
        provider: String,
        /// What it said.
        reason: String,
        /// The next attempt: after this wait, at this provider.
        wait_ms: u64,
        /// Its name.
        next: String,
    },
    /// A call was decided on.
    CallDecided {
        /// The call.
        request_id: RequestId,
        /// The tool.
        tool: String,
        /// What it gets.
        arguments: Map<String, Value>,
        /// `allow`, `audit-only`, `approved`, `deny`.
        verdict: String,
        /// The rule, if one decided.
        rule_id: Option<String>,
        /// What refused it, in the trace's word: `policy`, `sandbox`, `approval_denied` …; `None`: it runs.
        refused_by: Option<&'static str>,
    },
    /// A text was screened and something was found in it.
    Screened {
        /// Where: `arguments`, `answer`, `result`, `error`, `message`, `memory`, `peer`.
        place: &'static str,
        /// What was done: `redact`, `block`, `warn`.
        action: &'static str,
        /// What was found, by kind; never the text.
        kinds: Vec<String>,
    },
    /// A person is asked.
    Asking(Box<ApprovalQuestion>),
    /// A person is asked about several calls at once.
    Planned(Plan),
    /// A call ended.
    CallFinished {
        /// The call.
        request_id: RequestId,
        /// The tool.
        tool: String,
        /// It ran and failed, or did not run.
        is_error: bool,
        /// The first lines of what came out, bounded.
        summary: String,
        /// Wall time.
        duration_ms: u64,
        /// The sandbox level really obtained, or `built-in` or `remote` where none applies; empty when it did not run.
        level: String,
    },
    /// A call of a client's own tool, which the client runs; the turn ends with it.
    Handed(ClientCall),
    /// What the turn's calls came to, by the record; before its end, where there is something to say. With one line for people.
    Shown(TurnCallSummary, String),
    /// A limit is nearly used up; for people: which, how far, until when.
    Warned(String),
    /// Providers that could not be reached after the start; for people: which, why, and what becomes of messages.
    Unreachable(String),
    /// A turn ended.
    TurnEnded {
        /// The message it answered.
        message: MessageId,
        /// How.
        end: TurnEnd,
        /// What ended it.
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
