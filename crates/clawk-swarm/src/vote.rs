//! `majority-vote`: reads the ballots and finds the winner.

use clawk_manifest::model::AggregationStrategy;
use icu_normalizer::ComposingNormalizerBorrowed;
use serde::{Deserialize, Serialize};

use crate::answer::{MemberAnswer, TaskAnswer, canonical_json};

/// A ballot with its voters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BallotCount {
    /// Canonical JSON of `data.vote`, or the normalised text.
    pub ballot: String,
    /// The number of votes.
    pub count: usize,
    /// The voters, in the order of answers.
    pub members: Vec<String>,
}

/// The ballot in an answer.
#[must_use]
pub fn to_ballot(answer: &TaskAnswer) -> String {
    match answer.data.as_ref().and_then(|data| data.get("vote")) {
        Some(vote) => canonical_json(vote),
        None => normalize_text(&answer.text),
    }
}

/// A text after NFKC and case folding, without parts that do not change its meaning.
fn normalize_text(text: &str) -> String {
    let normalizer = ComposingNormalizerBorrowed::new_nfkc();
    // Upper case, then lower case: this gives full case folding for letters such as `ß`.
    let folded = normalizer.normalize(text).to_uppercase().to_lowercase();
    let folded = normalizer.normalize(&folded).into_owned();
    let words: Vec<&str> = folded.split_whitespace().collect();
    let joined = words.join(" ");
    let mut rest = joined.as_str();
    loop {
        let outer = rest.trim_matches(|c: char| c.is_whitespace() || is_quote(c) || c == '*');
        let inner = outer.trim_end_matches(['.', '!']);
        if inner.len() == rest.len() {
            return rest.to_owned();
        }
        rest = inner;
    }
}

const fn is_quote(c: char) -> bool {
    matches!(
        c,
        '"' | '\'' | '`' | '\u{ab}' | '\u{bb}' | '\u{2018}'..='\u{201f}' | '\u{2039}' | '\u{203a}' | '\u{300c}'..='\u{300f}'
    )
}

/// The ballots in the order of their first vote, and the index in `cast` of the winner's first answer.
#[must_use]
pub fn count_ballots(cast: &[&MemberAnswer], asked: usize) -> (Vec<BallotCount>, Option<usize>) {
    let mut votes: Vec<(usize, BallotCount)> = Vec::new();
    for (at, said) in cast.iter().enumerate() {
        let ballot = to_ballot(&said.answer);
        match votes.iter_mut().find(|(_, vote)| vote.ballot == ballot) {
            Some((_, vote)) => {
                vote.count += 1;
                vote.members.push(said.member.clone());
            }
            None => votes.push((
                at,
                BallotCount {
                    ballot,
                    count: 1,
                    members: vec![said.member.clone()],
                },
            )),
        }
    }
    let quorum = cast.len() * 2 >= asked;
    let winner = votes
        .iter()
        .find(|(_, vote)| quorum && vote.count * 2 > cast.len())
        .map(|(first, _)| *first);
    (votes.into_iter().map(|(_, vote)| vote).collect(), winner)
}

/// Whether every instance of a pipeline's stage works on the task under this strategy.
#[must_use]
pub const fn needs_all(strategy: AggregationStrategy) -> bool {
    match strategy {
        AggregationStrategy::MajorityVote | AggregationStrategy::BestOfN | AggregationStrategy::Merge => true,
        AggregationStrategy::Chain | AggregationStrategy::LeaderDecides => false,
    }
}

#[cfg(test)]
mod tests {
    use clawk_proto::method::TaskStatus;
    use proptest::prelude::*;

    use super::{MemberAnswer, TaskAnswer, count_ballots, to_ballot};

    #[test]
    fn what_does_not_change_the_meaning_is_no_other_ballot() {
        for same in [
            "Yes",
            " yes. ",
            "**YES!**",
            "\"Yes\".",
            "\u{201c}yes\u{201d}",
            "y\u{ff45}s",
            "`yes`!!",
        ] {
            assert_eq!(to_ballot(&TaskAnswer::from_text(same)), "yes", "{same}");
        }
        assert_eq!(
            to_ballot(&TaskAnswer::from_text("Stra\u{df}e  12")),
            to_ballot(&TaskAnswer::from_text("STRASSE 12."))
        );
        assert_eq!(
            to_ballot(&TaskAnswer::from_text(
                r#"{"vote": {"b": 1, "a": 2}, "why": "x"}"#
            )),
            r#"{"a":2,"b":1}"#
        );
        assert_ne!(to_ballot(&TaskAnswer::from_text("yes, no")), "yes");
    }

    fn said(texts: &[&str]) -> Vec<MemberAnswer> {
        let one = |(at, text): (usize, &&str)| MemberAnswer {
            member: format!("m{at}"),
            status: TaskStatus::Completed,
            answer: TaskAnswer::from_text(text),
        };
        texts.iter().enumerate().map(one).collect()
    }

    fn winner(texts: &[&str], asked: usize) -> Option<usize> {
        let said = said(texts);
        count_ballots(&said.iter().collect::<Vec<_>>(), asked).1
    }

    #[test]
    fn more_than_half_of_the_cast_and_half_of_the_asked() {
        assert_eq!(winner(&["no", "yes", "Yes."], 3), Some(1));
        assert_eq!(winner(&["no", "yes"], 2), None, "half is not more than half");
        assert_eq!(winner(&["yes", "yes"], 4), Some(0));
        assert_eq!(winner(&["yes", "yes"], 5), None, "less than half of those asked");
        assert_eq!(winner(&[], 0), None);
    }

    proptest! {
        #[test]
        fn at_most_one_wins_and_every_vote_is_counted(texts in prop::collection::vec("[abc]", 0..12)) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let said = said(&texts);
            let cast: Vec<&MemberAnswer> = said.iter().collect();
            let (votes, winner) = count_ballots(&cast, texts.len());
            prop_assert_eq!(votes.iter().map(|vote| vote.count).sum::<usize>(), texts.len());
            let most = ["a", "b", "c"].iter().filter(|b| texts.iter().filter(|t| t == b).count() * 2 > texts.len()).count();
            prop_assert_eq!(usize::from(winner.is_some()), most);
        }

        #[test]
        fn a_ballot_is_normal_after_one_pass(text in "\\PC{0,40}") {
            let once = super::normalize_text(&text);
            prop_assert_eq!(super::normalize_text(&once), once);
        }
    }
}
