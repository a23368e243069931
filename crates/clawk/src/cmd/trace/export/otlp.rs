//! Writes a trace as OTLP/HTTP JSON: sessions, turns, model requests and calls as spans, all other events as span events. It has no
//! contents, because events have none.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use clawk_egress::{ClientDeadlines, EgressClient, Request, Url};
use clawk_kernel::kind;
use clawk_proto::SessionId;
use clawk_proto::trace::TraceEvent;
use clawk_secrets::EnvironmentSource;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::cmd::trace::source::{SessionSelection, TraceSource};

/// Number of spans in one request to a collector.
const BATCH: usize = 512;
/// Largest number of spans in memory. A larger record must be exported session by session.
const MAX_SPANS: usize = 1_000_000;
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

/// Returns all spans of a record.
pub(super) fn collect_spans(source: &TraceSource, pick: SessionSelection) -> Result<Vec<Value>> {
    let mut open = OtlpOpenSpans::default();
    source.for_each_event(pick, |event| open.add_event(&event))?;
    Ok(open.order.into_iter().map(|span| span.into_json()).collect())
}

/// Returns one document for a collector's file receiver or endpoint.
pub(super) fn otlp_document(spans: &[Value]) -> Value {
    json!({ "resourceSpans": [{
        "resource": { "attributes": [attribute_json("service.name", &json!("clawk"))] },
        "scopeSpans": [{ "scope": { "name": "clawk.trace", "version": env!("CARGO_PKG_VERSION") }, "spans": spans }],
    }] })
}

