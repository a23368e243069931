//! The client side of the control socket.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clawk_proto::RpcError;
use clawk_proto::rpc::request_text;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::{SOCKET, address};
use crate::transport::frames::{InputLine, LineSplitter};

/// The longest answer, bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// How long to wait for the agent's answer. An approval may wait until its call asks (R18).
const ANSWER: Duration = Duration::from_secs(60);

/// Why a request to a running agent failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No process listens on the socket.
    #[error("no agent is running with the state directory `{}`", .state.display())]
    NotRunning {
        /// The state directory.
        state: PathBuf,
    },
    /// The socket exists but can't be used.
    #[error("the running agent can't be reached: {0}")]
    Io(#[from] io::Error),
    /// The agent accepted the connection but did not answer within this time.
    #[error("the running agent did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The agent answered with an error.
    #[error("{}", .0.message)]
    Refused(RpcError),
    /// The agent's answer is not valid.
    #[error("the running agent sent an answer that can't be read: {0}")]
    Malformed(String),
}

/// A connection to the running agent.
#[derive(Debug)]
pub struct ControlClient {
    frames: LineSplitter<tokio::net::unix::OwnedReadHalf>,
    writer: tokio::net::unix::OwnedWriteHalf,
    next_id: u64,
}

#[derive(Deserialize)]
struct ControlMessage {
    #[serde(default)]
    id: Value,
    /// The method, if the line is a notification.
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Option<Value>,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<RpcError>,
}

impl ControlClient {
    /// Connects to the agent that runs with this state directory.
    ///
    /// # Errors
    /// No agent runs, or its socket can't be used.
    pub async fn connect(state_dir: &Path) -> Result<Self, ControlError> {
        let not_running = || ControlError::NotRunning {
            state: state_dir.to_owned(),
        };
        let dir = match File::open(state_dir) {
            Ok(dir) => dir,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(not_running()),
            Err(e) => return Err(e.into()),
        };
        match UnixStream::connect(address(&dir, &state_dir.join(SOCKET))).await {
            Ok(stream) => {
                let (reader, writer) = stream.into_split();
                Ok(Self {
                    frames: LineSplitter::new(reader, MAX_ANSWER_BYTES),
                    writer,
                    next_id: 1,
                })
            }
            // A killed process leaves a socket file without a listener.
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Err(not_running())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Sends a request that may take long, such as `claw.message.send`. Calls `hear` for each notification before the answer.
    ///
    /// # Errors
    /// The agent refused, disconnected, or did not answer within `patience`.
    pub async fn call_with_notices(
        &mut self,
        method: &str,
        params: &Value,
        patience: Duration,
        mut hear: impl FnMut(&str, &Value),
    ) -> Result<Value, ControlError> {
        let id = self.send_request(method, params).await?;
        match tokio::time::timeout(patience, self.read_answer(id, &mut hear)).await {
            Ok(answer) => answer,
            Err(_) => Err(ControlError::Silent(patience)), // silent-ok: the deadline is the whole cause
        }
    }

    async fn send_request(&mut self, method: &str, params: &Value) -> io::Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        let mut line = request_text(id, method, params);
        line.push('\n');
        self.writer.write_all(line.as_bytes()).await?;
        Ok(id)
    }

    /// Sends one request and waits for the answer.
    ///
    /// # Errors
    /// The agent refused, disconnected, or did not answer in time.
    pub async fn call_method(&mut self, method: &str, params: &Value) -> Result<Value, ControlError> {
        self.call_with_notices(method, params, ANSWER, |_, _| ()).await
    }

    async fn read_answer(
        &mut self,
        id: u64,
        hear: &mut impl FnMut(&str, &Value),
    ) -> Result<Value, ControlError> {
        loop {
            if let Some(line) = self.frames.next_buffered() {
                let InputLine::Whole(line) = line else {
                    return Err(ControlError::Malformed("it is too long".into()));
                };
                let answer: ControlMessage =
                    serde_json::from_slice(line).map_err(|e| ControlError::Malformed(e.to_string()))?;
                if let (Some(method), Some(params)) = (&answer.method, &answer.params) {
                    hear(method, params);
                }
                if answer.id != id {
                    continue;
                }
                return match (answer.result, answer.error) {
                    (_, Some(error)) => Err(ControlError::Refused(error)),
                    (Some(result), None) => Ok(result),
                    (None, None) => Err(ControlError::Malformed(
                        "it holds neither result nor error".into(),
                    )),
                };
            }
            if self.frames.is_spent() {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended the connection").into());
            }
            self.frames.fill().await?;
        }
    }
}
