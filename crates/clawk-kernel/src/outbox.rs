//! The outbox: an answer stays in it until it is delivered (C5). Each attempt is recorded durably before it begins and after it has
//! ended. This module decides about retries, their times, their order and their end; a channel only sends.

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
/// Time limit for a cancelled attempt to report its outcome, in milliseconds.
const GRACE_MS: u64 = 1_000;
/// Largest number of concurrent attempts of one channel, each in another conversation.
const AT_ONCE: usize = 16;
/// Number of conversations read at a time.
const PAGE: usize = 256;
/// Longest delay that a platform may request, in milliseconds: a day.
const LONGEST_IMPOSED_MS: u64 = 86_400_000;
/// Delay before a delivery that a stop or the journal blocks is tried again, in milliseconds.
const HELD_UP_MS: u64 = 1_000;
/// Largest number of entries that [`crate::Kernel::undelivered_answers`] reads.
const LOOKED_AT: usize = 10_000;

/// `[outbox]`: limits for the delivery of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutboxLimits {
    /// Number of attempts before an answer becomes a dead letter.
    pub max_attempts: u32,
    /// Delay after the first attempt, in milliseconds. It doubles after each attempt, up to 30 s, unless the platform requests a
    /// delay.
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

/// The dependencies of delivery. It wakes the delivery tasks, and allows only one for each channel.
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

    /// Wakes the delivery tasks because a new answer must be delivered.
    pub(crate) fn wake_delivery(&self) {
        self.woken.send_modify(|count| *count += 1);
    }

    fn lock_lanes(&self) -> MutexGuard<'_, HashMap<String, OutboxLane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the channel's lock and stops the previous delivery task.
    fn take_lane(&self, channel: &str, stop: &CancellationToken) -> Arc<tokio::sync::Mutex<()>> {
        let mut lanes = self.lock_lanes();
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

/// A channel's answers are delivered while this guard exists.
#[derive(Debug)]
pub struct DeliveryGuard {
    _stop: DropGuard,
}

/// Starts to deliver a channel's answers and replaces the previous delivery task.
pub(crate) fn attach_channel(
    outbox: &Arc<Outbox>,
    channel: &str,
    port: Arc<dyn ChannelDelivery>,
) -> DeliveryGuard {
    let stop = outbox.life.stop.child_token();
    let alone = outbox.take_lane(channel, &stop);
    let (own, name, over) = (Arc::clone(outbox), channel.to_owned(), stop.clone());
    outbox.life.tracker.spawn(async move {
        tokio::select! {
            _alone = alone.lock() => run_delivery(&own, &name, &*port, &over).await,
            () = over.cancelled() => {}
        }
    });
    DeliveryGuard {
        _stop: stop.drop_guard(),
    }
}

/// The result of an attempt: its conversation, its message, and the delay before the next one.
type FinishedAttempt = (String, MessageId, Option<Duration>);

async fn run_delivery(outbox: &Outbox, channel: &str, port: &dyn ChannelDelivery, stop: &CancellationToken) {
    let mut woken = outbox.woken.subscribe();
    let mut sending = FuturesUnordered::new();
    let mut busy: HashSet<String> = HashSet::new();
    let mut due: HashMap<MessageId, Instant> = HashMap::new();
    loop {
        let read = {
            let mut reading = outbox.scribe.journal().owed_answers(channel, PAGE);
            loop {
                // Attempts continue while the queue is read, because an attempt that waits for the journal could block it forever.
                // Rows that were read before an attempt ended are read again, because they may list its answer as undelivered.
                tokio::select! {
                    read = &mut reading => break read,
                    Some(left) = sending.next() => {
                        finish_attempt(left, &mut busy, &mut due);
                        reading = outbox.scribe.journal().owed_answers(channel, PAGE);
                    }
                }
            }
        };
        let (now, clock) = (Instant::now(), outbox.scribe.now());
        // Without a delay, the queue is read again when an attempt ends or an answer is added.
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
                .or_insert_with(|| now + time_until(clock, row.next_at));
            // If all places are in use, the queue is read again when an attempt ends.
            if busy.contains(&row.owed.conversation) || sending.len() >= AT_ONCE {
                continue;
            }
            if at > now {
                soonest = Some(soonest.map_or(at, |soonest: Instant| soonest.min(at)));
                continue;
            }
            busy.insert(row.owed.conversation.clone());
            due.remove(&row.owed.message);
            sending.push(attempt_delivery(outbox, port, row, stop));
        }
        let look = soonest
            .unwrap_or(now + Duration::from_millis(ATTEMPT_MS))
            .max(now + MIN_WAIT);
        tokio::select! {
            () = stop.cancelled() => break,
            () = outbox.life.closing.cancelled() => break,
            Some(left) = sending.next() => finish_attempt(left, &mut busy, &mut due),
            _ = woken.changed() => {}
            () = tokio::time::sleep_until(look) => {}
        }
    }
    // Every attempt that began must have a recorded end.
    while sending.next().await.is_some() {}
}

