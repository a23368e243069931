use clawk_proto::carp::{CarpExecution, CarpRequester, CarpTask};
use serde_json::{Value, json};

use super::{NOW, actions, at, atlas, ids, request, resolved, set, set_of};
use crate::execute::{ExecutionGrant, ExecutionRefusal, IssuedResolution, check_execution};
use crate::resolve::{PolicyOutcome, Violation};
use crate::validate::validate_request;
use crate::{AtlasSet, RateLedger};

fn issue(set: &AtlasSet, parts: &Value) -> IssuedResolution {
    let request = request(parts);
    IssuedResolution::new(
        &request,
        &resolved(set, &request, NOW, &RateLedger::new()).resolution,
        at(NOW),
    )
}

fn execution(action: &str, parameters: &Value) -> CarpExecution {
    CarpExecution {
        resolution_id: ids().resolution,
        action_id: action.to_owned(),
        parameters: parameters.as_object().expect("an object").clone(),
        idempotency_key: None,
    }
}

fn requester() -> CarpRequester {
    request(&json!({})).requester
}

fn attempt<'s>(
    set: &'s AtlasSet,
    issued: &IssuedResolution,
    action: &str,
    now: &str,
    ledger: &RateLedger,
) -> Result<ExecutionGrant<'s>, ExecutionRefusal> {
    check_execution(
        set,
        Some(issued),
        &requester(),
        None,
        &execution(action, &json!({})),
        at(now),
        ledger,
    )
}

#[test]
fn a_resolution_lives_for_its_time_and_its_session() {
    let set = set(&json!({"actions": actions(&["a.b"])}));
    let issued = issue(&set, &json!({}));
    let ledger = RateLedger::new();
    assert!(attempt(&set, &issued, "a.b", "2026-03-04T12:59:59Z", &ledger).is_ok());
    assert_eq!(
        attempt(&set, &issued, "a.b", "2026-03-04T13:00:00Z", &ledger).expect_err("old"),
        ExecutionRefusal::Expired
    );
    let execution = execution("a.b", &json!({}));
    let unknown = check_execution(&set, None, &requester(), None, &execution, at(NOW), &ledger);
    assert_eq!(unknown.expect_err("unknown"), ExecutionRefusal::Expired);
    let mut other = requester();
    other.session_id.0 = uuid::Uuid::from_u128(9);
    let foreign = check_execution(&set, Some(&issued), &other, None, &execution, at(NOW), &ledger);
    assert_eq!(foreign.expect_err("foreign"), ExecutionRefusal::Unauthorized);
    let mut other = requester();
    other.agent_id = "someone".to_owned();
    let foreign = check_execution(&set, Some(&issued), &other, None, &execution, at(NOW), &ledger)
        .expect_err("foreign");
    assert_eq!(foreign.violation(), Some(Violation::Unauthorized));
}

#[test]
fn only_allowed_actions_run() {
    let set = set(&json!({
        "actions": actions(&["a.b", "a.c"]),
        "policies": [{"policy_id": "d", "type": "deny", "actions": ["a.c"]}],
    }));
    let issued = issue(&set, &json!({}));
    for action in ["a.c", "no.such"] {
        let refused = attempt(&set, &issued, action, NOW, &RateLedger::new()).expect_err("not allowed");
        assert!(
            matches!(&refused, ExecutionRefusal::NotAllowed { action_id, .. } if action_id == action),
            "{refused:?}"
        );
    }
}

#[test]
fn parameters_are_checked_without_repeating_them() {
    let set = set(&json!({"actions": [{"action_id": "a.b", "parameters_schema": {
        "type": "object", "required": ["id"], "additionalProperties": false,
        "properties": {"id": {"type": "string", "maxLength": 3}, "list": {"type": "array", "items": {"type": "integer"}}},
    }}]}));
    let issued = issue(&set, &json!({}));
    let faults = |parameters: Value| {
        let execution = execution("a.b", &parameters);
        match check_execution(
            &set,
            Some(&issued),
            &requester(),
            None,
            &execution,
            at(NOW),
            &RateLedger::new(),
        ) {
            Err(ExecutionRefusal::InvalidParameters(faults)) => faults,
            other => panic!("{other:?}"),
        }
    };
    let missing = faults(json!({"list": [1, "hunter2"]}));
    let mut paths = super::paths(&missing);
    paths.sort_unstable();
    assert_eq!(
        paths,
        ["/execution/parameters/id", "/execution/parameters/list/1"]
    );
    assert!(!missing.to_string().contains("hunter2"), "{missing}");
    assert_eq!(
        super::paths(&faults(json!({"id": "four"}))),
        ["/execution/parameters/id"]
    );
    let execution = execution("a.b", &json!({"id": "abc"}));
    assert!(
        check_execution(
            &set,
            Some(&issued),
            &requester(),
            None,
            &execution,
            at(NOW),
            &RateLedger::new()
        )
        .is_ok()
    );
}

