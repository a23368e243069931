//! The outbox: an answer is owed until it is delivered (C5). Each attempt is durable before it begins and when it has ended; what is
//! tried again, when, in which order, and until when is decided here, and a channel only sends.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_events::payload::{DeliveryEnded, DeliveryRequeued, DeliveryStarted};
use clawk_manifest::model::BackoffStrategy;
use clawk_proto::{MessageId, SessionId};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::event::{Draft, EventWords, JournalWriter, Thread, stand_in};
use crate::lifecycle::AgentLifecycle;
use crate::ports::{
    ChannelDelivery, Delivery, Journal, JournalError, OutboxChange, OutboxRow, OutgoingAnswer,
};
use crate::retry_policy::backoff_ms;
use crate::shown;
use crate::stop::{EmergencyStop, Level};
use crate::time::{Clock, Timestamp};

/// The time limit of one delivery attempt, in milliseconds. After it, the outcome of the attempt is unknown.
pub const ATTEMPT_MS: u64 = 60_000;
/// How long a cancelled attempt may take to say what it came to, milliseconds.
const GRACE_MS: u64 = 1_000;
/// Attempts of one channel at a time, each in another conversation.
const AT_ONCE: usize = 16;
/// Conversations that are looked at together.
const PAGE: usize = 256;
/// The longest wait that a platform may impose, milliseconds: a day.
const LONGEST_IMPOSED_MS: u64 = 86_400_000;
/// How soon a delivery is looked at again that a stop or the journal holds up, milliseconds.
const HELD_UP_MS: u64 = 1_000;
/// Entries that [`crate::Kernel::undelivered`] looks through.
const LOOKED_AT: usize = 10_000;

/// `[outbox]`: how long a delivery is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutboxLimits {
    /// Attempts, before an answer lies in the outbox as a dead letter.
    pub max_attempts: u32,
    /// The wait after the first attempt, milliseconds; it doubles from one to the next, up to 30 s, unless the platform says how
    /// long it wants to be left alone.
    pub first_wait_ms: u64,
}

impl Default for OutboxLimits {
    fn default() -> Self {
        Self {
            max_attempts: 20,
            first_wait_ms: 1000,
        }
    }
}

/// What delivering needs. Wakes those who deliver, and sees to it that a channel has one of them.
#[derive(Debug)]
pub(crate) struct Outbox {
    life: Arc<AgentLifecycle>,
    brake: Arc<EmergencyStop>,
    pub(crate) scribe: JournalWriter,
    limits: OutboxLimits,
    woken: watch::Sender<u64>,
    lanes: Mutex<HashMap<String, OutboxLane>>,
}

#[derive(Debug, Clone)]
struct OutboxLane {
    alone: Arc<tokio::sync::Mutex<()>>,
    stop: CancellationToken,
}

impl Outbox {
    pub(crate) fn new(
        life: Arc<AgentLifecycle>,
        brake: Arc<EmergencyStop>,
        scribe: JournalWriter,
        limits: OutboxLimits,
    ) -> Self {
        Self {
            life,
            brake,
            scribe,
            limits,
            woken: watch::channel(0).0,
            lanes: Mutex::default(),
        }
    }

