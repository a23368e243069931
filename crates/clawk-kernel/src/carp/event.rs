//! The events that CARP writes into the journal: the standard events in the protocol's order, and the data that a restart needs.
//!
//! A session's own chain holds the standard events. Data for the runtime only is in the runtime's chain, so that a session's trace
//! follows the protocol.

use std::sync::Arc;

use clawk_carp::resolve::{ActionEvaluation, PolicyEvaluated, Violation};
use clawk_proto::Digest;
use clawk_proto::carp::{
    AllowedAction, CarpOperation, CarpResolution, CarpTask, ContextBlock, Request, RiskTier,
};
use clawk_proto::trace::PAYLOAD_MAX_BYTES;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::CarpError;
use crate::event::{Draft, JournalWriter, Thread, canonical, digest, kind};

/// `ckp.carp.session`: the owner of a session. Its content is the goal's text, or with `about_hash` an [`CarpSessionDescription`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CarpSessionOpened {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) about_hash: Option<Digest>,
    pub(crate) agent_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) atlas_id: Option<String>,
    pub(crate) goal_hash: Digest,
    pub(crate) owner: String,
    pub(crate) parent_session_id: Option<Uuid>,
    pub(crate) session_id: Uuid,
}

/// The opener's description of a session.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CarpSessionDescription {
    pub(crate) goal: String,
    pub(crate) metadata: Map<String, Value>,
}

/// `ckp.carp.issued`: a resolution under which actions may be executed; its content is an [`StoredResolution`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IssuedEvent {
    pub(crate) kept_hash: Digest,
    pub(crate) resolution_id: Uuid,
    pub(crate) session_id: Uuid,
}

/// A request and the actions that its resolution allows, without the context.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredResolution {
    pub(crate) request: Request,
    pub(crate) resolution: CarpResolution,
}

/// `ckp.carp.charged`: the amounts that an execution took from limits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CarpCharged {
    pub(crate) action_id: String,
    pub(crate) agent_id: String,
    pub(crate) session_id: Uuid,
    pub(crate) spends: Vec<LimitCharge>,
}

/// The amount taken from one limit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LimitCharge {
    pub(crate) amount: u64,
    pub(crate) key: String,
    pub(crate) limit: u64,
    pub(crate) window_seconds: u64,
}

/// `ckp.atlas.described`; its content is an `atlases::Upload`.
#[derive(Debug, Serialize)]
pub(crate) struct AtlasDescribed<'a> {
    pub(crate) atlas_id: &'a str,
    pub(crate) upload_hash: Digest,
    pub(crate) version: &'a str,
}

/// `ckp.atlas.loaded`; its content is an `atlases::Upload`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AtlasLoaded {
    pub(crate) atlas_id: String,
    pub(crate) by: String,
    pub(crate) upload_hash: Digest,
    pub(crate) version: String,
}

/// `ckp.atlas.removed`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AtlasRemoved {
    pub(crate) atlas_id: String,
    pub(crate) by: String,
}

/// `ckp.carp.approved`: a person's answer to a waiting action.
#[derive(Debug, Serialize)]
pub(crate) struct CarpApproved<'a> {
    pub(crate) action_id: &'a str,
    pub(crate) answer: &'a str,
    pub(crate) approval_id: Uuid,
    pub(crate) by: &'a str,
    pub(crate) parameters_hash: Digest,
    pub(crate) reason: Option<&'a str>,
    pub(crate) resolution_id: Uuid,
    pub(crate) seen: Option<&'a str>,
    pub(crate) session_id: Uuid,
}

/// `session.started` in the protocol's form.
#[derive(Debug, Serialize)]
pub(crate) struct CarpSessionStarted<'a> {
    pub(crate) agent_id: &'a str,
    pub(crate) goal: &'a str,
}

#[derive(Serialize)]
struct ContextInjected<'a> {
    block_id: &'a str,
    source: &'a str,
    token_count: u64,
}

#[derive(Serialize)]
struct ContextRedacted<'a> {
    block_id: &'a str,
    redaction_reason: &'a str,
}

#[derive(Serialize)]
struct ResolutionCompleted<'a> {
    allowed_count: usize,
    context_block_count: usize,
    decision_type: &'a str,
    denied_count: usize,
    request_id: Uuid,
    resolution_id: Uuid,
    ttl_seconds: u32,
}

