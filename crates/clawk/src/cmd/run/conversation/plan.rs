//! One question about several calls, at the prompt.

use std::collections::BTreeSet;

use clawk_kernel::{Answer, Breadth, Person, Plan, Reception};

use super::{Approve, Conversation, person};
use crate::out::Paint;
use crate::terminal::input::{Input, Reply};

/// What a person says of a plan.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    answer: Answer,
    /// The steps it holds for; the others are denied. `None`: all.
    only: Option<BTreeSet<u32>>,
    reason: Option<String>,
}

impl Said {
    fn no(reason: Option<String>) -> Self {
        Self {
            answer: Answer::Deny,
            only: None,
            reason,
        }
    }
}

impl Conversation<'_> {
    pub(super) async fn answer_plan(&mut self, plan: &Plan) {
        self.show.plan(plan);
        let said = match (self.approve, self.input.clone()) {
            (Approve::Never, _) => Said::no(Some(
                "`--approve never` answers every question with no".to_owned(),
            )),
            (Approve::Ask, None) => Said::no(Some(
                "there is no terminal to ask; run it in a terminal, or let a rule of the policy allow it"
                    .to_owned(),
            )),
            (Approve::Ask, Some(input)) => self.ask_plan(&input, plan).await,
        };
        if self.terminated {
            return;
        }
        let paint = Paint::stderr();
        if let (Answer::Deny, Some(reason)) = (said.answer, &said.reason) {
            self.show.line(&format!("  {} {}", paint.red("no:"), reason));
        }
        let all: BTreeSet<u32> = plan.steps.iter().map(clawk_kernel::Question::number).collect();
        let yes = said.only.as_ref().unwrap_or(&all);
        let rest: Vec<u32> = all.difference(yes).copied().collect();
        let mut late = self
            .tell(plan, said.answer, yes.iter().copied().collect(), &said)
            .await;
        if !rest.is_empty() {
            late.extend(self.tell(plan, Answer::Deny, rest, &said).await);
        }
        if !late.is_empty() {
            late.sort_unstable();
            let late: Vec<String> = late.iter().map(u32::to_string).collect();
            self.show.line(&paint.yellow(&format!(
                "  too late for step {}: it had lapsed or was answered elsewhere",
                late.join(", ")
            )));
        }
    }

    /// The steps that the answer came too late for.
    async fn tell(&self, plan: &Plan, answer: Answer, steps: Vec<u32>, said: &Said) -> Vec<u32> {
        let reply = clawk_kernel::Reply {
            answer,
            breadth: Breadth::Exact,
            person: Person::admin("terminal", &person()),
            reason: said.reason.clone(),
        };
        let told = self.agent.kernel.reply_plan(&plan.id, Some(&steps), &reply).await;
        let taken = |step: &u32| {
            told.iter()
                .any(|(number, reception)| number == step && *reception == Reception::Taken)
        };
        steps.into_iter().filter(|step| !taken(step)).collect()
    }

    async fn ask_plan(&mut self, input: &Input, plan: &Plan) -> Said {
        let paint = Paint::stderr();
        let Some(first) = plan.steps.first() else {
            return Said::no(None);
        };
        let prompt = format!(
            "  {} all · {} none [reason] · {} only these steps · {} all, this session · {}hy ▸ ",
            paint.bold("[y]"),
            paint.bold("[n]"),
            paint.bold("[1,3]"),
            paint.bold("[s]"),
            paint.bold("[w]"),
        );
        loop {
            match self.line(input, &prompt, first).await {
                Reply::Line(line) => match parse(&line, plan) {
                    Some(Typed::Said(said)) => return said,
                    Some(Typed::Why) => plan.steps.iter().for_each(|step| self.show.why(step)),
                    None => self.show.line(&paint.dim(
                        "  y, n (and why not, if you like), s, w, or the numbers of the steps that may run, like 1,3",
                    )),
                },
                Reply::Interrupted => {
                    self.session.cancel_turn();
                    return Said::no(Some("interrupted".to_owned()));
                }
                Reply::End => {
                    self.leaving = true;
                    return Said::no(Some("the terminal was closed".to_owned()));
                }
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Typed {
    Said(Said),
    Why,
}

/// `y`, `n`, `n because …`, `s`, `w`, or numbers of steps that the plan has; anything else is no answer.
fn parse(line: &str, plan: &Plan) -> Option<Typed> {
    let line = line.trim();
    let all = |answer| {
        Some(Typed::Said(Said {
            answer,
            only: None,
            reason: None,
        }))
    };
    match line.to_ascii_lowercase().as_str() {
        "y" | "yes" | "all" => return all(Answer::Approve),
        "s" | "session" => return all(Answer::ApproveForSession),
        "n" | "no" | "none" => return all(Answer::Deny),
        "w" | "why" | "?" => return Some(Typed::Why),
        _ => {}
    }
    if let Some((no, reason)) = line.split_once(char::is_whitespace)
        && matches!(no.to_ascii_lowercase().as_str(), "n" | "no" | "none")
    {
        return Some(Typed::Said(Said::no(Some(reason.trim().to_owned()))));
    }
    let known: BTreeSet<u32> = plan.steps.iter().map(clawk_kernel::Question::number).collect();
    let mut only = BTreeSet::new();
    for word in line.split([',', ' ']).filter(|word| !word.is_empty()) {
        let number = word.parse().ok().filter(|number| known.contains(number))?; // silent-ok: no number of a step, no answer
        only.insert(number);
    }
    (!only.is_empty()).then_some(Typed::Said(Said {
        answer: Answer::Approve,
        only: Some(only),
        reason: None,
    }))
}

#[cfg(test)]
mod tests {
    use clawk_kernel::time::Timestamp;
    use clawk_kernel::{Answer, Plan, Question, Step};
    use clawk_proto::{RequestId, SessionId};

    use super::{Typed, parse};

    fn plan() -> Plan {
        let id = || RequestId::from(uuid::Uuid::nil());
        let step = |number| Question {
            request_id: id(),
            session: SessionId(uuid::Uuid::nil()),
            tool: "write".to_owned(),
            arguments: Default::default(),
            preview: Vec::new(),
            rule_id: None,
            reason: String::new(),
            explanation: Vec::new(),
            expires_at: Timestamp(0),
            default_if_timeout: "deny",
            cost: None,
            folder: None,
            step: Some(Step {
                plan: id(),
                number,
                of: 4,
                beside: Vec::new(),
            }),
        };
        Plan {
            id: id(),
            steps: vec![step(1), step(3), step(4)],
        }
    }

    #[test]
    fn only_clear_answers_to_a_plan_are_answers() {
        let said = |line: &str| match parse(line, &plan()) {
            Some(Typed::Said(said)) => Some((said.answer, said.only.map(Vec::from_iter), said.reason)),
            _ => None,
        };
        assert_eq!(said("y"), Some((Answer::Approve, None, None)));
        assert_eq!(said("1,3"), Some((Answer::Approve, Some(vec![1, 3]), None)));
        assert_eq!(said(" 4 1 "), Some((Answer::Approve, Some(vec![1, 4]), None)));
        assert_eq!(
            said("no not today"),
            Some((Answer::Deny, None, Some("not today".to_owned())))
        );
        for unclear in ["", "2", "1,2", "1;3", "y 1", "0", "-1", ","] {
            assert_eq!(said(unclear), None, "{unclear}");
        }
        assert_eq!(parse("w", &plan()), Some(Typed::Why));
    }
}
