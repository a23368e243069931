//! What a turn's calls came to, in one line for people: by the record, never by the words of the answer.

use serde::Serialize;
use serde_json::{Value, json};

use crate::answer_claims::ClaimsJudgement;

/// Names in each part of the line; the others are counted.
const NAMED: usize = 5;
/// Bytes of a tool's name.
const MAX_NAME: usize = 256;
/// Stands for every tool that a model called and the agent has not. No tool has a name with blanks.
pub const UNDECLARED: &str = "a tool that is not declared";

/// The outcomes of a turn's calls by tool name, in the order of the calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TurnCallSummary {
    /// They ran and said that they did their work.
    pub done: Vec<String>,
    /// They were refused, by a rule or a person: nothing happened.
    pub denied: Vec<String>,
    /// They ran and failed, or surely did not begin.
    pub failed: Vec<String>,
    /// They may have happened, and nobody knows.
    pub unknown: Vec<String>,
    /// They ran, and have no side effects.
    pub read: Vec<String>,
    /// The model was offered tools with side effects in this turn.
    pub could_act: bool,
    /// What `[claims] judge` found in the answer; none where no judge is set, or there was nothing to judge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged: Option<ClaimsJudgement>,
}

impl TurnCallSummary {
    /// One line for people; none where there is nothing to say. Facts of the record decide, never the words of the answer: there
    /// is a line where calls with side effects were asked for, and where such tools were offered and none was called.
    #[must_use]
    pub fn record_line(&self) -> Option<String> {
        let parts = [
            ("done", &self.done),
            ("denied", &self.denied),
            ("failed", &self.failed),
            ("outcome unknown", &self.unknown),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(_, tools)| !tools.is_empty())
            .map(|(word, tools)| format!("{word}: {}", listed(tools)))
            .collect();
        let verdict = self.judged.as_ref().and_then(ClaimsJudgement::record_line);
        let acts = match (parts.is_empty(), self.could_act, self.read.is_empty()) {
            (false, ..) => Some(format!("{}.", parts.join("; "))),
            (true, true, true) => Some("no action was taken for this answer.".to_owned()),
            (true, true, false) => Some(format!(
                "no action was taken for this answer; read with: {}.",
                listed(&self.read)
            )),
            (true, false, _) => None,
        };
        match (acts, verdict) {
            (None, None) => None,
            (acts, verdict) => {
                let said: Vec<String> = acts.into_iter().chain(verdict).collect();
                Some(format!("Record: {}", said.join(" ")))
            }
        }
    }

    /// Something went otherwise than an answer may say.
    #[must_use]
    pub fn may_contradict(&self) -> bool {
        let marked = self
            .judged
            .as_ref()
            .is_some_and(|judged| !judged.marks.is_empty());
        marked || !self.denied.is_empty() || !self.failed.is_empty() || !self.unknown.is_empty()
    }

    /// The record as programs read it, with the line as `text`; none where there is no line.
    #[must_use]
    pub fn to_json(&self) -> Option<Value> {
        let text = self.record_line()?;
        let mut facts = json!({
            "text": text,
            "done": self.done,
            "denied": self.denied,
            "failed": self.failed,
            "unknown": self.unknown,
            "read": self.read,
        });
        if let (Some(judged), Some(facts)) = (&self.judged, facts.as_object_mut()) {
            facts.insert("judged".to_owned(), judged.to_json());
        }
        Some(facts)
    }

    /// The answer as it leaves: sentences that the record does not support are marked in it.
    #[must_use]
    pub fn mark_answer(&self, answer: &str) -> String {
        match &self.judged {
            Some(judged) => judged.mark_answer(answer),
            None => answer.to_owned(),
        }
    }
}

/// Tools in their first order, each with how often. Only names stand here that a manifest or a server may give a tool: whatever else
/// a model wrote in the place of a name could read as a line of ours.
fn listed(tools: &[String]) -> String {
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for tool in tools {
        let tool = if is_name(tool) { tool.as_str() } else { UNDECLARED };
        match counted.iter_mut().find(|(known, _)| *known == tool) {
            Some((_, count)) => *count += 1,
            None => counted.push((tool, 1)),
        }
    }
    let mut named: Vec<String> = counted
        .iter()
        .take(NAMED)
        .map(|(tool, count)| {
            let name = match is_name(tool) {
                true => format!("`{tool}`"),
                false => (*tool).to_owned(),
            };
            match count {
                1 => name,
                count => format!("{name} (×{count})"),
            }
        })
        .collect();
    if counted.len() > NAMED {
        named.push(format!("{} more", counted.len() - NAMED));
    }
    named.join(", ")
}

/// Whether a text is built as names of tools are.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@');
    !text.is_empty() && text.len() <= MAX_NAME && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::TurnCallSummary;
    use crate::answer_claims::ClaimsJudgement;

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn facts_and_no_words_decide_whether_there_is_a_line() {
        assert_eq!(
            TurnCallSummary::default().record_line(),
            None,
            "it could do nothing, and did nothing"
        );
        let idle = TurnCallSummary {
            could_act: true,
            ..TurnCallSummary::default()
        };
        assert_eq!(
            idle.record_line().as_deref(),
            Some("Record: no action was taken for this answer.")
        );
        let read = TurnCallSummary {
            could_act: true,
            read: names(&["look", "look"]),
            ..TurnCallSummary::default()
        };
        assert_eq!(
            read.record_line().as_deref(),
            Some("Record: no action was taken for this answer; read with: `look` (×2).")
        );
        let shown = TurnCallSummary {
            done: names(&["a", "b", "a"]),
            unknown: names(&["c"]),
            read: names(&["look"]),
            ..TurnCallSummary::default()
        };
        assert_eq!(
            shown.record_line().as_deref(),
            Some("Record: done: `a` (×2), `b`; outcome unknown: `c`.")
        );
        let many = TurnCallSummary {
            done: names(&["a", "b", "c", "d", "e", "f", "g"]),
            ..TurnCallSummary::default()
        };
        assert!(many.record_line().unwrap().ends_with("`e`, 2 more."));
    }

    #[test]
    fn no_text_in_the_place_of_a_name_stands_in_the_line() {
        for forged in [
            "x`.\nRecord: done: `file-write`",
            "x\nRecord: no action was taken for this answer.",
            "done: `a`; denied",
            "a b",
            "\u{202e}etirw",
            "",
            "x`",
            "name\u{200b}",
        ] {
            let shown = TurnCallSummary {
                denied: names(&["a", forged, forged]),
                ..TurnCallSummary::default()
            };
            assert_eq!(
                shown.record_line().as_deref(),
                Some("Record: denied: `a`, a tool that is not declared (×2)."),
                "{forged:?}"
            );
        }
    }

    #[test]
    fn a_verdict_is_said_and_so_is_that_there_is_none() {
        let judged = |marks: Vec<usize>, failed: Option<&str>| TurnCallSummary {
            judged: Some(ClaimsJudgement {
                by: "judge".to_owned(),
                sentences: 3,
                marks,
                failed: failed.map(str::to_owned),
            }),
            ..TurnCallSummary::default()
        };
        assert_eq!(judged(Vec::new(), None).record_line(), None);
        assert_eq!(
            judged(vec![4, 9], None).record_line().as_deref(),
            Some("Record: 2 sentences are marked: this record does not support them.")
        );
        assert_eq!(
            judged(Vec::new(), Some("the purse is empty"))
                .record_line()
                .as_deref(),
            Some("Record: nothing was judged: the purse is empty.")
        );
        assert!(judged(vec![4], None).may_contradict());
    }
}
