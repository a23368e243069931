//! Every conditional rule, with one document that keeps it and one that breaks it.

use clawk_manifest::{LoadOptions, LoadedDocument, validate_primitive};

use crate::{errors, warnings};

/// A primitive's spec in flow style.
fn check_rules(kind: &str, spec: &str) -> LoadedDocument {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("primitive.yaml");
    let text = format!(
        "claw: \"0.3.0\"\nkind: {kind}\nmetadata: {{name: \"x\"}}\nspec:\n  {}\n",
        spec.replace('\n', "\n  ")
    );
    std::fs::write(&path, text).unwrap();
    validate_primitive(&path, &LoadOptions::default())
}

#[track_caller]
fn accepts(kind: &str, spec: &str) {
    let loaded = check_rules(kind, spec);
    assert_eq!((errors(&loaded), warnings(&loaded)), (vec![], vec![]), "{spec}");
}

#[track_caller]
fn rejects(kind: &str, spec: &str, expected: &str) {
    assert_eq!(errors(&check_rules(kind, spec)), [expected], "{spec}");
}

#[track_caller]
fn warns(kind: &str, spec: &str, expected: &str) {
    let loaded = check_rules(kind, spec);
    assert_eq!(
        (errors(&loaded), warnings(&loaded)),
        (vec![], vec![expected.to_owned()]),
        "{spec}"
    );
}

#[test]
fn identity() {
    accepts(
        "Identity",
        "{personality: hello, autonomy: observer, context_files: {user: USER.md}, locale: de-DE}",
    );
    rejects(
        "Identity",
        "{autonomy: observer}",
        "missing-field /spec/personality",
    );
    rejects(
        "Identity",
        "{personality: \"  \"}",
        "empty-text /spec/personality",
    );
    rejects("Identity", "{personality:}", "no-value /spec/personality");
    rejects(
        "Identity",
        "{personality: x, autonomy: superviced}",
        "unknown-value /spec/autonomy",
    );
    rejects(
        "Identity",
        "{personality: x, context_files: {user: 5}}",
        "wrong-type /spec/context_files/user",
    );
    rejects(
        "Identity",
        "{personality: x, context_files: {user: ../USER.md}}",
        "outside-tree /spec/context_files/user",
    );
    rejects(
        "Identity",
        "{personality: x, context_files: {user: /etc/passwd}}",
        "outside-tree /spec/context_files/user",
    );
    accepts("Identity", "{personality: no}"); // text, as YAML 1.2 has it
}

#[test]
fn provider() {
    let with = |more: &str| {
        format!(
            "{{protocol: openai-compatible, endpoint: \"http://h/v1\", model: m, auth: {{type: none}}{more}}}"
        )
    };
    let auth = |auth: &str| format!("{{protocol: custom, endpoint: script.yaml, model: m, auth: {auth}}}");
    accepts(
        "Provider",
        &with(", hints: {cost_priority: 0.5}, limits: {tokens_per_day: 0}, retry: {backoff: linear}"),
    );
    accepts(
        "Provider",
        &with(", capabilities: [text, image], transport: grpc"),
    );
    accepts("Provider", &auth("{type: bearer, secret_ref: KEY}"));
    for kind in ["bearer", "api-key-header", "oauth2"] {
        rejects(
            "Provider",
            &auth(&format!("{{type: {kind}}}")),
            "missing-field /spec/auth/secret_ref",
        );
    }
    warns(
        "Provider",
        &auth("{type: none, secret_ref: KEY}"),
        "no-effect /spec/auth/secret_ref",
    );
    rejects(
        "Provider",
        &auth("{type: bearer, secret_ref: ../KEY}"),
        "bad-secret-ref /spec/auth/secret_ref",
    );
    rejects(
        "Provider",
        &with(", hints: {cost_priority: 1.01}"),
        "out-of-range /spec/hints/cost_priority",
    );
    rejects(
        "Provider",
        &with(", hints: {speed_priority: -0.1}"),
        "out-of-range /spec/hints/speed_priority",
    );
    rejects(
        "Provider",
        &with(", limits: {tokens_per_day: -1}"),
        "out-of-range /spec/limits/tokens_per_day",
    );
    rejects(
        "Provider",
        &with(", limits: {tokens_per_day: 1.5}"),
        "out-of-range /spec/limits/tokens_per_day",
    );
    rejects(
        "Provider",
        &with(", limits: {tokens_per_day: 010}"),
        "wrong-type /spec/limits/tokens_per_day",
    );
    rejects(
        "Provider",
        &with(", retry: {max_attempts: 4294967296}"),
        "out-of-range /spec/retry/max_attempts",
    );
    rejects(
        "Provider",
        &with(", streaming: yes"),
        "wrong-type /spec/streaming",
    );
    rejects(
        "Provider",
        &with(", capabilities: [smell]"),
        "unknown-value /spec/capabilities/0",
    );
    let ftp = "{protocol: anthropic-native, endpoint: \"ftp://h\", model: m, auth: {type: none}}";
    rejects("Provider", ftp, "bad-url /spec/endpoint");
}

