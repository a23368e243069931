//! The events of an undo. A person undoes calls; the events are in the session of these calls.

use std::sync::Arc;

use clawk_events::count_of;
use clawk_events::payload::{UndoEnded, UndoStarted};
use clawk_proto::SessionId;
use uuid::Uuid;

use crate::event::{JournalWriter, Thread, digest};
use crate::ports::{Journal, JournalError};
use crate::time::Clock;

/// An undo under way.
#[derive(Debug)]
pub struct UndoRun {
    scribe: JournalWriter,
    thread: Thread,
    id: Uuid,
}

/// The totals of an undo.
#[derive(Debug, Clone, Copy)]
pub struct UndoTotals<'a> {
    /// The person who runs it.
    pub by: &'a str,
    /// Number of calls that are restored completely.
    pub calls: usize,
    /// Number of restored locations.
    pub places: usize,
    /// Number of calls or locations that are not restored.
    pub without: usize,
}

/// Records the start of an undo; durable when this returns. `list`: every location and every reason, stored as content.
///
/// # Errors
/// The journal can't be written. Then nothing may be undone.
pub async fn begin_undo(
    (journal, clock): (Arc<dyn Journal>, Arc<dyn Clock>),
    session: SessionId,
    sums: UndoTotals<'_>,
    list: Vec<u8>,
) -> Result<UndoRun, JournalError> {
    let scribe = JournalWriter::new(journal, clock);
    let id = scribe.clock().new_uuid();
    let thread = Thread {
        session,
        span: id,
        parent: Some(session.0),
    };
    let payload = UndoStarted {
        by: sums.by.to_owned(),
        calls: count_of(sums.calls),
        list_hash: digest(&list),
        places: count_of(sums.places),
        undo: id,
        without: count_of(sums.without),
    };
    let draft = scribe.draft_event(&thread, &payload);
    scribe
        .write(vec![draft.with_content(payload.list_hash, list)])
        .await?;
    Ok(UndoRun { scribe, thread, id })
}

impl UndoRun {
    /// Records the end of an undo.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn record_end(self, done: usize, failed: usize) -> Result<(), JournalError> {
        let payload = UndoEnded {
            done: count_of(done),
            failed: count_of(failed),
            undo: self.id,
        };
        let draft = self.scribe.draft_event(&self.thread, &payload);
        self.scribe.write(vec![draft]).await
    }
}
