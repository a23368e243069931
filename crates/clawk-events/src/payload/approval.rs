//! Approval requests, standing grants, emergency stops and undo.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::{AddedField, payloads};
use crate::text::ChainText;

payloads! {
    /// `ckp.approval.requested`. An approval was requested from a person.
    ApprovalRequested {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// The answer that applies if nobody answers in time.
        default_if_timeout: String,
        /// The time of expiry, RFC 3339.
        expires_at: String,
        /// Id of the policy that decided.
        policy_id: Option<String>,
        /// Digest of the question.
        question_hash: Digest,
        /// The reason, as text.
        reason: String,
        /// Digest of the request.
        request_hash: Digest,
        /// Id of the request.
        request_id: String,
        /// Id of the rule that decided.
        rule_id: Option<String>,
    }

    /// `ckp.approval.answered`. An approval request was answered, or expired.
    ApprovalAnswered {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// The answer, as a word.
        answer: String,
        /// The identity that did this.
        by: String,
        /// Name of the channel.
        channel: String,
        /// Why.
        reason: Option<ChainText>,
        /// The request.
        request_id: String,
        /// The sender's role.
        role: String,
        /// What the person saw before they answered.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        seen: AddedField<String>,
        /// Digest of the content that holds the full text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.approval.voided`. A precondition of an approval changed before the call ran.
    ApprovalVoided {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// The fact that changed.
        changed: String,
        /// Id of the request.
        request_id: String,
    }

    /// `ckp.approval.granted`. A person gave a standing grant: later calls that match it need no approval.
    ApprovalGranted {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// Digest of the preconditions of the grant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        basis_hash: Option<Digest>,
        /// The identity that did this.
        by: String,
        /// Name of the channel.
        channel: String,
        /// The folder that the grant is bound to.
        folder: Option<String>,
        /// Id of the grant.
        grant_id: String,
        /// The grant's lifetime.
        lasting: String,
        /// Digest of the call's resolved paths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        led_hash: Option<Digest>,
        /// Digest of the arguments.
        parameters_hash: Digest,
        /// Digest of the sandbox plan.
        plan_hash: Digest,
        /// Id of the request.
        request_id: String,
        /// What the person was shown.
        shown: ChainText,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.approval.revoked`. A standing grant ended.
    ApprovalRevoked {
        /// The identity that did this.
        by: String,
        /// Id of the grant.
        grant_id: String,
    }

    /// `ckp.stop.engaged`. An operator stopped the agent, or a session.
    StopEngaged {
        /// The identity that did this.
        by: String,
        /// Name of the channel.
        channel: String,
        /// The level, as a word.
        level: String,
        /// Why.
        reason: Option<ChainText>,
        /// The session; none: the whole agent.
        session: Option<Uuid>,
        /// Digest of the content that holds the full text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.stop.lifted`. An operator lifted a stop.
    StopLifted {
        /// The identity that did this.
        by: String,
        /// Name of the channel.
        channel: String,
        /// Id of the stopped session; `None` for the whole agent.
        session: Option<Uuid>,
    }

    /// `ckp.undo.started`. A person starts to restore what calls of the session overwrote. The content is the list.
    UndoStarted {
        /// The identity that did this.
        by: String,
        /// Number of calls.
        calls: u64,
        /// Digest of the list.
        list_hash: Digest,
        /// Locations that are restored.
        places: u64,
        /// Id of the undo.
        undo: Uuid,
        /// Calls or locations that can't be restored.
        without: u64,
    }

    /// `ckp.undo.ended`. An undo ended.
    UndoEnded {
        /// Locations that were restored.
        done: u64,
        /// The step that failed.
        failed: u64,
        /// Id of the undo.
        undo: Uuid,
    }
}
