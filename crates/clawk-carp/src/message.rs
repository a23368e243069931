//! Reads CARP requests. All faults are reported at once, with pointers.

use clawk_proto::SessionId;
use clawk_proto::carp::{
    CARP_VERSION, CarpExecution, CarpOperation, CarpRequester, CarpTask, Request, RiskTier,
};
use jiff::Timestamp;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::fault::{FaultCollector, InputFaults, InputPath, LengthBounds};

/// The largest number of entries in a request's list.
const MAX_ENTRIES: usize = 1000;

/// Whether a request must have a `task`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestShape {
    /// Always, as in the JSON Schema.
    Schema,
    /// `execute` may omit it, as in the protocol text.
    Wire,
}

/// Reads a request from bytes. The caller limits their number.
///
/// # Errors
/// All faults with their pointers. The path of a missing field ends in its name (R30).
pub fn parse(bytes: &[u8], shape: RequestShape) -> Result<Request, InputFaults> {
    match crate::json::parse(bytes) {
        Ok(value) => read(&value, shape),
        Err(cause) => Err(InputFaults::single_fault(
            "",
            "json",
            format!("no readable JSON: {cause}"),
        )),
    }
}

/// Reads a request from a JSON value.
///
/// # Errors
/// The same errors as [`parse`].
pub fn read(value: &Value, shape: RequestShape) -> Result<Request, InputFaults> {
    let mut report = FaultCollector::default();
    let request = read_request(&mut report, value, shape);
    report.faults.into_result(request)
}

/// The difference between the request's timestamp and now, milliseconds, in either direction.
///
/// # Errors
/// The timestamp is not RFC 3339 with a zone.
pub fn skew_ms(request: &Request, now: Timestamp) -> Result<u64, InputFaults> {
    match parse_timestamp(&request.timestamp) {
        Some(at) => Ok(at.as_millisecond().abs_diff(now.as_millisecond())),
        None => Err(InputFaults::single_fault(
            "/timestamp",
            "timestamp",
            TIMESTAMP_WANTED.to_owned(),
        )),
    }
}

const TIMESTAMP_WANTED: &str = "expected RFC 3339 with a zone, such as `2024-12-28T12:00:00Z`";

fn parse_timestamp(text: &str) -> Option<Timestamp> {
    let shaped = text.len() >= 20 && text.as_bytes().get(10) == Some(&b'T') && !text.contains(['[', ' ']);
    // silent-ok: the caller says what is expected
    if shaped { text.parse().ok() } else { None }
}

fn read_request(report: &mut FaultCollector, value: &Value, shape: RequestShape) -> Option<Request> {
    let known = [
        "carp_version",
        "request_id",
        "timestamp",
        "operation",
        "requester",
        "task",
        "execution",
        "atlas_ids",
        "context",
    ];
    let at = InputPath::Root;
    let map = report.read_object(value, &at, &known)?;
    let version = report.required_text(map, &at, "carp_version", LengthBounds(1, 64));
    if let Some(version) = version.filter(|version| *version != CARP_VERSION) {
        report.add_fault(
            &at.key("carp_version"),
            "version",
            format!("`{version}` is not spoken here; `1.0` is"),
        );
    }
    let request_id = id(report, map, &at, "request_id");
    let time = report.required_text(map, &at, "timestamp", LengthBounds(1, 64));
    if time.is_some_and(|text| parse_timestamp(text).is_none()) {
        report.add_fault(&at.key("timestamp"), "timestamp", TIMESTAMP_WANTED);
    }
    let operations = [
        CarpOperation::Resolve,
        CarpOperation::Execute,
        CarpOperation::Validate,
    ]
    .map(|one| (one.name(), one));
    let operation = report.read_required(map, &at, "operation");
    let operation = operation.and_then(|value| report.read_word(value, &at.key("operation"), &operations));
    let requester = report.read_required(map, &at, "requester");
    let requester = requester.and_then(|value| requester_of(report, value, &at.key("requester")));
    let task = match map.get("task") {
        Some(value) => read_task(report, value, &at.key("task")),
        None if shape == RequestShape::Wire && operation == Some(CarpOperation::Execute) => None,
        None => {
            report.read_required(map, &at, "task");
            None
        }
    };
    let execution = match map.get("execution") {
        Some(value) => read_execution(report, value, &at.key("execution")),
        None if operation == Some(CarpOperation::Execute) => {
            report.read_required(map, &at, "execution");
            None
        }
        None => None,
    };
    let atlas_ids = atlas_ids(report, map, &at);
    let context = match map.get("context") {
        None => Some(Map::new()),
        Some(value) => report.read_map(value, &at.key("context")).cloned(),
    };
    Some(Request {
        carp_version: version?.to_owned(),
        request_id: request_id?,
        timestamp: time?.to_owned(),
        operation: operation?,
        requester: requester?,
        task,
        execution,
        atlas_ids,
        context: context?,
    })
}

