//! The compiled resolver against the rules as they are written: every policy, in order, for every action.

use std::sync::Arc;

use clawk_proto::carp::RiskTier;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{NOW, at, atlas, request, resolved, set_of};
use crate::execute::{ExecutionRefusal, IssuedResolution, check_execution};
use crate::glob::Pattern;
use crate::rate::{BucketSpend, RateLimitBucket};
use crate::resolve::PolicyOutcome;
use crate::{AtlasSet, RateLedger};

const ORDER: [&[&str]; 5] = [
    &["deny", "scope"],
    &["require_approval"],
    &["rate_limit"],
    &["budget"],
    &["allow"],
];

fn pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::sample::select(vec!["a.b", "a.c", "a.bb", "b.b", "b.ca", "c.b", "c.cb"]).prop_map(str::to_owned),
        2 => prop::sample::select(vec!["*", "a.*", "b.c*", "*.b", "*b", "a.b*"]).prop_map(str::to_owned),
        1 => prop::sample::select(vec!["?.b", "*.?b", "a*b", "*.*", "?.?", "*c*b"]).prop_map(str::to_owned),
    ]
}

fn policy() -> impl Strategy<Value = Value> {
    let kind = prop::sample::select(vec![
        "deny",
        "scope",
        "require_approval",
        "rate_limit",
        "budget",
        "allow",
    ]);
    let actions = prop::option::of(prop::collection::vec(pattern(), 1..4));
    let tiers = prop::option::weighted(
        0.3,
        prop::sample::subsequence(vec!["low", "medium", "high", "critical"], 1..4),
    );
    let agents = prop::option::weighted(0.3, prop::sample::select(vec!["test-*", "other", "*agent"]));
    (kind, actions, tiers, agents, -1i64..2, 0u64..4).prop_map(
        |(kind, actions, tiers, agents, priority, limit)| {
            let mut out = json!({"type": kind, "priority": priority, "conditions": {}});
            match actions {
                Some(actions) => out["actions"] = json!(actions),
                None if kind == "scope" => out["actions"] = json!(["a.*"]),
                None => {}
            }
            if let Some(tiers) = tiers {
                out["conditions"]["risk_tiers"] = json!(tiers);
            }
            if let Some(agents) = agents {
                out["conditions"]["agents"] = json!([agents]);
            }
            match kind {
                "rate_limit" => out["parameters"] = json!({"max_calls": limit + 1, "window_seconds": 60}),
                "budget" => {
                    out["parameters"] =
                        json!({"max_cost": limit, "window_seconds": 60, "costs": {"a.b": 2, "c.cb": 0}});
                }
                _ => {}
            }
            out
        },
    )
}

/// Which policy decides, read straight from the JSON: `Some(id)`, or the default.
fn decide(atlases: &[Value], action: &Value, task_tier: RiskTier, used: u64) -> (bool, Option<String>) {
    let id = action["action_id"].as_str().expect("an id");
    let own: RiskTier = serde_json::from_value(action["risk_tier"].clone()).expect("a tier");
    let tier = task_tier.max(own).name();
    let mut policies: Vec<&Value> = atlases
        .iter()
        .flat_map(|atlas| atlas["policies"].as_array().expect("a list"))
        .collect();
    policies.sort_by_key(|policy| std::cmp::Reverse(policy["priority"].as_i64()));
    let has_allow = policies.iter().any(|policy| policy["type"] == "allow");
    for kinds in ORDER {
        for policy in policies
            .iter()
            .filter(|policy| kinds.contains(&policy["type"].as_str().expect("a type")))
        {
            let fits = policy.get("actions").is_none_or(|list| {
                list.as_array()
                    .expect("a list")
                    .iter()
                    .any(|one| Pattern::new(one.as_str().expect("text")).matches(id))
            });
            let holds = |key: &str, test: &dyn Fn(&str) -> bool| {
                policy["conditions"].get(key).is_none_or(|list| {
                    list.as_array()
                        .expect("a list")
                        .iter()
                        .any(|one| test(one.as_str().expect("text")))
                })
            };
            let conditions = holds("risk_tiers", &|one| one == tier)
                && holds("agents", &|one| Pattern::new(one).matches("test-agent"));
            let decides = match policy["type"].as_str().expect("a type") {
                "scope" => !fits,
                "rate_limit" => fits && used + 1 > policy["parameters"]["max_calls"].as_u64().expect("calls"),
                "budget" => {
                    let cost = policy["parameters"]["costs"]
                        .get(id)
                        .map_or(1, |cost| cost.as_u64().expect("cost"));
                    fits && used + cost > policy["parameters"]["max_cost"].as_u64().expect("cost")
                }
                _ => fits,
            };
            if decides && conditions {
                return (
                    policy["type"] == "allow",
                    policy["policy_id"].as_str().map(str::to_owned),
                );
            }
        }
    }
    (!has_allow, None)
}

