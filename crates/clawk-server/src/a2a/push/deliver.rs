//! Delivers a receiver's notifications. It stores each state of the task, posts them in order, and continues after a restart.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use clawk_egress::{EgressError, Request};
use clawk_kernel::{Kernel, PushGivenUp};
use clawk_proto::Digest;
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::book::{BookError, DueNotification, NotificationDraft, ReceiverKey, StoredReceiver};
use super::{PushNotifier, PushReceiver};
use crate::a2a::tasks::{AgentTask, AgentTaskIdentity, State};
use crate::a2a::{old, wire};
use crate::host::AgentHost;

/// The waits before each repeated post. After the last one clawk gives the notification up.
const WAITS: [Duration; 8] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(900),
    Duration::from_secs(3_600),
];
/// How long to wait when the file can't be written or read.
const BREATH: Duration = Duration::from_secs(1);

/// The outcome of one post.
enum PushOutcome {
    Taken,
    /// The post failed, but a later one may succeed. Holds the reason.
    Again(String),
    Never(String),
}

/// The delivery to one receiver.
struct ReceiverDelivery {
    push: PushNotifier,
    host: AgentHost,
    task: Arc<AgentTask>,
    receiver: PushReceiver,
    key: ReceiverKey,
    /// Wakes the poster when a notification was stored.
    more: Notify,
    /// All states are stored; no more follow.
    noted: AtomicBool,
}

impl PushNotifier {
    /// Stores a receiver and starts its delivery, from the task's present state on, or from the first state if `from_first`.
    pub(in crate::a2a) async fn add_receiver(
        &self,
        host: &AgentHost,
        (task, config): (&Arc<AgentTask>, &Value),
        receiver: PushReceiver,
        from_first: bool,
    ) -> Result<(), BookError> {
        let key = receiver_key(task, &receiver.id);
        let kept = StoredReceiver {
            config: config.clone(),
            old: receiver.old,
            context: task.context.clone(),
            content: task.content.to_hex(),
        };
        self.0.book.store_receiver(key.clone(), kept).await?;
        let (_, end) = task.phases_since(0);
        let at = if from_first { 0 } else { end.saturating_sub(1) };
        self.follow_task(host, (task, at), receiver);
        Ok(())
    }

    /// Deletes a receiver and its pending notifications.
    pub(in crate::a2a) async fn forget_receiver(&self, task: &AgentTask, id: &str) -> Result<(), BookError> {
        self.0.book.remove(receiver_key(task, id)).await
    }

