//! CKP through queues (runtime profile §6.2): requests arrive in `claw.SWARM.AGENT.inbox`; answers and notifications go to
//! `claw.SWARM.AGENT.outbox`, or to the queue in `Reply-To`.
//!
//! A request is acknowledged when its answer is in a queue, so a crash on either side repeats it. Its request id prevents a second
//! execution. A message that fails repeatedly goes to `claw.SWARM.AGENT.dead` with the reason.

#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "redis")]
pub mod redis;
pub(crate) mod sqlite;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_client::queue::QueueNames;
use clawk_egress::Url;
use clawk_kernel::Role;
use clawk_kernel::time::Timestamp;
use clawk_proto::rpc::{RpcId, write_error};
use clawk_proto::{ErrorCode, RpcError};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::guests::{GuestClients, Kind, is_answer, no_id};
use crate::host::AgentHost;
use crate::transport::outbox::OutgoingMessages;

/// The largest number of messages in progress; more wait in the queue. Calls that wait for a person count too.
const IN_FLIGHT: usize = 4_096;
/// How long the broker waits for an acknowledgement before it delivers a message again. A progress sign restarts the wait.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// How often a progress sign is sent.
const PROGRESS: Duration = Duration::from_secs(4);
/// How long to wait after an error of the broker.
const BREATH: Duration = Duration::from_secs(1);
/// The number of connection attempts at the start.
const START_TRIES: u32 = 5;
/// The number of attempts to publish an answer. After that the message stays unacknowledged and is delivered again.
const PUBLISH_TRIES: u32 = 3;
/// How long the shutdown waits for answers.
const FAREWELL: Duration = Duration::from_secs(10);
/// How long answers are kept in a queue that clawk creates.
const KEPT: Duration = Duration::from_secs(7 * 86_400);
/// The size of a queue that clawk creates, bytes.
const QUEUE_BYTES: i64 = 1 << 30;

/// Settings of a queue door.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// The broker's URL; it may hold a password.
    pub server: Url,
    /// The swarm in the queues' names.
    pub swarm: String,
    /// The agent in the queues' names.
    pub agent: String,
    /// The role of its messages.
    pub role: Role,
    /// The number of deliveries before a message becomes a dead letter.
    pub tries: u64,
    /// The folder, below the state directory, where sessions survive a restart.
    pub kept: PathBuf,
    /// Seals the stored answers, if the agent's stores are encrypted.
    pub vault: Option<clawk_recall::seal::SealKeyring>,
}

/// An error of a broker. The text never contains the server's URL, because the URL may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The broker can't be reached, or the connection broke.
    #[error("the broker: {0}")]
    Broker(String),
    /// The message is longer than the broker's limit. Holds that limit in bytes.
    #[error("the broker takes messages of at most {0} bytes")]
    TooLong(usize),
    /// The folder for sessions can't be used.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

pub(crate) fn broker_error(error: impl std::fmt::Display) -> QueueError {
    QueueError::Broker(error.to_string())
}

/// Tries a few times: a broker and an agent are often started together.
async fn retry_start<T, F: Future<Output = Result<T, QueueError>>>(
    mut attempt: impl FnMut() -> F,
) -> Result<T, QueueError> {
    let mut left = START_TRIES;
    loop {
        match attempt().await {
            Err(error) if left > 0 => {
                tracing::warn!(%error, "the broker is not ready");
                left -= 1;
                tokio::time::sleep(BREATH).await;
            }
            outcome => return outcome,
        }
    }
}

/// The queues of one client of a broker, and how it reads them.
#[derive(Debug, Clone)]
pub(crate) struct BrokerSubscription {
    /// The queue to read from.
    pub(crate) take: String,
    /// A read message stays in the queue for other readers until it expires. Otherwise its reader removes it.
    pub(crate) shared: bool,
    /// The name of the reader group: readers of one group share the messages.
    pub(crate) group: String,
    /// This reader's name within the group.
    pub(crate) reader: String,
    /// A message without acknowledgement or progress sign is delivered again after this time.
    pub(crate) ack_wait: Duration,
    /// The largest number of messages taken at once. With 1 the reader holds no message that another one could take.
    pub(crate) at_once: usize,
    /// Durable queues to write to. `true`: a message is deleted when it is consumed.
    pub(crate) puts: Vec<(String, bool)>,
    /// The queue for dead letters.
    pub(crate) dead: String,
    /// Where the broker records which reader began the effects of a message; `None`: nowhere.
    pub(crate) owners: Option<String>,
}

impl BrokerSubscription {
    /// The queues of an agent.
    fn of_agent(names: &QueueNames) -> Self {
        Self {
            take: names.inbox.clone(),
            shared: false,
            group: "clawk".to_owned(),
            reader: "clawk".to_owned(),
            ack_wait: ACK_WAIT,
            at_once: 64,
            puts: vec![(names.outbox.clone(), false)],
            dead: names.dead.clone(),
            owners: None,
        }
    }
}

