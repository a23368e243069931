//! A host that works for its swarm: takes tasks from the inboxes, runs them, and puts their reports into the outboxes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clawk_kernel::witness::digest_of;
use clawk_kernel::{Kernel, KernelError};
use clawk_proto::method::{DelegateParams, Method};
use clawk_proto::{RequestId, SessionId};
use clawk_trace::proof;
use serde::Deserialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{BREATH, Bus, IdentityQueues, PUT};
use crate::queue::{Broker, InboxMessage, QueueError};
use crate::rpc::reports;

/// How often a host sends a sign of life for a task.
const SIGN: Duration = Duration::from_secs(10);
/// How many deliveries a task gets before it becomes a dead letter, if every host that took it crashed.
const TRIES: u64 = 5;
/// How old a signed task may be, days. This is less than the bus remembers which host began it ([`crate::queue::KEPT`]), so a later
/// copy of the task does not run again.
const PROVEN_DAYS: i64 = 6;

/// The reason for a task whose id is already in use for another task.
const REUSED: &str = "task_id_reused";

/// Why a task can't run: a stable identifier, and a sentence.
type BusTaskRefusal = (String, String);

/// A report for an outbox.
struct OutgoingReport {
    task: RequestId,
    token: Option<String>,
    line: String,
}

impl<B: Broker> Bus<B> {
    /// Takes tasks of one identity, as many as may run at once.
    pub(super) async fn take_tasks(
        self: Arc<Self>,
        identity: String,
        (kernel, session): (Kernel, SessionId),
        (tasks, over): (TaskTracker, CancellationToken),
    ) {
        let Some(ends) = self.ends.get(&identity) else {
            return;
        };
        let Some(inbox) = &ends.inbox else { return };
        while let Some(Ok(place)) = over
            .run_until_cancelled(Arc::clone(&ends.places).acquire_owned())
            .await
        {
            let mut place = Some(place);
            match over.run_until_cancelled(inbox.next()).await {
                None => return,
                Some(Ok(parcels)) => {
                    self.gone.store(false, Ordering::Relaxed);
                    for parcel in parcels {
                        let (own, identity, over) = (Arc::clone(&self), identity.clone(), over.clone());
                        let (kernel, place) = (kernel.clone(), place.take());
                        tasks.spawn(async move {
                            let work = own.work_off(&identity, &parcel, (&kernel, session));
                            over.run_until_cancelled(work).await;
                            drop(place);
                        });
                    }
                }
                Some(Err(error)) => {
                    self.note_failure(&error);
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }

    /// Runs one task and publishes its report. After a failure the bus delivers the task again, here or to another host.
    async fn work_off(&self, identity: &str, parcel: &InboxMessage<B::Receipt>, on: (&Kernel, SessionId)) {
        let Some(ends) = self.ends.get(identity) else {
            return;
        };
        let Some(inbox) = &ends.inbox else { return };
        if parcel.tries > TRIES {
            // The task is not even parsed: it may be the cause of the crashes.
            let message = format!("given out {TRIES} times, and no host has reported it");
            if self.move_to_dead_letters(inbox, parcel, &message).await {
                let asked = self.read(identity, parcel).ok(); // silent-ok: nobody can be told of what is not a task
                self.tell_lost(ends, on.0, asked.as_ref(), ("hosts_lost", &message))
                    .await;
            }
            return;
        }
        let (buried, params) = match self.read(identity, parcel) {
            Ok(params) => match self
                .run_bus_task((identity, inbox), parcel, params.clone(), on)
                .await
            {
                Some(Ok(told)) => {
                    self.put_away(ends, (inbox, parcel), on.0, told).await;
                    return;
                }
                // The agent is stopping, or can't record: the task is delivered again.
                None => return,
                Some(Err(refused)) => (refused, Some(params)),
            },
            Err(message) => ((String::new(), message), None),
        };
        let (reason, message) = buried;
        // The task that runs here under this id has not failed; only the second task with the same id is refused.
        if reason != REUSED {
            self.tell_lost(ends, on.0, params.as_ref(), (&reason, &message))
                .await;
        }
        self.move_to_dead_letters(inbox, parcel, &message).await;
    }

    /// Moves a message to the dead letters. Returns whether that succeeded.
    async fn move_to_dead_letters(&self, inbox: &B, parcel: &InboxMessage<B::Receipt>, reason: &str) -> bool {
        tracing::warn!(%reason, "a task of the bus is a dead letter");
        let buried = inbox.move_to_dead_letters(parcel, reason).await;
        if let Err(error) = &buried {
            self.note_failure(error);
        }
        buried.is_ok()
    }

    /// Reports to the giver that the task can't run, so that the giver need not wait for the try's timeout.
    async fn tell_lost(
        &self,
        ends: &IdentityQueues<B>,
        kernel: &Kernel,
        params: Option<&DelegateParams>,
        why: (&str, &str),
    ) {
        let Some(params) = params else { return };
        let token = params.context.report_token.as_deref();
        let line = reports::lost_report(kernel, &params.task_id, why, token);
        if let Some(inbox) = &ends.inbox
            && let Err(error) = self.put_report(ends, inbox, &params.task_id, &line).await
        {
            tracing::warn!(task = %params.task_id, %error, "who gave the task is not told that it can't be done");
        }
    }

    /// Parses the task. An error: this host does not accept the task.
    fn read(&self, identity: &str, parcel: &InboxMessage<B::Receipt>) -> Result<DelegateParams, String> {
        #[derive(Deserialize)]
        struct DelegateMessage {
            method: String,
            params: DelegateParams,
        }
        let asked: DelegateMessage =
            serde_json::from_slice(&parcel.message).map_err(|error| format!("not readable: {error}"))?;
        if asked.method != Method::SwarmDelegate.name() || asked.params.context.swarm != self.swarm {
            return Err("it is no task for this swarm".to_owned());
        }
        if let Some((name, key)) = &self.giver {
            let now_ms = self.clock.now().as_millis();
            proof::check_task(&asked.params, identity, (now_ms, PROVEN_DAYS), key)
                .map_err(|why| format!("this task is not taken as given by `{name}`: {why}"))?;
        }
        let limits = asked.params.context.limits.as_ref();
        let most = limits
            .and_then(|limits| limits.timeout_ms)
            .map(Duration::from_millis);
        if most.is_some_and(|most| self.steady.elapsed_since(parcel.put) > most) {
            return Err("its time was over before anybody took it".to_owned());
        }
        Ok(asked.params)
    }

    /// The report of a task. `None`: the task is delivered again. An error: the task can't run at all.
    async fn run_bus_task(
        &self,
        (identity, inbox): (&str, &B),
        parcel: &InboxMessage<B::Receipt>,
        params: DelegateParams,
        (kernel, session): (&Kernel, SessionId),
    ) -> Option<Result<OutgoingReport, BusTaskRefusal>> {
        let (task, token) = (params.task_id.clone(), params.context.report_token.clone());
        let told = |line: String| OutgoingReport {
            task: task.clone(),
            token: token.clone(),
            line,
        };
        if parcel.tries > 1
            && let Some(line) = self
                .of_another(inbox, parcel, (kernel, &task), token.as_deref())
                .await
        {
            return line.map(|line| Ok(told(line)));
        }
        match kernel.delegate_task(session, params).await {
            Ok(_) => {}
            Err(KernelError::NotReady(_) | KernelError::Journal(_)) => return None, // silent-ok: it comes again
            Err(KernelError::Swarm { reason, message, .. }) => return Some(Err((reason, message))),
            Err(error @ KernelError::RequestIdReused(_)) => {
                return Some(Err((REUSED.to_owned(), error.to_string())));
            }
            Err(error) => return Some(Err(("refused".to_owned(), error.to_string()))),
        }
        // Effects wait until this host holds the task; a refused host holds nothing.
        let held = self.claims.hold_task(&task, identity);
        let ended = kernel.swarm_result(&task);
        tokio::pin!(ended);
        let result = loop {
            tokio::select! {
                result = &mut ended => break result?,
                () = tokio::time::sleep(SIGN) => {
                    let sent = Instant::now();
                    match tokio::time::timeout(PUT, inbox.report_progress(&parcel.receipt)).await {
                        Ok(Ok(())) => held.note_heard(sent),
                        Ok(Err(error)) => tracing::debug!(%error, "a task may be given to another host"),
                        Err(_) => tracing::debug!("a task may be given to another host"), // silent-ok: the deadline is the whole cause
                    }
                }
            }
        };
        self.claims.forget_task(&task);
        if !held.may_report() {
            tracing::warn!(%task, "this host was cut off while it worked: whoever holds the task now reports it");
            return None;
        }
        let line = reports::report_request(kernel, &task, &result, token.as_deref());
        Some(Ok(told(line)))
    }

    /// Handles a redelivered task whose effects another host has begun. Outer `None`: no other host has, and this host runs the
    /// task. Inner `None`: the task is left to the other host for now. A report: after `TRIES` deliveries the task has failed, and
    /// its effects are unknown.
    async fn of_another(
        &self,
        inbox: &B,
        parcel: &InboxMessage<B::Receipt>,
        (kernel, task): (&Kernel, &RequestId),
        token: Option<&str>,
    ) -> Option<Option<String>> {
        let owner = match inbox.task_owner(task.as_str()).await {
            Ok(owner) => owner.filter(|owner| *owner != self.host)?,
            Err(error) => {
                self.note_failure(&error);
                return Some(None);
            }
        };
        if parcel.tries < TRIES {
            return Some(None);
        }
        let message = format!("the host `{owner}` began effects of it and has not reported");
        Some(Some(reports::lost_report(
            kernel,
            task,
            ("effects_unknown", &message),
            token,
        )))
    }

    /// Puts a report into the outbox, then removes the task from the inbox. If the bus refuses the report, a report of that failure
    /// takes its place.
    async fn put_away(
        &self,
        ends: &IdentityQueues<B>,
        (inbox, parcel): (&B, &InboxMessage<B::Receipt>),
        kernel: &Kernel,
        told: OutgoingReport,
    ) {
        let put = match self.put_report(ends, inbox, &told.task, &told.line).await {
            Ok(()) => Ok(()),
            Err(error) => {
                let message = format!("the answer can't be reported: {error}");
                let line = reports::lost_report(
                    kernel,
                    &told.task,
                    ("report_too_long", &message),
                    told.token.as_deref(),
                );
                self.put_report(ends, inbox, &told.task, &line).await
            }
        };
        if let Err(error) = put {
            tracing::error!(task = %told.task, %error, "the report of a task can't be put into the bus");
            return;
        }
        if let Err(error) = inbox.acknowledge_message(&parcel.receipt).await {
            // The task is delivered again, and its stored report is sent again.
            self.note_failure(&error);
        }
    }

    /// Puts the report there, and retries while the bus is unreachable.
    ///
    /// # Errors
    /// The report is longer than the bus accepts.
    async fn put_report(
        &self,
        ends: &IdentityQueues<B>,
        inbox: &B,
        task: &RequestId,
        line: &str,
    ) -> Result<(), QueueError> {
        // The id includes a digest of the text, so that a different message under the task's id can't displace this report.
        let id = format!("{task}.{}", digest_of(line.as_bytes()).to_hex());
        loop {
            let put = inbox.publish_line(&ends.names.outbox, &self.host, line.as_bytes(), &id);
            match tokio::time::timeout(PUT, put).await {
                Ok(Err(error @ QueueError::TooLong(_))) => return Err(error),
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => self.note_failure(&error),
                Err(_) => self.note_failure(&"no answer"), // silent-ok: the deadline is the whole cause
            }
            tokio::time::sleep(BREATH).await;
        }
    }
}
