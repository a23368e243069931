//! Serves the agent to an editor (Agent Client Protocol, version 1, over standard input and output): sessions, prompts with
//! resources, streamed answers, tool calls with their diffs, and permissions. Each permission covers exactly one call.

mod calls;
mod client;
mod prompt;
mod words;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::EntryPoint;
use futures::FutureExt as _;
use futures::future::FusedFuture as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::ClientRights;
use crate::host::AgentHost;
use crate::transport::frames::{InputLine, LineSplitter};
use client::EditorClient;
use prompt::Conversation;

/// The protocol version.
const VERSION: u64 = 1;
/// The largest number of sessions of one editor.
const MAX_SESSIONS: usize = 256;
/// How long the editor may take to read the last answers.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// An error response for the editor.
#[derive(Debug)]
pub(crate) struct AcpError {
    code: i64,
    message: String,
}

impl AcpError {
    fn invalid_params(message: impl Into<String>) -> Self {
        Self {
            code: -32602,
            message: message.into(),
        }
    }

    fn failed(message: impl Into<String>) -> Self {
        Self {
            code: -32603,
            message: message.into(),
        }
    }
}

/// Serves one editor until its input ends or `cancel` fires. Turns that still run are drained together with the agent.
pub async fn serve_acp<R, W>(
    reader: R,
    writer: W,
    host: AgentHost,
    rights: ClientRights,
    workdir: PathBuf,
    cancel: CancellationToken,
) where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let mut frames = LineSplitter::new(reader, host.options().max_message_bytes);
    let client = Arc::<EditorClient>::default();
    let mut writing = pin!(client.outbox().write_to(writer).fuse());
    let mut editor = EditorConnection {
        host,
        rights,
        workdir: workdir.into(),
        client: Arc::clone(&client),
        name: None,
        sessions: HashMap::new(),
        tasks: TaskTracker::new(),
    };
    {
        let mut reading = pin!(read(&mut frames, &mut editor));
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = &mut reading => {}
            _ = &mut writing => {}
        }
    }
    client.close();
    editor.tasks.close();
    client.outbox().finish();
    if !writing.is_terminated() && tokio::time::timeout(LAST_WORDS, writing).await.is_err() {
        tracing::warn!("the editor does not read; the last answers are lost");
    }
}

async fn read<R: AsyncRead + Unpin>(frames: &mut LineSplitter<R>, editor: &mut EditorConnection) {
    loop {
        while let Some(line) = frames.next_buffered() {
            match line {
                InputLine::Whole(line) => editor.handle_line(line).await,
                InputLine::TooLong => {
                    editor
                        .client
                        .send_error(&Value::Null, -32600, "the message is too long")
                }
            }
            editor.client.outbox().room().await;
        }
        match frames.fill().await {
            Ok(()) if frames.is_spent() => return,
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return tracing::debug!(%error, "the input broke"),
        }
    }
}

