//! One tool call: requested, decided, run; and what it reached on the network.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::payloads;
use crate::shape::BudgetUse;
use crate::text::ChainText;

payloads! {
    /// `action.requested`. Somebody wants a tool to run.
    ActionRequested {
        /// The tool, or the Atlas action.
        action_id: String,
        /// The model's id of the call.
        call_id: Option<String>,
        /// Arguments that were converted to what the schema asks for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        converted: Vec<String>,
        /// The entry point.
        door: String,
        /// Who wants it.
        identity: String,
        /// Digest of the arguments.
        parameters_hash: Digest,
        /// The policy that the request names.
        policy: Option<String>,
        /// The request.
        request_id: String,
        /// The sandbox that the request names.
        sandbox: Option<String>,
        /// Origins of the untrusted text in the conversation.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        taint: Vec<String>,
        /// The turn.
        turn: Option<Uuid>,
    }

    /// `action.approved`. The call may run: the decision, durable before the effect.
    ActionApproved {
        /// The tool, or the Atlas action.
        action_id: String,
        /// Who did it.
        by: String,
        /// The decision's effect.
        effect: String,
        /// Digest of the arguments.
        parameters_hash: Digest,
        /// The policy that decided.
        policy_id: Option<String>,
        /// Digest of the request.
        request_hash: Digest,
        /// The request.
        request_id: String,
        /// The decision's id.
        resolution_id: Uuid,
        /// The rule that decided.
        rule_id: Option<String>,
        /// The tool changes something.
        side_effects: bool,
        /// The turn.
        turn: Option<Uuid>,
    }

    /// `action.denied`. The call may not run.
    ActionDenied {
        /// The tool, or the Atlas action.
        action_id: String,
        /// Who did it.
        by: String,
        /// The policy that decided.
        policy_id: Option<String>,
        /// Why.
        reason: ChainText,
        /// Digest of the request.
        request_hash: Digest,
        /// The request.
        request_id: String,
        /// Digest of the result.
        result_hash: Digest,
        /// The rule that decided.
        rule_id: Option<String>,
        /// The turn.
        turn: Option<Uuid>,
    }

    /// `action.executed`. The call ran.
    ActionExecuted {
        /// The tool, or the Atlas action.
        action_id: String,
        /// How many attempts there were.
        attempts: u32,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The execution.
        execution_id: Uuid,
        /// The result is an error.
        is_error: bool,
        /// The level.
        level: String,
        /// What enclosed the tool.
        mechanisms: Vec<String>,
        /// What should have enclosed the tool and was missing.
        missing: Vec<String>,
        /// Digest of the request.
        request_hash: Digest,
        /// The request.
        request_id: String,
        /// Digest of the result.
        result_hash: Digest,
        /// What budgets that outlive a restart paid.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        took: Vec<BudgetUse>,
        /// The turn.
        turn: Option<Uuid>,
    }

    /// `action.failed`. The call did not run, was cut short, or its outcome is unknown.
    ActionFailed {
        /// The tool, or the Atlas action.
        action_id: String,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The error's code.
        error_code: String,
        /// The error's text.
        error_message: ChainText,
        /// Digest of the request.
        request_hash: Digest,
        /// The request.
        request_id: String,
        /// Digest of the result.
        result_hash: Digest,
        /// What budgets that outlive a restart paid.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        took: Vec<BudgetUse>,
        /// The turn.
        turn: Option<Uuid>,
    }

    /// `ckp.policy.audited`. An `audit-only` rule let a call pass.
    ActionAudited {
        /// The tool, or the Atlas action.
        action_id: String,
        /// The policy that decided.
        policy_id: Option<String>,
        /// Why.
        reason: Option<String>,
        /// The request.
        request_id: String,
        /// The rule that decided.
        rule_id: Option<String>,
    }

    /// `ckp.effect.resolved`. The outcome of an effect that was unknown was found out.
    EffectResolved {
        /// The tool, or the Atlas action.
        action_id: String,
        /// Who did it.
        by: String,
        /// How it was found out.
        how: String,
        /// The outcome.
        outcome: String,
        /// Why.
        reason: Option<ChainText>,
        /// The request.
        request_id: String,
        /// Digest of the content that holds the words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.egress.connected`. A connection of a call was served.
    EgressConnected {
        /// The tool, or the Atlas action.
        action_id: String,
        /// The address that was reached.
        address: Option<String>,
        /// Bytes received.
        bytes_in: u64,
        /// Bytes sent.
        bytes_out: u64,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// What screening found in the traffic.
        findings: Vec<String>,
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// A private address was allowed.
        private: bool,
        /// The request.
        request_id: String,
        /// The rule that decided.
        rule: Option<String>,
        /// Names of the secrets that were put in.
        secrets: Vec<String>,
        /// The proxy read inside TLS.
        terminated: bool,
        /// By which way.
        via: String,
    }

    /// `ckp.egress.refused`. A connection of a call was refused, or cut for a reason.
    EgressRefused {
        /// The tool, or the Atlas action.
        action_id: String,
        /// The address that was reached.
        address: Option<String>,
        /// Bytes received.
        bytes_in: u64,
        /// Bytes sent.
        bytes_out: u64,
        /// The refusal's code, or the digest of a pairing code.
        code: String,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        reason: String,
        /// The request.
        request_id: String,
        /// The rule that decided.
        rule: Option<String>,
        /// By which way.
        via: String,
    }

    /// `ckp.egress.summed`. Further connections of a call, as sums.
    EgressSummed {
        /// The tool, or the Atlas action.
        action_id: String,
        /// Bytes received.
        bytes_in: u64,
        /// Bytes sent.
        bytes_out: u64,
        /// Connections that were served.
        connected: u64,
        /// Connections that were refused.
        refused: u64,
        /// The request.
        request_id: String,
    }
}
