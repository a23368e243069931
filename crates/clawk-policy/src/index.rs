//! Finds the first rule that applies without checking every rule.
//!
//! Each rule is in exactly one bucket, chosen by the most selective part of its `match`. A call checks only the buckets of its own
//! name, category, annotations and labels. It stops in a bucket when the remaining rules are later than the best one found. So the
//! cost depends on the rules that nearly match, not on all rules.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::engine::{PolicySubject, UsageView};
use crate::glob::{NamePattern, WildcardPattern};
use crate::rule::{Rule, Scope};
use crate::source::{PolicyWarning, WarningKind};

/// Positions of rules, ascending.
type RuleBucket = Vec<usize>;

/// Rules by one scalar value.
#[derive(Debug, Clone, Default)]
struct ByValue {
    yes: RuleBucket,
    no: RuleBucket,
    text: HashMap<Box<str>, RuleBucket>,
}

/// The buckets of all rules.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    exact: HashMap<Box<str>, RuleBucket>,
    category: HashMap<Box<str>, RuleBucket>,
    /// Patterns by the text before the first wildcard, if there is any.
    prefix: HashMap<Box<str>, RuleBucket>,
    /// The lengths, in bytes, of the keys of `prefix`.
    prefix_lengths: BTreeSet<usize>,
    /// Patterns that begin with a wildcard, by the text after the last wildcard.
    suffix: HashMap<Box<str>, RuleBucket>,
    suffix_lengths: BTreeSet<usize>,
    annotation: HashMap<Box<str>, ByValue>,
    label: HashMap<Box<str>, HashMap<Box<str>, RuleBucket>>,
    /// All other rules: patterns without a literal end, annotations that are neither boolean nor text, and rules without a `match`.
    rest: RuleBucket,
}

impl Index {
    pub(crate) fn new(rules: &[Arc<Rule>]) -> Self {
        let mut index = Self::default();
        for (at, rule) in rules.iter().enumerate() {
            index.bucket_for(rule).push(at);
        }
        index.prefix_lengths = index.prefix.keys().map(|key| key.len()).collect();
        index.suffix_lengths = index.suffix.keys().map(|key| key.len()).collect();
        index
    }

    fn bucket_for(&mut self, rule: &Rule) -> &mut RuleBucket {
        let matcher = &rule.matcher;
        if let Some(NamePattern::Exact(name)) = &matcher.name {
            return self.exact.entry(name.clone()).or_default();
        }
        if let Some(category) = &matcher.category {
            return self.category.entry(category.clone()).or_default();
        }
        if let Some(NamePattern::Glob(glob)) = &matcher.name
            && let Some(bucket) = by_ends(&mut self.prefix, &mut self.suffix, glob)
        {
            return bucket;
        }
        let scalar = matcher
            .annotations
            .iter()
            .find(|(_, value)| value.is_boolean() || value.is_string());
        if let Some((key, value)) = scalar {
            let by_value = self.annotation.entry(key.clone()).or_default();
            return match value {
                Value::Bool(true) => &mut by_value.yes,
                Value::String(text) => by_value.text.entry(text.as_str().into()).or_default(),
                _ => &mut by_value.no,
            };
        }
        match matcher.labels.first() {
            Some((key, value)) => self
                .label
                .entry(key.clone())
                .or_default()
                .entry(value.clone())
                .or_default(),
            None => &mut self.rest,
        }
    }

    /// The smallest position for which `applies` returns true. `applies` is called only for rules that may match.
    pub(crate) fn first_match(
        &self,
        subject: &PolicySubject<'_>,
        mut applies: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let mut best = usize::MAX;
        self.each_bucket(subject, |bucket| {
            for &at in bucket.iter().take_while(|&&at| at < best) {
                if applies(at) {
                    best = at;
                    break;
                }
            }
        });
        (best != usize::MAX).then_some(best)
    }

