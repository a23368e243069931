//! The pure tests of the conformance document, as data.
//!
//! Its policy fixtures leave out what the schemas require; as the facts of the protocol say, what is missing is filled
//! in: the action that `action` names, names of packs, capabilities' actions.

use serde_json::{Map, Value, json};

use super::{NOW, actions, at, ids, manifest, paths, read_with, request, resolved, set_of};
use crate::message::{self, RequestShape};
use crate::rate::RateLedger;
use crate::{Atlas, execute};

fn cases(kind: &str) -> Vec<Value> {
    let all: Vec<Value> =
        serde_json::from_str(include_str!("../../../../vectors/cra/carp.json")).expect("JSON");
    let found: Vec<Value> = all.into_iter().filter(|case| case["kind"] == kind).collect();
    assert!(!found.is_empty(), "no `{kind}` cases");
    found
}

fn verdict(case: &Value, outcome: Result<(), crate::InputFaults>) {
    let id = &case["test_id"];
    match (case["expected"].as_str(), outcome) {
        (Some("VALID"), outcome) => assert_eq!(outcome, Ok(()), "{id}"),
        (Some("INVALID"), Err(faults)) => {
            assert_eq!(
                paths(&faults),
                [case["error_path"].as_str().expect("a path")],
                "{id}"
            );
        }
        (expected, outcome) => panic!("{id}: expected {expected:?}, found {outcome:?}"),
    }
}

#[test]
fn requests() {
    for case in cases("carp_request") {
        verdict(
            &case,
            message::read(&case["input"], RequestShape::Schema).map(|_| ()),
        );
    }
}

#[test]
fn manifests() {
    for case in cases("atlas_manifest") {
        verdict(&case, read_with(&case["input"], &[]).map(|_| ()));
    }
}

/// The case's Atlas with what its fixture leaves out.
fn complete(case: &Value) -> Atlas {
    let parts = &case["atlas"];
    let capable = parts["capabilities"].as_array().into_iter().flatten();
    let mut wanted: Vec<&str> = capable
        .flat_map(|capability| capability["actions"].as_array().expect("a list"))
        .filter_map(Value::as_str)
        .collect();
    let steps = case["sequence"].as_array().into_iter().flatten();
    wanted.extend(steps.filter_map(|step| step["action"].as_str()));
    wanted.extend(case["request"]["action"].as_str());
    wanted.sort_unstable();
    wanted.dedup();
    let mut parts = parts.clone();
    parts["actions"] = actions(&wanted);
    let listed = parts.get_mut("capabilities").and_then(Value::as_array_mut);
    for capability in listed.into_iter().flatten() {
        capability["name"] = capability["capability_id"].clone();
    }
    let packs = parts["context_packs"].as_array().cloned().unwrap_or_default();
    let files = packs
        .iter()
        .flat_map(|pack| pack["files"].as_array().expect("a list"));
    let files: Vec<(&str, &str)> = files
        .filter_map(Value::as_str)
        .map(|file| (file, "text"))
        .collect();
    read_with(&manifest("com.example.test", &parts), &files).expect("valid")
}

/// The case's request without the member that the schema forbids.
fn ask(case: &Value) -> clawk_proto::carp::Request {
    let mut parts = case["request"].as_object().cloned().unwrap_or_else(Map::new);
    parts.remove("action");
    request(&Value::Object(parts))
}

#[test]
fn single_resolutions() {
    for case in cases("resolve") {
        let id = &case["test_id"];
        let set = set_of(vec![std::sync::Arc::new(complete(&case))]);
        let resolution = resolved(&set, &ask(&case), NOW, &RateLedger::new()).resolution;
        let shown = serde_json::to_value(&resolution).expect("JSON");
        let expected = case["expected"].as_object().expect("an object");
        for (key, wanted) in expected {
            let found = match key.as_str() {
                "decision" => shown["decision"]["type"].clone(),
                "policy_id" => shown["denied_actions"][0]["policy_id"].clone(),
                "context_blocks" => shown["context_blocks"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(|block| json!({"source_pack": block["metadata"]["source_pack"]}))
                    .collect(),
                "allowed_actions" => shown["allowed_actions"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(|action| json!({"action_id": action["action_id"]}))
                    .collect(),
                other => panic!("{id}: `{other}` is not understood"),
            };
            assert_eq!(&found, wanted, "{id}: {key}");
        }
    }
}

#[test]
fn sequences_of_executions() {
    for case in cases("sequence") {
        let id = &case["test_id"];
        let set = set_of(vec![std::sync::Arc::new(complete(&case))]);
        let mut ledger = RateLedger::new();
        for (number, step) in case["sequence"].as_array().expect("a list").iter().enumerate() {
            let request = ask(&case);
            let resolution = resolved(&set, &request, NOW, &ledger).resolution;
            let action = step["action"].as_str().expect("an action");
            let denied = resolution
                .denied_actions
                .iter()
                .find(|one| &*one.action_id == action);
            match step["expected"].as_str() {
                Some("allow") => {
                    assert!(denied.is_none(), "{id}, step {number}");
                    let issued = execute::IssuedResolution::new(&request, &resolution, at(NOW));
                    let execution = clawk_proto::carp::CarpExecution {
                        resolution_id: ids().resolution,
                        action_id: action.to_owned(),
                        parameters: Map::new(),
                        idempotency_key: None,
                    };
                    let who = &request.requester;
                    let grant = execute::check_execution(
                        &set,
                        Some(&issued),
                        who,
                        None,
                        &execution,
                        at(NOW),
                        &ledger,
                    );
                    ledger
                        .spend(&who.agent_id, &grant.expect("granted").spends, at(NOW))
                        .expect("room");
                }
                Some("deny") => {
                    let reason = denied.map(|one| &*one.reason);
                    assert_eq!(reason, step["reason"].as_str(), "{id}, step {number}");
                }
                other => panic!("{id}: `{other:?}` is not understood"),
            }
        }
    }
}
