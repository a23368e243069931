//! Telemetry (CKP §5.10): events, spans and metrics without contents, and the places that they are sent to.
//!
//! * **Owns:** the content-free [`TelemetryFact`], what is made of facts ([`TelemetryRecord`], [`ExporterMetrics`]), and how it is sent ([`TelemetrySink`]).
//! * **Depends on:** proto, manifest, egress, secrets.
//! * **Must not know:** event payloads. Whoever makes a [`TelemetryFact`] has no field to put a prompt, an argument or a result into.
//! * **Start reading at:** [`TelemetryFact`], then [`TelemetryAssembler`].

mod assemble;
mod fact;
mod item;
mod line;
mod meter;
mod otlp;
mod sink;
#[cfg(test)]
mod tests;

pub use assemble::{TelemetryAssembler, TelemetrySelection};
pub use fact::{ErrorFact, InferenceFact, Label, TelemetryFact, TelemetryFactKind, ToolCallFact};
pub use item::{AttributeValue, EventCategory, TelemetryRecord};
pub use meter::{ExporterMetrics, Metric, MetricPoint, MetricSeries};
pub use sink::{Batch, DeliveryError, FileSink, HttpSink, SqliteSink, TelemetryResource, TelemetrySink};