#[test]
fn channel_access() {
    let with = |access: &str| {
        format!("{{type: slack, transport: webhook, auth: {{secret_ref: T}}, access_control: {access}}}")
    };
    let at = |code: &str, field: &str| format!("{code} /spec/access_control/{field}");
    accepts("Channel", &with("{mode: open}"));
    accepts("Channel", &with("{mode: allowlist, allowed_ids: [\"1\"]}"));
    accepts(
        "Channel",
        &with("{mode: pairing, pairing: {code_expiry_minutes: 30, max_pending: 10}}"),
    );
    accepts(
        "Channel",
        &with("{mode: role-based, roles: [{id: a, role: viewer}]}"),
    );
    rejects(
        "Channel",
        &with("{mode: allowlist}"),
        &at("missing-field", "allowed_ids"),
    );
    rejects(
        "Channel",
        &with("{mode: pairing}"),
        &at("missing-field", "pairing"),
    );
    rejects(
        "Channel",
        &with("{mode: role-based}"),
        &at("missing-field", "roles"),
    );
    rejects(
        "Channel",
        &with("{mode: open, allowed_ids: []}"),
        &at("field-of-other-mode", "allowed_ids"),
    );
    rejects(
        "Channel",
        &with("{mode: open, roles: []}"),
        &at("field-of-other-mode", "roles"),
    );
    rejects(
        "Channel",
        &with("{mode: allowlist, allowed_ids: [\"1\"], roles: []}"),
        &at("field-of-other-mode", "roles"),
    );
    rejects(
        "Channel",
        &with("{mode: role-based, roles: [], allowed_ids: []}"),
        &at("field-of-other-mode", "allowed_ids"),
    );
    rejects(
        "Channel",
        &with("{mode: role-based, roles: [{id: a, role: boss}]}"),
        &at("unknown-value", "roles/0/role"),
    );
    rejects(
        "Channel",
        &with("{mode: allowlist, allowed_ids: [12345]}"),
        &at("wrong-type", "allowed_ids/0"),
    );
    rejects(
        "Channel",
        "{type: cli, transport: stdio}",
        "missing-field /spec/auth",
    );
    rejects(
        "Channel",
        "{type: cli, transport: stdio, auth: {}}",
        "missing-field /spec/auth/secret_ref",
    );
}

#[test]
fn channel_triggers() {
    let with = |kind: &str, more: &str| {
        format!("{{type: {kind}, transport: polling, auth: {{secret_ref: T}}{more}}}")
    };
    let cases = [
        ("cron", "schedule", "\"0 */6 * * *\""),
        ("queue", "queue_name", "q"),
        ("imap", "mailbox", "INBOX"),
        ("db-trigger", "table", "t"),
    ];
    for (kind, field, value) in cases {
        accepts(
            "Channel",
            &with(
                kind,
                &format!(", trigger: {{{field}: {value}, max_parallel: 2, overlap_policy: queue}}"),
            ),
        );
        rejects("Channel", &with(kind, ""), "missing-field /spec/trigger");
        rejects(
            "Channel",
            &with(kind, ", trigger: {}"),
            &format!("missing-field /spec/trigger/{field}"),
        );
    }
    accepts(
        "Channel",
        &with("db-trigger", ", trigger: {table: t, events: [INSERT, DELETE]}"),
    );
    rejects(
        "Channel",
        &with("db-trigger", ", trigger: {table: t, events: [insert]}"),
        "unknown-value /spec/trigger/events/0",
    );
    rejects(
        "Channel",
        &with("cron", ", trigger: {schedule: \"61 * * * *\"}"),
        "bad-cron /spec/trigger/schedule",
    );
    rejects(
        "Channel",
        &with("cron", ", trigger: {schedule: \"* * * * *\", max_parallel: 0}"),
        "out-of-range /spec/trigger/max_parallel",
    );
    warns(
        "Channel",
        &with("cron", ", trigger: {schedule: \"* * * * *\", events: [INSERT]}"),
        "no-effect /spec/trigger/events",
    );
    warns(
        "Channel",
        &with("slack", ", trigger: {schedule: \"* * * * *\"}"),
        "no-effect /spec/trigger",
    );
}

