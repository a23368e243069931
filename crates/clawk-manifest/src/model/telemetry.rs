//! Telemetry (CKP §5.10 and 0.3.0): which data about the agent is exported, and where.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::channel::SecretAuth;
use super::closed::closed_set;

closed_set! {
    /// The kind of an exporter.
    pub enum ExporterType {
        Otlp = "otlp", File = "file", Sqlite = "sqlite", Webhook = "webhook", Console = "console",
    }
}

/// The Telemetry primitive: exported events and metrics, and their destinations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// Name; `telemetry` when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels, for filtering.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The destinations, at least one.
    pub exporters: Vec<Exporter>,
    /// The exported events.
    #[serde(default)]
    pub events: Events,
    /// The exported metrics.
    #[serde(default)]
    pub metrics: MetricSettings,
    /// The share of events that is exported.
    #[serde(default)]
    pub sampling: EventSampling,
    /// The parts that are removed from events.
    #[serde(default)]
    pub redaction: Redaction,
}

/// A destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exporter {
    /// The kind of exporter.
    #[serde(rename = "type")]
    pub kind: ExporterType,
    /// The endpoint; present for `otlp` and `webhook`.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The path; present for `file` and `sqlite`.
    #[serde(default)]
    pub path: Option<String>,
    /// Authentication at the endpoint.
    #[serde(default)]
    pub auth: Option<SecretAuth>,
    /// How events are batched.
    #[serde(default)]
    pub batch: Batch,
}

/// How events are batched; `None` means the runtime's own setting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Batch {
    /// The largest number of events per batch.
    pub max_size: Option<u64>,
    /// The longest wait before a batch is sent.
    pub flush_interval_ms: Option<u64>,
}

/// Which events are exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Tool calls; on by default.
    pub tool_calls: bool,
    /// Memory operations; off by default.
    pub memory_ops: bool,
    /// Swarm operations; off by default.
    pub swarm_ops: bool,
    /// Lifecycle changes; on by default.
    pub lifecycle: bool,
    /// Errors; on by default.
    pub errors: bool,
    /// World model operations; off by default (0.3.0).
    pub world_model_ops: bool,
    /// Planning operations; off by default (0.3.0).
    pub planning_ops: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            tool_calls: true,
            memory_ops: false,
            swarm_ops: false,
            lifecycle: true,
            errors: true,
            world_model_ops: false,
            planning_ops: false,
        }
    }
}

/// Which metrics are exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricSettings {
    /// Token usage; on by default.
    pub token_usage: bool,
    /// Cost in US dollars; off by default.
    pub cost_usd: bool,
    /// Latency histograms; on by default.
    pub latency_histogram: bool,
    /// The error of predictions; off by default (0.3.0).
    pub prediction_error: bool,
    /// The hit rate of memory searches; off by default (0.3.0).
    pub retrieval_hit_rate: bool,
    /// The number of revised plans; off by default (0.3.0).
    pub plan_revision_count: bool,
}

impl Default for MetricSettings {
    fn default() -> Self {
        Self {
            token_usage: true,
            cost_usd: false,
            latency_histogram: true,
            prediction_error: false,
            retrieval_hit_rate: false,
            plan_revision_count: false,
        }
    }
}

/// The share of events that is exported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventSampling {
    /// From 0 (none) to 1 (all); 1 by default.
    pub rate: f64,
}

impl Default for EventSampling {
    fn default() -> Self {
        Self { rate: 1.0 }
    }
}

/// The parts that are removed from events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Redaction {
    /// Replace arguments by `[REDACTED]`.
    pub strip_arguments: bool,
    /// Replace results by `[REDACTED]`.
    pub strip_results: bool,
}
