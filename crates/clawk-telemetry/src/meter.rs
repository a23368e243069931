//! Metrics: counters and histograms with a limit on the number of series. Values are cumulative, so a repeated delivery changes
//! nothing.

use std::collections::BTreeMap;

use clawk_manifest::model::MetricSettings;
use serde::{Deserialize, Serialize};

use crate::fact::{Label, TelemetryFact, TelemetryFactKind};

/// Series per metric. Values of further series are counted under the label `other`.
const MAX_SERIES: usize = 256;
const TOKEN_BOUNDS: &[u64] = &[1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576];
const MS_BOUNDS: &[u64] = &[
    5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000,
];
const PERMILLE_BOUNDS: &[u64] = &[10, 50, 100, 250, 500, 750, 1000];

/// The metrics that an exporter offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Tokens of model requests.
    Tokens,
    /// Duration of model requests.
    InferenceTime,
    /// Duration of tool calls.
    ToolTime,
    /// Cost in US dollars.
    Cost,
    /// Prediction error of plans.
    PredictionError,
    /// Number of revisions of plans.
    PlanRevisions,
    /// Searches of memory stores, with and without a result.
    Retrievals,
}

impl Metric {
    /// Returns the metric's OpenTelemetry name, by the GenAI conventions where they define one.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "gen_ai.client.token.usage",
            Self::InferenceTime => "gen_ai.client.operation.duration",
            Self::ToolTime => "gen_ai.execute_tool.duration",
            Self::Cost => "clawk.cost",
            Self::PredictionError => "clawk.plan.prediction_error",
            Self::PlanRevisions => "clawk.plan.revisions",
            Self::Retrievals => "clawk.memory.retrievals",
        }
    }

    /// Returns the metric's unit (UCUM).
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Tokens => "{token}",
            Self::InferenceTime | Self::ToolTime => "s",
            Self::Cost => "USD",
            Self::PredictionError => "1",
            Self::PlanRevisions => "{revision}",
            Self::Retrievals => "{retrieval}",
        }
    }

    /// Returns the divisor from the counted integer to one unit, for example 1,000 from milliseconds to seconds.
    #[must_use]
    pub const fn per_unit(self) -> f64 {
        match self {
            Self::InferenceTime | Self::ToolTime | Self::PredictionError => 1000.0,
            Self::Cost => 1_000_000.0,
            Self::Tokens | Self::PlanRevisions | Self::Retrievals => 1.0,
        }
    }

    /// Returns the upper bounds of a histogram's buckets, in counted integers. Empty: the metric is a counter.
    #[must_use]
    pub const fn bounds(self) -> &'static [u64] {
        match self {
            Self::Tokens => TOKEN_BOUNDS,
            Self::InferenceTime | Self::ToolTime => MS_BOUNDS,
            Self::PredictionError => PERMILLE_BOUNDS,
            Self::Cost | Self::PlanRevisions | Self::Retrievals => &[],
        }
    }
}

/// The values of one series.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricSeries {
    /// Number of observations.
    pub count: u64,
    /// Sum of the observed values.
    pub sum: u64,
    /// Observations by bucket. The last bucket holds the values above all bounds.
    pub buckets: Vec<u64>,
}

/// One series: metric, labels and values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricPoint {
    /// The metric.
    pub metric: Metric,
    /// Label names and values.
    pub labels: MetricLabels,
    /// The series' values.
    pub series: MetricSeries,
}

type MetricLabels = BTreeMap<String, Label>;

/// All series of one exporter.
#[derive(Debug, Clone)]
pub struct ExporterMetrics {
    wanted: MetricSettings,
    series: BTreeMap<(Metric, MetricLabels), MetricSeries>,
}

impl ExporterMetrics {
    /// Creates the metrics, beginning with the counts of an earlier run.
    #[must_use]
    pub fn new(wanted: MetricSettings, before: Vec<MetricPoint>) -> Self {
        let series = before
            .into_iter()
            .map(|point| ((point.metric, point.labels), point.series));
        Self {
            wanted,
            series: series.collect(),
        }
    }

