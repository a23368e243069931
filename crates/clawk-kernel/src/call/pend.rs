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
    pub(super) async fn pend(&self, record: &mut CallRecord<'_>) -> Result<CallAuthorization, CallError> {
        let tool = || self.request.tool.clone();
        let Some(under) = &self.request.under else {
            return Err(CallError::Cancelled { tool: tool() });
        };
        let now = self.look(record).await?;
        let sheet = Arc::new(self.sheet().await);
        match carp::pend(
            &self.calls.carp,
            under,
            &self.request.tool,
            record.parameters,
            self.verdict,
            (now, sheet),
        )? {
            DeferredApproval::Approved { by, shown } => {
                record.told("approve", &by, None);
                self.holds(record, &shown).await?;
                Ok(CallAuthorization::bound(CallApprover::Person(by), shown))
            }
            DeferredApproval::Denied { by, reason } => {
                record.told("deny", &by, reason.as_deref());
                let tool = tool();
                Err(CallError::ApprovalDenied { tool, by, reason })
            }
            DeferredApproval::Waits(view) => {
                record.pending(&view, self.verdict).await?;
                Err(CallError::ApprovalPending {
                    tool: tool(),
                    approval_id: view.id.to_string(),
                    expires_at: view.expires_at,
                })
            }
        }
    }
}