/// Posts all spans to a collector's `/v1/traces`.
pub(super) async fn send_spans(spans: &[Value], endpoint: &str) -> Result<()> {
    let mut url: Url = endpoint
        .parse()
        .with_context(|| format!("`{endpoint}` is not a valid address"))?;
    if matches!(url.path(), "" | "/") {
        url.set_path("/v1/traces");
    }
    let client = EgressClient::for_provider(
        &url,
        &EnvironmentSource::Process,
        ClientDeadlines::default(),
        MAX_ANSWER_BYTES,
    )?;
    for batch in spans.chunks(BATCH) {
        let body = serde_json::to_vec(&otlp_document(batch))?;
        let response = client
            .send(Request::post(url.clone(), "application/json", body))
            .await?;
        let status = response.status();
        if !status.is_success() {
            let said = response.read_beginning(400).await;
            bail!(
                "the collector answered {status}: {}",
                crate::out::sanitize_block(&String::from_utf8_lossy(&said))
            );
        }
        let answer = response.bytes().await?;
        // A partial success counts as a failure.
        let rejected = serde_json::from_slice::<Value>(&answer)
            .ok() // silent-ok: collectors may answer nothing
            .and_then(|answer| answer.pointer("/partialSuccess/rejectedSpans").cloned())
            .filter(|rejected| !matches!(rejected.as_str(), Some("0" | "")) && rejected != &json!(0));
        if let Some(rejected) = rejected {
            bail!("the collector rejected {rejected} spans");
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Span {
    trace: Uuid,
    id: Uuid,
    parent: Option<Uuid>,
    name: String,
    start: i64,
    end: i64,
    attributes: Map<String, Value>,
    events: Vec<Value>,
    /// The reason why the span counts as failed.
    fault: Option<String>,
}

#[derive(Debug, Default)]
struct OtlpOpenSpans {
    order: Vec<Span>,
    places: HashMap<(SessionId, Uuid), usize>,
}

impl OtlpOpenSpans {
    fn add_event(&mut self, event: &TraceEvent) -> Result<()> {
        if self.order.len() >= MAX_SPANS {
            bail!("more than {MAX_SPANS} spans; export sessions one by one with `--session`");
        }
        let at = parse_nanoseconds(&event.timestamp)?;
        let key = (event.session_id, event.span_id);
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None => {
                self.places.insert(key, self.order.len());
                self.order.push(Span::from_event(event, at));
                self.order.len() - 1
            }
        };
        if let Some(span) = self.order.get_mut(place) {
            span.add_event(event, at);
        }
        if matches!(
            event.event_type.as_str(),
            kind::PROVIDER_COMPLETED | kind::PROVIDER_FAILED
        ) {
            self.order.push(Span::from_inference(event, at));
        }
        Ok(())
    }
}

impl Span {
    fn from_event(event: &TraceEvent, at: i64) -> Self {
        Self {
            trace: event.trace_id,
            id: event.span_id,
            parent: event.parent_span_id.filter(|parent| *parent != event.span_id),
            name: name_of(event),
            start: at,
            end: at,
            attributes: Map::from_iter([("session.id".to_owned(), json!(event.session_id))]),
            events: Vec::new(),
            fault: None,
        }
    }

    /// Makes the span of one attempt of a model request, below its turn.
    fn from_inference(event: &TraceEvent, at: i64) -> Self {
        let took = event
            .payload
            .get("duration_ms")
            .and_then(Value::as_i64)
            .unwrap_or(0);
        let member = |key: &str| event.payload.get(key).cloned().unwrap_or_default();
        let failed = event.event_type == kind::PROVIDER_FAILED;
        Self {
            trace: event.trace_id,
            id: event.event_id,
            parent: Some(event.span_id),
            name: format!("chat {}", member("provider").as_str().unwrap_or_default()),
            start: at.saturating_sub(took.saturating_mul(1_000_000)),
            end: at,
            attributes: Map::from_iter([
                ("gen_ai.operation.name".to_owned(), json!("chat")),
                ("gen_ai.provider.name".to_owned(), member("provider")),
                ("gen_ai.response.model".to_owned(), member("model")),
                ("gen_ai.usage.input_tokens".to_owned(), member("input_tokens")),
                ("gen_ai.usage.output_tokens".to_owned(), member("output_tokens")),
            ]),
            events: Vec::new(),
            fault: failed.then(|| member("reason").as_str().unwrap_or("failed").to_owned()),
        }
    }

    fn add_event(&mut self, event: &TraceEvent, at: i64) {
        self.end = self.end.max(at);
        let member = |key: &str| event.payload.get(key);
        let text = |key: &str| member(key).and_then(Value::as_str).map(str::to_owned);
        match event.event_type.as_str() {
            kind::ACTION_REQUESTED => {
                self.name = format!("execute_tool {}", text("action_id").unwrap_or_default());
                self.attributes
                    .insert("gen_ai.operation.name".to_owned(), json!("execute_tool"));
                self.attributes
                    .insert("gen_ai.tool.name".to_owned(), json!(text("action_id")));
            }
            kind::ACTION_DENIED => self.fault = text("reason"),
            kind::ACTION_FAILED => self.fault = text("error_message"),
            kind::MESSAGE_DEAD => self.fault = text("reason"),
            kind::ACTION_EXECUTED if member("is_error") == Some(&Value::Bool(true)) => {
                self.fault = Some("the tool failed".to_owned());
            }
            _ => {}
        }
        let mut attributes: Vec<Value> = vec![attribute_json("clawk.sequence", &json!(event.sequence))];
        attributes.push(attribute_json("clawk.event_hash", &json!(event.event_hash)));
        attributes.extend(
            event
                .payload
                .iter()
                .map(|(key, value)| attribute_json(&format!("clawk.{key}"), value)),
        );
        self.events.push(json!({
            "timeUnixNano": at.to_string(), "name": event.event_type, "attributes": attributes,
        }));
    }

    fn into_json(self) -> Value {
        let mut attributes: Vec<Value> = self
            .attributes
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| attribute_json(key, value))
            .collect();
        let status = match &self.fault {
            Some(fault) => json!({ "code": 2, "message": fault }),
            None => json!({ "code": 1 }),
        };
        if self.fault.is_some() {
            attributes.push(attribute_json("error.type", &json!("_OTHER")));
        }
        json!({
            "traceId": hex_tail(&self.trace, 16), "spanId": hex_tail(&self.id, 8),
            "parentSpanId": self.parent.map(|id| hex_tail(&id, 8)).unwrap_or_default(),
            "name": self.name, "kind": 1,
            "startTimeUnixNano": self.start.to_string(), "endTimeUnixNano": self.end.to_string(),
            "attributes": attributes, "events": self.events, "status": status,
        })
    }
}

fn name_of(event: &TraceEvent) -> String {
    match event.event_type.as_str() {
        kind::SESSION_STARTED => {
            let door = event
                .payload
                .get("door")
                .and_then(Value::as_str)
                .unwrap_or_default();
            format!("session {door}").trim_end().to_owned()
        }
        kind if kind.starts_with("ckp.provider.") || kind.starts_with("ckp.message.") => "turn".to_owned(),
        kind if kind.starts_with("carp.") => "resolve".to_owned(),
        kind => kind.to_owned(),
    }
}

/// Returns the last bytes of an id in hex. These are its random bytes; OTLP's span ids have eight.
fn hex_tail(id: &Uuid, bytes: usize) -> String {
    let text = id.as_simple().to_string();
    text.get(32 - bytes * 2..).unwrap_or_default().to_owned()
}

fn parse_nanoseconds(timestamp: &str) -> Result<i64> {
    let at: jiff::Timestamp = timestamp
        .parse()
        .with_context(|| format!("`{timestamp}` is not a valid time"))?;
    Ok(at.as_microsecond().saturating_mul(1000))
}

/// Returns an OTLP attribute. A nested value becomes JSON text.
fn attribute_json(key: &str, value: &Value) -> Value {
    let value = match value {
        Value::Bool(flag) => json!({ "boolValue": flag }),
        Value::Number(number) if number.is_i64() || number.is_u64() => {
            json!({ "intValue": number.to_string() })
        }
        Value::Number(number) => json!({ "doubleValue": number }),
        Value::String(text) => json!({ "stringValue": text }),
        Value::Null => json!({ "stringValue": "" }),
        nested => json!({ "stringValue": nested.to_string() }),
    };
    json!({ "key": key, "value": value })
}
