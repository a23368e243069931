//! The compiled engine must say what a reader of the specification, rule after rule, would say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use crate::engine::{Engine, PolicySubject, UsageView};
use crate::glob::NamePattern;
use crate::rule::{Limit, Matcher, Rule, RuleCondition, Scope};
use crate::verdict::{Approval, Effect, TimeoutDefault};

const NAMES: &[&str] = &["shell", "file-read", "file-write", "web-fetch", "file", "é-tool"];
const PATTERNS: &[&str] = &[
    "shell",
    "file-read",
    "file-*",
    "*",
    "*-read",
    "f*-r??d",
    "web-?etch",
    "*e*",
    "?-tool",
    "nothing",
    "file*",
];
const CATEGORIES: &[&str] = &["filesystem", "network", "misc"];
const ROOTS: &[&str] = &["/workspace", "/workspace/a", "/", "sub"];
const PATHS: &[&str] = &[
    "/workspace/x",
    "/workspace-2/x",
    "a/b",
    "/workspace/a/../b",
    "~/x",
    "sub/y",
    "/etc//x",
    ".",
];

/// A call with its own data.
#[derive(Debug, Clone)]
struct Scene {
    tool: String,
    labels: BTreeMap<String, String>,
    annotations: Map<String, Value>,
    arguments: Map<String, Value>,
    usage: UsageView,
}

impl Scene {
    fn subject(&self) -> PolicySubject<'_> {
        PolicySubject {
            tool: &self.tool,
            labels: &self.labels,
            annotations: &self.annotations,
            arguments: &self.arguments,
            schema: None,
            workdir: Path::new("/workspace"),
            usage: self.usage,
            places: None,
            taint: Some(&[]),
            values: None,
        }
    }
}

// ---- the naive reading -------------------------------------------------------------------------------------------

pub(super) fn fits(pattern: &[char], name: &[char]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some(('*', rest)), _) => {
            fits(rest, name) || name.split_first().is_some_and(|(_, n)| fits(pattern, n))
        }
        (Some((p, rest)), Some((n, name))) => (*p == '?' || p == n) && fits(rest, name),
        _ => false,
    }
}

pub(super) fn chars(text: &str) -> Vec<char> {
    text.chars().collect()
}

/// `Some(inside)`, or `None` when the path is refused.
pub(super) fn lies_inside(path: &str, root: &str) -> Option<bool> {
    if path.contains("..") || path.contains("//") || path.starts_with('~') {
        return None;
    }
    let absolute = |text: &str| match text {
        "." => "/workspace".to_owned(),
        _ if text.starts_with('/') => text.to_owned(),
        _ => format!("/workspace/{text}"),
    };
    let (path, root) = (absolute(path), absolute(root));
    Some(root == "/" || path == root || path.starts_with(&format!("{root}/")))
}

fn naive_applies(rule: &Rule, scene: &Scene) -> bool {
    let category = scene.labels.get("category");
    let scope = rule.scope != Scope::Category || category.is_some();
    let name = rule
        .matcher
        .name
        .as_ref()
        .is_none_or(|name| fits(&chars(name.text()), &chars(&scene.tool)));
    let by_category = rule
        .matcher
        .category
        .as_ref()
        .is_none_or(|wanted| category.is_some_and(|c| **c == **wanted));
    let labels = rule
        .matcher
        .labels
        .iter()
        .all(|(k, v)| scene.labels.get(&**k).is_some_and(|found| **found == **v));
    let annotations = rule
        .matcher
        .annotations
        .iter()
        .all(|(k, v)| scene.annotations.get(&**k) == Some(v));
    let permissive = matches!(rule.effect, Effect::Allow | Effect::AuditOnly);
    let limit = rule.limit.is_none_or(|limit| {
        limit
            .tokens_per_day
            .is_some_and(|tokens| scene.usage.tokens_today >= tokens)
            || limit
                .cost_per_day_microusd
                .is_some_and(|cost| scene.usage.cost_today_microusd >= cost)
    });
    let conditions = rule.conditions.iter().all(|condition| match condition {
        // A scene's context holds nothing of others.
        RuleCondition::Taint(_) | RuleCondition::From(_) | RuleCondition::Confidential(_) => false,
        RuleCondition::Unknown(_) => !permissive,
        RuleCondition::PathWithin(roots) => {
            let paths: Vec<&str> = scene.arguments.values().filter_map(Value::as_str).collect();
            let paths = if paths.is_empty() { vec!["."] } else { paths };
            let inside = |path: &&str| {
                let answers: Option<Vec<bool>> = roots
                    .iter()
                    .map(|r| lies_inside(path, &r.to_string_lossy()))
                    .collect();
                answers.map(|answers| answers.contains(&true))
            };
            if permissive {
                paths.iter().all(|path| inside(path) == Some(true))
            } else {
                paths.iter().any(|path| inside(path) != Some(false))
            }
        }
    });
    scope && name && by_category && labels && annotations && limit && conditions
}

// ---- generators --------------------------------------------------------------------------------------------------

fn effects() -> impl Strategy<Value = Effect> {
    let ask = |default_if_timeout| {
        Effect::Ask(Approval {
            timeout_ms: 1000,
            default_if_timeout,
        })
    };
    select(vec![
        Effect::Allow,
        Effect::AuditOnly,
        Effect::Deny,
        ask(TimeoutDefault::Deny),
        ask(TimeoutDefault::Allow),
    ])
}