#[test]
fn every_limit_is_charged_and_a_spent_one_denies() {
    let set = set(&json!({
        "actions": [{"action_id": "a.b", "rate_limit": {"max_calls": 9, "window_seconds": 9}}, {"action_id": "c.d"}],
        "policies": [
            {"policy_id": "two", "type": "rate_limit", "actions": ["a.*"], "parameters": {"max_calls": 2, "window_seconds": 60}},
            {"policy_id": "all", "type": "rate_limit", "parameters": {"max_calls": 5, "window_seconds": 60}},
            {"policy_id": "not", "type": "rate_limit", "conditions": {"agents": ["x"]}, "parameters": {"max_calls": 1, "window_seconds": 60}},
            {"policy_id": "purse", "type": "budget", "parameters": {"max_cost": 100, "window_seconds": 60, "default_cost": 3}},
        ],
    }));
    let issued = issue(&set, &json!({}));
    let mut ledger = RateLedger::new();
    for _ in 0..2 {
        let grant = attempt(&set, &issued, "a.b", NOW, &ledger).expect("granted");
        let charged: Vec<(&str, u64)> = grant
            .spends
            .iter()
            .map(|spend| (&*spend.bucket.key, spend.amount))
            .collect();
        assert_eq!(
            charged,
            [
                ("policy:com.example.test/two", 1),
                ("policy:com.example.test/all", 1),
                ("action:a.b", 1),
                ("policy:com.example.test/purse", 3_000_000),
            ]
        );
        ledger.spend("test-agent", &grant.spends, at(NOW)).expect("room");
    }
    match attempt(&set, &issued, "a.b", "2026-03-04T12:00:10Z", &ledger) {
        Err(ExecutionRefusal::Denied {
            evaluation,
            violation: Violation::RateLimit,
            retry_after_ms: Some(50_000),
        }) => {
            assert_eq!(
                (evaluation.policy_id.as_deref(), evaluation.outcome),
                (Some("two"), PolicyOutcome::Deny)
            );
            assert_eq!(evaluation.reason.as_deref(), Some("rate_limit_exceeded"));
        }
        other => panic!("{other:?}"),
    }
    assert!(attempt(&set, &issued, "c.d", NOW, &ledger).is_ok());
}

#[test]
fn policy_is_asked_again() {
    let hours = json!({"policy_id": "h", "type": "deny", "conditions": {"time_window": {"start": "12:30", "end": "13:00"}}});
    let set = set(&json!({
        "actions": actions(&["a.b"]),
        "policies": [hours, {"policy_id": "r", "type": "deny", "conditions": {"risk_tiers": ["critical"]}}],
    }));
    let issued = issue(&set, &json!({}));
    let ledger = RateLedger::new();
    assert!(attempt(&set, &issued, "a.b", NOW, &ledger).is_ok());
    let late = attempt(&set, &issued, "a.b", "2026-03-04T12:40:00Z", &ledger).expect_err("late");
    assert_eq!(late.violation(), Some(Violation::DeniedAction));
    let task = CarpTask {
        goal: "x".to_owned(),
        risk_tier: clawk_proto::carp::RiskTier::Critical,
        ..CarpTask::default()
    };
    let execution = execution("a.b", &json!({}));
    let risky = check_execution(
        &set,
        Some(&issued),
        &requester(),
        Some(&task),
        &execution,
        at(NOW),
        &ledger,
    );
    assert!(matches!(risky, Err(ExecutionRefusal::Denied { .. })));
    // A set loaded anew governs what an older resolution allowed.
    let tightened = set_of(vec![atlas(
        "com.example.test",
        &json!({"actions": actions(&["x.y"])}),
    )]);
    assert!(matches!(
        attempt(&tightened, &issued, "a.b", NOW, &ledger),
        Err(ExecutionRefusal::NotAllowed { .. })
    ));
}

