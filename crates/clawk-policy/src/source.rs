//! Compiles the manifest's validated policies to rules, and warns the author about doubtful ones.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use clawk_manifest::model;
use serde_json::{Map, Value};

use crate::confidential::ConfidentialCondition;
use crate::engine::DENY_ALL;
use crate::glob::NamePattern;
use crate::rule::{Limit, Matcher, Rule, RuleCondition, Scope};
use crate::value::ValueCondition;
use crate::verdict::{Approval, Effect};

/// A value that does not allow a decision. The manifest's validation rejects such values first; this is a second check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// `rate_limit.cost_per_day_usd` is negative, not a number, or too large to count in millionths.
    #[error("policy `{policy}`, rule `{rule}`: `cost_per_day_usd` must be a number from 0 to 1,000,000,000")]
    Cost {
        /// The policy.
        policy: String,
        /// The rule's id.
        rule: String,
    },
    /// `approval.timeout_seconds` is 0 or more than a year.
    #[error("policy `{policy}`, rule `{rule}`: `timeout_seconds` must be from 1 to 31,536,000")]
    Timeout {
        /// The policy.
        policy: String,
        /// The rule's id.
        rule: String,
    },
}

/// A legal setting that is probably a mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyWarning {
    /// The policy.
    pub policy: Arc<str>,
    /// The rule's id; empty if the warning is about the policy itself.
    pub rule_id: Arc<str>,
    /// The kind of the warning.
    pub kind: WarningKind,
}

/// The kinds of [`PolicyWarning`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WarningKind {
    /// An earlier rule decides every call that this one matches.
    Unreachable {
        /// The earlier rule.
        by: Arc<str>,
        /// Its policy.
        by_policy: Arc<str>,
    },
    /// A key of `conditions` is unknown, or its value is not valid; the rule fails closed.
    UnknownCondition(Box<str>),
    /// The rule allows calls only after its limit is used up (R11), which is rarely intended.
    AllowsWhenSpent,
    /// A policy has the built-in name `deny-all`, which always denies (R15).
    ReservedName,
}

impl fmt::Display for PolicyWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            policy,
            rule_id,
            kind,
        } = self;
        match kind {
            WarningKind::Unreachable { by, by_policy } => write!(
                f,
                "policy `{policy}`: rule `{rule_id}` can never decide, because `{by}` of `{by_policy}` comes first and matches the same calls"
            ),
            WarningKind::UnknownCondition(key) => write!(
                f,
                "policy `{policy}`: rule `{rule_id}` has a condition `{key}` that is not understood: it never allows and always restricts"
            ),
            WarningKind::AllowsWhenSpent => write!(
                f,
                "policy `{policy}`: rule `{rule_id}` allows calls only once its rate limit is spent; a limit wants `action: deny`"
            ),
            WarningKind::ReservedName => {
                write!(
                    f,
                    "policy `{policy}`: the name is built in and denies everything when a call names it"
                )
            }
        }
    }
}

/// All rules in evaluation order: the policies as listed, each one's rules as written (CKP §5.8).
pub(crate) fn compile_rules(
    policies: &[model::Policy],
    warnings: &mut Vec<PolicyWarning>,
) -> Result<Vec<Rule>, CompileError> {
    let mut rules = Vec::with_capacity(policies.iter().map(|policy| policy.rules.len()).sum());
    for policy in policies {
        let name: Arc<str> = policy.name.as_str().into();
        if policy.name == DENY_ALL {
            let kind = WarningKind::ReservedName;
            warnings.push(PolicyWarning {
                policy: Arc::clone(&name),
                rule_id: "".into(),
                kind,
            });
        }
        for rule in &policy.rules {
            let compiled = compile_rule(&name, rule)?;
            warnings.extend(rule_warnings(&compiled));
            rules.push(compiled);
        }
    }
    Ok(rules)
}

fn compile_rule(policy: &Arc<str>, rule: &model::Rule) -> Result<Rule, CompileError> {
    Ok(Rule {
        policy: Arc::clone(policy),
        id: rule.id.as_str().into(),
        effect: parse_effect(policy, rule)?,
        scope: match rule.scope {
            model::RuleScope::Tool => Scope::Tool,
            model::RuleScope::Category => Scope::Category,
            model::RuleScope::All => Scope::All,
        },
        matcher: build_matcher(&rule.matcher),
        conditions: parse_conditions(&rule.conditions),
        limit: rule
            .rate_limit
            .as_ref()
            .map(|rate| parse_limit(policy, rule, rate))
            .transpose()?,
        reason: rule.reason.as_deref().map(Arc::from),
    })
}

