//! 100,000 random (policy, call) pairs: the compiled engine says what a reader of the policies' own text would say, the
//! explanation agrees, and what is said to turn the verdict turns it, for the engine and for the reader, and no less does.

use std::collections::BTreeMap;
use std::path::Path;

use clawk_manifest::model::{self, AutonomyLevel};
use serde_json::{Map, Value, json};

use super::naive::{chars, fits, lies_inside};
use crate::change::{EditableInputs, VerdictOutcome};
use crate::engine::{Engine, PolicySubject, UsageView};
use crate::layers::PolicyLayers;
use crate::testing::Dice;

const PAIRS: usize = 100_000;
const CALLS_PER_POLICY: usize = 50;
/// Looking for the smallest change decides hundreds of times: one pair in so many.
const CHANGES_EVERY: usize = 97;

const ACTIONS: &[&str] = &["allow", "deny", "require-approval", "audit-only"];
const SCOPES: &[&str] = &["tool", "category", "all"];
const TOOLS: &[&str] = &["shell", "file-read", "file-write", "web-fetch", "file"];
const PATTERNS: &[&str] = &[
    "shell",
    "file-*",
    "*",
    "f*-r??d",
    "*e*",
    "web-?etch",
    "nothing",
    "file",
    "file-write",
];
const CATEGORIES: &[&str] = &["filesystem", "network", "misc"];
const ROOTS: &[&str] = &["/workspace", "/workspace/a", "/", "sub"];
const PATHS: &[&str] = &[
    "/workspace/x",
    "/workspace/a/b",
    "a/b",
    "sub/y",
    "/etc/passwd",
    "/workspace-2/x",
    "/workspace/a/../b",
    "~/x",
];
const KEYS: &[&str] = &["path", "source", "output_dir"];
const TEAMS: &[&str] = &["red", "blue"];

/// A call, and what it is decided by.
struct Pair<'a> {
    policies: &'a [Value],
    autonomy: AutonomyLevel,
    named: &'a [String],
    tool: &'a str,
    labels: BTreeMap<String, String>,
    annotations: Map<String, Value>,
    arguments: Map<String, Value>,
    tokens: u64,
}

fn one<'a>(dice: &mut Dice, of: &[&'a str]) -> &'a str {
    dice.pick(of).copied().unwrap()
}

fn odds(dice: &mut Dice, percent: usize) -> bool {
    dice.below(100) < percent
}

fn rule(dice: &mut Dice, at: usize) -> Value {
    let mut matched = Map::new();
    if odds(dice, 55) {
        matched.insert("name".into(), json!(one(dice, PATTERNS)));
    }
    if odds(dice, 25) {
        matched.insert("category".into(), json!(one(dice, CATEGORIES)));
    }
    if odds(dice, 15) {
        matched.insert("labels".into(), json!({"team": one(dice, TEAMS)}));
    }
    if odds(dice, 20) {
        matched.insert("annotations".into(), json!({"readOnlyHint": odds(dice, 50)}));
    }
    let mut rule = json!({"id": format!("r{at}"), "action": one(dice, ACTIONS), "scope": one(dice, SCOPES), "match": matched});
    if odds(dice, 30) {
        rule["conditions"] = json!({"path_within": one(dice, ROOTS)});
    } else if odds(dice, 5) {
        rule["conditions"] = json!({"weather": "fine"});
    }
    if odds(dice, 12) {
        rule["rate_limit"] = json!({"tokens_per_day": dice.below(4)});
    }
    rule
}

// ---- the naive reading: of the documents, rule after rule, layer after layer --------------------------------------

fn applies(rule: &Value, pair: &Pair<'_>) -> bool {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let category = pair.labels.get("category").cloned();
    let matched = &rule["match"];
    let permissive = matches!(rule["action"].as_str(), Some("allow" | "audit-only"));
    let scope = rule["scope"] != "category" || category.is_some();
    let name = text(&matched["name"]).is_none_or(|name| fits(&chars(&name), &chars(pair.tool)));
    let in_category = text(&matched["category"]).is_none_or(|wanted| category == Some(wanted));
    let team = text(&matched["labels"]["team"]).is_none_or(|team| pair.labels.get("team") == Some(&team));
    let hint = matched["annotations"].get("readOnlyHint");
    let annotation = hint.is_none_or(|hint| pair.annotations.get("readOnlyHint") == Some(hint));
    let limit = rule["rate_limit"]["tokens_per_day"]
        .as_u64()
        .is_none_or(|limit| pair.tokens >= limit);
    let unknown = rule["conditions"].get("weather").is_none() || !permissive;
    let within = text(&rule["conditions"]["path_within"]).is_none_or(|root| {
        let paths: Vec<&str> = pair.arguments.values().filter_map(Value::as_str).collect();
        let paths = if paths.is_empty() { vec!["."] } else { paths };
        let mut inside = paths.iter().map(|path| lies_inside(path, &root));
        if permissive {
            inside.all(|answer| answer == Some(true))
        } else {
            inside.any(|answer| answer != Some(false))
        }
    });
    scope && name && in_category && team && annotation && limit && unknown && within
}

