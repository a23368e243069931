//! Sandbox and Policy (CKP §5.7, §5.8).

use super::{AT_LEAST_ONE, COUNT, FieldType, MONEY, MapShape, TEXTS, optional_field, required_field};
use crate::model::{
    AuditDestination, FilesystemMode, InjectionAction, InjectionDetection, MountPermission, NetworkMode,
    RuleAction, RuleScope, SandboxLevel, SandboxRuntime, ScanAction, ScanScope, SecretInjection, ShellMode,
    TimeoutDefault,
};

pub(super) static SANDBOX: MapShape = MapShape {
    title: "a Sandbox",
    doc: "Where tools run; what is not granted is denied (CKP 5.7).",
    fields: &[
        required_field(
            "level",
            FieldType::Word(SandboxLevel::WORDS),
            "How strongly tools are isolated. A level that this machine can't give is refused, never replaced by a weaker one.",
        ),
        optional_field(
            "runtime",
            FieldType::Word(SandboxRuntime::WORDS),
            "What isolates the tools; by default it follows from the level.",
        ),
        optional_field(
            "capabilities",
            FieldType::Map(&CAPABILITIES),
            "What a tool is granted. Everything else is denied.",
        ),
        optional_field(
            "resource_limits",
            FieldType::Map(&RESOURCE_LIMITS),
            "Limits of one call.",
        ),
    ],
};

static CAPABILITIES: MapShape = MapShape {
    title: "capabilities",
    doc: "What the sandbox grants; every part denies by default.",
    fields: &[
        optional_field(
            "network",
            FieldType::Map(&NETWORK),
            "Which hosts a tool can reach.",
        ),
        optional_field(
            "filesystem",
            FieldType::Map(&FILESYSTEM),
            "Which files a tool sees.",
        ),
        optional_field(
            "secrets",
            FieldType::Map(&SECRETS),
            "How secrets reach a tool, and how they are kept from leaving.",
        ),
        optional_field(
            "shell",
            FieldType::Map(&SHELL),
            "Which command lines a tool may run.",
        ),
    ],
};

static NETWORK: MapShape = MapShape {
    title: "a network capability",
    doc: "Outbound network.",
    fields: &[
        optional_field(
            "mode",
            FieldType::Word(NetworkMode::WORDS),
            "How much is granted; `deny` by default.",
        ),
        optional_field(
            "allowed_hosts",
            FieldType::List {
                of: &FieldType::Host,
                min: 0,
            },
            "Hosts for the mode `allowlist`: `example.com`, `*.example.com` for every name below it, each with or without a port.",
        ),
        optional_field(
            "ssrf_protection",
            FieldType::Map(&SSRF),
            "Guards against requests into private networks.",
        ),
    ],
};

static SSRF: MapShape = MapShape {
    title: "ssrf_protection",
    doc: "Guards against requests into private networks; all on by default.",
    fields: &[
        optional_field("enabled", FieldType::Bool, "Turns the whole guard on or off."),
        optional_field(
            "block_private_ips",
            FieldType::Bool,
            "Refuses addresses of private networks.",
        ),
        optional_field(
            "dns_pinning",
            FieldType::Bool,
            "Connects to exactly the address that was checked.",
        ),
    ],
};

static FILESYSTEM: MapShape = MapShape {
    title: "a filesystem capability",
    doc: "Files.",
    fields: &[
        optional_field(
            "mode",
            FieldType::Word(FilesystemMode::WORDS),
            "How much is granted; `deny` by default.",
        ),
        optional_field(
            "mount_paths",
            FieldType::List {
                of: &FieldType::Map(&MOUNT),
                min: 0,
            },
            "Folders and files that tools see.",
        ),
        optional_field(
            "denied_paths",
            TEXTS,
            "Paths and patterns that no tool can read or change, even below a mount.",
        ),
    ],
};

static MOUNT: MapShape = MapShape {
    title: "a mount",
    doc: "A path made visible.",
    fields: &[
        required_field(
            "path",
            FieldType::FullText,
            "A path, relative to the working directory.",
        ),
        required_field(
            "permissions",
            FieldType::Word(MountPermission::WORDS),
            "`ro`: read only. `rw`: read and write.",
        ),
    ],
};

