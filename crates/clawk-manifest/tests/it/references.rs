//! Files, globs, links, registries (R9), and manifests from the wire (R3, R3a).

use std::collections::BTreeMap;

use clawk_manifest::{LoadOptions, WireOptions, from_value, load_manifest};
use serde_json::json;

use crate::{errors, load_files, manifest, write_files};

const POLICY: &str = "  policies: [\"./policy.yaml\"]\n";
const POLICY_FILE: &str = "claw: \"0.3.0\"\nkind: Policy\nmetadata: {name: p}\nspec: {rules: [{id: a, action: allow, scope: all}]}\n";

fn tool(name: &str) -> String {
    format!(
        "claw: \"0.3.0\"\nkind: Tool\nmetadata: {{name: {name}}}\nspec: {{description: d, input_schema: {{type: object}}}}\n"
    )
}

#[test]
fn globs_expand_sorted_and_files_resolve_beside_the_manifest() {
    let root = manifest(&format!(
        "  tools: [\"./tools/*.yaml\", \"more/**/*.yml\"]\n{POLICY}"
    ));
    let files = [
        ("claw.yaml", root.as_str()),
        ("policy.yaml", POLICY_FILE),
        ("tools/b.yaml", &tool("b")),
        ("tools/a.yaml", &tool("a")),
        ("tools/.hidden.yaml", "not: read"),
        ("tools/readme.txt", "not read"),
        ("more/x/y/d.yml", &tool("d")),
        ("more/c.yml", &tool("c")),
    ];
    let loaded = load_files(&files);
    assert_eq!(errors(&loaded), Vec::<String>::new());
    let names: Vec<String> = loaded
        .manifest
        .unwrap()
        .tools
        .into_iter()
        .map(|tool| tool.name)
        .collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
}

#[test]
fn findings_in_a_file_carry_that_file_and_its_own_pointer() {
    let root = manifest(&format!("  tools: [\"./tools/a.yaml\"]\n{POLICY}"));
    let broken =
        "claw: \"0.3.0\"\nkind: Tool\nmetadata: {name: a}\nspec:\n  description: d\n  inputschema: {}\n";
    let loaded = load_files(&[
        ("claw.yaml", &root),
        ("policy.yaml", POLICY_FILE),
        ("tools/a.yaml", broken),
    ]);
    assert_eq!(
        errors(&loaded),
        [
            "missing-field /spec/input_schema",
            "unknown-field /spec/inputschema"
        ]
    );
    let unknown = &loaded.diagnostics[1];
    assert!(unknown.file.as_ref().unwrap().ends_with("tools/a.yaml"));
    assert_eq!((unknown.line, unknown.column), (Some(6), Some(3)));
}

#[test]
fn missing_files_empty_globs_cycles_and_wrong_kinds_name_the_reference() {
    let cases = [
        ("./gone.yaml", "file-not-found"),
        ("./none/*.yaml", "empty-glob"),
        ("./claw.yaml", "reference-cycle"),
        ("./cl*.yaml", "reference-cycle"),
        ("./policy.yaml", "kind-mismatch"),
        ("./tools", "not-a-file"),
        ("[", "bad-glob"),
        ("", "bad-reference"),
    ];
    for (reference, code) in cases {
        let root = manifest(&format!("  tools: [\"{reference}\"]\n{POLICY}"));
        let loaded = load_files(&[
            ("claw.yaml", &root),
            ("policy.yaml", POLICY_FILE),
            ("tools/x.yaml", ""),
        ]);
        assert_eq!(errors(&loaded), [format!("{code} /spec/tools/0")], "{reference}");
        assert_eq!(loaded.diagnostics[0].line, Some(17), "{reference}");
    }
}

#[test]
fn references_stay_inside_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("agent");
    let root = |reference: &str| manifest(&format!("  tools: [\"{reference}\"]\n{POLICY}"));
    write_files(
        dir.path(),
        &[
            ("outside.yaml", &tool("o")),
            ("agent/policy.yaml", POLICY_FILE),
            ("agent/in.yaml", &tool("i")),
        ],
    );
    std::os::unix::fs::symlink(dir.path().join("outside.yaml"), home.join("link.yaml")).unwrap();
    std::os::unix::fs::symlink(dir.path(), home.join("up")).unwrap();
    let absolute = dir.path().join("outside.yaml");
    let outside = [
        "../outside.yaml",
        "./link.yaml",
        "up/outside.yaml",
        "up/*.yaml",
        "x/../../outside.yaml",
        "../../../../etc/passwd",
        absolute.to_str().unwrap(),
    ];
    for reference in outside {
        write_files(&home, &[("claw.yaml", &root(reference))]);
        let refused = load_manifest(&home.join("claw.yaml"), &LoadOptions::default());
        assert_eq!(errors(&refused), ["outside-tree /spec/tools/0"], "{reference}");
    }
    let options = LoadOptions {
        allow_outside: true,
        ..LoadOptions::default()
    };
    for reference in [
        "../outside.yaml",
        "./link.yaml",
        "up/outside.yaml",
        absolute.to_str().unwrap(),
    ] {
        write_files(&home, &[("claw.yaml", &root(reference))]);
        assert_eq!(
            errors(&load_manifest(&home.join("claw.yaml"), &options)),
            Vec::<String>::new(),
            "{reference}"
        );
    }
    std::os::unix::fs::symlink(home.join("in.yaml"), home.join("within.yaml")).unwrap();
    write_files(&home, &[("claw.yaml", &root("./within.yaml"))]);
    assert_eq!(
        errors(&load_manifest(&home.join("claw.yaml"), &LoadOptions::default())),
        Vec::<String>::new()
    );
}

