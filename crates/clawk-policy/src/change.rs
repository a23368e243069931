//! Suggests what would change a verdict: the smallest edits of policy, autonomy or call. Each suggestion is verified by a new
//! decision.

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};

use clawk_manifest::model::{self, AutonomyLevel, RuleAction, RuleScope};
use serde_json::{Map, Value};

use crate::engine::{DENY_ALL, Engine, PolicySubject};
use crate::explain::WhyNot;
use crate::layers::{LayerAnswer, LayeredDecision, PolicyLayer, PolicyLayers};
use crate::path;
use crate::source::path_roots;
use crate::verdict::{Effect, Verdict};

/// The largest number of edits in one suggestion: autonomy, rules, `policy_ref` and `context.policy` may each need one.
const MAX_EDITS: usize = 4;
/// The largest number of decisions in the search for one suggestion.
const MAX_TRIES: usize = 300;
/// The largest number of suggestions per outcome.
const MAX_SUGGESTIONS: usize = 3;

/// The outcome of a verdict for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum VerdictOutcome {
    /// The call runs, with or without an audit event.
    Allow,
    /// A person is asked.
    Ask,
    /// The call is refused.
    Deny,
}

impl VerdictOutcome {
    /// All outcomes, mildest first.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Ask, Self::Deny];

    /// The manifest's name for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "require-approval",
            Self::Deny => "deny",
        }
    }

    const fn rule_action(self) -> RuleAction {
        match self {
            Self::Allow => RuleAction::Allow,
            Self::Ask => RuleAction::RequireApproval,
            Self::Deny => RuleAction::Deny,
        }
    }
}

impl From<Effect> for VerdictOutcome {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Allow | Effect::AuditOnly => Self::Allow,
            Effect::Ask(_) => Self::Ask,
            Effect::Deny => Self::Deny,
        }
    }
}

/// The inputs of a decision that an edit may change.
#[derive(Debug, Clone, PartialEq)]
pub struct EditableInputs {
    /// The manifest's policies, in order.
    pub policies: Vec<model::Policy>,
    /// The identity's autonomy.
    pub autonomy: AutonomyLevel,
    /// The policies named by `policy_ref` and `context.policy`.
    pub named: Vec<String>,
    /// The call's arguments. They replace those of the subject.
    pub arguments: Map<String, Value>,
}

/// One edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerdictEdit {
    /// Use another path in the call.
    Argument {
        /// JSON pointer into the arguments.
        pointer: String,
        /// The path in the call.
        from: String,
        /// The new path.
        to: String,
    },
    /// Change a rule's action.
    Action {
        /// The policy that holds the rule.
        policy: String,
        /// The rule's id.
        rule_id: String,
        /// The present action.
        from: &'static str,
        /// The new action.
        to: VerdictOutcome,
    },
    /// Add a rule for exactly one tool, before all other rules of its policy.
    FirstRule {
        /// The policy. It is created if it does not exist.
        policy: String,
        /// The new rule's id.
        rule_id: String,
        /// The tool.
        tool: String,
        /// The rule's action.
        action: VerdictOutcome,
    },
    /// Change the autonomy.
    Autonomy {
        /// The present level.
        from: AutonomyLevel,
        /// The new level.
        to: AutonomyLevel,
    },
    /// No longer apply this policy to the call in addition to the others.
    Unname {
        /// The policy.
        policy: String,
    },
}

/// Edits that together give the call this outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerdictChange {
    /// The call's outcome after the edits.
    pub outcome: VerdictOutcome,
    /// Never empty.
    pub edits: Vec<VerdictEdit>,
}

impl VerdictEdit {
    /// A stable name for the kind: `argument`, `action`, `first-rule`, `autonomy`, `policy-ref`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Argument { .. } => "argument",
            Self::Action { .. } => "action",
            Self::FirstRule { .. } => "first-rule",
            Self::Autonomy { .. } => "autonomy",
            Self::Unname { .. } => "policy-ref",
        }
    }

    /// The scope of the edit, smallest first: this call, a rule for this tool, a rule for more tools, the whole agent.
    fn reach(&self, situation: &EditableInputs, tool: &str) -> u8 {
        match self {
            Self::Argument { .. } => 0,
            Self::Action { policy, rule_id, .. } => {
                let named = situation
                    .find_rule(policy, rule_id)
                    .and_then(|rule| rule.matcher.name.as_deref());
                if named == Some(tool) { 1 } else { 3 }
            }
            Self::FirstRule { .. } => 2,
            Self::Autonomy { .. } => 4,
            Self::Unname { .. } => 5,
        }
    }
}

