//! Approval requests whose caller does not wait (CRA): returns the answer if there is one, or says that the request is open.

use std::sync::Arc;

use super::CallApprover;
use super::ask::ApprovalRequest;
use super::grant::CallAuthorization;
use super::record::CallRecord;
use crate::carp::{self, DeferredApproval};
use crate::error::CallError;

impl ApprovalRequest<'_> {
    /// Finds the answer to exactly this call, or makes the request. As with every approval, the preconditions must hold when the
    /// answer is used.
    ///
    /// # Errors
    /// The request waits, a person said no, or a precondition has changed.
    pub(super) async fn find_or_ask(
        &self,
        record: &mut CallRecord<'_>,
    ) -> Result<CallAuthorization, CallError> {
        let tool = || self.request.tool.clone();
        let Some(under) = &self.request.under else {
            return Err(CallError::Cancelled { tool: tool() });
        };
        let now = self.observe_grant(record).await?;
        let sheet = Arc::new(self.build_preview().await);
        match carp::defer_approval(
            &self.calls.carp,
            under,
            &self.request.tool,
            record.parameters,
            self.verdict,
            (now, sheet),
        )? {
            DeferredApproval::Approved { by, shown } => {
                record.record_early_answer("approve", &by, None);
                self.check_unchanged(record, &shown).await?;
                Ok(CallAuthorization::by_person(CallApprover::Person(by), shown))
            }
            DeferredApproval::Denied { by, reason } => {
                record.record_early_answer("deny", &by, reason.as_deref());
                let tool = tool();
                Err(CallError::ApprovalDenied { tool, by, reason })
            }
            DeferredApproval::Waits(view) => {
                record.record_pending(&view, self.verdict).await?;
                Err(CallError::ApprovalPending {
                    tool: tool(),
                    approval_id: view.id.to_string(),
                    expires_at: view.expires_at,
                })
            }
        }
    }
}