#[test]
fn tool() {
    let inline = "description: d, input_schema: {type: object}";
    accepts(
        "Tool",
        &format!("{{{inline}, timeout_ms: 100, retry: {{max_attempts: 2}}}}"),
    );
    accepts(
        "Tool",
        "{mcp_source: {uri: \"stdio:///usr/bin/server?arg=-v\", tool_name: read}}",
    );
    accepts(
        "Tool",
        "{mcp_source: {uri: \"https://mcp.example.com/x\"}, annotations: {readOnlyHint: true, mine: [1]}}",
    );
    accepts("Tool", "{mcp_source: {uri: \"http://127.0.0.1:80/x\"}}");
    rejects(
        "Tool",
        "{input_schema: {type: object}}",
        "missing-field /spec/description",
    );
    rejects("Tool", "{description: d}", "missing-field /spec/input_schema");
    rejects(
        "Tool",
        "{mcp_source: {uri: \"mcp://x\"}}",
        "reserved-scheme /spec/mcp_source/uri",
    );
    rejects(
        "Tool",
        "{mcp_source: {uri: \"http://example.com/\"}}",
        "bad-mcp-uri /spec/mcp_source/uri",
    );
    rejects(
        "Tool",
        "{mcp_source: {uri: \"stdio:///\"}}",
        "bad-mcp-uri /spec/mcp_source/uri",
    );
    rejects("Tool", "{mcp_source: {}}", "missing-field /spec/mcp_source/uri");
    rejects(
        "Tool",
        "{description: d, input_schema: {type: string}}",
        "bad-schema /spec/input_schema/type",
    );
    accepts("Tool", "{description: d, input_schema: {properties: {}}}");
    rejects(
        "Tool",
        "{description: d, input_schema: true}",
        "wrong-type /spec/input_schema",
    );
    rejects(
        "Tool",
        "{description: d, input_schema: {type: object, required: x}}",
        "bad-schema /spec/input_schema/required",
    );
    accepts("Tool", &format!("{{{inline}, composite: true, skill_ref: s}}"));
    rejects(
        "Tool",
        &format!("{{{inline}, composite: true}}"),
        "missing-field /spec/skill_ref",
    );
    warns(
        "Tool",
        &format!("{{{inline}, skill_ref: s}}"),
        "no-effect /spec/skill_ref",
    );
    rejects(
        "Tool",
        "{mcp_source: {uri: \"stdio:///x\"}, composite: true, skill_ref: s}",
        "composite-mcp /spec/mcp_source",
    );
    rejects(
        "Tool",
        &format!("{{{inline}, annotations: {{readOnlyHint: \"yes\"}}}}"),
        "wrong-type /spec/annotations/readOnlyHint",
    );
    warns(
        "Tool",
        &format!("{{{inline}, annotations: {{idempotentHint: false}}, retry: {{}}}}"),
        "no-effect /spec/retry",
    );
    rejects(
        "Tool",
        &format!("{{{inline}, sandbox_ref: \"claw://policy/x\"}}"),
        "bad-reference /spec/sandbox_ref",
    );
    rejects(
        "Tool",
        &format!("{{{inline}, sandbox_ref: \"a b\"}}"),
        "bad-reference /spec/sandbox_ref",
    );
}

