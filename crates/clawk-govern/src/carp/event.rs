//! The events that CARP writes into the journal: the standard events in the protocol's order, and the data that a restart needs.
//!
//! A session's own chain holds the standard events. Data for the runtime only is in the runtime's chain, so that a session's trace
//! follows the protocol.

use std::sync::Arc;

use clawk_carp::resolve::{ActionEvaluation, PolicyOutcome, Violation};
use clawk_events::payload::{
    CarpErrorOccurred, CarpRequestReceived, CarpResolutionCompleted, CarpResolutionIssued, ContextInjected,
    ContextRedacted, PolicyEvaluated, PolicyViolated,
};
use clawk_events::shape::{PolicyResult, PolicyViolation, ViolationDetails};
use clawk_events::{CanonicalObject, WrittenEvent, count_of};
use clawk_proto::carp::{
    AllowedAction, CarpOperation, CarpResolution, CarpTask, ContextBlock, Request, RiskTier,
};
use clawk_proto::trace::PAYLOAD_MAX_BYTES;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::CarpError;
use crate::event::{Draft, JournalWriter, Thread, canonical, digest};

/// The opener's description of a session.
#[derive(Debug, Serialize, Deserialize)]
pub struct CarpSessionDescription {
    /// The goal of the session.
    pub goal: String,
    /// The client's own data.
    pub metadata: Map<String, Value>,
}

/// A request and what its resolution allows, without the context.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoredResolution {
    /// The request.
    pub request: Request,
    /// The resolution that answers it.
    pub resolution: CarpResolution,
}

/// `carp.request.received`: what a replay needs; what was not given, or is the default, is left out. `changes`: see
/// `Loaded::changes`.
fn request_received(request: &Request, changes: u64) -> CarpRequestReceived {
    let nothing = CarpTask::default();
    let task = request.task.as_ref().unwrap_or(&nothing);
    let context = (!request.context.is_empty()).then_some(&request.context);
    let mut payload = CarpRequestReceived {
        atlas_changes: (changes > 0).then_some(changes),
        atlas_ids: request.atlas_ids.clone(),
        context: None,
        context_hash: None,
        context_hints: task.context_hints.clone(),
        goal: task.goal.clone(),
        operation: request.operation,
        request_id: request.request_id,
        required_capabilities: task.required_capabilities.clone(),
        risk_tier: (task.risk_tier != RiskTier::Low).then_some(task.risk_tier),
    };
    // What is larger than an event, or a number that two readers write differently, stays out of the chain (R27); its
    // digest does not.
    if let Some(context) = context {
        // silent-ok: what has no canonical form is named by its digest
        let canonical_context = clawk_trace::canonical::payload_of(context).ok();
        payload.context = canonical_context.map(CanonicalObject::new);
        if payload.context.is_none() || !fits_event(&payload) {
            payload.context = None;
            payload.context_hash = Some(digest(&canonical(context)));
        }
    }
    payload
}

/// The payload is no larger than an event may be.
fn fits_event(payload: &CarpRequestReceived) -> bool {
    clawk_trace::canonical::payload_of(payload).is_ok_and(|raw| raw.get().len() <= PAYLOAD_MAX_BYTES)
}

fn policy_evaluated(evaluation: &ActionEvaluation, changes: u64) -> PolicyEvaluated {
    let said = evaluation.payload();
    PolicyEvaluated {
        action_id: said.action_id.to_owned(),
        atlas_changes: (changes > 0).then_some(changes),
        policy_id: said.policy_id.to_owned(),
        result: match said.result {
            PolicyOutcome::Allow => PolicyResult::Allow,
            PolicyOutcome::Deny => PolicyResult::Deny,
            PolicyOutcome::NotApplicable => PolicyResult::NotApplicable,
        },
    }
}

const fn policy_violation(violation: Violation) -> PolicyViolation {
    match violation {
        Violation::RateLimit => PolicyViolation::RateLimit,
        Violation::Budget => PolicyViolation::Budget,
        Violation::DeniedAction => PolicyViolation::DeniedAction,
        Violation::InvalidParameters => PolicyViolation::InvalidParameters,
        Violation::Unauthorized => PolicyViolation::Unauthorized,
    }
}

