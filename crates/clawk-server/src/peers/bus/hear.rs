//! Reads the reports of tasks that this host gave to the bus.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clawk_kernel::KernelError;
use clawk_kernel::ports::{ReportReceiver, ReportedTryState};
use clawk_proto::method::ReportParams;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{BREATH, Bus};
use crate::queue::{Broker, InboxMessage};

/// After a start, a report may arrive before its try is restored. The report is then looked at this many times,
/// [`super::VISIBLE_AGAIN`] apart.
const LOOKS: u64 = 20;

impl<B: Broker> Bus<B> {
    /// Reads the reports of one identity.
    pub(super) async fn read_reports(
        self: Arc<Self>,
        identity: String,
        desk: Arc<dyn ReportReceiver>,
        over: CancellationToken,
    ) {
        let Some(ends) = self.ends.get(&identity) else {
            return;
        };
        loop {
            match over.run_until_cancelled(ends.outbox.next()).await {
                None => return,
                Some(Ok(parcels)) => {
                    self.gone.store(false, Ordering::Relaxed);
                    for parcel in parcels {
                        if !accept_report(&*desk, &parcel).await {
                            continue;
                        }
                        if let Err(error) = ends.outbox.acknowledge_message(&parcel.receipt).await {
                            self.note_failure(&error);
                        }
                    }
                }
                Some(Err(error)) => {
                    self.note_failure(&error);
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }
}

/// Handles one report. `false`: the report stays in the queue and is delivered again.
async fn accept_report<R>(desk: &dyn ReportReceiver, parcel: &InboxMessage<R>) -> bool {
    #[derive(Deserialize)]
    struct ReportMessage {
        params: ReportParams,
    }
    let told = match serde_json::from_slice::<ReportMessage>(&parcel.message) {
        Ok(told) => told.params,
        Err(error) => {
            tracing::warn!(%error, "a message on the bus is no report");
            return true;
        }
    };
    match desk.try_state(&told.task_id, told.report_token.as_deref()) {
        ReportedTryState::Sent => {}
        ReportedTryState::Foreign => return true,
        ReportedTryState::Given => return parcel.tries >= LOOKS,
    }
    match desk.accept_report(None, told).await {
        Ok(_) => true,
        Err(KernelError::NotReady(_) | KernelError::Journal(_)) => false,
        Err(error) => {
            tracing::warn!(%error, "a report was not taken");
            true
        }
    }
}
