//! Sandbox and Policy (CKP §5.7, §5.8).

use super::{AT_LEAST_ONE, COUNT, MONEY, Shape, TEXTS, Type, opt, req};
use crate::model::{
    AuditDestination, Detection, FilesystemMode, InjectionAction, NetworkMode, Permission, RuleAction,
    RuleScope, SandboxLevel, SandboxRuntime, ScanAction, ScanScope, SecretInjection, ShellMode,
    TimeoutDefault,
};

pub(super) static SANDBOX: Shape = Shape {
    title: "a Sandbox",
    doc: "Where tools run; what is not granted is denied (CKP 5.7).",
    fields: &[
        req(
            "level",
            Type::Word(SandboxLevel::WORDS),
            "How strongly tools are isolated.",
        ),
        opt(
            "runtime",
            Type::Word(SandboxRuntime::WORDS),
            "What does the isolating; goes with the level by default.",
        ),
        opt("capabilities", Type::Map(&CAPABILITIES), "What is granted."),
        opt(
            "resource_limits",
            Type::Map(&RESOURCE_LIMITS),
            "Limits of one execution.",
        ),
    ],
};

static CAPABILITIES: Shape = Shape {
    title: "capabilities",
    doc: "What the sandbox grants; every part denies by default.",
    fields: &[
        opt("network", Type::Map(&NETWORK), "Outbound network."),
        opt("filesystem", Type::Map(&FILESYSTEM), "Files."),
        opt("secrets", Type::Map(&SECRETS), "Secrets."),
        opt("shell", Type::Map(&SHELL), "Shell commands."),
    ],
};

static NETWORK: Shape = Shape {
    title: "a network capability",
    doc: "Outbound network.",
    fields: &[
        opt("mode", Type::Word(NetworkMode::WORDS), "`deny` by default."),
        opt(
            "allowed_hosts",
            Type::List {
                of: &Type::Host,
                min: 0,
            },
            "Host names, `*.example.com` for subdomains; for `allowlist`.",
        ),
        opt(
            "ssrf_protection",
            Type::Map(&SSRF),
            "Guards against requests into private networks.",
        ),
    ],
};

static SSRF: Shape = Shape {
    title: "ssrf_protection",
    doc: "Guards against requests into private networks; all on by default.",
    fields: &[
        opt("enabled", Type::Bool, "The whole guard."),
        opt("block_private_ips", Type::Bool, "Refuse private addresses."),
        opt(
            "dns_pinning",
            Type::Bool,
            "Connect to the address that was checked.",
        ),
    ],
};

static FILESYSTEM: Shape = Shape {
    title: "a filesystem capability",
    doc: "Files.",
    fields: &[
        opt("mode", Type::Word(FilesystemMode::WORDS), "`deny` by default."),
        opt(
            "mount_paths",
            Type::List {
                of: &Type::Map(&MOUNT),
                min: 0,
            },
            "Paths made visible.",
        ),
        opt(
            "denied_paths",
            TEXTS,
            "Paths that stay invisible, whatever is mounted.",
        ),
    ],
};

static MOUNT: Shape = Shape {
    title: "a mount",
    doc: "A path made visible.",
    fields: &[
        req("path", Type::FullText, "The path."),
        req(
            "permissions",
            Type::Word(Permission::WORDS),
            "Read only, or read and write.",
        ),
    ],
};

static SECRETS: Shape = Shape {
    title: "a secrets capability",
    doc: "Secrets.",
    fields: &[
        opt(
            "injection",
            Type::Word(SecretInjection::WORDS),
            "How they reach a tool; `host-boundary` by default.",
        ),
        opt("encryption", Type::Text, "Cipher for secrets at rest."),
        opt(
            "leak_detection",
            Type::Map(&LEAK_DETECTION),
            "Scan of what leaves the sandbox.",
        ),
    ],
};

static LEAK_DETECTION: Shape = Shape {
    title: "leak_detection",
    doc: "Scan of what leaves the sandbox.",
    fields: &[
        opt("enabled", Type::Bool, "On by default."),
        opt(
            "patterns",
            COUNT,
            "At least so many secret patterns; 22 by default.",
        ),
    ],
};

static SHELL: Shape = Shape {
    title: "a shell capability",
    doc: "Shell commands.",
    fields: &[
        opt("mode", Type::Word(ShellMode::WORDS), "`deny` by default."),
        opt("blocked_commands", TEXTS, "Commands refused; `*` is any text."),
        opt(
            "blocked_patterns",
            Type::List {
                of: &Type::Regex,
                min: 0,
            },
            "Regular expressions refused, tested against the whole command.",
        ),
    ],
};

static RESOURCE_LIMITS: Shape = Shape {
    title: "resource_limits",
    doc: "Limits of one execution.",
    fields: &[
        opt("memory_mb", COUNT, "Memory in MiB."),
        opt("cpu_shares", COUNT, "1024 is one core's weight."),
        opt("max_processes", COUNT, "Processes and threads."),
        opt("max_open_files", COUNT, "File descriptors."),
        opt("timeout_ms", COUNT, "Wall-clock time."),
        opt("max_output_bytes", COUNT, "Bytes of output kept."),
    ],
};

