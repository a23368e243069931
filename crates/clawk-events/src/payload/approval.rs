//! Questions to people, standing grants, emergency stops and undo.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::{AddedField, payloads};
use crate::text::ChainText;

payloads! {
    /// `ckp.approval.requested`. A person is asked.
    ApprovalRequested {
        /// The tool, or the Atlas action.
        action_id: String,
        /// What holds if nobody answers.
        default_if_timeout: String,
        /// When it lapses, RFC 3339.
        expires_at: String,
        /// The policy that decided.
        policy_id: Option<String>,
        /// Digest of the question.
        question_hash: Digest,
        /// Why.
        reason: String,
        /// Digest of the request.
        request_hash: Digest,
        /// The request.
        request_id: String,
        /// The rule that decided.
        rule_id: Option<String>,
    }

    /// `ckp.approval.answered`. The question was answered, or lapsed.
    ApprovalAnswered {
        /// The tool, or the Atlas action.
        action_id: String,
        /// What was answered.
        answer: String,
        /// Who did it.
        by: String,
        /// The channel.
        channel: String,
        /// Why.
        reason: Option<ChainText>,
        /// The request.
        request_id: String,
        /// The sender's role.
        role: String,
        /// What the person had seen.
        #[serde(default, skip_serializing_if = "AddedField::is_absent")]
        seen: AddedField<String>,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.approval.voided`. A fact that an approval was bound to changed before the run.
    ApprovalVoided {
        /// The tool, or the Atlas action.
        action_id: String,
        /// The fact that changed.
        changed: String,
        /// The request.
        request_id: String,
    }

    /// `ckp.approval.granted`. A standing grant: later calls of that shape need no question.
    ApprovalGranted {
        /// The tool, or the Atlas action.
        action_id: String,
        /// Digest of the facts that the grant rests on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        basis_hash: Option<Digest>,
        /// Who did it.
        by: String,
        /// The channel.
        channel: String,
        /// The folder that the grant is bound to.
        folder: Option<String>,
        /// The grant.
        grant_id: String,
        /// How long the grant holds.
        lasting: String,
        /// Digest of where the call's paths led.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        led_hash: Option<Digest>,
        /// Digest of the arguments.
        parameters_hash: Digest,
        /// Digest of the sandbox plan.
        plan_hash: Digest,
        /// The request.
        request_id: String,
        /// What the person was shown.
        shown: ChainText,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.approval.revoked`. A standing grant ended.
    ApprovalRevoked {
        /// Who did it.
        by: String,
        /// The grant.
        grant_id: String,
    }

    /// `ckp.stop.engaged`. An operator stopped the agent, or a session.
    StopEngaged {
        /// Who did it.
        by: String,
        /// The channel.
        channel: String,
        /// The level.
        level: String,
        /// Why.
        reason: Option<ChainText>,
        /// The session; none: the whole agent.
        session: Option<Uuid>,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.stop.lifted`. An operator lifted a stop.
    StopLifted {
        /// Who did it.
        by: String,
        /// The channel.
        channel: String,
        /// The session; none: the whole agent.
        session: Option<Uuid>,
    }

    /// `ckp.undo.started`. A person puts back what calls of the session overwrote; the content is the list.
    UndoStarted {
        /// Who did it.
        by: String,
        /// Calls.
        calls: u64,
        /// Digest of the list.
        list_hash: Digest,
        /// Places that are put back.
        places: u64,
        /// The undo.
        undo: Uuid,
        /// Calls or places that can't be put back.
        without: u64,
    }

    /// `ckp.undo.ended`. An undo is done.
    UndoEnded {
        /// Places that were put back.
        done: u64,
        /// What failed.
        failed: u64,
        /// The undo.
        undo: Uuid,
    }
}
