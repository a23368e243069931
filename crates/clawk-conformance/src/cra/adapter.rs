//! A target on standard streams that speaks JSON-RPC 2.0 (`vectors/cra/README.md`).

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use crate::connection::{AgentConnection, ReceiveFailure};

/// Time limit for one answer.
const DEADLINE: Duration = Duration::from_secs(30);
const METHOD_NOT_FOUND: i64 = -32601;

/// A running adapter. It ends when this value is dropped.
pub(super) struct CraAdapter {
    line: Mutex<AdapterConnection>,
}

struct AdapterConnection {
    connection: AgentConnection,
    asked: u64,
}

impl CraAdapter {
    pub(super) fn start(command: Command) -> Result<Self> {
        Ok(Self {
            line: Mutex::new(AdapterConnection {
                connection: AgentConnection::start(command)?,
                asked: 0,
            }),
        })
    }

    /// Sends one request; `None` if the adapter does not have the method.
    ///
    /// # Errors
    /// No answer arrives in time, the answer violates the protocol, or it is an error.
    pub(super) fn ask_method(&self, method: &str, params: &Value) -> Result<Option<Value>> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.asked += 1;
        let id = json!(line.asked);
        let question = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        line.connection.send_line(&question.to_string());
        let until = Instant::now() + DEADLINE;
        let answer = line
            .connection
            .wait_for_message(until, |answer| answer.get("id") == Some(&id))
            .map_err(|silence| match silence {
                ReceiveFailure::Deadline => {
                    anyhow!("no answer to `{method}` within {} s", DEADLINE.as_secs())
                }
                ReceiveFailure::Gone => anyhow!("the adapter ended at `{method}`"),
                ReceiveFailure::Noise(noise) => anyhow!("in answer to `{method}`: {noise}"),
            })?;
        if let Some(result) = answer.get("result") {
            return Ok(Some(result.clone()));
        }
        let error = answer.get("error").cloned().unwrap_or_default();
        if error.get("code").and_then(Value::as_i64) == Some(METHOD_NOT_FOUND) {
            return Ok(None);
        }
        bail!("`{method}` failed: {error}")
    }

    /// Sends a request whose method must exist, because a related one was answered.
    pub(super) fn require_answer(&self, method: &str, params: &Value) -> Result<Value> {
        self.ask_method(method, params)?
            .with_context(|| format!("the adapter has no `{method}`"))
    }
}