fn annotation_values() -> impl Strategy<Value = (Box<str>, Value)> {
    let keys = select(vec!["readOnlyHint", "destructiveHint", "team"]);
    let values = select(vec![
        json!(true),
        json!(false),
        json!("red"),
        json!(3),
        json!(null),
        json!([1]),
    ]);
    (keys, values).prop_map(|(key, value)| (key.into(), value))
}

fn label_values() -> impl Strategy<Value = (Box<str>, Box<str>)> {
    (
        select(vec!["tier", "category", "owner"]),
        select(vec!["network", "gold", "misc"]),
    )
        .prop_map(|(key, value)| (key.into(), value.into()))
}

fn conditions() -> impl Strategy<Value = RuleCondition> {
    prop_oneof![
        4 => prop::collection::vec(select(ROOTS), 1..3)
            .prop_map(|roots| RuleCondition::PathWithin(roots.into_iter().map(PathBuf::from).collect())),
        1 => Just(RuleCondition::Unknown("weather".into())),
    ]
}

fn rules() -> impl Strategy<Value = Rule> {
    let matcher = (
        prop::option::weighted(0.6, select(PATTERNS).prop_map(NamePattern::new)),
        prop::option::weighted(0.3, select(CATEGORIES).prop_map(Box::from)),
        prop::collection::vec(label_values(), 0..2),
        prop::collection::vec(annotation_values(), 0..2),
    )
        .prop_map(|(name, category, labels, annotations)| Matcher {
            name,
            category,
            labels,
            annotations,
        });
    let limit = (prop::option::of(0..4u64), prop::option::of(0..4u64)).prop_map(
        |(tokens_per_day, cost_per_day_microusd)| Limit {
            tokens_per_day,
            cost_per_day_microusd,
        },
    );
    (
        effects(),
        select(vec![Scope::Tool, Scope::Category, Scope::All]),
        matcher,
        prop::collection::vec(conditions(), 0..2),
        prop::option::weighted(0.15, limit),
    )
        .prop_map(|(effect, scope, matcher, conditions, limit)| Rule {
            policy: "p".into(),
            id: "r".into(),
            effect,
            scope,
            matcher,
            conditions,
            limit,
            reason: None,
        })
}

fn scenes() -> impl Strategy<Value = Scene> {
    (
        select(NAMES),
        prop::option::weighted(0.7, select(CATEGORIES)),
        prop::collection::vec(label_values(), 0..3),
        prop::collection::vec(annotation_values(), 0..3),
        prop::collection::btree_map(select(vec!["path", "source", "output_dir"]), select(PATHS), 0..3),
        (0..5u64, 0..5u64),
    )
        .prop_map(
            |(tool, category, labels, annotations, arguments, (tokens, cost))| {
                let mut labels: BTreeMap<String, String> = labels
                    .into_iter()
                    .map(|(key, value)| (key.into(), value.into()))
                    .collect();
                labels.extend(category.map(|category| ("category".to_owned(), category.to_owned())));
                Scene {
                    tool: tool.to_owned(),
                    labels,
                    annotations: annotations
                        .into_iter()
                        .map(|(key, value)| (key.into(), value))
                        .collect(),
                    arguments: arguments
                        .into_iter()
                        .map(|(key, path)| (key.to_owned(), json!(path)))
                        .collect(),
                    usage: UsageView {
                        tokens_today: tokens,
                        cost_today_microusd: cost,
                    },
                }
            },
        )
}

proptest! {
    // 512 policies × 48 calls: 24,576 pairs.
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_is_the_naive_reading(
        mut list in prop::collection::vec(rules(), 0..24),
        calls in prop::collection::vec(scenes(), 48),
    ) {
        for (at, rule) in list.iter_mut().enumerate() {
            rule.id = format!("r{at}").into();
        }
        let engine = Engine::from_rules(&["p"], list.clone(), Vec::new());
        let mut deciding = std::collections::BTreeSet::new();
        for call in &calls {
            let naive = list.iter().find(|rule| naive_applies(rule, call));
            let verdict = engine.decide(&call.subject());
            prop_assert_eq!(verdict.effect, naive.map_or(Effect::Deny, |rule| rule.effect), "{:?}", call);
            prop_assert_eq!(verdict.rule_id.as_deref(), naive.map(|rule| &*rule.id), "{:?}", call);
            let explained = engine.explain(&call.subject());
            prop_assert_eq!(&explained.verdict, &verdict);
            let passed_over = explained.steps.iter().filter(|step| step.why_not.is_some()).count();
            prop_assert_eq!(explained.steps.len() - passed_over, usize::from(naive.is_some()));
            prop_assert_eq!(engine.decide_named("p", &call.subject()), Some(verdict.clone()));
            deciding.extend(verdict.rule_id);
        }
        // A rule called unreachable never decides.
        for warning in engine.warnings() {
            prop_assert!(!deciding.contains(&warning.rule_id), "{}", warning);
        }
    }

    #[test]
    fn a_pattern_that_covers_another_matches_all_its_names(
        ours in "[ab*?]{0,5}", theirs in "[ab*?]{0,5}", names in prop::collection::vec("[abé]{0,5}", 32),
    ) {
        let (ours, theirs) = (NamePattern::new(&ours), NamePattern::new(&theirs));
        for name in &names {
            prop_assert_eq!(ours.matches(name), fits(&chars(ours.text()), &chars(name)));
            if ours.covers_pattern(Some(&theirs)) && theirs.matches(name) {
                prop_assert!(ours.matches(name), "{:?} {:?} {}", ours, theirs, name);
            }
        }
    }
}
