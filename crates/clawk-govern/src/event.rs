//! How the kernel writes events into the journal, and reads them back (TRACE's standard list, R31). The events themselves are
//! `clawk-events`.
//!
//! INVARIANT: every event is built by [`JournalWriter::draft_event`], which takes a payload that knows its type and holds its size: whatever
//! text a field was given, the event stays below what every verifier takes.

use std::sync::Arc;

use clawk_events::WrittenEvent;
use clawk_events::shape::BudgetUse;
use clawk_proto::{Digest, SessionId};
use uuid::Uuid;

use crate::ports::{
    AnswerKey, Batch, BatchConditions, EffectChange, EventContent, InboxChange, Journal, JournalEntry,
    JournalError, JournalScan, JournalTicket, OutboxChange, RecordedEvent, SpentAmount,
};
use crate::time::{Clock, Timestamp};

/// Events read at a time.
const PAGE: usize = 1000;

pub use clawk_core::canonical::{canonical, digest};
pub use clawk_core::event_words as words;
pub use clawk_events::kind;
pub use clawk_events::shape::ForkPoint;
pub use words::{ChainText, EventWords, WordField, stand_in};

/// What budgets that outlive a restart paid, as events say it.
pub fn budget_uses(settled: &[SpentAmount]) -> Vec<BudgetUse> {
    let budget_use = |spent: &SpentAmount| BudgetUse {
        busy_ms: spent.amount.busy_ms,
        bytes_out: spent.amount.bytes_out,
        calls: spent.amount.calls,
        hour: spent.hour,
        purse: spent.purse.to_string(),
    };
    settled.iter().map(budget_use).collect()
}

/// The position of an event: its chain and its span.
#[derive(Debug, Clone, Copy)]
pub struct Thread {
    /// The session.
    pub session: SessionId,
    /// The span of its events.
    pub span: Uuid,
    /// The span above it.
    pub parent: Option<Uuid>,
}

impl Thread {
    /// Returns the root thread of a chain.
    pub const fn for_session(session: SessionId) -> Self {
        Self {
            session,
            span: session.0,
            parent: None,
        }
    }

    /// Returns a thread below this one.
    pub const fn child(self, span: Uuid) -> Self {
        Self {
            session: self.session,
            span,
            parent: Some(self.span),
        }
    }
}

/// Builds journal entries and writes them.
#[derive(Debug, Clone)]
pub struct JournalWriter {
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
}

impl JournalWriter {
    /// Makes the writer of this journal.
    pub fn new(journal: Arc<dyn Journal>, clock: Arc<dyn Clock>) -> Self {
        Self { journal, clock }
    }