fn outcome_of(rule: Option<&Value>) -> VerdictOutcome {
    match rule.and_then(|rule| rule["action"].as_str()) {
        Some("allow" | "audit-only") => VerdictOutcome::Allow,
        Some("require-approval") => VerdictOutcome::Ask,
        _ => VerdictOutcome::Deny,
    }
}

fn first<'p>(policies: impl Iterator<Item = &'p Value>, pair: &Pair<'_>) -> Option<&'p Value> {
    policies
        .flat_map(|policy| policy["rules"].as_array().unwrap())
        .find(|rule| applies(rule, pair))
}

/// The strictest of autonomy, all rules, and each policy that is named besides.
fn read(pair: &Pair<'_>) -> VerdictOutcome {
    let autonomy = match pair.autonomy {
        AutonomyLevel::Observer => VerdictOutcome::Deny,
        AutonomyLevel::Supervised if pair.annotations.get("readOnlyHint") != Some(&json!(true)) => {
            VerdictOutcome::Ask
        }
        AutonomyLevel::Supervised | AutonomyLevel::Autonomous => VerdictOutcome::Allow,
    };
    let all = outcome_of(first(pair.policies.iter(), pair));
    let named = pair.named.iter().map(|name| {
        let of = pair.policies.iter().filter(|policy| policy["name"] == **name);
        if name == "deny-all" {
            VerdictOutcome::Deny
        } else {
            outcome_of(first(of, pair))
        }
    });
    named.fold(autonomy.max(all), VerdictOutcome::max)
}

// ---- the test -----------------------------------------------------------------------------------------------------

fn compile(policies: &[Value]) -> Vec<model::Policy> {
    policies
        .iter()
        .map(|policy| serde_json::from_value(policy.clone()).unwrap())
        .collect()
}

fn call<'a>(
    dice: &mut Dice,
    policies: &'a [Value],
    named: &'a [String],
    autonomy: AutonomyLevel,
) -> Pair<'a> {
    let mut labels = BTreeMap::new();
    if odds(dice, 65) {
        labels.insert("category".to_owned(), one(dice, CATEGORIES).to_owned());
    }
    if odds(dice, 40) {
        labels.insert("team".to_owned(), one(dice, TEAMS).to_owned());
    }
    let mut annotations = Map::new();
    if odds(dice, 60) {
        annotations.insert("readOnlyHint".to_owned(), json!(odds(dice, 50)));
    }
    let mut arguments = Map::new();
    for key in KEYS {
        if odds(dice, 35) {
            arguments.insert((*key).to_owned(), json!(one(dice, PATHS)));
        }
    }
    Pair {
        policies,
        autonomy,
        named,
        tool: one(dice, TOOLS),
        labels,
        annotations,
        arguments,
        tokens: u64::try_from(dice.below(5)).unwrap(),
    }
}

#[test]
fn a_hundred_thousand_pairs_are_decided_as_they_read() {
    let mut dice = Dice::new(20_261_122);
    let (mut pairs, mut outcomes, mut turned) = (0, BTreeMap::<VerdictOutcome, usize>::new(), 0);
    while pairs < PAIRS {
        let policies: Vec<Value> = (0..dice.below(4))
            .map(|p| {
                let rules: Vec<Value> = (0..=dice.below(7))
                    .map(|at| rule(&mut dice, p * 100 + at))
                    .collect();
                json!({"name": format!("p{p}"), "rules": rules})
            })
            .collect();
        let autonomy = *dice
            .pick(&[
                AutonomyLevel::Autonomous,
                AutonomyLevel::Autonomous,
                AutonomyLevel::Supervised,
                AutonomyLevel::Observer,
            ])
            .unwrap();
        let mut named = Vec::new();
        if odds(&mut dice, 25) {
            named.push(match dice.below(8) {
                0 => "deny-all".to_owned(),
                other => format!("p{}", other % 3),
            });
        }
        named.retain(|name| name == "deny-all" || policies.iter().any(|policy| policy["name"] == **name));
        let models = compile(&policies);
        let engine = Engine::compile(&models).unwrap();
        let names: Vec<&str> = named.iter().map(String::as_str).collect();
        for _ in 0..CALLS_PER_POLICY {
            pairs += 1;
            let pair = call(&mut dice, &policies, &named, autonomy);
            let verdict = check(&engine, &names, &pair);
            *outcomes.entry(verdict).or_default() += 1;
            if pairs % CHANGES_EVERY == 0 {
                turned += changes(&models, &pair, verdict);
            }
        }
    }
    // The generator reaches every outcome often, and suggestions are really made.
    assert!(
        outcomes.len() == 3 && outcomes.values().all(|count| *count > PAIRS / 20),
        "{outcomes:?}"
    );
    assert!(turned > PAIRS / CHANGES_EVERY, "{turned}");
}

