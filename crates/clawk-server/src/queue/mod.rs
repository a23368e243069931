//! CKP by queues (runtime profile §6.2): requests out of `claw.SWARM.AGENT.inbox`, answers and notifications into
//! `claw.SWARM.AGENT.outbox`, or where `Reply-To` says.
//!
//! A request is acknowledged when its answer is in a queue, so a crash on either side repeats it, and its request id keeps it
//! from being done twice. What fails again and again goes to `claw.SWARM.AGENT.dead` with the reason.

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

/// Messages that are being answered at a time; more wait in the queue. Calls that wait for a person are among them.
const IN_FLIGHT: usize = 4_096;
/// A message whose answer takes longer is delivered again, unless we say that we are at it.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// How often we say so.
const PROGRESS: Duration = Duration::from_secs(4);
/// How long a broker that fails is left alone.
const BREATH: Duration = Duration::from_secs(1);
/// How often a broker is tried again at the start.
const START_TRIES: u32 = 5;
/// How often an answer is tried to be put into a queue, before its message is left to be delivered again.
const PUBLISH_TRIES: u32 = 3;
/// How long the end waits for answers.
const FAREWELL: Duration = Duration::from_secs(10);
/// How long answers are kept where the queue is ours to make.
const KEPT: Duration = Duration::from_secs(7 * 86_400);
/// Bytes of a queue that is ours to make.
const QUEUE_BYTES: i64 = 1 << 30;

/// Settings of a queue door.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// The broker; it may hold a password.
    pub server: Url,
    /// The swarm in the queues' names.
    pub swarm: String,
    /// The agent in the queues' names.
    pub agent: String,
    /// With which role its messages come in.
    pub role: Role,
    /// How often a message is tried before it is a dead letter.
    pub tries: u64,
    /// Where sessions are kept over a restart: a folder below the state directory.
    pub kept: PathBuf,
    /// Seals the answers that are kept, where the agent's stores are encrypted.
    pub vault: Option<clawk_recall::seal::SealKeyring>,
}

/// An error of a broker. The text never contains the server's URL, because the URL may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// It can't be reached, or broke off.
    #[error("the broker: {0}")]
    Broker(String),
    /// The message is longer than the broker takes.
    #[error("the broker takes messages of at most {0} bytes")]
    TooLong(usize),
    /// The folder for sessions.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

pub(crate) fn broker(error: impl std::fmt::Display) -> QueueError {
    QueueError::Broker(error.to_string())
}

