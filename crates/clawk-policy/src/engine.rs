//! The engine: every rule of a manifest, compiled once, asked for each call.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use clawk_manifest::model;
use serde_json::{Map, Value};

use crate::explain::{Explanation, Step, WhyNot};
use crate::index::Index;
use crate::path::CallPaths;
use crate::rule::{Rule, Scope};
use crate::source::{self, CompileError, Warning};
use crate::verdict::{Effect, Verdict};

/// The policy name that always denies (R15).
pub const DENY_ALL: &str = "deny-all";

/// The call that a decision is about. Borrowed; nothing is kept.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The tool's name in the manifest.
    pub tool: &'a str,
    /// The tool's `metadata.labels`; `category` among them is its category.
    pub labels: &'a BTreeMap<String, String>,
    /// The annotations that count (R13): the manifest's, the built-in's, or a trusted server's.
    pub annotations: &'a Map<String, Value>,
    /// The call's arguments, already validated.
    pub arguments: &'a Map<String, Value>,
    /// The tool's `input_schema`, where there is one: its `format`s tell paths.
    pub schema: Option<&'a Value>,
    /// Where relative paths start; absolute.
    pub workdir: &'a Path,
    /// What has been spent so far, for rules with `rate_limit`.
    pub usage: UsageView,
}

impl<'a> Subject<'a> {
    /// The tool's category; an empty one is none.
    #[must_use]
    pub fn category(&self) -> Option<&'a str> {
        self.labels
            .get("category")
            .map(String::as_str)
            .filter(|category| !category.is_empty())
    }
}

/// What the agent has used up in the current day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageView {
    /// Tokens, input and output.
    pub tokens_today: u64,
    /// Millionths of a US dollar.
    pub cost_today_microusd: u64,
}

/// A subject with what is worked out from it once, and only if a rule asks.
pub(crate) struct Call<'a> {
    pub(crate) subject: &'a Subject<'a>,
    paths: OnceCell<CallPaths>,
}

impl<'a> Call<'a> {
    pub(crate) const fn new(subject: &'a Subject<'a>) -> Self {
        Self {
            subject,
            paths: OnceCell::new(),
        }
    }

    pub(crate) fn paths(&self) -> &CallPaths {
        let Subject {
            arguments,
            schema,
            workdir,
            ..
        } = *self.subject;
        self.paths
            .get_or_init(|| CallPaths::of(arguments, schema, workdir))
    }
}

/// Rules in their order of evaluation, with the index over them.
#[derive(Debug, Clone)]
struct RuleSet {
    rules: Vec<Arc<Rule>>,
    index: Index,
}

impl RuleSet {
    fn new(rules: Vec<Arc<Rule>>) -> Self {
        let index = Index::new(&rules);
        Self { rules, index }
    }

    fn decide(&self, subject: &Subject<'_>) -> Verdict {
        let call = Call::new(subject);
        match self.index.first(subject, |at| {
            self.rules.get(at).is_some_and(|rule| rule.applies(&call).is_ok())
        }) {
            Some(at) => self
                .rules
                .get(at)
                .map_or_else(|| self.no_rule(), |rule| rule.verdict()),
            None => self.no_rule(),
        }
    }

    fn explain<'e>(&'e self, subject: &Subject<'_>) -> Explanation<'e> {
        let call = Call::new(subject);
        let mut steps = Vec::new();
        for rule in &self.rules {
            let why_not = rule.applies(&call).err();
            let decided = why_not.is_none();
            let detail = matches!(why_not, Some(WhyNot::Path))
                .then(|| call.paths_detail(rule))
                .flatten();
            steps.push(Step {
                policy: &rule.policy,
                rule_id: &rule.id,
                effect: rule.effect,
                why_not,
                detail,
            });
            if decided {
                return Explanation {
                    verdict: rule.verdict(),
                    steps,
                };
            }
        }
        Explanation {
            verdict: self.no_rule(),
            steps,
        }
    }

    fn no_rule(&self) -> Verdict {
        Verdict::deny(if self.rules.is_empty() {
            "no policy is declared: everything is denied"
        } else {
            "no policy rule allows this call"
        })
    }
}

/// Every rule of a manifest's policies, compiled once.
#[derive(Debug, Clone)]
pub struct Engine {
    /// All policies' rules, concatenated in manifest order (CKP §5.8).
    all: RuleSet,
    /// Each policy alone, for narrowing (R15).
    named: HashMap<Box<str>, RuleSet>,
    warnings: Vec<Warning>,
}

