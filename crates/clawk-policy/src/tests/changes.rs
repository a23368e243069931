//! Explanations agree with decisions, and what is said to turn a verdict turns it.

use std::collections::BTreeMap;
use std::path::Path;

use clawk_manifest::model::{self, AutonomyLevel};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use crate::change::{EditableInputs, VerdictEdit, VerdictOutcome};
use crate::engine::{Engine, PolicySubject, UsageView};
use crate::layers::{PolicyLayer, PolicyLayers};

fn policy(name: &str, rules: Vec<Value>) -> model::Policy {
    let rules: Vec<Value> = rules
        .into_iter()
        .enumerate()
        .map(|(at, mut rule)| {
            rule["id"] = json!(format!("r{at}"));
            rule
        })
        .collect();
    serde_json::from_value(json!({"name": name, "rules": rules})).expect("a policy")
}

fn rules() -> impl Strategy<Value = Vec<Value>> {
    let rule = (
        select(vec!["allow", "deny", "require-approval", "audit-only"]),
        select(vec!["tool", "category", "all"]),
        prop::option::of(select(vec!["file-read", "file-*", "shell", "*"])),
        prop::option::weighted(0.4, select(vec!["/workspace", "/workspace/a", "sub"])),
        prop::option::weighted(0.2, 0..3_u64),
    )
        .prop_map(|(action, scope, name, within, tokens)| {
            let mut rule = json!({"action": action, "scope": scope});
            if let Some(name) = name {
                rule["match"] = json!({"name": name});
            }
            if let Some(root) = within {
                rule["conditions"] = json!({"path_within": root});
            }
            if let Some(tokens) = tokens {
                rule["rate_limit"] = json!({"tokens_per_day": tokens});
            }
            rule
        });
    prop::collection::vec(rule, 0..6)
}

#[derive(Debug, Clone)]
struct Scene {
    tool: &'static str,
    read_only: Option<bool>,
    category: bool,
    tokens: u64,
    situation: EditableInputs,
}

fn scenes() -> impl Strategy<Value = Scene> {
    let call = (
        select(vec!["file-read", "file-write", "shell"]),
        prop::option::of(any::<bool>()),
        any::<bool>(),
        0..4_u64,
        prop::collection::btree_map(
            select(vec!["path", "workdir", "text"]),
            select(vec!["/workspace/a/x", "/etc/passwd", "../up", "sub/y", "plain"]),
            0..3,
        ),
    );
    let manifest = (
        prop::collection::vec(rules(), 0..3),
        select(vec![
            AutonomyLevel::Observer,
            AutonomyLevel::Supervised,
            AutonomyLevel::Autonomous,
        ]),
        prop::collection::vec(select(vec!["p0", "p1", "deny-all", "gone"]), 0..2),
    );
    (call, manifest).prop_map(|(call, (policies, autonomy, named))| {
        let (tool, read_only, category, tokens, arguments) = call;
        Scene {
            tool,
            read_only,
            category,
            tokens,
            situation: EditableInputs {
                policies: policies
                    .into_iter()
                    .enumerate()
                    .map(|(at, rules)| policy(&format!("p{at}"), rules))
                    .collect(),
                autonomy,
                named: named.into_iter().map(str::to_owned).collect(),
                arguments: arguments
                    .into_iter()
                    .map(|(key, text)| (key.to_owned(), json!(text)))
                    .collect(),
            },
        }
    })
}

