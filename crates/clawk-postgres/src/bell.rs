//! `LISTEN` and `NOTIFY`: a host that has nothing to do is woken by what others commit. Whoever is woken looks at the tables, and looks
//! by itself as well: a notification that never comes costs time and nothing else.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

use crate::connect::PgConnection;
use crate::error::PgFailure;

/// Wakes whoever listens in this schema, as part of the transaction. The server keeps notifications in a queue, which fills up if a
/// client never reads them, and a full queue makes commits fail. So nobody is woken when half of the queue is used.
const RING: &str = "SELECT pg_notify(current_schema(), '') WHERE pg_notification_queue_usage() < 0.5";

/// Rings whenever another host has something to tell. One connection of a pool listens; when it ends, another one does.
#[derive(Debug, Default)]
pub(crate) struct NotifyChannel {
    rung: Notify,
    listens: Mutex<Weak<()>>,
}

impl NotifyChannel {
    /// The server has notified.
    pub(crate) fn ring(&self) {
        self.rung.notify_one();
    }

    /// Completes once it has rung since the last time.
    pub(crate) async fn rung(&self) {
        self.rung.notified().await;
    }

    /// The place of the connection that listens, if none does. It is free again when the value is dropped.
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

/// Lets this connection listen from the end of its transaction on, if none of its pool does.
pub(crate) async fn listen(session: &PgConnection, schema: &str) -> Result<(), PgFailure> {
    if let Some(place) = session.bell().place() {
        // Checked by `Options::fault`: letters, digits and `_`.
        session.batch(&format!("LISTEN \"{schema}\"")).await?;
        session.keep(place);
    }
    Ok(())
}

/// Wakes the other hosts when this transaction is committed.
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
