//! Tool and Skill (CKP §5.4, §5.5).

use clawk_proto::uri::Kind;

use super::{COUNT, FieldType, MONEY, MapShape, SMALL_AT_LEAST_ONE, optional_field, required_field};
use crate::model::{BackoffStrategy, SkillFilesystem};

pub(super) static TOOL: MapShape = MapShape {
    title: "a Tool",
    doc: "A function the agent can call (CKP 5.4).",
    fields: &[
        optional_field(
            "description",
            FieldType::FullText,
            "What the tool does, for the model; required without `mcp_source`, except for a built-in tool.",
        ),
        optional_field(
            "input_schema",
            FieldType::ObjectSchema,
            "JSON Schema of the arguments; a call that does not fit is refused. Required without `mcp_source`, except for a built-in tool.",
        ),
        optional_field(
            "output_schema",
            FieldType::Schema,
            "JSON Schema of the result; a result that does not fit reaches the model as an error.",
        ),
        optional_field(
            "sandbox_ref",
            FieldType::Ref(Kind::Sandbox),
            "The sandbox of this manifest in which the tool runs; without it, the first one.",
        ),
        optional_field(
            "policy_ref",
            FieldType::Ref(Kind::Policy),
            "A policy of this manifest that every call of the tool must pass as well.",
        ),
        optional_field(
            "mcp_source",
            FieldType::Map(&MCP_SOURCE),
            "The MCP server that runs the tool.",
        ),
        optional_field(
            "annotations",
            FieldType::Hints,
            "MCP annotations: `readOnlyHint`, `destructiveHint`, `idempotentHint`, `openWorldHint` are booleans.",
        ),
        optional_field(
            "composite",
            FieldType::Bool,
            "Runs a skill's workflow as one call; needs `skill_ref`.",
        ),
        optional_field(
            "skill_ref",
            FieldType::Ref(Kind::Skill),
            "The skill of this manifest that a composite tool runs.",
        ),
        optional_field("timeout_ms", COUNT, "Time limit of one call, in milliseconds."),
        optional_field(
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
        required_field(
            "uri",
            FieldType::McpUri,
            "`stdio:///path?arg=…`, `https://…`, or `http://` to loopback.",
        ),
        optional_field(
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
        optional_field(
            "max_attempts",
            SMALL_AT_LEAST_ONE,
            "Attempts in total; 3 by default.",
        ),
        optional_field(
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
        required_field("description", FieldType::FullText, "What the skill accomplishes."),
        required_field(
            "tools_required",
            FieldType::List {
                of: &FieldType::Ref(Kind::Tool),
                min: 1,
            },
            "Declared tools that it needs.",
        ),
        required_field("instruction", FieldType::FullText, "How the model does it."),
        optional_field(
            "input_schema",
            FieldType::ObjectSchema,
            "JSON Schema of the input.",
        ),
        optional_field(
            "output_schema",
            FieldType::Schema,
            "JSON Schema of the result; a result that does not fit reaches the model as an error.",
        ),
        optional_field(
            "permissions",
            FieldType::Map(&PERMISSIONS),
            "The most that the skill may do while it runs.",
        ),
        optional_field(
            "estimates",
            FieldType::Map(&ESTIMATES),
            "Expected use of resources.",
        ),
        optional_field(
            "world_model_ref",
            FieldType::Ref(Kind::WorldModel),
            "The declared world model that it plans with (0.3.0).",
        )
        .since_v03(),
    ],
};

static PERMISSIONS: MapShape = MapShape {
    title: "a skill's permissions",
    doc: "A ceiling while the skill runs.",
    fields: &[
        optional_field("network", FieldType::Bool, "Network access."),
        optional_field(
            "filesystem",
            FieldType::Word(SkillFilesystem::WORDS),
            "File access.",
        ),
        optional_field(
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
        optional_field(
            "avg_tokens",
            COUNT,
            "Tokens of one run, on average; a composite tool needs room for them in the budget.",
        ),
        optional_field("avg_duration_seconds", MONEY, "Seconds of one run, on average."),
        optional_field("avg_tool_calls", COUNT, "Tool calls of one run, on average."),
    ],
};