#[test]
fn skill() {
    accepts(
        "Skill",
        "{description: d, tools_required: [a], instruction: i, permissions: {filesystem: read-only}}",
    );
    rejects(
        "Skill",
        "{description: d, tools_required: [], instruction: i}",
        "empty-list /spec/tools_required",
    );
    rejects(
        "Skill",
        "{description: d, tools_required: a, instruction: i}",
        "wrong-type /spec/tools_required",
    );
    rejects(
        "Skill",
        "{description: d, instruction: i}",
        "missing-field /spec/tools_required",
    );
    rejects(
        "Skill",
        "{description: d, tools_required: [a], instruction: i, input_schema: {type: array}}",
        "bad-schema /spec/input_schema/type",
    );
    warns(
        "Skill",
        "{description: d, tools_required: [a, a], instruction: i}",
        "repeated-entry /spec/tools_required/1",
    );
}

#[test]
fn memory() {
    accepts(
        "Memory",
        "{stores: [{name: c, type: conversation, retention: {max_age: 30d}, compaction: {enabled: true}}]}",
    );
    accepts(
        "Memory",
        "{stores: [{name: s, type: semantic, embedding: {provider_ref: p, model: m, dimensions: 3}, search: {top_k: 5}}]}",
    );
    accepts(
        "Memory",
        "{stores: [{name: w, type: workspace, path: \"~/{identity_name}/{tenant_id}\", isolation: shared}]}",
    );
    accepts(
        "Memory",
        "{stores: [{name: k, type: checkpoint, checkpoint: {max_snapshots: 3, ttl: 24h}, role: working}]}",
    );
    rejects("Memory", "{stores: []}", "empty-list /spec/stores");
    rejects(
        "Memory",
        "{stores: [{name: a, type: key-value}, {name: a, type: semantic}]}",
        "name-collision /spec/stores/1/name",
    );
    rejects(
        "Memory",
        "{stores: [{name: a, type: conversation, retention: {max_age: 30 days}}]}",
        "bad-duration /spec/stores/0/retention/max_age",
    );
    rejects(
        "Memory",
        "{stores: [{name: a, type: workspace, path: \"{home}/x\"}]}",
        "unknown-variable /spec/stores/0/path",
    );
    rejects(
        "Memory",
        "{stores: [{name: a, type: semantic, embedding: {provider_ref: p, model: m, dimensions: 0}}]}",
        "out-of-range /spec/stores/0/embedding/dimensions",
    );
    warns(
        "Memory",
        "{stores: [{name: a, type: key-value, compaction: {}}]}",
        "no-effect /spec/stores/0/compaction",
    );
}

#[test]
fn memory_that_never_does_what_it_says() {
    let kept = [
        "type: semantic, forgetting: {strategy: decay, signals: [recency]}, salience: {enabled: true, signals: [trust]}",
        "type: semantic, lifecycle: {consolidation: summarize}, retention: {max_entries: 100}",
        "type: semantic, search: {strategy: hybrid, fusion: linear-combination}, lifecycle: {retrieval: contextual}",
        "type: conversation, lifecycle: {acquisition: event-driven}, forgetting: {strategy: summarize}, retention: {max_entries: 9}",
        "type: workspace, scope: global",
        "type: workspace, path: files, backend: filesystem",
        "type: workspace, path: files",
        "type: workspace, backend: sqlite, encryption: true",
        "type: semantic, lifecycle: {retrieval: exact}",
        "type: semantic, confidence: {source_tracking: true, decay: adaptive}",
        "type: key-value, role: working, forgetting: {strategy: decay}",
    ];
    for store in kept {
        accepts("Memory", &format!("{{stores: [{{name: s, {store}}}]}}"));
    }
    let idle = [
        (
            "type: semantic, forgetting: {strategy: summarize, signals: [recency]}, retention: {max_entries: 9}",
            "forgetting/signals",
        ),
        (
            "type: semantic, forgetting: {strategy: summarize}",
            "forgetting/strategy",
        ),
        (
            "type: key-value, forgetting: {strategy: summarize}, retention: {max_entries: 9}",
            "forgetting/strategy",
        ),
        (
            "type: semantic, salience: {enabled: false, signals: [trust]}",
            "salience/signals",
        ),
        (
            "type: semantic, search: {strategy: fts-only, fusion: reciprocal-rank}",
            "search/fusion",
        ),
        (
            "type: semantic, search: {strategy: vector-only}, lifecycle: {retrieval: exact}",
            "lifecycle/retrieval",
        ),
        (
            "type: key-value, lifecycle: {acquisition: continuous}",
            "lifecycle/acquisition",
        ),
        (
            "type: semantic, lifecycle: {acquisition: event-driven}",
            "lifecycle/acquisition",
        ),
        (
            "type: conversation, lifecycle: {consolidation: adaptive}",
            "lifecycle/consolidation",
        ),
        (
            "type: workspace, lifecycle: {consolidation: summarize}, retention: {max_entries: 9}",
            "lifecycle/consolidation",
        ),
        ("type: workspace, isolation: shared, scope: global", "scope"),
        (
            "type: semantic, confidence: {decay: adaptive}",
            "confidence/decay",
        ),
        (
            "type: semantic, search: {strategy: fts-only}, embedding: {provider_ref: p, model: m, dimensions: 3}",
            "embedding",
        ),
        (
            "type: semantic, lifecycle: {retrieval: exact}, embedding: {provider_ref: p, model: m, dimensions: 3}",
            "embedding",
        ),
        (
            "type: semantic, search: {strategy: hybrid}, lifecycle: {retrieval: exact}",
            "search/strategy",
        ),
    ];
    for (store, field) in idle {
        let spec = format!("{{stores: [{{name: s, {store}}}]}}");
        warns("Memory", &spec, &format!("no-effect /spec/stores/0/{field}"));
    }
}

