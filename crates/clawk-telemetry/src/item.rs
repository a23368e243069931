//! What is sent: one record, which is a span as well.

use clawk_proto::Digest;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::fact::Label;

/// An event category of the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventCategory {
    /// Calls, with the turns and inferences that are their parents.
    ToolCalls,
    /// Stores.
    MemoryOps,
    /// Swarms.
    SwarmOps,
    /// States of the agent.
    Lifecycle,
    /// Errors.
    Errors,
    /// Skills and their plans.
    PlanningOps,
    /// World models.
    WorldModelOps,
}

impl EventCategory {
    /// Its word in the manifest.
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

/// An attribute's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// A name.
    Label(Label),
    /// A word of ours.
    Word(&'static str),
    /// A number.
    Int(u64),
    /// Yes or no.
    Flag(bool),
    /// An id.
    Id(Uuid),
    /// A digest of something that stays here.
    Digest(Digest),
    /// A digest that the manifest wants removed (`redaction`).
    Redacted,
}

impl AttributeValue {
    /// The text of what is not a number or a flag.
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

/// One record.
#[derive(Debug, Clone)]
pub struct TelemetryRecord {
    /// Its category.
    pub category: EventCategory,
    /// The span's name, by the GenAI conventions where they have one.
    pub name: String,
    /// The trace: a turn's, or a swarm task's.
    pub trace: [u8; 16],
    /// The span.
    pub span: [u8; 8],
    /// The span above it.
    pub parent: Option<[u8; 8]>,
    /// Microseconds since the epoch.
    pub start_us: i64,
    /// Microseconds since the epoch.
    pub end_us: i64,
    /// The session and the place in its chain of the event that ended it.
    pub session: Uuid,
    /// See `session`.
    pub sequence: u64,
    /// It leaves this process, such as a request to a model.
    pub is_client: bool,
    /// More facts.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// Why it failed.
    pub fault: Option<Label>,
}

/// A trace's id from an id of ours.
pub(crate) fn trace_of(id: Uuid) -> [u8; 16] {
    *id.as_bytes()
}

/// A span's id: what is hashed decides, so it is the same in every run and on every host.
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

/// The trace of a swarm task, from the digest of its id.
pub(crate) fn task_trace(task: &Digest) -> [u8; 16] {
    let mut trace = [0; 16];
    trace
        .iter_mut()
        .zip(task.0.iter())
        .for_each(|(to, from)| *to = *from);
    trace
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
