//! One approval request for several calls, at the prompt.

use std::collections::BTreeSet;

use clawk_kernel::sheet::PreviewReceipt;
use clawk_kernel::{ApprovalAnswer, GrantScope, KnownPerson, Plan, ReplyOutcome};

use super::{ApproveMode, Conversation, NOT_SHOWN, UNSEEN, login_name};
use crate::out::TerminalStyle;
use crate::terminal::input::{LineEditor, LineOutcome};

/// A person's answer to a plan.
#[derive(Debug, PartialEq, Eq)]
struct PlanAnswer {
    answer: ApprovalAnswer,
    /// The steps that the answer is for; the others are denied. `None`: all steps.
    only: Option<BTreeSet<u32>>,
    reason: Option<String>,
}

impl PlanAnswer {
    fn for_denial(reason: Option<String>) -> Self {
        Self {
            answer: ApprovalAnswer::Deny,
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
            if !self.try_scripted_answer(&step).await {
                left.push(step);
            }
        }
        if left.is_empty() {
            return;
        }
        plan.steps = left;
        let drawn = self.show.print_plan(&plan);
        let said = match (self.approve, self.input.clone()) {
            (ApproveMode::Never, _) => PlanAnswer::for_denial(Some(
                "`--approve never` answers every question with no".to_owned(),
            )),
            (ApproveMode::Ask, None) => PlanAnswer::for_denial(Some(
                "there is no terminal to ask; run it in a terminal, or let a rule of the policy allow it"
                    .to_owned(),
            )),
            (ApproveMode::Ask, Some(_)) if drawn.is_err() => {
                PlanAnswer::for_denial(Some(NOT_SHOWN.to_owned()))
            }
            (ApproveMode::Ask, Some(input)) => match self.ask_plan(&input, &mut plan).await {
                Some(said) => said,
                None => return,
            },
        };
        if self.terminated {
            return;
        }
        let all = step_numbers(&plan);
        let yes = said.only.clone().unwrap_or_else(|| all.clone());
        let rest: BTreeSet<u32> = all.difference(&yes).copied().collect();
        self.answer_steps(&plan, yes, &said).await;
        if !rest.is_empty() {
            let no = PlanAnswer::for_denial(said.reason.clone());
            self.answer_steps(&plan, rest, &no).await;
        }
    }

    /// Answers these steps.
    async fn answer_steps(&self, plan: &Plan, steps: BTreeSet<u32>, said: &PlanAnswer) {
        let paint = TerminalStyle::for_stderr();
        if let (ApprovalAnswer::Deny, Some(reason)) = (said.answer, &said.reason) {
            self.show
                .print_line(&format!("  {} {}", paint.red("no:"), reason));
        }
        let late = self.send_answers(plan, steps, said).await;
        if !late.is_empty() {
            let late: Vec<String> = late.iter().map(u32::to_string).collect();
            self.show.print_line(&paint.yellow(&format!(
                "  too late for step {}: it had lapsed or was answered elsewhere",
                late.join(", ")
            )));
        }
    }

    /// Answers these steps. Returns the steps for which the answer was too late.
    async fn send_answers(&self, plan: &Plan, steps: BTreeSet<u32>, said: &PlanAnswer) -> Vec<u32> {
        let steps: Vec<u32> = steps.into_iter().collect();
        let reply = clawk_kernel::ApprovalReply {
            answer: said.answer,
            breadth: GrantScope::Exact,
            person: KnownPerson::admin("terminal", &login_name()),
            reason: said.reason.clone(),
            // `ask_plan` accepts a yes only after everything was shown.
            seen: PreviewReceipt::Whole(plan.steps.iter().map(|step| step.sheet.digest()).collect()),
        };
        let told = self.agent.kernel.reply_plan(&plan.id, Some(&steps), &reply).await;
        let taken = |step: &u32| {
            told.iter()
                .any(|(number, reception)| number == step && *reception == ReplyOutcome::Taken)
        };
        steps.into_iter().filter(|step| !taken(step)).collect()
    }

    /// Asks for an answer to all remaining steps; `None`: each step already has its own answer.
    async fn ask_plan(&mut self, input: &LineEditor, plan: &mut Plan) -> Option<PlanAnswer> {
        let paint = TerminalStyle::for_stderr();
        let mut folded: usize = plan.steps.iter().map(|step| step.sheet.hidden_bytes()).sum();
        let mut stale = true;
        while let Some(first) = plan.steps.first().cloned() {
            let stopped = if std::mem::take(&mut stale) {
                self.discard_typed_keys(input).await
            } else {
                None
            };
            let reply = match stopped {
                Some(reply) => reply,
                None => self.read_line(input, &format_prompt(folded), &first).await,
            };
            let typed = match reply {
                LineOutcome::Line(line) => parse(&line, plan),
                LineOutcome::Interrupted => {
                    self.session.cancel_turn();
                    return Some(PlanAnswer::for_denial(Some("interrupted".to_owned())));
                }
                LineOutcome::End => {
                    self.leaving = true;
                    return Some(PlanAnswer::for_denial(Some("the terminal was closed".to_owned())));
                }
            };
            match typed {
                Some(PlanInput::Said(said) | PlanInput::Step(said)) if folded > 0 && said.answer != ApprovalAnswer::Deny => {
                    self.show.print_line(&paint.yellow(UNSEEN));
                }
                Some(PlanInput::Said(said)) => return Some(said),
                Some(PlanInput::Step(said)) => {
                    let steps = said.only.clone().unwrap_or_default();
                    self.answer_steps(plan, steps.clone(), &said).await;
                    plan.steps.retain(|step| !steps.contains(&step.step_number()));
                }
                Some(PlanInput::View) => {
                    if plan.steps.iter().any(|step| self.show.print_full_question(step).is_err()) {
                        return Some(PlanAnswer::for_denial(Some(NOT_SHOWN.to_owned())));
                    }
                    (folded, stale) = (0, true);
                }
                Some(PlanInput::Why) => plan.steps.iter().for_each(|step| self.show.print_reason(step)),
                None => self.show.print_line(&paint.dim(
                    "  y, n (and why not, if you like), s, v, w, the numbers of the steps that may run, like 1,3, or one \
                     step by itself, like `y 3` or `n 3 because`",
                )),
            }
        }
        None
    }
}