#[test]
fn sandbox() {
    accepts(
        "Sandbox",
        "{level: process, capabilities: {shell: {mode: restricted, blocked_patterns: ['eval\\s+']}}}",
    );
    accepts(
        "Sandbox",
        "{level: container, runtime: docker, capabilities: {network: {mode: allowlist, allowed_hosts: ['*.a.com']}}}",
    );
    rejects("Sandbox", "{}", "missing-field /spec/level");
    rejects("Sandbox", "{level: jail}", "unknown-value /spec/level");
    rejects(
        "Sandbox",
        "{level: process, capabilities: {shell: {mode: restricted, blocked_patterns: ['(']}}}",
        "bad-regex /spec/capabilities/shell/blocked_patterns/0",
    );
    rejects(
        "Sandbox",
        "{level: none, capabilities: {network: {mode: allowlist, allowed_hosts: ['https://a.com/']}}}",
        "bad-host /spec/capabilities/network/allowed_hosts/0",
    );
    rejects(
        "Sandbox",
        "{level: none, capabilities: {filesystem: {mode: scoped, mount_paths: [{path: /x, permissions: rwx}]}}}",
        "unknown-value /spec/capabilities/filesystem/mount_paths/0/permissions",
    );
    warns(
        "Sandbox",
        "{level: wasm, runtime: docker}",
        "runtime-mismatch /spec/runtime",
    );
    warns(
        "Sandbox",
        "{level: none, capabilities: {network: {allowed_hosts: [a.com]}}}",
        "no-effect /spec/capabilities/network/allowed_hosts",
    );
    warns(
        "Sandbox",
        "{level: none, capabilities: {filesystem: {mode: deny, mount_paths: []}}}",
        "no-effect /spec/capabilities/filesystem/mount_paths",
    );
    warns(
        "Sandbox",
        "{level: none, capabilities: {shell: {mode: full, blocked_commands: [x]}}}",
        "no-effect /spec/capabilities/shell/blocked_commands",
    );
}