static SECRETS: MapShape = MapShape {
    title: "a secrets capability",
    doc: "Secrets.",
    fields: &[
        optional_field(
            "injection",
            FieldType::Word(SecretInjection::WORDS),
            "How a secret reaches a tool; `host-boundary` by default: the tool holds a placeholder, and clawk inserts the secret on the way to its host.",
        ),
        optional_field("encryption", FieldType::Text, "The cipher for stored secrets."),
        optional_field(
            "leak_detection",
            FieldType::Map(&LEAK_DETECTION),
            "Scans what leaves the sandbox for secrets.",
        ),
    ],
};

static LEAK_DETECTION: MapShape = MapShape {
    title: "leak_detection",
    doc: "Scan of what leaves the sandbox.",
    fields: &[
        optional_field("enabled", FieldType::Bool, "On by default."),
        optional_field(
            "patterns",
            COUNT,
            "The least number of secret patterns; 22 by default. If clawk has fewer, the agent does not start.",
        ),
    ],
};

static SHELL: MapShape = MapShape {
    title: "a shell capability",
    doc: "Shell commands.",
    fields: &[
        optional_field(
            "mode",
            FieldType::Word(ShellMode::WORDS),
            "How much is granted; `deny` by default.",
        ),
        optional_field(
            "blocked_commands",
            TEXTS,
            "Commands to refuse; `*` stands for any text.",
        ),
        optional_field(
            "blocked_patterns",
            FieldType::List {
                of: &FieldType::Regex,
                min: 0,
            },
            "Regular expressions; clawk refuses a command line in which one is found.",
        ),
    ],
};

static RESOURCE_LIMITS: MapShape = MapShape {
    title: "resource_limits",
    doc: "Limits of one execution.",
    fields: &[
        optional_field("memory_mb", COUNT, "Memory of all processes together, in MiB."),
        optional_field("cpu_shares", COUNT, "Processor weight; 1024 stands for one core."),
        optional_field("max_processes", COUNT, "Processes and threads together."),
        optional_field("max_open_files", COUNT, "Open files of each process."),
        optional_field(
            "timeout_ms",
            COUNT,
            "Time limit in milliseconds; all processes end with it.",
        ),
        optional_field(
            "max_output_bytes",
            COUNT,
            "Bytes of output; clawk throws the rest away.",
        ),
    ],
};

pub(super) static POLICY: MapShape = MapShape {
    title: "a Policy",
    doc: "What is allowed, asked for and denied (CKP 5.8).",
    fields: &[
        required_field(
            "rules",
            FieldType::List {
                of: &FieldType::Map(&RULE),
                min: 1,
            },
            "Rules in their order. The first rule that matches a call decides; without a match the call is denied.",
        ),
        optional_field(
            "prompt_injection",
            FieldType::Map(&PROMPT_INJECTION),
            "How clawk looks for instructions in text that is only data.",
        ),
        optional_field(
            "secret_scanning",
            FieldType::Map(&SECRET_SCANNING),
            "Looks for secrets in arguments, results, or both.",
        ),
        optional_field(
            "input_validation",
            FieldType::Map(&INPUT_VALIDATION),
            "Checks text before a tool gets it.",
        ),
        optional_field(
            "rate_limits",
            FieldType::Map(&RATE_LIMITS),
            "Rates of the whole agent; beyond them, calls are refused.",
        ),
        optional_field(
            "audit",
            FieldType::Map(&AUDIT),
            "Where clawk writes audit records of calls, and what they hold.",
        ),
    ],
};

static RULE: MapShape = MapShape {
    title: "a rule",
    doc: "One rule.",
    fields: &[
        required_field(
            "id",
            FieldType::FullText,
            "The rule's name in verdicts and in the trace.",
        ),
        required_field(
            "action",
            FieldType::Word(RuleAction::WORDS),
            "What a match does: allow, deny, ask a person, or allow and audit.",
        ),
        required_field(
            "scope",
            FieldType::Word(RuleScope::WORDS),
            "Which kind of calls the rule is for.",
        ),
        optional_field(
            "match",
            FieldType::Map(&RULE_MATCH),
            "Which tools the rule matches. Every given key must match.",
        ),
        optional_field(
            "conditions",
            FieldType::AnyMap,
            "Conditions on the arguments, for example `path_within: DIR`.",
        ),
        optional_field(
            "rate_limit",
            FieldType::Map(&RULE_RATE),
            "The rule applies only after this much is spent.",
        ),
        optional_field(
            "reason",
            FieldType::Text,
            "A text for the person who is asked and for the caller who is refused.",
        ),
        optional_field(
            "approval",
            FieldType::Map(&APPROVAL),
            "How the question is asked; for `require-approval`.",
        ),
    ],
};