    /// Returns all series.
    #[must_use]
    pub fn points(&self) -> Vec<MetricPoint> {
        let point = |((metric, labels), series): (&(Metric, MetricLabels), &MetricSeries)| MetricPoint {
            metric: *metric,
            labels: labels.clone(),
            series: series.clone(),
        };
        self.series.iter().map(point).collect()
    }

    /// Counts a fact. Returns whether any metric changed.
    pub fn count_fact(&mut self, fact: &TelemetryFact) -> bool {
        let wanted = self.wanted.clone();
        let before = self.total_count();
        match &fact.what {
            TelemetryFactKind::Inferred(one) => {
                let labels = [
                    ("gen_ai.operation.name", Label::from_declared("chat")),
                    ("gen_ai.provider.name", one.provider.clone()),
                    ("gen_ai.request.model", one.model.clone()),
                ];
                if wanted.token_usage {
                    for (kind, tokens) in [("input", one.input_tokens), ("output", one.output_tokens)] {
                        let kind = ("gen_ai.token.type", Label::from_declared(kind));
                        self.observe_value(Metric::Tokens, labels.iter().cloned().chain([kind]), tokens);
                    }
                }
                if wanted.latency_histogram {
                    self.observe_value(Metric::InferenceTime, labels.iter().cloned(), one.duration_ms);
                }
                if let Some(cost) = one.cost_microusd.filter(|_| wanted.cost_usd) {
                    self.observe_value(Metric::Cost, labels, cost);
                }
            }
            TelemetryFactKind::Called(call) if wanted.latency_histogram => {
                let labels = [
                    ("gen_ai.tool.name", call.tool.clone()),
                    ("clawk.tool.outcome", Label::from_declared(call.outcome)),
                ];
                self.observe_value(Metric::ToolTime, labels, call.duration_ms);
            }
            TelemetryFactKind::Memory {
                store,
                hit: Some(hit),
                ..
            } if wanted.retrieval_hit_rate => {
                let hit = Label::from_declared(if *hit { "true" } else { "false" });
                let labels = [("clawk.memory.store", store.clone()), ("clawk.memory.hit", hit)];
                self.observe_value(Metric::Retrievals, labels, 1);
            }
            TelemetryFactKind::Planned { skill, revisions, .. } if wanted.plan_revision_count => {
                self.observe_value(
                    Metric::PlanRevisions,
                    [("clawk.skill", skill.clone())],
                    *revisions,
                );
            }
            TelemetryFactKind::Compared {
                world_model,
                error_permille,
                ..
            } if wanted.prediction_error => {
                let labels = [("clawk.world_model", world_model.clone())];
                self.observe_value(Metric::PredictionError, labels, *error_permille);
            }
            _ => {}
        }
        self.total_count() != before
    }

    fn total_count(&self) -> u64 {
        self.series
            .values()
            .map(|series| series.count)
            .fold(0, u64::wrapping_add)
    }

    fn observe_value(
        &mut self,
        metric: Metric,
        labels: impl IntoIterator<Item = (&'static str, Label)>,
        value: u64,
    ) {
        let mut labels: MetricLabels = labels
            .into_iter()
            .map(|(name, label)| (name.to_owned(), label))
            .collect();
        let of_metric = self.series.keys().filter(|(one, _)| *one == metric).count();
        if of_metric >= MAX_SERIES && !self.series.contains_key(&(metric, labels.clone())) {
            labels
                .values_mut()
                .for_each(|label| *label = Label::from_declared(Label::OTHER));
        }
        let bounds = metric.bounds();
        let series = self
            .series
            .entry((metric, labels))
            .or_insert_with(|| MetricSeries {
                buckets: if bounds.is_empty() {
                    Vec::new()
                } else {
                    vec![0; bounds.len() + 1]
                },
                ..MetricSeries::default()
            });
        series.count = series.count.saturating_add(1);
        series.sum = series.sum.saturating_add(value);
        let at = bounds
            .iter()
            .position(|bound| value <= *bound)
            .unwrap_or(bounds.len());
        if let Some(bucket) = series.buckets.get_mut(at) {
            *bucket = bucket.saturating_add(1);
        }
    }
}