/// A message from the inbox.
pub(crate) struct InboxMessage<R> {
    /// The sender's name; empty for the one client that needs no name.
    pub(crate) client: String,
    /// The queue for the answer, if it is not the outbox.
    reply_to: Option<String>,
    pub(crate) message: Vec<u8>,
    /// The number of deliveries, this one included.
    pub(crate) tries: u64,
    /// When the message was put into the queue, by the broker's wall clock.
    pub(crate) put: Timestamp,
    pub(crate) receipt: R,
}

/// The client of one broker.
pub(crate) trait Broker: Send + Sync + 'static {
    /// The handle that acknowledges a message.
    type Receipt: Send + Sync + 'static;

    /// The next messages. Returns an empty list after a while without messages.
    fn next(&self) -> impl Future<Output = Result<Vec<InboxMessage<Self::Receipt>>, QueueError>> + Send;

    /// Puts a line into a queue. The same line has the same `id`, so a second attempt adds nothing.
    fn publish_line(
        &self,
        to: &str,
        client: &str,
        line: &[u8],
        id: &str,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Acknowledges a message after its answer.
    fn acknowledge_message(
        &self,
        receipt: &Self::Receipt,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Records that `reader` began the effects of a task, unless another reader did so first. Returns the recorded reader.
    fn claim_task(&self, task: &str, reader: &str)
    -> impl Future<Output = Result<String, QueueError>> + Send;

    /// The reader that began the effects of a task, if any.
    fn task_owner(&self, task: &str) -> impl Future<Output = Result<Option<String>, QueueError>> + Send;

    /// Sends a progress sign for a message. `Ok`: the broker has confirmed it.
    fn report_progress(&self, receipt: &Self::Receipt)
    -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Moves a message to the dead letters.
    fn move_to_dead_letters(
        &self,
        parcel: &InboxMessage<Self::Receipt>,
        reason: &str,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;
}

/// The error of a broker that records no readers.
fn no_owners() -> QueueError {
    QueueError::Broker("this queue keeps no owners".to_owned())
}

/// Serves CKP through one queue.
struct BrokerDoor<B> {
    broker: B,
    names: QueueNames,
    guests: GuestClients,
    tries: u64,
    /// Where each client wants its notifications.
    homes: Mutex<HashMap<String, String>>,
    places: Arc<Semaphore>,
}

impl<B: Broker> BrokerDoor<B> {
    fn new(
        broker: B,
        host: AgentHost,
        name: &'static str,
        options: &QueueOptions,
    ) -> Result<Arc<Self>, QueueError> {
        let guests = GuestClients::new(
            host,
            name,
            options.role,
            (options.kept.clone(), options.vault.clone()),
        )?;
        Ok(Arc::new(Self {
            broker,
            names: QueueNames::new(&options.swarm, &options.agent),
            guests,
            tries: options.tries.max(1),
            homes: Mutex::default(),
            places: Arc::new(Semaphore::new(IN_FLIGHT)),
        }))
    }

    /// Serves until `cancel`. Requests in flight may finish; unanswered ones stay in the queue.
    async fn serve(self: Arc<Self>, cancel: CancellationToken) {
        loop {
            let parcels = tokio::select! {
                () = cancel.cancelled() => break,
                parcels = self.broker.next() => parcels,
            };
            match parcels {
                Ok(parcels) => {
                    for parcel in parcels {
                        self.handle_message(parcel).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a queue can't be read");
                    tokio::select! {
                        () = cancel.cancelled() => break,
                        () = tokio::time::sleep(BREATH) => {}
                    }
                }
            }
        }
        self.guests.close(FAREWELL).await;
    }

    async fn handle_message(self: &Arc<Self>, parcel: InboxMessage<B::Receipt>) {
        if parcel.tries > self.tries {
            let reason = format!("not answered in {} attempts", self.tries);
            return self.move_to_dead_letters(&parcel, &reason).await;
        }
        let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
            return;
        };
        let kind = Kind::from_message(&parcel.message);
        let most = self.guests.host().options().max_message_bytes;
        let refusal = match &kind {
            Kind::Bad(refusal) => Some(refusal.clone()),
            _ if parcel.message.len() > most => Some(
                RpcError::new(
                    ErrorCode::InvalidRequest,
                    format!("a message may have at most {most} bytes"),
                )
                .with(json!({"reason": "too_long", "max_message_bytes": most})),
            ),
            Kind::Hello | Kind::Bye(_) | Kind::Acts(_) | Kind::Asks | Kind::Tells => None,
        };
        let to = self.reply_queue(&parcel);
        if let Some(refusal) = refusal {
            self.publish_line(&to, &parcel.client, &no_id(&refusal)).await;
            return self.move_to_dead_letters(&parcel, &refusal.message).await;
        }
        let again = (parcel.tries > 1).then(|| self.guests.message_age(parcel.put));
        if let Some(answer) = self.guests.earlier_answer(&parcel.client, &kind, again) {
            if self.publish_line(&to, &parcel.client, &answer).await {
                self.acknowledge_message(&parcel).await;
            }
            return;
        }
        if kind == Kind::Hello {
            let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
            homes.insert(parcel.client.clone(), to.clone());
        }
        let message = parcel.message.clone().into();
        match self.guests.deliver_message(&parcel.client, &kind, message).await {
            Ok(delivered) => {
                if let Some(notices) = delivered.notices {
                    let (door, client) = (Arc::clone(self), parcel.client.clone());
                    self.guests
                        .spawn_task(async move { door.publish_notices(&client, &notices).await });
                }
                let door = Arc::clone(self);
                self.guests.spawn_task(async move {
                    door.publish_answers(&parcel, &kind, &to, (delivered.order, &delivered.outlet))
                        .await;
                    drop(place);
                });
            }
            // Without an acknowledgement the message is delivered again, and in the end becomes a dead letter.
            Err(refusal) => tracing::warn!(error = %refusal.message, "a message was not taken"),
        }
    }

    /// The queue for a message's answer.
    fn reply_queue(&self, parcel: &InboxMessage<B::Receipt>) -> String {
        let wanted = parcel.reply_to.as_deref();
        match wanted.filter(|to| self.names.may_answer_to(to)) {
            Some(to) => to.to_owned(),
            None => self.names.outbox.clone(),
        }
    }

    async fn move_to_dead_letters(&self, parcel: &InboxMessage<B::Receipt>, reason: &str) {
        tracing::warn!(reason, "a message is a dead letter");
        if let Err(error) = self.broker.move_to_dead_letters(parcel, reason).await {
            // The message is delivered again.
            tracing::warn!(%error, "a dead letter can't be put away");
        }
    }

    /// Publishes the answer to a message. Acknowledges the message when its answer is in a queue.
    async fn publish_answers(
        &self,
        parcel: &InboxMessage<B::Receipt>,
        kind: &Kind,
        to: &str,
        (order, outlet): (u64, &OutgoingMessages),
    ) {
        let mut done = *kind == Kind::Tells;
        loop {
            match timeout(PROGRESS, outlet.next()).await {
                Ok(None) => break,
                Ok(Some(batch)) => {
                    for line in batch.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                        if is_answer(line) {
                            self.guests.keep_answer(&parcel.client, kind, line);
                            let said = (order, parcel.message.as_slice());
                            self.guests.note_answer(&parcel.client, kind, said, line);
                        }
                        let published = self.publish_line(to, &parcel.client, line).await;
                        done |= is_answer(line) && published;
                    }
                }
                Err(_) => {
                    // silent-ok: the deadline only says that a progress sign is due
                    if let Err(error) = self.broker.report_progress(&parcel.receipt).await {
                        tracing::debug!(%error, "a message may be delivered again");
                    }
                }
            }
        }
        if done {
            self.acknowledge_message(parcel).await;
        }
    }

    async fn acknowledge_message(&self, parcel: &InboxMessage<B::Receipt>) {
        if let Err(error) = self.broker.acknowledge_message(&parcel.receipt).await {
            tracing::warn!(%error, "an answered message will be delivered again");
        }
    }

    /// Publishes a line. Returns whether it is in a queue. An answer that is too long for the broker is replaced by an error with
    /// the same id.
    async fn publish_line(&self, to: &str, client: &str, line: &[u8]) -> bool {
        let id = self.guests.host().options().clock.new_uuid().to_string();
        for attempt in 1..=PUBLISH_TRIES {
            match self.broker.publish_line(to, client, line, &id).await {
                Ok(()) => return true,
                Err(QueueError::TooLong(most)) => {
                    let instead = too_long(line, most);
                    return self.broker.publish_line(to, client, &instead, &id).await.is_ok();
                }
                Err(error) => {
                    tracing::warn!(%error, attempt, "an answer can't be put into a queue");
                    tokio::time::sleep(BREATH * attempt).await;
                }
            }
        }
        false
    }

    /// Publishes messages that answer no request, to the queue where the client's last `claw.initialize` wanted its answer.
    async fn publish_notices(&self, client: &str, notices: &OutgoingMessages) {
        notices.set_heard(true);
        while let Some(batch) = notices.next().await {
            let to = {
                let homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
                homes.get(client).cloned()
            };
            let to = to.unwrap_or_else(|| self.names.outbox.clone());
            for line in batch.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                self.publish_line(&to, client, line).await;
            }
        }
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        homes.remove(client);
    }
}

/// The error that replaces an answer longer than the broker's limit.
fn too_long(line: &[u8], most: usize) -> Vec<u8> {
    #[derive(Deserialize)]
    struct AnswerIdField<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
    }
    let message = format!("the answer is longer than the {most} bytes that the broker takes");
    let error = RpcError::new(ErrorCode::Internal, message).with(json!({"reason": "answer_too_long"}));
    let id = serde_json::from_slice::<AnswerIdField<'_>>(line).ok(); // silent-ok: a batch has no id of its own
    let mut answer = Vec::new();
    match id.and_then(|answer| RpcId::of_json(answer.id.get())) {
        Some(id) => write_error(&mut answer, &id, &error),
        None => write_error(&mut answer, &RpcId::NULL, &error),
    }
    answer
}
