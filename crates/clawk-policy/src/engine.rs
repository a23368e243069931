//! The engine: compiles every rule of a manifest once, and decides each call.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_manifest::model;
use serde_json::{Map, Value};

use crate::explain::{DecisionExplanation, ExplanationStep, WhyNot};
use crate::index::Index;
use crate::path::{CallPaths, RealLocations, RuleRoots};
use crate::rule::{Rule, Scope, from_workdir};
use crate::source::{self, CompileError, PolicyWarning};
use crate::value_sources::ValueSources;
use crate::verdict::{Effect, Verdict};

/// The policy name that always denies (R15).
pub const DENY_ALL: &str = "deny-all";

/// The call that a decision is about. All fields are borrowed.
#[derive(Debug, Clone, Copy)]
pub struct PolicySubject<'a> {
    /// The tool's name in the manifest.
    pub tool: &'a str,
    /// The tool's `metadata.labels`. The label `category` is the tool's category.
    pub labels: &'a BTreeMap<String, String>,
    /// The annotations in force (R13): the manifest's, the built-in tool's, or a trusted server's.
    pub annotations: &'a Map<String, Value>,
    /// The validated arguments of the call.
    pub arguments: &'a Map<String, Value>,
    /// The tool's `input_schema`, if any. Its `format`s mark paths.
    pub schema: Option<&'a Value>,
    /// The absolute base of relative paths.
    pub workdir: &'a Path,
    /// The usage so far, for rules with `rate_limit`.
    pub usage: UsageView,
    /// The real locations of the call's paths and of the rules' roots. `None`: the engine judges paths by their text alone.
    pub places: Option<&'a RealLocations>,
    /// The origins of untrusted text in the context of the call (`web https://…`); `None`: unknown.
    pub taint: Option<&'a [String]>,
    /// The texts in which the arguments' values are searched, for rules with `from`. `None`: no value is known to be clean.
    pub values: Option<&'a ValueSources>,
}

impl<'a> PolicySubject<'a> {
    /// The tool's category; an empty label counts as none.
    #[must_use]
    pub fn category(&self) -> Option<&'a str> {
        self.labels
            .get("category")
            .map(String::as_str)
            .filter(|category| !category.is_empty())
    }
}

/// The agent's usage in the current UTC day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageView {
    /// Input and output tokens.
    pub tokens_today: u64,
    /// Cost in millionths of a US dollar.
    pub cost_today_microusd: u64,
}

/// A subject with derived values, which are computed once and only if a rule needs them.
pub(crate) struct AnalyzedSubject<'a> {
    pub(crate) subject: &'a PolicySubject<'a>,
    /// Strings that only may be paths count for rules that ask. For rules that deny they always count.
    pub(crate) guesses: bool,
    paths: OnceCell<CallPaths>,
}

impl<'a> AnalyzedSubject<'a> {
    pub(crate) const fn new(subject: &'a PolicySubject<'a>) -> Self {
        Self {
            subject,
            guesses: true,
            paths: OnceCell::new(),
        }
    }

    /// The same call without guessed paths. `None`: it has none.
    fn without_guesses(&self) -> Option<Self> {
        self.paths.get()?.has_guesses().then(|| Self {
            subject: self.subject,
            guesses: false,
            paths: self.paths.clone(),
        })
    }

    pub(crate) fn rule_roots(&self, roots: &[PathBuf]) -> RuleRoots {
        RuleRoots::new(from_workdir(roots, self.subject.workdir), self.subject.places)
    }

    pub(crate) fn paths(&self) -> &CallPaths {
        let PolicySubject {
            arguments,
            schema,
            workdir,
            places,
            ..
        } = *self.subject;
        self.paths
            .get_or_init(|| CallPaths::from_arguments(arguments, schema, workdir, places))
    }
}

