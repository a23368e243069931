//! One compiled rule and what it takes for it to apply.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::confidential::ConfidentialCondition;
use crate::engine::{AnalyzedSubject, PolicySubject, UsageView};
use crate::explain::WhyNot;
use crate::glob::NamePattern;
use crate::value::ValueCondition;
use crate::verdict::{Effect, SpentLimit, Verdict};

/// What a rule applies to (R11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Any tool call.
    Tool,
    /// Calls of tools that have a category (`labels.category`).
    Category,
    /// Everything; what `match` gives must still hold.
    All,
}

/// The `match` of a rule: everything given must hold; nothing given holds always.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Matcher {
    pub(crate) name: Option<NamePattern>,
    pub(crate) category: Option<Box<str>>,
    /// Equal texts.
    pub(crate) labels: Vec<(Box<str>, Box<str>)>,
    /// Equal JSON values; an absent annotation equals nothing, not even `false`.
    pub(crate) annotations: Vec<(Box<str>, Value)>,
}

impl Matcher {
    /// Everything but the name.
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

    /// Nothing is asked for that only a known tool can have.
    pub(crate) fn asks_for_name_only(&self) -> bool {
        self.category.is_none() && self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// One entry of `conditions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuleCondition {
    /// See [`crate::path`]. Relative roots start at the call's working directory.
    PathWithin(Vec<PathBuf>),
    /// The context that asked for the call holds untrusted text of one of these kinds of origins (R46). Where nobody knows the
    /// context, a restrictive rule applies and a permissive one does not.
    Taint(Vec<Box<str>>),
    /// Values of arguments come from some origins: see [`crate::value`].
    From(ValueCondition),
    /// Text of a confidential place may leave: see [`crate::confidential`].
    Confidential(ConfidentialCondition),
    /// A key that this version does not know, or a value that it can't read. Fails closed: a permissive rule never
    /// applies, a restrictive one is not held back.
    Unknown(Box<str>),
}

/// `rate_limit` of a rule: the rule applies once any of them is spent (R11).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) tokens_per_day: Option<u64>,
    pub(crate) cost_per_day_microusd: Option<u64>,
}

impl Limit {
    fn is_spent(&self, usage: UsageView) -> bool {
        self.spent(usage).is_some()
    }

    /// The limit that is spent, by its name in the rule.
    fn spent(&self, usage: UsageView) -> Option<SpentLimit> {
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

/// A rule, ready to be asked.
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
    /// The rule lets calls through without a person.
    pub(crate) const fn is_permissive(&self) -> bool {
        matches!(self.effect, Effect::Allow | Effect::AuditOnly)
    }

    /// Nothing but `match` and `scope` decides whether it applies.
    pub(crate) const fn is_unconditional(&self) -> bool {
        self.conditions.is_empty() && self.limit.is_none()
    }

    /// Whether the rule decides this call, and if not, the first thing that kept it from it.
    ///
    /// # Errors
    /// What did not hold. Cheap: texts are made only when the reason is shown.
    pub(crate) fn applies<'r>(&'r self, call: &AnalyzedSubject<'_>) -> Result<(), WhyNot<'r>> {
        self.matches(call.subject)?;
        match self.limit {
            Some(limit) if !limit.is_spent(call.subject.usage) => return Err(WhyNot::LimitNotSpent),
            Some(_) | None => {}
        }
        self.conditions
            .iter()
            .try_for_each(|condition| self.holds(condition, call))
    }

    /// The tool fits, and then it depends on the call's arguments whether the rule applies.
    pub(crate) fn looks_at_arguments(&self, subject: &PolicySubject<'_>) -> bool {
        self.matches(subject).is_ok() && (self.speaks_of_places() || self.looks_at_values())
    }

    /// The roots of its `path_within`, absolute.
    pub(crate) fn roots<'r>(&'r self, workdir: &'r Path) -> impl Iterator<Item = PathBuf> + 'r {
        let of = |condition: &'r RuleCondition| match condition {
            RuleCondition::PathWithin(roots) => Some(from_workdir(roots, workdir)),
            RuleCondition::Taint(_)
            | RuleCondition::From(_)
            | RuleCondition::Confidential(_)
            | RuleCondition::Unknown(_) => None,
        };
        self.conditions.iter().filter_map(of).flatten()
    }

    /// It speaks of places: it has a `path_within`.
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

    /// It looks at where values came from.
    pub(crate) fn looks_at_values(&self) -> bool {
        let of_values = |condition: &RuleCondition| match condition {
            RuleCondition::From(_) | RuleCondition::Confidential(_) => true,
            RuleCondition::PathWithin(_) | RuleCondition::Taint(_) | RuleCondition::Unknown(_) => false,
        };
        self.conditions.iter().any(of_values)
    }

    /// It looks at what was read, also where nothing foreign was.
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

    /// It looks at what the context was made of.
    fn looks_at_taint(&self) -> bool {
        let of_taint = |condition: &RuleCondition| match condition {
            RuleCondition::Taint(_) | RuleCondition::From(_) | RuleCondition::Confidential(_) => true,
            RuleCondition::PathWithin(_) | RuleCondition::Unknown(_) => false,
        };
        self.conditions.iter().any(of_taint)
    }

    /// `scope` and `match` alone.
    fn matches<'r>(&'r self, subject: &PolicySubject<'_>) -> Result<(), WhyNot<'r>> {
        if self.scope == Scope::Category && subject.category().is_none() {
            return Err(WhyNot::NoCategory);
        }
        match &self.matcher.name {
            Some(name) if !name.matches(subject.tool) => Err(WhyNot::Name(name.text())),
            Some(_) | None => self.matcher.facts_match(subject),
        }
    }

    fn holds<'r>(
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
            RuleCondition::From(from) if from.holds(call.subject, permissive) => Ok(()),
            RuleCondition::From(_) => Err(WhyNot::From),
            RuleCondition::Confidential(secret) if secret.holds(call.subject, permissive) => Ok(()),
            RuleCondition::Confidential(_) => Err(WhyNot::Confidential),
            RuleCondition::PathWithin(roots) => {
                let roots = call.roots(roots);
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

    /// What the rule says when it applies.
    pub(crate) fn verdict(&self, usage: UsageView) -> Verdict {
        Verdict {
            effect: self.effect,
            rule_id: Some(Arc::clone(&self.id)),
            policy: Some(Arc::clone(&self.policy)),
            reason: self.reason.clone(),
            audit: self.effect == Effect::AuditOnly,
            limit_spent: self.limit.is_some(),
            limit: self.limit.and_then(|limit| limit.spent(usage)),
            taint: self.looks_at_taint(),
        }
    }
}

/// The roots with relative ones resolved; absolute ones replace the base by themselves.
pub(crate) fn from_workdir(roots: &[PathBuf], workdir: &Path) -> Vec<PathBuf> {
    roots.iter().map(|root| workdir.join(root)).collect()
}
