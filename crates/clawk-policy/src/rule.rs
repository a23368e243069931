//! One compiled rule, and the check whether it applies.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::confidential::ConfidentialCondition;
use crate::engine::{AnalyzedSubject, PolicySubject, UsageView};
use crate::explain::WhyNot;
use crate::glob::NamePattern;
use crate::value::ValueCondition;
use crate::verdict::{Effect, SpentLimit, Verdict};

/// The calls that a rule applies to (R11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every tool call.
    Tool,
    /// Calls of tools that have a category (`labels.category`).
    Category,
    /// All calls; `match` must still hold.
    All,
}

/// The `match` of a rule: all given parts must hold. An empty `match` always holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Matcher {
    pub(crate) name: Option<NamePattern>,
    pub(crate) category: Option<Box<str>>,
    /// The texts must be equal.
    pub(crate) labels: Vec<(Box<str>, Box<str>)>,
    /// The JSON values must be equal. An absent annotation equals nothing, not even `false`.
    pub(crate) annotations: Vec<(Box<str>, Value)>,
}

impl Matcher {
    /// Checks all parts except the name.
    pub(crate) fn facts_match<'r>(&'r self, subject: &PolicySubject<'_>) -> Result<(), WhyNot<'r>> {
        if let Some(wanted) = self
            .category
            .as_deref()
            .filter(|wanted| subject.category() != Some(wanted))
        {
            return Err(WhyNot::Category(wanted));
        }
        for (key, value) in &self.labels {
            if subject.labels.get(&**key).map(String::as_str) != Some(value) {
                return Err(WhyNot::Label(key));
            }
        }
        for (key, value) in &self.annotations {
            if subject.annotations.get(&**key) != Some(value) {
                return Err(WhyNot::Annotation(key));
            }
        }
        Ok(())
    }

    /// Whether it needs nothing that only a known tool can have.
    pub(crate) fn asks_for_name_only(&self) -> bool {
        self.category.is_none() && self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// One entry of `conditions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuleCondition {
    /// See [`crate::path`]. Relative roots start at the call's working directory.
    PathWithin(Vec<PathBuf>),
    /// The context of the call contains untrusted text of one of these kinds of origins (R46). If the context is unknown, a
    /// restrictive rule applies and a permissive one does not.
    Taint(Vec<Box<str>>),
    /// Argument values come from certain origins: see [`crate::value`].
    From(ValueCondition),
    /// Confidential text may leave: see [`crate::confidential`].
    Confidential(ConfidentialCondition),
    /// An unknown key, or a value that is not valid. Fails closed: a permissive rule never applies, and a restrictive rule applies
    /// regardless.
    Unknown(Box<str>),
}

/// The `rate_limit` of a rule. The rule applies once one of its limits is used up (R11).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) tokens_per_day: Option<u64>,
    pub(crate) cost_per_day_microusd: Option<u64>,
}

impl Limit {
    fn is_spent(&self, usage: UsageView) -> bool {
        self.spent_limit(usage).is_some()
    }

    /// The used-up limit, if there is one.
    fn spent_limit(&self, usage: UsageView) -> Option<SpentLimit> {
        let tokens = self.tokens_per_day.map(|limit| SpentLimit {
            name: "tokens_per_day",
            limit,
            used: usage.tokens_today,
        });
        let cost = self.cost_per_day_microusd.map(|limit| SpentLimit {
            name: "cost_per_day_usd",
            limit,
            used: usage.cost_today_microusd,
        });
        tokens
            .into_iter()
            .chain(cost)
            .find(|spent| spent.used >= spent.limit)
    }
}

/// A compiled rule.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rule {
    pub(crate) policy: Arc<str>,
    pub(crate) id: Arc<str>,
    pub(crate) effect: Effect,
    pub(crate) scope: Scope,
    pub(crate) matcher: Matcher,
    pub(crate) conditions: Vec<RuleCondition>,
    pub(crate) limit: Option<Limit>,
    pub(crate) reason: Option<Arc<str>>,
}

impl Rule {
    /// Whether the rule lets calls run without a person.
    pub(crate) const fn is_permissive(&self) -> bool {
        matches!(self.effect, Effect::Allow | Effect::AuditOnly)
    }

    /// Whether only `match` and `scope` decide if it applies.
    pub(crate) const fn is_unconditional(&self) -> bool {
        self.conditions.is_empty() && self.limit.is_none()
    }

    /// Checks whether the rule applies to this call.
    ///
    /// # Errors
    /// The first part that does not hold. Cheap: texts are built only when the reason is shown.
    pub(crate) fn check_applies<'r>(&'r self, call: &AnalyzedSubject<'_>) -> Result<(), WhyNot<'r>> {
        self.check_match(call.subject)?;
        match self.limit {
            Some(limit) if !limit.is_spent(call.subject.usage) => return Err(WhyNot::LimitNotSpent),
            Some(_) | None => {}
        }
        self.conditions
            .iter()
            .try_for_each(|condition| self.check_condition(condition, call))
    }

    /// Whether the rule matches the tool, and then depends on the call's arguments.
    pub(crate) fn looks_at_arguments(&self, subject: &PolicySubject<'_>) -> bool {
        self.check_match(subject).is_ok() && (self.speaks_of_places() || self.looks_at_values())
    }