/// Tries a few times: a broker and an agent are often started together.
async fn patiently<T, F: Future<Output = Result<T, QueueError>>>(
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

/// What one client of a broker takes, and where it puts what is to be kept.
#[derive(Debug, Clone)]
pub(crate) struct BrokerSubscription {
    /// The queue that it takes from.
    pub(crate) take: String,
    /// What it takes stays there for other readers, until it is too old; else whoever is done with it removes it.
    pub(crate) shared: bool,
    /// Who takes: those of one name share the messages.
    pub(crate) group: String,
    /// Which of them.
    pub(crate) reader: String,
    /// A message comes again after so long without a sign.
    pub(crate) ack_wait: Duration,
    /// Messages that are taken at a time; 1: none is held that could be another's.
    pub(crate) at_once: usize,
    /// Queues that are kept, each with whether what is taken from it is removed.
    pub(crate) puts: Vec<(String, bool)>,
    /// Dead letters.
    pub(crate) dead: String,
    /// Where it is kept which reader began effects of a message, if that is.
    pub(crate) owners: Option<String>,
}

impl BrokerSubscription {
    /// Of an agent's own queues.
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

/// A message out of the inbox.
pub(crate) struct InboxMessage<R> {
    /// Who sends it; empty: the one client that needs no name.
    pub(crate) client: String,
    /// Where its answer goes, if not into the outbox.
    reply_to: Option<String>,
    pub(crate) message: Vec<u8>,
    /// How often it was delivered, this time included.
    pub(crate) tries: u64,
    /// When it was put into the queue, by the broker's wall clock.
    pub(crate) put: Timestamp,
    pub(crate) receipt: R,
}

/// One broker's client.
pub(crate) trait Broker: Send + Sync + 'static {
    /// What acknowledges a message.
    type Receipt: Send + Sync + 'static;

    /// The next messages; none after a while without any.
    fn next(&self) -> impl Future<Output = Result<Vec<InboxMessage<Self::Receipt>>, QueueError>> + Send;

    /// Puts a line where it is wanted; `id` is the same for the same line, so that a second attempt adds nothing.
    fn publish(
        &self,
        to: &str,
        client: &str,
        line: &[u8],
        id: &str,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// It is answered.
    fn done(&self, receipt: &Self::Receipt) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Keeps that `reader` began effects of a task, unless another one did first; the answer is who did.
    fn own(&self, task: &str, reader: &str) -> impl Future<Output = Result<String, QueueError>> + Send;

    /// Who began effects of a task, if anybody has.
    fn owner(&self, task: &str) -> impl Future<Output = Result<Option<String>, QueueError>> + Send;

    /// It is being answered. `Ok`: the broker has heard it.
    fn progress(&self, receipt: &Self::Receipt) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// It goes to the dead letters.
    fn bury(
        &self,
        parcel: &InboxMessage<Self::Receipt>,
        reason: &str,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;
}

/// The broker keeps no owners.
fn no_owners() -> QueueError {
    QueueError::Broker("this queue keeps no owners".to_owned())
}

/// A door to a queue.
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

    /// Serves until `cancel`; then what is in flight may end, and what has no answer stays in the queue.
    async fn serve(self: Arc<Self>, cancel: CancellationToken) {
        loop {
            let parcels = tokio::select! {
                () = cancel.cancelled() => break,
                parcels = self.broker.next() => parcels,
            };
            match parcels {
                Ok(parcels) => {
                    for parcel in parcels {
                        self.take(parcel).await;
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

    async fn take(self: &Arc<Self>, parcel: InboxMessage<B::Receipt>) {
        if parcel.tries > self.tries {
            let reason = format!("not answered in {} attempts", self.tries);
            return self.bury(&parcel, &reason).await;
        }
        let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
            return;
        };
        let kind = Kind::of(&parcel.message);
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
        let to = self.home(&parcel);
        if let Some(refusal) = refusal {
            self.publish(&to, &parcel.client, &no_id(&refusal)).await;
            return self.bury(&parcel, &refusal.message).await;
        }
        let again = (parcel.tries > 1).then(|| self.guests.age(parcel.put));
        if let Some(answer) = self.guests.answered(&parcel.client, &kind, again) {
            if self.publish(&to, &parcel.client, &answer).await {
                self.acknowledge(&parcel).await;
            }
            return;
        }
        if kind == Kind::Hello {
            let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
            homes.insert(parcel.client.clone(), to.clone());
        }
        let message = parcel.message.clone().into();
        match self.guests.deliver(&parcel.client, &kind, message).await {
            Ok(delivered) => {
                if let Some(notices) = delivered.notices {
                    let (door, client) = (Arc::clone(self), parcel.client.clone());
                    self.guests
                        .spawn(async move { door.tell(&client, &notices).await });
                }
                let door = Arc::clone(self);
                self.guests.spawn(async move {
                    door.answer(&parcel, &kind, &to, (delivered.order, &delivered.outlet))
                        .await;
                    drop(place);
                });
            }
            // Not acknowledged: it comes again, and in the end it is a dead letter.
            Err(refusal) => tracing::warn!(error = %refusal.message, "a message was not taken"),
        }
    }

    /// Where its answer goes.
    fn home(&self, parcel: &InboxMessage<B::Receipt>) -> String {
        let wanted = parcel.reply_to.as_deref();
        match wanted.filter(|to| self.names.may_answer_to(to)) {
            Some(to) => to.to_owned(),
            None => self.names.outbox.clone(),
        }
    }

    async fn bury(&self, parcel: &InboxMessage<B::Receipt>, reason: &str) {
        tracing::warn!(reason, "a message is a dead letter");
        if let Err(error) = self.broker.bury(parcel, reason).await {
            // It comes again.
            tracing::warn!(%error, "a dead letter can't be put away");
        }
    }

    /// Publishes what comes of a message; acknowledged when its answer is in a queue.
    async fn answer(
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
                            self.guests.settled(&parcel.client, kind, said, line);
                        }
                        let published = self.publish(to, &parcel.client, line).await;
                        done |= is_answer(line) && published;
                    }
                }
                Err(_) => {
                    // silent-ok: the deadline only says that it is time
                    if let Err(error) = self.broker.progress(&parcel.receipt).await {
                        tracing::debug!(%error, "a message may be delivered again");
                    }
                }
            }
        }
        if done {
            self.acknowledge(parcel).await;
        }
    }

    async fn acknowledge(&self, parcel: &InboxMessage<B::Receipt>) {
        if let Err(error) = self.broker.done(&parcel.receipt).await {
            tracing::warn!(%error, "an answered message will be delivered again");
        }
    }

    /// Whether it is in a queue. What is too long for the broker is answered with an error of its id.
    async fn publish(&self, to: &str, client: &str, line: &[u8]) -> bool {
        let id = self.guests.host().options().clock.uuid().to_string();
        for attempt in 1..=PUBLISH_TRIES {
            match self.broker.publish(to, client, line, &id).await {
                Ok(()) => return true,
                Err(QueueError::TooLong(most)) => {
                    let instead = too_long(line, most);
                    return self.broker.publish(to, client, &instead, &id).await.is_ok();
                }
                Err(error) => {
                    tracing::warn!(%error, attempt, "an answer can't be put into a queue");
                    tokio::time::sleep(BREATH * attempt).await;
                }
            }
        }
        false
    }

    /// What answers nothing goes where the client's last `claw.initialize` wanted its answer.
    async fn tell(&self, client: &str, notices: &OutgoingMessages) {
        notices.set_heard(true);
        while let Some(batch) = notices.next().await {
            let to = {
                let homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
                homes.get(client).cloned()
            };
            let to = to.unwrap_or_else(|| self.names.outbox.clone());
            for line in batch.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                self.publish(&to, client, line).await;
            }
        }
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        homes.remove(client);
    }
}

/// The error that stands for an answer that the broker does not take.
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
