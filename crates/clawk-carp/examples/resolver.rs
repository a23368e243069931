//! Numbers of the resolver on this machine: `cargo run --release -p clawk-carp --example resolver`.
//!
//! A third of the patterns are exact, a third prefixes, the rest suffixes and patterns with several stars; every type
//! of policy is there, two thirds with conditions. `events`: the payload of one `policy.evaluated` per candidate is
//! written and each is linked into a hash chain.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a measurement prints, and may fail that way"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_carp::execute::{self, IssuedResolution};
use clawk_carp::message::{self, RequestShape};
use clawk_carp::resolve::{ExplainedResolution, ResolutionIds, resolve_request};
use clawk_carp::{Atlas, AtlasSet, Options, RateLedger};
use clawk_proto::SessionId;
use clawk_proto::carp::{CarpExecution, Request};
use clawk_trace::chain::{Draft, HashBuffer, SessionChain};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

const TIERS: [&str; 4] = ["low", "medium", "high", "critical"];

fn atlas(count: usize, hostile: bool) -> Vec<u8> {
    let actions: Vec<Value> = (0..count)
        .map(|n| {
            json!({
                "action_id": format!("area{}.thing{n}.{}", n % 50, ["get", "list", "update", "delete"][n % 4]),
                "name": format!("Action {n}"),
                "description": "Does what its name says, to one thing at a time.",
                "parameters_schema": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
                "risk_tier": TIERS[n % 4],
            })
        })
        .collect();
    let policies: Vec<Value> = (0..count)
        .map(|n| {
            let pattern = match (hostile, n % 6) {
                (true, _) => "*".to_owned(),
                (_, 0 | 1) => format!(
                    "area{}.thing{n}.{}",
                    n % 50,
                    ["get", "list", "update", "delete"][n % 4]
                ),
                (_, 2 | 3) => format!("area{}.thing{}*", n % 50, n / 100),
                (_, 4) => format!("*thing{n}.update"),
                _ if n % 60 == 5 => format!("*.thing{}?.*et", n / 10),
                _ => format!("area{}.*", n % 50),
            };
            let kind = [
                "deny",
                "require_approval",
                "rate_limit",
                "allow",
                "allow",
                "allow",
            ][n % 6];
            let mut policy = json!({
                "policy_id": format!("policy-{n}"), "type": kind, "actions": [pattern], "priority": n % 7,
            });
            if kind == "rate_limit" {
                policy["parameters"] = json!({"max_calls": 100, "window_seconds": 60});
            }
            policy["conditions"] = match n % 3 {
                0 => json!({"risk_tiers": ["critical"], "agents": [format!("agent-{}*", n % 97)]}),
                1 => json!({"context_matches": {"env": format!("env{}", n % 89)}}),
                _ => json!({"agents": ["*"]}),
            };
            policy
        })
        .collect();
    let mut policies = policies;
    policies.push(json!({"policy_id": "all", "type": "allow", "actions": ["*"], "priority": -1}));
    let manifest = json!({
        "atlas_version": "1.0", "atlas_id": "com.example.measure", "version": "1.0.0", "name": "Measure",
        "description": "", "actions": actions, "policies": policies,
    });
    serde_json::to_vec(&manifest).unwrap()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn events(
    resolved: &ExplainedResolution,
    chain: &mut SessionChain,
    scratch: &mut HashBuffer,
    out: &mut Vec<u8>,
) {
    for (n, evaluation) in (0u128..).zip(&resolved.evaluations) {
        out.clear();
        evaluation.write_payload(out);
        let draft = Draft {
            event_id: Uuid::from_u128(n),
            span: Uuid::from_u128(1),
            parent: Some(Uuid::from_u128(2)),
            timestamp: &resolved.resolution.timestamp,
            event_type: "policy.evaluated",
            payload: std::str::from_utf8(out).unwrap(),
        };
        chain.append(&draft, scratch);
    }
}

fn measure(count: usize, hostile: bool) {
    let bytes = atlas(count, hostile);
    let start = Instant::now();
    let atlas = Atlas::in_memory(&bytes, &std::collections::BTreeMap::new()).unwrap();
    let read = start.elapsed();
    let start = Instant::now();
    let set = AtlasSet::compile(vec![Arc::new(atlas)], Options::default()).unwrap();
    let compiled = start.elapsed();
    let request = message::read(
        &json!({
            "carp_version": "1.0", "request_id": Uuid::from_u128(1), "timestamp": "2026-01-01T12:00:00Z",
            "operation": "resolve",
            "requester": {"agent_id": "agent-3x", "session_id": Uuid::from_u128(2)},
            "task": {"goal": "measure"}, "context": {"env": "env7"},
        }),
        RequestShape::Schema,
    )
    .unwrap();
    let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let ids = ResolutionIds {
        resolution: Uuid::from_u128(3),
        approval: Uuid::from_u128(4),
        trace: Uuid::from_u128(5),
    };
    let ledger = RateLedger::new();
    let rounds = (2_000_000 / count).clamp(50, 5_000);
    let (mut plain, mut with_events) = (Vec::new(), Vec::new());
    let mut chain = SessionChain::new(SessionId(Uuid::from_u128(2)), Uuid::from_u128(5));
    let (mut scratch, mut out) = (HashBuffer::default(), Vec::new());
    let mut last = None;
    for _ in 0..rounds {
        let start = Instant::now();
        let resolved = resolve_request(&set, &request, now, ids, &ledger).unwrap();
        plain.push(start.elapsed());
        events(&resolved, &mut chain, &mut scratch, &mut out);
        with_events.push(start.elapsed());
        last = Some(resolved);
    }
    let resolved = last.unwrap();
    let (allowed, denied) = (
        resolved.resolution.allowed_actions.len(),
        resolved.resolution.denied_actions.len(),
    );
    let kind = if hostile { "all policies on `*`" } else { "mixed" };
    println!(
        "{count:>6} x {count:<6} {kind:<20} resolve {:>10.1?}  with events {:>10.1?}  ({allowed} allowed, {denied} denied; read {read:.1?}, compile {compiled:.1?})",
        median(plain),
        median(with_events),
    );
    executions(&set, &request, &resolved, ledger, now);
}

fn executions(
    set: &AtlasSet,
    request: &Request,
    resolved: &ExplainedResolution,
    mut ledger: RateLedger,
    now: Timestamp,
) {
    let Some(action) = resolved.resolution.allowed_actions.first() else {
        return;
    };
    let issued = IssuedResolution::new(request, &resolved.resolution, now);
    let execution = CarpExecution {
        resolution_id: resolved.resolution.resolution_id,
        action_id: action.action_id.to_string(),
        parameters: json!({"id": "x"}).as_object().cloned().unwrap(),
        idempotency_key: None,
    };
    let start = Instant::now();
    for n in 0..10_000i64 {
        let at = Timestamp::from_microsecond(now.as_microsecond() + n * 100).unwrap();
        let checked = execute::check_execution(
            set,
            Some(&issued),
            &request.requester,
            None,
            &execution,
            at,
            &ledger,
        );
        if let Ok(grant) = checked {
            ledger.spend("agent-3x", &grant.spends, at).unwrap();
        }
    }
    println!(
        "{:>15} execute's checks and spending: {:.1?} each",
        "",
        start.elapsed() / 10_000
    );
}

fn main() {
    for count in [10, 100, 1_000, 10_000] {
        measure(count, false);
    }
    measure(10_000, true);
}
