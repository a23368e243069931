//! Swarm and Telemetry (CKP §5.9, §5.10).

use clawk_proto::uri::Kind;

use super::agent::SECRET_AUTH;
use super::{
    AT_LEAST_ONE, COUNT, EXACT, FieldType, MONEY, MapShape, SHARE, SMALL, SMALL_AT_LEAST_ONE, optional_field,
    required_field,
};
use crate::model::{AggregationStrategy, BusBackend, ExporterType, MessagePassing, Topology};

pub(super) static SWARM: MapShape = MapShape {
    title: "a Swarm",
    doc: "Several agents at one task (CKP 5.9).",
    fields: &[
        required_field(
            "topology",
            FieldType::Word(Topology::WORDS),
            "Which agents talk to which.",
        ),
        required_field(
            "agents",
            FieldType::List {
                of: &FieldType::Map(&AGENT),
                min: 1,
            },
            "The agents of the swarm; at least one.",
        ),
        required_field(
            "coordination",
            FieldType::Map(&COORDINATION),
            "How the agents talk to each other.",
        ),
        required_field(
            "aggregation",
            FieldType::Map(&AGGREGATION),
            "How the answers of several agents become one.",
        ),
        optional_field("failure", FieldType::Map(&FAILURE), "What happens on failure."),
        optional_field(
            "resource_limits",
            FieldType::Map(&SWARM_LIMITS),
            "Limits of the whole swarm.",
        ),
    ],
};

static AGENT: MapShape = MapShape {
    title: "a swarm agent",
    doc: "A participant.",
    fields: &[
        required_field(
            "identity_ref",
            FieldType::FullText,
            "Name or `claw://` URI of its identity.",
        ),
        required_field(
            "role",
            FieldType::FullText,
            "Its part: `leader`, `worker`, `peer`, …",
        ),
        optional_field(
            "provider_ref",
            FieldType::Ref(Kind::Provider),
            "The name of a provider of this manifest.",
        ),
        optional_field(
            "count",
            SMALL_AT_LEAST_ONE,
            "Instances of this agent; 1 by default.",
        ),
    ],
};

static COORDINATION: MapShape = MapShape {
    title: "coordination",
    doc: "How agents talk.",
    fields: &[
        required_field(
            "message_passing",
            FieldType::Word(MessagePassing::WORDS),
            "How agents pass messages.",
        ),
        required_field(
            "backend",
            FieldType::Word(BusBackend::WORDS),
            "What carries the messages.",
        ),
        required_field(
            "concurrency",
            FieldType::Map(&CONCURRENCY),
            "How many tasks run at once; may be empty (`{}`).",
        ),
    ],
};

static CONCURRENCY: MapShape = MapShape {
    title: "concurrency",
    doc: "How much at once.",
    fields: &[
        optional_field("max_parallel", SMALL_AT_LEAST_ONE, "Tasks at once."),
        optional_field(
            "sequential_within_agent",
            FieldType::Bool,
            "One task at a time per agent; on by default.",
        ),
    ],
};

static AGGREGATION: MapShape = MapShape {
    title: "aggregation",
    doc: "How answers become one.",
    fields: &[
        required_field(
            "strategy",
            FieldType::Word(AggregationStrategy::WORDS),
            "The method.",
        ),
        optional_field(
            "cost_aware",
            FieldType::Bool,
            "Prefer the cheapest capable provider.",
        ),
        optional_field(
            "timeout_ms",
            COUNT,
            "Time limit of the whole operation, in milliseconds.",
        ),
    ],
};

static FAILURE: MapShape = MapShape {
    title: "failure",
    doc: "What happens on failure.",
    fields: &[
        optional_field("retry_per_agent", SMALL, "Retries per agent."),
        optional_field(
            "dead_letter",
            FieldType::Map(&DEAD_LETTER),
            "What happens to tasks that can't be delivered.",
        ),
        optional_field(
            "circuit_breaker",
            FieldType::Map(&CIRCUIT_BREAKER),
            "When clawk stops sending tasks to a failing agent for a while.",
        ),
    ],
};

static DEAD_LETTER: MapShape = MapShape {
    title: "dead_letter",
    doc: "Where undeliverable tasks go.",
    fields: &[
        optional_field("enabled", FieldType::Bool, "On by default."),
        optional_field(
            "max_retries",
            SMALL,
            "Retries before a task is a dead letter; 5 by default.",
        ),
    ],
};

