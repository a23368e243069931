//! Swarm and Telemetry (CKP §5.9, §5.10).

use clawk_proto::uri::Kind;

use super::agent::SECRET_AUTH;
use super::{AT_LEAST_ONE, COUNT, EXACT, MONEY, SHARE, SMALL, SMALL_AT_LEAST_ONE, Shape, Type, opt, req};
use crate::model::{AggregationStrategy, BusBackend, ExporterType, MessagePassing, Topology};

pub(super) static SWARM: Shape = Shape {
    title: "a Swarm",
    doc: "Several agents at one task (CKP 5.9).",
    fields: &[
        req(
            "topology",
            Type::Word(Topology::WORDS),
            "Which agents talk to which.",
        ),
        req(
            "agents",
            Type::List {
                of: &Type::Map(&AGENT),
                min: 1,
            },
            "The agents of the swarm; at least one.",
        ),
        req(
            "coordination",
            Type::Map(&COORDINATION),
            "How the agents talk to each other.",
        ),
        req(
            "aggregation",
            Type::Map(&AGGREGATION),
            "How the answers of several agents become one.",
        ),
        opt("failure", Type::Map(&FAILURE), "What happens on failure."),
        opt(
            "resource_limits",
            Type::Map(&SWARM_LIMITS),
            "Limits of the whole swarm.",
        ),
    ],
};

static AGENT: Shape = Shape {
    title: "a swarm agent",
    doc: "A participant.",
    fields: &[
        req(
            "identity_ref",
            Type::FullText,
            "Name or `claw://` URI of its identity.",
        ),
        req("role", Type::FullText, "Its part: `leader`, `worker`, `peer`, …"),
        opt(
            "provider_ref",
            Type::Ref(Kind::Provider),
            "The name of a provider of this manifest.",
        ),
        opt(
            "count",
            SMALL_AT_LEAST_ONE,
            "Instances of this agent; 1 by default.",
        ),
    ],
};

static COORDINATION: Shape = Shape {
    title: "coordination",
    doc: "How agents talk.",
    fields: &[
        req(
            "message_passing",
            Type::Word(MessagePassing::WORDS),
            "How agents pass messages.",
        ),
        req(
            "backend",
            Type::Word(BusBackend::WORDS),
            "What carries the messages.",
        ),
        req(
            "concurrency",
            Type::Map(&CONCURRENCY),
            "How many tasks run at once; may be empty (`{}`).",
        ),
    ],
};

static CONCURRENCY: Shape = Shape {
    title: "concurrency",
    doc: "How much at once.",
    fields: &[
        opt("max_parallel", SMALL_AT_LEAST_ONE, "Tasks at once."),
        opt(
            "sequential_within_agent",
            Type::Bool,
            "One task at a time per agent; on by default.",
        ),
    ],
};

static AGGREGATION: Shape = Shape {
    title: "aggregation",
    doc: "How answers become one.",
    fields: &[
        req("strategy", Type::Word(AggregationStrategy::WORDS), "The method."),
        opt("cost_aware", Type::Bool, "Prefer the cheapest capable provider."),
        opt(
            "timeout_ms",
            COUNT,
            "Time limit of the whole operation, in milliseconds.",
        ),
    ],
};

static FAILURE: Shape = Shape {
    title: "failure",
    doc: "What happens on failure.",
    fields: &[
        opt("retry_per_agent", SMALL, "Retries per agent."),
        opt(
            "dead_letter",
            Type::Map(&DEAD_LETTER),
            "What happens to tasks that can't be delivered.",
        ),
        opt(
            "circuit_breaker",
            Type::Map(&CIRCUIT_BREAKER),
            "When clawk stops sending tasks to a failing agent for a while.",
        ),
    ],
};

static DEAD_LETTER: Shape = Shape {
    title: "dead_letter",
    doc: "Where undeliverable tasks go.",
    fields: &[
        opt("enabled", Type::Bool, "On by default."),
        opt(
            "max_retries",
            SMALL,
            "Retries before a task is a dead letter; 5 by default.",
        ),
    ],
};

static CIRCUIT_BREAKER: Shape = Shape {
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

static SWARM_LIMITS: Shape = Shape {
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

pub(super) static TELEMETRY: Shape = Shape {
    title: "a Telemetry",
    doc: "What is told about the agent, and where (CKP 5.10).",
    fields: &[
        req(
            "exporters",
            Type::List {
                of: &Type::Map(&EXPORTER),
                min: 1,
            },
            "Where events go; at least one destination.",
        ),
        opt("events", Type::Map(&EVENTS), "Which events are exported."),
        opt("metrics", Type::Map(&METRICS), "Which metrics are exported."),
        opt(
            "sampling",
            Type::Map(&SAMPLING),
            "Which share of events is exported.",
        ),
        opt(
            "redaction",
            Type::Map(&REDACTION),
            "What is removed before events are exported.",
        ),
    ],
};

static EXPORTER: Shape = Shape {
    title: "an exporter",
    doc: "A destination.",
    fields: &[
        req("type", Type::Word(ExporterType::WORDS), "The kind."),
        opt("endpoint", Type::Url, "Required for `otlp` and `webhook`."),
        opt("path", Type::FullText, "Required for `file` and `sqlite`."),
        opt("auth", Type::Map(&SECRET_AUTH), "Authentication at the endpoint."),
        opt("batch", Type::Map(&BATCH), "How many events go together."),
    ],
};

static BATCH: Shape = Shape {
    title: "a batch",
    doc: "How events are gathered.",
    fields: &[
        opt("max_size", AT_LEAST_ONE, "Events per batch."),
        opt(
            "flush_interval_ms",
            Type::Count { min: 100, max: EXACT },
            "The longest wait for a batch, in milliseconds.",
        ),
    ],
};

static EVENTS: Shape = Shape {
    title: "events",
    doc: "Which events are told.",
    fields: &[
        opt("tool_calls", Type::Bool, "On by default."),
        opt("memory_ops", Type::Bool, "Off by default."),
        opt("swarm_ops", Type::Bool, "Off by default."),
        opt("lifecycle", Type::Bool, "On by default."),
        opt("errors", Type::Bool, "On by default."),
        opt("world_model_ops", Type::Bool, "Off by default (0.3.0).").newer(),
        opt("planning_ops", Type::Bool, "Off by default (0.3.0).").newer(),
    ],
};

static METRICS: Shape = Shape {
    title: "metrics",
    doc: "Which metrics are collected.",
    fields: &[
        opt("token_usage", Type::Bool, "On by default."),
        opt("cost_usd", Type::Bool, "Off by default."),
        opt("latency_histogram", Type::Bool, "On by default."),
        opt("prediction_error", Type::Bool, "Off by default (0.3.0).").newer(),
        opt("retrieval_hit_rate", Type::Bool, "Off by default (0.3.0).").newer(),
        opt("plan_revision_count", Type::Bool, "Off by default (0.3.0).").newer(),
    ],
};

static SAMPLING: Shape = Shape {
    title: "sampling",
    doc: "How many events are told.",
    fields: &[opt("rate", SHARE, "0 (none) to 1 (all); 1 by default.")],
};

static REDACTION: Shape = Shape {
    title: "redaction",
    doc: "What is left out of events.",
    fields: &[
        opt("strip_arguments", Type::Bool, "Arguments become `[REDACTED]`."),
        opt("strip_results", Type::Bool, "Results become `[REDACTED]`."),
    ],
};
