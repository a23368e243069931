//! Subscriptions: notifies a client when a trace that it may read has grown. The client's later read is checked again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clawk_proto::SessionId;
use rmcp::model::ResourceUpdatedNotificationParam;
use rmcp::service::Peer;
use rmcp::{ErrorData, RoleServer};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::resources;
use super::serve::{McpRequestContext, McpServerSession};

/// The largest number of subscriptions of one client.
const MAX_SUBSCRIPTIONS: usize = 64;
/// The shortest time between two notifications about the same trace.
const PAUSE: Duration = Duration::from_millis(250);

/// The subscriptions of one client, by address. Dropping a guard ends its subscription.
#[derive(Debug, Default)]
pub(super) struct McpSubscriptions(Mutex<HashMap<String, DropGuard>>);

impl McpSubscriptions {
    /// Subscribes the client to a resource. Repeating it changes nothing.
    ///
    /// # Errors
    /// The trace does not exist, this client may not read it, or the client has too many subscriptions.
    pub(super) async fn add_subscription(
        &self,
        served: &McpServerSession,
        asking: &McpRequestContext,
        uri: &str,
        peer: Peer<RoleServer>,
    ) -> Result<(), ErrorData> {
        let session = resources::trace_of(served, asking, uri).await?;
        if !served.client_chains().await.contains(&session) {
            let events = served.shared_traces().count(session, Vec::new()).await;
            let events = events.map_err(|cause| {
                tracing::warn!(cause, "a trace that a client wants to follow can't be read");
                ErrorData::internal_error("the traces can't be read now", None)
            })?;
            if events == 0 {
                return Err(resources::unknown_resource(uri));
            }
        }
        let over = CancellationToken::new();
        {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.contains_key(uri) {
                return Ok(());
            }
            if all.len() >= MAX_SUBSCRIPTIONS {
                let message = format!("a client has at most {MAX_SUBSCRIPTIONS} subscriptions");
                return Err(ErrorData::invalid_request(message, None));
            }
            all.insert(uri.to_owned(), over.clone().drop_guard());
        }
        // The task keeps no reference to the client's session, so that it notices the session's end.
        let (traces, host, uri) = (served.shared_traces(), served.host().clone(), uri.to_owned());
        served.host().spawn_detached(async move {
            let telling = async {
                let mut commits = traces.watch();
                let mut told = count_events(&*traces, session).await;
                while commits.changed().await.is_ok() {
                    let now = count_events(&*traces, session).await;
                    if now == told {
                        continue;
                    }
                    told = now;
                    let updated = ResourceUpdatedNotificationParam::new(uri.clone());
                    if peer.notify_resource_updated(updated).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            };
            tokio::select! {
                () = over.cancelled() => {}
                () = host.wait_stop_request() => {}
                () = telling => {}
            }
        });
        Ok(())
    }

    /// Ends the subscription to a resource.
    pub(super) fn remove(&self, uri: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(uri);
    }
}

/// The number of events of a trace; `None` if it can't be read.
async fn count_events(traces: &dyn crate::http::TraceReader, session: SessionId) -> Option<u64> {
    match traces.count(session, Vec::new()).await {
        Ok(count) => Some(count),
        Err(cause) => {
            tracing::warn!(cause, "a trace that a client has subscribed to can't be read");
            None
        }
    }
}
