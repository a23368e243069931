//! CARP: the events of the protocol itself, and the events that a restart needs.

use clawk_proto::Digest;
use clawk_proto::carp::{CarpOperation, RiskTier};
use uuid::Uuid;

use crate::field::{AddedField, payloads};
use crate::shape::{LimitCharge, PolicyResult, PolicyViolation, ViolationDetails};
use crate::text::CanonicalObject;

payloads! {
    /// `carp.request.received`. A CARP request arrived. Fields that are not set or have the default are left out.
    CarpRequestReceived {
        /// Number of Atlases that were loaded or removed over the API before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        atlas_changes: Option<u64>,
        /// The Atlases that the request names.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        atlas_ids: Vec<String>,
        /// Facts that policies may match.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context: Option<CanonicalObject>,
        /// Digest of the context, where the context is too large for an event.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context_hash: Option<Digest>,
        /// Hints that name context packs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        context_hints: Vec<String>,
        /// The goal, as text.
        goal: String,
        /// What was asked for.
        operation: CarpOperation,
        /// Id of the request.
        request_id: Uuid,
        /// Capabilities that an action must have.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        required_capabilities: Vec<String>,
        /// The risk; `low` is left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        risk_tier: Option<RiskTier>,
    }

    /// `carp.resolution.completed`. A CARP request was resolved.
    CarpResolutionCompleted {
        /// Actions that are allowed.
        allowed_count: u64,
        /// Context blocks that reached the reader.
        context_block_count: u64,
        /// The decision.
        decision_type: String,
        /// Actions that are denied.
        denied_count: u64,
        /// Id of the request.
        request_id: Uuid,
        /// Id of the decision.
        resolution_id: Uuid,
        /// How long the resolution holds, in seconds.
        ttl_seconds: u32,
    }

    /// `error.occurred`. A CARP request failed.
    CarpErrorOccurred {
        /// The error's code.
        error_code: String,
        /// The error's text.
        error_message: String,
        /// Id of the request.
        request_id: Uuid,
    }

    /// `policy.evaluated`. An Atlas evaluated one action.
    PolicyEvaluated {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// Number of Atlases that were loaded or removed over the API before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        atlas_changes: Option<u64>,
        /// Id of the policy that decided.
        policy_id: String,
        /// What the Atlas says.
        result: PolicyResult,
    }

    /// `policy.violated`. An execution violated a policy.
    PolicyViolated {
        /// The action and the reason.
        details: ViolationDetails,
        /// Id of the policy that decided.
        policy_id: String,
        /// Which kind of violation.
        violation_type: PolicyViolation,
    }

    /// `context.injected`. A context block was delivered to the reader.
    ContextInjected {
        /// Id of the context block.
        block_id: String,
        /// The Atlas that the block is from.
        source: String,
        /// Tokens of the block.
        token_count: u64,
    }

    /// `context.redacted`. A context block was left out.
    ContextRedacted {
        /// Id of the context block.
        block_id: String,
        /// Why it was left out.
        redaction_reason: String,
    }

    /// `ckp.carp.session`. The owner of a CRA session. The content is the goal or, with `about_hash`, the whole opening request.
    CarpSessionOpened {
        /// Digest of what the opener said of the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        about_hash: Option<Digest>,
        /// The agent's name.
        agent_id: String,
        /// Id of the Atlas.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        atlas_id: Option<String>,
        /// Digest of the goal.
        goal_hash: Digest,
        /// The owner's identity.
        owner: String,
        /// Id of the parent session.
        parent_session_id: Option<Uuid>,
        /// Id of the session.
        session_id: Uuid,
    }

    /// `ckp.carp.issued`. A resolution under which actions may be executed. The content is the data that execution needs.
    CarpResolutionIssued {
        /// Digest of what is stored of the resolution.
        kept_hash: Digest,
        /// Id of the decision.
        resolution_id: Uuid,
        /// Id of the session.
        session_id: Uuid,
    }

    /// `ckp.carp.charged`. An execution used up part of the limits of Atlases.
    CarpLimitsCharged {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// The agent's name.
        agent_id: String,
        /// Id of the session.
        session_id: Uuid,
        /// The amount used from each limit.
        spends: Vec<LimitCharge>,
    }

    /// `ckp.carp.answered`. A person answered the approval request of a waiting action.
    CarpApprovalAnswered {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// The answer, as a word.
        answer: String,
        /// The question that was answered.
        approval_id: Uuid,
        /// The identity that did this.
        by: String,
        /// Digest of the arguments.
        parameters_hash: Digest,
        /// The reason, as text.
        reason: Option<String>,
        /// Id of the decision.
        resolution_id: Uuid,
        /// What the person saw before they answered.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        seen: AddedField<String>,
        /// Id of the session.
        session_id: Uuid,
    }

    /// `ckp.atlas.described`. An Atlas of the configuration is in force in this run. The content is the Atlas's source.
    AtlasDescribed {
        /// Id of the Atlas.
        atlas_id: String,
        /// Digest of the upload.
        upload_hash: Digest,
        /// Version of the Atlas.
        version: String,
    }

    /// `ckp.atlas.loaded`. An Atlas was loaded over the API.
    AtlasLoaded {
        /// Id of the Atlas.
        atlas_id: String,
        /// The identity that did this.
        by: String,
        /// Digest of the upload.
        upload_hash: Digest,
        /// Version of the Atlas.
        version: String,
    }

    /// `ckp.atlas.removed`. An Atlas was removed over the API.
    AtlasRemoved {
        /// Id of the Atlas.
        atlas_id: String,
        /// The identity that did this.
        by: String,
    }
}