impl Engine {
    /// Compiles the policies of a manifest, in its order. Without any, everything is denied (R14).
    ///
    /// # Errors
    /// A value that the manifest's validation should have refused: see [`CompileError`].
    pub fn compile(policies: &[model::Policy]) -> Result<Self, CompileError> {
        let mut warnings = Vec::new();
        let rules = source::rules(policies, &mut warnings)?;
        let names = policies
            .iter()
            .map(|policy| policy.name.as_str())
            .collect::<Vec<_>>();
        Ok(Self::from_rules(&names, rules, warnings))
    }

    pub(crate) fn from_rules(names: &[&str], rules: Vec<Rule>, mut warnings: Vec<Warning>) -> Self {
        let rules: Vec<Arc<Rule>> = rules.into_iter().map(Arc::new).collect();
        let named = names
            .iter()
            .map(|&name| {
                let own = rules
                    .iter()
                    .filter(|rule| &*rule.policy == name)
                    .cloned()
                    .collect();
                (name.into(), RuleSet::new(own))
            })
            .collect();
        let all = RuleSet::new(rules);
        warnings.extend(all.index.unreachable(&all.rules));
        Self { all, named, warnings }
    }

    /// Decides a call by the whole rule list; the first rule that applies decides (CKP §5.8).
    #[must_use]
    pub fn decide(&self, subject: &Subject<'_>) -> Verdict {
        self.all.decide(subject)
    }

    /// Decides by one policy alone, for a tool's `policy_ref` and `context.policy` (R15): the caller takes the
    /// [stricter](Verdict::stricter) of this and [`decide`](Self::decide). `deny-all` is built in, whatever a manifest
    /// declares by that name. `None`: there is no such policy.
    #[must_use]
    pub fn decide_named(&self, policy: &str, subject: &Subject<'_>) -> Option<Verdict> {
        if policy == DENY_ALL {
            return Some(deny_all());
        }
        self.named.get(policy).map(|rules| rules.decide(subject))
    }

    /// A policy of this name exists ([`decide_named`](Self::decide_named) would answer).
    #[must_use]
    pub fn has_policy(&self, policy: &str) -> bool {
        policy == DENY_ALL || self.named.contains_key(policy)
    }

    /// Whether a deny rule names a tool that doesn't exist (R17).
    ///
    /// Of the rules whose `match.name` fits, and which ask for nothing that only a known tool or a spent limit can meet, the
    /// first decides; `Some` if it denies. Conditions fail closed, as always. A rule without `match.name` names no tool, so a catch-all deny leaves the tool unknown.
    #[must_use]
    pub fn denies_by_name(&self, tool: &str) -> Option<Verdict> {
        let names_it = |rule: &Rule| {
            rule.matcher.name.as_ref().is_some_and(|name| name.matches(tool))
                && rule.matcher.asks_for_name_only()
                && rule.scope != Scope::Category
                && rule.limit.is_none()
                && (rule.conditions.is_empty() || !rule.is_permissive())
        };
        self.all
            .rules
            .iter()
            .find(|rule| names_it(rule))
            .filter(|rule| rule.effect == Effect::Deny)
            .map(|rule| rule.verdict())
    }

    /// Which rule decides and why each earlier one does not. Walks the rules one by one: for people, not for the path.
    #[must_use]
    pub fn explain<'e>(&'e self, subject: &Subject<'_>) -> Explanation<'e> {
        self.all.explain(subject)
    }

    /// The same for one policy alone, as [`decide_named`](Self::decide_named) has it. `None`: there is no such policy.
    #[must_use]
    pub fn explain_named<'e>(&'e self, policy: &str, subject: &Subject<'_>) -> Option<Explanation<'e>> {
        if policy == DENY_ALL {
            let (verdict, steps) = (deny_all(), Vec::new());
            return Some(Explanation { verdict, steps });
        }
        self.named.get(policy).map(|rules| rules.explain(subject))
    }

    /// Whether other arguments could get another answer: a rule that the tool fits, and that is not surely passed over,
    /// looks at paths.
    #[must_use]
    pub fn arguments_matter(&self, subject: &Subject<'_>) -> bool {
        let call = Call::new(subject);
        for rule in &self.all.rules {
            if rule.looks_at_arguments(subject) {
                return true;
            }
            if rule.applies(&call).is_ok() {
                return false;
            }
        }
        false
    }

    /// What the author of the policies should know: rules that can never decide, conditions that nothing understands.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    #[cfg(test)]
    pub(crate) const fn index(&self) -> &Index {
        &self.all.index
    }

    /// How many rules there are.
    #[must_use]
    pub const fn rule_count(&self) -> usize {
        self.all.rules.len()
    }
}

fn deny_all() -> Verdict {
    Verdict {
        policy: Some(DENY_ALL.into()),
        ..Verdict::deny("the policy `deny-all` denies everything")
    }
}