/// Rules in their order of evaluation, with an index.
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

    /// The first rule that applies.
    fn first_rule(&self, call: &AnalyzedSubject<'_>) -> Option<&Arc<Rule>> {
        let applies = |at| {
            self.rules
                .get(at)
                .is_some_and(|rule: &Arc<Rule>| rule.check_applies(call).is_ok())
        };
        self.rules.get(self.index.first_match(call.subject, applies)?)
    }

    fn call_verdict(&self, call: &AnalyzedSubject<'_>) -> Verdict {
        self.first_rule(call)
            .map_or_else(|| self.no_rule(), |rule| rule.verdict(call.subject.usage))
    }

    fn decide(&self, subject: &PolicySubject<'_>) -> Verdict {
        let call = AnalyzedSubject::new(subject);
        let verdict = self.call_verdict(&call);
        match subject_without_guesses(&call, &verdict) {
            Some(named) => verdict.stricter(self.call_verdict(&named)),
            None => verdict,
        }
    }

    fn explain<'e>(&'e self, subject: &PolicySubject<'_>) -> DecisionExplanation<'e> {
        let call = AnalyzedSubject::new(subject);
        let explained = self.explain_call(&call);
        let Some(named) = subject_without_guesses(&call, &explained.verdict) else {
            return explained;
        };
        let further = self.explain_call(&named);
        let verdict = explained.verdict.clone().stricter(further.verdict.clone());
        let steps = if verdict.rule_id == explained.verdict.rule_id {
            explained.steps
        } else {
            further.steps
        };
        DecisionExplanation { verdict, steps }
    }

    fn explain_call<'e>(&'e self, call: &AnalyzedSubject<'_>) -> DecisionExplanation<'e> {
        let mut steps = Vec::new();
        for rule in &self.rules {
            let why_not = rule.check_applies(call).err();
            let decided = why_not.is_none();
            let detail = matches!(why_not, Some(WhyNot::Path))
                .then(|| call.paths_detail(rule))
                .flatten();
            steps.push(ExplanationStep {
                policy: &rule.policy,
                rule_id: &rule.id,
                effect: rule.effect,
                why_not,
                detail,
            });
            if decided {
                return DecisionExplanation {
                    verdict: rule.verdict(call.subject.usage),
                    steps,
                };
            }
        }
        DecisionExplanation {
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

/// An `ask` verdict may depend on a guessed path and would then hide a later `deny`. Returns the call without guesses, to be
/// decided again.
fn subject_without_guesses<'a>(call: &AnalyzedSubject<'a>, verdict: &Verdict) -> Option<AnalyzedSubject<'a>> {
    matches!(verdict.effect, Effect::Ask(_))
        .then(|| call.without_guesses())
        .flatten()
}

/// Places that a tool's sandbox must hide, according to rules about reading files.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HiddenRoots {
    /// The denied roots.
    pub denied: BTreeSet<PathBuf>,
    /// Roots inside the denied ones that a rule allows for this tool.
    pub open: BTreeSet<PathBuf>,
}

impl HiddenRoots {
    /// The places that are closed to both tools, for a process that serves several tools.
    #[must_use]
    pub fn shared_with(mut self, other: &Self) -> Self {
        self.denied.retain(|root| other.denied.contains(root));
        self.open.extend(other.open.iter().cloned());
        self
    }
}

/// All rules of a manifest's policies, compiled.
#[derive(Debug, Clone)]
pub struct Engine {
    /// The rules of all policies, concatenated in manifest order (CKP §5.8).
    all: RuleSet,
    /// Each policy's own rules, for narrowing (R15).
    named: HashMap<Box<str>, RuleSet>,
    /// The rules of all policies that have a `path_within`.
    placed: RuleSet,
    warnings: Vec<PolicyWarning>,
}

impl Engine {
    /// Compiles the policies of a manifest, in order. Without policies, everything is denied (R14).
    ///
    /// # Errors
    /// A value that the manifest's validation should have rejected: see [`CompileError`].
    pub fn compile(policies: &[model::Policy]) -> Result<Self, CompileError> {
        let mut warnings = Vec::new();
        let rules = source::compile_rules(policies, &mut warnings)?;
        let names = policies
            .iter()
            .map(|policy| policy.name.as_str())
            .collect::<Vec<_>>();
        Ok(Self::from_rules(&names, rules, warnings))
    }

    pub(crate) fn from_rules(names: &[&str], rules: Vec<Rule>, mut warnings: Vec<PolicyWarning>) -> Self {
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
        let placed = rules
            .iter()
            .filter(|rule| rule.speaks_of_places())
            .cloned()
            .collect();
        let all = RuleSet::new(rules);
        warnings.extend(all.index.unreachable_rules(&all.rules));
        Self {
            all,
            named,
            placed: RuleSet::new(placed),
            warnings,
        }
    }

    /// Decides a call by the whole rule list. The first rule that applies decides; without one, the call is denied (CKP §5.8).
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use clawk_policy::{Effect, Engine, PolicySubject, UsageView};
    ///
    /// let engine = Engine::compile(&[])?;
    /// let (labels, facts) = Default::default();
    /// let verdict = engine.decide(&PolicySubject {
    ///     tool: "file-read",
    ///     labels: &labels,
    ///     annotations: &facts,
    ///     arguments: &facts,
    ///     schema: None,
    ///     workdir: Path::new("/work"),
    ///     usage: UsageView::default(),
    ///     places: None,
    ///     taint: Some(&[]),
    ///     values: None,
    /// });
    /// assert_eq!(verdict.effect, Effect::Deny);
    /// # Ok::<(), clawk_policy::CompileError>(())
    /// ```
    #[must_use]
    pub fn decide(&self, subject: &PolicySubject<'_>) -> Verdict {
        self.all.decide(subject)
    }