#[test]
fn registries_are_directories() {
    let dir = tempfile::tempdir().unwrap();
    let root = |uri: &str| manifest(&format!("  tools: [\"{uri}\"]\n{POLICY}"));
    let versioned = tool("shell").replace("{name: shell}", "{name: shell, version: \"1.0.0\"}");
    let impostor = tool("other");
    write_files(
        dir.path(),
        &[
            ("agent/policy.yaml", POLICY_FILE),
            ("registry/std/shell@1.0.0.yaml", &versioned),
            ("registry/std/echo/2.0.0.yaml", &tool("echo")),
            ("registry/std/fake@1.0.0.yaml", &impostor),
            ("secret/x@1.0.0.yaml", &tool("x")),
            ("ours/own@1.0.0.yaml", &tool("own")),
        ],
    );
    let named = |name: &str, folder: &str| (name.to_owned(), dir.path().join(folder));
    let registries = BTreeMap::from([named("default", "registry"), named("acme", "ours")]);
    let options = LoadOptions {
        registries,
        ..LoadOptions::default()
    };
    let cases = [
        ("claw://registry/std/shell@1.0.0", None),
        ("claw://registry/acme/own@1.0.0", None),
        ("claw://registry/std/echo@2.0.0", None),
        (
            "claw://registry/std/shell@1.0.1",
            Some("not-in-registry /spec/tools/0"),
        ),
        (
            "claw://registry/std/fake@1.0.0",
            Some("registry-mismatch /spec/tools/0"),
        ),
        (
            "claw://registry/../x@1.0.0",
            Some("not-in-registry /spec/tools/0"),
        ),
        ("claw://registry/std/shell", Some("bad-uri /spec/tools/0")),
    ];
    for (uri, error) in cases {
        write_files(dir.path(), &[("agent/claw.yaml", &root(uri))]);
        let found = errors(&load_manifest(&dir.path().join("agent/claw.yaml"), &options));
        assert_eq!(found.first().map(String::as_str), error, "{uri}");
    }
}

#[test]
fn the_wire_may_omit_claw_and_refuses_files() {
    let manifest = |tools: serde_json::Value| {
        json!({"kind": "Claw", "metadata": {"name": "test-bot"}, "spec": {
            "identity": {"inline": {"personality": "Test agent."}},
            "providers": [{"inline": {"protocol": "openai-compatible", "endpoint": "http://localhost:11434/v1", "model": "llama3",
                                      "auth": {"type": "none"}}}],
            "tools": tools, "policies": [{"inline": {"rules": [{"id": "a", "action": "allow", "scope": "all"}]}}]}})
    };
    let none = WireOptions::default();
    let loaded = from_value(&manifest(json!([])), &none);
    assert_eq!(errors(&loaded), Vec::<String>::new());
    assert_eq!(loaded.manifest.unwrap().claw.to_string(), "0.3.0");
    let refused = from_value(&manifest(json!(["./tools/*.yaml"])), &none);
    assert_eq!(errors(&refused), ["file-refused /spec/tools/0"]);
    assert_eq!(
        (refused.diagnostics[0].line, refused.diagnostics[0].file.clone()),
        (None, None)
    );
    let dir = tempfile::tempdir().unwrap();
    write_files(dir.path(), &[("tools/a.yaml", &tool("a"))]);
    let rooted = WireOptions {
        root: Some(dir.path().to_owned()),
        ..WireOptions::default()
    };
    assert_eq!(
        from_value(&manifest(json!(["./tools/*.yaml"])), &rooted)
            .manifest
            .unwrap()
            .tools
            .len(),
        1
    );
    assert_eq!(
        errors(&from_value(&manifest(json!(["../x.yaml"])), &rooted)),
        ["outside-tree /spec/tools/0"]
    );
    for (value, error) in [
        (json!(null), "not-a-manifest "),
        (json!([]), "not-a-manifest "),
        (json!("claw.yaml"), "bad-uri "),
        (json!("claw://registry/ns/agent@1.0.0"), "no-registry "),
        (
            json!({"kind": "Claw", "metadata": {"name": "t"}, "spec": {}}),
            "missing-field /spec/identity",
        ),
    ] {
        assert_eq!(errors(&from_value(&value, &none))[0], error, "{value}");
    }
}

