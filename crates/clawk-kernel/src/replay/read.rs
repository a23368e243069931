//! Reads one recorded event.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::tape::TapeError;
use crate::ports::RecordedEvent;

pub(super) fn parse_payload(event: &RecordedEvent) -> Map<String, Value> {
    // silent-ok: an event that can't be read keeps a tape from being made
    event.members_with_words().unwrap_or_default()
}

pub(super) fn text_field(payload: &Map<String, Value>, key: &str) -> Option<String> {
    payload.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// A list of texts; empty where there is none.
pub(super) fn strings_field<T: FromIterator<String>>(payload: &Map<String, Value>, key: &str) -> T {
    let all = payload.get(key).and_then(Value::as_array).into_iter().flatten();
    all.filter_map(Value::as_str).map(str::to_owned).collect()
}

pub(super) fn number_field(payload: &Map<String, Value>, key: &str) -> Option<u64> {
    payload.get(key).and_then(Value::as_u64)
}

pub(super) fn missing_content(event: &RecordedEvent) -> TapeError {
    TapeError::Content {
        sequence: event.sequence,
        event_type: event.kind.clone(),
    }
}

pub(super) fn event_content(event: &RecordedEvent) -> Result<&[u8], TapeError> {
    let content = event.content.as_ref().ok_or_else(|| missing_content(event))?;
    Ok(&content.bytes)
}

pub(super) fn read<T: DeserializeOwned>(event: &RecordedEvent) -> Result<T, TapeError> {
    serde_json::from_slice(event_content(event)?).map_err(|_| missing_content(event)) // silent-ok: not what was written
}