/// `policy.evaluated` of an execution. `changes`: that of the judging set, see `Loaded::changes`.
pub fn evaluated_draft(
    scribe: &JournalWriter,
    thread: &Thread,
    evaluation: &ActionEvaluation,
    changes: u64,
) -> Draft {
    scribe.draft_event(thread, &policy_evaluated(evaluation, changes))
}

/// `error.occurred`: a request that failed. For a resolution, the request's event comes before it.
pub fn error_drafts(
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
        error_code: error.code().to_owned(),
        error_message: text.chars().take(500).collect(),
        request_id: request.request_id,
    };
    let occurred = scribe.draft_event(thread, &payload);
    let asked = (request.operation == CarpOperation::Resolve)
        .then(|| scribe.draft_event(thread, &request_received(request, 0)));
    asked.into_iter().chain([occurred]).collect()
}

/// `policy.violated`.
pub fn violated_draft(
    scribe: &JournalWriter,
    thread: &Thread,
    action_id: &str,
    policy_id: &str,
    violation: Violation,
    reason: Option<&str>,
) -> Draft {
    let payload = PolicyViolated {
        details: ViolationDetails {
            action_id: action_id.to_owned(),
            reason: reason.map(str::to_owned),
        },
        policy_id: policy_id.to_owned(),
        violation_type: policy_violation(violation),
    };
    scribe.draft_event(thread, &payload)
}

/// What is known of one resolution when it is recorded.
#[derive(Debug, Clone, Copy)]
pub struct ResolutionRecord<'a> {
    /// The request.
    pub request: &'a Request,
    /// How often Atlases came and went over the API before.
    pub atlas_changes: u64,
    /// The answer.
    pub resolution: &'a CarpResolution,
    /// What the Atlases said of each action.
    pub evaluations: &'a [ActionEvaluation],
    /// Blocks that the reader is not given for want of room.
    pub redacted: &'a [&'a ContextBlock],
}

impl ResolutionRecord<'_> {
    /// Hands the events of one resolution, from the request to the answer, to `write`, in the protocol's order.
    pub fn each_event(&self, mut write: impl FnMut(&dyn WrittenEvent)) {
        let (resolution, redacted) = (self.resolution, self.redacted);
        write(&request_received(self.request, self.atlas_changes));
        for evaluation in self.evaluations {
            write(&policy_evaluated(evaluation, 0));
        }
        for block in &resolution.context_blocks {
            let out = redacted
                .iter()
                .any(|other| other.block_id == block.block_id && other.source == block.source);
            if out {
                write(&ContextRedacted {
                    block_id: block.block_id.to_string(),
                    redaction_reason: "max_context_tokens".to_owned(),
                });
            } else {
                write(&ContextInjected {
                    block_id: block.block_id.to_string(),
                    source: block.source.to_string(),
                    token_count: block.token_estimate,
                });
            }
        }
        let blocks = resolution.context_blocks.len();
        write(&CarpResolutionCompleted {
            allowed_count: count_of(resolution.allowed_actions.len()),
            context_block_count: count_of(blocks - redacted.len().min(blocks)),
            decision_type: resolution.decision.kind.name().to_owned(),
            denied_count: count_of(resolution.denied_actions.len()),
            request_id: resolution.request_id,
            resolution_id: resolution.resolution_id,
            ttl_seconds: resolution.ttl_seconds,
        });
    }

    /// The same as drafts of one thread.
    pub fn drafts(&self, scribe: &JournalWriter, thread: &Thread) -> Vec<Draft> {
        let mut drafts = Vec::new();
        self.each_event(|event| drafts.push(scribe.draft_event(thread, event)));
        drafts
    }
}

/// `ckp.carp.issued`, in the runtime's chain.
pub fn issued_draft(
    scribe: &JournalWriter,
    root: &Thread,
    request: &Request,
    resolution: &CarpResolution,
) -> Draft {
    let bytes = canonical(&stored_resolution(request, resolution));
    let payload = CarpResolutionIssued {
        kept_hash: digest(&bytes),
        resolution_id: resolution.resolution_id,
        session_id: request.requester.session_id.0,
    };
    let hash = payload.kept_hash;
    scribe.draft_event(root, &payload).with_content(hash, bytes)
}

/// Returns the data that an execution needs, without texts and schemas.
fn stored_resolution(request: &Request, resolution: &CarpResolution) -> StoredResolution {
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
