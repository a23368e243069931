//! Telemetry (CKP §5.10 and 0.3.0): what is told about the agent, and where.

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
    /// At least one.
    pub exporters: Vec<Exporter>,
    /// Which events.
    #[serde(default)]
    pub events: Events,
    /// Which metrics.
    #[serde(default)]
    pub metrics: MetricSettings,
    /// How many of them.
    #[serde(default)]
    pub sampling: EventSampling,
    /// What is left out.
    #[serde(default)]
    pub redaction: Redaction,
}

/// A destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exporter {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: ExporterType,
    /// Present for `otlp` and `webhook`.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Present for `file` and `sqlite`.
    #[serde(default)]
    pub path: Option<String>,
    /// Authentication at the endpoint.
    #[serde(default)]
    pub auth: Option<SecretAuth>,
    /// How events are gathered.
    #[serde(default)]
    pub batch: Batch,
}

/// How events are gathered; absent means the runtime's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Batch {
    /// Events per batch.
    pub max_size: Option<u64>,
    /// Longest wait.
    pub flush_interval_ms: Option<u64>,
}

/// Which events are told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// On by default.
    pub tool_calls: bool,
    /// Off by default.
    pub memory_ops: bool,
    /// Off by default.
    pub swarm_ops: bool,
    /// On by default.
    pub lifecycle: bool,
    /// On by default.
    pub errors: bool,
    /// Off by default (0.3.0).
    pub world_model_ops: bool,
    /// Off by default (0.3.0).
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

/// Which metrics are collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricSettings {
    /// On by default.
    pub token_usage: bool,
    /// Off by default.
    pub cost_usd: bool,
    /// On by default.
    pub latency_histogram: bool,
    /// Off by default (0.3.0).
    pub prediction_error: bool,
    /// Off by default (0.3.0).
    pub retrieval_hit_rate: bool,
    /// Off by default (0.3.0).
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

/// How many events are told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventSampling {
    /// 0 (none) to 1 (all); 1 by default.
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
    /// Arguments become `[REDACTED]`.
    pub strip_arguments: bool,
    /// Results become `[REDACTED]`.
    pub strip_results: bool,
}
