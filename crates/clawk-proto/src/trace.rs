//! TRACE wire types (CRA). The hash rules R26 and R27 are in `clawk-trace`.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::id::{Digest, SessionId};

/// The `trace_version` that we write.
pub const TRACE_VERSION: &str = "1.0";

/// The largest event that we write, as a line of a `.trace.jsonl` file with its line break. Every verifier takes more.
pub const EVENT_MAX_BYTES: usize = 1024 * 1024;

/// The largest payload that we write: the other members of an event take less than 4 KiB.
pub const PAYLOAD_MAX_BYTES: usize = EVENT_MAX_BYTES - 4096;

/// One event as it stands in a `.trace.jsonl` file or an API answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TraceEvent {
    /// "1.0".
    pub trace_version: String,
    /// Its own id.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub event_id: Uuid,
    /// One per session.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub trace_id: Uuid,
    /// The span it belongs to.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub span_id: Uuid,
    /// Absent or null in the first event.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<uuid::Uuid>))]
    pub parent_span_id: Option<Uuid>,
    /// The chain it belongs to.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub session_id: SessionId,
    /// 0, 1, 2 … without gaps.
    pub sequence: u64,
    /// RFC 3339, hashed as written.
    pub timestamp: String,
    /// For example `action.executed` or `ckp.message.accepted` (R31).
    pub event_type: String,
    /// The facts.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub payload: Map<String, Value>,
    /// SHA-256 over R26's bytes.
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[0-9a-f]{64}$"))]
    pub event_hash: Digest,
    /// The hash of the event before; 64 zeros in the first.
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[0-9a-f]{64}$"))]
    pub previous_event_hash: Digest,
}

/// The same event with its payload as canonical text, as the journal keeps it.
#[derive(Debug, Clone, Serialize)]
pub struct SealedEvent {
    /// "1.0".
    pub trace_version: &'static str,
    /// Its own id.
    pub event_id: Uuid,
    /// One per session.
    pub trace_id: Uuid,
    /// The span it belongs to.
    pub span_id: Uuid,
    /// Absent in the first event.
    pub parent_span_id: Option<Uuid>,
    /// The chain it belongs to.
    pub session_id: SessionId,
    /// 0, 1, 2 … without gaps.
    pub sequence: u64,
    /// RFC 3339, UTC, microseconds, `Z`.
    pub timestamp: String,
    /// The type.
    pub event_type: String,
    /// Canonical JSON (JCS).
    pub payload: Box<RawValue>,
    /// Its hash.
    pub event_hash: Digest,
    /// The hash before.
    pub previous_event_hash: Digest,
}
