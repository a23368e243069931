//! OTLP over HTTP with protobuf. The messages are few and fixed, so this module writes their bytes itself (ADR 0155).

use crate::item::{AttributeValue, TelemetryRecord};
use crate::line::units;
use crate::meter::MetricPoint;
use crate::sink::TelemetryResource;

/// A writer for one protobuf message.
#[derive(Debug, Default)]
struct ProtobufWriter(Vec<u8>);

impl ProtobufWriter {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0
                .push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
            number >>= 7;
        }
        self.0.push(u8::try_from(number).unwrap_or_default());
    }

    fn key(&mut self, field: u64, wire: u64) {
        self.varint((field << 3) | wire);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.key(field, 0);
        self.varint(number);
    }

    fn fixed(&mut self, field: u64, number: u64) {
        self.key(field, 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn double(&mut self, field: u64, number: f64) {
        self.fixed(field, number.to_bits());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(u64::try_from(bytes.len()).unwrap_or_default());
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn attribute(&mut self, field: u64, name: &str, write: impl FnOnce(&mut Self)) {
        self.message(field, |pair| {
            pair.bytes(1, name.as_bytes());
            pair.message(2, write);
        });
    }

    fn text(&mut self, field: u64, name: &str, text: &str) {
        self.attribute(field, name, |value| value.bytes(1, text.as_bytes()));
    }
}

fn nanos(at_us: i64) -> u64 {
    u64::try_from(at_us).unwrap_or_default().saturating_mul(1000)
}

fn resource(message: &mut ProtobufWriter, resource: &TelemetryResource) {
    message.message(1, |it| {
        it.text(1, "service.name", "clawk");
        it.text(1, "service.version", env!("CARGO_PKG_VERSION"));
        it.text(1, "gen_ai.agent.name", resource.agent.as_str());
    });
}

fn scope(message: &mut ProtobufWriter) {
    message.message(1, |it| {
        it.bytes(1, b"clawk.telemetry");
        it.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
    });
}

/// Writes an `ExportTraceServiceRequest`.
pub(crate) fn traces(items: &[TelemetryRecord], of: &TelemetryResource) -> Vec<u8> {
    let mut request = ProtobufWriter::default();
    request.message(1, |all| {
        resource(all, of);
        all.message(2, |scoped| {
            scope(scoped);
            for item in items {
                scoped.message(2, |it| span(it, item));
            }
        });
    });
    request.0
}

fn span(it: &mut ProtobufWriter, item: &TelemetryRecord) {
    it.bytes(1, &item.trace);
    it.bytes(2, &item.span);
    if let Some(parent) = &item.parent {
        it.bytes(4, parent);
    }
    it.bytes(5, item.name.as_bytes());
    it.number(6, if item.is_client { 3 } else { 1 });
    it.fixed(7, nanos(item.start_us));
    it.fixed(8, nanos(item.end_us));
    it.text(9, "clawk.category", item.category.name());
    for (name, val) in &item.attributes {
        it.attribute(9, name, |value| match val {
            AttributeValue::Int(number) => value.number(3, *number),
            AttributeValue::Flag(flag) => value.number(2, u64::from(*flag)),
            other => value.bytes(1, other.text().unwrap_or_default().as_bytes()),
        });
    }
    it.message(15, |status| match &item.fault {
        Some(fault) => {
            status.bytes(2, fault.as_str().as_bytes());
            status.number(3, 2);
        }
        None => status.number(3, 1),
    });
}

/// Writes an `ExportMetricsServiceRequest` with cumulative values since `since_us`.
pub(crate) fn metrics(
    points: &[MetricPoint],
    (since_us, now_us): (i64, i64),
    of: &TelemetryResource,
) -> Vec<u8> {
    let mut request = ProtobufWriter::default();
    request.message(1, |all| {
        resource(all, of);
        all.message(2, |scoped| {
            scope(scoped);
            for same in points.chunk_by(|one, next| one.metric == next.metric) {
                scoped.message(2, |it| metric(it, same, (since_us, now_us)));
            }
        });
    });
    request.0
}

/// OTLP's number for cumulative values.
const TEMPORALITY: u64 = 2;

fn metric(it: &mut ProtobufWriter, points: &[MetricPoint], times: (i64, i64)) {
    let Some(metric) = points.first().map(|point| point.metric) else {
        return;
    };
    it.bytes(1, metric.name().as_bytes());
    it.bytes(3, metric.unit().as_bytes());
    let is_counter = metric.bounds().is_empty();
    it.message(if is_counter { 7 } else { 9 }, |data| {
        for point in points {
            data.message(1, |one| match is_counter {
                true => sum(one, point, times),
                false => histogram(one, point, times),
            });
        }
        data.number(2, TEMPORALITY);
        if is_counter {
            data.number(3, 1);
        }
    });
}

fn sum(it: &mut ProtobufWriter, point: &MetricPoint, (since_us, now_us): (i64, i64)) {
    it.fixed(2, nanos(since_us));
    it.fixed(3, nanos(now_us));
    it.double(4, units(point.metric, point.series.sum));
    for (name, label) in &point.labels {
        it.text(7, name, label.as_str());
    }
}

fn histogram(it: &mut ProtobufWriter, point: &MetricPoint, (since_us, now_us): (i64, i64)) {
    it.fixed(2, nanos(since_us));
    it.fixed(3, nanos(now_us));
    it.fixed(4, point.series.count);
    it.double(5, units(point.metric, point.series.sum));
    let counts: Vec<u8> = point
        .series
        .buckets
        .iter()
        .flat_map(|count| count.to_le_bytes())
        .collect();
    it.bytes(6, &counts);
    let bounds = point
        .metric
        .bounds()
        .iter()
        .map(|bound| units(point.metric, *bound));
    let bounds: Vec<u8> = bounds.flat_map(|bound| bound.to_bits().to_le_bytes()).collect();
    it.bytes(7, &bounds);
    for (name, label) in &point.labels {
        it.text(9, name, label.as_str());
    }
}
