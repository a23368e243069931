use clawk_proto::carp::{ConstraintType, DecisionType};
use serde_json::{Value, json};

use super::{NOW, actions, allowed, at, atlas, denied, ids, request, resolution, resolved, set, set_of};
use crate::resolve::{PolicyOutcome, ResolveError, Violation, resolve_request};
use crate::{AtlasSet, Options, RateLedger};

fn govern(ids: &[&str], policies: &Value) -> AtlasSet {
    set(&json!({"actions": actions(ids), "policies": policies}))
}

#[test]
fn the_order_of_types_stands_above_priority() {
    let set = govern(
        &["a.b"],
        &json!([
            {"policy_id": "allow", "type": "allow", "priority": 1000},
            {"policy_id": "ask", "type": "require_approval", "priority": 500},
            {"policy_id": "deny", "type": "deny", "priority": -5, "parameters": {"reason": "no"}},
        ]),
    );
    assert_eq!(
        denied(&resolution(&set, &json!({}))),
        [("a.b", "no", Some("deny"))]
    );
}

#[test]
fn within_a_type_priority_then_file_order() {
    let policies = |first: i64, second: i64| {
        json!([
            {"policy_id": "one", "type": "deny", "priority": first},
            {"policy_id": "two", "type": "deny", "priority": second, "actions": ["a.*"]},
        ])
    };
    let by = |first, second| {
        let resolution = resolution(&govern(&["a.b"], &policies(first, second)), &json!({}));
        resolution.denied_actions[0]
            .policy_id
            .as_deref()
            .map(str::to_owned)
    };
    assert_eq!(by(0, 0).as_deref(), Some("one"));
    assert_eq!(by(0, 1).as_deref(), Some("two"));
    assert_eq!(by(1, 0).as_deref(), Some("one"));
}

#[test]
fn the_default_turns_with_the_first_allow_and_with_strict() {
    let none = govern(&["a.b", "c.d"], &json!([]));
    let passed = resolved(&none, &request(&json!({})), NOW, &RateLedger::new());
    assert_eq!(allowed(&passed.resolution), ["a.b", "c.d"]);
    assert_eq!(passed.resolution.decision.kind, DecisionType::Allow);
    assert!(
        passed
            .evaluations
            .iter()
            .all(|one| one.outcome == PolicyOutcome::NotApplicable && one.policy_id.is_none())
    );

    let some = govern(
        &["a.b", "c.d"],
        &json!([{"policy_id": "p", "type": "allow", "actions": ["a.*"]}]),
    );
    let part = resolution(&some, &json!({}));
    assert_eq!(allowed(&part), ["a.b"]);
    assert_eq!(denied(&part), [("c.d", "no_policy_allows", None)]);
    assert_eq!(part.decision.kind, DecisionType::Partial);
    assert_eq!(
        part.decision.reason.as_deref(),
        Some("1 of 2 actions are allowed")
    );

    let atlas = atlas("com.example.test", &json!({"actions": actions(&["a.b"])}));
    let strict = Options {
        strict: true,
        ..Options::default()
    };
    let strict = AtlasSet::compile(vec![atlas], strict).expect("compiles");
    assert_eq!(resolution(&strict, &json!({})).decision.kind, DecisionType::Deny);
}

#[test]
fn an_allow_anywhere_in_the_set_turns_the_default() {
    let one = atlas("com.example.one", &json!({"actions": actions(&["a.b"])}));
    let two = atlas(
        "com.example.two",
        &json!({
            "actions": actions(&["c.d"]), "policies": [{"policy_id": "p", "type": "allow", "actions": ["c.*"]}],
        }),
    );
    let set = set_of(vec![two, one]);
    assert_eq!(allowed(&resolution(&set, &json!({}))), ["c.d"]);
}

#[test]
fn policies_of_an_atlas_that_is_not_asked_still_hold() {
    let work = atlas(
        "com.example.work",
        &json!({"actions": actions(&["a.get", "a.delete"])}),
    );
    let law = atlas(
        "com.example.law",
        &json!({"policies": [{"policy_id": "d", "type": "deny", "actions": ["*.delete"]}]}),
    );
    let set = set_of(vec![work, law]);
    assert_eq!(
        allowed(&resolution(&set, &json!({"atlas_ids": ["com.example.work"]}))),
        ["a.get"]
    );
}

