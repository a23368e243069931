//! `LISTEN` and `NOTIFY`: wakes an idle host when another host commits. A woken host reads the tables; it also reads them regularly
//! by itself. So a lost notification costs time and nothing else.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

use crate::connect::PgConnection;
use crate::error::PgFailure;

/// Notifies the listeners of this schema when the transaction commits. The server queues notifications; a client that never reads
/// them fills the queue, and a full queue makes commits fail. So nothing is sent when the queue is half full.
const RING: &str = "SELECT pg_notify(current_schema(), '') WHERE pg_notification_queue_usage() < 0.5";

/// Wakes a waiting task when another host has notified. One connection of a pool listens; when it ends, another one takes over.
#[derive(Debug, Default)]
pub(crate) struct NotifyChannel {
    rung: Notify,
    listens: Mutex<Weak<()>>,
}

impl NotifyChannel {
    /// Called when the server has notified.
    pub(crate) fn notify_waiters(&self) {
        self.rung.notify_one();
    }

    /// Completes when a notification has arrived since the last call.
    pub(crate) async fn wait_for_notification(&self) {
        self.rung.notified().await;
    }

    /// Claims the role of the listening connection, if no connection has it. Dropping the value frees the role.
    fn claim_listener(&self) -> Option<Arc<()>> {
        let mut listens = self.listens.lock().unwrap_or_else(PoisonError::into_inner);
        if listens.strong_count() > 0 {
            return None;
        }
        let place = Arc::new(());
        *listens = Arc::downgrade(&place);
        Some(place)
    }
}

/// Makes this connection listen from the end of its transaction on, if no other connection of its pool listens.
pub(crate) async fn ensure_listening(session: &PgConnection, schema: &str) -> Result<(), PgFailure> {
    if let Some(place) = session.notify_channel().claim_listener() {
        // `Options::find_fault` has checked the name: letters, digits and `_`.
        session.run_statements(&format!("LISTEN \"{schema}\"")).await?;
        session.keep_listener(place);
    }
    Ok(())
}

/// Notifies the other hosts when this transaction commits.
pub(crate) async fn notify_hosts(session: &PgConnection) -> Result<(), PgFailure> {
    session.query_rows(RING, &[]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::NotifyChannel;

    #[test]
    fn one_connection_listens_and_another_one_after_its_end() {
        let bell = NotifyChannel::default();
        let first = bell.claim_listener().expect("nobody listens");
        assert!(bell.claim_listener().is_none(), "two would listen");
        drop(first);
        assert!(bell.claim_listener().is_some(), "nobody would listen");
    }
}