    /// Something is owed that was not.
    pub(crate) fn wake(&self) {
        self.woken.send_modify(|count| *count += 1);
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<String, OutboxLane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel's lane, from which whoever was in it goes.
    fn lane(&self, channel: &str, stop: &CancellationToken) -> Arc<tokio::sync::Mutex<()>> {
        let mut lanes = self.lanes();
        let before = lanes.get(channel).cloned();
        let alone = before
            .as_ref()
            .map_or_else(Arc::default, |lane| Arc::clone(&lane.alone));
        if let Some(before) = before {
            before.stop.cancel();
        }
        let lane = OutboxLane {
            alone: Arc::clone(&alone),
            stop: stop.clone(),
        };
        lanes.insert(channel.to_owned(), lane);
        alone
    }
}

/// A channel's answers are delivered while this lives.
#[derive(Debug)]
pub struct DeliveryGuard {
    _stop: DropGuard,
}

/// Begins to deliver a channel's answers, in the place of whoever did so before.
pub(crate) fn attach(outbox: &Arc<Outbox>, channel: &str, port: Arc<dyn ChannelDelivery>) -> DeliveryGuard {
    let stop = outbox.life.stop.child_token();
    let alone = outbox.lane(channel, &stop);
    let (own, name, over) = (Arc::clone(outbox), channel.to_owned(), stop.clone());
    outbox.life.tracker.spawn(async move {
        tokio::select! {
            _alone = alone.lock() => work(&own, &name, &*port, &over).await,
            () = over.cancelled() => {}
        }
    });
    DeliveryGuard {
        _stop: stop.drop_guard(),
    }
}

/// What an attempt leaves behind: its conversation is free, and its message waits so long.
type FinishedAttempt = (String, MessageId, Option<Duration>);

async fn work(outbox: &Outbox, channel: &str, port: &dyn ChannelDelivery, stop: &CancellationToken) {
    let mut woken = outbox.woken.subscribe();
    let mut sending = FuturesUnordered::new();
    let mut busy: HashSet<String> = HashSet::new();
    let mut due: HashMap<MessageId, Instant> = HashMap::new();
    loop {
        let read = {
            let mut reading = outbox.scribe.journal().owed(channel, PAGE);
            loop {
                // Attempts go on beside the look: one that waits for the journal, too, would hold its place there for ever.
                // What was read before one ended may still name its answer as owed, so it is read again.
                tokio::select! {
                    read = &mut reading => break read,
                    Some(left) = sending.next() => {
                        settle(left, &mut busy, &mut due);
                        reading = outbox.scribe.journal().owed(channel, PAGE);
                    }
                }
            }
        };
        let (now, clock) = (Instant::now(), outbox.scribe.now());
        // Without one, the next look is when something ends or is owed.
        let (rows, mut soonest) = match read {
            Ok(rows) => (rows, None),
            Err(error) => {
                tracing::warn!(%error, channel, "the outbox can't be read");
                (Vec::new(), Some(now + Duration::from_millis(HELD_UP_MS)))
            }
        };
        due.retain(|message, _| rows.iter().any(|row| row.owed.message == *message));
        for row in rows {
            let at = *due
                .entry(row.owed.message)
                .or_insert_with(|| now + until(clock, row.next_at));
            // Where all places are taken, the end of an attempt is the next look.
            if busy.contains(&row.owed.conversation) || sending.len() >= AT_ONCE {
                continue;
            }
            if at > now {
                soonest = Some(soonest.map_or(at, |soonest: Instant| soonest.min(at)));
                continue;
            }
            busy.insert(row.owed.conversation.clone());
            due.remove(&row.owed.message);
            sending.push(attempt(outbox, port, row, stop));
        }
        let look = soonest
            .unwrap_or(now + Duration::from_millis(ATTEMPT_MS))
            .max(now + MIN_WAIT);
        tokio::select! {
            () = stop.cancelled() => break,
            () = outbox.life.closing.cancelled() => break,
            Some(left) = sending.next() => settle(left, &mut busy, &mut due),
            _ = woken.changed() => {}
            () = tokio::time::sleep_until(look) => {}
        }
    }
    // What was begun has an end, and the end a record.
    while sending.next().await.is_some() {}
}

/// An attempt has ended.
fn settle(
    (conversation, message, wait): FinishedAttempt,
    busy: &mut HashSet<String>,
    due: &mut HashMap<MessageId, Instant>,
) {
    busy.remove(&conversation);
    due.extend(wait.map(|wait| (message, Instant::now() + wait)));
}

/// Between two looks, where nothing ends and nothing new comes.
const MIN_WAIT: Duration = Duration::from_millis(5);

fn until(now: Timestamp, at: Timestamp) -> Duration {
    let left = u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0); // silent-ok: past means now
    // No wait is longer, so one that seems to be is of a wall clock that was set back since.
    Duration::from_micros(left).min(Duration::from_millis(LONGEST_IMPOSED_MS))
}

async fn attempt(
    outbox: &Outbox,
    port: &dyn ChannelDelivery,
    row: OutboxRow,
    stop: &CancellationToken,
) -> FinishedAttempt {
    let _working = outbox.life.join();
    let (conversation, message) = (row.owed.conversation.clone(), row.owed.message);
    let wait = match once(outbox, port, row, stop).await {
        Ok(wait) => wait,
        Err(error) => {
            tracing::warn!(%error, "a delivery could not be recorded");
            Some(Duration::from_millis(HELD_UP_MS))
        }
    };
    (conversation, message, wait)
}