#[test]
fn approval_is_asked_for_and_listed() {
    let set = govern(
        &["a.b", "c.d"],
        &json!([
            {"policy_id": "ask", "type": "require_approval", "actions": ["a.*"], "parameters": {"reason": "money moves"}},
        ]),
    );
    let both = resolution(&set, &json!({}));
    assert_eq!(both.decision.kind, DecisionType::Partial);
    assert_eq!(denied(&both), [("a.b", "money moves", Some("ask"))]);
    let gate = &both.constraints[0];
    assert_eq!(gate.kind, ConstraintType::RequireApproval);
    assert_eq!(gate.parameters["actions"], json!(["a.b"]));
    assert_eq!(both.decision.approval_id, None);

    let set = govern(
        &["a.b"],
        &json!([{"policy_id": "ask", "type": "require_approval"}]),
    );
    let only = resolution(&set, &json!({}));
    assert_eq!(only.decision.kind, DecisionType::RequiresApproval);
    assert_eq!(only.decision.approval_id, Some(ids().approval.to_string()));
    assert_eq!(
        only.decision.expires_at.as_deref(),
        Some("2026-03-04T13:00:00.000000Z")
    );
}

#[test]
fn a_scope_denies_what_lies_outside_it() {
    let set = govern(
        &["a.b", "c.d"],
        &json!([
            {"policy_id": "fence", "type": "scope", "actions": ["a.*"], "conditions": {"agents": ["test-*"]}},
            {"policy_id": "all", "type": "allow"},
        ]),
    );
    let fenced = resolution(&set, &json!({}));
    assert_eq!(allowed(&fenced), ["a.b"]);
    assert_eq!(denied(&fenced), [("c.d", "outside_scope", Some("fence"))]);
    assert!(
        fenced
            .constraints
            .iter()
            .any(|one| one.kind == ConstraintType::Scope)
    );
    let free = resolution(&set, &json!({"requester": {"agent_id": "other"}}));
    assert_eq!(allowed(&free), ["a.b", "c.d"]);
}

#[test]
fn two_scopes_leave_what_both_hold() {
    let set = govern(
        &["a.b", "a.c", "b.c"],
        &json!([
            {"policy_id": "one", "type": "scope", "actions": ["a.*"]},
            {"policy_id": "two", "type": "scope", "actions": ["*.c"], "priority": 1},
        ]),
    );
    let both = resolution(&set, &json!({}));
    assert_eq!(allowed(&both), ["a.c"]);
    assert_eq!(
        denied(&both),
        [
            ("a.b", "outside_scope", Some("two")),
            ("b.c", "outside_scope", Some("one"))
        ]
    );
}

#[test]
fn a_spent_rate_limit_denies_before_an_allow_and_is_told() {
    let set = govern(
        &["a.b", "c.d"],
        &json!([
            {"policy_id": "all", "type": "allow"},
            {"policy_id": "slow", "type": "rate_limit", "actions": ["a.*"],
             "parameters": {"max_calls": 1, "window_seconds": 60, "reason": "not told"}},
        ]),
    );
    let mut ledger = RateLedger::new();
    let first = resolved(&set, &request(&json!({})), NOW, &ledger);
    assert_eq!(allowed(&first.resolution), ["a.b", "c.d"]);
    assert_eq!(first.resolution.constraints[0].parameters["remaining"], json!(1));
    // Resolving has spent nothing.
    assert!(ledger.is_empty());

    let bucket = set
        .policies
        .iter()
        .find_map(|ranked| ranked.bucket.clone())
        .expect("a bucket");
    let spend = crate::rate::BucketSpend { bucket, amount: 1 };
    ledger.spend("test-agent", &[spend], at(NOW)).expect("room");
    let second = resolved(&set, &request(&json!({})), NOW, &ledger);
    assert_eq!(
        denied(&second.resolution),
        [("a.b", "rate_limit_exceeded", Some("slow"))]
    );
    assert_eq!(second.evaluations[0].violation, Some(Violation::RateLimit));
    // Another agent has its own window, and the window slides.
    let other = request(&json!({"requester": {"agent_id": "other"}}));
    assert_eq!(
        allowed(&resolved(&set, &other, NOW, &ledger).resolution),
        ["a.b", "c.d"]
    );
    let later = resolved(&set, &request(&json!({})), "2026-03-04T12:01:00Z", &ledger);
    assert_eq!(allowed(&later.resolution), ["a.b", "c.d"]);
}

