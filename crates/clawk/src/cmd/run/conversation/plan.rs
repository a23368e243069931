//! One question about several calls, at the prompt.

use std::collections::BTreeSet;

use clawk_kernel::sheet::Seen;
use clawk_kernel::{Answer, Breadth, Person, Plan, Reception};

use super::{Approve, Conversation, NOT_SHOWN, UNSEEN, person};
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
        let mut plan = plan.clone();
        let mut left = Vec::new();
        for step in plan.steps {
            if !self.scripted(&step).await {
                left.push(step);
            }
        }
        if left.is_empty() {
            return;
        }
        plan.steps = left;
        let drawn = self.show.plan(&plan);
        let said = match (self.approve, self.input.clone()) {
            (Approve::Never, _) => Said::no(Some(
                "`--approve never` answers every question with no".to_owned(),
            )),
            (Approve::Ask, None) => Said::no(Some(
                "there is no terminal to ask; run it in a terminal, or let a rule of the policy allow it"
                    .to_owned(),
            )),
            (Approve::Ask, Some(_)) if drawn.is_err() => Said::no(Some(NOT_SHOWN.to_owned())),
            (Approve::Ask, Some(input)) => match self.ask_plan(&input, &mut plan).await {
                Some(said) => said,
                None => return,
            },
        };
        if self.terminated {
            return;
        }
        let all = numbers(&plan);
        let yes = said.only.clone().unwrap_or_else(|| all.clone());
        let rest: BTreeSet<u32> = all.difference(&yes).copied().collect();
        self.settle(&plan, yes, &said).await;
        if !rest.is_empty() {
            let no = Said::no(said.reason.clone());
            self.settle(&plan, rest, &no).await;
        }
    }

    /// Gives these steps their answer.
    async fn settle(&self, plan: &Plan, steps: BTreeSet<u32>, said: &Said) {
        let paint = Paint::stderr();
        if let (Answer::Deny, Some(reason)) = (said.answer, &said.reason) {
            self.show.line(&format!("  {} {}", paint.red("no:"), reason));
        }
        let late = self.tell(plan, steps, said).await;
        if !late.is_empty() {
            let late: Vec<String> = late.iter().map(u32::to_string).collect();
            self.show.line(&paint.yellow(&format!(
                "  too late for step {}: it had lapsed or was answered elsewhere",
                late.join(", ")
            )));
        }
    }

    /// The steps that the answer came too late for.
    async fn tell(&self, plan: &Plan, steps: BTreeSet<u32>, said: &Said) -> Vec<u32> {
        let steps: Vec<u32> = steps.into_iter().collect();
        let reply = clawk_kernel::Reply {
            answer: said.answer,
            breadth: Breadth::Exact,
            person: Person::admin("terminal", &person()),
            reason: said.reason.clone(),
            // `ask_plan` takes no yes before all of it was shown.
            seen: Seen::Whole(plan.steps.iter().map(|step| step.sheet.digest()).collect()),
        };
        let told = self.agent.kernel.reply_plan(&plan.id, Some(&steps), &reply).await;
        let taken = |step: &u32| {
            told.iter()
                .any(|(number, reception)| number == step && *reception == Reception::Taken)
        };
        steps.into_iter().filter(|step| !taken(step)).collect()
    }

    /// The answer to all steps that are left in `plan`; `None`: each has had its own.
    async fn ask_plan(&mut self, input: &Input, plan: &mut Plan) -> Option<Said> {
        let paint = Paint::stderr();
        let mut folded: usize = plan.steps.iter().map(|step| step.sheet.hidden_bytes()).sum();
        let mut stale = true;
        while let Some(first) = plan.steps.first().cloned() {
            let stopped = if std::mem::take(&mut stale) {
                self.fresh(input).await
            } else {
                None
            };
            let reply = match stopped {
                Some(reply) => reply,
                None => self.line(input, &prompt(folded), &first).await,
            };
            let typed = match reply {
                Reply::Line(line) => parse(&line, plan),
                Reply::Interrupted => {
                    self.session.cancel_turn();
                    return Some(Said::no(Some("interrupted".to_owned())));
                }
                Reply::End => {
                    self.leaving = true;
                    return Some(Said::no(Some("the terminal was closed".to_owned())));
                }
            };
            match typed {
                Some(Typed::Said(said) | Typed::Step(said)) if folded > 0 && said.answer != Answer::Deny => {
                    self.show.line(&paint.yellow(UNSEEN));
                }
                Some(Typed::Said(said)) => return Some(said),
                Some(Typed::Step(said)) => {
                    let steps = said.only.clone().unwrap_or_default();
                    self.settle(plan, steps.clone(), &said).await;
                    plan.steps.retain(|step| !steps.contains(&step.number()));
                }
                Some(Typed::View) => {
                    if plan.steps.iter().any(|step| self.show.whole(step).is_err()) {
                        return Some(Said::no(Some(NOT_SHOWN.to_owned())));
                    }
                    (folded, stale) = (0, true);
                }
                Some(Typed::Why) => plan.steps.iter().for_each(|step| self.show.why(step)),
                None => self.show.line(&paint.dim(
                    "  y, n (and why not, if you like), s, v, w, the numbers of the steps that may run, like 1,3, or one \
                     step by itself, like `y 3` or `n 3 because`",
                )),
            }
        }
        None
    }
}