static CIRCUIT_BREAKER: MapShape = MapShape {
    title: "circuit_breaker",
    doc: "When an agent is left alone for a while.",
    fields: &[
        optional_field(
            "failure_threshold",
            SMALL_AT_LEAST_ONE,
            "Failures in a row before that; 3 by default.",
        ),
        optional_field(
            "reset_timeout_ms",
            COUNT,
            "Milliseconds until clawk tries the agent again; 60000 by default.",
        ),
    ],
};

static SWARM_LIMITS: MapShape = MapShape {
    title: "a swarm's resource_limits",
    doc: "Limits of the whole swarm.",
    fields: &[
        optional_field("max_total_tokens", COUNT, "Tokens of the whole swarm."),
        optional_field("max_total_cost_usd", MONEY, "US dollars of the whole swarm."),
        optional_field(
            "max_duration_ms",
            COUNT,
            "Time of the whole swarm, in milliseconds.",
        ),
    ],
};

pub(super) static TELEMETRY: MapShape = MapShape {
    title: "a Telemetry",
    doc: "What is told about the agent, and where (CKP 5.10).",
    fields: &[
        required_field(
            "exporters",
            FieldType::List {
                of: &FieldType::Map(&EXPORTER),
                min: 1,
            },
            "Where events go; at least one destination.",
        ),
        optional_field("events", FieldType::Map(&EVENTS), "Which events are exported."),
        optional_field("metrics", FieldType::Map(&METRICS), "Which metrics are exported."),
        optional_field(
            "sampling",
            FieldType::Map(&SAMPLING),
            "Which share of events is exported.",
        ),
        optional_field(
            "redaction",
            FieldType::Map(&REDACTION),
            "What is removed before events are exported.",
        ),
    ],
};

static EXPORTER: MapShape = MapShape {
    title: "an exporter",
    doc: "A destination.",
    fields: &[
        required_field("type", FieldType::Word(ExporterType::WORDS), "The kind."),
        optional_field("endpoint", FieldType::Url, "Required for `otlp` and `webhook`."),
        optional_field("path", FieldType::FullText, "Required for `file` and `sqlite`."),
        optional_field(
            "auth",
            FieldType::Map(&SECRET_AUTH),
            "Authentication at the endpoint.",
        ),
        optional_field("batch", FieldType::Map(&BATCH), "How many events go together."),
    ],
};

static BATCH: MapShape = MapShape {
    title: "a batch",
    doc: "How events are gathered.",
    fields: &[
        optional_field("max_size", AT_LEAST_ONE, "Events per batch."),
        optional_field(
            "flush_interval_ms",
            FieldType::Count { min: 100, max: EXACT },
            "The longest wait for a batch, in milliseconds.",
        ),
    ],
};

static EVENTS: MapShape = MapShape {
    title: "events",
    doc: "Which events are told.",
    fields: &[
        optional_field("tool_calls", FieldType::Bool, "On by default."),
        optional_field("memory_ops", FieldType::Bool, "Off by default."),
        optional_field("swarm_ops", FieldType::Bool, "Off by default."),
        optional_field("lifecycle", FieldType::Bool, "On by default."),
        optional_field("errors", FieldType::Bool, "On by default."),
        optional_field("world_model_ops", FieldType::Bool, "Off by default (0.3.0).").since_v03(),
        optional_field("planning_ops", FieldType::Bool, "Off by default (0.3.0).").since_v03(),
    ],
};

static METRICS: MapShape = MapShape {
    title: "metrics",
    doc: "Which metrics are collected.",
    fields: &[
        optional_field("token_usage", FieldType::Bool, "On by default."),
        optional_field("cost_usd", FieldType::Bool, "Off by default."),
        optional_field("latency_histogram", FieldType::Bool, "On by default."),
        optional_field("prediction_error", FieldType::Bool, "Off by default (0.3.0).").since_v03(),
        optional_field("retrieval_hit_rate", FieldType::Bool, "Off by default (0.3.0).").since_v03(),
        optional_field("plan_revision_count", FieldType::Bool, "Off by default (0.3.0).").since_v03(),
    ],
};

static SAMPLING: MapShape = MapShape {
    title: "sampling",
    doc: "How many events are told.",
    fields: &[optional_field(
        "rate",
        SHARE,
        "0 (none) to 1 (all); 1 by default.",
    )],
};

static REDACTION: MapShape = MapShape {
    title: "redaction",
    doc: "What is left out of events.",
    fields: &[
        optional_field(
            "strip_arguments",
            FieldType::Bool,
            "Arguments become `[REDACTED]`.",
        ),
        optional_field("strip_results", FieldType::Bool, "Results become `[REDACTED]`."),
    ],
};