#[test]
fn an_approval_opens_one_execution() {
    let set = set(&json!({
        "actions": actions(&["a.b", "c.d"]),
        "policies": [
            {"policy_id": "ask", "type": "require_approval", "actions": ["a.b"],
             "conditions": {"time_window": {"start": "00:00", "end": "12:30"}}},
            {"policy_id": "all", "type": "allow"},
        ],
    }));
    let mut issued = issue(&set, &json!({}));
    let ledger = RateLedger::new();
    assert_eq!(issued.waiting_actions().collect::<Vec<_>>(), ["a.b"]);
    for now in [NOW, "2026-03-04T12:45:00Z"] {
        // The second moment lies outside the policy's hours: what waited still waits.
        match attempt(&set, &issued, "a.b", now, &ledger) {
            Err(ExecutionRefusal::PendingApproval { policy_id, .. }) => assert_eq!(&*policy_id, "ask"),
            other => panic!("{other:?}"),
        }
    }
    assert!(!issued.approve_action("c.d"), "nothing waits there");
    assert!(issued.approve_action("a.b"));
    assert!(!issued.approve_action("a.b"));
    assert!(
        attempt(&set, &issued, "a.b", NOW, &ledger)
            .expect("approved")
            .by_approval
    );
    issued.use_approval("a.b");
    assert!(matches!(
        attempt(&set, &issued, "a.b", NOW, &ledger),
        Err(ExecutionRefusal::PendingApproval { .. })
    ));
}

#[test]
fn an_approval_does_not_lift_a_deny_or_a_limit() {
    let set = set(&json!({
        "actions": actions(&["a.b"]),
        "policies": [
            {"policy_id": "ask", "type": "require_approval"},
            {"policy_id": "slow", "type": "rate_limit", "parameters": {"max_calls": 1, "window_seconds": 60}},
        ],
    }));
    let mut issued = issue(&set, &json!({}));
    issued.approve_action("a.b");
    let mut ledger = RateLedger::new();
    let grant = attempt(&set, &issued, "a.b", NOW, &ledger).expect("approved");
    ledger.spend("test-agent", &grant.spends, at(NOW)).expect("room");
    let spent = attempt(&set, &issued, "a.b", NOW, &ledger).expect_err("spent");
    assert_eq!(spent.violation(), Some(Violation::RateLimit));
}

#[test]
fn validate_tells_what_would_stand_in_the_way() {
    let set = set(&json!({
        "actions": [{"action_id": "a.b", "parameters_schema": {"type": "object", "required": ["id"]}}],
        "capabilities": [{"capability_id": "c", "name": "C", "actions": ["a.b"]}],
    }));
    let paths = |parts: Value, issued: Option<&IssuedResolution>| {
        let answer = validate_request(&set, &request(&parts), issued, at(NOW), &RateLedger::new());
        assert_eq!(answer.valid, answer.errors.is_empty());
        answer
            .errors
            .into_iter()
            .map(|fault| fault.path)
            .collect::<Vec<_>>()
    };
    assert_eq!(paths(json!({"operation": "validate"}), None), [""; 0]);
    assert_eq!(
        paths(json!({"atlas_ids": ["com.example.test", "com.no.such"]}), None),
        ["/atlas_ids/1"]
    );
    let capabilities = json!({"task": {"required_capabilities": ["c", "d"]}});
    assert_eq!(paths(capabilities, None), ["/task/required_capabilities/1"]);
    let run = |action: &str| json!({"execution": {"resolution_id": ids().resolution, "action_id": action}});
    assert_eq!(paths(run("no.such"), None), ["/execution/action_id"]);
    assert_eq!(paths(run("a.b"), None), ["/execution/parameters/id"]);
    let mut issued = issue(&set, &json!({}));
    assert_eq!(paths(run("a.b"), Some(&issued)), ["/execution/parameters/id"]);
    issued.expires = at(NOW);
    assert_eq!(paths(run("a.b"), Some(&issued)), ["/execution/resolution_id"]);
}
