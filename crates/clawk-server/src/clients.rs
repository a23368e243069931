//! Clients without a stream of their own: their messages arrive one by one, by HTTP, from a queue or from a folder. Each client is
//! a connection with its own task. Each message carries the place for its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::ClientRights;
use crate::host::AgentHost;
use crate::rpc::RpcConnection;
use crate::transport::converse::{ConnectionEndCause, IDLE, MessageSource, serve_client};
use crate::transport::outbox::{Outbox, OutgoingMessages};

/// After this time without a message the client is removed, and its CKP session ends.
pub(crate) const SILENCE: Duration = Duration::from_secs(3_600);
/// The queue of messages for one client's connection. If it is full, the sender waits.
const WAITING: usize = 64;

/// One message with the place for its answer.
#[derive(Debug)]
pub(crate) struct AddressedMessage {
    /// A JSON-RPC message or batch.
    pub(crate) message: Bytes,
    /// Receives the answer and the notifications before it. Dropped when nothing more follows.
    pub(crate) reply: Arc<Outbox>,
}

/// When a client's connection ends without a request from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientEndPolicy {
    /// After [`SILENCE`] without a message and without a listener.
    Silent,
    /// As `Silent`, and after `claw.shutdown`.
    SilentOrShutDown,
}

/// How a client's session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientSessionEnd {
    /// `claw.shutdown` ended it.
    ShutDown,
    /// The client was silent for too long, or the agent is stopping.
    Silent,
}

/// A handle to a client's connection.
#[derive(Debug, Clone)]
pub(crate) struct ClientConnection {
    letters: mpsc::Sender<AddressedMessage>,
    /// Messages that answer no request: heartbeats and questions.
    pub(crate) notices: Arc<OutgoingMessages>,
    end: CancellationToken,
}

impl ClientConnection {
    /// Opens a connection for a new client. `tasks` tracks it until its end. `over` asks it to end; `gone` is called afterwards.
    pub(crate) fn open(
        host: AgentHost,
        rights: ClientRights,
        ends: ClientEndPolicy,
        (tasks, over): (&TaskTracker, &CancellationToken),
        gone: impl FnOnce(ClientSessionEnd) + Send + 'static,
    ) -> Self {
        let (letters, incoming) = mpsc::channel(WAITING);
        let connection = RpcConnection::new(host, rights);
        let notices = connection.0.outbox().outlet();
        notices.set_heard(false);
        let end = over.child_token();
        let (finished, cancel) = (Arc::clone(&notices), end.clone());
        let shut_down = Arc::<AtomicBool>::default();
        tasks.spawn(async move {
            let source = AddressedMessageSource {
                incoming,
                ends,
                notices: Arc::clone(&finished),
                shut_down: Arc::clone(&shut_down),
            };
            let writing = async {
                finished.finished().await;
                Ok(())
            };
            let ended = serve_client(connection, source, writing, cancel).await;
            tracing::debug!(by = ?ended.by, "a client's session has ended");
            gone(if shut_down.load(Ordering::SeqCst) {
                ClientSessionEnd::ShutDown
            } else {
                ClientSessionEnd::Silent
            });
        });
        Self {
            letters,
            notices,
            end,
        }
    }

    /// Hands a message over; waits while the queue is full. Returns `false` if the session has ended and the message was not
    /// read.
    pub(crate) async fn send_message(&self, letter: AddressedMessage) -> bool {
        self.letters.send(letter).await.is_ok()
    }

    /// Whether the connection has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.letters.is_closed()
    }

    /// Ends the connection. Requests in flight may finish.
    pub(crate) fn end_connection(&self) {
        self.end.cancel();
    }
}

struct AddressedMessageSource {
    incoming: mpsc::Receiver<AddressedMessage>,
    ends: ClientEndPolicy,
    notices: Arc<OutgoingMessages>,
    shut_down: Arc<AtomicBool>,
}

impl MessageSource for AddressedMessageSource {
    async fn read(&mut self, connection: &mut RpcConnection) -> ConnectionEndCause {
        loop {
            let patience = if connection.may_idle() { SILENCE } else { IDLE };
            let letter = match timeout(patience, self.incoming.recv()).await {
                Ok(Some(letter)) => letter,
                Ok(None) => return ConnectionEndCause::Input,
                // silent-ok: answers are still in flight, or somebody listens
                Err(_) if connection.is_busy() || self.notices.is_heard() => continue,
                Err(_) => return ConnectionEndCause::Input, // silent-ok: who says nothing for so long wants nothing
            };
            connection.take_to(&letter.message, letter.reply).await;
            let over = self.ends == ClientEndPolicy::SilentOrShutDown && connection.is_over();
            if over && self.incoming.is_empty() {
                self.shut_down.store(true, Ordering::SeqCst);
                self.incoming.close();
                // Messages that arrived in the meantime are answered too.
                while let Ok(letter) = self.incoming.try_recv() {
                    connection.take_to(&letter.message, letter.reply).await;
                }
                return ConnectionEndCause::Input;
            }
        }
    }
}