fn atlas_ids(report: &mut FaultCollector, map: &Map<String, Value>, at: &InputPath<'_>) -> Vec<String> {
    let ids = report.read_texts(map, at, "atlas_ids", MAX_ENTRIES, LengthBounds(1, 255));
    let at = at.key("atlas_ids");
    for (index, id) in ids
        .iter()
        .enumerate()
        .filter(|(_, id)| !crate::atlas::is_atlas_id(id))
    {
        report.add_fault(
            &at.index(index),
            "pattern",
            format!("`{id}` is not a valid Atlas id"),
        );
    }
    ids
}

fn read_uuid(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>) -> Option<Uuid> {
    let text = report.read_text(value, at, LengthBounds(0, 255))?;
    // Only the hyphenated form is accepted, because the text may become part of a hash.
    let id = Uuid::try_parse(text).ok().filter(|_| text.len() == 36); // silent-ok: the fault says what is wanted
    if id.is_none() {
        report.add_fault(at, "uuid", "expected a UUID");
    }
    id
}

fn id(report: &mut FaultCollector, map: &Map<String, Value>, at: &InputPath<'_>, key: &str) -> Option<Uuid> {
    let value = report.read_required(map, at, key)?;
    read_uuid(report, value, &at.key(key))
}

fn requester_of(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>) -> Option<CarpRequester> {
    let map = report.read_object(value, at, &["agent_id", "session_id", "parent_session_id"])?;
    let agent_id = report.required_text(map, at, "agent_id", LengthBounds(1, 255));
    let session_id = id(report, map, at, "session_id");
    let parent = match map.get("parent_session_id") {
        None | Some(Value::Null) => None,
        Some(value) => read_uuid(report, value, &at.key("parent_session_id")),
    };
    Some(CarpRequester {
        agent_id: agent_id?.to_owned(),
        session_id: SessionId(session_id?),
        parent_session_id: parent.map(SessionId),
    })
}

fn read_task(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>) -> Option<CarpTask> {
    let map = report.read_object(
        value,
        at,
        &["goal", "risk_tier", "context_hints", "required_capabilities"],
    )?;
    let goal = report.required_text(map, at, "goal", LengthBounds(1, 10_000));
    let tiers = RiskTier::ALL.map(|tier| (tier.name(), tier));
    let risk_tier = match map.get("risk_tier") {
        None => Some(RiskTier::Low),
        Some(value) => report.read_word(value, &at.key("risk_tier"), &tiers),
    };
    let context_hints = report.read_texts(map, at, "context_hints", MAX_ENTRIES, LengthBounds(0, 1000));
    let required_capabilities = report.read_texts(
        map,
        at,
        "required_capabilities",
        MAX_ENTRIES,
        LengthBounds(1, 255),
    );
    Some(CarpTask {
        goal: goal?.to_owned(),
        risk_tier: risk_tier?,
        context_hints,
        required_capabilities,
    })
}

fn read_execution(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>) -> Option<CarpExecution> {
    let map = report.read_object(
        value,
        at,
        &["resolution_id", "action_id", "parameters", "idempotency_key"],
    )?;
    let resolution_id = id(report, map, at, "resolution_id");
    let action_id = report.required_text(map, at, "action_id", LengthBounds(1, 255));
    let parameters = match map.get("parameters") {
        None => Some(Map::new()),
        Some(value) => report.read_map(value, &at.key("parameters")).cloned(),
    };
    let idempotency_key = match map.get("idempotency_key") {
        None | Some(Value::Null) => None,
        Some(value) => report
            .read_text(value, &at.key("idempotency_key"), LengthBounds(1, 255))
            .map(str::to_owned),
    };
    Some(CarpExecution {
        resolution_id: resolution_id?,
        action_id: action_id?.to_owned(),
        parameters: parameters?,
        idempotency_key,
    })
}
