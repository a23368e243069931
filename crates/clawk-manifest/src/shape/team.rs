//! Swarm and Telemetry (CKP §5.9, §5.10).

use clawk_proto::uri::Kind;

use super::agent::SECRET_AUTH;
use super::{
    AT_LEAST_ONE, COUNT, EXACT, FieldType, MONEY, MapShape, SHARE, SMALL, SMALL_AT_LEAST_ONE, opt, req,
};
use crate::model::{AggregationStrategy, BusBackend, ExporterType, MessagePassing, Topology};

pub(super) static SWARM: MapShape = MapShape {
    title: "a Swarm",
    doc: "Several agents at one task (CKP 5.9).",
    fields: &[
        req(
            "topology",
            FieldType::Word(Topology::WORDS),
            "Which agents talk to which.",
        ),
        req(
            "agents",
            FieldType::List {
                of: &FieldType::Map(&AGENT),
                min: 1,
            },
            "The agents of the swarm; at least one.",
        ),
        req(
            "coordination",
            FieldType::Map(&COORDINATION),
            "How the agents talk to each other.",
        ),
        req(
            "aggregation",
            FieldType::Map(&AGGREGATION),
            "How the answers of several agents become one.",
        ),
        opt("failure", FieldType::Map(&FAILURE), "What happens on failure."),
        opt(
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
        req(
            "identity_ref",
            FieldType::FullText,
            "Name or `claw://` URI of its identity.",
        ),
        req(
            "role",
            FieldType::FullText,
            "Its part: `leader`, `worker`, `peer`, …",
        ),
        opt(
            "provider_ref",
            FieldType::Ref(Kind::Provider),
            "The name of a provider of this manifest.",
        ),
        opt(
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
        req(
            "message_passing",
            FieldType::Word(MessagePassing::WORDS),
            "How agents pass messages.",
        ),
        req(
            "backend",
            FieldType::Word(BusBackend::WORDS),
            "What carries the messages.",
        ),
        req(
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
        opt("max_parallel", SMALL_AT_LEAST_ONE, "Tasks at once."),
        opt(
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
        req(
            "strategy",
            FieldType::Word(AggregationStrategy::WORDS),
            "The method.",
        ),
        opt(
            "cost_aware",
            FieldType::Bool,
            "Prefer the cheapest capable provider.",
        ),
        opt(
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
        opt("retry_per_agent", SMALL, "Retries per agent."),
        opt(
            "dead_letter",
            FieldType::Map(&DEAD_LETTER),
            "What happens to tasks that can't be delivered.",
        ),
        opt(
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
        opt("enabled", FieldType::Bool, "On by default."),
        opt(
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
        opt(
            "failure_threshold",
            SMALL_AT_LEAST_ONE,
            "Failures in a row before that; 3 by default.",
        ),
        opt(
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
        opt("max_total_tokens", COUNT, "Tokens of the whole swarm."),
        opt("max_total_cost_usd", MONEY, "US dollars of the whole swarm."),
        opt(
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
        req(
            "exporters",
            FieldType::List {
                of: &FieldType::Map(&EXPORTER),
                min: 1,
            },
            "Where events go; at least one destination.",
        ),
        opt("events", FieldType::Map(&EVENTS), "Which events are exported."),
        opt("metrics", FieldType::Map(&METRICS), "Which metrics are exported."),
        opt(
            "sampling",
            FieldType::Map(&SAMPLING),
            "Which share of events is exported.",
        ),
        opt(
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
        req("type", FieldType::Word(ExporterType::WORDS), "The kind."),
        opt("endpoint", FieldType::Url, "Required for `otlp` and `webhook`."),
        opt("path", FieldType::FullText, "Required for `file` and `sqlite`."),
        opt(
            "auth",
            FieldType::Map(&SECRET_AUTH),
            "Authentication at the endpoint.",
        ),
        opt("batch", FieldType::Map(&BATCH), "How many events go together."),
    ],
};

static BATCH: MapShape = MapShape {
    title: "a batch",
    doc: "How events are gathered.",
    fields: &[
        opt("max_size", AT_LEAST_ONE, "Events per batch."),
        opt(
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
        opt("tool_calls", FieldType::Bool, "On by default."),
        opt("memory_ops", FieldType::Bool, "Off by default."),
        opt("swarm_ops", FieldType::Bool, "Off by default."),
        opt("lifecycle", FieldType::Bool, "On by default."),
        opt("errors", FieldType::Bool, "On by default."),
        opt("world_model_ops", FieldType::Bool, "Off by default (0.3.0).").newer(),
        opt("planning_ops", FieldType::Bool, "Off by default (0.3.0).").newer(),
    ],
};

static METRICS: MapShape = MapShape {
    title: "metrics",
    doc: "Which metrics are collected.",
    fields: &[
        opt("token_usage", FieldType::Bool, "On by default."),
        opt("cost_usd", FieldType::Bool, "Off by default."),
        opt("latency_histogram", FieldType::Bool, "On by default."),
        opt("prediction_error", FieldType::Bool, "Off by default (0.3.0).").newer(),
        opt("retrieval_hit_rate", FieldType::Bool, "Off by default (0.3.0).").newer(),
        opt("plan_revision_count", FieldType::Bool, "Off by default (0.3.0).").newer(),
    ],
};

static SAMPLING: MapShape = MapShape {
    title: "sampling",
    doc: "How many events are told.",
    fields: &[opt("rate", SHARE, "0 (none) to 1 (all); 1 by default.")],
};

static REDACTION: MapShape = MapShape {
    title: "redaction",
    doc: "What is left out of events.",
    fields: &[
        opt(
            "strip_arguments",
            FieldType::Bool,
            "Arguments become `[REDACTED]`.",
        ),
        opt("strip_results", FieldType::Bool, "Results become `[REDACTED]`."),
    ],
};