impl fmt::Display for VerdictEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument { pointer, from, to } => {
                write!(f, "call it with `{to}` instead of `{from}` at `{pointer}`")
            }
            Self::Action {
                policy,
                rule_id,
                from,
                to,
            } => write!(
                f,
                "in policy `{policy}`, make rule `{rule_id}` say `{}` instead of `{from}`",
                to.name()
            ),
            Self::FirstRule {
                policy,
                rule_id,
                tool,
                action,
            } => write!(
                f,
                "put first in policy `{policy}`: {{ id: {rule_id}, action: {}, scope: tool, match: {{ name: {tool} }} }}",
                action.name()
            ),
            Self::Autonomy { from, to } => {
                write!(f, "give the identity the autonomy `{to}` instead of `{from}`")
            }
            Self::Unname { policy } => write!(f, "let the call do without the policy `{policy}`"),
        }
    }
}

impl EditableInputs {
    fn find_rule(&self, policy: &str, rule_id: &str) -> Option<&model::Rule> {
        let policy = self.policies.iter().find(|one| one.name == policy)?;
        policy.rules.iter().find(|rule| rule.id == rule_id)
    }

    /// The call's verdict with these inputs. The subject's arguments are ignored. `None`: the policies don't compile.
    #[must_use]
    pub fn decide_call(&self, subject: &PolicySubject<'_>) -> Option<Verdict> {
        self.with_decision(subject, |account| account.verdict.clone())
    }