    /// Returns the clock.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Returns the clock, shared.
    pub fn shared_clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// Returns the journal.
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.journal
    }

    /// Returns the present time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// One entry; nothing is written yet. What is too long in it is replaced by its beginning, length and digest.
    pub fn draft_event(&self, thread: &Thread, event: &(impl WrittenEvent + ?Sized)) -> Draft {
        Draft(JournalEntry {
            session: thread.session,
            event_id: self.clock.new_uuid(),
            span: thread.span,
            parent: thread.parent,
            at: self.clock.now(),
            kind: event.event_kind(),
            payload: event.canonical_payload(),
            content: None,
            answers: None,
        })
    }

    /// Queues entries for one commit.
    pub fn submit_drafts(&self, entries: Vec<Draft>) -> Result<JournalTicket, JournalError> {
        self.submit_with(entries, Vec::new())
    }

    /// Queues entries and inbox changes for one commit.
    pub fn submit_with(
        &self,
        entries: Vec<Draft>,
        inbox: Vec<InboxChange>,
    ) -> Result<JournalTicket, JournalError> {
        self.journal.submit_batch(Batch {
            entries: entries.into_iter().map(|draft| draft.0).collect(),
            inbox,
            ..Batch::default()
        })
    }

    /// Queues entries, spent amounts and the states of effects for one commit.
    pub fn submit_spending(
        &self,
        entries: Vec<Draft>,
        spent: Vec<SpentAmount>,
        effects: Vec<EffectChange>,
    ) -> Result<JournalTicket, JournalError> {
        self.journal.submit_batch(Batch {
            entries: entries.into_iter().map(|draft| draft.0).collect(),
            spent,
            effects,
            ..Batch::default()
        })
    }

    /// Queues entries and the return of amounts that were assumed but not spent, for one commit.
    pub fn take_back(
        &self,
        entries: Vec<Draft>,
        unspent: Vec<SpentAmount>,
    ) -> Result<JournalTicket, JournalError> {
        self.journal.submit_batch(Batch {
            entries: entries.into_iter().map(|draft| draft.0).collect(),
            unspent,
            ..Batch::default()
        })
    }

    /// Like [`Self::submit_spending`], but only if these conditions hold over all hosts. A single host has checked them already.
    pub fn account_if(
        &self,
        entries: Vec<Draft>,
        (spent, effects): (Vec<SpentAmount>, Vec<EffectChange>),
        terms: BatchConditions,
    ) -> Result<JournalTicket, JournalError> {
        let terms = (terms != BatchConditions::default()).then(|| Box::new(terms));
        self.journal.submit_batch(Batch {
            entries: entries.into_iter().map(|draft| draft.0).collect(),
            spent,
            effects,
            terms,
            ..Batch::default()
        })
    }

    /// Queues entries and outbox changes for one commit.
    pub fn submit_outbox(
        &self,
        entries: Vec<Draft>,
        outbox: Vec<OutboxChange>,
    ) -> Result<JournalTicket, JournalError> {
        self.journal.submit_batch(Batch {
            entries: entries.into_iter().map(|draft| draft.0).collect(),
            outbox,
            ..Batch::default()
        })
    }

    /// Reads all matching events, page by page.
    pub async fn for_each_event(
        &self,
        mut scan: JournalScan,
        mut see: impl FnMut(&RecordedEvent),
    ) -> Result<(), JournalError> {
        scan.limit = PAGE;
        loop {
            let page = self.journal.scan_events(scan.clone()).await?;
            page.iter().for_each(&mut see);
            match page.last() {
                Some(last) if page.len() == PAGE => scan.after_row = last.row,
                Some(_) | None => return Ok(()),
            }
        }
    }

    /// Reads all events that fit, page by page, until `see` refuses one.
    pub async fn read_each(
        &self,
        scan: JournalScan,
        mut see: impl FnMut(&RecordedEvent) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let mut seen = Ok(());
        let look = |event: &RecordedEvent| {
            if seen.is_ok() {
                seen = see(event);
            }
        };
        self.for_each_event(scan, look).await?;
        seen
    }

    /// Queues entries and waits until they are durable.
    pub async fn write(&self, entries: Vec<Draft>) -> Result<(), JournalError> {
        self.submit_drafts(entries)?.wait_until_durable().await
    }
}

/// Joins entries into a batch that another component commits together with its own changes.
pub fn batch_from_drafts(drafts: Vec<Draft>) -> Batch {
    Batch {
        entries: drafts.into_iter().map(|draft| draft.0).collect(),
        ..Batch::default()
    }
}

/// An entry to which content may still be added.
#[derive(Debug, Clone)]
pub struct Draft(pub JournalEntry);

impl Draft {
    /// Adds the bytes that the payload refers to.
    pub fn with_content(mut self, digest: Digest, bytes: Vec<u8>) -> Self {
        self.0.content = Some(EventContent { digest, bytes });
        self
    }

    /// Adds the text that the payload refers to.
    pub fn with_words(self, words: impl Into<Option<EventWords>>) -> Self {
        match words.into() {
            Some(words) => {
                let (digest, bytes) = words.into_content();
                self.with_content(digest, bytes)
            }
            None => self,
        }
    }

    /// Marks the entry as the stored answer to a request (R19).
    pub fn with_answer_key(mut self, key: Option<AnswerKey>) -> Self {
        self.0.answers = key;
        self
    }
}