    /// Passes on every bucket that may hold a matching rule.
    fn each_bucket<'i>(&'i self, subject: &PolicySubject<'_>, mut take: impl FnMut(&'i RuleBucket)) {
        take(&self.rest);
        let mut give = |bucket: Option<&'i RuleBucket>| {
            if let Some(bucket) = bucket {
                take(bucket);
            }
        };
        give(self.exact.get(subject.tool));
        give(
            subject
                .category()
                .and_then(|category| self.category.get(category)),
        );
        for &length in &self.prefix_lengths {
            give(
                subject
                    .tool
                    .get(..length)
                    .and_then(|prefix| self.prefix.get(prefix)),
            );
        }
        for &length in &self.suffix_lengths {
            let start = subject.tool.len().checked_sub(length);
            give(
                start
                    .and_then(|start| subject.tool.get(start..))
                    .and_then(|suffix| self.suffix.get(suffix)),
            );
        }
        if !self.annotation.is_empty() {
            for (key, value) in subject.annotations {
                let by_value = self.annotation.get(key.as_str());
                give(by_value.and_then(|by_value| match value {
                    Value::Bool(true) => Some(&by_value.yes),
                    Value::Bool(false) => Some(&by_value.no),
                    Value::String(text) => by_value.text.get(text.as_str()),
                    Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
                }));
            }
        }
        if !self.label.is_empty() {
            for (key, value) in subject.labels {
                give(
                    self.label
                        .get(key.as_str())
                        .and_then(|values| values.get(value.as_str())),
                );
            }
        }
    }

    /// Finds rules that can never decide, because an earlier rule always decides first.
    pub(crate) fn unreachable_rules(&self, rules: &[Arc<Rule>]) -> Vec<PolicyWarning> {
        let mut found = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            // The minimal call that matches `rule`. A rule that matches this call matches every call that `rule` matches.
            let mut labels: BTreeMap<String, String> = BTreeMap::new();
            labels.extend(
                rule.matcher
                    .labels
                    .iter()
                    .map(|(key, value)| (key.to_string(), value.to_string())),
            );
            if let Some(category) = &rule.matcher.category {
                labels.insert("category".to_owned(), category.to_string());
            }
            let annotations: Map<String, Value> = rule
                .matcher
                .annotations
                .iter()
                .map(|(key, value)| (key.to_string(), value.clone()))
                .collect();
            let least = PolicySubject {
                tool: rule.matcher.name.as_ref().map_or("*", NamePattern::text),
                labels: &labels,
                annotations: &annotations,
                arguments: &Map::new(),
                schema: None,
                workdir: Path::new("/"),
                usage: UsageView::default(),
                places: None,
                taint: Some(&[]),
                values: None,
            };
            let by = self.first_match(&least, |other| {
                other < at
                    && rules
                        .get(other)
                        .is_some_and(|other| rule_covers(other, rule, &least))
            });
            if let Some(by) = by.and_then(|by| rules.get(by)) {
                let kind = WarningKind::Unreachable {
                    by: Arc::clone(&by.id),
                    by_policy: Arc::clone(&by.policy),
                };
                found.push(PolicyWarning {
                    policy: Arc::clone(&rule.policy),
                    rule_id: Arc::clone(&rule.id),
                    kind,
                });
            }
        }
        found
    }
}

fn by_ends<'m>(
    prefix: &'m mut HashMap<Box<str>, RuleBucket>,
    suffix: &'m mut HashMap<Box<str>, RuleBucket>,
    glob: &WildcardPattern,
) -> Option<&'m mut RuleBucket> {
    match (glob.prefix(), glob.suffix()) {
        ("", "") => None,
        ("", end) => Some(suffix.entry(end.into()).or_default()),
        (start, _) => Some(prefix.entry(start.into()).or_default()),
    }
}

/// Whether `other` decides every call that `rule` matches.
fn rule_covers(other: &Rule, rule: &Rule, least: &PolicySubject<'_>) -> bool {
    let name = other.matcher.name.as_ref();
    let category_sure =
        other.scope != Scope::Category || rule.scope == Scope::Category || least.category().is_some();
    other.is_unconditional()
        && category_sure
        && name.is_none_or(|name| name.covers_pattern(rule.matcher.name.as_ref()))
        && other.matcher.facts_match(least).is_ok()
}
