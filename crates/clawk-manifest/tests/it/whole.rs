//! Rules across primitives: names, references, cycles, levels; and that everything is said at once.

use serde_json::json;

use crate::{errors, load_text, manifest, warnings};

const TOOL: &str = "description: d, input_schema: {type: object}";
const POLICY: &str = "  policies: [{inline: {rules: [{id: a, action: allow, scope: all}]}}]\n";

#[test]
fn names_are_given_by_position_and_kind() {
    let more = format!(
        "  tools: [{{inline: {{{TOOL}}}}}, {{inline: {{name: own, {TOOL}}}}}, {{inline: {{{TOOL}}}}}]\n{POLICY}  \
         memory: {{inline: {{stores: [{{name: s, type: key-value}}]}}}}\n  sandbox: {{inline: {{level: none}}}}\n"
    );
    let manifest = load_text(&manifest(&more)).manifest.unwrap();
    let names: Vec<&str> = manifest.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["tool-0", "own", "tool-2"]);
    assert_eq!(manifest.identity.name, "test-bot");
    assert_eq!(
        (manifest.memory.unwrap().name, manifest.sandbox.unwrap().name),
        ("memory".into(), "sandbox".into())
    );
    assert_eq!(manifest.policies[0].name, "policy-0");
    assert_eq!(manifest.tools[0].version.as_deref(), Some("1.2.3"));
}

#[test]
fn collisions_within_a_kind_are_errors() {
    let more =
        format!("  tools: [{{inline: {{name: a, {TOOL}}}}}, {{inline: {{name: a, {TOOL}}}}}]\n{POLICY}");
    assert_eq!(
        errors(&load_text(&manifest(&more))),
        ["name-collision /spec/tools/1/inline/name"]
    );
    let more = format!("  tools: [{{inline: {{name: tool-1, {TOOL}}}}}, {{inline: {{{TOOL}}}}}]\n{POLICY}");
    let loaded = load_text(&manifest(&more));
    assert_eq!(errors(&loaded), ["name-collision /spec/tools/1/inline"]);
    assert!(loaded.diagnostics[0].help.as_deref().unwrap().contains("made up"));
    let more = format!("  tools: [{{inline: {{name: main, {TOOL}}}}}]\n{POLICY}"); // a provider is called main, too
    assert_eq!(errors(&load_text(&manifest(&more))), Vec::<String>::new());
}

#[test]
fn inline_primitives_carry_name_version_and_labels_only() {
    let more = format!(
        "  tools: [{{inline: {{name: a, version: \"2.0.0\", labels: {{category: net}}, {TOOL}}}}}]\n{POLICY}"
    );
    let loaded = load_text(&manifest(&more)).manifest.unwrap();
    assert_eq!(
        (loaded.tools[0].category(), loaded.tools[0].version.as_deref()),
        (Some("net"), Some("2.0.0"))
    );
    let cases = [
        ("{name: \"a b\", }", "bad-name /spec/tools/0/inline/name"),
        ("{labels: {a: 1}, }", "wrong-type /spec/tools/0/inline/labels/a"),
        ("{version: v1, }", "bad-version /spec/tools/0/inline/version"),
        (
            "{metadata: {name: a}, }",
            "unknown-field /spec/tools/0/inline/metadata",
        ),
        ("{spec: {}, }", "unknown-field /spec/tools/0/inline/spec"),
        ("{handler: x, }", "unknown-field /spec/tools/0/inline/handler"),
    ];
    for (inline, expected) in cases {
        let more = format!(
            "  tools: [{{inline: {}}}]\n{POLICY}",
            inline.replace(" }", &format!(" {TOOL}}}"))
        );
        assert_eq!(errors(&load_text(&manifest(&more))), [expected], "{inline}");
    }
}