fn step_numbers(plan: &Plan) -> BTreeSet<u32> {
    plan.steps
        .iter()
        .map(clawk_kernel::ApprovalQuestion::step_number)
        .collect()
}

fn format_prompt(folded: usize) -> String {
    let bold = |key| TerminalStyle::for_stderr().bold(key);
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
enum PlanInput {
    /// An answer to the whole plan.
    Said(PlanAnswer),
    /// An answer to one step; the others still wait.
    Step(PlanAnswer),
    View,
    Why,
}

/// Parses `y`, `n`, `n because …`, `s`, `v`, `w`, step numbers of the plan, or `y` and `n` with one number. Anything else is not an
/// answer.
fn parse(line: &str, plan: &Plan) -> Option<PlanInput> {
    let line = line.trim();
    let all = |answer| {
        Some(PlanInput::Said(PlanAnswer {
            answer,
            only: None,
            reason: None,
        }))
    };
    match line.to_ascii_lowercase().as_str() {
        "y" | "yes" | "all" => return all(ApprovalAnswer::Approve),
        "s" | "session" => return all(ApprovalAnswer::ApproveForSession),
        "n" | "no" | "none" => return all(ApprovalAnswer::Deny),
        "v" | "view" => return Some(PlanInput::View),
        "w" | "why" | "?" => return Some(PlanInput::Why),
        _ => {}
    }
    let known = step_numbers(plan);
    if let Some(said) = parse_step_answer(line, &known) {
        return Some(PlanInput::Step(said));
    }
    if let Some((no, reason)) = line.split_once(char::is_whitespace)
        && matches!(no.to_ascii_lowercase().as_str(), "n" | "no" | "none")
    {
        return Some(PlanInput::Said(PlanAnswer::for_denial(Some(
            reason.trim().to_owned(),
        ))));
    }
    let mut only = BTreeSet::new();
    for word in line.split([',', ' ']).filter(|word| !word.is_empty()) {
        let number = word.parse().ok().filter(|number| known.contains(number))?; // silent-ok: no number of a step, no answer
        only.insert(number);
    }
    (!only.is_empty()).then_some(PlanInput::Said(PlanAnswer {
        answer: ApprovalAnswer::Approve,
        only: Some(only),
        reason: None,
    }))
}

/// Parses `y 3`, `n 3`, `n 3 because …`.
fn parse_step_answer(line: &str, known: &BTreeSet<u32>) -> Option<PlanAnswer> {
    let (word, rest) = line.split_once(char::is_whitespace)?;
    let (number, reason) = rest
        .trim()
        .split_once(char::is_whitespace)
        .unwrap_or((rest.trim(), ""));
    let number = number.parse().ok().filter(|number| known.contains(number))?; // silent-ok: no number of a step, no answer
    let answer = match (word.to_ascii_lowercase().as_str(), reason.trim()) {
        ("y" | "yes", "") => ApprovalAnswer::Approve,
        ("n" | "no", _) => ApprovalAnswer::Deny,
        _ => return None,
    };
    Some(PlanAnswer {
        answer,
        only: Some(BTreeSet::from([number])),
        reason: Some(reason.trim().to_owned()).filter(|reason| !reason.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use clawk_kernel::time::Timestamp;
    use clawk_kernel::{ApprovalAnswer, ApprovalPlanStep, ApprovalQuestion, Plan};
    use clawk_proto::{RequestId, SessionId};

    use super::{PlanInput, parse};

    fn plan() -> Plan {
        let id = || RequestId::from(uuid::Uuid::nil());
        let step = |number| ApprovalQuestion {
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
            step: Some(ApprovalPlanStep {
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
            Some(PlanInput::Said(said)) => Some((said.answer, said.only.map(Vec::from_iter), said.reason)),
            _ => None,
        };
        assert_eq!(said("y"), Some((ApprovalAnswer::Approve, None, None)));
        assert_eq!(
            said("1,3"),
            Some((ApprovalAnswer::Approve, Some(vec![1, 3]), None))
        );
        assert_eq!(
            said(" 4 1 "),
            Some((ApprovalAnswer::Approve, Some(vec![1, 4]), None))
        );
        assert_eq!(
            said("no not today"),
            Some((ApprovalAnswer::Deny, None, Some("not today".to_owned())))
        );
        let step = |line: &str| match parse(line, &plan()) {
            Some(PlanInput::Step(said)) => Some((said.answer, said.only.map(Vec::from_iter), said.reason)),
            _ => None,
        };
        assert_eq!(step("y 3"), Some((ApprovalAnswer::Approve, Some(vec![3]), None)));
        assert_eq!(
            step("n 1 not yet"),
            Some((ApprovalAnswer::Deny, Some(vec![1]), Some("not yet".to_owned())))
        );
        for unclear in ["", "2", "1,2", "1;3", "y 2", "y 3 4", "0", "-1", ","] {
            assert_eq!(said(unclear), None, "{unclear}");
        }
        assert_eq!(parse("w", &plan()), Some(PlanInput::Why));
        assert_eq!(parse("v", &plan()), Some(PlanInput::View));
    }
}
