//! A transport as a pair of message queues. It does not interpret messages, except `claw.initialize`: a transport with separate
//! requests must wait for its answer.

mod command;
mod folder;
mod http;
mod lines;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;
mod socket;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_secrets::Secret;
use futures::FutureExt as _;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::{AgentAddress, ClientError};

/// The largest number of queued messages per direction; above it the sender waits.
const WAITING: usize = 256;
/// The longest message that is read, bytes.
const MAX_MESSAGE: usize = 64 << 20;
/// The time limit of connecting.
const CONNECT: Duration = Duration::from_secs(15);
/// The time limit of closing.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long the other side may be silent before the connection counts as broken. The server sends at least two signs of life in
/// this time.
const SILENT: Duration = Duration::from_secs(75);

/// The id of the last message; no other id is as large.
const GOODBYE: u64 = (1 << 53) - 1;

/// The transport's end of the queues.
struct TransportChannels {
    out: mpsc::Receiver<String>,
    heard: mpsc::Sender<String>,
}

/// An open transport.
#[derive(Debug)]
pub struct OpenTransport {
    to: mpsc::Sender<String>,
    from: mpsc::Receiver<String>,
    cause: Arc<Mutex<Option<ClientError>>>,
    task: TaskTracker,
}

impl OpenTransport {
    /// Connects. `client` is the client's name in a queue.
    ///
    /// # Errors
    /// The agent can't be reached, or refuses the connection.
    pub async fn open(
        target: &AgentAddress,
        client: &str,
        token: Option<&Secret>,
    ) -> Result<Self, ClientError> {
        let (to, out) = mpsc::channel(WAITING);
        let (heard, from) = mpsc::channel(WAITING);
        let ends = TransportChannels { out, heard };
        let opening = async {
            Ok(match target {
                AgentAddress::Command(line) => command::open_transport(line, ends)?.boxed(),
                AgentAddress::Socket(path) => lines::open_transport(path, ends).await?.boxed(),
                AgentAddress::Http(url) => http::open_transport(url, token, ends)?.boxed(),
                AgentAddress::WebSocket(url) => socket::open_transport(url, token, ends).await?.boxed(),
                AgentAddress::Folder(path) => folder::open_transport(path, ends)?.boxed(),
                #[cfg(feature = "nats")]
                AgentAddress::Nats(queue) => nats::open_transport(queue, client, ends).await?.boxed(),
                #[cfg(feature = "redis")]
                AgentAddress::Redis(queue) => redis::open_transport(queue, client, ends).await?.boxed(),
                #[cfg(not(feature = "nats"))]
                AgentAddress::Nats(_) => return Err(left_out_error(client, "nats")),
                #[cfg(not(feature = "redis"))]
                AgentAddress::Redis(_) => return Err(left_out_error(client, "redis")),
            })
        };
        let running = tokio::time::timeout(CONNECT, opening)
            .await
            .map_err(|_| ClientError::Connect(format!("nothing within {} s", CONNECT.as_secs())))??;
        let (cause, task) = (Arc::new(Mutex::new(None)), TaskTracker::new());
        let told = Arc::clone(&cause);
        task.spawn(async move {
            if let Err(error) = running.await {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        });
        task.close();
        Ok(Self {
            to,
            from,
            cause,
            task,
        })
    }

    /// Sends one message unchanged. Waits while the transport is behind.
    ///
    /// # Errors
    /// The transport has ended.
    pub async fn send(&self, message: String) -> Result<(), ClientError> {
        if self.to.send(message).await.is_ok() {
            return Ok(());
        }
        self.task.wait().await;
        Err(self.end_cause())
    }

    /// The next message. Cancelling loses nothing.
    ///
    /// # Errors
    /// The transport has ended.
    pub async fn receive(&mut self) -> Result<String, ClientError> {
        match self.from.recv().await {
            Some(message) => Ok(message),
            None => {
                self.task.wait().await;
                Err(self.end_cause())
            }
        }
    }

    fn end_cause(&self) -> ClientError {
        let cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        cause
            .clone()
            .unwrap_or_else(|| ClientError::Lost("the other side has ended it".to_owned()))
    }

    /// Closes the transport and waits for that.
    pub async fn close(self) {
        let Self { to, from, task, .. } = self;
        drop(to);
        // silent-ok: a lost goodbye changes nothing
        let _said = tokio::time::timeout(FAREWELL, task.wait()).await;
        drop(from);
    }
}

#[cfg(not(all(feature = "nats", feature = "redis")))]
fn left_out_error(_client: &str, which: &'static str) -> ClientError {
    ClientError::Absent(which)
}

/// The last message to an agent that knows clients by name. It ends the session.
fn goodbye_message() -> String {
    let scope = serde_json::json!({"scope": "connection"});
    clawk_proto::rpc::request_text(GOODBYE, clawk_proto::method::Method::Shutdown.name(), &scope)
}

/// Whether this is the answer to the last message.
fn is_goodbye(answer: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(answer)
        .is_ok_and(|answer| answer.get("id").and_then(serde_json::Value::as_u64) == Some(GOODBYE))
}

/// Whether this is a request for `claw.initialize`.
fn is_initialize(message: &str) -> bool {
    message_method(message).as_deref() == Some(clawk_proto::method::Method::Initialize.name())
}

/// The method of a single message.
fn message_method(message: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct MethodField {
        method: String,
    }
    serde_json::from_str::<MethodField>(message)
        .ok()
        .map(|asked| asked.method) // silent-ok: what is no request has no method
}
