//! Newer and older forms of configurations, and skills that lie in two places.

use std::fs;
use std::path::Path;

use clawk_import::{ImportResult, Runtime, import_agent};
use tempfile::TempDir;

use crate::valid;

fn from(runtime: Runtime, files: &[(&str, &str)]) -> (ImportResult, String) {
    let old = TempDir::new().unwrap();
    for (name, text) in files {
        let path = old.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let import = import_agent(runtime, old.path()).unwrap();
    let text = valid(runtime, &import);
    (import, text)
}

/// A configuration, and what the manifest must hold.
const FORMS: &[(Runtime, &str, &str, &[&str])] = &[
    (
        Runtime::Openclaw,
        "openclaw.json",
        r#"{"gateway": {"port": 1}}"#,
        &["auto:"],
    ),
    (
        Runtime::Openclaw,
        "openclaw.json",
        r#"{"agents": [{"id": "a", "model": {"primary": "openai/gpt-5", "fallback": ["anthropic/claude-sonnet-5"]}}, {"id": "b"}]}"#,
        &["gpt-5", "claude-sonnet-5", "name: \"a\""],
    ),
    (
        Runtime::Openclaw,
        "openclaw.json",
        r#"{"agents": {"defaults": {"model": {"primary": "fast"}, "models": {"groq/llama-4": {"alias": "Fast"}}}}}"#,
        &["api.groq.com", "llama-4"],
    ),
    (
        Runtime::Openclaw,
        "openclaw.json",
        r#"{"agents": {"defaults": {"model": {"primary": "openai/a", "fallbacks": ["openai/c"]}}, "list": [{"id": "x"}, {"id": "y", "default": true, "model": {"primary": "openai/b", "fallbacks": []}}]}}"#,
        &["model: \"b\"", "name: \"y\""],
    ),
    (
        Runtime::Openclaw,
        "clawdbot.json",
        r#"{"agent": {"model": "anthropic/claude-opus-5"}}"#,
        &["claude-opus-5"],
    ),
    (
        Runtime::Zeroclaw,
        "config.toml",
        "# default_model = \"x\"\n",
        &["auto:"],
    ),
    (
        Runtime::Zeroclaw,
        "config.toml",
        "[providers.models.anthropic.home]\nmodel = \"claude-sonnet-5\"\napi_key = \"CANARY-5f2c\"\n[agents.default]\nmodel_provider = \"anthropic.home\"\n",
        &["claude-sonnet-5", "api.anthropic.com"],
    ),
    (
        Runtime::Zeroclaw,
        "config.toml",
        "[providers.models.ollama.lab]\nmodel = \"qwen3\"\nuri = \"http://lab.example.com:11434\"\n[agents.ops]\nmodel_provider = \"ollama.lab\"\n",
        &["http://lab.example.com:11434", "qwen3"],
    ),
    (
        Runtime::Zeroclaw,
        "config.toml",
        "[providers.models.openai.sub]\nmodel = \"gpt-5\"\nrequires_openai_auth = true\n[agents.default]\nmodel_provider = \"openai.sub\"\n",
        &["openai-codex.invalid"],
    ),
    (
        Runtime::Picoclaw,
        "config.json",
        r#"{"model_list": [{"model_name": "local", "model": "ollama/gemma3", "api_base": "http://localhost:11434"}], "agents": [{"name": "a", "model": "local"}]}"#,
        &["gemma3", "localhost:11434"],
    ),
    (
        Runtime::Picoclaw,
        "config.json",
        r#"{"model_list": [{"model_name": "m", "model": "zhipu/glm-5", "api_keys": ["CANARY-5f2c"]}], "agents": {"defaults": {"model_name": "m"}}}"#,
        &["open.bigmodel.cn", "glm-5"],
    ),
    (Runtime::Nanobot, "config.json", r#"{"channels": {}}"#, &["auto:"]),
    (
        Runtime::Moltis,
        "moltis.toml",
        "[providers]\noffered = [\"anthropic\"]\n[providers.anthropic]\nenabled = true\n",
        &["auto:"],
    ),
    (
        Runtime::Openclaw,
        "triage.claw.json",
        r#"{"schemaVersion": 1, "agent": {"id": "triage", "tools": {"deny": ["exec"]}}, "workspace": {"bootstrapFiles": {}}, "packages": []}"#,
        &["name: \"triage\""],
    ),
];

#[test]
fn every_form_becomes_a_manifest_that_validates() {
    for (runtime, file, words, wanted) in FORMS {
        let old = TempDir::new().unwrap();
        fs::write(old.path().join(file), words).unwrap();
        let import = import_agent(*runtime, &old.path().join(file)).unwrap();
        let text = valid(*runtime, &import);
        for part in *wanted {
            assert!(
                text.contains(part),
                "{file} {words}: {part} is missing in\n{text}"
            );
        }
    }
}

const PACKAGE: &str = "\u{feff}---\r
schemaVersion: 1\r
agent: {id: incident-triage, name: Incident triage, description: Reviews}\r
workspace:\r
  bootstrapFiles:\r
    AGENTS.md: {source: workspace/AGENTS.md}\r
    HEARTBEAT.md: {source: workspace/AGENTS.md}\r
  files:\r
    - {source: assets/policy.md, path: reference/policy.md}\r
    - {source: assets/policy.md, path: claw.yaml}\r
    - {source: assets/none.md, path: none.md}\r
packages:\r
  - {kind: skill, source: clawhub, ref: \"@acme/triage\", version: 1.2.0}\r
  - {kind: plugin, source: clawhub, ref: \"@acme/audit\", version: 2.0.0}\r
mcpServers:\r
  statuspage: {command: npx, args: [--yes, status-mcp], env: {STATUSPAGE_TOKEN: \"${STATUSPAGE_TOKEN}\"}}\r
  shell: {url: \"https://example.com/mcp\"}\r
cronJobs:\r
  - {id: daily, schedule: {cron: \"0 9 * * *\", timezone: UTC}, session: isolated, message: Summarize incidents.}\r
---\r
\r
You review incidents.\r
";

#[test]
fn a_portable_package_becomes_an_agent() {
    let files = [
        ("CLAW.md", PACKAGE),
        (
            "package.json",
            r#"{"name": "@acme/x", "openclaw": {"claw": "CLAW.md"}}"#,
        ),
        ("workspace/AGENTS.md", "Work with care."),
        ("assets/policy.md", "The policy."),
        ("BOOTSTRAP.md", "Say hello."),
        (
            "profiles/openclaw.yml",
            "schemaVersion: 1\nagent:\n  tools: {deny: [exec]}\n  memory: {search: {enabled: true}}\n",
        ),
    ];
    let (import, text) = from(Runtime::Openclaw, &files);
    for part in [
        "incident-triage",
        "You review incidents.",
        "Work with care.",
        "statuspage",
        "0 9 * * *",
        "shell-2",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(
        !text.contains("shell: {mode: full}") && text.contains("mode: \"deny\""),
        "{text}"
    );
    let file = |wanted: &str| {
        import
            .files
            .iter()
            .find(|(name, _)| name == Path::new(wanted))
            .unwrap()
    };
    assert_eq!(file("reference/policy.md").1, b"The policy.");
    assert!(
        String::from_utf8_lossy(&file("claw.yaml").1).contains("kind: \"Claw\""),
        "the package replaced the manifest"
    );
    for part in [
        "@acme/triage",
        "@acme/audit",
        "none.md",
        "claw.yaml",
        "BOOTSTRAP.md",
        "HEARTBEAT.md",
        "workspace.files.2",
    ] {
        let named = import
            .report
            .left
            .iter()
            .any(|left| left.setting.contains(part) || left.reason.contains(part));
        assert!(
            named || part == "none.md" || part == "HEARTBEAT.md",
            "{part}: {:#?}",
            import.report.left
        );
    }
    // The file itself, and a `package.json` that names another one.
    let json = r#"{"schemaVersion": 1, "agent": {"id": "other"}}"#;
    let named = [
        ("package.json", r#"{"openclaw": {"claw": "other.claw.json"}}"#),
        ("other.claw.json", json),
    ];
    assert!(from(Runtime::Openclaw, &named).1.contains("name: \"other\""));
}

/// Where two skills of one name lie, and which one is taken.
const TWICE: &[(&[(&str, &str)], &str)] = &[
    (
        &[("skills/tidy", "managed"), ("workspace/skills/tidy", "own")],
        "own",
    ),
    (&[("skills/tidy", "lower"), ("skills/Tidy", "upper")], "lower"),
    (
        &[
            ("workspace/skills/other", "other"),
            ("workspace/skills/tidy", "tidy"),
        ],
        "tidy",
    ),
    (&[("workspace/skills/b", "b"), ("workspace/skills/a", "a")], "a"),
    (
        &[("workspace/skills/tidy", "same"), ("skills/tidy", "same")],
        "same",
    ),
];

#[test]
fn one_skill_in_two_places_is_one_skill() {
    for (places, wanted) in TWICE {
        let mut files = vec![(
            "openclaw.json".to_owned(),
            r#"{"agents": {"defaults": {"model": "openai/gpt-5"}}}"#.to_owned(),
        )];
        for (place, words) in *places {
            files.push((
                format!("{place}/SKILL.md"),
                format!("---\nname: tidy\ndescription: d\n---\nThe {words} one.\n"),
            ));
            files.push((format!("{place}/more.md"), (*words).to_owned()));
        }
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_str()))
            .collect();
        let (import, text) = from(Runtime::Openclaw, &files);
        assert_eq!(text.matches("name: \"tidy\"").count(), 1, "{places:?}\n{text}");
        assert!(text.contains(&format!("The {wanted} one.")), "{places:?}\n{text}");
        let more = import
            .files
            .iter()
            .find(|(name, _)| name == Path::new("skills/tidy/more.md"))
            .unwrap();
        assert_eq!(more.1, wanted.as_bytes(), "{places:?}");
        let mut names: Vec<String> = import
            .files
            .iter()
            .map(|(name, _)| name.to_string_lossy().to_lowercase())
            .collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all, "{places:?}: {names:?}");
        let named = import
            .report
            .left
            .iter()
            .any(|left| left.setting.contains("skill `tidy`"));
        assert!(named, "{places:?}: {:#?}", import.report.left);
    }
}

/// Parts that fit to one name stay apart.
#[test]
fn parts_of_one_name_get_names_of_their_own() {
    let config = r#"{"agents": {"defaults": {"model": "openai/gpt-5"}}, "mcp": {"servers": {
        "my_server": {"url": "https://a.example.com"}, "my-server": {"url": "https://b.example.com"}, "Shell": {"url": "https://c.example.com"},
        "ws": {"url": "ws://d.example.com"}}},
        "channels": {"telegram": {"accounts": {"a b": {"botToken": "CANARY-5f2c"}, "a-b": {"botToken": "CANARY-5f2c"}}}}}"#;
    let (import, text) = from(Runtime::Openclaw, &[("openclaw.json", config)]);
    for part in [
        "my-server\"",
        "my-server-2",
        "shell-2",
        "telegram-a-b\"",
        "telegram-a-b-2",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(
        import
            .report
            .left
            .iter()
            .any(|left| left.setting.contains("ws.url"))
    );
}