#[test]
fn every_reference_must_be_declared() {
    let more = format!(
        "  tools:\n    - inline: {{name: a, {TOOL}, sandbox_ref: nowhere, policy_ref: policy-0}}\n    \
         - inline: {{name: b, {TOOL}, policy_ref: gone, composite: true, skill_ref: lost}}\n  \
         skills:\n    - inline: {{name: s, description: d, tools_required: [a, bb], instruction: i, world_model_ref: w}}\n  \
         memory: {{inline: {{stores: [{{name: k, type: semantic, embedding: {{provider_ref: mian, model: m, dimensions: 1}}}}]}}}}\n  \
         world_models:\n    - inline: {{paradigm: hybrid, memory_ref: kk, backend: {{type: provider, ref: x}}, constraints: {{policy_ref: y}}}}\n  \
         swarm: {{inline: {{topology: broadcast, agents: [{{identity_ref: other, role: peer, provider_ref: z}}], \
         coordination: {{message_passing: direct, backend: in-process, concurrency: {{}}}}, aggregation: {{strategy: merge}}}}}}\n{POLICY}"
    );
    let loaded = load_text(&manifest(&more));
    let mut found = errors(&loaded);
    found.sort();
    let mut expected: Vec<String> = [
        "/spec/tools/0/inline/sandbox_ref",
        "/spec/tools/1/inline/policy_ref",
        "/spec/tools/1/inline/skill_ref",
        "/spec/skills/0/inline/tools_required/1",
        "/spec/skills/0/inline/world_model_ref",
        "/spec/memory/inline/stores/0/embedding/provider_ref",
        "/spec/world_models/0/inline/memory_ref",
        "/spec/world_models/0/inline/backend/ref",
        "/spec/world_models/0/inline/constraints/policy_ref",
        "/spec/swarm/inline/agents/0/provider_ref",
    ]
    .iter()
    .map(|path| format!("unresolved-reference {path}"))
    .collect();
    expected.sort();
    assert_eq!(found, expected);
    let mistyped = loaded
        .diagnostics
        .iter()
        .find(|found| found.path.ends_with("dimensions") || found.message.contains("mian"));
    assert_eq!(mistyped.unwrap().help.as_deref(), Some("did you mean `main`?"));
}

#[test]
fn references_may_be_uris_and_become_plain_names() {
    let more = format!(
        "  tools:\n    - inline: {{name: a, {TOOL}, sandbox_ref: \"claw://sandbox/box\", policy_ref: \"claw://local/policy/policy-0@1.2.3\"}}\n  \
         sandbox: {{inline: {{name: box, level: none}}}}\n{POLICY}"
    );
    let loaded = load_text(&manifest(&more));
    assert_eq!(errors(&loaded), Vec::<String>::new());
    let tool = &loaded.manifest.unwrap().tools[0];
    assert_eq!(
        (tool.sandbox_ref.as_deref(), tool.policy_ref.as_deref()),
        (Some("box"), Some("policy-0"))
    );
    let wrong = more.replace("1.2.3", "9.9.9");
    assert_eq!(
        errors(&load_text(&manifest(&wrong))),
        ["version-mismatch /spec/tools/0/inline/policy_ref"]
    );
}

#[test]
fn local_uris_as_items_must_be_declared_elsewhere() {
    let declared = format!("  tools: [{{inline: {{name: a, {TOOL}}}}}, \"claw://tool/a\"]\n{POLICY}");
    let loaded = load_text(&manifest(&declared));
    assert_eq!(errors(&loaded), Vec::<String>::new());
    assert_eq!(loaded.manifest.unwrap().tools.len(), 1);
    let cases = [
        ("claw://tool/b", "unresolved-reference"),
        ("claw://skill/a", "kind-mismatch"),
        ("claw://tool/a@1.0.0", "bad-uri"),
        ("mcp://server/tool", "reserved-scheme"),
        ("https://example.com/tool.yaml", "bad-uri"),
        ("claw://registry/ns/tool@1.0.0", "no-registry"),
    ];
    for (uri, code) in cases {
        let more = format!("  tools: [{{inline: {{name: a, {TOOL}}}}}, \"{uri}\"]\n{POLICY}");
        assert_eq!(
            errors(&load_text(&manifest(&more))),
            [format!("{code} /spec/tools/1")],
            "{uri}"
        );
    }
}

