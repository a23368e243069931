//! The client: calls by id, notifications, and reconnection after a broken connection.

use std::collections::HashMap;
use std::time::Duration;

use clawk_proto::RpcError;
use clawk_proto::message::SEND;
use clawk_proto::method::Method;
use clawk_proto::rpc::request_text;
use clawk_secrets::Secret;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::{AgentAddress, ClientError, OpenTransport, request_id};

/// The largest number of calls that wait to be sent.
const WAITING: usize = 256;
/// How many notifications a slow listener may be behind. Above that it loses some and is told so.
const BEHIND: usize = 1024;
/// The first and the longest wait before a reconnection.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The settings of a client.
#[derive(Debug, Clone)]
pub struct Options {
    /// `clientInfo.name`, and the client's name in a queue.
    pub name: String,
    /// The token, if the agent requires one.
    pub token: Option<Secret>,
    /// `capabilities` of `claw.initialize`; `{}` is unrestricted (R2).
    pub capabilities: Value,
    /// The time limit of a call.
    pub patience: Duration,
    /// How long the client tries to restore a broken connection; zero: it does not try.
    pub reconnect: Duration,
}

impl Options {
    /// The defaults: no token, no restriction, ten minutes per call, one minute for reconnecting.
    #[must_use]
    pub fn for_client(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            token: None,
            capabilities: json!({}),
            patience: Duration::from_secs(600),
            reconnect: Duration::from_secs(60),
        }
    }

    fn hello_params(&self) -> Value {
        json!({
            "protocolVersion": "0.3.0",
            "clientInfo": {"name": self.name, "version": env!("CARGO_PKG_VERSION")},
            "manifest": {"kind": "Claw", "metadata": {"name": "any"}},
            "capabilities": self.capabilities,
        })
    }
}

/// A message of the agent that answers no request.
#[derive(Debug, Clone, PartialEq)]
pub struct UnsolicitedMessage {
    /// The method, for example `claw.heartbeat`.
    pub method: String,
    /// Its params.
    pub params: Value,
    /// The id, if it is a request: answer it with [`AgentClient::send_answer`]. Null: it is a notification.
    pub id: Value,
}

/// A connected client; cheap to clone.
#[derive(Debug, Clone)]
pub struct AgentClient {
    asks: mpsc::Sender<ClientCommand>,
    notices: broadcast::Sender<UnsolicitedMessage>,
    agent: watch::Receiver<Value>,
    patience: Duration,
    task: TaskTracker,
}

enum ClientCommand {
    Call {
        method: String,
        params: Value,
        answer: oneshot::Sender<Result<Value, ClientError>>,
    },
    Notify {
        method: String,
        params: Value,
    },
    Answer {
        id: Value,
        outcome: Result<Value, RpcError>,
    },
    Close,
}

#[derive(Deserialize)]
struct IncomingRpcMessage {
    #[serde(default)]
    id: Value,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<RpcError>,
}

impl AgentClient {
    /// Connects and initializes.
    ///
    /// # Errors
    /// The agent can't be reached, refuses the connection, or refuses `claw.initialize`.
    pub async fn connect(target: AgentAddress, options: Options) -> Result<Self, ClientError> {
        let (notices, _) = broadcast::channel(BEHIND);
        let (wire, begun) = open_connection(&target, &options, &notices).await?;
        let (asks, incoming) = mpsc::channel(WAITING);
        let (told, agent) = watch::channel(begun);
        let patience = options.patience;
        let driver = ClientDriver {
            target,
            options,
            notices: notices.clone(),
            agent: told,
            open: HashMap::new(),
            last_id: 0,
        };
        let task = TaskTracker::new();
        task.spawn(driver.run(wire, incoming));
        task.close();
        Ok(Self {
            asks,
            notices,
            agent,
            patience,
            task,
        })
    }

    /// The agent's latest answer to `claw.initialize`.
    #[must_use]
    pub fn agent_info(&self) -> Value {
        self.agent.borrow().clone()
    }

    /// Changes after each new connection is initialized.
    #[must_use]
    pub fn watch_greetings(&self) -> watch::Receiver<Value> {
        self.agent.clone()
    }