/// Handles the end of an attempt.
fn finish_attempt(
    (conversation, message, wait): FinishedAttempt,
    busy: &mut HashSet<String>,
    due: &mut HashMap<MessageId, Instant>,
) {
    busy.remove(&conversation);
    due.extend(wait.map(|wait| (message, Instant::now() + wait)));
}

/// Shortest time between two reads of the queue if nothing ends or is added.
const MIN_WAIT: Duration = Duration::from_millis(5);

fn time_until(now: Timestamp, at: Timestamp) -> Duration {
    let left = u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0); // silent-ok: past means now
    // A longer delay means that the wall clock was set back.
    Duration::from_micros(left).min(Duration::from_millis(LONGEST_IMPOSED_MS))
}

async fn attempt_delivery(
    outbox: &Outbox,
    port: &dyn ChannelDelivery,
    row: OutboxRow,
    stop: &CancellationToken,
) -> FinishedAttempt {
    let _working = outbox.life.join_work();
    let (conversation, message) = (row.owed.conversation.clone(), row.owed.message);
    let wait = match deliver_once(outbox, port, row, stop).await {
        Ok(wait) => wait,
        Err(error) => {
            tracing::warn!(%error, "a delivery could not be recorded");
            Some(Duration::from_millis(HELD_UP_MS))
        }
    };
    (conversation, message, wait)
}

