//! CARP: the protocol's own list, and what a restart needs of it.

use clawk_proto::Digest;
use clawk_proto::carp::{CarpOperation, RiskTier};
use uuid::Uuid;

use crate::field::{AddedField, payloads};
use crate::shape::{LimitCharge, PolicyResult, PolicyViolation, ViolationDetails};
use crate::text::CanonicalObject;

payloads! {
    /// `carp.request.received`. A CARP request came in. What was not given, or is the default, is left out.
    CarpRequestReceived {
        /// How often Atlases had come and gone over the API before.
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
        /// What it is for.
        goal: String,
        /// What was asked for.
        operation: CarpOperation,
        /// The request.
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
        /// The request.
        request_id: Uuid,
        /// The decision's id.
        resolution_id: Uuid,
        /// How long the resolution holds, in seconds.
        ttl_seconds: u32,
    }

    /// `error.occurred`. A CARP request was not answered as asked.
    CarpErrorOccurred {
        /// The error's code.
        error_code: String,
        /// The error's text.
        error_message: String,
        /// The request.
        request_id: Uuid,
    }

    /// `policy.evaluated`. An Atlas judged one action.
    PolicyEvaluated {
        /// The tool, or the Atlas action.
        action_id: String,
        /// How often Atlases had come and gone over the API before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        atlas_changes: Option<u64>,
        /// The policy that decided.
        policy_id: String,
        /// What the Atlas says.
        result: PolicyResult,
    }

    /// `policy.violated`. An execution ran against a policy.
    PolicyViolated {
        /// The action and the reason.
        details: ViolationDetails,
        /// The policy that decided.
        policy_id: String,
        /// Which kind of violation.
        violation_type: PolicyViolation,
    }

    /// `context.injected`. A context block reached its reader.
    ContextInjected {
        /// The context block.
        block_id: String,
        /// The Atlas that the block is from.
        source: String,
        /// Tokens of the block.
        token_count: u64,
    }

    /// `context.redacted`. A context block was left out.
    ContextRedacted {
        /// The context block.
        block_id: String,
        /// Why it was left out.
        redaction_reason: String,
    }

    /// `ckp.carp.session`. The owner of a CRA session. The content is the goal, or with `about_hash` all that the opener said.
    CarpSessionOpened {
        /// Digest of what the opener said of the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        about_hash: Option<Digest>,
        /// The agent's name.
        agent_id: String,
        /// The Atlas.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        atlas_id: Option<String>,
        /// Digest of the goal.
        goal_hash: Digest,
        /// Whose it is.
        owner: String,
        /// The session that it belongs to.
        parent_session_id: Option<Uuid>,
        /// The session.
        session_id: Uuid,
    }

    /// `ckp.carp.issued`. A resolution that may be executed under; the content is what execution asks about.
    CarpResolutionIssued {
        /// Digest of what is stored of the resolution.
        kept_hash: Digest,
        /// The decision's id.
        resolution_id: Uuid,
        /// The session.
        session_id: Uuid,
    }

    /// `ckp.carp.charged`. An execution used up part of the limits of Atlases.
    CarpLimitsCharged {
        /// The tool, or the Atlas action.
        action_id: String,
        /// The agent's name.
        agent_id: String,
        /// The session.
        session_id: Uuid,
        /// What was used up of each limit.
        spends: Vec<LimitCharge>,
    }

    /// `ckp.carp.answered`. A person's answer to an action that waited.
    CarpApprovalAnswered {
        /// The tool, or the Atlas action.
        action_id: String,
        /// What was answered.
        answer: String,
        /// The question that was answered.
        approval_id: Uuid,
        /// Who did it.
        by: String,
        /// Digest of the arguments.
        parameters_hash: Digest,
        /// Why.
        reason: Option<String>,
        /// The decision's id.
        resolution_id: Uuid,
        /// What the person had seen.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        seen: AddedField<String>,
        /// The session.
        session_id: Uuid,
    }

    /// `ckp.atlas.described`. An Atlas of the configuration is in force in this run; the content is what it was read from.
    AtlasDescribed {
        /// The Atlas.
        atlas_id: String,
        /// Digest of the upload.
        upload_hash: Digest,
        /// The version.
        version: String,
    }

    /// `ckp.atlas.loaded`. An Atlas came over the API.
    AtlasLoaded {
        /// The Atlas.
        atlas_id: String,
        /// Who did it.
        by: String,
        /// Digest of the upload.
        upload_hash: Digest,
        /// The version.
        version: String,
    }

    /// `ckp.atlas.removed`. An Atlas was removed over the API.
    AtlasRemoved {
        /// The Atlas.
        atlas_id: String,
        /// Who did it.
        by: String,
    }
}