#[test]
fn cycles_are_found() {
    let provider = |name: &str, to: &str| {
        format!(
            "    - inline: {{name: {name}, protocol: custom, endpoint: e, model: m, auth: {{type: none}}, fallback: [{{provider_ref: {to}}}]}}\n"
        )
    };
    let ends = provider("a", "b") + &provider("b", "main");
    assert_eq!(errors(&load_text(&manifest(&ends))), Vec::<String>::new());
    let turns = provider("a", "b") + &provider("b", "a");
    assert_eq!(
        errors(&load_text(&manifest(&turns))),
        [
            "fallback-cycle /spec/providers/1/inline/fallback/0/provider_ref",
            "fallback-cycle /spec/providers/2/inline/fallback/0/provider_ref"
        ]
    );
    assert_eq!(errors(&load_text(&manifest(&provider("a", "a")))).len(), 1);
    let composite = |needs: &str| {
        format!(
            "  tools: [{{inline: {{name: t, {TOOL}, composite: true, skill_ref: s}}}}, {{inline: {{name: u, {TOOL}}}}}]\n  \
             skills: [{{inline: {{name: s, description: d, tools_required: [{needs}], instruction: i}}}}]\n{POLICY}"
        )
    };
    assert_eq!(
        errors(&load_text(&manifest(&composite("u")))),
        Vec::<String>::new()
    );
    assert_eq!(
        errors(&load_text(&manifest(&composite("t")))),
        ["composite-cycle /spec/tools/0/inline/skill_ref"]
    );
}

#[test]
fn rules_behind_a_catch_all_are_reported_across_policies() {
    let more = "  policies:\n    - inline: {rules: [{id: a, action: deny, scope: tool, match: {name: x}}, {id: all, action: allow, scope: all}, {id: late, action: deny, scope: all}]}\n    \
                - inline: {rules: [{id: a, action: deny, scope: tool, match: {name: y}}]}\n";
    let mut found = warnings(&load_text(&manifest(more)));
    found.sort();
    assert_eq!(
        found,
        [
            "repeated-rule-id /spec/policies/1/inline/rules/0",
            "unreachable-rule /spec/policies/0/inline/rules/2",
            "unreachable-rule /spec/policies/1/inline/rules/0",
        ]
    );
}

#[test]
fn what_has_no_effect_is_a_warning() {
    let more = format!("  tools: [{{inline: {{name: a, {TOOL}}}}}]\n");
    let text = manifest(&more).replace(
        "personality: \"A test.\"",
        "{personality: \"A test.\", autonomy: observer}",
    );
    let loaded = load_text(&text);
    assert_eq!(errors(&loaded), Vec::<String>::new());
    assert_eq!(
        warnings(&loaded),
        [
            "observer-with-tools /spec/tools/0/inline",
            "no-policy /spec/tools/0/inline"
        ]
    );
}

#[test]
fn members_of_0_3_warn_in_a_0_2_document() {
    let more = format!(
        "  tools: [{{inline: {{name: t, {TOOL}}}}}]\n  world_models: [{{inline: {{paradigm: hybrid, backend: {{type: tool, ref: t}}}}}}]\n  \
         memory: {{inline: {{stores: [{{name: c, type: checkpoint, role: working}}]}}}}\n{POLICY}"
    );
    assert_eq!(warnings(&load_text(&manifest(&more))), Vec::<String>::new());
    let older = manifest(&more).replace("0.3.0", "0.2.0");
    let loaded = load_text(&older);
    assert!(loaded.is_valid());
    assert_eq!(
        warnings(&loaded),
        [
            "newer-field /spec/world_models",
            "newer-field /spec/memory/inline/stores/0/type",
            "newer-field /spec/memory/inline/stores/0/role"
        ]
    );
}

#[test]
fn versions_of_the_protocol() {
    for (version, error) in [
        ("\"0.2.0\"", None),
        ("\"0.3.7\"", None),
        ("\"1.0.0\"", Some("unsupported-version /claw")),
        ("\"0.4.0\"", Some("unsupported-version /claw")),
        ("\"0.3\"", Some("bad-version /claw")),
        ("0.3", Some("wrong-type /claw")),
    ] {
        let found = errors(&load_text(&manifest("").replace("\"0.3.0\"", version)));
        assert_eq!(found.first().map(String::as_str), error, "{version}");
    }
}