pub(super) static POLICY: Shape = Shape {
    title: "a Policy",
    doc: "What is allowed, asked for and denied (CKP 5.8).",
    fields: &[
        req(
            "rules",
            Type::List {
                of: &Type::Map(&RULE),
                min: 1,
            },
            "In order; the first match decides.",
        ),
        opt(
            "prompt_injection",
            Type::Map(&PROMPT_INJECTION),
            "Defence against prompt injection.",
        ),
        opt("secret_scanning", Type::Map(&SECRET_SCANNING), "Secret scanning."),
        opt(
            "input_validation",
            Type::Map(&INPUT_VALIDATION),
            "Input validation.",
        ),
        opt(
            "rate_limits",
            Type::Map(&RATE_LIMITS),
            "Rates of the whole agent.",
        ),
        opt("audit", Type::Map(&AUDIT), "Audit."),
    ],
};

static RULE: Shape = Shape {
    title: "a rule",
    doc: "One rule.",
    fields: &[
        req("id", Type::FullText, "Named in verdicts and in the trace."),
        req("action", Type::Word(RuleAction::WORDS), "What it does."),
        req("scope", Type::Word(RuleScope::WORDS), "What it is about."),
        opt(
            "match",
            Type::Map(&RULE_MATCH),
            "What must hold of the tool; all that is given.",
        ),
        opt(
            "conditions",
            Type::AnyMap,
            "What must hold of the arguments: `path_within`.",
        ),
        opt(
            "rate_limit",
            Type::Map(&RULE_RATE),
            "The rule applies once this is spent.",
        ),
        opt("reason", Type::Text, "Told to people."),
        opt("approval", Type::Map(&APPROVAL), "For `require-approval`."),
    ],
};

static RULE_MATCH: Shape = Shape {
    title: "a match",
    doc: "What must hold of a tool; all that is given.",
    fields: &[
        opt("name", Type::Glob, "Exact name, or a glob."),
        opt("category", Type::FullText, "The tool's `labels.category`."),
        opt("labels", Type::TextMap, "Labels that must be equal."),
        opt("annotations", Type::AnyMap, "Annotations that must be equal."),
    ],
};

static RULE_RATE: Shape = Shape {
    title: "a rule's rate_limit",
    doc: "Limits that, once spent, make the rule apply.",
    fields: &[
        opt("cost_per_day_usd", MONEY, "In US dollars per UTC day."),
        opt("tokens_per_day", COUNT, "Tokens per UTC day."),
    ],
};

static APPROVAL: Shape = Shape {
    title: "an approval",
    doc: "How approval is asked for.",
    fields: &[
        opt("timeout_seconds", AT_LEAST_ONE, "300 by default."),
        opt(
            "default_if_timeout",
            Type::Word(TimeoutDefault::WORDS),
            "What happens when nobody answers; `deny` by default.",
        ),
    ],
};

static PROMPT_INJECTION: Shape = Shape {
    title: "prompt_injection",
    doc: "Defence against prompt injection.",
    fields: &[
        opt("detection", Type::Word(Detection::WORDS), "`pattern` by default."),
        opt("pattern_engine", Type::Text, "Name of the pattern engine."),
        opt("pattern_count", COUNT, "At least so many patterns."),
        opt(
            "action",
            Type::Word(InjectionAction::WORDS),
            "`block-and-log` by default.",
        ),
    ],
};

static SECRET_SCANNING: Shape = Shape {
    title: "secret_scanning",
    doc: "Secret scanning.",
    fields: &[
        opt("enabled", Type::Bool, "On by default."),
        opt("scope", Type::Word(ScanScope::WORDS), "`output` by default."),
        opt(
            "patterns",
            COUNT,
            "At least so many built-in patterns; 22 by default.",
        ),
        opt("action", Type::Word(ScanAction::WORDS), "`redact` by default."),
    ],
};

static INPUT_VALIDATION: Shape = Shape {
    title: "input_validation",
    doc: "Input validation.",
    fields: &[
        opt("max_size_bytes", COUNT, "Largest input."),
        opt(
            "null_byte_detection",
            Type::Bool,
            "Refuse null bytes; on by default.",
        ),
        opt(
            "whitespace_analysis",
            Type::Bool,
            "Look for text hidden by white space.",
        ),
        opt("encoding", Type::Text, "Expected encoding; `utf-8` by default."),
    ],
};

static RATE_LIMITS: Shape = Shape {
    title: "rate_limits",
    doc: "Rates of the whole agent.",
    fields: &[
        opt("tool_calls_per_minute", COUNT, "Tool calls in a minute."),
        opt("tokens_per_hour", COUNT, "Tokens in an hour."),
        opt("cost_per_day_usd", MONEY, "In US dollars per UTC day."),
    ],
};

static AUDIT: Shape = Shape {
    title: "audit",
    doc: "Audit.",
    fields: &[
        opt("log_inputs", Type::Bool, "Keep arguments."),
        opt("log_outputs", Type::Bool, "Keep results."),
        opt("log_approvals", Type::Bool, "Keep approvals; on by default."),
        opt("retention", Type::Duration, "How long."),
        opt(
            "destination",
            Type::Word(AuditDestination::WORDS),
            "`sqlite` by default.",
        ),
    ],
};