    /// Decides by one policy alone, for a tool's `policy_ref` and for `context.policy` (R15). The caller takes the
    /// [stricter](Verdict::stricter) of this and [`decide`](Self::decide). `deny-all` is built in; a declared policy of that name
    /// is ignored. `None`: the policy does not exist.
    #[must_use]
    pub fn decide_named(&self, policy: &str, subject: &PolicySubject<'_>) -> Option<Verdict> {
        if policy == DENY_ALL {
            return Some(deny_all());
        }
        self.named.get(policy).map(|rules| rules.decide(subject))
    }

    pub(crate) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.all.rules.iter().map(|rule| &**rule)
    }

    /// Whether a rule depends on the sources of argument values.
    #[must_use]
    pub fn looks_at_values(&self) -> bool {
        self.all.rules.iter().any(|rule| rule.looks_at_values())
    }

    /// Whether a rule depends on confidential text. Such a rule also needs the texts that are not foreign.
    #[must_use]
    pub fn looks_at_confidential(&self) -> bool {
        self.all.rules.iter().any(|rule| rule.looks_at_confidential())
    }

    /// Whether a policy of this name exists, so that [`decide_named`](Self::decide_named) returns a verdict.
    #[must_use]
    pub fn has_policy(&self, policy: &str) -> bool {
        policy == DENY_ALL || self.named.contains_key(policy)
    }

    /// Whether a deny rule names a tool that doesn't exist (R17).
    ///
    /// Considers only rules whose `match.name` matches and which need nothing that only a known tool or a spent limit has. The
    /// first of them decides; `Some` if it denies. Conditions fail closed, as always. A rule without `match.name` names no tool, so
    /// after a catch-all deny the tool is still reported as unknown.
    #[must_use]
    pub fn denies_by_name(&self, tool: &str) -> Option<Verdict> {
        self.named_rule(tool, |rule| rule.conditions.is_empty() || !rule.is_permissive())
    }

    fn named_rule(&self, tool: &str, counts: impl Fn(&Rule) -> bool) -> Option<Verdict> {
        let names_it = |rule: &Rule| {
            rule.matcher.name.as_ref().is_some_and(|name| name.matches(tool))
                && rule.matcher.asks_for_name_only()
                && rule.scope != Scope::Category
                && rule.limit.is_none()
                && counts(rule)
        };
        self.all
            .rules
            .iter()
            .find(|rule| names_it(rule))
            .filter(|rule| rule.effect == Effect::Deny)
            .map(|rule| rule.verdict(UsageView::default()))
    }

    /// Whether a deny rule names a known tool in this call. Of the rules whose `match.name` matches the subject's name and which
    /// apply, the first decides; `Some` if it denies. For names besides the tool's own name: the declared tool behind a server's
    /// tool, or an action.
    #[must_use]
    pub fn denies_call_by_name(&self, subject: &PolicySubject<'_>) -> Option<Verdict> {
        let call = AnalyzedSubject::new(subject);
        let decides = |rule: &&Arc<Rule>| rule.matcher.name.is_some() && rule.check_applies(&call).is_ok();
        self.all
            .rules
            .iter()
            .find(decides)
            .filter(|rule| rule.effect == Effect::Deny)
            .map(|rule| rule.verdict(subject.usage))
    }

    /// As [`denies_by_name`](Self::denies_by_name), for rules without conditions. Their denial needs no look at the arguments.
    #[must_use]
    pub fn always_denies_by_name(&self, tool: &str) -> Option<Verdict> {
        self.named_rule(tool, |rule| rule.conditions.is_empty())
    }

    /// Explains which rule decides, and why each earlier rule does not. Checks all rules one by one, so it is slower than
    /// [`decide`](Self::decide).
    #[must_use]
    pub fn explain<'e>(&'e self, subject: &PolicySubject<'_>) -> DecisionExplanation<'e> {
        self.all.explain(subject)
    }

    /// The same for one policy alone, as in [`decide_named`](Self::decide_named). `None`: the policy does not exist.
    #[must_use]
    pub fn explain_named<'e>(
        &'e self,
        policy: &str,
        subject: &PolicySubject<'_>,
    ) -> Option<DecisionExplanation<'e>> {
        if policy == DENY_ALL {
            let (verdict, steps) = (deny_all(), Vec::new());
            return Some(DecisionExplanation { verdict, steps });
        }
        self.named.get(policy).map(|rules| rules.explain(subject))
    }

    /// Whether other arguments could give another verdict: a rule that matches the tool, and may be reached, depends on paths.
    #[must_use]
    pub fn arguments_matter(&self, subject: &PolicySubject<'_>) -> bool {
        let call = AnalyzedSubject::new(subject);
        for rule in &self.all.rules {
            if rule.looks_at_arguments(subject) {
                return true;
            }
            if rule.check_applies(&call).is_ok() {
                return false;
            }
        }
        false
    }

    /// The absolute roots of every `path_within` rule that matches the tool; a verdict may change at these. `true`: one of the
    /// rules denies or asks. Empty: no rule depends on the call's paths.
    #[must_use]
    pub fn path_rule_roots(&self, subject: &PolicySubject<'_>) -> BTreeMap<PathBuf, bool> {
        let mut roots = BTreeMap::new();
        let _none = self.placed.index.first_match(subject, |at| {
            let rule = self.placed.rules.get(at);
            for rule in rule.into_iter().filter(|rule| rule.looks_at_arguments(subject)) {
                for root in rule.path_roots(subject.workdir) {
                    *roots.entry(root).or_default() |= !rule.is_permissive();
                }
            }
            false
        });
        roots
    }

    /// The absolute roots of every `path_within` rule.
    #[must_use]
    pub fn all_roots(&self, workdir: &Path) -> BTreeSet<PathBuf> {
        let rules = self.placed.rules.iter();
        rules.flat_map(|rule| rule.path_roots(workdir)).collect()
    }

    /// The places that the tool's sandbox must hide: those denied to the tool itself, and those denied to tools that read files,
    /// unless a rule allows them for this tool. `named`: the policies that narrow it in addition.
    #[must_use]
    pub fn hidden_roots(&self, subject: &PolicySubject<'_>, named: &[&str]) -> HiddenRoots {
        let mut closed = HiddenRoots::default();
        let reader = FileReaderSubject::new();
        let reader = reader.subject(subject.workdir);
        let roots = [self.path_rule_roots(subject), self.path_rule_roots(&reader)];
        let roots: BTreeSet<PathBuf> = roots.into_iter().flat_map(BTreeMap::into_keys).collect();
        let narrowing: Vec<&RuleSet> = named.iter().filter_map(|name| self.named.get(*name)).collect();
        for root in roots {
            let Some(path) = root.to_str() else { continue };
            let arguments = Map::from_iter([("path".to_owned(), Value::from(path))]);
            let said = |rules: &RuleSet, of: &PolicySubject<'_>| {
                let subject = PolicySubject {
                    arguments: &arguments,
                    schema: None,
                    places: None,
                    ..*of
                };
                let rule = rules.first_rule(&AnalyzedSubject::new(&subject))?;
                rule.speaks_of_places().then_some(rule.effect == Effect::Deny)
            };
            let own = said(&self.all, subject);
            let narrowed = narrowing.iter().any(|rules| said(rules, subject) == Some(true));
            match (own, said(&self.all, &reader)) {
                (Some(true), _) | (None, Some(true)) => drop(closed.denied.insert(root)),
                _ if narrowed => drop(closed.denied.insert(root)),
                (Some(false), _) => drop(closed.open.insert(root)),
                (None, Some(false) | None) => {}
            }
        }
        closed
    }

    /// Warnings for the author of the policies: rules that can never decide, and unknown conditions.
    #[must_use]
    pub fn warnings(&self) -> &[PolicyWarning] {
        &self.warnings
    }

    #[cfg(test)]
    pub(crate) const fn index(&self) -> &Index {
        &self.all.index
    }

    /// The number of rules.
    #[must_use]
    pub const fn rule_count(&self) -> usize {
        self.all.rules.len()
    }
}

/// A tool that reads files, as a subject. A command line or a server must not see what rules deny to such a tool.
struct FileReaderSubject {
    labels: BTreeMap<String, String>,
    annotations: Map<String, Value>,
    arguments: Map<String, Value>,
}

impl FileReaderSubject {
    fn new() -> Self {
        Self {
            labels: BTreeMap::from([("category".to_owned(), "filesystem".to_owned())]),
            annotations: Map::from_iter([("readOnlyHint".to_owned(), Value::Bool(true))]),
            arguments: Map::new(),
        }
    }

    fn subject<'a>(&'a self, workdir: &'a Path) -> PolicySubject<'a> {
        PolicySubject {
            tool: "file-read",
            labels: &self.labels,
            annotations: &self.annotations,
            arguments: &self.arguments,
            schema: None,
            workdir,
            usage: UsageView::default(),
            places: None,
            taint: Some(&[]),
            values: None,
        }
    }
}

fn deny_all() -> Verdict {
    Verdict {
        policy: Some(DENY_ALL.into()),
        ..Verdict::deny("the policy `deny-all` denies everything")
    }
}