/// Makes one attempt. Returns the delay before the next one, if there is one.
async fn deliver_once(
    outbox: &Outbox,
    port: &dyn ChannelDelivery,
    row: OutboxRow,
    stop: &CancellationToken,
) -> Result<Option<Duration>, JournalError> {
    // An emergency stop that blocks the network for tools also blocks answers.
    let Ok(held) = outbox.brake.guard_work(row.owed.session, Level::NoNetwork, stop) else {
        return Ok(Some(Duration::from_millis(HELD_UP_MS)));
    };
    let Some(text) = text_of(outbox, &row).await? else {
        let reason = "its text was erased before it was delivered".to_owned();
        record_outcome(outbox, &row, row.attempts, Delivery::Failed { reason }).await?;
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
    let draft = outbox.scribe.draft_event(&row_thread(outbox, &row), &payload);
    let begun = OutboxChange::Begun { message: out.id };
    outbox
        .scribe
        .submit_outbox(vec![draft], vec![begun])?
        .wait_until_durable()
        .await?;
    let outcome = tokio::select! {
        outcome = port.deliver_answer(&out, &held.cancel) => outcome,
        () = tokio::time::sleep(Duration::from_millis(ATTEMPT_MS)) => Delivery::Unknown {
            reason: format!("no answer within {ATTEMPT_MS} ms"),
        },
        // A channel that ignores its cancellation must not block others.
        () = wait_after_cancel(&held.cancel) => Delivery::Unknown {
            reason: "the attempt was cut short".to_owned(),
        },
    };
    record_outcome(outbox, &row, attempt, outcome).await
}

/// Completes some time after a cancellation.
async fn wait_after_cancel(cancel: &CancellationToken) {
    cancel.cancelled().await;
    tokio::time::sleep(Duration::from_millis(GRACE_MS)).await;
}

/// Returns the text of the answer, or that the turn failed. `None`: erased.
async fn text_of(outbox: &Outbox, row: &OutboxRow) -> Result<Option<String>, JournalError> {
    let Some(digest) = row.owed.text else {
        // The reason of the failure is for the operator only.
        let id = row.owed.message;
        return Ok(Some(format!(
            "This message could not be answered. It is kept ({id})."
        )));
    };
    let journal = outbox.scribe.journal();
    let Some(bytes) = journal.read_content(digest).await? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // Derived from the record in every attempt, so that it is the same after a crash and a model can't write it.
    let record = shown::turn_record(&**journal, row.owed.session, row.owed.message, None, false).await?;
    let shown = record.call_summary();
    let mut text = shown.mark_answer(&text);
    if let Some(line) = shown.record_line() {
        text.push_str(&format!("\n\n_{line}_"));
    }
    Ok(Some(text))
}

fn row_thread(outbox: &Outbox, row: &OutboxRow) -> Thread {
    Thread {
        session: row.owed.session,
        span: outbox.scribe.clock().new_uuid(),
        parent: Some(row.owed.message.0),
    }
}

/// Records the outcome of an attempt, durably.
async fn record_outcome(
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
        outbox.scribe.clock().random_u64(),
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
        // If the platform surely does not have the message, a later attempt does not count as a repetition.
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
    let draft = outbox
        .scribe
        .draft_event(&row_thread(outbox, row), &payload)
        .with_words(words);
    outbox
        .scribe
        .submit_outbox(vec![draft], changes)?
        .wait_until_durable()
        .await?;
    Ok(wait_ms.map(Duration::from_millis))
}

/// An answer that was not yet shown at a client of this process, such as the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndeliveredAnswer {
    /// Id of the answered message.
    pub message: MessageId,
    /// Its session.
    pub session: SessionId,
    /// Time of the answer.
    pub at: Timestamp,
    /// The answer, or the reason why there is none.
    pub text: Result<String, String>,
}

/// Returns the undelivered answers for this client.
pub(crate) async fn undelivered_answers(
    outbox: &Outbox,
    surface: &str,
) -> Result<Vec<UndeliveredAnswer>, JournalError> {
    let rows = outbox.scribe.journal().read_outbox(LOOKED_AT).await?;
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

/// Records that a client of this process has shown the answer. Waits until it is durable, because the list may be read directly
/// after a turn.
pub(crate) async fn mark_delivered(
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
        span: outbox.scribe.clock().new_uuid(),
        parent: Some(message.0),
    };
    let draft = outbox.scribe.draft_event(&thread, &payload);
    let ticket = outbox
        .scribe
        .submit_outbox(vec![draft], vec![OutboxChange::Delivered { message }])?;
    ticket.wait_until_durable().await
}

/// Queues a dead letter of the outbox again. Returns `false` if this message has none.
pub(crate) async fn requeue_message(
    scribe: &JournalWriter,
    message: MessageId,
    by: &str,
) -> Result<bool, JournalError> {
    let rows = scribe.journal().read_outbox(usize::MAX).await?;
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
        span: scribe.clock().new_uuid(),
        parent: Some(message.0),
    };
    let draft: Draft = scribe.draft_event(&thread, &payload);
    let change = OutboxChange::Requeued {
        message,
        at: scribe.now(),
    };
    scribe
        .submit_outbox(vec![draft], vec![change])?
        .wait_until_durable()
        .await?;
    Ok(true)
}

/// Queues a dead letter of an agent that is not running.
///
/// # Errors
/// The journal can't be read or written.
pub async fn requeue_offline(
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    message: MessageId,
    by: &str,
) -> Result<bool, JournalError> {
    requeue_message(&JournalWriter::new(journal, clock), message, by).await
}