#[test]
fn a_budget_counts_costs_per_action() {
    let set = govern(
        &["a.cheap", "a.dear"],
        &json!([
            {"policy_id": "purse", "type": "budget", "parameters": {
                "max_cost": 2.5, "window_seconds": 3600, "default_cost": 0.5, "costs": {"a.dear": 2.1}}},
        ]),
    );
    let mut ledger = RateLedger::new();
    let first = resolved(&set, &request(&json!({})), NOW, &ledger);
    assert_eq!(allowed(&first.resolution), ["a.cheap", "a.dear"]);
    assert_eq!(
        first.resolution.constraints[0].parameters["remaining_micros"],
        json!(2_500_000)
    );
    let bucket = set.policies[0].bucket.clone().expect("a bucket");
    ledger
        .spend(
            "test-agent",
            &[crate::rate::BucketSpend {
                bucket,
                amount: 500_000,
            }],
            at(NOW),
        )
        .expect("room");
    let second = resolved(&set, &request(&json!({})), NOW, &ledger);
    assert_eq!(allowed(&second.resolution), ["a.cheap"]);
    assert_eq!(
        denied(&second.resolution),
        [("a.dear", "budget_exceeded", Some("purse"))]
    );
    assert_eq!(second.evaluations[1].violation, Some(Violation::Budget));
}

#[test]
fn an_action_has_a_limit_of_its_own() {
    let set = set(&json!({
        "actions": [{"action_id": "a.b", "rate_limit": {"max_calls": 1, "window_seconds": 10}}],
    }));
    let mut ledger = RateLedger::new();
    let own = set.actions[0].own.clone().expect("a bucket");
    ledger
        .spend(
            "test-agent",
            &[crate::rate::BucketSpend {
                bucket: own,
                amount: 1,
            }],
            at(NOW),
        )
        .expect("room");
    let spent = resolved(&set, &request(&json!({})), NOW, &ledger).resolution;
    assert_eq!(denied(&spent), [("a.b", "rate_limit_exceeded", None)]);
}

#[test]
fn candidates_follow_the_request() {
    let one = atlas(
        "com.example.one",
        &json!({
            "actions": actions(&["b.x", "a.x"]),
            "capabilities": [{"capability_id": "some", "name": "S", "actions": ["a.x"]}],
        }),
    );
    let two = atlas("com.example.two", &json!({"actions": actions(&["c.x"])}));
    let set = set_of(vec![two, one]);
    assert_eq!(allowed(&resolution(&set, &json!({}))), ["b.x", "a.x", "c.x"]);
    let order = json!({"atlas_ids": ["com.example.two", "com.example.one", "com.example.two"]});
    assert_eq!(allowed(&resolution(&set, &order)), ["c.x", "b.x", "a.x"]);
    assert_eq!(
        allowed(&resolution(&set, &json!({"atlas_ids": ["com.example.two"]}))),
        ["c.x"]
    );

    let filtered = resolution(&set, &json!({"task": {"required_capabilities": ["some"]}}));
    assert_eq!((allowed(&filtered), denied(&filtered).len()), (vec!["a.x"], 0));
    let unknown = resolution(
        &set,
        &json!({"task": {"required_capabilities": ["some", "other"]}}),
    );
    assert_eq!(unknown.decision.kind, DecisionType::Partial);
    assert_eq!(
        unknown.decision.reason.as_deref(),
        Some("unknown capability: other")
    );
    let nothing = resolution(&set, &json!({"task": {"required_capabilities": ["other"]}}));
    assert_eq!(nothing.decision.kind, DecisionType::Deny);

    let missing = request(&json!({"atlas_ids": ["com.example.none"]}));
    let error = resolve_request(&set, &missing, at(NOW), ids(), &RateLedger::new()).expect_err("unknown");
    assert_eq!(
        error,
        ResolveError::UnknownAtlas(vec!["com.example.none".to_owned()])
    );
}

#[test]
fn an_evaluation_is_written_as_canonical_json() {
    let set = govern(&["a.b"], &json!([{"policy_id": "say \"no\"\n", "type": "deny"}]));
    let resolved = resolved(&set, &request(&json!({})), NOW, &RateLedger::new());
    let mut out = Vec::new();
    resolved.evaluations[0].write_payload(&mut out);
    let text = String::from_utf8(out).expect("UTF-8");
    assert_eq!(
        text,
        r#"{"action_id":"a.b","policy_id":"say \"no\"\n","result":"deny"}"#
    );
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        clawk_trace::canonical::payload_of(&value)
            .expect("canonical")
            .get(),
        text
    );
}

#[test]
fn a_resolution_survives_the_wire() {
    let set = govern(
        &["a.b", "c.d"],
        &json!([{"policy_id": "d", "type": "deny", "actions": ["c.*"]}]),
    );
    let resolution = resolution(&set, &json!({}));
    let text = serde_json::to_string(&resolution).expect("JSON");
    assert_eq!(
        serde_json::from_str::<clawk_proto::carp::CarpResolution>(&text).expect("reads"),
        resolution
    );
    assert!(
        text.contains(r#""reason":"1 of 2 actions are allowed","approval_id":null,"expires_at":null"#),
        "{text}"
    );
}
