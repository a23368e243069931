//! The data of one call for executors, and helpers that build replies.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::place::ExcludedPaths;
use clawk_kernel::ports::{ConnectionCollector, RunError, RunOutcome};
use clawk_kernel::witness::FileMark;
use clawk_plan::{ObtainedEnforcement, Plan};
use clawk_proto::content::ContentBlock;
use clawk_sandbox::{LaunchOutcome, LimitHit};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

/// The part of a permit that an executor gets. [`crate::Runner`] and this crate's tests build it.
#[derive(Debug, Clone)]
pub(crate) struct ExecutorCall<'a> {
    pub(crate) arguments: &'a Map<String, Value>,
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) workdir: &'a Path,
    pub(crate) timeout_ms: u64,
    /// The call's id.
    pub(crate) request_id: &'a str,
    /// The header with the call's idempotency key, if its tool has one.
    pub(crate) key: Option<(http::HeaderName, String)>,
    /// The state of the files that were shown to a person.
    pub(crate) marks: &'a [FileMark],
    /// Paths that the call must exclude.
    pub(crate) apart: &'a ExcludedPaths,
    /// The tool's name.
    pub(crate) tool: &'a str,
    /// Collects the call's connections.
    pub(crate) connections: ConnectionCollector,
    /// Cancelled if nobody waits for the call any more: also by a timeout, and if the call is dropped.
    pub(crate) stop: CancellationToken,
}

impl ExecutorCall<'_> {
    /// Parses the arguments into a type. They were checked against the manifest's schema, which may differ from the built-in's
    /// schema.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, RunOutcome> {
        T::deserialize(Value::Object(self.arguments.clone()))
            .map_err(|error| failure_outcome(format!("bad arguments: {error}")))
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// The outcome of a tool that succeeded.
pub(crate) fn success_outcome(text: impl Into<String>, structured: Value) -> RunOutcome {
    RunOutcome {
        content: vec![ContentBlock::text(text)],
        is_error: false,
        structured: Some(structured),
        obtained: ObtainedEnforcement::in_process("no-host-access"),
    }
}

/// The outcome of a tool that ran and failed (R20).
pub(crate) fn failure_outcome(text: impl Into<String>) -> RunOutcome {
    RunOutcome {
        content: vec![ContentBlock::text(text)],
        is_error: true,
        structured: None,
        obtained: ObtainedEnforcement::in_process("no-host-access"),
    }
}

/// R20a: facts about a process, in addition to its output.
pub(crate) fn process_facts(outcome: &LaunchOutcome) -> Value {
    let mut facts = json!({
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "truncated": outcome.truncated,
        "duration_ms": outcome.duration_ms,
        "level": outcome.obtained.level,
    });
    if let (Some(limit), Value::Object(map)) = (&outcome.limit, &mut facts) {
        map.insert("limit".to_owned(), Value::String(limit.to_string()));
    }
    facts
}

/// Returns an error for a run that the time limit ended (-32014, R36). Every other limit is a normal result.
pub(crate) fn in_time(outcome: LaunchOutcome) -> Result<LaunchOutcome, RunError> {
    match outcome.limit {
        Some(LimitHit::Time(timeout_ms)) => Err(RunError::Timeout {
            timeout_ms,
            obtained: outcome.obtained,
        }),
        Some(
            LimitHit::Memory(_)
            | LimitHit::Processes(_)
            | LimitHit::Output(_)
            | LimitHit::Disk(_)
            | LimitHit::Files(_),
        )
        | None => Ok(outcome),
    }
}

/// The longest prefix of `text` with at most `bytes` bytes, and whether anything was cut.
pub(crate) fn truncate_text(text: &str, bytes: usize) -> (&str, bool) {
    let end = text.floor_char_boundary(bytes.min(text.len()));
    (text.get(..end).unwrap_or_default(), end < text.len())
}

/// The text of an I/O error without the system's error number.
pub(crate) fn plain_error_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_lowercase(),
        None => text,
    }
}