fn subject<'a>(pair: &'a Pair<'_>) -> PolicySubject<'a> {
    PolicySubject {
        tool: pair.tool,
        labels: &pair.labels,
        annotations: &pair.annotations,
        arguments: &pair.arguments,
        schema: None,
        workdir: Path::new("/workspace"),
        usage: UsageView {
            tokens_today: pair.tokens,
            cost_today_microusd: 0,
        },
        places: None,
        taint: Some(&[]),
        values: None,
    }
}

/// Decision and explanation against the reading.
fn check(engine: &Engine, named: &[&str], pair: &Pair<'_>) -> VerdictOutcome {
    let subject = subject(pair);
    let rules = engine.decide(&subject);
    let naive = first(pair.policies.iter(), pair);
    assert_eq!(
        rules.rule_id.as_deref(),
        naive.and_then(|rule| rule["id"].as_str()),
        "{:?}",
        pair.policies
    );
    assert_eq!(VerdictOutcome::from(rules.effect), outcome_of(naive));
    let layers = PolicyLayers {
        autonomy: pair.autonomy,
        named,
    };
    let decided = layers.decide(engine, &subject);
    let outcome = VerdictOutcome::from(decided.effect);
    assert_eq!(outcome, read(pair), "{:?} {:?}", pair.policies, pair.named);
    let account = layers.explain(engine, &subject);
    assert_eq!(account.verdict, decided);
    let said = account.deciding_layer().unwrap();
    assert_eq!(VerdictOutcome::from(said.verdict.effect), outcome);
    // Each rule that is passed over is passed over by the reader, too, and the last one told decides.
    for said in &account.layers {
        for step in &said.steps {
            let of = pair
                .policies
                .iter()
                .find(|policy| policy["name"] == *step.policy)
                .unwrap();
            let rule = of["rules"]
                .as_array()
                .unwrap()
                .iter()
                .find(|rule| rule["id"] == *step.rule_id)
                .unwrap();
            assert_eq!(
                step.why_not.is_none(),
                applies(rule, pair),
                "{rule} {:?}",
                pair.arguments
            );
        }
    }
    outcome
}

/// Every suggestion turns the verdict, for the engine and for the reader; without any one of its edits it does not.
fn changes(policies: &[model::Policy], pair: &Pair<'_>, now: VerdictOutcome) -> usize {
    let situation = EditableInputs {
        policies: policies.to_vec(),
        autonomy: pair.autonomy,
        named: pair.named.to_vec(),
        arguments: pair.arguments.clone(),
    };
    let subject = subject(pair);
    let reread = |situation: &EditableInputs| {
        let policies: Vec<Value> = situation
            .policies
            .iter()
            .map(|policy| serde_json::to_value(policy).unwrap())
            .collect();
        read(&Pair {
            policies: &policies,
            autonomy: situation.autonomy,
            named: &situation.named,
            tool: pair.tool,
            labels: pair.labels.clone(),
            annotations: pair.annotations.clone(),
            arguments: situation.arguments.clone(),
            tokens: pair.tokens,
        })
    };
    let found = situation.smallest_changes(&subject);
    for change in &found {
        assert_ne!(change.outcome, now);
        let after = situation.clone().with_edits(&change.edits);
        assert_eq!(
            after.decide_call(&subject).map(|verdict| verdict.effect.into()),
            Some(change.outcome),
            "{:?}",
            change.edits
        );
        assert_eq!(reread(&after), change.outcome, "{:?}", change.edits);
        for left_out in 0..change.edits.len() {
            let mut fewer = change.edits.clone();
            fewer.remove(left_out);
            assert_ne!(
                reread(&situation.clone().with_edits(&fewer)),
                change.outcome,
                "{:?} needs less",
                change.edits
            );
        }
    }
    found.len()
}
