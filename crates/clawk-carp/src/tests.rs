//! Unit tests; the protocol's own cases are in `vectors/cra/carp.json`.

mod atlas;
mod conditions;
mod execute;
mod glob;
mod load;
mod message;
mod naive;
mod policies;
mod rate;
mod replay;
mod vectors;

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_proto::carp::{CarpResolution, Request};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::message::RequestShape;
use crate::resolve::{ExplainedResolution, ResolutionIds, resolve_request};
use crate::{Atlas, AtlasSet, InputFaults, Options, RateLedger};

pub(crate) const NOW: &str = "2026-03-04T12:00:00Z"; // a Wednesday

pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().expect("a timestamp")
}

pub(crate) fn ids() -> ResolutionIds {
    ResolutionIds {
        resolution: Uuid::from_u128(0xa1),
        approval: Uuid::from_u128(0xa2),
        trace: Uuid::from_u128(0xa3),
    }
}

/// A manifest with the required fields filled in.
pub(crate) fn manifest(id: &str, parts: &Value) -> Value {
    let mut out = json!({
        "atlas_version": "1.0", "atlas_id": id, "version": "1.0.0", "name": "Test", "description": "A test",
    });
    for (key, value) in parts.as_object().expect("an object") {
        out[key] = value.clone();
    }
    for list in ["actions", "context_packs"] {
        for item in out
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let item = item.as_object_mut().expect("an object");
            item.entry("name").or_insert(json!("Name"));
            if list == "actions" {
                item.entry("description").or_insert(json!("Does something"));
            }
        }
    }
    out
}

pub(crate) fn read(manifest: &Value) -> Result<Atlas, InputFaults> {
    read_with(manifest, &[])
}

pub(crate) fn read_with(manifest: &Value, files: &[(&str, &str)]) -> Result<Atlas, InputFaults> {
    let files: BTreeMap<String, String> = files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect();
    Atlas::in_memory(&serde_json::to_vec(manifest).expect("JSON"), &files)
}

pub(crate) fn atlas(id: &str, parts: &Value) -> Arc<Atlas> {
    Arc::new(read(&manifest(id, parts)).expect("a valid Atlas"))
}

pub(crate) fn set_of(atlases: Vec<Arc<Atlas>>) -> AtlasSet {
    AtlasSet::compile(atlases, Options::default()).expect("compiles")
}

pub(crate) fn set(parts: &Value) -> AtlasSet {
    set_of(vec![atlas("com.example.test", parts)])
}

/// Actions by their ids.
pub(crate) fn actions(ids: &[&str]) -> Value {
    ids.iter().map(|id| json!({"action_id": id})).collect()
}

/// A request to resolve; `parts` go over the members.
pub(crate) fn request(parts: &Value) -> Request {
    let mut out = json!({
        "carp_version": "1.0",
        "request_id": "01234567-89ab-cdef-0123-456789abcdef",
        "timestamp": NOW,
        "operation": "resolve",
        "requester": {"agent_id": "test-agent", "session_id": "01234567-89ab-cdef-0123-456789abcdef"},
        "task": {"goal": "Test goal"},
    });
    for (key, value) in parts.as_object().expect("an object") {
        match (out.get_mut(key).and_then(Value::as_object_mut), value) {
            (Some(into), Value::Object(from)) => into.extend(from.clone()),
            _ => out[key] = value.clone(),
        }
    }
    crate::message::read(&out, RequestShape::Wire).expect("a valid request")
}

pub(crate) fn resolved(
    set: &AtlasSet,
    request: &Request,
    now: &str,
    ledger: &RateLedger,
) -> ExplainedResolution {
    resolve_request(set, request, at(now), ids(), ledger).expect("resolves")
}

pub(crate) fn resolution(set: &AtlasSet, parts: &Value) -> CarpResolution {
    resolved(set, &request(parts), NOW, &RateLedger::new()).resolution
}

pub(crate) fn allowed(resolution: &CarpResolution) -> Vec<&str> {
    resolution
        .allowed_actions
        .iter()
        .map(|action| &*action.action_id)
        .collect()
}

/// Action, reason and policy of what is denied.
pub(crate) fn denied(resolution: &CarpResolution) -> Vec<(&str, &str, Option<&str>)> {
    let denied = resolution.denied_actions.iter();
    denied
        .map(|one| (&*one.action_id, &*one.reason, one.policy_id.as_deref()))
        .collect()
}

pub(crate) fn paths(faults: &InputFaults) -> Vec<&str> {
    faults.errors.iter().map(|fault| fault.path.as_str()).collect()
}