    fn with_decision<T>(
        &self,
        subject: &PolicySubject<'_>,
        take: impl FnOnce(&LayeredDecision<'_>) -> T,
    ) -> Option<T> {
        let engine = Engine::compile(&self.policies).ok()?; // silent-ok: no suggestion where nothing can be decided
        let named: Vec<&str> = self.named.iter().map(String::as_str).collect();
        let layers = PolicyLayers {
            autonomy: self.autonomy,
            named: &named,
        };
        let subject = PolicySubject {
            arguments: &self.arguments,
            // The real locations are known only for the original arguments.
            places: subject.places.filter(|_| *subject.arguments == self.arguments),
            ..*subject
        };
        Some(take(&layers.explain(&engine, &subject)))
    }

    /// The inputs after the edits. An edit of something that does not exist has no effect.
    #[must_use]
    pub fn with_edits(mut self, edits: &[VerdictEdit]) -> Self {
        for edit in edits {
            self.apply_edit(edit);
        }
        self
    }

    fn apply_edit(&mut self, edit: &VerdictEdit) {
        match edit {
            VerdictEdit::Argument { pointer, to, .. } => {
                let mut arguments = Value::Object(std::mem::take(&mut self.arguments));
                if let Some(slot) = arguments.pointer_mut(pointer) {
                    *slot = Value::String(to.clone());
                }
                if let Value::Object(map) = arguments {
                    self.arguments = map;
                }
            }
            VerdictEdit::Action {
                policy, rule_id, to, ..
            } => {
                let rules = self
                    .policies
                    .iter_mut()
                    .filter(|one| one.name == *policy)
                    .flat_map(|one| &mut one.rules);
                if let Some(rule) = rules.into_iter().find(|rule| rule.id == *rule_id) {
                    rule.action = to.rule_action();
                }
            }
            VerdictEdit::FirstRule {
                policy,
                rule_id,
                tool,
                action,
            } => {
                let rule = model::Rule {
                    id: rule_id.clone(),
                    action: action.rule_action(),
                    scope: RuleScope::Tool,
                    matcher: model::RuleMatch {
                        name: Some(tool.clone()),
                        ..model::RuleMatch::default()
                    },
                    conditions: Map::new(),
                    rate_limit: None,
                    reason: None,
                    approval: model::Approval::default(),
                };
                match self.policies.iter_mut().find(|one| one.name == *policy) {
                    Some(known) => known.rules.insert(0, rule),
                    None => self.policies.push(new_policy(policy, rule)),
                }
            }
            VerdictEdit::Autonomy { to, .. } => self.autonomy = *to,
            VerdictEdit::Unname { policy } => self.named.retain(|name| name != policy),
        }
    }

    /// The smallest changes that lead to each other outcome. Each change is verified; the smallest one is first.
    #[must_use]
    pub fn smallest_changes(&self, subject: &PolicySubject<'_>) -> Vec<VerdictChange> {
        let Some(now) = self.decide_call(subject) else {
            return Vec::new();
        };
        VerdictOutcome::ALL
            .into_iter()
            .filter(|wanted| *wanted != now.effect.into())
            .flat_map(|wanted| self.changes_to(subject, wanted))
            .collect()
    }

    /// Searches breadth-first, so that no smaller change among the candidates is missed.
    fn changes_to(&self, subject: &PolicySubject<'_>, wanted: VerdictOutcome) -> Vec<VerdictChange> {
        let mut found: Vec<Vec<VerdictEdit>> = Vec::new();
        let mut steps = usize::MAX;
        let mut open = VecDeque::from([(self.clone(), Vec::new(), 0_usize)]);
        let mut tries = 0;
        while let Some((situation, edits, depth)) = open.pop_front() {
            if depth >= MAX_EDITS || depth >= steps {
                break;
            }
            for candidate in situation.candidate_edits(subject, wanted) {
                tries += 1;
                if tries > MAX_TRIES {
                    open.clear();
                    break;
                }
                let next = situation.clone().with_edits(&candidate);
                let mut all: Vec<VerdictEdit> = edits.clone();
                all.extend(candidate);
                match next.decide_call(subject) {
                    Some(verdict) if VerdictOutcome::from(verdict.effect) == wanted => {
                        steps = depth + 1;
                        let all = self.shrink_edits(subject, all, wanted);
                        if !found.iter().any(|known| same_edits(known, &all)) {
                            found.push(all);
                        }
                    }
                    Some(_) => open.push_back((next, all, depth + 1)),
                    None => {}
                }
            }
        }
        let reach = |edits: &Vec<VerdictEdit>| {
            edits
                .iter()
                .map(|edit| edit.reach(self, subject.tool))
                .max()
                .unwrap_or_default()
        };
        found.sort_by_key(reach);
        found.truncate(MAX_SUGGESTIONS);
        found
            .into_iter()
            .map(|edits| VerdictChange {
                outcome: wanted,
                edits,
            })
            .collect()
    }

    /// Removes the edits that are not needed: if two paths were changed, one change may be enough.
    fn shrink_edits(
        &self,
        subject: &PolicySubject<'_>,
        mut edits: Vec<VerdictEdit>,
        wanted: VerdictOutcome,
    ) -> Vec<VerdictEdit> {
        let mut at = 0;
        while edits.len() > 1 && at < edits.len() {
            let mut fewer = edits.clone();
            fewer.remove(at);
            match self.clone().with_edits(&fewer).decide_call(subject) {
                Some(verdict) if VerdictOutcome::from(verdict.effect) == wanted => edits = fewer,
                Some(_) | None => at += 1,
            }
        }
        edits
    }

    /// Possible single edits towards an outcome. For a milder outcome: at every layer that is too strict, since one edit may fix
    /// several layers. For a stricter one: at the rules, where one change is enough.
    fn candidate_edits(&self, subject: &PolicySubject<'_>, wanted: VerdictOutcome) -> Vec<Vec<VerdictEdit>> {
        let found = self.with_decision(subject, |account| {
            let milder = wanted < account.verdict.effect.into();
            let mut all: Vec<Vec<VerdictEdit>> = Vec::new();
            for said in &account.layers {
                let touch = if milder {
                    VerdictOutcome::from(said.verdict.effect) > wanted
                } else {
                    said.layer == PolicyLayer::Rules
                };
                if touch {
                    all.extend(self.at_layer(said, subject, wanted, milder));
                }
            }
            all
        });
        let mut distinct = Vec::new();
        for candidate in found.unwrap_or_default() {
            if !distinct.contains(&candidate) {
                distinct.push(candidate);
            }
        }
        distinct
    }

    fn at_layer(
        &self,
        said: &LayerAnswer<'_>,
        subject: &PolicySubject<'_>,
        wanted: VerdictOutcome,
        milder: bool,
    ) -> Vec<Vec<VerdictEdit>> {
        match said.layer {
            PolicyLayer::Autonomy(now) => autonomy_edits(now),
            PolicyLayer::Rules => {
                let policy = self
                    .policies
                    .first()
                    .map_or("main", |policy| policy.name.as_str());
                self.by_rules(said, policy, subject, wanted, milder)
            }
            PolicyLayer::Named(policy) => {
                let known = policy != DENY_ALL && self.policies.iter().any(|one| one.name == policy);
                let mut all = if known {
                    self.by_rules(said, policy, subject, wanted, milder)
                } else {
                    Vec::new()
                };
                all.push(vec![VerdictEdit::Unname {
                    policy: policy.to_owned(),
                }]);
                all
            }
        }
    }

    fn by_rules(
        &self,
        said: &LayerAnswer<'_>,
        policy: &str,
        subject: &PolicySubject<'_>,
        wanted: VerdictOutcome,
        milder: bool,
    ) -> Vec<Vec<VerdictEdit>> {
        let mut all = Vec::new();
        if milder {
            all.extend(self.path_moves(said, subject, wanted));
        }
        let deciding = said
            .verdict
            .policy
            .as_deref()
            .zip(said.verdict.rule_id.as_deref());
        if let Some((policy, rule_id)) = deciding {
            all.push(vec![VerdictEdit::Action {
                policy: policy.to_owned(),
                rule_id: rule_id.to_owned(),
                from: said.verdict.effect.name(),
                to: wanted,
            }]);
        }
        if !subject.tool.contains(['*', '?']) {
            all.push(vec![VerdictEdit::FirstRule {
                policy: policy.to_owned(),
                rule_id: self.free_id(policy, &format!("{}-{}", wanted.name(), subject.tool)),
                tool: subject.tool.to_owned(),
                action: wanted,
            }]);
        }
        all
    }

    fn free_id(&self, policy: &str, stem: &str) -> String {
        let taken = |id: &str| self.find_rule(policy, id).is_some();
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        std::iter::once(stem.to_owned())
            .chain(numbered)
            .find(|id| !taken(id))
            .unwrap_or_default()
    }

    /// Other paths: into the root of a rule that would give the wanted outcome, or out of the root of the rule that decided.
    fn path_moves(
        &self,
        said: &LayerAnswer<'_>,
        subject: &PolicySubject<'_>,
        wanted: VerdictOutcome,
    ) -> Vec<Vec<VerdictEdit>> {
        let mut all = Vec::new();
        for step in &said.steps {
            let permissive = VerdictOutcome::from(step.effect) == VerdictOutcome::Allow;
            let into = step.why_not == Some(WhyNot::Path) && permissive && wanted == VerdictOutcome::Allow;
            let out_of = step.why_not.is_none() && !permissive;
            let Some(roots) = self
                .find_rule(step.policy, step.rule_id)
                .and_then(|rule| rule.conditions.get("path_within"))
                .and_then(path_roots)
            else {
                continue;
            };
            let lexical = |root: &PathBuf| subject.workdir.join(root).components().collect();
            let roots: Vec<PathBuf> = roots.iter().map(lexical).collect();
            let edits = match roots.first() {
                Some(root) if into => self.move_paths(subject, |path| !is_within(path, &roots), root),
                Some(_) if out_of => {
                    self.move_paths(subject, |path| is_within(path, &roots), subject.workdir)
                }
                _ => Vec::new(),
            };
            if !edits.is_empty() {
                all.push(edits);
            }
        }
        all
    }

    /// Moves every wrong or refused path argument into `folder`, and keeps its file name.
    fn move_paths(
        &self,
        subject: &PolicySubject<'_>,
        wrong: impl Fn(&Path) -> bool,
        folder: &Path,
    ) -> Vec<VerdictEdit> {
        path::path_arguments(&self.arguments, subject.schema)
            .into_iter()
            .filter(|(_, text)| {
                path::resolve_lexically(text, subject.workdir).map_or(true, |path| wrong(&path))
            })
            .map(|(pointer, from)| {
                let last = from.rsplit('/').find(|part| is_name(part)).unwrap_or("file");
                let to = folder.join(last);
                // The path in the form that people write. If it leads to another location, the new decision detects that.
                let to = to
                    .strip_prefix(subject.workdir)
                    .unwrap_or(&to)
                    .display()
                    .to_string();
                VerdictEdit::Argument { pointer, from, to }
            })
            .filter(|edit| !matches!(edit, VerdictEdit::Argument { from, to, .. } if from == to))
            .collect()
    }
}

/// Whether both contain the same edits, in any order.
fn same_edits(left: &[VerdictEdit], right: &[VerdictEdit]) -> bool {
    left.len() == right.len() && left.iter().all(|edit| right.contains(edit))
}

fn autonomy_edits(now: AutonomyLevel) -> Vec<Vec<VerdictEdit>> {
    [AutonomyLevel::Supervised, AutonomyLevel::Autonomous]
        .into_iter()
        .filter(|to| *to != now)
        .map(|to| vec![VerdictEdit::Autonomy { from: now, to }])
        .collect()
}

fn is_within(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}

fn is_name(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && !part.starts_with('~') && !part.contains('\0')
}

fn new_policy(name: &str, rule: model::Rule) -> model::Policy {
    model::Policy {
        name: name.to_owned(),
        version: None,
        labels: std::collections::BTreeMap::new(),
        rules: vec![rule],
        prompt_injection: None,
        secret_scanning: None,
        input_validation: None,
        rate_limits: model::PolicyRates::default(),
        audit: None,
    }
}
