//! A journal in memory: chained like the real one, and able to fail.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use clawk_proto::trace::TraceEvent;
use clawk_proto::{Digest, MessageId, SessionId};
use clawk_trace::{Draft, HashBuffer, SessionChain};

use super::boxes::{Boxes, Change};
use crate::ports::{
    AnswerKey, Batch, BoxFuture, ConversationKey, EarlierArrival, EffectChange, EventContent, InboxChange,
    Journal, JournalError, JournalScan, JournalTicket, OpenEffect, OpenMessage, OutboxChange, OutboxRow,
    RecordedEvent, SessionRow, SpentAmount, StoredAnswer,
};
use crate::purse::BudgetAmount;
use crate::time::Timestamp;

/// A message and how it ended.
type Ending = (OpenMessage, Option<&'static str>);

/// Events in memory.
#[derive(Debug, Default)]
pub struct MemJournal(Mutex<Inner>, tokio::sync::watch::Sender<u64>);

#[derive(Debug, Default)]
struct Inner {
    events: Vec<RecordedEvent>,
    sealed: Vec<TraceEvent>,
    answers: HashMap<AnswerKey, usize>,
    /// How old every answer is by a clock that hosts share; `None`: there is none.
    answers_age_us: Option<i64>,
    inbox: Vec<Ending>,
    chains: BTreeMap<SessionId, SessionChain>,
    scratch: HashBuffer,
    /// With the number of events before each.
    spent: Vec<(usize, SpentAmount)>,
    unspent: Vec<(usize, SpentAmount)>,
    effects: Vec<(usize, EffectChange)>,
    changes: Vec<(usize, Change)>,
    /// What the changes come to.
    boxes: Boxes,
    /// Sessions that were read from their beginning.
    folded: Vec<SessionId>,
    /// Events that scans have returned.
    scanned: usize,
    /// Rows whose content can't be read.
    damaged: Vec<u64>,
    /// Entries that may still be taken; `None`: any number.
    room: Option<usize>,
    /// Batches that are not durable yet, oldest first; `None`: every batch is at once.
    waiting: Option<VecDeque<(Batch, Told)>>,
}

type Told = tokio::sync::oneshot::Sender<Result<(), JournalError>>;

impl MemJournal {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// How many events scans have returned so far.
    #[must_use]
    pub fn scanned(&self) -> usize {
        self.lock().scanned
    }

    /// Sessions that were read from their beginning, in order.
    #[must_use]
    pub fn folded(&self) -> Vec<SessionId> {
        self.lock().folded.clone()
    }

    /// From now on a clock that hosts share says how old every answer is.
    pub fn age_answers(&self, us: i64) {
        self.lock().answers_age_us = Some(us);
    }

    /// Every stored answer: its request and its row.
    #[must_use]
    pub fn answers(&self) -> Vec<(AnswerKey, u64)> {
        let row = |at: usize| u64::try_from(at).unwrap() + 1;
        self.lock()
            .answers
            .iter()
            .map(|(key, at)| (*key, row(*at)))
            .collect()
    }

    /// The content of the event in this row can't be read from now on.
    pub fn damage_content(&self, row: u64) {
        self.lock().damaged.push(row);
    }

    /// Takes so many entries more, then refuses as a full disk does.
    pub fn fail_after(&self, entries: usize) {
        self.lock().room = Some(entries);
    }

    /// From now on, what is submitted waits for [`Self::commit`], as on a slow disk.
    pub fn slow(&self) {
        self.lock().waiting.get_or_insert_default();
    }

    /// Whether an event of this type waits for [`Self::commit`].
    #[must_use]
    pub fn waits_with(&self, kind: &str) -> bool {
        let inner = self.lock();
        let mut waiting = inner.waiting.iter().flatten();
        waiting.any(|(batch, _)| batch.entries.iter().any(|entry| entry.kind == kind))
    }

    /// Makes the oldest batches durable, at most so many, and tells who waits for them.
    pub fn commit(&self, most: usize) {
        for _ in 0..most {
            let mut inner = self.lock();
            let Some((batch, told)) = inner.waiting.as_mut().and_then(VecDeque::pop_front) else {
                return;
            };
            let outcome = inner.take(batch);
            drop(inner);
            let _gone = told.send(outcome); // silent-ok: nobody waits
            self.1.send_modify(|commits| *commits += 1);
        }
    }

    /// Appends the answer of another host to a message, before everything that waits.
    pub fn answered_elsewhere(&self, session: SessionId, message: MessageId, text: &str) {
        let bytes = text.as_bytes().to_vec();
        let digest = crate::event::digest(&bytes);
        let payload = serde_json::json!({"could_act": false, "duration_ms": 1, "end": "answered", "input_tokens": 1,
            "message_id": message, "output_tokens": 1, "text_hash": digest});
        let entry = crate::ports::JournalEntry {
            session,
            event_id: message.0,
            span: session.0,
            parent: None,
            at: Timestamp(0),
            kind: crate::kind::MESSAGE_ANSWERED,
            payload: serde_json::value::to_raw_value(&payload).unwrap(),
            content: Some(EventContent { digest, bytes }),
            answers: None,
        };
        let batch = Batch {
            entries: vec![entry],
            ..Batch::default()
        };
        self.lock().take(batch).unwrap();
    }

    /// Takes everything again.
    pub fn recover(&self) {
        self.lock().room = None;
    }

    /// Forgets everything after the first `events` events, as if the machine had stopped there.
    #[must_use]
    pub fn cut(&self, events: usize) -> Self {
        let inner = self.lock();
        let mut cut = Inner::default();
        for (recorded, sealed) in inner.events.iter().zip(&inner.sealed).take(events) {
            cut.events.push(recorded.clone());
            cut.sealed.push(sealed.clone());
            let trace_id = sealed.trace_id;
            let chain = SessionChain {
                session: recorded.session,
                trace_id,
                next_sequence: sealed.sequence + 1,
                head: sealed.event_hash,
            };
            cut.chains.insert(recorded.session, chain);
        }
        for (key, at) in &inner.answers {
            if *at < events {
                cut.answers.insert(*key, *at);
            }
        }
        let kept = |(before, _): &&(usize, SpentAmount)| *before <= events;
        cut.spent = inner.spent.iter().filter(kept).cloned().collect();
        cut.unspent = inner.unspent.iter().filter(kept).cloned().collect();
        let kept = |(before, _): &&(usize, EffectChange)| *before <= events;
        cut.effects = inner.effects.iter().filter(kept).cloned().collect();
        let kept = |(before, _): &&(usize, Change)| *before <= events;
        cut.changes = inner.changes.iter().filter(kept).cloned().collect();
        cut.boxes = Boxes::of(cut.changes.iter().map(|(_, change)| change));
        cut.inbox = inbox_of(&cut.events);
        Self(Mutex::new(cut), tokio::sync::watch::Sender::new(0))
    }

    /// The same events with other payloads, chained anew: as another version would have written them.
    #[must_use]
    pub fn retold(&self, tell: impl Fn(&str, &mut serde_json::Map<String, serde_json::Value>)) -> Self {
        let told = Self::default();
        for event in self.events() {
            let mut payload = clawk_events::read_members(&event.kind, &event.payload).unwrap();
            tell(&event.kind, &mut payload);
            let entry = crate::ports::JournalEntry {
                session: event.session,
                event_id: event.session.0,
                span: event.session.0,
                parent: None,
                at: event.at,
                kind: String::leak(event.kind),
                payload: serde_json::value::to_raw_value(&payload).unwrap(),
                content: event.content,
                answers: None,
            };
            told.lock()
                .take(Batch {
                    entries: vec![entry],
                    ..Batch::default()
                })
                .unwrap();
        }
        let mut inner = told.lock();
        inner.inbox = inbox_of(&inner.events);
        drop(inner);
        told
    }

    /// Erases the contents of one type of events.
    pub fn forget(&self, kind: &str) {
        for event in self.lock().events.iter_mut().filter(|event| event.kind == kind) {
            event.content = None;
        }
    }

    /// Looks at all events, as they were recorded and as a verifier reads them, without a copy.
    pub fn look<T>(&self, look: impl FnOnce(&[RecordedEvent], &[TraceEvent]) -> T) -> T {
        let inner = self.lock();
        look(&inner.events, &inner.sealed)
    }

    /// All events in order.
    #[must_use]
    pub fn events(&self) -> Vec<RecordedEvent> {
        self.lock().events.clone()
    }

    /// All events as a verifier reads them.
    #[must_use]
    pub fn trace(&self) -> Vec<TraceEvent> {
        self.lock().sealed.clone()
    }

    /// The types of all events in order.
    #[must_use]
    pub fn kinds(&self) -> Vec<String> {
        self.lock()
            .events
            .iter()
            .map(|event| event.kind.clone())
            .collect()
    }

    /// How each message ended; `None`: open.
    #[must_use]
    pub fn inbox(&self) -> Vec<(MessageId, Option<&'static str>)> {
        self.lock()
            .inbox
            .iter()
            .map(|(open, end)| (open.message, *end))
            .collect()
    }
}

/// The inbox that a cut log implies.
fn inbox_of(events: &[RecordedEvent]) -> Vec<Ending> {
    let mut inbox: Vec<Ending> = Vec::new();
    for event in events {
        let members = clawk_events::read_members(&event.kind, &event.payload).unwrap();
        let payload = serde_json::Value::Object(members);
        // The first event of a fork names the turn that goes on there.
        let forked = payload.pointer("/fork/turn");
        let Some(message) = payload
            .get("message_id")
            .or(forked)
            .and_then(|id| id.as_str())
            .and_then(|id| id.parse().ok())
        else {
            continue;
        };
        match event.kind.as_str() {
            crate::kind::MESSAGE_ACCEPTED | crate::kind::SESSION_STARTED => inbox.push((
                OpenMessage {
                    session: event.session,
                    message,
                },
                None,
            )),
            crate::kind::MESSAGE_ANSWERED => close(&mut inbox, message, "answered"),
            crate::kind::MESSAGE_DEAD => close(&mut inbox, message, "dead"),
            _ => {}
        }
    }
    inbox
}

fn close(inbox: &mut [Ending], message: MessageId, how: &'static str) {
    for (open, end) in inbox {
        if open.message == message {
            *end = Some(how);
        }
    }
}

impl Inner {
    fn take(&mut self, batch: Batch) -> Result<(), JournalError> {
        if let Some(room) = &mut self.room {
            let wanted = batch.entries.len();
            if wanted > *room {
                return Err(JournalError::Unwritable("no space left on device".to_owned()));
            }
            *room -= wanted;
        }
        for entry in batch.entries {
            let chain = self
                .chains
                .entry(entry.session)
                .or_insert_with(|| SessionChain::new(entry.session, entry.session.0));
            let timestamp = entry.at.to_string();
            let draft = Draft {
                event_id: entry.event_id,
                span: entry.span,
                parent: entry.parent,
                timestamp: &timestamp,
                event_type: entry.kind,
                payload: entry.payload.get(),
            };
            let link = chain.append(&draft, &mut self.scratch);
            self.sealed.push(TraceEvent {
                trace_version: "1.0".to_owned(),
                event_id: entry.event_id,
                trace_id: chain.trace_id,
                span_id: entry.span,
                parent_span_id: link.parent,
                session_id: entry.session,
                sequence: link.sequence,
                timestamp,
                event_type: entry.kind.to_owned(),
                payload: clawk_events::read_members(entry.kind, entry.payload.get()).unwrap(),
                event_hash: link.hash,
                previous_event_hash: link.previous,
            });
            if let Some(key) = entry.answers {
                self.answers.insert(key, self.events.len());
            }
            self.events.push(RecordedEvent {
                row: u64::try_from(self.events.len()).unwrap() + 1,
                session: entry.session,
                sequence: link.sequence,
                at: entry.at,
                kind: entry.kind.to_owned(),
                payload: entry.payload.get().to_owned(),
                content: entry.content,
            });
        }
        let before = self.events.len();
        self.spent
            .extend(batch.spent.into_iter().map(|spent| (before, spent)));
        self.unspent
            .extend(batch.unspent.into_iter().map(|unspent| (before, unspent)));
        self.effects
            .extend(batch.effects.into_iter().map(|change| (before, change)));
        self.boxed(before, batch.inbox, batch.outbox);
        Ok(())
    }

    fn boxed(&mut self, before: usize, inbox: Vec<InboxChange>, outbox: Vec<OutboxChange>) {
        let changes = inbox.iter().cloned().map(Change::In);
        let changes = changes.chain(outbox.into_iter().map(Change::Out));
        for change in changes {
            self.boxes.apply(&change);
            self.changes.push((before, change));
        }
        for change in inbox {
            match change {
                InboxChange::Accepted { session, message, .. } => {
                    self.inbox.push((OpenMessage { session, message }, None))
                }
                InboxChange::Closed { message, how, .. } => close(&mut self.inbox, message, how),
            }
        }
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

impl Journal for MemJournal {
    fn submit_batch(&self, batch: Batch) -> Result<JournalTicket, JournalError> {
        let (sender, ticket) = JournalTicket::new();
        if let Some(fault) = batch.find_fault() {
            return Err(fault);
        }
        if let Some(waiting) = &mut self.lock().waiting {
            waiting.push_back((batch, sender));
            return Ok(ticket);
        }
        let outcome = self.lock().take(batch);
        if let Err(error) = &outcome {
            return Err(error.clone());
        }
        let _gone = sender.send(outcome); // silent-ok: nobody waits
        self.1.send_modify(|commits| *commits += 1);
        Ok(ticket)
    }

    fn watch_commits(&self) -> tokio::sync::watch::Receiver<u64> {
        self.1.subscribe()
    }

    fn scan_events(&self, scan: JournalScan) -> BoxFuture<'_, Result<Vec<RecordedEvent>, JournalError>> {
        let limit = if scan.limit == 0 { 1000 } else { scan.limit };
        let mut inner = self.lock();
        if let (Some(session), 0) = (scan.session, scan.after_row) {
            inner.folded.push(session);
        }
        let found = inner.events.iter().filter(|event| {
            event.row > scan.after_row
                && scan.session.is_none_or(|session| session == event.session)
                && (scan.kinds.is_empty() || scan.kinds.contains(&event.kind.as_str()))
                && scan.since.is_none_or(|since| event.at >= since)
                && scan.says.as_ref().is_none_or(|says| event.payload.contains(says))
        });
        let found: Vec<RecordedEvent> = found.take(limit).cloned().collect();
        if let Some(event) = found.iter().find(|event| inner.damaged.contains(&event.row))
            && scan.with_content
        {
            let why = format!("the content of event {} was changed", event.sequence);
            return ready(Err(JournalError::Unreadable(why)));
        }
        inner.scanned += found.len();
        ready(Ok(found))
    }

    fn last_row_of(&self, kind: &'static str) -> BoxFuture<'_, Result<Option<u64>, JournalError>> {
        ready(Ok(self
            .lock()
            .events
            .iter()
            .rev()
            .find(|event| event.kind == kind)
            .map(|event| event.row)))
    }

    fn answer_to(&self, key: AnswerKey) -> BoxFuture<'_, Result<Option<StoredAnswer>, JournalError>> {
        let inner = self.lock();
        let event = inner.answers.get(&key).and_then(|at| inner.events.get(*at));
        ready(Ok(event.map(|event| StoredAnswer {
            event: event.clone(),
            age_us: inner.answers_age_us,
        })))
    }

    fn read_content(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>> {
        let inner = self.lock();
        let contents = inner.events.iter().filter_map(|event| event.content.as_ref());
        let found = contents
            .filter(|content| content.digest == digest)
            .map(|c: &EventContent| c.bytes.clone())
            .next();
        ready(Ok(found))
    }

    fn open_messages(&self) -> BoxFuture<'_, Result<Vec<OpenMessage>, JournalError>> {
        let open = self
            .lock()
            .inbox
            .iter()
            .filter(|(_, end)| end.is_none())
            .map(|(open, _)| open.clone())
            .collect();
        ready(Ok(open))
    }

    fn message_session(&self, id: MessageId) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>> {
        let inner = self.lock();
        let found = inner.inbox.iter().find(|(open, _)| open.message == id);
        ready(Ok(found.map(|(open, _)| open.session)))
    }

    fn find_arrival(
        &self,
        channel: &str,
        platform_id: &str,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<EarlierArrival>, JournalError>> {
        let key = (channel.to_owned(), platform_id.to_owned());
        let found = self.lock().boxes.ids.get(&key).cloned();
        ready(Ok(found
            .filter(|(_, until)| *until > now)
            .map(|(known, _)| known)))
    }

    fn conversation_session(
        &self,
        key: &ConversationKey,
    ) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>> {
        ready(Ok(self.lock().boxes.conversations.get(key).copied()))
    }

    fn owed_answers(
        &self,
        channel: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>> {
        let mut heads: Vec<OutboxRow> = Vec::new();
        for row in &self.lock().boxes.outbox {
            let known = heads
                .iter()
                .any(|head| head.owed.conversation == row.owed.conversation);
            if row.owed.channel == channel && !row.dead && !known {
                heads.push(row.clone());
            }
        }
        heads.sort_by_key(|row| row.next_at);
        heads.truncate(limit);
        ready(Ok(heads))
    }

    fn read_outbox(&self, limit: usize) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>> {
        let rows = self.lock().boxes.outbox.iter().take(limit).cloned().collect();
        ready(Ok(rows))
    }

    fn list_sessions(&self, limit: usize) -> BoxFuture<'_, Result<Vec<SessionRow>, JournalError>> {
        let inner = self.lock();
        let mut rows: Vec<SessionRow> = inner
            .chains
            .iter()
            .filter_map(|(session, chain)| {
                let mut own = inner.events.iter().filter(|event| event.session == *session);
                let first = own.next()?;
                let last = own.next_back().unwrap_or(first);
                Some(SessionRow {
                    session: *session,
                    events: chain.next_sequence,
                    started: first.at,
                    last: last.at,
                })
            })
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.last));
        rows.truncate(limit);
        ready(Ok(rows))
    }

    fn spent_since(&self, hour: i64) -> BoxFuture<'_, Result<Vec<SpentAmount>, JournalError>> {
        let mut sums: BTreeMap<(i64, Arc<str>), BudgetAmount> = BTreeMap::new();
        let inner = self.lock();
        for (_, spent) in inner.spent.iter().filter(|(_, spent)| spent.hour >= hour) {
            let sum = sums.entry((spent.hour, Arc::clone(&spent.purse))).or_default();
            *sum = sum.plus(spent.amount);
        }
        for (_, unspent) in &inner.unspent {
            if let Some(sum) = sums.get_mut(&(unspent.hour, Arc::clone(&unspent.purse))) {
                *sum = sum.minus(unspent.amount);
            }
        }
        let rows = sums
            .into_iter()
            .map(|((hour, purse), amount)| SpentAmount { hour, purse, amount });
        ready(Ok(rows.collect()))
    }

    fn open_effects(&self) -> BoxFuture<'_, Result<Vec<OpenEffect>, JournalError>> {
        let mut open: Vec<OpenEffect> = Vec::new();
        for (_, change) in &self.lock().effects {
            match change {
                EffectChange::Unknown(effect) => {
                    let same = |known: &OpenEffect| {
                        (&known.request_id, known.session, known.parameters)
                            == (&effect.request_id, effect.session, effect.parameters)
                    };
                    if !open.iter().any(same) {
                        open.push(effect.clone());
                    }
                }
                EffectChange::Resolved {
                    request_id,
                    session,
                    parameters,
                } => open.retain(|effect| {
                    (&effect.request_id, effect.session, effect.parameters)
                        != (request_id, *session, *parameters)
                }),
            }
        }
        ready(Ok(open))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), JournalError>> {
        self.commit(usize::MAX);
        ready(Ok(()))
    }
}
