//! One tool call: requested, decided, executed; and its network connections.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::payloads;
use crate::shape::BudgetUse;
use crate::text::ChainText;

payloads! {
    /// `action.requested`. A caller requests a tool call.
    ActionRequested {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// The model's id of the call.
        call_id: Option<String>,
        /// Arguments that were converted to what the schema asks for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        converted: Vec<String>,
        /// Name of the entry point.
        door: String,
        /// The identity that requests the call.
        identity: String,
        /// Digest of the arguments.
        parameters_hash: Digest,
        /// The policy that the request names.
        policy: Option<String>,
        /// Id of the request.
        request_id: String,
        /// The sandbox that the request names.
        sandbox: Option<String>,
        /// Origins of the untrusted text in the conversation.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        taint: Vec<String>,
        /// Id of the turn.
        turn: Option<Uuid>,
    }

    /// `action.approved`. The decision that a call may run. It is durable before the effect begins.
    ActionApproved {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// The identity that did this.
        by: String,
        /// The decision's effect.
        effect: String,
        /// Digest of the arguments.
        parameters_hash: Digest,
        /// Id of the policy that decided.
        policy_id: Option<String>,
        /// Digest of the request.
        request_hash: Digest,
        /// Id of the request.
        request_id: String,
        /// Id of the decision.
        resolution_id: Uuid,
        /// Id of the rule that decided.
        rule_id: Option<String>,
        /// The tool has side effects.
        side_effects: bool,
        /// Id of the turn.
        turn: Option<Uuid>,
    }

    /// `action.denied`. The call may not run.
    ActionDenied {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// The identity that did this.
        by: String,
        /// Id of the policy that decided.
        policy_id: Option<String>,
        /// Why.
        reason: ChainText,
        /// Digest of the request.
        request_hash: Digest,
        /// Id of the request.
        request_id: String,
        /// Digest of the result.
        result_hash: Digest,
        /// Id of the rule that decided.
        rule_id: Option<String>,
        /// Id of the turn.
        turn: Option<Uuid>,
    }

    /// `action.executed`. The call ran.
    ActionExecuted {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// How many attempts there were.
        attempts: u32,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// Id of the execution.
        execution_id: Uuid,
        /// The result is an error.
        is_error: bool,
        /// The level, as a word.
        level: String,
        /// The sandbox mechanisms that were active.
        mechanisms: Vec<String>,
        /// Sandbox mechanisms that were required but missing.
        missing: Vec<String>,
        /// Digest of the request.
        request_hash: Digest,
        /// Id of the request.
        request_id: String,
        /// Digest of the result.
        result_hash: Digest,
        /// The amounts that persistent budgets paid.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        took: Vec<BudgetUse>,
        /// Id of the turn.
        turn: Option<Uuid>,
    }

    /// `action.failed`. The call did not run, was cut short, or its outcome is unknown.
    ActionFailed {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The error's code.
        error_code: String,
        /// The error's text.
        error_message: ChainText,
        /// Digest of the request.
        request_hash: Digest,
        /// Id of the request.
        request_id: String,
        /// Digest of the result.
        result_hash: Digest,
        /// The amounts that persistent budgets paid.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        took: Vec<BudgetUse>,
        /// Id of the turn.
        turn: Option<Uuid>,
    }

    /// `ckp.policy.audited`. An `audit-only` rule let a call pass.
    ActionAudited {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// Id of the policy that decided.
        policy_id: Option<String>,
        /// The reason, as text.
        reason: Option<String>,
        /// Id of the request.
        request_id: String,
        /// Id of the rule that decided.
        rule_id: Option<String>,
    }

    /// `ckp.effect.resolved`. The unknown outcome of an effect was determined.
    EffectResolved {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// The identity that did this.
        by: String,
        /// How the outcome was determined.
        how: String,
        /// The outcome.
        outcome: String,
        /// Why.
        reason: Option<ChainText>,
        /// The request.
        request_id: String,
        /// Digest of the content that holds the full text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.egress.connected`. A network connection of a call was served.
    EgressConnected {
        /// Name of the tool or of the Atlas action.
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
        /// Name of the host.
        host: String,
        /// The port.
        port: u16,
        /// The rule allowed a private address.
        private: bool,
        /// Id of the request.
        request_id: String,
        /// Id of the rule that decided.
        rule: Option<String>,
        /// Names of the secrets that the proxy inserted.
        secrets: Vec<String>,
        /// The proxy decrypted the TLS traffic.
        terminated: bool,
        /// The network path that was used.
        via: String,
    }

    /// `ckp.egress.refused`. A network connection of a call was refused or closed.
    EgressRefused {
        /// Name of the tool or of the Atlas action.
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
        /// Name of the host.
        host: String,
        /// The port.
        port: u16,
        /// The reason, as text.
        reason: String,
        /// Id of the request.
        request_id: String,
        /// Id of the rule that decided.
        rule: Option<String>,
        /// The network path that was used.
        via: String,
    }

    /// `ckp.egress.summed`. Totals of a call's further network connections.
    EgressSummed {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// Bytes received.
        bytes_in: u64,
        /// Bytes sent.
        bytes_out: u64,
        /// Connections that were served.
        connected: u64,
        /// Connections that were refused.
        refused: u64,
        /// Id of the request.
        request_id: String,
    }
}
