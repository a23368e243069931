//! Aggregation: several answers become one outcome, or a head has to be asked (SWARM §4).

use clawk_manifest::model::AggregationStrategy as Strategy;
use clawk_proto::method::TaskStatus;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::{MemberAnswer, SwarmFault, TaskAnswer, fenced};
use crate::merge::{MergeConflict, merge};
use crate::vote::{self, BallotCount};

/// What a head is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadPurpose {
    /// Its text is the result.
    Decide,
    /// Its number names the result.
    Choose,
}

/// Who chose, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgeChoice {
    /// Who.
    pub member: String,
    /// The number of the answer, from 1.
    pub best: usize,
    /// In its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What became of several answers, or of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskOutcome {
    /// Whether it is whole.
    pub status: TaskStatus,
    /// The one answer.
    pub answer: TaskAnswer,
    /// `majority-vote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub votes: Option<Vec<BallotCount>>,
    /// `best-of-n`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeChoice>,
    /// `merge`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<MergeConflict>,
    /// The head's own last text, where it is not the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_text: Option<String>,
    /// Why it is not whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<SwarmFault>,
}

impl TaskOutcome {
    /// A whole answer, as it is.
    #[must_use]
    pub fn completed(answer: TaskAnswer) -> Self {
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

    /// No answer.
    #[must_use]
    pub fn failed(fault: SwarmFault) -> Self {
        Self {
            status: TaskStatus::Failed,
            fault: Some(fault),
            ..Self::completed(TaskAnswer::default())
        }
    }

    /// The same, of a run that was cut short: what is there counts, and is partial.
    fn cut(mut self, short: Option<&SwarmFault>) -> Self {
        if let (TaskStatus::Completed, Some(fault)) = (self.status, short) {
            self.status = TaskStatus::Partial;
            self.fault = Some(fault.clone());
        }
        self
    }
}

/// What follows from the answers.
#[derive(Debug, Clone, PartialEq)]
pub enum CombineResult {
    /// They are one.
    Done(Box<TaskOutcome>),
    /// A head is to be asked about those that count.
    Ask(HeadPurpose),
}

impl CombineResult {
    fn done(outcome: TaskOutcome) -> Self {
        Self::Done(Box::new(outcome))
    }
}

/// The answers that count, in their order.
#[must_use]
pub fn counting(strategy: Strategy, said: &[MemberAnswer]) -> Vec<&MemberAnswer> {
    let counts = |status| match status {
        TaskStatus::Completed => true,
        TaskStatus::Partial => matches!(strategy, Strategy::Merge | Strategy::LeaderDecides),
        TaskStatus::Failed => false,
    };
    said.iter().filter(|said| counts(said.status)).collect()
}

/// Makes one of the answers of tasks that have all ended; `short`: why the run was cut short, if it was.
#[must_use]
pub fn combine(strategy: Strategy, said: &[MemberAnswer], short: Option<&SwarmFault>) -> CombineResult {
    let counting = counting(strategy, said);
    let Some(first) = counting.first() else {
        let none = || SwarmFault::failed("no_answer", "no member gave an answer that counts");
        return CombineResult::done(TaskOutcome::failed(short.cloned().unwrap_or_else(none)));
    };
    let alone = counting.len() == 1;
    let outcome = match strategy {
        Strategy::MajorityVote if said.len() > 1 => majority(&counting, said.len()),
        Strategy::Chain => chain(said, first, short.is_some()),
        Strategy::Merge if !alone => {
            let (answer, conflicts) = merge(&counting);
            TaskOutcome {
                conflicts,
                ..TaskOutcome::completed(answer)
            }
        }
        Strategy::LeaderDecides | Strategy::BestOfN if !alone => {
            if let Some(fault) = short {
                return CombineResult::done(TaskOutcome::failed(fault.clone()));
            }
            return CombineResult::Ask(match strategy {
                Strategy::BestOfN => HeadPurpose::Choose,
                _ => HeadPurpose::Decide,
            });
        }
        Strategy::MajorityVote | Strategy::Merge | Strategy::LeaderDecides | Strategy::BestOfN => {
            TaskOutcome {
                status: first.status,
                ..TaskOutcome::completed(first.answer.clone())
            }
        }
    };
    CombineResult::done(outcome.cut(short))
}

fn majority(cast: &[&MemberAnswer], asked: usize) -> TaskOutcome {
    let (votes, winner) = vote::count(cast, asked);
    let outcome = match winner.and_then(|at| cast.get(at)) {
        Some(said) => TaskOutcome::completed(said.answer.clone()),
        None => TaskOutcome::failed(SwarmFault::failed(
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

/// The last link's answer; a failed link ends the chain, unless it is cut short: then the last whole one counts.
fn chain(said: &[MemberAnswer], first: &MemberAnswer, short: bool) -> TaskOutcome {
    let whole = said
        .iter()
        .take_while(|said| said.status == TaskStatus::Completed);
    let last = whole.last().unwrap_or(first);
    match said
        .iter()
        .find(|said| !short && said.status != TaskStatus::Completed)
    {
        Some(broken) => TaskOutcome::failed(SwarmFault::failed(
            "chain_broken",
            format!("the task of `{}` did not end completed", broken.member),
        )),
        None => TaskOutcome::completed(last.answer.clone()),
    }
}

/// A head's choice among `n` answers: its number, from 1, and why. `None`: not readable or out of range.
#[must_use]
pub fn verdict(text: &str, n: usize) -> Option<(usize, Option<String>)> {
    let trimmed = text.trim();
    let parsed = |text: &str| serde_json::from_str::<Value>(text.trim()).ok(); // silent-ok: then it is unreadable
    let value = parsed(trimmed).or_else(|| parsed(fenced(trimmed)?))?;
    let best = value.as_u64().or_else(|| value.get("best")?.as_u64())?;
    let best = usize::try_from(best).ok()?; // silent-ok: out of range, as below
    let why = value.get("why").and_then(Value::as_str).map(str::to_owned);
    (1..=n).contains(&best).then_some((best, why))
}

/// The outcome that a head has chosen.
#[must_use]
pub fn chosen(counting: &[&MemberAnswer], member: &str, best: usize, why: Option<String>) -> TaskOutcome {
    match best.checked_sub(1).and_then(|at| counting.get(at)) {
        Some(said) => TaskOutcome {
            judge: Some(JudgeChoice {
                member: member.to_owned(),
                best,
                why,
            }),
            ..TaskOutcome::completed(said.answer.clone())
        },
        None => TaskOutcome::failed(no_verdict(member)),
    }
}

/// The head did not choose.
#[must_use]
pub fn no_verdict(member: &str) -> SwarmFault {
    SwarmFault::failed(
        "no_verdict",
        format!("`{member}` was asked twice which answer is best and named none"),
    )
}

#[cfg(test)]
mod tests;
