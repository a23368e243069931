//! Open questions as elicitations: a client that may approve is asked directly.

use std::time::Duration;

use clawk_kernel::sheet::PreviewReceipt;
use clawk_kernel::{ApprovalAnswer, ApprovalQuestion, ApprovalReply, GrantScope, Kernel, KnownPerson};
use rmcp::RoleServer;
use rmcp::model::{ElicitRequestParams, ElicitationAction};
use rmcp::service::Peer;
use serde_json::json;

use super::serve::{McpRequestContext, from_json};
use crate::access::Scope;

/// Asks a client's user. Exists only if the client supports elicitation and its token may approve.
#[derive(Debug, Clone)]
pub(super) struct McpElicitor {
    kernel: Kernel,
    peer: Peer<RoleServer>,
    name: String,
}

impl McpElicitor {
    /// Returns `None` if this client may not answer; its questions then wait for another client.
    pub(super) fn for_client(asking: &McpRequestContext, peer: &Peer<RoleServer>) -> Option<Self> {
        let can = peer
            .peer_info()
            .is_some_and(|info| info.capabilities.elicitation.is_some());
        (can && asking.rights.has_scope(Scope::Approve)).then(|| Self {
            kernel: asking.kernel.clone(),
            peer: peer.clone(),
            name: asking.client.clone(),
        })
    }

    /// Shows a question with its whole text and applies the answer. Closing the dialog is not an answer.
    pub(super) async fn ask_question(&self, question: &ApprovalQuestion) {
        let message = format!("{}\n\n{}", question.reason, question.sheet.whole());
        let params = from_json::<ElicitRequestParams>(json!({
            "mode": "form",
            "message": message,
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "decision": {"type": "string", "title": "May this call run?", "enum": ["approve", "deny"]},
                    "reason": {"type": "string", "title": "Why", "maxLength": 1000},
                },
                "required": ["decision"],
            },
        }));
        let Ok(params) = params else { return };
        let limit = Duration::from_millis(self.kernel.left_ms(question).max(1));
        let answered = match self
            .peer
            .create_elicitation_with_timeout(params, Some(limit))
            .await
        {
            Ok(answered) => answered,
            Err(error) => return tracing::info!(%error, "a question was not answered by an MCP client"),
        };
        let said = |name: &str| {
            let content = answered.content.as_ref();
            content
                .and_then(|content| content.get(name))
                .and_then(|value| value.as_str())
        };
        let answer = match (&answered.action, said("decision")) {
            (ElicitationAction::Accept, Some("approve")) => ApprovalAnswer::Approve,
            (ElicitationAction::Accept, Some("deny")) | (ElicitationAction::Decline, _) => {
                ApprovalAnswer::Deny
            }
            _ => return,
        };
        let reply = ApprovalReply {
            answer,
            breadth: GrantScope::Exact,
            person: KnownPerson::admin("mcp", &self.name),
            reason: said("reason").map(str::to_owned),
            seen: PreviewReceipt::Sent,
        };
        self.kernel.reply_to_question(&question.request_id, reply).await;
    }
}