/// Every limit has `used` calls, or whole units of cost, behind it.
fn spent(set: &AtlasSet, used: u64) -> RateLedger {
    let mut ledger = RateLedger::new();
    for ranked in &set.policies {
        let Some(bucket) = &ranked.bucket else { continue };
        let unit = if matches!(ranked.policy.rule, crate::atlas::Rule::Budget(_)) {
            1_000_000
        } else {
            1
        };
        let wide = RateLimitBucket {
            limit: u64::MAX,
            ..bucket.clone()
        };
        ledger
            .spend(
                "test-agent",
                &[BucketSpend {
                    bucket: wide,
                    amount: used * unit,
                }],
                at(NOW),
            )
            .expect("room");
    }
    ledger
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_compiled_resolver_is_the_naive_one(
        policies in prop::collection::vec((policy(), 0usize..2), 0..12),
        tiers in prop::collection::vec(0usize..4, 7),
        task_tier in 0usize..4,
        used in 0u64..4,
    ) {
        let mut atlases = ["com.example.one", "com.example.two"].map(|id| json!({
            "id": id, "policies": [], "actions": [],
        }));
        for (n, (mut policy, home)) in policies.into_iter().enumerate() {
            policy["policy_id"] = json!(format!("p{n}"));
            atlases[home]["policies"].as_array_mut().expect("a list").push(policy);
        }
        for (n, (id, tier)) in ["a.b", "a.c", "a.bb", "b.b", "b.ca", "c.b", "c.cb"].iter().zip(&tiers).enumerate() {
            let action = json!({"action_id": id, "risk_tier": RiskTier::ALL[*tier].name()});
            atlases[n % 2]["actions"].as_array_mut().expect("a list").push(action);
        }
        let loaded: Vec<Arc<crate::Atlas>> = atlases.iter().map(|parts| {
            let id = parts["id"].as_str().expect("an id");
            atlas(id, &json!({"policies": parts["policies"], "actions": parts["actions"]}))
        }).collect();
        let set = set_of(loaded.into_iter().rev().collect());
        let ledger = spent(&set, used);
        let tier = RiskTier::ALL[task_tier];
        let request = request(&json!({"task": {"goal": "g", "risk_tier": tier.name()}}));
        let resolved = resolved(&set, &request, NOW, &ledger);
        let issued = IssuedResolution::new(&request, &resolved.resolution, at(NOW));
        let mut evaluations = resolved.evaluations.iter();
        for action in atlases.iter().flat_map(|parts| parts["actions"].as_array().expect("a list")) {
            let (allowed, policy) = decide(&atlases, action, tier, used);
            let found = evaluations.next().expect("one per candidate");
            prop_assert_eq!(&*found.action_id, action["action_id"].as_str().expect("an id"));
            prop_assert_eq!(found.policy_id.as_deref(), policy.as_deref(), "{}", action);
            prop_assert_eq!(found.outcome != PolicyOutcome::Deny, allowed);
            // What resolve allows, execute grants at the same moment, by the same policy.
            let execution = clawk_proto::carp::CarpExecution {
                resolution_id: resolved.resolution.resolution_id,
                action_id: found.action_id.to_string(),
                parameters: serde_json::Map::new(),
                idempotency_key: None,
            };
            match check_execution(&set, Some(&issued), &request.requester, request.task.as_ref(), &execution, at(NOW), &ledger) {
                Ok(grant) => {
                    prop_assert!(allowed);
                    prop_assert_eq!(&grant.evaluation, found);
                }
                Err(ExecutionRefusal::PendingApproval { evaluation, .. }) => prop_assert_eq!(&evaluation, found),
                Err(refusal) => prop_assert!(!allowed, "{}", refusal),
            }
        }
        prop_assert!(evaluations.next().is_none());
    }
}