    /// Continues the deliveries of earlier runs each time a run of the agent begins, until `cancel`.
    pub(crate) async fn carry_on(self, host: AgentHost, cancel: CancellationToken) {
        let mut runs = host.current_kernel().subscribe();
        loop {
            let run = runs.borrow_and_update().clone();
            if let Some(kernel) = run
                && let Err(error) = self.resume_receivers(&host, &kernel).await
            {
                tracing::warn!(%error, "push receivers of earlier runs are not told anything in this run");
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = runs.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn resume_receivers(&self, host: &AgentHost, kernel: &Kernel) -> Result<(), BookError> {
        for (key, kept, last) in self.0.book.pending_receivers().await? {
            let named = AgentTaskIdentity {
                id: key.task.clone(),
                owner: key.owner.as_str().into(),
                context: kept.context,
                content: Digest::from_hex(&kept.content).unwrap_or(Digest::ZERO),
            };
            let told = State::of_name(&last);
            let last = told.unwrap_or(State::Submitted);
            let task = match host.tasks().resume_task(host, kernel, named, last) {
                Ok(task) => task,
                Err(error) => {
                    tracing::warn!(task = %key.task, %error, "a push receiver of an earlier run is not told anything in this run");
                    continue;
                }
            };
            // A receiver that this run has registered already.
            if task.receivers.find(&key.id).is_some() {
                continue;
            }
            // The operator may have changed the list since: each post then checks the address again.
            let receiver = self.receiver(&key.task, &kept.config, &key.id, kept.old);
            let receiver =
                receiver.and_then(|receiver| task.receivers.put(receiver.clone()).map(|()| receiver));
            match receiver {
                Ok(receiver) => {
                    // The file already has the last state, if there is one.
                    let at = u64::from(told.is_some());
                    self.follow_task(host, (&task, at), receiver);
                }
                Err(refusal) => self.drop_refused(kernel, key, &refusal.to_string()).await?,
            }
        }
        Ok(())
    }

    /// Drops a receiver that is no longer allowed, and records the reason.
    async fn drop_refused(&self, kernel: &Kernel, key: ReceiverKey, reason: &str) -> Result<(), BookError> {
        let dead = PushGivenUp {
            task: key.task.clone(),
            owner: key.owner.clone(),
            receiver: key.id.clone(),
            host: String::new(),
            state: "all".to_owned(),
            attempts: 0,
            reason: reason.to_owned(),
        };
        if let Err(error) = kernel.record_push(&dead).await {
            tracing::warn!(%error, "a push receiver that is given up is not recorded");
            return Ok(());
        }
        self.0.book.remove(key).await
    }

    /// Stores and posts the task's states from position `at` to the end.
    fn follow_task(&self, host: &AgentHost, (task, at): (&Arc<AgentTask>, u64), receiver: PushReceiver) {
        let line = ReceiverDelivery {
            push: self.clone(),
            host: host.clone(),
            key: receiver_key(task, &receiver.id),
            task: Arc::clone(task),
            receiver,
            more: Notify::new(),
            noted: AtomicBool::new(false),
        };
        host.spawn_detached(async move {
            let over = line.receiver.over.clone();
            let both = async { tokio::join!(line.record_phases(at), line.deliver_pending()) };
            tokio::select! {
                () = over.cancelled() => {}
                _ = both => {}
            }
        });
    }

    fn delivery_lock(&self, key: &ReceiverKey) -> Arc<tokio::sync::Mutex<()>> {
        let mut lanes = self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|_, lane| lane.strong_count() > 0);
        if let Some(lane) = lanes.get(key).and_then(Weak::upgrade) {
            return lane;
        }
        let lane = Arc::default();
        lanes.insert(key.clone(), Arc::downgrade(&lane));
        lane
    }
}

fn receiver_key(task: &AgentTask, id: &str) -> ReceiverKey {
    ReceiverKey {
        owner: task.owner.to_string(),
        task: task.id.clone(),
        id: id.to_owned(),
    }
}

impl ReceiverDelivery {
    /// Stores each state before it is posted, until the task or the run ends.
    async fn record_phases(&self, mut at: u64) {
        let mut phases = self.task.subscribe();
        loop {
            let (is_final, interrupted) = {
                let now = phases.borrow_and_update();
                (now.state.is_final(), now.interrupted)
            };
            let (mut fresh, next) = self.task.phases_since(at);
            fresh.retain(|phase| !phase.interrupted);
            let ended = fresh.last().is_some_and(|phase| phase.state.is_final());
            let notes: Vec<NotificationDraft> = fresh
                .into_iter()
                .map(|phase| (phase.state.name(), self.phase_event(phase)))
                .collect();
            if !notes.is_empty()
                && let Err(error) = self
                    .push
                    .0
                    .book
                    .enqueue_notifications(self.key.clone(), notes, ended)
                    .await
            {
                tracing::warn!(%error, task = %self.task.id, "a state of a task is not noted for its receiver");
                tokio::time::sleep(BREATH).await;
                continue;
            }
            at = next;
            let is_over = ended || is_final || interrupted;
            if is_over {
                self.noted.store(true, Ordering::SeqCst);
            }
            self.more.notify_one();
            if is_over || phases.changed().await.is_err() {
                return;
            }
        }
    }

    fn phase_event(&self, phase: crate::a2a::tasks::AgentTaskPhase) -> Value {
        let is_final = phase.state.is_final();
        let view = self.task.view_in(phase);
        match (self.receiver.old, is_final) {
            (true, _) => old::task(&wire::task_json(&view)),
            (false, true) => json!({"task": wire::task_json(&view)}),
            (false, false) => wire::status_update(&view),
        }
    }

    /// Posts the stored notifications, oldest first.
    async fn deliver_pending(&self) {
        let lane = self.push.delivery_lock(&self.key);
        let _alone = lane.lock().await;
        loop {
            let noted = self.noted.load(Ordering::SeqCst);
            match self.push.0.book.next(self.key.clone()).await {
                Ok(Some(due)) => {
                    if !self.settle_notification(due).await {
                        return;
                    }
                }
                Ok(None) if noted => return,
                Ok(None) => self.more.notified().await,
                Err(error) => {
                    tracing::warn!(%error, task = %self.task.id, "what a receiver is owed is not known");
                    if !self.wait_or_stop(BREATH).await {
                        return;
                    }
                }
            }
        }
    }

    /// Waits. Returns `false` if the host ends first; the next run then continues.
    async fn wait_or_stop(&self, wait: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = self.host.wait_stop_request() => false,
        }
    }

    /// Posts one notification once, or gives it up. Returns `false` if the host ends.
    async fn settle_notification(&self, due: DueNotification) -> bool {
        let clock = &self.host.options().clock;
        let made = usize::try_from(due.attempts).unwrap_or(usize::MAX);
        // The last post failed, or the end of a run interrupted it. A jump of the wall clock must not make the wait longer.
        let last = made.checked_sub(1).map(|at| at.min(WAITS.len() - 1));
        if let Some(longest) = last.and_then(|at| WAITS.get(at)) {
            let left = u64::try_from(due.next_us.saturating_sub(clock.now().0)).unwrap_or(0);
            if !self.wait_or_stop(Duration::from_micros(left).min(*longest)).await {
                return false;
            }
        }
        let next_wait = WAITS.get(made);
        let wait_us = next_wait.map_or(0, |wait| i64::try_from(wait.as_micros()).unwrap_or(i64::MAX));
        let next_us = clock.now().0.saturating_add(wait_us);
        let book = &self.push.0.book;
        let settled = match book.begin_attempt(due.number, next_us).await {
            Err(error) => Err(error),
            Ok(()) => match self.post_event(&due.event).await {
                PushOutcome::Taken => book.settle_notification(due.number).await,
                PushOutcome::Again(_) if next_wait.is_some() => Ok(()),
                PushOutcome::Again(reason) | PushOutcome::Never(reason) => self.give_up(due, reason).await,
            },
        };
        if let Err(error) = settled {
            tracing::warn!(%error, task = %self.task.id, "what came of a push notification is not noted");
            return self.wait_or_stop(BREATH).await;
        }
        true
    }

    async fn give_up(&self, due: DueNotification, reason: String) -> Result<(), BookError> {
        let dead = PushGivenUp {
            task: self.key.task.clone(),
            owner: self.key.owner.clone(),
            receiver: self.key.id.clone(),
            host: self.receiver.url.host_str().unwrap_or_default().to_owned(),
            state: due.state,
            attempts: due.attempts.saturating_add(1),
            reason,
        };
        // An agent that has ended records nothing. The notification stays stored, and the next run gives it up.
        let recorded = match self.host.current_kernel().get() {
            Some(kernel) => kernel.record_push(&dead).await.map_err(|error| error.to_string()),
            None => Err("no agent runs".to_owned()),
        };
        if let Err(error) = recorded {
            tracing::warn!(%error, "a push notification that is given up is not recorded");
            self.wait_or_stop(BREATH).await;
            return Ok(());
        }
        self.push.0.book.settle_notification(due.number).await
    }

    async fn post_event(&self, event: &Value) -> PushOutcome {
        let Ok(_place) = self.push.0.posts.acquire().await else {
            return PushOutcome::Again("the host ends".to_owned());
        };
        let request = Request {
            method: Method::POST,
            url: self.receiver.url.clone(),
            headers: self.receiver.headers.clone(),
            body: event.to_string().into(),
        };
        let (task, host) = (&self.key.task, self.receiver.url.host_str().unwrap_or_default());
        match self.push.0.client.send(request).await {
            Ok(answer) if answer.status().is_success() => PushOutcome::Taken,
            Ok(answer) => {
                let status = answer.status();
                tracing::warn!(%task, host, %status, "a push notification was not taken");
                let reason = format!("the receiver answered with status {}", status.as_u16());
                if status.is_server_error() || matches!(status.as_u16(), 408 | 429) {
                    PushOutcome::Again(reason)
                } else {
                    PushOutcome::Never(reason)
                }
            }
            Err(error) => {
                tracing::warn!(%task, host, %error, "a push notification could not be sent");
                match error {
                    EgressError::Refused(_) => PushOutcome::Never(error.to_string()),
                    other => PushOutcome::Again(other.to_string()),
                }
            }
        }
    }
}
