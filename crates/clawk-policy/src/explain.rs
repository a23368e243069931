//! Explains the decision about a call, for approval prompts and `clawk policy explain`.

use std::fmt;

use crate::engine::AnalyzedSubject;
use crate::rule::{Rule, RuleCondition};
use crate::verdict::{Effect, Verdict};

/// The first reason why a rule did not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNot<'e> {
    /// `match.name` differs.
    Name(&'e str),
    /// The rule has `scope: category`, and the tool has no category.
    NoCategory,
    /// `match.category` differs.
    Category(&'e str),
    /// The label with this key is absent or differs.
    Label(&'e str),
    /// The annotation with this key is absent or differs.
    Annotation(&'e str),
    /// The `rate_limit` is not used up.
    LimitNotSpent,
    /// `conditions.path_within` does not hold.
    Path,
    /// `conditions.taint` does not hold.
    Taint,
    /// `conditions.from` does not hold.
    From,
    /// `conditions.confidential` does not hold.
    Confidential,
    /// A permissive rule has a condition that this version does not know.
    UnknownCondition(&'e str),
}

/// One rule that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplanationStep<'e> {
    /// The policy that holds it.
    pub policy: &'e str,
    /// The rule's id.
    pub rule_id: &'e str,
    /// The effect that it would have had.
    pub effect: Effect,
    /// Why it did not apply; `None`: it decided.
    pub why_not: Option<WhyNot<'e>>,
    /// The path that was outside or refused.
    pub detail: Option<String>,
}

/// A decision with every checked rule, in order. The last rule decided, unless no rule applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionExplanation<'e> {
    /// The verdict of [`Engine::decide`](crate::Engine::decide).
    pub verdict: Verdict,
    /// The checked rules, in order.
    pub steps: Vec<ExplanationStep<'e>>,
}

impl fmt::Display for WhyNot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(wanted) => write!(f, "it is for tools named `{wanted}`"),
            Self::NoCategory => f.write_str("the tool has no category"),
            Self::Category(wanted) => write!(f, "it is for the category `{wanted}`"),
            Self::Label(key) => write!(f, "the tool's label `{key}` is not the one asked for"),
            Self::Annotation(key) => write!(f, "the tool's annotation `{key}` is not the one asked for"),
            Self::LimitNotSpent => f.write_str("its rate limit is not spent"),
            Self::Path => f.write_str("`path_within` does not hold"),
            Self::Taint => f.write_str("the context holds no untrusted text of its `taint`"),
            Self::From => f.write_str("no value of its `from` comes from there"),
            Self::Confidential => f.write_str("nothing confidential may leave by this call"),
            Self::UnknownCondition(key) => write!(f, "its condition `{key}` is not understood"),
        }
    }
}

impl fmt::Display for DecisionExplanation<'_> {
    /// One line per rule, then the outcome.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            write!(f, "{}/{} ({}): ", step.policy, step.rule_id, step.effect.name())?;
            match (&step.why_not, &step.detail) {
                (None, _) => writeln!(f, "decides")?,
                (Some(why), None) => writeln!(f, "passed over, {why}")?,
                (Some(why), Some(detail)) => writeln!(f, "passed over, {why}: {detail}")?,
            }
        }
        write!(f, "{}", self.verdict.effect.name())?;
        match &self.verdict.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

impl AnalyzedSubject<'_> {
    /// The path that makes `rule`'s `path_within` fail.
    pub(crate) fn paths_detail(&self, rule: &Rule) -> Option<String> {
        let paths = self.paths();
        if let Some(refused) = paths.refusal_reason() {
            return Some(refused.to_owned());
        }
        rule.conditions.iter().find_map(|condition| match condition {
            RuleCondition::PathWithin(roots) => paths
                .first_outside(&self.rule_roots(roots))
                .map(|path| format!("`{}` lies outside", path.display())),
            RuleCondition::Taint(_)
            | RuleCondition::From(_)
            | RuleCondition::Confidential(_)
            | RuleCondition::Unknown(_) => None,
        })
    }
}