    /// Calls a method and waits for its result. If the connection breaks, a call with a request id or without effects is sent again
    /// on the next connection. Any other call ends with [`ClientError::Lost`].
    ///
    /// # Errors
    /// The agent refused, or no answer came.
    pub async fn call(&self, method: &str, params: Value) -> Result<Value, ClientError> {
        let (answer, answered) = oneshot::channel();
        let ask = ClientCommand::Call {
            method: method.to_owned(),
            params,
            answer,
        };
        let over = || ClientError::Lost("this client has ended".to_owned());
        self.asks.send(ask).await.map_err(|_| over())?;
        match timeout(self.patience, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(over()), // silent-ok: the driver is gone
            Err(_) => Err(ClientError::Silent(self.patience)), // silent-ok: the deadline is the whole cause
        }
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// The client has ended.
    pub async fn notify(&self, method: &str, params: Value) -> Result<(), ClientError> {
        let ask = ClientCommand::Notify {
            method: method.to_owned(),
            params,
        };
        let over = |_| ClientError::Lost("this client has ended".to_owned());
        self.asks.send(ask).await.map_err(over)
    }

    /// Answers a request of the agent.
    ///
    /// # Errors
    /// The client has ended.
    pub async fn send_answer(&self, id: Value, outcome: Result<Value, RpcError>) -> Result<(), ClientError> {
        let over = |_| ClientError::Lost("this client has ended".to_owned());
        self.asks
            .send(ClientCommand::Answer { id, outcome })
            .await
            .map_err(over)
    }

    /// The agent's messages that answer no request, from now on.
    #[must_use]
    pub fn subscribe_notices(&self) -> broadcast::Receiver<UnsolicitedMessage> {
        self.notices.subscribe()
    }

    /// Closes the connection and waits for that. Open calls end as lost.
    pub async fn close(self) {
        // silent-ok: the client has already ended
        let _asked = self.asks.send(ClientCommand::Close).await;
        self.task.wait().await;
    }
}

/// Opens and initializes a new connection. Returns it with the agent's answer.
async fn open_connection(
    target: &AgentAddress,
    options: &Options,
    notices: &broadcast::Sender<UnsolicitedMessage>,
) -> Result<(OpenTransport, Value), ClientError> {
    let mut wire = OpenTransport::open(target, &options.name, options.token.as_ref()).await?;
    let hello = request_text(0, Method::Initialize.name(), &options.hello_params());
    let answered = async {
        wire.send(hello).await?;
        loop {
            let heard = parse_message(&wire.receive().await?)?;
            match heard {
                IncomingRpcMessage {
                    id, result, error, ..
                } if id == 0 => {
                    return match (result, error) {
                        (_, Some(error)) => Err(ClientError::Rpc(error)),
                        (Some(result), None) => Ok(result),
                        (None, None) => Err(ClientError::Malformed("it has no result".to_owned())),
                    };
                }
                other => publish_notice(notices, other),
            }
        }
    };
    match timeout(options.patience.min(Duration::from_secs(60)), answered).await {
        Ok(Ok(begun)) => Ok((wire, begun)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(ClientError::Silent(options.patience)), // silent-ok: the deadline is the whole cause
    }
}

fn parse_message(text: &str) -> Result<IncomingRpcMessage, ClientError> {
    serde_json::from_str(text).map_err(|error| ClientError::Malformed(error.to_string()))
}

fn publish_notice(notices: &broadcast::Sender<UnsolicitedMessage>, heard: IncomingRpcMessage) {
    if let Some(method) = heard.method {
        // silent-ok: there may be no listener
        let _heard = notices.send(UnsolicitedMessage {
            method,
            params: heard.params,
            id: heard.id,
        });
    }
}

/// A call without its answer.
struct UnansweredCall {
    text: String,
    again: bool,
    answer: oneshot::Sender<Result<Value, ClientError>>,
}

/// The background task of a client.
struct ClientDriver {
    target: AgentAddress,
    options: Options,
    notices: broadcast::Sender<UnsolicitedMessage>,
    agent: watch::Sender<Value>,
    open: HashMap<u64, UnansweredCall>,
    last_id: u64,
}

impl ClientDriver {
    async fn run(mut self, mut wire: OpenTransport, mut asks: mpsc::Receiver<ClientCommand>) {
        loop {
            let broke = tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ClientCommand::Close) | None => break,
                    Some(ask) => self.send_command(&wire, ask).await,
                },
                heard = wire.receive() => match heard {
                    Ok(text) => {
                        self.handle_message(&text);
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
            };
            self.open.retain(|_, open| !open.answer.is_closed());
            let Err(error) = broke else { continue };
            match self.reconnect(error).await {
                Ok(fresh) => wire = fresh,
                Err(error) => return self.fail_open_calls(&error),
            }
        }
        wire.close().await;
        self.fail_open_calls(&ClientError::Lost("this client was closed".to_owned()));
    }

    fn fail_open_calls(&mut self, error: &ClientError) {
        for (_, open) in self.open.drain() {
            // silent-ok: the caller has given up
            let _told = open.answer.send(Err(error.clone()));
        }
    }

    async fn send_command(&mut self, wire: &OpenTransport, ask: ClientCommand) -> Result<(), ClientError> {
        match ask {
            ClientCommand::Call {
                method,
                params,
                answer,
            } => {
                self.last_id += 1;
                let text = request_text(self.last_id, &method, &params);
                let again = may_ask_again(&method, &params);
                let open = UnansweredCall {
                    text: text.clone(),
                    again,
                    answer,
                };
                self.open.insert(self.last_id, open);
                wire.send(text).await
            }
            ClientCommand::Notify { method, params } => {
                let text = json!({"jsonrpc": "2.0", "method": method, "params": params});
                wire.send(text.to_string()).await
            }
            ClientCommand::Answer { id, outcome } => {
                let text = match outcome {
                    Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                    Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
                };
                wire.send(text.to_string()).await
            }
            ClientCommand::Close => Ok(()),
        }
    }

    fn handle_message(&mut self, text: &str) {
        let heard = match parse_message(text) {
            Ok(heard) => heard,
            Err(error) => return tracing::warn!(%error, "a message was dropped"),
        };
        // A request of the agent has the agent's own id, which may equal one of ours.
        let asks = heard.method.is_some();
        let Some(open) = heard
            .id
            .as_u64()
            .filter(|_| !asks)
            .and_then(|id| self.open.remove(&id))
        else {
            return publish_notice(&self.notices, heard);
        };
        let outcome = match (heard.result, heard.error) {
            (_, Some(error)) => Err(ClientError::Rpc(error)),
            (Some(result), None) => Ok(result),
            (None, None) => Err(ClientError::Malformed(
                "it has neither result nor error".to_owned(),
            )),
        };
        // silent-ok: the caller has given up
        let _told = open.answer.send(outcome);
    }

    /// Opens a new connection and repeats every call that may be repeated.
    async fn reconnect(&mut self, mut error: ClientError) -> Result<OpenTransport, ClientError> {
        let lost: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, open)| !open.again)
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            if let Some(open) = self.open.remove(&id) {
                // silent-ok: the caller has given up
                let _told = open.answer.send(Err(error.clone()));
            }
        }
        let started = tokio::time::Instant::now();
        let mut wait = FIRST_WAIT;
        while started.elapsed() < self.options.reconnect {
            if matches!(
                error,
                ClientError::Refused(_) | ClientError::Rpc(_) | ClientError::Target { .. }
            ) {
                break;
            }
            tracing::debug!(%error, "connecting again");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
            match open_connection(&self.target, &self.options, &self.notices).await {
                Ok((wire, begun)) => match self.resend_calls(&wire).await {
                    Ok(()) => {
                        self.agent.send_replace(begun);
                        return Ok(wire);
                    }
                    Err(again) => error = again,
                },
                Err(again) => error = again,
            }
        }
        Err(error)
    }

    async fn resend_calls(&self, wire: &OpenTransport) -> Result<(), ClientError> {
        let mut ids: Vec<&u64> = self.open.keys().collect();
        ids.sort_unstable();
        for open in ids.iter().filter_map(|id| self.open.get(id)) {
            wire.send(open.text.clone()).await?;
        }
        Ok(())
    }
}

