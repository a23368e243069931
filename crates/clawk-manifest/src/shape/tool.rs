//! Tool and Skill (CKP §5.4, §5.5).

use clawk_proto::uri::Kind;

use super::{COUNT, FieldType, MONEY, MapShape, SMALL_AT_LEAST_ONE, opt, req};
use crate::model::{BackoffStrategy, SkillFilesystem};

pub(super) static TOOL: MapShape = MapShape {
    title: "a Tool",
    doc: "A function the agent can call (CKP 5.4).",
    fields: &[
        opt(
            "description",
            FieldType::FullText,
            "What the tool does, for the model; required without `mcp_source`.",
        ),
        opt(
            "input_schema",
            FieldType::ObjectSchema,
            "JSON Schema of the arguments; a call that does not fit is refused. Required without `mcp_source`.",
        ),
        opt(
            "output_schema",
            FieldType::Schema,
            "JSON Schema of the result; a result that does not fit reaches the model as an error.",
        ),
        opt(
            "sandbox_ref",
            FieldType::Ref(Kind::Sandbox),
            "The sandbox of this manifest in which the tool runs; without it, the first one.",
        ),
        opt(
            "policy_ref",
            FieldType::Ref(Kind::Policy),
            "A policy of this manifest that every call of the tool must pass as well.",
        ),
        opt(
            "mcp_source",
            FieldType::Map(&MCP_SOURCE),
            "The MCP server that runs the tool.",
        ),
        opt(
            "annotations",
            FieldType::Hints,
            "MCP annotations: `readOnlyHint`, `destructiveHint`, `idempotentHint`, `openWorldHint` are booleans.",
        ),
        opt(
            "composite",
            FieldType::Bool,
            "Runs a skill's workflow as one call; needs `skill_ref`.",
        ),
        opt(
            "skill_ref",
            FieldType::Ref(Kind::Skill),
            "The skill of this manifest that a composite tool runs.",
        ),
        opt("timeout_ms", COUNT, "Time limit of one call, in milliseconds."),
        opt(
            "retry",
            FieldType::Map(&TOOL_RETRY),
            "How clawk retries a transient failure.",
        ),
    ],
};

static MCP_SOURCE: MapShape = MapShape {
    title: "an mcp_source",
    doc: "An MCP server.",
    fields: &[
        req(
            "uri",
            FieldType::McpUri,
            "`stdio:///path?arg=…`, `https://…`, or `http://` to loopback.",
        ),
        opt(
            "tool_name",
            FieldType::FullText,
            "The tool's name at the server; without it and without `input_schema`, all tools of the server.",
        ),
    ],
};

static TOOL_RETRY: MapShape = MapShape {
    title: "a tool's retry",
    doc: "Retry of transient failures.",
    fields: &[
        opt(
            "max_attempts",
            SMALL_AT_LEAST_ONE,
            "Attempts in total; 3 by default.",
        ),
        opt(
            "backoff",
            FieldType::Word(BackoffStrategy::WORDS),
            "How the wait between attempts grows; `exponential` by default.",
        ),
    ],
};

pub(super) static SKILL: MapShape = MapShape {
    title: "a Skill",
    doc: "A workflow of tools, told in words (CKP 5.5).",
    fields: &[
        req("description", FieldType::FullText, "What the skill accomplishes."),
        req(
            "tools_required",
            FieldType::List {
                of: &FieldType::Ref(Kind::Tool),
                min: 1,
            },
            "Declared tools that it needs.",
        ),
        req("instruction", FieldType::FullText, "How the model does it."),
        opt(
            "input_schema",
            FieldType::ObjectSchema,
            "JSON Schema of the input.",
        ),
        opt(
            "output_schema",
            FieldType::Schema,
            "JSON Schema of the result; a result that does not fit reaches the model as an error.",
        ),
        opt(
            "permissions",
            FieldType::Map(&PERMISSIONS),
            "The most that the skill may do while it runs.",
        ),
        opt(
            "estimates",
            FieldType::Map(&ESTIMATES),
            "Expected use of resources.",
        ),
        opt(
            "world_model_ref",
            FieldType::Ref(Kind::WorldModel),
            "The declared world model that it plans with (0.3.0).",
        )
        .newer(),
    ],
};

static PERMISSIONS: MapShape = MapShape {
    title: "a skill's permissions",
    doc: "A ceiling while the skill runs.",
    fields: &[
        opt("network", FieldType::Bool, "Network access."),
        opt(
            "filesystem",
            FieldType::Word(SkillFilesystem::WORDS),
            "File access.",
        ),
        opt(
            "approval_required",
            FieldType::Bool,
            "A person must approve before it starts.",
        ),
    ],
};

static ESTIMATES: MapShape = MapShape {
    title: "a skill's estimates",
    doc: "Expected use of resources.",
    fields: &[
        opt(
            "avg_tokens",
            COUNT,
            "Tokens of one run, on average; a composite tool needs room for them in the budget.",
        ),
        opt("avg_duration_seconds", MONEY, "Seconds of one run, on average."),
        opt("avg_tool_calls", COUNT, "Tool calls of one run, on average."),
    ],
};
