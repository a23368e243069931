//! clawk's own adapter: `clawk __cra` answers the test harness on standard streams, like any implementation's adapter.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use clawk_carp::message::{self, RequestShape};
use clawk_carp::{Atlas, AtlasSet, InputFaults, Options, replay};
use clawk_proto::SessionId;
use clawk_trace::canonical::payload_of;
use clawk_trace::chain::{self, EventPreimage};
use clawk_trace::{HashBuffer, diff_events, verify};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{event, session::text_member};

/// Answers until the input ends.
pub fn main() -> Result<ExitCode> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let question: Value = serde_json::from_str(&line?).context("a line that is not valid JSON")?;
        let id = question.get("id").cloned().unwrap_or_default();
        let method = text_member(&question, "method").unwrap_or_default();
        let params = question.get("params").cloned().unwrap_or_default();
        let answer = match answer_method(&method, &params) {
            Ok(Some(result)) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Ok(None) => {
                let error = json!({ "code": -32601, "message": format!("no method `{method}`") });
                json!({ "jsonrpc": "2.0", "id": id, "error": error })
            }
            Err(error) => {
                let error = json!({ "code": -32602, "message": format!("{error:#}") });
                json!({ "jsonrpc": "2.0", "id": id, "error": error })
            }
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn answer_method(method: &str, params: &Value) -> Result<Option<Value>> {
    let given = |name: &str| params.get(name).with_context(|| format!("`{name}` is missing"));
    Ok(Some(match method {
        "cra.about" => json!({ "implementation": "clawk", "version": env!("CARGO_PKG_VERSION") }),
        "cra.validate" => validate_input(
            &text_member(params, "schema").unwrap_or_default(),
            given("input")?,
        )?,
        "cra.hash" => json!({ "hash": hash(given("event")?)? }),
        "cra.verify" => {
            let report = verify(json_lines(given("events")?)?.as_bytes())?;
            serde_json::to_value(report)?
        }
        "cra.diff" => {
            let events = |name| Ok::<_, anyhow::Error>(given(name)?.as_array().context("a list")?.clone());
            serde_json::to_value(diff_events(&events("a")?, &events("b")?)?)?
        }
        "cra.replay" => replay_trace(given("atlases")?, given("trace")?)?,
        _ => return Ok(None),
    }))
}

fn validate_input(schema: &str, input: &Value) -> Result<Value> {
    let checked: Result<(), InputFaults> = match schema {
        "carp_request" => message::read(input, RequestShape::Schema).map(drop),
        "atlas_manifest" => Atlas::in_memory(&serde_json::to_vec(input)?, &BTreeMap::new()).map(drop),
        "trace_event" => {
            let errors = event::find_faults(input);
            return Ok(json!({ "valid": errors.is_empty(), "errors": errors }));
        }
        other => return Err(anyhow!("no schema `{other}`")),
    };
    Ok(match checked {
        Ok(()) => json!({ "valid": true, "errors": [] }),
        Err(faults) => json!({ "valid": false, "errors": faults.errors }),
    })
}

/// Returns the digest of an event (R26). Ignores its `event_hash`.
pub(super) fn hash(event: &Value) -> Result<String> {
    let member = |name: &str| text_member(event, name).with_context(|| format!("`{name}` is missing"));
    let payload = payload_of(event.get("payload").context("`payload` is missing")?)?;
    let (version, event_id, trace_id) = (member("trace_version")?, member("event_id")?, member("trace_id")?);
    let (span_id, session_id, timestamp) = (member("span_id")?, member("session_id")?, member("timestamp")?);
    let (event_type, previous) = (member("event_type")?, member("previous_event_hash")?);
    let parts = EventPreimage {
        version: &version,
        event_id: &event_id,
        trace_id: &trace_id,
        span_id: &span_id,
        parent_span_id: event
            .get("parent_span_id")
            .and_then(Value::as_str)
            .unwrap_or_default(),
        session_id: &session_id,
        sequence: event
            .get("sequence")
            .and_then(Value::as_u64)
            .context("`sequence` is missing")?,
        timestamp: &timestamp,
        event_type: &event_type,
        payload: payload.get(),
        previous: &previous,
    };
    Ok(chain::hash(&parts, &mut HashBuffer::default()).to_hex())
}

/// Returns events as JSON Lines.
pub(super) fn json_lines(events: &Value) -> Result<String> {
    let mut text = String::new();
    for event in events.as_array().context("a list of events")? {
        text.push_str(&event.to_string());
        text.push('\n');
    }
    Ok(text)
}

fn load_atlases(packages: &Value) -> Result<Vec<Arc<Atlas>>> {
    let packages = packages.as_array().context("`atlases` is a list")?;
    packages
        .iter()
        .map(|package| {
            let manifest = package.get("manifest").context("`manifest` is missing")?;
            let files = package.get("files").cloned().unwrap_or_else(|| json!({}));
            let files: BTreeMap<String, String> = serde_json::from_value(files)?;
            Ok(Arc::new(Atlas::in_memory(
                &serde_json::to_vec(manifest)?,
                &files,
            )?))
        })
        .collect()
}

/// Replays the recorded resolutions and executions under the Atlases.
fn replay_trace(packages: &Value, trace: &Value) -> Result<Value> {
    let set = AtlasSet::compile(load_atlases(packages)?, Options::default())?;
    let events = trace.as_array().context("`trace` is a list")?;
    let events = events
        .iter()
        .map(|event| {
            let id = |name: &str| text_member(event, name).and_then(|id| Uuid::try_parse(&id).ok()); // silent-ok: not given
            Ok(replay::Event {
                session: SessionId(id("session_id").unwrap_or_default()),
                span: id("span_id").unwrap_or_default(),
                event_type: event
                    .get("event_type")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
                at: text_member(event, "timestamp")
                    .context("an event without a time")?
                    .parse()?,
                payload: event
                    .get("payload")
                    .and_then(Value::as_object)
                    .context("an event without a payload")?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let replayed = replay::replay_events(&set, &events, None);
    Ok(json!({ "identical": replayed.is_identical(), "differences": replayed.drifts }))
}