    /// The absolute roots of its `path_within`.
    pub(crate) fn path_roots<'r>(&'r self, workdir: &'r Path) -> impl Iterator<Item = PathBuf> + 'r {
        let of = |condition: &'r RuleCondition| match condition {
            RuleCondition::PathWithin(roots) => Some(from_workdir(roots, workdir)),
            RuleCondition::Taint(_)
            | RuleCondition::From(_)
            | RuleCondition::Confidential(_)
            | RuleCondition::Unknown(_) => None,
        };
        self.conditions.iter().filter_map(of).flatten()
    }

    /// Whether it has a `path_within`.
    pub(crate) fn speaks_of_places(&self) -> bool {
        let of_paths = |condition: &RuleCondition| match condition {
            RuleCondition::PathWithin(_) => true,
            RuleCondition::Taint(_)
            | RuleCondition::From(_)
            | RuleCondition::Confidential(_)
            | RuleCondition::Unknown(_) => false,
        };
        self.conditions.iter().any(of_paths)
    }

    /// Whether it depends on the sources of values.
    pub(crate) fn looks_at_values(&self) -> bool {
        let of_values = |condition: &RuleCondition| match condition {
            RuleCondition::From(_) | RuleCondition::Confidential(_) => true,
            RuleCondition::PathWithin(_) | RuleCondition::Taint(_) | RuleCondition::Unknown(_) => false,
        };
        self.conditions.iter().any(of_values)
    }

    /// Whether it depends on the texts that were read, even if none is foreign.
    pub(crate) fn looks_at_confidential(&self) -> bool {
        let of_secrets = |condition: &RuleCondition| match condition {
            RuleCondition::Confidential(_) => true,
            RuleCondition::PathWithin(_)
            | RuleCondition::Taint(_)
            | RuleCondition::From(_)
            | RuleCondition::Unknown(_) => false,
        };
        self.conditions.iter().any(of_secrets)
    }

    /// Whether it depends on the origins in the context.
    fn looks_at_taint(&self) -> bool {
        let of_taint = |condition: &RuleCondition| match condition {
            RuleCondition::Taint(_) | RuleCondition::From(_) | RuleCondition::Confidential(_) => true,
            RuleCondition::PathWithin(_) | RuleCondition::Unknown(_) => false,
        };
        self.conditions.iter().any(of_taint)
    }

    /// Checks `scope` and `match` only.
    fn check_match<'r>(&'r self, subject: &PolicySubject<'_>) -> Result<(), WhyNot<'r>> {
        if self.scope == Scope::Category && subject.category().is_none() {
            return Err(WhyNot::NoCategory);
        }
        match &self.matcher.name {
            Some(name) if !name.matches(subject.tool) => Err(WhyNot::Name(name.text())),
            Some(_) | None => self.matcher.facts_match(subject),
        }
    }

    fn check_condition<'r>(
        &'r self,
        condition: &'r RuleCondition,
        call: &AnalyzedSubject<'_>,
    ) -> Result<(), WhyNot<'r>> {
        let permissive = self.is_permissive();
        match condition {
            RuleCondition::Unknown(key) if permissive => Err(WhyNot::UnknownCondition(key)),
            RuleCondition::Unknown(_) => Ok(()),
            RuleCondition::Taint(kinds) => {
                let holds = call.subject.taint.map_or(!permissive, |taint| {
                    let kind = |origin: &String| origin.split(' ').next().unwrap_or_default().to_owned();
                    taint
                        .iter()
                        .map(kind)
                        .any(|kind| kinds.iter().any(|wanted| **wanted == *kind))
                });
                if holds { Ok(()) } else { Err(WhyNot::Taint) }
            }
            RuleCondition::From(from) if from.is_fulfilled(call.subject, permissive) => Ok(()),
            RuleCondition::From(_) => Err(WhyNot::From),
            RuleCondition::Confidential(secret) if secret.is_fulfilled(call.subject, permissive) => Ok(()),
            RuleCondition::Confidential(_) => Err(WhyNot::Confidential),
            RuleCondition::PathWithin(roots) => {
                let roots = call.rule_roots(roots);
                let paths = call.paths();
                let holds = if permissive {
                    paths.all_within(&roots)
                } else {
                    paths.any_within(&roots, call.guesses || self.effect == Effect::Deny)
                };
                if holds { Ok(()) } else { Err(WhyNot::Path) }
            }
        }
    }

    /// The rule's verdict when it applies.
    pub(crate) fn verdict(&self, usage: UsageView) -> Verdict {
        Verdict {
            effect: self.effect,
            rule_id: Some(Arc::clone(&self.id)),
            policy: Some(Arc::clone(&self.policy)),
            reason: self.reason.clone(),
            audit: self.effect == Effect::AuditOnly,
            limit_spent: self.limit.is_some(),
            limit: self.limit.and_then(|limit| limit.spent_limit(usage)),
            taint: self.looks_at_taint(),
        }
    }
}

/// Resolves relative roots against the base; absolute roots stay as they are.
pub(crate) fn from_workdir(roots: &[PathBuf], workdir: &Path) -> Vec<PathBuf> {
    roots.iter().map(|root| workdir.join(root)).collect()
}