#[test]
fn a_registry_may_hold_whole_agents() {
    let dir = tempfile::tempdir().unwrap();
    write_files(dir.path(), &[("ns/test-bot@1.2.3.yaml", &manifest(""))]);
    let registries = BTreeMap::from([("default".to_owned(), dir.path().to_owned())]);
    let options = WireOptions {
        registries,
        ..WireOptions::default()
    };
    let loaded = from_value(&json!("claw://registry/ns/test-bot@1.2.3"), &options);
    assert_eq!(loaded.manifest.unwrap().metadata.name, "test-bot");
}

#[test]
fn a_built_in_tool_needs_only_its_name() {
    let root = manifest(&format!(
        "  tools: [file-list, web_fetch, {{inline: {{name: schedule}}}}, {{inline: {{name: file_read, timeout_ms: 5}}}}]\n{POLICY}"
    ));
    let loaded = load_files(&[("claw.yaml", &root), ("policy.yaml", POLICY_FILE)]);
    assert_eq!(errors(&loaded), Vec::<String>::new());
    let tools = loaded.manifest.unwrap().tools;
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["file-list", "web-fetch", "schedule", "file-read"]);
    assert!(
        tools
            .iter()
            .all(|tool| tool.input_schema.is_none() && tool.description.is_none())
    );
    assert_eq!(tools[0].version.as_deref(), Some("1.2.3"));
    // The wire is no exception: nothing is read from a file.
    let wired = json!({"claw": "0.3.0", "kind": "Claw", "metadata": {"name": "w"}, "spec": {
        "identity": {"inline": {"personality": "p"}}, "tools": ["file-list"],
        "providers": [{"inline": {"protocol": "custom", "endpoint": "script:x", "model": "m", "auth": {"type": "none"}}}]}});
    let loaded = from_value(&wired, &WireOptions::default());
    assert_eq!(errors(&loaded), Vec::<String>::new());
}

#[test]
fn a_built_in_tool_twice_is_one_too_many_and_a_file_of_its_own_wins_by_its_path() {
    let root = manifest(&format!("  tools: [shell, shell]\n{POLICY}"));
    let loaded = load_files(&[("claw.yaml", &root), ("policy.yaml", POLICY_FILE)]);
    assert_eq!(errors(&loaded), ["name-collision /spec/tools/1"]);
    let root = manifest(&format!("  tools: [./shell]\n{POLICY}"));
    let file = "claw: \"0.3.0\"\nkind: Tool\nmetadata: {name: mine}\nspec: {description: d, input_schema: {type: object}}\n";
    let loaded = load_files(&[
        ("claw.yaml", &root),
        ("policy.yaml", POLICY_FILE),
        ("shell", file),
    ]);
    assert_eq!(errors(&loaded), Vec::<String>::new());
    assert_eq!(loaded.manifest.unwrap().tools[0].name, "mine");
}

#[test]
fn a_misspelt_built_in_is_corrected() {
    for (given, meant) in [
        ("file-lst", "file-list"),
        ("read_file", "file-read"),
        ("bash", "shell"),
    ] {
        let root = manifest(&format!("  tools: [{given}]\n{POLICY}"));
        let loaded = load_files(&[("claw.yaml", &root), ("policy.yaml", POLICY_FILE)]);
        assert_eq!(errors(&loaded), ["file-not-found /spec/tools/0"], "{given}");
        let found = &loaded.diagnostics[0];
        assert_eq!(
            found.message,
            format!("`{given}` is neither a built-in tool nor a file")
        );
        let help = found.help.as_deref().unwrap();
        assert!(
            help.starts_with(&format!("did you mean the built-in `{meant}`?")),
            "{help}"
        );
        assert!(help.contains("web-search"), "all are listed: {help}");
    }
    // Without a schema, a name that is no built-in's is refused as before, with the way out.
    let root = manifest(&format!("  tools: [{{inline: {{name: file-lst}}}}]\n{POLICY}"));
    let loaded = load_files(&[("claw.yaml", &root), ("policy.yaml", POLICY_FILE)]);
    assert_eq!(
        errors(&loaded),
        [
            "missing-field /spec/tools/0/inline/description",
            "missing-field /spec/tools/0/inline/input_schema"
        ]
    );
    assert!(
        loaded.diagnostics[0]
            .help
            .as_deref()
            .unwrap()
            .contains("`file-list`")
    );
    // A composite tool runs a skill, whatever its name is, and a server's tool is the server's.
    let root = manifest(&format!(
        "  tools: [{{inline: {{name: shell, composite: true, skill_ref: s}}}}]\n  skills: [{{inline: {{name: s, description: d, instruction: i, tools_required: [shell]}}}}]\n{POLICY}"
    ));
    let loaded = load_files(&[("claw.yaml", &root), ("policy.yaml", POLICY_FILE)]);
    assert!(errors(&loaded).contains(&"missing-field /spec/tools/0/inline/input_schema".to_owned()));
}
