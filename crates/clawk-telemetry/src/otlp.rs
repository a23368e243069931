//! OTLP over HTTP with protobuf. The messages are few and fixed, so this module writes their bytes itself (ADR 0155).

use crate::item::{AttributeValue, TelemetryRecord};
use crate::line::in_units;
use crate::meter::MetricPoint;
use crate::sink::TelemetryResource;

/// A writer for one protobuf message.
#[derive(Debug, Default)]
struct ProtobufWriter(Vec<u8>);

impl ProtobufWriter {
    fn write_varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0
                .push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
            number >>= 7;
        }
        self.0.push(u8::try_from(number).unwrap_or_default());
    }

    fn write_key(&mut self, field: u64, wire: u64) {
        self.write_varint((field << 3) | wire);
    }

    fn write_number(&mut self, field: u64, number: u64) {
        self.write_key(field, 0);
        self.write_varint(number);
    }

    fn write_fixed(&mut self, field: u64, number: u64) {
        self.write_key(field, 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn write_double(&mut self, field: u64, number: f64) {
        self.write_fixed(field, number.to_bits());
    }

    fn write_bytes(&mut self, field: u64, bytes: &[u8]) {
        self.write_key(field, 2);
        self.write_varint(u64::try_from(bytes.len()).unwrap_or_default());
        self.0.extend_from_slice(bytes);
    }

    fn write_message(&mut self, field: u64, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.write_bytes(field, &inner.0);
    }

    fn write_attribute(&mut self, field: u64, name: &str, write: impl FnOnce(&mut Self)) {
        self.write_message(field, |pair| {
            pair.write_bytes(1, name.as_bytes());
            pair.write_message(2, write);
        });
    }

    fn write_text(&mut self, field: u64, name: &str, text: &str) {
        self.write_attribute(field, name, |value| value.write_bytes(1, text.as_bytes()));
    }
}

fn to_nanos(at_us: i64) -> u64 {
    u64::try_from(at_us).unwrap_or_default().saturating_mul(1000)
}

fn write_resource(message: &mut ProtobufWriter, resource: &TelemetryResource) {
    message.write_message(1, |it| {
        it.write_text(1, "service.name", "clawk");
        it.write_text(1, "service.version", env!("CARGO_PKG_VERSION"));
        it.write_text(1, "gen_ai.agent.name", resource.agent.as_str());
    });
}

fn write_scope(message: &mut ProtobufWriter) {
    message.write_message(1, |it| {
        it.write_bytes(1, b"clawk.telemetry");
        it.write_bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
    });
}

/// Writes an `ExportTraceServiceRequest`.
pub(crate) fn encode_traces(items: &[TelemetryRecord], of: &TelemetryResource) -> Vec<u8> {
    let mut request = ProtobufWriter::default();
    request.write_message(1, |all| {
        write_resource(all, of);
        all.write_message(2, |scoped| {
            write_scope(scoped);
            for item in items {
                scoped.write_message(2, |it| write_span(it, item));
            }
        });
    });
    request.0
}

fn write_span(it: &mut ProtobufWriter, item: &TelemetryRecord) {
    it.write_bytes(1, &item.trace);
    it.write_bytes(2, &item.span);
    if let Some(parent) = &item.parent {
        it.write_bytes(4, parent);
    }
    it.write_bytes(5, item.name.as_bytes());
    it.write_number(6, if item.is_client { 3 } else { 1 });
    it.write_fixed(7, to_nanos(item.start_us));
    it.write_fixed(8, to_nanos(item.end_us));
    it.write_text(9, "clawk.category", item.category.name());
    for (name, val) in &item.attributes {
        it.write_attribute(9, name, |value| match val {
            AttributeValue::Int(number) => value.write_number(3, *number),
            AttributeValue::Flag(flag) => value.write_number(2, u64::from(*flag)),
            other => value.write_bytes(1, other.text().unwrap_or_default().as_bytes()),
        });
    }
    it.write_message(15, |status| match &item.fault {
        Some(fault) => {
            status.write_bytes(2, fault.as_str().as_bytes());
            status.write_number(3, 2);
        }
        None => status.write_number(3, 1),
    });
}

/// Writes an `ExportMetricsServiceRequest` with cumulative values since `since_us`.
pub(crate) fn encode_metrics(
    points: &[MetricPoint],
    (since_us, now_us): (i64, i64),
    of: &TelemetryResource,
) -> Vec<u8> {
    let mut request = ProtobufWriter::default();
    request.write_message(1, |all| {
        write_resource(all, of);
        all.write_message(2, |scoped| {
            write_scope(scoped);
            for same in points.chunk_by(|one, next| one.metric == next.metric) {
                scoped.write_message(2, |it| write_metric(it, same, (since_us, now_us)));
            }
        });
    });
    request.0
}

/// OTLP's number for cumulative values.
const TEMPORALITY: u64 = 2;

fn write_metric(it: &mut ProtobufWriter, points: &[MetricPoint], times: (i64, i64)) {
    let Some(metric) = points.first().map(|point| point.metric) else {
        return;
    };
    it.write_bytes(1, metric.name().as_bytes());
    it.write_bytes(3, metric.unit().as_bytes());
    let is_counter = metric.bounds().is_empty();
    it.write_message(if is_counter { 7 } else { 9 }, |data| {
        for point in points {
            data.write_message(1, |one| match is_counter {
                true => write_sum(one, point, times),
                false => write_histogram(one, point, times),
            });
        }
        data.write_number(2, TEMPORALITY);
        if is_counter {
            data.write_number(3, 1);
        }
    });
}

fn write_sum(it: &mut ProtobufWriter, point: &MetricPoint, (since_us, now_us): (i64, i64)) {
    it.write_fixed(2, to_nanos(since_us));
    it.write_fixed(3, to_nanos(now_us));
    it.write_double(4, in_units(point.metric, point.series.sum));
    for (name, label) in &point.labels {
        it.write_text(7, name, label.as_str());
    }
}

fn write_histogram(it: &mut ProtobufWriter, point: &MetricPoint, (since_us, now_us): (i64, i64)) {
    it.write_fixed(2, to_nanos(since_us));
    it.write_fixed(3, to_nanos(now_us));
    it.write_fixed(4, point.series.count);
    it.write_double(5, in_units(point.metric, point.series.sum));
    let counts: Vec<u8> = point
        .series
        .buckets
        .iter()
        .flat_map(|count| count.to_le_bytes())
        .collect();
    it.write_bytes(6, &counts);
    let bounds = point
        .metric
        .bounds()
        .iter()
        .map(|bound| in_units(point.metric, *bound));
    let bounds: Vec<u8> = bounds.flat_map(|bound| bound.to_bits().to_le_bytes()).collect();
    it.write_bytes(7, &bounds);
    for (name, label) in &point.labels {
        it.write_text(9, name, label.as_str());
    }
}
