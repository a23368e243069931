use clawk_manifest::model::AggregationStrategy as Strategy;
use clawk_proto::method::TaskStatus::{self, Completed, Failed, Partial};
use proptest::prelude::*;

use super::{
    CombineResult, HeadPurpose, MemberAnswer, SwarmFault, TaskOutcome, chosen_outcome, combine_answers,
    parse_verdict,
};
use crate::answer::TaskAnswer;

fn said(all: &[(TaskStatus, &str)]) -> Vec<MemberAnswer> {
    let one = |(at, (status, text)): (usize, &(TaskStatus, &str))| MemberAnswer {
        member: format!("m{at}"),
        status: *status,
        answer: TaskAnswer::from_text(text),
    };
    all.iter().enumerate().map(one).collect()
}

fn done(strategy: Strategy, all: &[(TaskStatus, &str)], short: bool) -> TaskOutcome {
    let fault = SwarmFault::task_failed("timeout", "x");
    match combine_answers(strategy, &said(all), short.then_some(&fault)) {
        CombineResult::Done(outcome) => *outcome,
        CombineResult::Ask(purpose) => panic!("asks {purpose:?}"),
    }
}

fn end(outcome: &TaskOutcome) -> (TaskStatus, &str, &str) {
    let reason = outcome.fault.as_ref().map_or("", |fault| &fault.reason);
    (outcome.status, &outcome.answer.text, reason)
}

#[test]
fn without_an_answer_there_is_none() {
    for strategy in Strategy::ALL {
        let none = done(*strategy, &[(Failed, "x")], false);
        assert_eq!(end(&none), (Failed, "", "no_answer"), "{strategy}");
        assert_eq!(
            end(&done(*strategy, &[], true)),
            (Failed, "", "timeout"),
            "{strategy}"
        );
    }
}

#[test]
fn one_alone_needs_nobody() {
    for strategy in Strategy::ALL {
        assert_eq!(
            end(&done(*strategy, &[(Completed, "x")], false)),
            (Completed, "x", ""),
            "{strategy}"
        );
    }
    let among = &[(Failed, ""), (Completed, "x")];
    assert_eq!(end(&done(Strategy::BestOfN, among, false)), (Completed, "x", ""));
    assert_eq!(
        end(&done(Strategy::LeaderDecides, among, true)),
        (Partial, "x", "timeout")
    );
}

#[test]
fn partial_answers_count_where_they_may() {
    let both = &[(Partial, "a"), (Completed, "b")];
    assert_eq!(
        end(&done(Strategy::Merge, both, false)).1,
        "## m0\n\na\n\n## m1\n\nb"
    );
    assert_eq!(end(&done(Strategy::BestOfN, both, false)).1, "b");
    assert_eq!(
        combine_answers(Strategy::LeaderDecides, &said(both), None),
        CombineResult::Ask(HeadPurpose::Decide)
    );
    assert_eq!(
        end(&done(Strategy::MajorityVote, both, false)),
        (Completed, "b", "")
    );
}

#[test]
fn a_cut_run_asks_no_model_and_says_what_is_there() {
    let both = &[(Completed, "a"), (Completed, "a")];
    for strategy in [Strategy::LeaderDecides, Strategy::BestOfN] {
        assert_eq!(
            end(&done(strategy, both, true)),
            (Failed, "", "timeout"),
            "{strategy}"
        );
    }
    assert_eq!(
        end(&done(Strategy::MajorityVote, both, true)),
        (Partial, "a", "timeout")
    );
    let votes = done(
        Strategy::MajorityVote,
        &[(Completed, "a"), (Completed, "b")],
        false,
    );
    assert_eq!(end(&votes), (Failed, "", "no_majority"));
    assert_eq!(votes.votes.unwrap().len(), 2);
}

#[test]
fn a_failed_link_ends_the_chain() {
    assert_eq!(
        end(&done(
            Strategy::Chain,
            &[(Completed, "a"), (Completed, "b")],
            false
        )),
        (Completed, "b", "")
    );
    let broken = done(
        Strategy::Chain,
        &[(Completed, "a"), (Failed, ""), (Failed, "")],
        false,
    );
    assert_eq!(end(&broken), (Failed, "", "chain_broken"));
    let cut = done(
        Strategy::Chain,
        &[(Completed, "a"), (Completed, "b"), (Failed, "")],
        true,
    );
    assert_eq!(end(&cut), (Partial, "b", "timeout"));
}

#[test]
fn a_verdict_is_a_number_in_range() {
    assert_eq!(parse_verdict("2", 2), Some((2, None)));
    assert_eq!(
        parse_verdict(r#"{"best": 1, "why": "short"}"#, 2),
        Some((1, Some("short".to_owned())))
    );
    assert_eq!(parse_verdict("```json\n{\"best\": 2}\n```", 2), Some((2, None)));
    for unreadable in ["0", "3", "the second", r#"{"best": "2"}"#, "", "-1", "1.5"] {
        assert_eq!(parse_verdict(unreadable, 2), None, "{unreadable}");
    }
    let said = said(&[(Completed, "a"), (Completed, "b")]);
    let counting: Vec<&MemberAnswer> = said.iter().collect();
    let outcome = chosen_outcome(&counting, "head", 2, None);
    assert_eq!(
        (outcome.answer.text.as_str(), outcome.judge.unwrap().best),
        ("b", 2)
    );
    assert_eq!(
        end(&chosen_outcome(&counting, "head", 9, None)),
        (Failed, "", "no_verdict")
    );
}

proptest! {
    #[test]
    fn the_result_is_one_of_the_answers_or_says_why_not(
        at in 0..Strategy::ALL.len(),
        all in prop::collection::vec((prop::sample::select(vec![Completed, Failed, Partial]), "[ab]"), 0..6),
        short in any::<bool>(),
    ) {
        let strategy = Strategy::ALL[at];
        let all: Vec<(TaskStatus, &str)> = all.iter().map(|(status, text)| (*status, text.as_str())).collect();
        let fault = SwarmFault::task_failed("timeout", "x");
        if let CombineResult::Done(outcome) = combine_answers(strategy, &said(&all), short.then_some(&fault)) {
            prop_assert_eq!(outcome.status == Failed, outcome.answer == TaskAnswer::default());
            prop_assert!(outcome.status != Failed || outcome.fault.is_some());
            prop_assert!(!short || outcome.status != Completed);
            let known = all.iter().any(|(_, text)| outcome.answer.text.contains(text));
            prop_assert!(outcome.status == Failed || known);
        }
    }
}
