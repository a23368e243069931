//! Binding, through the public door: what runs what, and what refuses to start.
#![expect(clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::Path;

use clawk_kernel::ports::ToolRunner;
use clawk_manifest::model::{Manifest, Metadata};
use clawk_plan::PlanDefaults;
use clawk_sandbox::Launcher;
use clawk_secrets::{EnvironmentSource, SecretResolver};
use clawk_tools::{Runner, ToolHost, ToolsConfig, UnboundTool, bind_tools};
use serde_json::{Value, json};

fn manifest(tools: Value) -> Manifest {
    Manifest {
        claw: serde_json::from_value(json!("0.3.0")).expect("a version"),
        metadata: Metadata::default(),
        identity: serde_json::from_value(json!({"name": "a", "personality": "p"})).expect("an identity"),
        providers: Vec::new(),
        channels: Vec::new(),
        tools: serde_json::from_value(tools).expect("tools"),
        skills: Vec::new(),
        memory: None,
        world_models: Vec::new(),
        further_sandboxes: Vec::new(),
        sandbox: None,
        policies: Vec::new(),
        swarm: None,
        telemetry: None,
        dir: "/".into(),
    }
}

fn bound(tools: Value, config: Value) -> Result<Runner, Vec<UnboundTool>> {
    let config: ToolsConfig = serde_json::from_value(config).expect("a config");
    let host = ToolHost {
        launcher: Launcher::new(
            env!("CARGO_BIN_EXE_clawk-tools-fixture"),
            vec!["__sandbox".into()],
        ),
        defaults: PlanDefaults::default(),
        secrets: SecretResolver::without_store(EnvironmentSource::from_pairs([("KEY", "value")])),
        base: Path::new("/").to_path_buf(),
        workdir: Path::new("/").to_path_buf(),
        own: clawk_plan::RuntimeFiles::empty(),
        ask: None,
        extras: BTreeMap::new(),
        egress: clawk_tools::EgressSettings::default(),
        timezone: jiff::tz::TimeZone::UTC,
    };
    bind_tools(&manifest(tools), &config, host)
}

#[test]
fn the_order_is_config_then_server_then_builtin() {
    let tools = json!([{"name": "echo"}, {"name": "shell", "description": "d", "input_schema": {"type": "object"}}, {"name": "post"},
        {"name": "file-read", "mcp_source": {"uri": "stdio:///srv/files"}},
        {"name": "plan", "composite": true, "skill_ref": "s"}]);
    let config =
        json!({"shell": {"command": ["/bin/true"]}, "post": {"http": {"url": "http://127.0.0.1:1/"}}});
    let runner = bound(tools, config).expect("bound");
    let executors = ["echo", "shell", "post", "file-read", "plan"].map(|tool| runner.executor_name(tool));
    assert_eq!(
        executors,
        [Some("built-in"), Some("command"), Some("http"), Some("mcp"), None]
    );
}

#[test]
fn every_tool_that_cannot_run_is_named_with_the_cure() {
    let tools = json!([{"name": "echo"}, {"name": "mystery"}, {"name": "module"}, {"name": "two"}, {"name": "keyed"}, {"name": "other"}]);
    let config = json!({"module": {"wasm": "m.wasm"}, "two": {"command": ["x"], "http": {"url": "http://x/"}},
        "keyed": {"command": ["x"], "secret_env": {"A": "NOT_THERE"}}});
    let unbound = bound(tools, config).expect_err("refused");
    let names: Vec<&str> = unbound.iter().map(|one| one.tool.as_str()).collect();
    assert_eq!(names, ["mystery", "module", "two", "keyed", "other"]);
    let said: Vec<String> = unbound.iter().map(ToString::to_string).collect();
    for (text, part) in said.iter().zip([
        "[tools.mystery]",
        "wasm",
        "only one of",
        "NOT_THERE",
        "[tools.other]",
    ]) {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_program_under_a_builtins_name_says_what_it_takes() {
    let config = || json!({"file-read": {"command": ["/bin/cat"]}});
    let unbound = bound(json!([{"name": "file-read"}]), config()).expect_err("refused");
    assert!(
        unbound[0].reason.contains("`input_schema` in the manifest"),
        "{unbound:?}"
    );
    let described = json!([{"name": "file-read", "description": "d", "input_schema": {"type": "object"}}]);
    assert!(bound(described, config()).is_ok());
}

#[test]
fn a_name_that_is_nearly_a_builtins_leads_to_it() {
    let unbound = bound(json!([{"name": "read-file"}]), json!({})).expect_err("refused");
    assert!(
        unbound[0]
            .reason
            .contains("did you mean the built-in `file-read`?"),
        "{unbound:?}"
    );
}

#[test]
fn an_unknown_key_is_an_error() {
    assert!(serde_json::from_value::<ToolsConfig>(json!({"t": {"comand": ["x"]}})).is_err());
}

#[tokio::test]
async fn an_mcp_tool_is_described_by_its_server() {
    let uri = format!(
        "stdio://{}?arg=mcp&arg=one",
        env!("CARGO_BIN_EXE_clawk-tools-fixture")
    );
    let runner = bound(json!([{"name": "t", "mcp_source": {"uri": uri}}]), json!({})).expect("bound");
    assert_eq!(
        runner.describe_tool("t").await.expect("described").description,
        "The tool only."
    );
    runner.close().await;
}
