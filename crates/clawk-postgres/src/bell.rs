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
    pub(crate) fn ring(&self) {
        self.rung.notify_one();
    }

    /// Completes when a notification has arrived since the last call.
    pub(crate) async fn rung(&self) {
        self.rung.notified().await;
    }

    /// Claims the role of the listening connection, if no connection has it. Dropping the value frees the role.
    fn place(&self) -> Option<Arc<()>> {
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
pub(crate) async fn listen(session: &PgConnection, schema: &str) -> Result<(), PgFailure> {
    if let Some(place) = session.bell().place() {
        // `Options::fault` has checked the name: letters, digits and `_`.
        session.batch(&format!("LISTEN \"{schema}\"")).await?;
        session.keep(place);
    }
    Ok(())
}

/// Notifies the other hosts when this transaction commits.
pub(crate) async fn ring(session: &PgConnection) -> Result<(), PgFailure> {
    session.rows(RING, &[]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::NotifyChannel;

    #[test]
    fn one_connection_listens_and_another_one_after_its_end() {
        let bell = NotifyChannel::default();
        let first = bell.place().expect("nobody listens");
        assert!(bell.place().is_none(), "two would listen");
        drop(first);
        assert!(bell.place().is_some(), "nobody would listen");
    }
}
