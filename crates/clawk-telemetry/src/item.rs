//! The telemetry record: the unit that exporters send. Each record is also a span.

use clawk_proto::Digest;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::fact::Label;

/// An event category of the manifest's `telemetry` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventCategory {
    /// Tool calls, and the turns and model requests that are their parents.
    ToolCalls,
    /// Memory stores.
    MemoryOps,
    /// Swarm tasks.
    SwarmOps,
    /// Lifecycle states of the agent.
    Lifecycle,
    /// Errors.
    Errors,
    /// Skills and their plans.
    PlanningOps,
    /// World models.
    WorldModelOps,
}

impl EventCategory {
    /// Returns the category's word in the manifest.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToolCalls => "tool_calls",
            Self::MemoryOps => "memory_ops",
            Self::SwarmOps => "swarm_ops",
            Self::Lifecycle => "lifecycle",
            Self::Errors => "errors",
            Self::PlanningOps => "planning_ops",
            Self::WorldModelOps => "world_model_ops",
        }
    }
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// A name.
    Label(Label),
    /// A fixed word of clawk.
    Word(&'static str),
    /// A number.
    Int(u64),
    /// A boolean.
    Flag(bool),
    /// An id.
    Id(Uuid),
    /// The digest of a content that never leaves this machine.
    Digest(Digest),
    /// A digest that was removed because the manifest asks for it (`redaction`).
    Redacted,
}

impl AttributeValue {
    /// Returns the value as text. A number or a flag returns `None`.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Label(label) => Some(label.as_str().to_owned()),
            Self::Word(word) => Some((*word).to_owned()),
            Self::Id(id) => Some(id.to_string()),
            Self::Digest(digest) => Some(format!("sha256:{digest}")),
            Self::Redacted => Some("[REDACTED]".to_owned()),
            Self::Int(_) | Self::Flag(_) => None,
        }
    }
}

/// One telemetry record, which is also a span.
#[derive(Debug, Clone)]
pub struct TelemetryRecord {
    /// The record's event category.
    pub category: EventCategory,
    /// The span's name, by the OpenTelemetry GenAI conventions where they define one.
    pub name: String,
    /// The trace id: of a turn, or of a swarm task.
    pub trace: [u8; 16],
    /// The span id.
    pub span: [u8; 8],
    /// The id of the parent span.
    pub parent: Option<[u8; 8]>,
    /// Start, in microseconds since the epoch.
    pub start_us: i64,
    /// End, in microseconds since the epoch.
    pub end_us: i64,
    /// The session whose chain holds the event that ended the span.
    pub session: Uuid,
    /// The sequence number of that event.
    pub sequence: u64,
    /// The span is a call that leaves this process, for example a request to a model.
    pub is_client: bool,
    /// Further attributes: name and value.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// The kind of failure; `None`: success.
    pub fault: Option<Label>,
}

/// Returns the trace id for a turn's or session's id.
pub(crate) fn trace_of(id: Uuid) -> [u8; 16] {
    *id.as_bytes()
}

/// Returns a span id. It is derived from `what` and `id` by a hash, so it is the same in every run and on every host.
pub(crate) fn span_of(what: &str, id: &[u8]) -> [u8; 8] {
    let hash = Sha256::new()
        .chain_update(what)
        .chain_update([0])
        .chain_update(id)
        .finalize();
    let mut span = [0; 8];
    span.iter_mut()
        .zip(hash.iter())
        .for_each(|(to, from)| *to = *from);
    span
}

/// Returns the trace id of a swarm task, derived from the digest of the task's id.
pub(crate) fn task_trace(task: &Digest) -> [u8; 16] {
    let mut trace = [0; 16];
    trace
        .iter_mut()
        .zip(task.0.iter())
        .for_each(|(to, from)| *to = *from);
    trace
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