#[derive(Serialize)]
struct CarpErrorOccurred<'a> {
    error_code: &'a str,
    error_message: &'a str,
    request_id: Uuid,
}

#[derive(Serialize)]
struct PolicyViolated<'a> {
    details: ViolationDetails<'a>,
    policy_id: &'a str,
    violation_type: Violation,
}

#[derive(Serialize)]
struct ViolationDetails<'a> {
    action_id: &'a str,
    reason: Option<&'a str>,
}

/// `carp.request.received`: the data that a replay needs; fields that are not set or have the default are left out. `changes`: see
/// `Loaded::changes`.
fn received(request: &Request, changes: u64) -> Box<RawValue> {
    let nothing = CarpTask::default();
    let task = request.task.as_ref().unwrap_or(&nothing);
    let mut payload = Map::new();
    let mut put = |key: &str, given: bool, value: Value| {
        if given {
            payload.insert(key.to_owned(), value);
        }
    };
    put("request_id", true, json!(request.request_id));
    put("operation", true, json!(request.operation));
    put("goal", true, json!(task.goal));
    put(
        "risk_tier",
        task.risk_tier != RiskTier::Low,
        json!(task.risk_tier),
    );
    let (capabilities, hints) = (&task.required_capabilities, &task.context_hints);
    put(
        "required_capabilities",
        !capabilities.is_empty(),
        json!(capabilities),
    );
    put("context_hints", !hints.is_empty(), json!(hints));
    put(
        "atlas_ids",
        !request.atlas_ids.is_empty(),
        json!(request.atlas_ids),
    );
    put("context", !request.context.is_empty(), json!(request.context));
    put("atlas_changes", changes > 0, json!(changes));
    match clawk_trace::canonical::payload_of(&payload) {
        Ok(raw) if raw.get().len() <= PAYLOAD_MAX_BYTES => raw,
        // A context larger than an event, or with a number that has no canonical text, stays out of the chain (R27); only its
        // digest is recorded.
        Ok(_) | Err(_) => {
            let hash = digest(&canonical(&request.context));
            payload.remove("context");
            payload.insert("context_hash".to_owned(), json!(hash));
            raw(&payload)
        }
    }
}

/// `policy.evaluated` of an execution. `changes`: that of the judging set, see `Loaded::changes`.
pub(crate) fn evaluated(
    scribe: &JournalWriter,
    thread: &Thread,
    evaluation: &ActionEvaluation,
    changes: u64,
) -> Draft {
    let payload = PolicyEvaluated {
        atlas_changes: (changes > 0).then_some(changes),
        ..evaluation.payload()
    };
    scribe.entry(thread, kind::POLICY_EVALUATED, &payload)
}

