//! Aggregation: combines several answers into one outcome, or decides that a head must be asked (SWARM §4).

use clawk_manifest::model::AggregationStrategy as Strategy;
use clawk_proto::method::TaskStatus;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::{MemberAnswer, SwarmFault, TaskAnswer, fenced_block};
use crate::merge::{MergeConflict, merge_answers};
use crate::vote::{self, BallotCount};

/// What a head is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadPurpose {
    /// Write the result.
    Decide,
    /// Choose an answer by its number.
    Choose,
}

/// A head's choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgeChoice {
    /// The member that chose.
    pub member: String,
    /// The number of the answer, from 1.
    pub best: usize,
    /// The reason in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The outcome of several answers, or of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskOutcome {
    /// Whether it is complete.
    pub status: TaskStatus,
    /// The answer.
    pub answer: TaskAnswer,
    /// The votes, for `majority-vote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub votes: Option<Vec<BallotCount>>,
    /// The choice, for `best-of-n`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeChoice>,
    /// The conflicts, for `merge`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<MergeConflict>,
    /// The head's last text, if it is not the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_text: Option<String>,
    /// Why it is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<SwarmFault>,
}

impl TaskOutcome {
    /// A complete outcome with this answer.
    #[must_use]
    pub fn from_answer(answer: TaskAnswer) -> Self {
        Self {
            status: TaskStatus::Completed,
            answer,
            votes: None,
            judge: None,
            conflicts: Vec::new(),
            head_text: None,
            fault: None,
        }
    }

    /// An outcome without an answer.
    #[must_use]
    pub fn from_fault(fault: SwarmFault) -> Self {
        Self {
            status: TaskStatus::Failed,
            fault: Some(fault),
            ..Self::from_answer(TaskAnswer::default())
        }
    }

    /// Marks the outcome of a run that was cut short: existing answers count, but it is partial.
    fn cut_short(mut self, short: Option<&SwarmFault>) -> Self {
        if let (TaskStatus::Completed, Some(fault)) = (self.status, short) {
            self.status = TaskStatus::Partial;
            self.fault = Some(fault.clone());
        }
        self
    }
}

/// The result of an aggregation.
#[derive(Debug, Clone, PartialEq)]
pub enum CombineResult {
    /// The answers were combined.
    Done(Box<TaskOutcome>),
    /// A head must be asked about the answers that count.
    Ask(HeadPurpose),
}

impl CombineResult {
    fn from_outcome(outcome: TaskOutcome) -> Self {
        Self::Done(Box::new(outcome))
    }
}

/// The answers that count, in order.
#[must_use]
pub fn counting_answers(strategy: Strategy, said: &[MemberAnswer]) -> Vec<&MemberAnswer> {
    let counts = |status| match status {
        TaskStatus::Completed => true,
        TaskStatus::Partial => matches!(strategy, Strategy::Merge | Strategy::LeaderDecides),
        TaskStatus::Failed => false,
    };
    said.iter().filter(|said| counts(said.status)).collect()
}

/// Combines the answers of tasks that have all ended. `short`: why the run was cut short, if it was.
#[must_use]
pub fn combine_answers(
    strategy: Strategy,
    said: &[MemberAnswer],
    short: Option<&SwarmFault>,
) -> CombineResult {
    let counting = counting_answers(strategy, said);
    let Some(first) = counting.first() else {
        let none = || SwarmFault::task_failed("no_answer", "no member gave an answer that counts");
        return CombineResult::from_outcome(TaskOutcome::from_fault(short.cloned().unwrap_or_else(none)));
    };
    let alone = counting.len() == 1;
    let outcome = match strategy {
        Strategy::MajorityVote if said.len() > 1 => majority_outcome(&counting, said.len()),
        Strategy::Chain => chain_outcome(said, first, short.is_some()),
        Strategy::Merge if !alone => {
            let (answer, conflicts) = merge_answers(&counting);
            TaskOutcome {
                conflicts,
                ..TaskOutcome::from_answer(answer)
            }
        }
        Strategy::LeaderDecides | Strategy::BestOfN if !alone => {
            if let Some(fault) = short {
                return CombineResult::from_outcome(TaskOutcome::from_fault(fault.clone()));
            }
            return CombineResult::Ask(match strategy {
                Strategy::BestOfN => HeadPurpose::Choose,
                _ => HeadPurpose::Decide,
            });
        }
        Strategy::MajorityVote | Strategy::Merge | Strategy::LeaderDecides | Strategy::BestOfN => {
            TaskOutcome {
                status: first.status,
                ..TaskOutcome::from_answer(first.answer.clone())
            }
        }
    };
    CombineResult::from_outcome(outcome.cut_short(short))
}

fn majority_outcome(cast: &[&MemberAnswer], asked: usize) -> TaskOutcome {
    let (votes, winner) = vote::count_ballots(cast, asked);
    let outcome = match winner.and_then(|at| cast.get(at)) {
        Some(said) => TaskOutcome::from_answer(said.answer.clone()),
        None => TaskOutcome::from_fault(SwarmFault::task_failed(
            "no_majority",
            format!(
                "no ballot has more than half of the {} cast by {asked} asked",
                cast.len()
            ),
        )),
    };
    TaskOutcome {
        votes: Some(votes),
        ..outcome
    }
}

/// The last task's answer. A failed task ends the chain. If the run is cut short, the last complete answer counts.
fn chain_outcome(said: &[MemberAnswer], first: &MemberAnswer, short: bool) -> TaskOutcome {
    let whole = said
        .iter()
        .take_while(|said| said.status == TaskStatus::Completed);
    let last = whole.last().unwrap_or(first);
    match said
        .iter()
        .find(|said| !short && said.status != TaskStatus::Completed)
    {
        Some(broken) => TaskOutcome::from_fault(SwarmFault::task_failed(
            "chain_broken",
            format!("the task of `{}` did not end completed", broken.member),
        )),
        None => TaskOutcome::from_answer(last.answer.clone()),
    }
}

/// Parses a head's choice among `n` answers: the number, from 1, and the reason. `None`: unreadable or out of range.
#[must_use]
pub fn parse_verdict(text: &str, n: usize) -> Option<(usize, Option<String>)> {
    let trimmed = text.trim();
    let parsed = |text: &str| serde_json::from_str::<Value>(text.trim()).ok(); // silent-ok: then it is unreadable
    let value = parsed(trimmed).or_else(|| parsed(fenced_block(trimmed)?))?;
    let best = value.as_u64().or_else(|| value.get("best")?.as_u64())?;
    let best = usize::try_from(best).ok()?; // silent-ok: out of range, as below
    let why = value.get("why").and_then(Value::as_str).map(str::to_owned);
    (1..=n).contains(&best).then_some((best, why))
}

/// The outcome of a head's choice.
#[must_use]
pub fn chosen_outcome(
    counting: &[&MemberAnswer],
    member: &str,
    best: usize,
    why: Option<String>,
) -> TaskOutcome {
    match best.checked_sub(1).and_then(|at| counting.get(at)) {
        Some(said) => TaskOutcome {
            judge: Some(JudgeChoice {
                member: member.to_owned(),
                best,
                why,
            }),
            ..TaskOutcome::from_answer(said.answer.clone())
        },
        None => TaskOutcome::from_fault(no_verdict(member)),
    }
}

/// The fault of a head that did not choose.
#[must_use]
pub fn no_verdict(member: &str) -> SwarmFault {
    SwarmFault::task_failed(
        "no_verdict",
        format!("`{member}` was asked twice which answer is best and named none"),
    )
}

#[cfg(test)]
mod tests;