/// The editor's connection.
#[derive(Debug)]
struct EditorConnection {
    host: AgentHost,
    rights: ClientRights,
    /// The working directory of tools, and the base of relative paths.
    workdir: Arc<Path>,
    client: Arc<EditorClient>,
    /// The editor's name; `None` before `initialize`.
    name: Option<String>,
    sessions: HashMap<String, Arc<Conversation>>,
    tasks: TaskTracker,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AcpInitialize {
    #[serde(default)]
    client_info: Option<AcpClientInfo>,
}

#[derive(Debug, Deserialize)]
struct AcpClientInfo {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewSession {
    cwd: PathBuf,
    #[serde(default)]
    mcp_servers: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prompt {
    session_id: String,
    prompt: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AcpCancel {
    session_id: String,
}

impl EditorConnection {
    /// Handles one message: a request, a notification, or the response to one of our requests.
    async fn handle_line(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let Ok(Value::Object(mut message)) = serde_json::from_slice::<Value>(line) else {
            return self
                .client
                .send_error(&Value::Null, -32700, "a line must be one JSON object");
        };
        let params = message.remove("params").unwrap_or_else(|| json!({}));
        match (message.get("method").and_then(Value::as_str), message.get("id")) {
            (Some(method), Some(id)) => self.handle_request(method, id.clone(), params).await,
            (Some("session/cancel"), None) => self.cancel_prompt(params),
            (Some(_), None) => {}
            (None, Some(_)) => self.client.handle_response(message),
            (None, None) => self
                .client
                .send_error(&Value::Null, -32600, "neither a request nor an answer"),
        }
    }

    async fn handle_request(&mut self, method: &str, id: Value, params: Value) {
        let outcome = match method {
            "initialize" => self.initialize(params),
            "session/new" => self.new_session(params).await,
            "session/prompt" => match self.start_prompt(&id, params) {
                Ok(()) => return,
                Err(fault) => Err(fault),
            },
            _ => Err(AcpError {
                code: -32601,
                message: format!("`{}` is not served", method.chars().take(64).collect::<String>()),
            }),
        };
        self.client.send_reply(&id, outcome);
    }

    fn initialize(&mut self, params: Value) -> Result<Value, AcpError> {
        let wanted: AcpInitialize = decode_params(params)?;
        let kernel = self
            .host
            .current_kernel()
            .get()
            .ok_or_else(|| AcpError::failed("no agent runs"))?;
        let name = wanted
            .client_info
            .map_or_else(|| "editor".to_owned(), |info| info.name);
        self.name = Some(name.chars().take(64).collect());
        let agent = kernel.agent_info();
        Ok(json!({
            "protocolVersion": VERSION,
            "agentInfo": {"name": agent.name, "version": agent.version},
            "agentCapabilities": {
                "loadSession": false,
                "promptCapabilities": {"image": false, "audio": false, "embeddedContext": true},
                "mcpCapabilities": {"http": false, "sse": false},
            },
            "authMethods": [],
        }))
    }

    async fn new_session(&mut self, params: Value) -> Result<Value, AcpError> {
        let wanted: NewSession = decode_params(params)?;
        let name = self
            .name
            .clone()
            .ok_or_else(|| AcpError::invalid_params("`initialize` comes first"))?;
        if !wanted.cwd.is_absolute() {
            return Err(AcpError::invalid_params("cwd: must be an absolute path"));
        }
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(AcpError::invalid_params(format!(
                "{MAX_SESSIONS} sessions are open"
            )));
        }
        let kernel = self
            .host
            .current_kernel()
            .get()
            .ok_or_else(|| AcpError::failed("no agent runs"))?;
        let door = EntryPoint::Rpc {
            client: format!("acp:{name}"),
            role: self.rights.role(),
        };
        let session = kernel
            .open_session(door)
            .await
            .map_err(|error| AcpError::failed(error.to_string()))?;
        let id = session.id.to_string();
        let conversation = Conversation::new(kernel, session, name, Arc::clone(&self.workdir), wanted.cwd);
        self.sessions.insert(id.clone(), Arc::new(conversation));
        if !wanted.mcp_servers.is_empty() {
            let text = format!(
                "[{} MCP servers of the editor are not used: the agent's tools are those that its manifest declares.]\n",
                wanted.mcp_servers.len()
            );
            // This must follow the response that names the session.
            let (client, session) = (Arc::clone(&self.client), id.clone());
            self.tasks.spawn(async move { client.send_text(&session, &text) });
        }
        Ok(json!({"sessionId": id}))
    }

    /// Starts a turn. The turn sends its own response.
    fn start_prompt(&mut self, id: &Value, params: Value) -> Result<(), AcpError> {
        let wanted: Prompt = decode_params(params)?;
        let conversation = self.sessions.get(&wanted.session_id);
        let conversation =
            Arc::clone(conversation.ok_or_else(|| AcpError::invalid_params("there is no such session"))?);
        let text = words::prompt_text(&wanted.prompt).map_err(AcpError::invalid_params)?;
        let turn = conversation
            .begin_turn()
            .ok_or_else(|| AcpError::invalid_params("a prompt of this session is still running"))?;
        let (client, id) = (Arc::clone(&self.client), id.clone());
        let tasks = self.tasks.clone();
        self.tasks.spawn(async move {
            let outcome = conversation.run_turn(&client, &tasks, text).await;
            drop(turn);
            client.send_reply(&id, outcome);
        });
        Ok(())
    }

    /// Cancels a request. An unknown request is ignored.
    fn cancel_prompt(&self, params: Value) {
        let wanted: Result<AcpCancel, AcpError> = decode_params(params);
        if let Ok(wanted) = wanted
            && let Some(conversation) = self.sessions.get(&wanted.session_id)
        {
            conversation.cancel_turn();
        }
    }
}

fn decode_params<T: serde::de::DeserializeOwned>(params: Value) -> Result<T, AcpError> {
    serde_json::from_value(params)
        .map_err(|error| AcpError::invalid_params(format!("the params are wrong: {error}")))
}