/// Whether a repeated call acts only once: it has no effects, or it has a request id.
fn may_ask_again(method: &str, params: &Value) -> bool {
    match Method::from_name(method) {
        Some(Method::Status | Method::MemoryQuery | Method::SwarmDiscover) => true,
        // The second answer would only report that the first one counted.
        Some(Method::ToolApprove | Method::ToolDeny) => false,
        Some(_) | None => ["/request_id", "/context/request_id"]
            .iter()
            .any(|at| params.pointer(at).is_some_and(Value::is_string)),
    }
}

impl AgentClient {
    /// The params with defaults for the members that a person at a command line omits: a request id if the method needs one, and
    /// the calling identity of a tool call.
    #[must_use]
    pub fn complete_params(&self, method: &str, mut params: Value) -> Value {
        let Some(members) = params.as_object_mut() else {
            return params;
        };
        let fresh = |members: &mut Map<String, Value>| {
            members.entry("request_id").or_insert_with(|| request_id().into());
        };
        match Method::from_name(method) {
            Some(Method::ToolCall) => {
                members.entry("arguments").or_insert_with(|| json!({}));
                let context = members.entry("context").or_insert_with(|| json!({}));
                if let Some(context) = context.as_object_mut() {
                    fresh(context);
                    let name = self.agent.borrow().pointer("/agentInfo/name").cloned();
                    context.entry("identity").or_insert(name.unwrap_or_default());
                }
            }
            Some(Method::MemoryStore | Method::SwarmDelegate) => fresh(members),
            Some(_) => {}
            None if method == SEND => fresh(members),
            None => {}
        }
        params
    }
}
