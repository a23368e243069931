//! Clients that have no stream of their own: each message comes by itself, by HTTP, from a queue or a folder. A client is a
//! connection in a task of its own; its messages are letters, each with the place where its answer is wanted.

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
use crate::transport::converse::{ConnectionEndCause, IDLE, MessageSource, converse};
use crate::transport::outbox::{Outbox, OutgoingMessages};

/// A client that says nothing for so long is forgotten: its CKP session ends.
pub(crate) const SILENCE: Duration = Duration::from_secs(3_600);
/// The queue of messages for one client's connection. If it is full, the sender waits.
const WAITING: usize = 64;

/// One message and where its answer goes.
#[derive(Debug)]
pub(crate) struct AddressedMessage {
    /// One JSON-RPC message or batch.
    pub(crate) message: Bytes,
    /// Takes the answer and what is told on the way to it; dropped when nothing more will come.
    pub(crate) reply: Arc<Outbox>,
}

/// When a client's connection ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientEndPolicy {
    /// [`SILENCE`] passed without a message and without a listener.
    Silent,
    /// So, and with `claw.shutdown`.
    SilentOrShutDown,
}

/// How a client's session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientSessionEnd {
    /// By `claw.shutdown`.
    ShutDown,
    /// It was silent, or the agent ends.
    Silent,
}

/// A client's connection, from outside.
#[derive(Debug, Clone)]
pub(crate) struct ClientConnection {
    letters: mpsc::Sender<AddressedMessage>,
    /// Heartbeats, questions: what answers no letter.
    pub(crate) notices: Arc<OutgoingMessages>,
    end: CancellationToken,
}

impl ClientConnection {
    /// A new client's connection. `tasks` holds it until it has ended, which `over` asks for; then `gone` is called.
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
            let ended = converse(connection, source, writing, cancel).await;
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
    pub(crate) async fn send(&self, letter: AddressedMessage) -> bool {
        self.letters.send(letter).await.is_ok()
    }

    /// Its connection has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.letters.is_closed()
    }

    /// Ends the connection; what is in flight may finish.
    pub(crate) fn end(&self) {
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
                // silent-ok: its answers are under way, or somebody listens
                Err(_) if connection.is_busy() || self.notices.is_heard() => continue,
                Err(_) => return ConnectionEndCause::Input, // silent-ok: who says nothing for so long wants nothing
            };
            connection.take_to(&letter.message, letter.reply).await;
            let over = self.ends == ClientEndPolicy::SilentOrShutDown && connection.is_over();
            if over && self.incoming.is_empty() {
                self.shut_down.store(true, Ordering::SeqCst);
                self.incoming.close();
                // What slipped in is answered, too.
                while let Ok(letter) = self.incoming.try_recv() {
                    connection.take_to(&letter.message, letter.reply).await;
                }
                return ConnectionEndCause::Input;
            }
        }
    }
}