/// `error.occurred`: a request that failed. For a resolution, the request's event comes before it.
pub(crate) fn occurred(
    scribe: &JournalWriter,
    thread: &Thread,
    request: &Request,
    error: &CarpError,
) -> Vec<Draft> {
    let text = match error {
        // The invalid value may be anything, so only its place is recorded.
        CarpError::Invalid(faults) => {
            let places = faults.errors.iter().take(16);
            let places = places.map(|fault| format!("{} ({})", fault.path, fault.code));
            places.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    };
    let payload = CarpErrorOccurred {
        error_code: error.code(),
        error_message: &text.chars().take(500).collect::<String>(),
        request_id: request.request_id,
    };
    let occurred = scribe.entry(thread, kind::ERROR_OCCURRED, &payload);
    let asked = (request.operation == CarpOperation::Resolve)
        .then(|| scribe.entry(thread, kind::CARP_REQUEST, &received(request, 0)));
    asked.into_iter().chain([occurred]).collect()
}

/// `policy.violated`.
pub(crate) fn violated(
    scribe: &JournalWriter,
    thread: &Thread,
    action_id: &str,
    policy_id: &str,
    violation: Violation,
    reason: Option<&str>,
) -> Draft {
    let payload = PolicyViolated {
        details: ViolationDetails { action_id, reason },
        policy_id,
        violation_type: violation,
    };
    scribe.entry(thread, kind::POLICY_VIOLATED, &payload)
}

/// Returns the events from the request to the answer as entries of one thread.
pub(crate) fn resolution(
    scribe: &JournalWriter,
    thread: &Thread,
    (request, changes): (&Request, u64),
    resolution: &CarpResolution,
    evaluations: &[ActionEvaluation],
    redacted: &[&ContextBlock],
) -> Vec<Draft> {
    resolution_events((request, changes), resolution, evaluations, redacted)
        .into_iter()
        .map(|(kind, payload)| scribe.written(thread, kind, payload))
        .collect()
}

/// Returns the events of one resolution in the protocol's order, from the request to the answer: types and payloads. `redacted`:
/// blocks left out for lack of room. `changes`: number of earlier Atlas changes over the API.
#[must_use]
pub fn resolution_events(
    (request, changes): (&Request, u64),
    resolution: &CarpResolution,
    evaluations: &[ActionEvaluation],
    redacted: &[&ContextBlock],
) -> Vec<(&'static str, Box<RawValue>)> {
    let blocks = &resolution.context_blocks;
    let mut events = Vec::with_capacity(evaluations.len() + blocks.len() + 2);
    events.push((kind::CARP_REQUEST, received(request, changes)));
    events.extend(
        evaluations
            .iter()
            .map(|one| (kind::POLICY_EVALUATED, raw(&one.payload()))),
    );
    for block in blocks {
        let out = redacted
            .iter()
            .any(|other| other.block_id == block.block_id && other.source == block.source);
        events.push(if out {
            let payload = ContextRedacted {
                block_id: &block.block_id,
                redaction_reason: "max_context_tokens",
            };
            (kind::CONTEXT_REDACTED, raw(&payload))
        } else {
            let payload = ContextInjected {
                block_id: &block.block_id,
                source: &block.source,
                token_count: block.token_estimate,
            };
            (kind::CONTEXT_INJECTED, raw(&payload))
        });
    }
    let completed = ResolutionCompleted {
        allowed_count: resolution.allowed_actions.len(),
        context_block_count: blocks.len() - redacted.len().min(blocks.len()),
        decision_type: resolution.decision.kind.name(),
        denied_count: resolution.denied_actions.len(),
        request_id: resolution.request_id,
        resolution_id: resolution.resolution_id,
        ttl_seconds: resolution.ttl_seconds,
    };
    events.push((kind::CARP_COMPLETED, raw(&completed)));
    events
}

fn raw(payload: &impl Serialize) -> Box<RawValue> {
    // silent-ok: texts, ids and counts always serialise
    let raw = serde_json::value::to_raw_value(payload).unwrap_or_else(|_| RawValue::NULL.to_owned());
    clawk_trace::bounded(raw)
}

/// `ckp.carp.issued`, in the runtime's chain.
pub(crate) fn issued(
    scribe: &JournalWriter,
    root: &Thread,
    request: &Request,
    resolution: &CarpResolution,
) -> Draft {
    let bytes = canonical(&kept(request, resolution));
    let payload = IssuedEvent {
        kept_hash: digest(&bytes),
        resolution_id: resolution.resolution_id,
        session_id: request.requester.session_id.0,
    };
    let hash = payload.kept_hash;
    scribe
        .entry(root, kind::CARP_ISSUED, &payload)
        .content(hash, bytes)
}

/// Returns the data that an execution needs, without texts and schemas.
fn kept(request: &Request, resolution: &CarpResolution) -> StoredResolution {
    let bare = |action: &Arc<AllowedAction>| {
        Arc::new(AllowedAction {
            action_id: Arc::clone(&action.action_id),
            name: String::new(),
            description: String::new(),
            parameters_schema: Value::Object(Map::new()),
            returns_schema: None,
            risk_tier: action.risk_tier,
            requires_confirmation: action.requires_confirmation,
            idempotent: action.idempotent,
            rate_limit: action.rate_limit,
        })
    };
    StoredResolution {
        request: request.clone(),
        resolution: CarpResolution {
            carp_version: resolution.carp_version.clone(),
            resolution_id: resolution.resolution_id,
            request_id: resolution.request_id,
            timestamp: resolution.timestamp.clone(),
            decision: resolution.decision.clone(),
            context_blocks: Vec::new(),
            allowed_actions: resolution.allowed_actions.iter().map(bare).collect(),
            denied_actions: resolution.denied_actions.clone(),
            constraints: resolution.constraints.clone(),
            ttl_seconds: resolution.ttl_seconds,
            trace_id: resolution.trace_id,
        },
    }
}