#[test]
fn policy() {
    let rule = |more: &str| format!("{{rules: [{{id: a, action: deny, scope: tool{more}}}]}}");
    accepts(
        "Policy",
        &rule(", match: {name: \"mcp-*\", labels: {a: b}, annotations: {destructiveHint: true}}"),
    );
    accepts(
        "Policy",
        "{rules: [{id: a, action: require-approval, scope: all, approval: {timeout_seconds: 1, default_if_timeout: allow}}]}",
    );
    accepts("Policy", &rule(", conditions: {path_within: /workspace}"));
    rejects("Policy", "{rules: []}", "empty-list /spec/rules");
    rejects(
        "Policy",
        "{rules: [{action: deny, scope: all}]}",
        "missing-field /spec/rules/0/id",
    );
    rejects(
        "Policy",
        "{rules: [{id: a, action: block, scope: all}]}",
        "unknown-value /spec/rules/0/action",
    );
    rejects(
        "Policy",
        "{rules: [{id: a, action: deny, scope: tool, match: {category: x}}, {id: a, action: deny, scope: all}]}",
        "name-collision /spec/rules/1/id",
    );
    rejects(
        "Policy",
        "{rules: [{id: a, action: require-approval, scope: all, approval: {timeout_seconds: 0}}]}",
        "out-of-range /spec/rules/0/approval/timeout_seconds",
    );
    rejects(
        "Policy",
        &rule(", match: {name: \"[\"}"),
        "bad-glob /spec/rules/0/match/name",
    );
    rejects(
        "Policy",
        &rule(", match: {tool: x}"),
        "unknown-field /spec/rules/0/match/tool",
    );
    rejects(
        "Policy",
        &rule(", conditions: {path_within: 5}"),
        "wrong-type /spec/rules/0/conditions/path_within",
    );
    warns(
        "Policy",
        &rule(", conditions: {weekday: mon}"),
        "unknown-condition /spec/rules/0/conditions/weekday",
    );
    warns(
        "Policy",
        &rule(", approval: {}"),
        "no-effect /spec/rules/0/approval",
    );
    warns(
        "Policy",
        &rule(", rate_limit: {}"),
        "no-effect /spec/rules/0/rate_limit",
    );
    warns(
        "Policy",
        "{rules: [{id: a, action: deny, scope: all, match: {name: x}}]}",
        "no-effect /spec/rules/0/match",
    );
    warns(
        "Policy",
        "{rules: [{id: a, action: deny, scope: category}]}",
        "broad-rule /spec/rules/0",
    );
    let rules = "rules: [{id: a, action: deny, scope: all}]";
    for destination in ["file", "sqlite"] {
        accepts(
            "Policy",
            &format!("{{{rules}, audit: {{destination: {destination}, retention: 30d}}}}"),
        );
    }
    for destination in ["webhook", "syslog"] {
        warns(
            "Policy",
            &format!("{{{rules}, audit: {{destination: {destination}, retention: 30d}}}}"),
            "no-effect /spec/audit/retention",
        );
    }
    warns(
        "Policy",
        &format!("{{{rules}, prompt_injection: {{detection: none, action: warn}}}}"),
        "no-effect /spec/prompt_injection/action",
    );
}

#[test]
fn swarm() {
    let with = |agents: &str, rest: &str| {
        format!(
            "{{topology: peer-to-peer, agents: {agents}, coordination: {{message_passing: direct, backend: in-process{rest}}}, aggregation: {{strategy: merge}}}}"
        )
    };
    let one = "[{identity_ref: a, role: peer}]";
    accepts("Swarm", &with(one, ", concurrency: {}"));
    accepts(
        "Swarm",
        &with(
            "[{identity_ref: \"claw://registry/ns/a@1.0.0\", role: peer, count: 3}]",
            ", concurrency: {}",
        ),
    );
    rejects(
        "Swarm",
        &with("[]", ", concurrency: {}"),
        "empty-list /spec/agents",
    );
    rejects(
        "Swarm",
        &with(one, ""),
        "missing-field /spec/coordination/concurrency",
    );
    rejects(
        "Swarm",
        &with("[{identity_ref: a, role: peer, count: 0}]", ", concurrency: {}"),
        "out-of-range /spec/agents/0/count",
    );
    rejects(
        "Swarm",
        &with(
            "[{identity_ref: \"claw://tool/a\", role: peer}]",
            ", concurrency: {}",
        ),
        "bad-reference /spec/agents/0/identity_ref",
    );
    let leaderless = with(one, ", concurrency: {}").replace("peer-to-peer", "leader-worker");
    warns("Swarm", &leaderless, "no-leader /spec/agents");
}