fn numbers(plan: &Plan) -> BTreeSet<u32> {
    plan.steps.iter().map(clawk_kernel::Question::number).collect()
}

fn prompt(folded: usize) -> String {
    let bold = |key| Paint::stderr().bold(key);
    let (no, view, why) = (bold("[n]"), bold("[v]"), bold("[w]"));
    if folded > 0 {
        return format!("  {folded} bytes are folded: {view}iew all first · {no} none [reason] · {why}hy ▸ ");
    }
    let (yes, only, one, session) = (bold("[y]"), bold("[1,3]"), bold("[y 3]"), bold("[s]"));
    format!(
        "  {yes} all · {no} none [reason] · {only} only these steps · {one} this step first · {session} all, this session · \
         {view}iew all · {why}hy ▸ "
    )
}

#[derive(Debug, PartialEq, Eq)]
enum Typed {
    /// Of the whole plan.
    Said(Said),
    /// Of one step, the others wait on.
    Step(Said),
    View,
    Why,
}

/// `y`, `n`, `n because …`, `s`, `v`, `w`, numbers of steps that the plan has, or `y` and `n` with one number; anything else
/// is no answer.
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
        "v" | "view" => return Some(Typed::View),
        "w" | "why" | "?" => return Some(Typed::Why),
        _ => {}
    }
    let known = numbers(plan);
    if let Some(said) = step(line, &known) {
        return Some(Typed::Step(said));
    }
    if let Some((no, reason)) = line.split_once(char::is_whitespace)
        && matches!(no.to_ascii_lowercase().as_str(), "n" | "no" | "none")
    {
        return Some(Typed::Said(Said::no(Some(reason.trim().to_owned()))));
    }
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

/// `y 3`, `n 3`, `n 3 because …`.
fn step(line: &str, known: &BTreeSet<u32>) -> Option<Said> {
    let (word, rest) = line.split_once(char::is_whitespace)?;
    let (number, reason) = rest
        .trim()
        .split_once(char::is_whitespace)
        .unwrap_or((rest.trim(), ""));
    let number = number.parse().ok().filter(|number| known.contains(number))?; // silent-ok: no number of a step, no answer
    let answer = match (word.to_ascii_lowercase().as_str(), reason.trim()) {
        ("y" | "yes", "") => Answer::Approve,
        ("n" | "no", _) => Answer::Deny,
        _ => return None,
    };
    Some(Said {
        answer,
        only: Some(BTreeSet::from([number])),
        reason: Some(reason.trim().to_owned()).filter(|reason| !reason.is_empty()),
    })
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
            sheet: Default::default(),
            rule_id: None,
            reason: String::new(),
            explanation: Vec::new(),
            expires_at: Timestamp(0),
            until_us: 0,
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
        let step = |line: &str| match parse(line, &plan()) {
            Some(Typed::Step(said)) => Some((said.answer, said.only.map(Vec::from_iter), said.reason)),
            _ => None,
        };
        assert_eq!(step("y 3"), Some((Answer::Approve, Some(vec![3]), None)));
        assert_eq!(
            step("n 1 not yet"),
            Some((Answer::Deny, Some(vec![1]), Some("not yet".to_owned())))
        );
        for unclear in ["", "2", "1,2", "1;3", "y 2", "y 3 4", "0", "-1", ","] {
            assert_eq!(said(unclear), None, "{unclear}");
        }
        assert_eq!(parse("w", &plan()), Some(Typed::Why));
        assert_eq!(parse("v", &plan()), Some(Typed::View));
    }
}
