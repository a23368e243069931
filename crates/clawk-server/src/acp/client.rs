//! Sends messages to the editor: responses, notifications and our own requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::AcpError;
use crate::transport::outbox::Outbox;

/// The sending side of the editor's connection.
#[derive(Debug, Default)]
pub(super) struct EditorClient {
    outbox: Outbox,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Option<Value>>>>,
    over: CancellationToken,
}

impl EditorClient {
    pub(super) const fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    fn lock_waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Option<Value>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all open requests: no more responses will arrive.
    pub(super) fn close(&self) {
        self.over.cancel();
        self.lock_waiting().clear();
    }

    fn send_message(&self, message: &Value) {
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        self.outbox.take(&mut line);
    }

    pub(super) fn send_reply(&self, id: &Value, outcome: Result<Value, AcpError>) {
        match outcome {
            Ok(result) => self.send_message(&json!({"jsonrpc": "2.0", "id": id, "result": result})),
            Err(fault) => self.send_error(id, fault.code, &fault.message),
        }
    }

    pub(super) fn send_error(&self, id: &Value, code: i64, message: &str) {
        self.send_message(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}));
    }

    /// Sends `session/update`.
    pub(super) fn send_update(&self, session: &str, update: &Value) {
        let params = json!({"sessionId": session, "update": update});
        self.send_message(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    }

    /// Sends a piece of the agent's text.
    pub(super) fn send_text(&self, session: &str, text: &str) {
        self.send_update(
            session,
            &json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}),
        );
    }

    /// Sends a request to the editor and waits. `None`: the editor refused or disconnected.
    pub(super) async fn send_request(&self, method: &str, params: Value) -> Option<Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.lock_waiting().insert(id, sender);
        if self.over.is_cancelled() {
            self.lock_waiting().remove(&id);
            return None;
        }
        self.send_message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        answer.await.ok().flatten() // silent-ok: an editor that is gone has not answered
    }

    /// Passes on a response to one of our requests; drops an unknown one.
    pub(super) fn handle_response(&self, mut message: Map<String, Value>) {
        let id = message.get("id").and_then(Value::as_u64);
        if let Some(sender) = id.and_then(|id| self.lock_waiting().remove(&id)) {
            // silent-ok: the task that sent the request has ended
            let _gone = sender.send(message.remove("result"));
        }
    }
}
