//! Sandbox and Policy (CKP §5.7, §5.8).

use super::{AT_LEAST_ONE, COUNT, FieldType, MONEY, MapShape, TEXTS, opt, req};
use crate::model::{
    AuditDestination, FilesystemMode, InjectionAction, InjectionDetection, MountPermission, NetworkMode,
    RuleAction, RuleScope, SandboxLevel, SandboxRuntime, ScanAction, ScanScope, SecretInjection, ShellMode,
    TimeoutDefault,
};

pub(super) static SANDBOX: MapShape = MapShape {
    title: "a Sandbox",
    doc: "Where tools run; what is not granted is denied (CKP 5.7).",
    fields: &[
        req(
            "level",
            FieldType::Word(SandboxLevel::WORDS),
            "How strongly tools are isolated. A level that this machine can't give is refused, never replaced by a weaker one.",
        ),
        opt(
            "runtime",
            FieldType::Word(SandboxRuntime::WORDS),
            "What isolates the tools; by default it follows from the level.",
        ),
        opt(
            "capabilities",
            FieldType::Map(&CAPABILITIES),
            "What a tool is granted. Everything else is denied.",
        ),
        opt(
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
        opt(
            "network",
            FieldType::Map(&NETWORK),
            "Which hosts a tool can reach.",
        ),
        opt(
            "filesystem",
            FieldType::Map(&FILESYSTEM),
            "Which files a tool sees.",
        ),
        opt(
            "secrets",
            FieldType::Map(&SECRETS),
            "How secrets reach a tool, and how they are kept from leaving.",
        ),
        opt(
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
        opt(
            "mode",
            FieldType::Word(NetworkMode::WORDS),
            "How much is granted; `deny` by default.",
        ),
        opt(
            "allowed_hosts",
            FieldType::List {
                of: &FieldType::Host,
                min: 0,
            },
            "Hosts for the mode `allowlist`: `example.com`, `*.example.com` for every name below it, each with or without a port.",
        ),
        opt(
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
        opt("enabled", FieldType::Bool, "Turns the whole guard on or off."),
        opt(
            "block_private_ips",
            FieldType::Bool,
            "Refuses addresses of private networks.",
        ),
        opt(
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
        opt(
            "mode",
            FieldType::Word(FilesystemMode::WORDS),
            "How much is granted; `deny` by default.",
        ),
        opt(
            "mount_paths",
            FieldType::List {
                of: &FieldType::Map(&MOUNT),
                min: 0,
            },
            "Folders and files that tools see.",
        ),
        opt(
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
        req(
            "path",
            FieldType::FullText,
            "A path, relative to the working directory.",
        ),
        req(
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
        opt(
            "injection",
            FieldType::Word(SecretInjection::WORDS),
            "How a secret reaches a tool; `host-boundary` by default: the tool holds a placeholder, and clawk inserts the secret on the way to its host.",
        ),
        opt("encryption", FieldType::Text, "The cipher for stored secrets."),
        opt(
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
        opt("enabled", FieldType::Bool, "On by default."),
        opt(
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
        opt(
            "mode",
            FieldType::Word(ShellMode::WORDS),
            "How much is granted; `deny` by default.",
        ),
        opt(
            "blocked_commands",
            TEXTS,
            "Commands to refuse; `*` stands for any text.",
        ),
        opt(
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
        opt("memory_mb", COUNT, "Memory of all processes together, in MiB."),
        opt("cpu_shares", COUNT, "Processor weight; 1024 stands for one core."),
        opt("max_processes", COUNT, "Processes and threads together."),
        opt("max_open_files", COUNT, "Open files of each process."),
        opt(
            "timeout_ms",
            COUNT,
            "Time limit in milliseconds; all processes end with it.",
        ),
        opt(
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
        req(
            "rules",
            FieldType::List {
                of: &FieldType::Map(&RULE),
                min: 1,
            },
            "Rules in their order. The first rule that matches a call decides; without a match the call is denied.",
        ),
        opt(
            "prompt_injection",
            FieldType::Map(&PROMPT_INJECTION),
            "How clawk looks for instructions in text that is only data.",
        ),
        opt(
            "secret_scanning",
            FieldType::Map(&SECRET_SCANNING),
            "Looks for secrets in arguments, results, or both.",
        ),
        opt(
            "input_validation",
            FieldType::Map(&INPUT_VALIDATION),
            "Checks text before a tool gets it.",
        ),
        opt(
            "rate_limits",
            FieldType::Map(&RATE_LIMITS),
            "Rates of the whole agent; beyond them, calls are refused.",
        ),
        opt(
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
        req(
            "id",
            FieldType::FullText,
            "The rule's name in verdicts and in the trace.",
        ),
        req(
            "action",
            FieldType::Word(RuleAction::WORDS),
            "What a match does: allow, deny, ask a person, or allow and audit.",
        ),
        req(
            "scope",
            FieldType::Word(RuleScope::WORDS),
            "Which kind of calls the rule is for.",
        ),
        opt(
            "match",
            FieldType::Map(&RULE_MATCH),
            "Which tools the rule matches. Every given key must match.",
        ),
        opt(
            "conditions",
            FieldType::AnyMap,
            "Conditions on the arguments, for example `path_within: DIR`.",
        ),
        opt(
            "rate_limit",
            FieldType::Map(&RULE_RATE),
            "The rule applies only after this much is spent.",
        ),
        opt(
            "reason",
            FieldType::Text,
            "A text for the person who is asked and for the caller who is refused.",
        ),
        opt(
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
        opt(
            "name",
            FieldType::Glob,
            "The tool's name, or a glob such as `file-*`.",
        ),
        opt("category", FieldType::FullText, "The tool's `labels.category`."),
        opt(
            "labels",
            FieldType::TextMap,
            "Labels that the tool must have, with these values.",
        ),
        opt(
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
        opt("cost_per_day_usd", MONEY, "US dollars per UTC day."),
        opt("tokens_per_day", COUNT, "Tokens per UTC day."),
    ],
};

static APPROVAL: MapShape = MapShape {
    title: "an approval",
    doc: "How approval is asked for.",
    fields: &[
        opt(
            "timeout_seconds",
            AT_LEAST_ONE,
            "Seconds until the question expires; 300 by default.",
        ),
        opt(
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
        opt(
            "detection",
            FieldType::Word(InjectionDetection::WORDS),
            "Who looks: patterns, a model, or both; `pattern` by default.",
        ),
        opt("pattern_engine", FieldType::Text, "Name of the pattern engine."),
        opt(
            "pattern_count",
            COUNT,
            "The least number of patterns; if clawk has fewer, the agent does not start.",
        ),
        opt(
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
        opt("enabled", FieldType::Bool, "On by default."),
        opt(
            "scope",
            FieldType::Word(ScanScope::WORDS),
            "Which text is scanned; `output` by default.",
        ),
        opt(
            "patterns",
            COUNT,
            "The least number of built-in patterns; 22 by default. If clawk has fewer, the agent does not start.",
        ),
        opt(
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
        opt("max_size_bytes", COUNT, "The largest input, in bytes."),
        opt(
            "null_byte_detection",
            FieldType::Bool,
            "Refuses null bytes; on by default.",
        ),
        opt(
            "whitespace_analysis",
            FieldType::Bool,
            "Looks for text that white space hides.",
        ),
        opt(
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
        opt("tool_calls_per_minute", COUNT, "Tool calls per minute."),
        opt("tokens_per_hour", COUNT, "Tokens per hour."),
        opt("cost_per_day_usd", MONEY, "US dollars per UTC day."),
    ],
};

static AUDIT: MapShape = MapShape {
    title: "audit",
    doc: "Audit.",
    fields: &[
        opt("log_inputs", FieldType::Bool, "Records arguments."),
        opt("log_outputs", FieldType::Bool, "Records results."),
        opt(
            "log_approvals",
            FieldType::Bool,
            "Records approvals; on by default.",
        ),
        opt(
            "retention",
            FieldType::Duration,
            "How long records are kept, for example `30d`.",
        ),
        opt(
            "destination",
            FieldType::Word(AuditDestination::WORDS),
            "Where audit records go; `sqlite` by default.",
        ),
    ],
};