fn parse_effect(policy: &str, rule: &model::Rule) -> Result<Effect, CompileError> {
    const YEAR_SECONDS: u64 = 31_536_000;
    Ok(match rule.action {
        model::RuleAction::Allow => Effect::Allow,
        model::RuleAction::AuditOnly => Effect::AuditOnly,
        model::RuleAction::Deny => Effect::Deny,
        model::RuleAction::RequireApproval => {
            let model::Approval {
                timeout_seconds,
                default_if_timeout,
            } = rule.approval;
            if !(1..=YEAR_SECONDS).contains(&timeout_seconds) {
                return Err(CompileError::Timeout {
                    policy: policy.to_owned(),
                    rule: rule.id.clone(),
                });
            }
            Effect::Ask(Approval {
                timeout_ms: timeout_seconds * 1000,
                default_if_timeout,
            })
        }
    })
}

fn build_matcher(given: &model::RuleMatch) -> Matcher {
    Matcher {
        name: given.name.as_deref().map(NamePattern::new),
        category: given.category.as_deref().map(Box::from),
        labels: given
            .labels
            .iter()
            .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
            .collect(),
        annotations: given
            .annotations
            .iter()
            .map(|(key, value)| (key.as_str().into(), value.clone()))
            .collect(),
    }
}

fn parse_conditions(given: &Map<String, Value>) -> Vec<RuleCondition> {
    let read = |(key, value): (&String, &Value)| match (key.as_str(), path_roots(value)) {
        ("path_within", Some(roots)) => RuleCondition::PathWithin(roots),
        ("taint", _) => parse_taint(value).map_or_else(
            || RuleCondition::Unknown(key.as_str().into()),
            RuleCondition::Taint,
        ),
        ("from", _) => ValueCondition::read(value).map_or_else(
            || RuleCondition::Unknown(key.as_str().into()),
            RuleCondition::From,
        ),
        ("confidential", _) => ConfidentialCondition::read(value).map_or_else(
            || RuleCondition::Unknown(key.as_str().into()),
            RuleCondition::Confidential,
        ),
        _ => RuleCondition::Unknown(key.as_str().into()),
    };
    given.iter().map(read).collect()
}

/// The kinds of origins that a rule's `taint` may name.
pub const TAINTS: [&str; 5] = ["web", "peer", "tool", "file", "memory"];

/// Reads one kind of origin, or a list of alternatives.
fn parse_taint(value: &Value) -> Option<Vec<Box<str>>> {
    let kinds: Vec<&str> = match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().map(Value::as_str).collect::<Option<_>>()?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
    };
    let known = !kinds.is_empty() && kinds.iter().all(|kind| TAINTS.contains(kind));
    known.then(|| kinds.into_iter().map(Into::into).collect())
}

/// Reads one root, or a list of alternatives. `None`: there is no root, or one contains `..`, `~` or NUL.
pub(crate) fn path_roots(value: &Value) -> Option<Vec<PathBuf>> {
    let texts: Vec<&str> = match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().map(Value::as_str).collect::<Option<_>>()?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
    };
    let roots = texts
        .iter()
        .map(|text| path_root(text))
        .collect::<Option<Vec<_>>>()?;
    (!roots.is_empty()).then_some(roots)
}

fn path_root(text: &str) -> Option<PathBuf> {
    let lexical = |part| !matches!(part, Component::ParentDir | Component::Prefix(_));
    let readable = !text.is_empty() && !text.starts_with('~') && !text.contains('\0');
    (readable && Path::new(text).components().all(lexical)).then(|| Path::new(text).components().collect())
}

fn parse_limit(policy: &str, rule: &model::Rule, rate: &model::RuleRate) -> Result<Limit, CompileError> {
    let cost_per_day_microusd = rate
        .cost_per_day_usd
        .map(|usd| {
            micro_usd(usd).ok_or_else(|| CompileError::Cost {
                policy: policy.to_owned(),
                rule: rule.id.clone(),
            })
        })
        .transpose()?;
    Ok(Limit {
        tokens_per_day: rate.tokens_per_day,
        cost_per_day_microusd,
    })
}

/// Whole millionths of a dollar, rounded down, so that a limit is never raised. `None`: negative, not a number, or more than 10^9
/// dollars.
#[must_use]
pub fn micro_usd(usd: f64) -> Option<u64> {
    if !(0.0..=1e9).contains(&usd) {
        return None;
    }
    // A tiny amount is added first, so that 0.29 gives 290,000 and not 289,999.
    let micro = (usd * 1e6 + 1e-3).floor();
    format!("{micro:.0}").parse().ok()
}

/// Warns about legal settings that are probably mistakes.
fn rule_warnings(rule: &Rule) -> Vec<PolicyWarning> {
    let warning = |kind| PolicyWarning {
        policy: Arc::clone(&rule.policy),
        rule_id: Arc::clone(&rule.id),
        kind,
    };
    let mut found = Vec::new();
    for condition in &rule.conditions {
        match condition {
            RuleCondition::Unknown(key) => found.push(warning(WarningKind::UnknownCondition(key.clone()))),
            RuleCondition::PathWithin(_)
            | RuleCondition::Taint(_)
            | RuleCondition::From(_)
            | RuleCondition::Confidential(_) => {}
        }
    }
    if rule.is_permissive() && rule.limit.is_some() {
        found.push(warning(WarningKind::AllowsWhenSpent));
    }
    found
}
