//! Records and metrics as JSON Lines, for files, databases, webhooks and the console.

use serde_json::{Map, Value, json};

use crate::item::{AttributeValue, TelemetryRecord, to_hex};
use crate::meter::{Metric, MetricPoint};
use crate::sink::TelemetryResource;

/// The first bytes of every line. A file that begins with other bytes was not written by an exporter.
pub(crate) const PREFIX: &str = "{\"clawk_telemetry\":1,";

fn json_value(val: &AttributeValue) -> Value {
    match val {
        AttributeValue::Int(number) => json!(number),
        AttributeValue::Flag(flag) => json!(flag),
        other => json!(other.text()),
    }
}

fn format_time(at_us: i64) -> Option<String> {
    // silent-ok: a time outside the calendar's range is left out
    jiff::Timestamp::from_microsecond(at_us)
        .ok()
        .map(|at| at.to_string())
}

/// Writes one record as a JSON line, without the line break.
pub(crate) fn of_item(item: &TelemetryRecord, resource: &TelemetryResource) -> String {
    let attributes: Map<String, Value> = item
        .attributes
        .iter()
        .map(|(name, val)| ((*name).to_owned(), json_value(val)))
        .collect();
    let record = json!({
        "agent": resource.agent.as_str(),
        "attributes": attributes,
        "category": item.category.name(),
        "duration_us": item.end_us.saturating_sub(item.start_us),
        "end": format_time(item.end_us),
        "name": item.name,
        "parent_span_id": item.parent.map(|parent| to_hex(&parent)),
        "sequence": item.sequence,
        "session": item.session,
        "span_id": to_hex(&item.span),
        "start": format_time(item.start_us),
        "status": if item.fault.is_some() { "error" } else { "ok" },
        "trace_id": to_hex(&item.trace),
        "type": "event",
    });
    prefix_record(&record)
}

#[expect(clippy::cast_precision_loss, reason = "sums above 2^53 are rounded")]
pub(crate) fn in_units(metric: Metric, number: u64) -> f64 {
    number as f64 / metric.per_unit()
}

/// Writes one metric's values since `since_us` as a JSON line, without the line break.
pub(crate) fn of_point(
    point: &MetricPoint,
    (since_us, now_us): (i64, i64),
    resource: &TelemetryResource,
) -> String {
    let labels: Map<String, Value> = point
        .labels
        .iter()
        .map(|(name, label)| (name.clone(), json!(label)))
        .collect();
    let bounds: Vec<f64> = point
        .metric
        .bounds()
        .iter()
        .map(|bound| in_units(point.metric, *bound))
        .collect();
    let record = json!({
        "agent": resource.agent.as_str(),
        "at": format_time(now_us),
        "attributes": labels,
        "bounds": bounds,
        "buckets": point.series.buckets,
        "count": point.series.count,
        "name": point.metric.name(),
        "since": format_time(since_us),
        "sum": in_units(point.metric, point.series.sum),
        "type": "metric",
        "unit": point.metric.unit(),
    });
    prefix_record(&record)
}

fn prefix_record(record: &Value) -> String {
    let text = record.to_string();
    format!("{PREFIX}{}", text.strip_prefix('{').unwrap_or(&text))
}