static RULE_MATCH: MapShape = MapShape {
    title: "a match",
    doc: "What must hold of a tool; all that is given.",
    fields: &[
        optional_field(
            "name",
            FieldType::Glob,
            "The tool's name, or a glob such as `file-*`.",
        ),
        optional_field("category", FieldType::FullText, "The tool's `labels.category`."),
        optional_field(
            "labels",
            FieldType::TextMap,
            "Labels that the tool must have, with these values.",
        ),
        optional_field(
            "annotations",
            FieldType::AnyMap,
            "Annotations that the tool must have, with these values.",
        ),
    ],
};

static RULE_RATE: MapShape = MapShape {
    title: "a rule's rate_limit",
    doc: "Limits that, once spent, make the rule apply.",
    fields: &[
        optional_field("cost_per_day_usd", MONEY, "US dollars per UTC day."),
        optional_field("tokens_per_day", COUNT, "Tokens per UTC day."),
    ],
};

static APPROVAL: MapShape = MapShape {
    title: "an approval",
    doc: "How approval is asked for.",
    fields: &[
        optional_field(
            "timeout_seconds",
            AT_LEAST_ONE,
            "Seconds until the question expires; 300 by default.",
        ),
        optional_field(
            "default_if_timeout",
            FieldType::Word(TimeoutDefault::WORDS),
            "What happens if nobody answers; `deny` by default.",
        ),
    ],
};

static PROMPT_INJECTION: MapShape = MapShape {
    title: "prompt_injection",
    doc: "Defence against prompt injection.",
    fields: &[
        optional_field(
            "detection",
            FieldType::Word(InjectionDetection::WORDS),
            "Who looks: patterns, a model, or both; `pattern` by default.",
        ),
        optional_field("pattern_engine", FieldType::Text, "Name of the pattern engine."),
        optional_field(
            "pattern_count",
            COUNT,
            "The least number of patterns; if clawk has fewer, the agent does not start.",
        ),
        optional_field(
            "action",
            FieldType::Word(InjectionAction::WORDS),
            "What happens to a suspicious text; `block-and-log` by default.",
        ),
    ],
};

static SECRET_SCANNING: MapShape = MapShape {
    title: "secret_scanning",
    doc: "Secret scanning.",
    fields: &[
        optional_field("enabled", FieldType::Bool, "On by default."),
        optional_field(
            "scope",
            FieldType::Word(ScanScope::WORDS),
            "Which text is scanned; `output` by default.",
        ),
        optional_field(
            "patterns",
            COUNT,
            "The least number of built-in patterns; 22 by default. If clawk has fewer, the agent does not start.",
        ),
        optional_field(
            "action",
            FieldType::Word(ScanAction::WORDS),
            "What happens to a secret; `redact` by default.",
        ),
    ],
};

static INPUT_VALIDATION: MapShape = MapShape {
    title: "input_validation",
    doc: "Input validation.",
    fields: &[
        optional_field("max_size_bytes", COUNT, "The largest input, in bytes."),
        optional_field(
            "null_byte_detection",
            FieldType::Bool,
            "Refuses null bytes; on by default.",
        ),
        optional_field(
            "whitespace_analysis",
            FieldType::Bool,
            "Looks for text that white space hides.",
        ),
        optional_field(
            "encoding",
            FieldType::Text,
            "The expected encoding; `utf-8` by default.",
        ),
    ],
};

static RATE_LIMITS: MapShape = MapShape {
    title: "rate_limits",
    doc: "Rates of the whole agent.",
    fields: &[
        optional_field("tool_calls_per_minute", COUNT, "Tool calls per minute."),
        optional_field("tokens_per_hour", COUNT, "Tokens per hour."),
        optional_field("cost_per_day_usd", MONEY, "US dollars per UTC day."),
    ],
};

static AUDIT: MapShape = MapShape {
    title: "audit",
    doc: "Audit.",
    fields: &[
        optional_field("log_inputs", FieldType::Bool, "Records arguments."),
        optional_field("log_outputs", FieldType::Bool, "Records results."),
        optional_field(
            "log_approvals",
            FieldType::Bool,
            "Records approvals; on by default.",
        ),
        optional_field(
            "retention",
            FieldType::Duration,
            "How long records are kept, for example `30d`.",
        ),
        optional_field(
            "destination",
            FieldType::Word(AuditDestination::WORDS),
            "Where audit records go; `sqlite` by default.",
        ),
    ],
};