/// One attempt: how long the next one waits, where there is one.
async fn once(
    outbox: &Outbox,
    port: &dyn ChannelDelivery,
    row: OutboxRow,
    stop: &CancellationToken,
) -> Result<Option<Duration>, JournalError> {
    // A stop that takes the network from tools takes it from answers, too.
    let Ok(held) = outbox.brake.hold(row.owed.session, Level::NoNetwork, stop) else {
        return Ok(Some(Duration::from_millis(HELD_UP_MS)));
    };
    let Some(text) = text_of(outbox, &row).await? else {
        let reason = "its text was erased before it was delivered".to_owned();
        end(outbox, &row, row.attempts, Delivery::Failed { reason }).await?;
        return Ok(None);
    };
    let attempt = row.attempts.saturating_add(1);
    let out = OutgoingAnswer {
        id: row.owed.message,
        channel: row.owed.channel.clone(),
        conversation: row.owed.conversation.clone(),
        sender: row.owed.sender.clone(),
        reply_to: row.owed.reply_to.clone(),
        text,
        attempt,
        repeat: row.doubt,
    };
    let payload = DeliveryStarted {
        attempt,
        channel: out.channel.to_string(),
        message_id: out.id.0,
        repeat: out.repeat,
    };
    let draft = outbox.scribe.entry(&thread(outbox, &row), &payload);
    let begun = OutboxChange::Begun { message: out.id };
    outbox.scribe.owe(vec![draft], vec![begun])?.durable().await?;
    let outcome = tokio::select! {
        outcome = port.deliver(&out, &held.cancel) => outcome,
        () = tokio::time::sleep(Duration::from_millis(ATTEMPT_MS)) => Delivery::Unknown {
            reason: format!("no answer within {ATTEMPT_MS} ms"),
        },
        // A port that does not hear that it is cancelled holds nobody up.
        () = after(&held.cancel) => Delivery::Unknown {
            reason: "the attempt was cut short".to_owned(),
        },
    };
    end(outbox, &row, attempt, outcome).await
}

/// Ends a while after a cancellation.
async fn after(cancel: &CancellationToken) {
    cancel.cancelled().await;
    tokio::time::sleep(Duration::from_millis(GRACE_MS)).await;
}

/// The answer; where the turn failed, that it did. `None`: erased.
async fn text_of(outbox: &Outbox, row: &OutboxRow) -> Result<Option<String>, JournalError> {
    let Some(digest) = row.owed.text else {
        // Why it failed is the operator's to know.
        let id = row.owed.message;
        return Ok(Some(format!(
            "This message could not be answered. It is kept ({id})."
        )));
    };
    let journal = outbox.scribe.journal();
    let Some(bytes) = journal.content(digest).await? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // Made of the record in every attempt: the same after a crash, and nothing that a model could write.
    let record = shown::of(&**journal, row.owed.session, row.owed.message, None, false).await?;
    let shown = record.shown();
    let mut text = shown.marked(&text);
    if let Some(line) = shown.line() {
        text.push_str(&format!("\n\n_{line}_"));
    }
    Ok(Some(text))
}

fn thread(outbox: &Outbox, row: &OutboxRow) -> Thread {
    Thread {
        session: row.owed.session,
        span: outbox.scribe.clock().uuid(),
        parent: Some(row.owed.message.0),
    }
}

/// Records what an attempt came to, durably.
async fn end(
    outbox: &Outbox,
    row: &OutboxRow,
    attempt: u32,
    outcome: Delivery,
) -> Result<Option<Duration>, JournalError> {
    let message = row.owed.message;
    let limits = outbox.limits;
    let own_ms = backoff_ms(
        BackoffStrategy::Exponential,
        limits.first_wait_ms,
        attempt,
        outbox.scribe.clock().random(),
    );
    let unknown = matches!(outcome, Delivery::Unknown { .. });
    let (word, platform_id, reason, wait_ms) = match outcome {
        Delivery::Delivered { platform_id } => ("delivered", platform_id, None, None),
        Delivery::Failed { reason } => ("failed", None, Some(reason), None),
        Delivery::Retry { after_ms, reason } => {
            let wait = after_ms.map_or(own_ms, |imposed| imposed.min(LONGEST_IMPOSED_MS));
            ("retry", None, Some(reason), Some(wait))
        }
        Delivery::Unknown { reason } => ("unknown", None, Some(reason), Some(own_ms)),
    };
    let wait_ms = wait_ms.filter(|_| attempt < limits.max_attempts.max(1));
    let next_at = wait_ms.map(|ms| {
        outbox
            .scribe
            .now()
            .plus_millis(i64::try_from(ms).unwrap_or(i64::MAX))
    });
    let why = reason.clone().unwrap_or_default();
    let change = match (next_at, word) {
        (_, "delivered") => OutboxChange::Delivered { message },
        (Some(next_at), _) => OutboxChange::Again {
            message,
            next_at,
            doubt: row.doubt || unknown,
            reason: why,
        },
        (None, _) => OutboxChange::Dead { message, reason: why },
    };
    let dead = matches!(change, OutboxChange::Dead { .. });
    let mut changes = vec![change];
    if dead {
        // What the platform surely does not have is no repeat when somebody takes it up again.
        let settled = OutboxChange::Again {
            message,
            next_at: outbox.scribe.now(),
            doubt: row.doubt || unknown,
            reason: reason.clone().unwrap_or_default(),
        };
        changes.insert(0, settled);
    }
    let words = EventWords::of_reason(reason.as_deref());
    let (code, words_hash) = stand_in(words.as_ref());
    let payload = DeliveryEnded {
        attempt,
        channel: row.owed.channel.to_string(),
        dead,
        message_id: message.0,
        next_at: next_at.map(|at| at.to_string()),
        outcome: word.to_owned(),
        platform_id: platform_id.as_deref().map(str::to_owned),
        reason: code,
        words_hash,
    };
    let draft = outbox.scribe.entry(&thread(outbox, row), &payload).words(words);
    outbox.scribe.owe(vec![draft], changes)?.durable().await?;
    Ok(wait_ms.map(Duration::from_millis))
}

