//! A question whose caller does not wait (CRA): returns the answer if there is one, or says that the question is open.

use std::sync::Arc;

use super::Approver;
use super::ask::Asking;
use super::grant::Leave;
use super::record::Record;
use crate::carp::{self, Pended};
use crate::error::CallError;

impl Asking<'_> {
    /// Finds the answer to exactly this call, or puts the question. As with every approval, what was there when it was
    /// put must be there when it is used.
    ///
    /// # Errors
    /// It waits, a person said no, or what the person was asked about has changed.
    pub(super) async fn pend(&self, record: &mut Record<'_>) -> Result<Leave, CallError> {
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
            Pended::Approved { by, shown } => {
                record.told("approve", &by, None);
                self.holds(record, &shown).await?;
                Ok(Leave::bound(Approver::Person(by), shown))
            }
            Pended::Denied { by, reason } => {
                record.told("deny", &by, reason.as_deref());
                let tool = tool();
                Err(CallError::ApprovalDenied { tool, by, reason })
            }
            Pended::Waits(view) => {
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
