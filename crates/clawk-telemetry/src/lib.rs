//! Telemetry (CKP §5.10): events, spans and metrics without contents, and the destinations they are sent to.
//!
//! * **Owns:** the content-free [`TelemetryFact`], the records and metrics that are built from facts ([`TelemetryRecord`],
//!   [`ExporterMetrics`]), and their delivery ([`TelemetrySink`]).
//! * **Depends on:** proto, manifest, egress, secrets.
//! * **Must not know:** event payloads. A [`TelemetryFact`] has no field for a prompt, an argument or a result.
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