#[test]
fn everything_is_said_at_once() {
    let text = "claw: \"0.2.0\"\nkind: Claw\nmetadata:\n  name: \"my agent\"\n  labels: {team: 7}\nspec:\n  identity:\n    inline:\n      \
                persnality: \"x\"\n      autonomy: supervized\n  providers:\n    - inline:\n        protocol: openai\n        endpoint: localhost\n        \
                model: m\n        auth: {type: bearer}\n        streaming: yes\n  channels: []\nproviders: []\n";
    let loaded = load_text(text);
    assert_eq!(
        errors(&loaded),
        [
            "bad-name /metadata/name",
            "wrong-type /metadata/labels/team",
            "unknown-field /spec/identity/inline/persnality",
            "missing-field /spec/identity/inline/personality",
            "unknown-value /spec/identity/inline/autonomy",
            "unknown-value /spec/providers/0/inline/protocol",
            "bad-url /spec/providers/0/inline/endpoint",
            "missing-field /spec/providers/0/inline/auth/secret_ref",
            "wrong-type /spec/providers/0/inline/streaming",
            "unknown-field /providers",
        ]
    );
    for found in &loaded.diagnostics {
        assert!(
            found.line.is_some() && found.column.is_some() && found.file.is_some(),
            "{found:?}"
        );
    }
    let helps: Vec<&str> = loaded
        .diagnostics
        .iter()
        .filter_map(|found| found.help.as_deref())
        .collect();
    assert!(helps.contains(&"did you mean `personality`?"), "{helps:?}");
    assert!(
        helps
            .iter()
            .any(|help| help.starts_with("did you mean `openai-compatible`?")
                || help.starts_with("one of `openai-compatible`"))
    );
    assert!(helps.contains(&"`providers` belongs under `spec`; indent it"));
}

#[test]
fn annotations_steer_the_heartbeat_and_nothing_else() {
    let text = manifest("").replace(
        "  version: \"1.2.3\"\n",
        "  annotations: {heartbeat_interval_ms: 250, x: [1]}\n",
    );
    let metadata = load_text(&text).manifest.unwrap().metadata;
    assert_eq!(
        (metadata.heartbeat_interval_ms, &metadata.annotations["x"]),
        (Some(250), &json!([1]))
    );
    let loaded = load_text(&text.replace("250", "often"));
    assert_eq!(
        warnings(&loaded),
        ["bad-heartbeat /metadata/annotations/heartbeat_interval_ms"]
    );
    assert_eq!(loaded.manifest.unwrap().metadata.heartbeat_interval_ms, None);
}

#[test]
fn levels_and_what_the_next_one_needs() {
    let loaded = load_text(&manifest(""));
    let report = serde_json::to_value(loaded.report()).unwrap();
    assert_eq!(
        report,
        json!({"valid": true, "kind": "Claw", "about": {"name": "test-bot", "version": "1.2.3"}, "conformance_level": "level-1", "primitives": ["Identity", "Provider"],
               "missing_for_next": {"level": "level-2", "primitives": ["Channel", "Tool", "Sandbox", "Policy"]},
               "errors": [], "warnings": []})
    );
}

#[test]
fn the_report_says_what_the_document_says_of_itself() {
    let text = manifest("").replace(
        "  version: \"1.2.3\"",
        "  version: \"1.2.3\"\n  description: Sorts letters",
    );
    let text = text.replace(
        "personality: \"A test.\"",
        "personality: \"A test.\"\n      capabilities: [sorting, reading]",
    );
    let about = serde_json::to_value(load_text(&text).report()).unwrap()["about"].take();
    assert_eq!(
        about,
        serde_json::json!({"name": "test-bot", "version": "1.2.3", "description": "Sorts letters", "capabilities": ["sorting", "reading"]})
    );
}

#[test]
fn labels_say_where_nothing_reads_them() {
    let warned = |labels: [&str; 2]| {
        let document = format!(
            "claw: \"0.3.0\"\nkind: Claw\nmetadata: {{name: a}}\nspec:\n  identity: {{inline: {{personality: p, autonomy: observer{}}}}}\n  \
             providers:\n    - inline: {{protocol: custom, endpoint: s.yaml, model: m, auth: {{type: none}}}}\n  \
             tools:\n    - inline: {{name: t, description: d, input_schema: {{type: object}}{}}}\n",
            labels[0], labels[1]
        );
        let loaded = load_text(&document);
        let found = loaded.diagnostics.iter();
        found
            .filter(|one| one.code == "no-effect")
            .map(|one| one.path.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        warned([", labels: {team: a}", ", labels: {team: a}"]),
        ["/spec/identity/inline/labels"]
    );
    assert_eq!(warned(["", ", labels: {team: a}"]), Vec::<String>::new());
}