impl Scene {
    fn with<T>(&self, take: impl FnOnce(&PolicySubject<'_>) -> T) -> T {
        let mut labels = BTreeMap::new();
        if self.category {
            labels.insert("category".to_owned(), "filesystem".to_owned());
        }
        let mut annotations = Map::new();
        if let Some(hint) = self.read_only {
            annotations.insert("readOnlyHint".to_owned(), Value::Bool(hint));
        }
        take(&PolicySubject {
            tool: self.tool,
            labels: &labels,
            annotations: &annotations,
            arguments: &self.situation.arguments,
            schema: None,
            workdir: Path::new("/workspace"),
            usage: UsageView {
                tokens_today: self.tokens,
                cost_today_microusd: 0,
            },
            places: None,
            taint: Some(&[]),
            values: None,
        })
    }
}

/// The layers' verdict by the engine's own functions, without explanations.
fn outcome(situation: &EditableInputs, subject: &PolicySubject<'_>) -> VerdictOutcome {
    let engine = Engine::compile(&situation.policies).expect("compiles");
    let named: Vec<&str> = situation.named.iter().map(String::as_str).collect();
    let layers = PolicyLayers {
        autonomy: situation.autonomy,
        named: &named,
    };
    let subject = PolicySubject {
        arguments: &situation.arguments,
        ..*subject
    };
    layers.decide(&engine, &subject).effect.into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_account_agrees_with_the_decision(scene in scenes()) {
        scene.with(|subject| {
            let engine = Engine::compile(&scene.situation.policies).expect("compiles");
            let named: Vec<&str> = scene.situation.named.iter().map(String::as_str).collect();
            let layers = PolicyLayers { autonomy: scene.situation.autonomy, named: &named };
            let account = layers.explain(&engine, subject);
            prop_assert_eq!(&account.verdict, &layers.decide(&engine, subject));
            let decided = account.deciding_layer().expect("a layer");
            prop_assert_eq!(decided.verdict.effect, account.verdict.effect);
            prop_assert_eq!(&decided.verdict.rule_id, &account.verdict.rule_id);
            if !engine.arguments_matter(subject) {
                for other in [json!({}), json!({"path": "/elsewhere", "cwd": "../x"})] {
                    let arguments = other.as_object().expect("a map");
                    prop_assert_eq!(engine.decide(&PolicySubject { arguments, ..*subject }), engine.decide(subject));
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn every_smallest_change_turns_the_verdict(scene in scenes()) {
        scene.with(|subject| {
            let now = outcome(&scene.situation, subject);
            let changes = scene.situation.smallest_changes(subject);
            for change in &changes {
                prop_assert_ne!(change.outcome, now);
                let then = scene.situation.clone().with_edits(&change.edits);
                prop_assert_eq!(outcome(&then, subject), change.outcome, "{:?}", change);
                // Smallest: no single edit of it is enough by itself, unless it is the only one.
                if change.edits.len() > 1 && !change.edits.iter().any(|edit| matches!(edit, VerdictEdit::Argument { .. })) {
                    for edit in &change.edits {
                        let then = scene.situation.clone().with_edits(std::slice::from_ref(edit));
                        prop_assert_ne!(outcome(&then, subject), change.outcome, "{:?}", change);
                    }
                }
            }
            for wanted in VerdictOutcome::ALL.into_iter().filter(|wanted| *wanted != now) {
                let reachable = wanted != VerdictOutcome::Ask || scene.situation.autonomy != AutonomyLevel::Supervised;
                prop_assert!(!reachable || changes.iter().any(|change| change.outcome == wanted), "{wanted:?}");
            }
            Ok(())
        })?;
    }
}

#[test]
fn what_touches_least_comes_first() {
    let rules = vec![
        json!({"action": "allow", "scope": "tool", "match": {"name": "file-read"}, "conditions": {"path_within": "/workspace"}}),
        json!({"action": "deny", "scope": "all"}),
    ];
    let scene = Scene {
        tool: "file-read",
        read_only: Some(true),
        category: true,
        tokens: 0,
        situation: EditableInputs {
            policies: vec![policy("p0", rules)],
            autonomy: AutonomyLevel::Autonomous,
            named: Vec::new(),
            arguments: json!({"path": "/etc/passwd"}).as_object().expect("a map").clone(),
        },
    };
    let texts: Vec<String> = scene
        .with(|subject| scene.situation.smallest_changes(subject))
        .iter()
        .map(|change| format!("{}: {}", change.outcome.name(), change.edits[0]))
        .collect();
    assert_eq!(
        texts,
        [
            "allow: call it with `passwd` instead of `/etc/passwd` at `/path`",
            "allow: put first in policy `p0`: { id: allow-file-read, action: allow, scope: tool, match: { name: file-read } }",
            "allow: in policy `p0`, make rule `r1` say `allow` instead of `deny`",
            "require-approval: put first in policy `p0`: { id: require-approval-file-read, action: require-approval, scope: tool, match: { name: file-read } }",
            "require-approval: in policy `p0`, make rule `r1` say `require-approval` instead of `deny`",
        ]
    );
}

#[test]
fn layers_may_each_need_an_edit() {
    let scene = Scene {
        tool: "shell",
        read_only: None,
        category: false,
        tokens: 0,
        situation: EditableInputs {
            policies: Vec::new(),
            autonomy: AutonomyLevel::Supervised,
            named: vec!["deny-all".to_owned()],
            arguments: Map::new(),
        },
    };
    scene.with(|subject| {
        let engine = Engine::compile(&[]).expect("compiles");
        let layers = PolicyLayers {
            autonomy: AutonomyLevel::Supervised,
            named: &["deny-all"],
        };
        let account = layers.explain(&engine, subject);
        assert_eq!(
            account.deciding_layer().map(|said| said.layer),
            Some(PolicyLayer::Rules)
        );
    });
    let changes = scene.with(|subject| scene.situation.smallest_changes(subject));
    let to = |wanted| {
        changes
            .iter()
            .find(|change| change.outcome == wanted)
            .map(|change| change.edits.len())
    };
    assert_eq!(to(VerdictOutcome::Ask), Some(2), "{changes:?}");
    assert_eq!(to(VerdictOutcome::Allow), Some(3), "{changes:?}");
}
