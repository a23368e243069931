//! A target on standard streams, spoken to in JSON-RPC 2.0 (`vectors/cra/README.md`).

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use crate::connection::{AgentConnection, ReceiveFailure};

/// How long one answer may take.
const DEADLINE: Duration = Duration::from_secs(30);
const METHOD_NOT_FOUND: i64 = -32601;

/// A running adapter. Dropping it ends it.
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

    /// One question; `None` where the adapter has no such method.
    ///
    /// # Errors
    /// No answer in time, none in the protocol, or an error.
    pub(super) fn ask(&self, method: &str, params: &Value) -> Result<Option<Value>> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.asked += 1;
        let id = json!(line.asked);
        let question = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        line.connection.send(&question.to_string());
        let until = Instant::now() + DEADLINE;
        let answer = line
            .connection
            .wait(until, |answer| answer.get("id") == Some(&id))
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

    /// A question that belongs to one that was answered.
    pub(super) fn must(&self, method: &str, params: &Value) -> Result<Value> {
        self.ask(method, params)?
            .with_context(|| format!("the adapter has no `{method}`"))
    }
}