#[test]
fn telemetry() {
    accepts(
        "Telemetry",
        "{exporters: [{type: console}], sampling: {rate: 0}, events: {planning_ops: true}}",
    );
    for kind in ["otlp", "webhook"] {
        accepts(
            "Telemetry",
            &format!("{{exporters: [{{type: {kind}, endpoint: \"https://h/v1\"}}]}}"),
        );
        rejects(
            "Telemetry",
            &format!("{{exporters: [{{type: {kind}}}]}}"),
            "missing-field /spec/exporters/0/endpoint",
        );
    }
    for kind in ["file", "sqlite"] {
        accepts(
            "Telemetry",
            &format!("{{exporters: [{{type: {kind}, path: /var/log/x}}]}}"),
        );
        rejects(
            "Telemetry",
            &format!("{{exporters: [{{type: {kind}}}]}}"),
            "missing-field /spec/exporters/0/path",
        );
    }
    for (exporter, field) in [
        ("type: otlp, endpoint: \"https://h/v1\", path: x", "path"),
        ("type: file, path: x, endpoint: \"https://h/v1\"", "endpoint"),
        ("type: sqlite, path: x, auth: {secret_ref: K}", "auth"),
        ("type: console, path: x", "path"),
    ] {
        warns(
            "Telemetry",
            &format!("{{exporters: [{{{exporter}}}]}}"),
            &format!("no-effect /spec/exporters/0/{field}"),
        );
    }
    rejects("Telemetry", "{exporters: []}", "empty-list /spec/exporters");
    rejects(
        "Telemetry",
        "{exporters: [{type: console}], sampling: {rate: 1.5}}",
        "out-of-range /spec/sampling/rate",
    );
    rejects(
        "Telemetry",
        "{exporters: [{type: console}], sampling: {rate: \"1\"}}",
        "wrong-type /spec/sampling/rate",
    );
    rejects(
        "Telemetry",
        "{exporters: [{type: otlp, endpoint: collector}]}",
        "bad-url /spec/exporters/0/endpoint",
    );
}

#[test]
fn world_model() {
    accepts(
        "WorldModel",
        "{paradigm: hybrid, backend: {type: tool, ref: t}, predicts: {risk: true}, update: {mode: online, evidence: observations+outcomes}}",
    );
    rejects(
        "WorldModel",
        "{backend: {type: custom, ref: x}}",
        "missing-field /spec/paradigm",
    );
    rejects("WorldModel", "{paradigm: hybrid}", "missing-field /spec/backend");
    rejects(
        "WorldModel",
        "{paradigm: hybrid, backend: {type: tool, ref: \"claw://skill/x\"}}",
        "bad-reference /spec/backend/ref",
    );
}

#[test]
fn settings_for_people_say_where_nobody_writes() {
    let settings = [
        ("access_control: {mode: open}", "access_control"),
        (
            "processing: {max_message_length: 9}",
            "processing/max_message_length",
        ),
        (
            "processing: {rate_limit: {messages_per_minute: 1}}",
            "processing/rate_limit",
        ),
        ("features: {files: false}", "features/files"),
        ("features: {inline_images: false}", "features/inline_images"),
    ];
    let channel = |kind: &str, setting: &str| {
        let transport = if kind == "slack" { "webhook" } else { "stdio" };
        let trigger = match kind {
            "cron" => ", trigger: {schedule: \"* * * * *\"}",
            "queue" => ", trigger: {queue_name: q}",
            "imap" => ", trigger: {mailbox: INBOX}",
            "db-trigger" => ", trigger: {table: t}",
            _ => "",
        };
        format!("{{type: {kind}, transport: {transport}, auth: {{secret_ref: NONE}}, {setting}{trigger}}}")
    };
    for (setting, at) in settings {
        warns(
            "Channel",
            &channel("cli", setting),
            &format!("no-effect /spec/{at}"),
        );
        accepts("Channel", &channel("slack", setting));
    }
    for kind in ["cron", "queue", "imap", "db-trigger"] {
        warns(
            "Channel",
            &channel(kind, "access_control: {mode: open}"),
            "no-effect /spec/access_control",
        );
        accepts("Channel", &channel(kind, "features: {files: false}"));
    }
    warns(
        "Channel",
        "{type: cli, transport: stdio, auth: {secret_ref: TOKEN}}",
        "no-effect /spec/auth/secret_ref",
    );
    accepts(
        "Channel",
        "{type: cli, transport: stdio, auth: {secret_ref: NONE}}",
    );
}

#[test]
fn a_world_model_that_learns_nothing_says_so() {
    let model = |more: &str| format!("{{paradigm: implicit, backend: {{type: provider, ref: p}}, {more}}}");
    for (more, at) in [
        ("memory_ref: notes", "memory_ref"),
        ("scope: agent-wide", "scope"),
        ("update: {evidence: observations}", "update/evidence"),
    ] {
        warns("WorldModel", &model(more), &format!("no-effect /spec/{at}"));
    }
    accepts(
        "WorldModel",
        &model("memory_ref: notes, scope: task-scoped, update: {mode: online, evidence: observations}"),
    );
}