/// An answer that is not delivered yet at a surface of this process, such as the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndeliveredAnswer {
    /// The message that it answers.
    pub message: MessageId,
    /// Its session.
    pub session: SessionId,
    /// When it came.
    pub at: Timestamp,
    /// The answer, or why there is none.
    pub text: Result<String, String>,
}

/// What is owed at this surface.
pub(crate) async fn undelivered(
    outbox: &Outbox,
    surface: &str,
) -> Result<Vec<UndeliveredAnswer>, JournalError> {
    let rows = outbox.scribe.journal().outbox(LOOKED_AT).await?;
    let mut found = Vec::new();
    for row in rows {
        if !row.owed.channel.is_empty() || row.owed.conversation != surface {
            continue;
        }
        let text = match row.owed.text {
            None => Err(row.reason.clone().unwrap_or_default()),
            Some(_) => text_of(outbox, &row)
                .await?
                .ok_or_else(|| "its text was erased".to_owned()),
        };
        found.push(UndeliveredAnswer {
            message: row.owed.message,
            session: row.owed.session,
            at: row.at,
            text,
        });
    }
    Ok(found)
}

/// Somebody at a surface of the process's own has the answer. Waited for: what is owed is looked up right behind a turn.
pub(crate) async fn delivered(
    outbox: &Outbox,
    session: SessionId,
    message: MessageId,
) -> Result<(), JournalError> {
    let payload = DeliveryEnded {
        attempt: 1,
        channel: "".to_owned(),
        dead: false,
        message_id: message.0,
        next_at: None,
        outcome: "delivered".to_owned(),
        platform_id: None,
        reason: None,
        words_hash: None,
    };
    let thread = Thread {
        session,
        span: outbox.scribe.clock().uuid(),
        parent: Some(message.0),
    };
    let draft = outbox.scribe.entry(&thread, &payload);
    let ticket = outbox
        .scribe
        .owe(vec![draft], vec![OutboxChange::Delivered { message }])?;
    ticket.durable().await
}

/// Lets a dead letter of the outbox be tried again. `false`: there is none of this message.
pub(crate) async fn requeue(
    scribe: &JournalWriter,
    message: MessageId,
    by: &str,
) -> Result<bool, JournalError> {
    let rows = scribe.journal().outbox(usize::MAX).await?;
    let Some(row) = rows
        .into_iter()
        .find(|row| row.dead && row.owed.message == message)
    else {
        return Ok(false);
    };
    let payload = DeliveryRequeued {
        by: by.to_owned(),
        message_id: message.0,
    };
    let thread = Thread {
        session: row.owed.session,
        span: scribe.clock().uuid(),
        parent: Some(message.0),
    };
    let draft: Draft = scribe.entry(&thread, &payload);
    let change = OutboxChange::Requeued {
        message,
        at: scribe.now(),
    };
    scribe.owe(vec![draft], vec![change])?.durable().await?;
    Ok(true)
}

/// The same for an agent that does not run.
///
/// # Errors
/// The journal can't be read or written.
pub async fn requeue_offline(
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    message: MessageId,
    by: &str,
) -> Result<bool, JournalError> {
    requeue(&JournalWriter::new(journal, clock), message, by).await
}
